//! FRR's daemons in a namespace, the routers that they program, and what these show.

use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, User},
};
use underpass_daemon::testbed::{Namespace, Router};

use crate::net::{self, program};

const DAEMONS: &str = "/usr/lib/frr";
pub const PATIENCE: Duration = Duration::from_secs(60);
/// zebra connects a second or three after its start.
pub const GRACE: &str = "4";

/// Whether FRR is there; says so if not.
pub fn there(test: &str) -> bool {
    let plugin = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"]
        .iter()
        .any(|lib| Path::new(lib).join("frr/modules/dplane_fpm_nl.so").exists());
    if !plugin {
        net::skip(test, "FRR with dplane_fpm_nl is not installed (Debian: frr)");
    }
    plugin
}

/// FRR's user, which its daemons become.
pub fn give(path: &Path) {
    let user = User::from_name("frr").unwrap().unwrap();
    chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
}

/// An FRR in a namespace.
pub struct Frr {
    pub namespace: Namespace,
    /// Where its sockets, pid files and logs are.
    directory: tempfile::TempDir,
    /// How zebra is started, if not by itself: `underpass exec`.
    exec: Vec<String>,
    /// What every program of FRR is started by, if not by itself: one that has another FRR at `/usr`.
    pub around: Vec<String>,
    running: Vec<(&'static str, Child)>,
}

impl Frr {
    /// One whose zebra is started by `underpass` with these arguments, or by itself if there are none.
    pub fn new(namespace: &Namespace, exec: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        give(directory.path());
        let exec = exec.iter().map(|&word| word.to_owned()).collect();
        Self { namespace: namespace.clone(), directory, exec, around: Vec::new(), running: Vec::new() }
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    pub fn start(&mut self, daemon: &'static str, configuration: &str) {
        fs::write(self.path(daemon), configuration).unwrap();
        let mut words = self.around.clone();
        if daemon == "zebra" && !self.exec.is_empty() {
            words.push(program().display().to_string());
            words.extend(self.exec.iter().cloned().chain(["--".to_owned()]));
        }
        words.push(format!("{DAEMONS}/{daemon}"));
        let mut command = self.namespace.command(&words[0]);
        command.args(&words[1..]);
        command.args(["-P", "0", "--vty_socket"]).arg(self.directory.path());
        command.args(["-z", &self.path("zserv"), "-i", &self.path(&format!("{daemon}.pid"))]);
        command.args(["--log", &format!("file:{}", self.path("log"))]);
        // In FRR 10 these two have no file of their own.
        if self.around.is_empty() || !["mgmtd", "staticd"].contains(&daemon) {
            command.args(["-f", &self.path(daemon)]);
        }
        match daemon {
            "zebra" => command.args(["-M", "dplane_fpm_nl"]),
            "ldpd" => command.arg("--ctl_socket").arg(self.directory.path()),
            _ => &mut command,
        };
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.running.push((daemon, child));
        let vty = self.path(&format!("{daemon}.vty"));
        eventually(&format!("{daemon} is there"), || match Path::new(&vty).exists() {
            true => Ok(()),
            false => Err(fs::read_to_string(self.path("log")).unwrap_or_default()),
        });
    }

    /// Commands of `vtysh`, each of which must be taken.
    pub fn vtysh(&self, commands: &[&str]) -> String {
        let words = [self.around.clone(), vec!["vtysh".to_owned()]].concat();
        let mut vtysh = Command::new(&words[0]);
        vtysh.args(&words[1..]).arg("--vty_socket").arg(self.directory.path());
        for command in commands {
            vtysh.args(["-c", command]);
        }
        let output = vtysh.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && !text.contains('%'), "{commands:?}: {text}");
        text
    }

    pub fn configure(&self, lines: &[&str]) {
        self.vtysh(&[&["configure terminal"], lines].concat());
    }

