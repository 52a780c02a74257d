//! Routing programs as Debian ships them, under `underpass exec` beside a kernel: keepalived and BIRD.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use underpass_daemon::testbed::{Namespace, Router, join};

use crate::net::{self, program};

const PATIENCE: Duration = Duration::from_secs(30);

/// Whether a program is there; says so if not.
pub fn there(test: &str, name: &str, package: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {name}")]).output();
    let there = there.is_ok_and(|output| output.status.success());
    if !there {
        net::skip(test, &format!("{name} is not installed (Debian: {package})"));
    }
    there
}

pub fn eventually(what: &str, mut is: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(why) = is() {
        assert!(Instant::now() < deadline, "never: {what}; at last:\n{why}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// A program that is ended by SIGTERM, upon which it takes back what it has done.
pub struct Running(Child);

impl Running {
    /// Starts it under `underpass exec` of a router.
    fn start(router: &Router, words: &[&str], log: &Path) -> Self {
        let mut command = router.command(words[0]);
        command.args(&words[1..]);
        Self::spawn(command, log)
    }

    /// Starts a command that writes to a log.
    pub fn spawn(mut command: Command, log: &Path) -> Self {
        let log = File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self(command.spawn().unwrap())
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Two namespaces with a cable between them and a router each.
fn pair(names: [&str; 2]) -> [(Namespace, Router); 2] {
    let namespaces = names.map(net::namespace);
    join(&namespaces[0], "e0", &namespaces[1], "e0").unwrap();
    for (own, namespace) in (1..).zip(&namespaces) {
        let lines = format!("ip link set lo up; ip link set e0 up; ip addr add 10.5.0.{own}/24 dev e0");
        namespace.run(&lines).unwrap();
    }
    namespaces.map(|namespace| {
        let router = Router::start(program(), &namespace, &[]).unwrap();
        (namespace, router)
    })
}

/// An address of VRRP moves from the one that ends to the other, and packets follow it.
#[test]
fn keepalived_moves_an_address() {
    const NAME: &str = "keepalived_moves_an_address";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME, "keepalived", "keepalived")) else { return };
    let sides = pair(["vrrp-1", "vrrp-2"]);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let mut running: Vec<Running> = Vec::new();
    for (own, (_, router)) in sides.iter().enumerate() {
        let configuration = format!(
            "global_defs {{\n router_id r{own}\n}}\nvrrp_instance V {{\n state BACKUP\n interface e0\n \
             virtual_router_id 7\n priority {}\n advert_int 1\n \
             virtual_ipaddress {{\n  10.5.0.100/24 dev e0\n }}\n}}\n",
            150 - own * 10
        );
        std::fs::write(path(&format!("{own}.conf")), configuration).unwrap();
        let [conf, pid, vrrp] = ["conf", "pid", "vrrp"].map(|end| path(&format!("{own}.{end}")));
        let words = ["keepalived", "-n", "-l", "-D", "-P", "-f", &conf, "-p", &pid, "-r", &vrrp];
        running.push(Running::start(router, &words, Path::new(&path(&format!("{own}.log")))));
    }
    let has = |own: usize| sides[own].1.run("ip -4 -o addr show dev e0").unwrap().contains(" 10.5.0.100/24 ");
    let told = || [0, 1].map(|own| std::fs::read_to_string(path(&format!("{own}.log"))).unwrap()).concat();
    eventually("the first has the address", || if has(0) && !has(1) { Ok(()) } else { Err(told()) });
    net::settle(&sides[1].0, "10.5.0.100", PATIENCE).unwrap();
    drop(running.remove(0));
    eventually("the other has it", || if !has(0) && has(1) { Ok(()) } else { Err(told()) });
    net::settle(&sides[0].0, "10.5.0.100", PATIENCE).unwrap();
}

/// Two BIRDs tell each other of static routes by OSPF and write what they learn by netlink.
#[test]
fn bird_exports_what_it_learns() {
    const NAME: &str = "bird_exports_what_it_learns";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME, "bird", "bird2")) else { return };
    let sides = pair(["bird-1", "bird-2"]);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let mut running: Vec<Running> = Vec::new();
    for (own, (_, router)) in (1..).zip(&sides) {
        // A VRF of the router's, which the kernel does not have, is a table for BIRD.
        router.run("ip link add vrf-1 type vrf table 77; ip link set vrf-1 up").unwrap();
        let configuration = format!(
            "router id 10.5.0.{own};\nlog stderr all;\nipv4 table tenant;\n\
             protocol device {{ scan time 1; }}\n\
             protocol kernel {{ scan time 1; learn; ipv4 {{ import all; export all; }}; }}\n\
             protocol kernel {{ scan time 1; kernel table 77; ipv4 {{ table tenant; export all; }}; }}\n\
             protocol static {{ ipv4; route 10.{}.0.0/16 blackhole; route 10.{}.0.0/16 via 10.5.0.{}; }}\n\
             protocol static {{ ipv4 {{ table tenant; }}; route 10.99.0.0/16 unreachable; }}\n\
             protocol ospf v2 {{\n ipv4 {{ import all; export where source = RTS_STATIC; }};\n \
             area 0 {{ interface \"e0\" {{ type ptp; hello 1; }}; }};\n}}\n",
            60 + own,
            70 + own,
            3 - own,
        );
        let [conf, control, log] = ["conf", "ctl", "log"].map(|end| path(&format!("{own}.{end}")));
        std::fs::write(&conf, configuration).unwrap();
        running.push(Running::start(router, &["bird", "-f", "-c", &conf, "-s", &control], Path::new(&log)));
    }
    let routes = |side: usize, what: &str| sides[side].1.run(&format!("ip route show {what}")).unwrap();
    for (side, own, peer) in [(0, 1, 2), (1, 2, 1)] {
        eventually("static and learnt routes are there", || {
            let shown = routes(side, "proto bird");
            let wanted = [
                format!("blackhole 10.{}.0.0/16", 60 + own),
                format!("10.{}.0.0/16 via 10.5.0.{peer} dev e0", 70 + own),
                format!("10.{}.0.0/16 via 10.5.0.{peer} dev e0", 60 + peer),
            ];
            if wanted.iter().all(|wanted| shown.contains(wanted)) {
                return Ok(());
            }
            Err(shown + &std::fs::read_to_string(path(&format!("{own}.log"))).unwrap())
        });
        let tenant = routes(side, "table 77 proto bird");
        assert!(tenant.contains("unreachable 10.99.0.0/16"), "{tenant}");
    }
    // It takes back what it has written.
    drop(running.remove(0));
    eventually("the routes of the first are gone", || match routes(0, "proto bird") {
        shown if shown.is_empty() => Ok(()),
        shown => Err(shown),
    });
    eventually("the other has lost what it learnt", || match routes(1, "proto bird") {
        shown if !shown.contains("10.61.") => Ok(()),
        shown => Err(shown),
    });
}

/// BIRD scans while there is no router: it waits for the next one, and goes on with that.
#[test]
fn bird_goes_over_to_the_next_router() {
    const NAME: &str = "bird_goes_over_to_the_next_router";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME, "bird", "bird2")) else { return };
    let namespace = net::namespace("bird");
    namespace
        .run(
            "ip link add e0 type veth peer name e1; ip link set e0 up; ip link set e1 up
             ip addr add 10.5.0.1/24 dev e0",
        )
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let configuration = "router id 10.5.0.1;\nlog stderr all;\nprotocol device { scan time 1; }\n\
                         protocol kernel { scan time 1; ipv4 { export all; }; }\n\
                         protocol static { ipv4; route 10.70.0.0/16 via 10.5.0.2; }\n";
    std::fs::write(path("conf"), configuration).unwrap();
    let start = || Router::start(program(), &namespace, &["--attach", "e0"]).unwrap();
    let router = start();
    let words = ["bird", "-f", "-c", &path("conf"), "-s", &path("ctl")];
    let _running = Running::start(&router, &words, Path::new(&path("log")));
    let has_route = |router: &Router| match router.run("ip route show proto bird").unwrap() {
        shown if shown.contains("10.70.0.0/16 via 10.5.0.2 dev e0") => Ok(()),
        shown => Err(shown + &std::fs::read_to_string(path("log")).unwrap()),
    };
    eventually("the route is there", || has_route(&router));
    router.kill().unwrap();
    thread::sleep(Duration::from_millis(1500));
    let router = start();
    router.run("ip route del 10.70.0.0/16").unwrap();
    eventually("BIRD writes the route again", || has_route(&router));
    router.stop().unwrap();
}
