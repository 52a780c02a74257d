//! The lines that the book tells to type, and what it says that one sees then.
//!
//! In `docs/tutorials` and `docs/how-to` what is indented by four is typed, as root, in the directory of the source, and a block
//! of `text` below has lines of what that prints: `…` stands for anything, blanks count as one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::net::{program, skip, turn};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What the shell says before a line that has failed.
const FAILED: &str = "failed here:";

/// Lines to type, and what is to be seen then.
#[derive(Debug, Default)]
struct Step {
    lines: Vec<String>,
    seen: Vec<String>,
}

/// The steps of a page, in its order.
fn steps(page: &str) -> Vec<Step> {
    let (mut steps, mut fence, mut typing) = (Vec::<Step>::new(), None, false);
    for line in page.lines() {
        match (fence, line.trim_start().strip_prefix("```")) {
            (Some(_), Some(_)) => fence = None,
            (Some("text"), None) => {
                if let Some(step) = steps.last_mut().filter(|_| !line.trim().is_empty()) {
                    step.seen.push(line.to_owned());
                }
            }
            (Some(_), None) => {}
            (None, Some(kind)) => (fence, typing) = (Some(kind), false),
            (None, None) if line.starts_with("    ") => {
                if !std::mem::replace(&mut typing, true) {
                    steps.push(Step::default());
                }
                steps.last_mut().unwrap().lines.push(line.trim_start().to_owned());
            }
            (None, None) => typing &= line.is_empty(),
        }
    }
    steps
}

/// The functions of a page that configure a router: `r() { ip netns exec r underpass exec -- "$@"; }`
fn routers(steps: &[Step]) -> Vec<String> {
    let lines = steps.iter().flat_map(|step| &step.lines);
    let name = |line: &String| {
        line.contains("underpass exec").then(|| line.split_once("() {").map(|(name, _)| name.to_owned()))
    };
    lines.filter_map(|line| name(line).flatten()).collect()
}

/// A shell's script of it, which says where each step ends, and which of its lines fail.
fn script(steps: &[Step]) -> String {
    let ready: Vec<String> = routers(steps).iter().map(|name| format!("{name} true")).collect();
    let mut script =
        format!("set -m; mount -t tmpfs none /run; exec 2>&1; trap 'echo \"{FAILED} $BASH_COMMAND\"' ERR\n");
    for (number, step) in steps.iter().enumerate() {
        for line in &step.lines {
            // The kernel's verifier takes half a second for the programs of the fast path, which other tests are about.
            let line = line.replace("underpass run", "underpass run --fast-path off");
            script += &match line.starts_with("sleep ") && line.contains("# until") {
                true => format!("until {}; do sleep 0.1; done 2>/dev/null\n", ready.join(" && ")),
                false => format!("{line}\n"),
            };
        }
        script += &format!("echo '@@{number}'\n");
    }
    script
}

/// Whether a line of a page stands for a line that was printed.
fn stands_for(wanted: &str, printed: &str) -> bool {
    let mut rest = printed;
    wanted.split('…').map(str::trim).all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

fn joined(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Types the lines of a page, in network namespaces and with sockets of its own; whatever they start ends with them.
fn type_lines(page: &str) {
    let Some(_turn) = turn(page) else { return };
    let steps = steps(&fs::read_to_string(root().join("docs").join(page)).unwrap());
    let wanted: usize = steps.iter().map(|step| step.seen.len()).sum();
    assert!(wanted > 1, "{page}: {steps:?}");
    let path = [program().parent().unwrap().to_str().unwrap(), &std::env::var("PATH").unwrap()].join(":");
    let outcome = Command::new("timeout")
        .args("--signal=KILL 120 unshare --mount --mount-proc --pid --fork --kill-child bash -c".split(' '))
        .arg(script(&steps))
        .current_dir(root())
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let mut rest = &said[..];
    for (number, step) in steps.iter().enumerate() {
        let last = step.lines.last().unwrap();
        let Some((printed, after)) = rest.split_once(&format!("@@{number}\n")) else {
            panic!("{page}: '{last}' did not end:\n{said}");
        };
        assert!(!printed.contains(FAILED), "{page}:\n{printed}");
        let lines: Vec<String> = printed.lines().map(joined).collect();
        for wanted in &step.seen {
            let found = lines.iter().any(|line| stands_for(&joined(wanted), line));
            assert!(found, "{page}: no line '{wanted}' in\n{printed}");
        }
        rest = after;
    }
    assert!(outcome.status.success(), "{page}: {said}");
}

#[test]
fn the_tutorial_of_srv6_counters() {
    type_lines("tutorials/srv6-counters.md");
}

#[test]
fn the_tutorial_of_mpls() {
    type_lines("tutorials/mpls.md");
}

#[test]
fn the_tutorial_of_header_insertion() {
    type_lines("tutorials/header-insertion.md");
}

#[test]
fn the_tutorial_of_fou() {
    type_lines("tutorials/fou.md");
}

#[test]
fn the_tutorial_of_policing() {
    type_lines("tutorials/police.md");
}

#[test]
fn how_to_build_an_l3vpn() {
    type_lines("how-to/l3vpn.md");
}

#[test]
fn how_to_build_a_bridge() {
    type_lines("how-to/bridge.md");
}

#[test]
fn how_to_build_an_l2vpn() {
    type_lines("how-to/l2vpn.md");
}

#[test]
fn how_to_put_a_tunnel_into_udp() {
    type_lines("how-to/fou.md");
}

#[test]
fn how_to_limit_containers() {
    type_lines("how-to/container-rates.md");
}

#[test]
fn how_to_debug_a_black_hole() {
    type_lines("how-to/black-hole.md");
}

#[test]
fn how_to_use_frr() {
    match Path::new("/usr/lib/frr/zebra").exists() {
        true => type_lines("how-to/frr.md"),
        false => skip("how_to_use_frr", "no FRR (scripts/test-tools.sh installs it)"),
    }
}

/// Every page with lines to type is typed, but for those that need a machine of their own.
#[test]
fn no_page_is_left_out() {
    let own = include_str!("book.rs");
    for directory in ["tutorials", "how-to"] {
        for entry in fs::read_dir(root().join("docs").join(directory)).unwrap() {
            let page = format!("{directory}/{}", entry.unwrap().file_name().to_str().unwrap());
            let typed = own.contains(&format!("type_lines(\"{page}\")"));
            let apart = ["how-to/systemd.md", "how-to/containers.md"].contains(&&page[..]);
            assert!(typed != apart, "{page}");
        }
    }
}

#[test]
fn ellipses_match_any_words() {
    assert!(stands_for("packets … errors 1", "End packets 7 bytes 9 errors 1 dev e0"));
    assert!(stands_for("…", "anything") && stands_for("no-route 1", "no-route 1"));
    assert!(!stands_for("errors … packets", "packets 7 errors 1") && !stands_for("a b", "a c b"));
    let page = "# A\n\n    one\n\n    two\n\n- x:\n\n      three\n\n```text\nseen\n```\n";
    let found = steps(page);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((found[0].lines.len(), &found[1].lines[0][..], &found[1].seen[0][..]), (2, "three", "seen"));
}
