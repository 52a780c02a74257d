//! The scripts of `examples/lab-l3vpn` on a Linux that has VRF and SRv6 itself: they configure it as they
//! configure the routers of `underpass lab l3vpn`. And the lines that README tells to type.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::net::{program, skip, turn};

/// What the guest's first program does: builds the network, then says how each line ended.
const GUEST: &str = r#"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
mount -t devtmpfs dev /dev 2>/dev/null
ip link set lo up
sh "$1/linux.sh"
echo "built: $?"
says() { ip netns exec "lab-$@" >/dev/null 2>&1; echo "$*: $?"; }
try() { for i in 1 2 3 4 5 6 7 8 9; do ip netns exec "lab-$1" ping -c 1 -W 1 "$2" >/dev/null 2>&1 && break; done; }
for host in a1 b1; do
    try $host 10.2.0.2; try $host fd10:2::2
    says $host ping -n -q -c 3 -i 0.1 -W 2 10.2.0.2
    says $host ping -n -q -c 3 -i 0.1 -W 2 fd10:2::2
done
says a1 ping -n -q -c 1 -W 2 -M do -s 1472 10.2.0.2
says b1 ping -n -q -c 1 -W 2 -M do -s 1452 fd10:2::2
says a1 ping -n -q -c 1 -W 2 10.77.0.1
says b1 ping -n -q -c 1 -W 1 10.77.0.1
says b1 ping -n -q -c 1 -W 1 fc00:2:0:a::
says b1 ping -n -q -c 1 -W 1 fc00:1::1
says pe1 ping -n -q -c 1 -W 2 fc00:2::1
says pe1 ping -n -q -c 1 -W 2 -I vrf-a 10.2.0.2
for router in pe1 p pe2; do
    ip -n lab-$router -6 -s route show | grep seg6local
done
sh "$1/linux.sh" down
echo "down: $?"
echo o > /proc/sysrq-trigger
sleep 10
"#;

#[test]
fn the_scripts_configure_linux() {
    let Some(kernel) = std::env::var_os("UNDERPASS_UML") else {
        return skip(
            "the_scripts_configure_linux",
            "UNDERPASS_UML names no user-mode Linux kernel with VRF and SRv6",
        );
    };
    let examples =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lab-l3vpn").canonicalize().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (init, console) = (directory.path().join("init"), directory.path().join("console"));
    fs::write(&init, GUEST).unwrap();
    let mut guest = Command::new(kernel)
        .args(["mem=192M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"])
        .args(["con=null", "con0=fd:0,fd:1", "init=/bin/sh", "--"])
        .arg(&init)
        .arg(&examples)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&console).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let ended = loop {
        match guest.try_wait().unwrap() {
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
            ended => break ended,
        }
    };
    if ended.is_none() {
        guest.kill().unwrap();
        guest.wait().unwrap();
    }
    let said = String::from_utf8_lossy(&fs::read(&console).unwrap()).replace('\r', "");
    for line in [
        "built: 0",
        "a1 ping -n -q -c 3 -i 0.1 -W 2 10.2.0.2: 0",
        "a1 ping -n -q -c 3 -i 0.1 -W 2 fd10:2::2: 0",
        "b1 ping -n -q -c 3 -i 0.1 -W 2 10.2.0.2: 0",
        "b1 ping -n -q -c 3 -i 0.1 -W 2 fd10:2::2: 0",
        "a1 ping -n -q -c 1 -W 2 -M do -s 1472 10.2.0.2: 0",
        "b1 ping -n -q -c 1 -W 2 -M do -s 1452 fd10:2::2: 0",
        "a1 ping -n -q -c 1 -W 2 10.77.0.1: 0",
        "b1 ping -n -q -c 1 -W 1 10.77.0.1: 1",
        "b1 ping -n -q -c 1 -W 1 fc00:2:0:a::: 1",
        "b1 ping -n -q -c 1 -W 1 fc00:1::1: 1",
        "pe1 ping -n -q -c 1 -W 2 fc00:2::1: 0",
        "pe1 ping -n -q -c 1 -W 2 -I vrf-a 10.2.0.2: 0",
        "down: 0",
    ] {
        assert!(said.lines().any(|found| found == line), "Linux did not say '{line}':\n{said}");
    }
    let sids: Vec<&str> = said.lines().filter(|line| line.contains("seg6local")).collect();
    assert_eq!(sids.len(), 5, "{said}");
    assert!(sids.iter().all(|sid| sid.contains("packets") && !sid.contains("packets 0 ")), "{said}");
}

/// The lines of README that stand for two machines, in a shell with jobs: its network namespaces and sockets are in
/// directories of its own, and whatever it has started ends with it.
#[test]
fn the_lines_of_the_readme() {
    let Some(_turn) = turn("the_lines_of_the_readme") else { return };
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let lines = readme
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .skip_while(|line| *line != "ip netns add west")
        .take_while(|line| !line.starts_with("underpass run --offline"))
        .map(|line| match line.starts_with("sleep ") {
            true => "until west true && east true; do sleep 0.1; done 2>/dev/null",
            false => line,
        });
    let script =
        lines.fold(String::from("set -m; mount -t tmpfs none /run\n"), |all, line| all + line + "\n");
    let path = [program().parent().unwrap().to_str().unwrap(), &std::env::var("PATH").unwrap()].join(":");
    let outcome = Command::new("timeout")
        .args("--signal=KILL 60 unshare --mount --mount-proc --pid --fork --kill-child bash -c".split(' '))
        .arg(&script)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&outcome.stdout), String::from_utf8_lossy(&outcome.stderr));
    for line in [
        "3 packets transmitted, 3 received",
        "action End.DT6 table local packets 3 ",
        "200 packets transmitted",
        // And a neighbour solicitation or two, as on Linux.
        "rule hit 20",
        "0 packets followed",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(outcome.status.success() && !said.contains("(dropped 0,"), "{said}");
}
