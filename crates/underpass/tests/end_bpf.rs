//! Routes with BPF programs, as `ip` adds and shows them: as this machine's kernel answers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use underpass_daemon::offline::Offline;

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/bpf")
}

/// Only root can load BPF programs.
fn skipped() -> bool {
    let skipped = fs::metadata("/proc/self").unwrap().uid() != 0;
    if skipped {
        eprintln!("skipped: only root can load BPF programs");
    }
    skipped
}

/// A network namespace of the kernel with a link p0.
struct Namespace(String);

impl Namespace {
    fn new() -> Self {
        let name = format!("up-end-bpf-{}", std::process::id());
        let namespace = Self(name.clone());
        for line in [
            format!("ip netns add {name}"),
            format!("ip -n {name} link add p0 type veth peer name p1"),
            format!("ip -n {name} link set p0 up"),
            format!("ip -n {name} link set p1 up"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success(), "{line}");
        }
        namespace
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new("ip").args(["netns", "exec", &self.0]).args(words).output().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn router() -> Offline {
    let ports = ["p0", "p1"].map(|port| port.parse().unwrap());
    let (router, _, _) = Offline::new(&ports, 1).unwrap();
    for port in ["p0", "p1"] {
        assert!(router.run(&["ip", "link", "set", port, "up"]).unwrap().status.success());
    }
    router
}

/// Whether it succeeded, and what it printed.
fn said(output: &Output) -> (bool, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// The same lines of `ip` with the kernel and with the router.
#[test]
fn the_kernel_answers_the_same() {
    if skipped() {
        return;
    }
    let (kernel, router) = (Namespace::new(), router());
    let directory = programs();
    let directory = directory.to_str().unwrap();
    let (tag, count) = ("endpoint obj tag.o section seg6", "endpoint obj count.o section seg6");
    let bpf = "encap seg6local action End.BPF";
    let lines = [
        format!("-6 route add fc00::1/128 {bpf} {tag} dev p0"),
        format!("-6 route add fc00::1/128 {bpf} {tag} dev p0"), // File exists
        format!("-6 route add fc00::2/128 {bpf} {count} count dev p0"),
        format!("-6 route add fc00::3/128 {bpf} {tag} count dev p0 table 100"),
        format!("-6 route replace fc00::1/128 {bpf} {count} dev p0"),
        format!("nexthop add id 7 {bpf} {tag} dev p0"),
        "-6 route add fc00::4/128 nhid 7".to_owned(),
        format!("-6 route add fc00::5/128 nexthop {bpf} {tag} dev p0 nexthop {bpf} {count} dev p1"),
        format!("-6 route add fc00::6/128 {bpf} endpoint obj tag.o section missing dev p0"),
        format!("-6 route add fc00::6/128 {bpf} dev p0"),
        format!("route add 10.0.0.0/8 {bpf} {tag} dev p0"),
        "-6 route show root fc00::/16".to_owned(),
        "-6 -s route show root fc00::/16".to_owned(),
        "-6 -j route show root fc00::/16".to_owned(),
        "-6 route show table 100".to_owned(),
        "nexthop show".to_owned(),
        "-6 route del fc00::1/128".to_owned(),
        "-6 route del fc00::1/128".to_owned(), // No such process
        "-6 route show root fc00::/16".to_owned(),
    ];
    for line in lines {
        let words: Vec<&str> =
            ["env", "-C", directory, "ip"].into_iter().chain(line.split_whitespace()).collect();
        let theirs = said(&kernel.run(&words));
        assert_eq!(said(&router.run(&words).unwrap()), theirs, "ip {line}");
    }
}

#[test]
fn what_cannot_be_run_is_refused_and_changes_nothing() {
    if skipped() {
        return;
    }
    let (router, directory) = (router(), programs());
    let add = |object: &str| {
        let object = directory.join(object);
        let line = format!(
            "ip -6 route add fc00::1/128 encap seg6local action End.BPF endpoint obj {} section seg6 dev p0",
            object.display()
        );
        said(&router.run_line(&line).unwrap())
    };
    let (success, _, error) = add("hash.o");
    assert!(!success);
    assert_eq!(
        error,
        "Error: End.BPF: map \"seen\" is not an array with BPF_F_MMAPABLE, which alone can be reached without a \
         system call.\n"
    );
    let (_, routes, _) = said(&router.run_line("ip -6 route show").unwrap());
    assert!(!routes.contains("fc00::1"), "{routes}");
    assert!(add("tag.o").0);
}
