//! Files that import each other in a circle stay few, and crates import what docs/architecture.md says. And what the program
//! depends on.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

#[path = "structure/dependencies.rs"]
mod dependencies;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Module = Vec<String>;

/// The modules below a directory, each with its text without comments and tests.
fn modules(root: &Path) -> BTreeMap<Module, String> {
    let (mut found, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let within = path.strip_prefix(root).unwrap().with_extension("");
            let mut module: Module = within.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            if matches!(module.last().unwrap().as_str(), "mod" | "lib" | "main") {
                module.pop();
            }
            found.insert(module, code(&path));
        }
    }
    found
}

fn code(path: &PathBuf) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The paths of a `use`, of which braces hold several.
fn expand(before: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap();
        return paths.push(format!("{before}{}", path.trim()));
    };
    let inside = rest.rsplit_once('}').unwrap().0;
    let (mut depth, mut from) = (0, 0);
    for (at, byte) in inside.bytes().chain([b',']).enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                if !inside[from..at].trim().is_empty() {
                    expand(&format!("{before}{head}"), &inside[from..at], paths);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// The paths that a module names: in `use`, and those from the crate or the module above elsewhere.
fn paths(text: &str) -> Vec<(String, bool)> {
    let (mut all, mut rest) = (Vec::new(), String::new());
    for statement in text.split_inclusive(';') {
        let trimmed = statement.trim_start();
        let public = trimmed.starts_with("pub");
        let used = trimmed.find("use ").filter(|at| public && *at < 24 || *at == 0);
        let Some(at) = used else {
            rest.push_str(statement);
            continue;
        };
        let mut expanded = Vec::new();
        expand("", trimmed[at + 4..].trim_end_matches(';'), &mut expanded);
        all.extend(expanded.into_iter().map(|path| (path, public)));
    }
    for start in ["crate::", "super::"] {
        for (at, _) in rest.match_indices(start) {
            let end = rest[at..].find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
            all.push((rest[at..].get(..end.unwrap_or(0)).unwrap().to_owned(), false));
        }
    }
    all
}

/// Which modules a module imports from.
fn imports(modules: &BTreeMap<Module, String>) -> BTreeMap<&Module, BTreeSet<&Module>> {
    let mut edges = BTreeMap::new();
    for (module, text) in modules {
        let mut to = BTreeSet::new();
        for (path, public) in paths(text) {
            let mut base = module.clone();
            let mut parts: Vec<&str> = path.split("::").collect();
            match parts.first() {
                Some(&"crate") => base.clear(),
                Some(&"super" | &"self") => {}
                Some(first) if modules.contains_key(&[&base[..], &[(*first).to_owned()]].concat()) => {}
                _ => continue,
            }
            while let Some(&first @ ("crate" | "self" | "super")) = parts.first() {
                if first == "super" {
                    base.pop();
                }
                parts.remove(0);
            }
            base.extend(parts.into_iter().map(str::to_owned));
            let found =
                (1..=base.len()).rev().find_map(|length| modules.get_key_value(&base[..length].to_vec()));
            if let Some((other, _)) = found
                && other != module
                // What a module hands on of the files below it makes none of these need it.
                && !(public && other.starts_with(module))
            {
                to.insert(other);
            }
        }
        edges.insert(module, to);
    }
    edges
}

fn reached<'a>(edges: &BTreeMap<&'a Module, BTreeSet<&'a Module>>, from: &'a Module) -> BTreeSet<&'a Module> {
    let (mut found, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(module) = left.pop() {
        left.extend(edges[module].iter().copied().filter(|other| found.insert(*other)));
    }
    found
}

/// The largest circle of imports below a directory.
fn largest(root: &Path) -> Vec<String> {
    let modules = modules(root);
    let edges = imports(&modules);
    let reach: BTreeMap<_, _> = modules.keys().map(|module| (module, reached(&edges, module))).collect();
    let circle = |module: &Module| -> Vec<String> {
        let both = reach[module].iter().filter(|other| reach[**other].contains(module));
        both.map(|other| other.join("/")).collect()
    };
    modules.keys().map(circle).max_by_key(Vec::len).unwrap()
}

#[test]
fn circles_are_as_small_as_the_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap().replace('\n', " ");
    for (name, said) in [
        ("control", "No import cycle spans more than five files"),
        ("engine", "No import cycle spans more than six files"),
    ] {
        assert!(page.contains(said), "{name}");
        let most = if said.contains("six") { 6 } else { 5 };
        let largest = largest(&root.join(format!("crates/underpass-{name}/src")));
        assert!(!largest.is_empty() && largest.len() <= most, "{name}: {} files: {largest:?}", largest.len());
    }
}

/// The table of crates is that of the manifests, each crate below those that it imports.
#[test]
fn crates_import_what_the_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `underpass"));
    let mut above = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
        let (name, said) = (cells[0].trim_end_matches('`'), cells[2]);
        let said: BTreeSet<&str> = said.split(", ").filter(|other| *other != "–").collect();
        let path = root.join(format!("crates/underpass{name}/Cargo.toml"));
        let manifest = fs::read_to_string(&path).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap().lines();
        let found: BTreeSet<&str> = dependencies
            .filter_map(|line| line.strip_prefix("underpass-")?.split(['.', ' ']).next())
            .collect();
        assert_eq!(said, found, "underpass{name}");
        assert!(found.iter().all(|other| above.contains(&format!("-{other}"))), "underpass{name}: {found:?}");
        above.insert(name.to_owned());
    }
    assert_eq!(above.len(), fs::read_dir(root.join("crates")).unwrap().count(), "{above:?}");
}

#[test]
fn a_use_names_all_that_its_braces_hold() {
    let mut found = Vec::new();
    expand("", "crate::{a::{B, c::D as E}, f}", &mut found);
    assert_eq!(found, ["crate::a::B", "crate::a::c::D", "crate::f"]);
    let text = "pub(crate) use x::Y;\nfn f() { super::g::h(); }";
    assert_eq!(paths(text), [("x::Y".to_owned(), true), ("super::g::h".to_owned(), false)]);
}
