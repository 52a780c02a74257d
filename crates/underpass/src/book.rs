//! Tests of `docs/` as a book: every page is in its list, every link leads somewhere. mdBook itself is not needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Every page below `docs`, but for the list of them.
pub fn pages() -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![docs()]);
    while let Some(directory) = left.pop() {
        for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            match path.extension() {
                _ if path.is_dir() => left.push(path),
                Some(extension) if extension == "md" && !path.ends_with("SUMMARY.md") => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// The text of a page without its blocks of code.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && !fenced && !line.starts_with("    ")
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// The text of a line without what stands between backquotes.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Where the links and pictures of a page lead.
fn links(text: &str) -> Vec<String> {
    let text = without_code(&prose(text));
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.trim().to_owned()).collect()
}

/// The anchor of a heading, as mdBook and forges make it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// All anchors of a page: of several headings alike the later ones are numbered.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, u32>::new();
    let prose = prose(text);
    let headings =
        prose.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#'));
    let numbered = headings.map(|heading| {
        let anchor = anchor(heading);
        let count = seen.entry(anchor.clone()).or_default();
        *count += 1;
        match *count {
            1 => anchor,
            more => format!("{anchor}-{}", more - 1),
        }
    });
    numbered.collect()
}

/// A path without `..` in it.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => _ = path.pop(),
            part => path.push(part),
        }
        path
    })
}

/// What is wrong with a link of a page of these anchors.
fn broken(page: &Path, target: &str) -> Option<String> {
    if target.starts_with("https://") || target.starts_with("http://") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { page.to_owned() } else { plain(&page.parent()?.join(file)) };
    if !path.exists() {
        return Some(format!("{}: there is no {target}", page.display()));
    }
    let found = anchor.is_none_or(|anchor| anchors(&fs::read_to_string(&path).unwrap()).contains(anchor));
    (!found).then(|| format!("{}: no heading {target}", page.display()))
}

#[test]
fn every_page_is_in_the_list_once() {
    let summary = fs::read_to_string(docs().join("SUMMARY.md")).unwrap();
    let mut listed: Vec<PathBuf> = links(&summary).into_iter().map(|link| docs().join(link)).collect();
    listed.sort();
    assert_eq!(listed, pages());
    assert!(listed.len() > 25, "{listed:?}");
}

/// Within the book and to what lies beside it, also of README and of the examples.
#[test]
fn every_link_leads_somewhere() {
    let root = plain(&docs().join(".."));
    let others = ["README.md", "CONTRIBUTING.md", "docs/SUMMARY.md"].map(|name| root.join(name));
    let examples =
        fs::read_dir(root.join("examples")).unwrap().map(|entry| entry.unwrap().path().join("README.md"));
    let mut count = 0;
    let all = pages().into_iter().chain(others).chain(examples.filter(|page| page.exists()));
    let wrong: Vec<String> = all
        .flat_map(|page| {
            let links = links(&fs::read_to_string(&page).unwrap());
            count += links.len();
            links.into_iter().filter_map(|link| broken(&plain(&page), &link)).collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 150, "{count} links");
}

/// A link out of `docs` to a page would be one to a page of the book that is not in it.
#[test]
fn links_out_of_the_book_name_no_pages() {
    for page in pages() {
        for link in links(&fs::read_to_string(&page).unwrap()) {
            let file = link.split('#').next().unwrap();
            let path = plain(&page.parent().unwrap().join(file));
            let inside = path.starts_with(plain(&docs())) || file.is_empty() || file.starts_with("http");
            assert!(inside || !file.ends_with(".md"), "{}: {link}", page.display());
            // `make book` puts these beside the book, and nothing else.
            assert!(
                inside || path.components().any(|part| part.as_os_str() == "examples"),
                "{}: {link}",
                page.display()
            );
        }
    }
}

#[test]
fn what_a_link_and_an_anchor_is() {
    let page = "# A `b` c: D_e-f\n\n[x](y.md#z) `[no](no.md)` ![p](q.svg)\n```text\n# no\n[no](no)\n```\n## Twice\n## Twice\n";
    assert_eq!(links(page), ["y.md#z", "q.svg"]);
    let found = anchors(page);
    assert_eq!(found, ["a-b-c-d_e-f", "twice", "twice-1"].map(str::to_owned).into());
    let summary = docs().join("SUMMARY.md");
    assert!(broken(&summary, "none.md").is_some() && broken(&summary, "start.md#nowhere").is_some());
    assert_eq!(broken(&summary, "start.md#install"), None);
}
