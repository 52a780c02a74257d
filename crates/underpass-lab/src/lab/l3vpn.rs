//! The L3VPN of `examples/lab-l3vpn`, whose README shows the network.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use underpass_daemon::testbed::{Namespace, Router, join};

use super::run_until_signal::{Names, Signals};
use underpass_daemon::output::print;

macro_rules! script {
    ($name:literal) => {
        ($name, include_str!(concat!("lab-l3vpn/", $name)))
    };
}

/// The routers with their scripts, and the hosts with theirs.
const ROUTERS: [(&str, (&str, &str)); 3] =
    [("pe1", script!("pe1.sh")), ("p", script!("p.sh")), ("pe2", script!("pe2.sh"))];
const HOSTS: [(&str, (&str, &str)); 4] = [
    ("a1", script!("host1.sh")),
    ("b1", script!("host1.sh")),
    ("a2", script!("host2.sh")),
    ("b2", script!("host2.sh")),
];

/// Which device is joined to which.
const VETHS: [[(&str, &str); 2]; 6] = [
    [("a1", "eth0"), ("pe1", "cust-a")],
    [("b1", "eth0"), ("pe1", "cust-b")],
    [("pe1", "core"), ("p", "west")],
    [("p", "east"), ("pe2", "core")],
    [("pe2", "cust-a"), ("a2", "eth0")],
    [("pe2", "cust-b"), ("b2", "eth0")],
];

const PICTURE: &str = "
  a1 ──┐                                                      ┌── a2
       ├── PE1 core ──── west P east ──── core PE2 ──┤
  b1 ──┘                                                      └── b2

  a1, b1  10.1.0.2  fd10:1::2        a2, b2  10.2.0.2  fd10:2::2
                                     a2      10.77.0.1
";

/// How long until the first packets get through.
const PATIENCE: Duration = Duration::from_secs(15);

/// The running network.
struct Lab {
    namespaces: Vec<Namespace>,
    routers: Vec<Router>,
}

/// Builds the network, shows what it does, and removes it; with `keep`, once a signal says so.
///
/// # Errors
/// A step does not come out as it must.
pub fn show(program: &Path, keep: bool) -> anyhow::Result<()> {
    let shown = ["ping", "traceroute"].map(is_installed);
    ensure!(shown[0], "ping is not installed (Debian: iputils-ping)");
    let lab = Lab::build(program)?;
    lab.tour(shown[1])?;
    if keep {
        lab.keep()?;
    }
    for router in lab.routers {
        router.stop()?;
    }
    print("\nTorn down: every router ended by itself, nothing is left.\n")?;
    Ok(())
}

/// Whether a program is where the shell looks for it.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

impl Lab {
    fn build(program: &Path) -> anyhow::Result<Self> {
        print(&format!("== the network ==\n{PICTURE}\n"))?;
        let names = ROUTERS.iter().chain(&HOSTS).map(|(name, _)| *name);
        let namespaces = names.map(Namespace::new).collect::<anyhow::Result<Vec<_>>>()?;
        let mut lab = Self { namespaces, routers: Vec::new() };
        for [(one, first), (other, second)] in VETHS {
            join(lab.namespace(one)?, first, lab.namespace(other)?, second)?;
        }
        print(&format!("{} network namespaces, {} veth pairs\n", lab.namespaces.len(), VETHS.len()))?;
        for (name, (file, script)) in HOSTS {
            lab.namespace(name)?.run(script).context(file)?;
        }
        // The host a2 has an address that no other tenant has.
        lab.namespace("a2")?.run("ip addr add 10.77.0.1/32 dev lo")?;
        for (name, _) in ROUTERS {
            lab.routers.push(Router::start(program, lab.namespace(name)?, &[])?);
        }
        for (router, (name, (file, script))) in lab.routers.iter().zip(ROUTERS) {
            print(&format!("{name}: underpass run, then underpass exec -- sh examples/lab-l3vpn/{file}\n"))?;
            // Traced, so that an error tells the line.
            router.run(&format!("set -x\n{script}")).context(file)?;
        }
        Ok(lab)
    }

    fn namespace(&self, name: &str) -> anyhow::Result<&Namespace> {
        self.namespaces.iter().find(|namespace| namespace.name() == name).context("no such namespace")
    }

    /// Shows a line in a host and what it prints. Its exit status.
    fn shows(&self, host: &str, line: &str) -> anyhow::Result<i32> {
        let outcome = self.namespace(host)?.outcome(line)?;
        print(&format!("{host}$ {line}\n{}", indented(&outcome.output)))?;
        Ok(outcome.status)
    }

    /// Shows a line that must succeed.
    fn succeeds(&self, host: &str, line: &str) -> anyhow::Result<()> {
        let status = self.shows(host, line)?;
        ensure!(status == 0, "in {host}: {line}: status {status}{}", self.logs()?);
        Ok(())
    }

