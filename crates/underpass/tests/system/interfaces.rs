//! ifupdown and ifupdown2, which read /etc/network/interfaces, under `underpass exec` beside a kernel.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use underpass_daemon::testbed::{Router, join};

use crate::{
    net::{self, program},
    programs::there,
};

const NAME: &str = "interfaces_come_up_and_go_down";

/// ifupdown's `tunnel` makes tunnels by ioctls; `post-up` is a shell.
const IFUPDOWN: &str = "iface e0 inet static
  address 10.5.0.1/24
  post-up ip route add 10.77.0.0/16 via 10.5.0.2
iface t1 inet tunnel
  mode ipip
  local 10.5.0.1
  endpoint 10.5.0.2
  ttl 64
  address 10.9.0.1
  netmask 30
";
const IFUPDOWN2: &str = "auto e0
iface e0
  address 10.5.0.1/24
auto red
iface red
  vrf-table 1001
auto t0
iface t0
  tunnel-mode gre
  tunnel-local 10.5.0.1
  tunnel-endpoint 10.5.0.2
  address 10.8.0.1/30
auto t1
iface t1
  tunnel-mode ipip
  tunnel-local 10.5.0.1
  tunnel-endpoint 10.5.0.2
  tunnel-ttl 64
  vrf red
  address 10.9.0.1/30
";
/// Puts the files of the package of ifupdown2, which are at `$0`, in their places.
const PLACE: &str = "mkdir -p /etc/network /usr/share/ifupdown2 /var/lib/ifupdown2 /run/network /etc/iproute2/rt_tables.d
    for mine in /etc/network /var/lib/ifupdown2 /run/network /etc/iproute2/rt_tables.d; do mount -t tmpfs none $mine; done
    cp -r \"$0\"/etc/network/. /etc/network; mount --bind \"$0\"/usr/share/ifupdown2 /usr/share/ifupdown2
    mount -t sysfs none /sys
    exec \"$@\"";

/// The package of ifupdown2, unpacked. `None`, and said so, if `scripts/test-tools.sh` has not done it.
fn ifupdown2() -> Option<PathBuf> {
    let tree = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("ifupdown2");
    let there = tree.join("usr/share/ifupdown2/__main__.py").is_file();
    if !there {
        net::skip(NAME, &format!("{} has no ifupdown2", tree.display()));
    }
    there.then_some(tree)
}

#[test]
fn interfaces_come_up_and_go_down() {
    let Some(_turn) = net::turn(NAME) else { return };
    let namespaces = ["interfaces", "other"].map(net::namespace);
    join(&namespaces[0], "e0", &namespaces[1], "e0").unwrap();
    namespaces[1].run("ip link set e0 up").unwrap();
    let router = Router::start(program(), &namespaces[0], &[]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let shown = || router.run("ip -d link show; ip addr show; ip route show").unwrap();
    let has = |wanted: &[&str]| {
        let shown = shown();
        wanted.iter().for_each(|wanted| assert!(shown.contains(wanted), "{wanted} is not in {shown}"));
    };
    let has_not = |unwanted: &[&str]| {
        let shown = shown();
        unwanted.iter().for_each(|wanted| assert!(!shown.contains(wanted), "{wanted} is in {shown}"));
    };
    if there(NAME, "ifup", "ifupdown") {
        fs::write(path("interfaces"), IFUPDOWN).unwrap();
        // It starts `ip` with an environment of its own, which supervision alone gets through.
        let run = |words: &str| {
            let program = program().display();
            let [file, state] = [path("interfaces"), path("")];
            let line =
                format!("{program} exec --follow -- {words} --no-scripts -i {file} --state-dir={state}");
            namespaces[0].run(&line).unwrap()
        };
        run("ifup e0 t1");
        has(&[
            "ipip remote 10.5.0.2 local 10.5.0.1 ttl 64",
            "10.9.0.1/30",
            "10.77.0.0/16 via 10.5.0.2 dev e0",
        ]);
        run("ifdown t1 e0");
        has_not(&["t1@NONE", "10.5.0.1/24", "10.77.0.0/16"]);
    }
    if let Some(tree) = ifupdown2() {
        fs::write(path("interfaces2"), IFUPDOWN2).unwrap();
        let main = "/usr/share/ifupdown2/__main__.py";
        let run = |name: &str| {
            let name = path(name);
            let _ = std::os::unix::fs::symlink(main, &name);
            let mut command: Command = router.command("unshare");
            command.args(["--mount", "sh", "-ec", PLACE]).arg(&tree);
            command.args(["/usr/bin/python3", "-W", "ignore", &name, "-a", "-i", &path("interfaces2")]);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{name}: {output:?}");
        };
        run("ifup");
        has(&[
            "vrf table 1001",
            "gre remote 10.5.0.2 local 10.5.0.1",
            "ipip remote 10.5.0.2 local 10.5.0.1 ttl 64",
            "master red",
            "10.8.0.1/30",
            "10.9.0.1/30",
        ]);
        run("ifdown");
        has_not(&["t0@NONE", "t1@NONE", "vrf table", "10.5.0.1/24"]);
    }
    router.stop().unwrap();
}