    /// 64 bits, as FRR 8.4 announces SIDs: 40 of the block and 24 of the node, whatever the locator has.
    pub fn locator(&self, own: u8) {
        let prefix = format!("prefix fd01:0:0:{own}::/64");
        self.configure(&["segment-routing", "srv6", "locators", "locator loc1", &prefix]);
    }

    /// What zebra has taken of the processor, in hundredths of a second.
    pub fn zebra_ticks(&self) -> u64 {
        let (_, child) = self.running.iter().find(|(name, _)| *name == "zebra").unwrap();
        let status = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        status.split(' ').skip(13).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// SIGTERM to one: it withdraws what it has announced.
    pub fn end(&self, daemon: &str) {
        let (_, child) = self.running.iter().find(|(name, _)| *name == daemon).unwrap();
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    }

    /// SIGKILL to all: nothing is withdrawn.
    pub fn kill(&mut self) {
        for (daemon, mut child) in self.running.drain(..) {
            child.kill().unwrap();
            child.wait().unwrap();
            let _ = fs::remove_file(self.directory.path().join(format!("{daemon}.vty")));
        }
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Tries until it is so.
pub fn eventually(what: &str, mut is: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(why) = is() {
        assert!(Instant::now() < deadline, "never: {what}; at last:\n{why}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// A router with virtual ports; their ifindexes are those of the first devices of a namespace.
pub struct Offline {
    _router: Router,
    pub namespace: Namespace,
    pub socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Offline {
    pub fn new(namespace: &Namespace, fpm: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        give(directory.path());
        let socket = directory.path().join("netlink.sock");
        let path = socket.display().to_string();
        let mut arguments = vec!["--offline", "--socket", &path, "--port", "p0", "--port", "p1"];
        if fpm {
            arguments.extend(["--fpm", "127.0.0.1", "--fpm-grace", GRACE]);
        }
        let router = Router::start(program(), namespace, &arguments).unwrap();
        give(&socket);
        Self { _router: router, namespace: namespace.clone(), socket, _directory: directory }
    }

    pub fn run(&self, lines: &str) -> String {
        let mut command = self.namespace.command(program());
        command.args(["exec", "--socket"]).arg(&self.socket).args(["--", "sh", "-ec", lines]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{lines}: {output:?}");
        tidy(&String::from_utf8(output.stdout).unwrap())
    }
}

/// One blank between words, none at the ends of lines.
pub fn tidy(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Without the ids of next-hop objects, which are FRR's to choose.
pub fn without_ids(text: &str) -> String {
    let words = text.split(' ').collect::<Vec<_>>();
    let id = |at: usize| at > 0 && words[at - 1].ends_with("nhid") || words[at].ends_with("nhid");
    (0..words.len()).filter(|&at| !id(at)).map(|at| words[at]).collect::<Vec<_>>().join(" ")
}

pub fn shows(what: &str, shown: impl Fn() -> String, wanted: &str) {
    eventually(what, || match shown() {
        shown if shown == wanted => Ok(()),
        shown => Err(format!("{shown}\nis not\n{wanted}")),
    });
}

pub const PORTS: &str = "ip link set lo up
    ip link set p0 up
    ip link set p1 up
    ip addr add 10.0.0.1/24 dev p0
    ip addr add fd00::1/64 dev p0 nodad
    ip addr add 10.1.0.1/24 dev p1
    ip addr add fd01::1/64 dev p1 nodad";

/// A namespace whose devices have the names, addresses and ifindexes of the router's ports.
pub fn twin(name: &str) -> Namespace {
    let namespace = net::namespace(name);
    namespace
        .run(
            "ip link add p0 index 2 type veth peer name x0 index 10
              ip link add p1 index 3 type veth peer name x1 index 11
              ip link set x0 up
              ip link set x1 up",
        )
        .unwrap();
    namespace.run(PORTS).unwrap();
    namespace
}

pub const FPM: &str = "fpm address 127.0.0.1\n";