    /// Shows a line that must fail.
    fn fails(&self, host: &str, line: &str, why: &str) -> anyhow::Result<()> {
        let status = self.shows(host, line)?;
        ensure!(status != 0, "in {host}: {line} succeeded, but {why}");
        Ok(())
    }

    /// What the routers said.
    fn logs(&self) -> anyhow::Result<String> {
        let mut all = String::new();
        for (router, (name, _)) in self.routers.iter().zip(ROUTERS) {
            let log = router.log()?;
            if !log.is_empty() {
                all += &format!("\n{name} said:\n{}", indented(&log));
            }
        }
        Ok(all)
    }

    /// Waits until the first packets of each tenant are through: neighbours are found and carriers are up.
    fn settle(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for (host, address) in
            [("a1", "10.2.0.2"), ("b1", "10.2.0.2"), ("a1", "fd10:2::2"), ("b1", "fd10:2::2")]
        {
            loop {
                let outcome = self.namespace(host)?.outcome(&format!("ping -n -c 1 -W 1 {address}"))?;
                if outcome.status == 0 {
                    break;
                }
                if Instant::now() > deadline {
                    bail!("{host} does not reach {address}\n{}{}", outcome.output, self.logs()?);
                }
                thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    fn tour(&self, has_traceroute: bool) -> anyhow::Result<()> {
        self.settle()?;
        print("\n== each tenant pings across, to the same addresses ==\n")?;
        for host in ["a1", "b1"] {
            self.succeeds(host, "ping -n -q -c 5 -i 0.05 -W 2 10.2.0.2")?;
            self.succeeds(host, "ping -n -q -c 5 -i 0.05 -W 2 fd10:2::2")?;
        }
        print("\n== large packets, unfragmented: the core has room for the outer headers ==\n")?;
        self.succeeds("a1", "ping -n -q -c 2 -i 0.05 -W 2 -M do -s 1472 10.2.0.2")?;
        self.succeeds("b1", "ping -n -q -c 2 -i 0.05 -W 2 -M do -s 1452 fd10:2::2")?;
        self.isolated()?;
        print("\n== the way, as a host and as a router sees it ==\n")?;
        if has_traceroute {
            self.succeeds("a1", "traceroute -n -q 1 -w 2 -m 8 10.2.0.2")?;
            self.succeeds("b1", "traceroute -n -q 1 -w 2 -m 8 10.2.0.2")?;
            self.succeeds("pe1", "traceroute -n -q 1 -w 2 -m 8 fc00:2::1")?;
        } else {
            print("traceroute is not installed: left out\n")?;
        }
        print("\n== each SID with its counters ==\n")?;
        let line = "ip -6 -s route show | grep seg6local";
        for (router, (name, _)) in self.routers.iter().zip(ROUTERS) {
            let text = router.run(line).with_context(|| name.to_owned())?;
            print(&format!("{name}# {line}\n{}", indented(&text)))?;
            for sid in text.lines() {
                ensure!(!sid.contains("packets 0 "), "{name}: no packet was counted: {sid}");
            }
        }
        Ok(())
    }

    fn isolated(&self) -> anyhow::Result<()> {
        const PINGS: u64 = 20;
        print("\n== what one tenant sends, the other does not get ==\n")?;
        let received = |host| self.namespace(host)?.received("eth0");
        let (a, b) = (received("a2")?, received("b2")?);
        self.namespace("a1")?.run(&format!("ping -n -q -c {PINGS} -i 0.02 -W 2 10.2.0.2"))?;
        let (a, b) = (received("a2")? - a, received("b2")? - b);
        print(&format!("{PINGS} pings of a1 to 10.2.0.2: a2 received {a} packets, b2 received {b}\n"))?;
        ensure!(a >= PINGS, "a2 received too few");
        // A neighbour solicitation may be among them.
        ensure!(b < PINGS / 2, "b2 received them");
        self.succeeds("a1", "ping -n -c 1 -W 2 10.77.0.1")?;
        self.fails("b1", "ping -n -c 1 -W 1 10.77.0.1", "it is in the other tenant's network")?;
        self.fails("b1", "ping -n -c 1 -W 1 fc00:2:0:a::", "it is the other tenant's SID")?;
        self.fails("b1", "ping -n -c 1 -W 1 fc00:1::1", "it is an address of the core")
    }

    /// Gives the namespaces names until a signal comes.
    fn keep(&self) -> anyhow::Result<()> {
        let mut signals = Signals::block()?;
        let names = Names::give(&self.namespaces, "lab")?;
        print(&format!(
            "\n== kept, until Ctrl-C ==\n\
             ip netns exec lab-a1 ping 10.2.0.2\n\
             ip netns exec lab-pe1 underpass exec -- ip -6 -s route show\n\
             namespaces: {}\n",
            names.all().join(" ")
        ))?;
        signals.wait()
    }
}

fn indented(text: &str) -> String {
    text.lines().filter(|line| !line.is_empty()).map(|line| format!("    {line}\n")).collect()
}
