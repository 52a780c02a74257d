//! A Linux that has all that this machine's kernel may lack: a user-mode kernel, whose devices are in namespaces
//! of this one.
//!
//! `UNDERPASS_UML` names it, as for `tests/golden/record.py`, which tells what must be built in; here UML's vector
//! network devices, MPLS and VRF too. It needs ptrace.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use underpass_daemon::testbed::{Namespace, join};

use super::net;

const PATIENCE: Duration = Duration::from_secs(60);

/// The first program of the guest: runs each line that it reads, and answers with its status.
const INIT: &str = r#"#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
stty -echo -onlcr 2>/dev/null
ip link set lo up
echo __READY
while IFS= read -r line; do
    ( set -e; eval "$line" ) </dev/null 2>&1
    echo "__STATUS $?"
done
"#;

/// The kernel; says why if a test is skipped for want of it.
pub fn kernel(test: &str) -> Option<String> {
    let kernel = env::var("UNDERPASS_UML").ok();
    if kernel.is_none() {
        net::skip(test, "UNDERPASS_UML does not name a user-mode Linux");
    }
    kernel
}

/// A running Linux, which forwards.
pub struct Guest {
    child: Child,
    input: ChildStdin,
    output: Receiver<String>,
    _directory: tempfile::TempDir,
    _namespace: Namespace,
}

impl Guest {
    /// Boots `kernel` with devices of these names, each of which is the other end of a device of a namespace.
    pub fn start(kernel: &str, devices: &[(&str, &Namespace, &str)]) -> Self {
        let namespace = net::namespace("guest");
        namespace.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1").unwrap();
        for (n, (_, there, name)) in devices.iter().enumerate() {
            // The guest opens its tap anew whenever its device comes up, and so cannot have it elsewhere.
            join(&namespace, &format!("veth{n}"), there, name).unwrap();
            let bridge = format!(
                "ip tuntap add tap{n} mode tap vnet_hdr; ip link add bridge{n} type bridge
                 for end in tap{n} veth{n}; do ip link set $end master bridge{n} up; done
                 ip link set bridge{n} up"
            );
            namespace.run(&bridge).unwrap();
            there.run(&format!("ip link set {name} up")).unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let init = directory.path().join("init");
        fs::write(&init, INIT).unwrap();
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = namespace.command(kernel);
        command.args(["mem=128M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"]);
        command.args(["con=null", "con0=fd:0,fd:1"]).arg(format!("init={}", init.display()));
        for n in 0..devices.len() {
            command.arg(format!("vec{n}:transport=tap,ifname=tap{n},depth=64,gro=0"));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (input, lines) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, output) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(lines).lines();
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line.trim_end().to_owned()))
        });
        let mut guest = Self { child, input, output, _directory: directory, _namespace: namespace };
        while guest.line("booting") != "__READY" {}
        for (n, (own, ..)) in devices.iter().enumerate() {
            guest.run(&format!("ip link set vec{n} name {own} up"));
        }
        guest.run(
            "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
             net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0",
        );
        guest
    }

    /// Lines of shell, run in it, which must succeed. What they printed.
    pub fn run(&mut self, lines: &str) -> String {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            assert!(!line.contains("__STATUS"), "{line}");
        }
        let one = lines.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        writeln!(self.input, "{one}").unwrap();
        let mut printed = String::new();
        loop {
            let line = self.line(&one);
            match line.strip_prefix("__STATUS ") {
                Some("0") => return printed,
                Some(status) => panic!("in the guest: {one}: status {status}\n{printed}"),
                None => printed += &format!("{line}\n"),
            }
        }
    }

    fn line(&self, doing: &str) -> String {
        self.output.recv_timeout(PATIENCE).unwrap_or_else(|why| panic!("the guest is silent: {doing}: {why}"))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}
