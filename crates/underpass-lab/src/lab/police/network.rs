//! A container, the router of its host, and a sink.
//!
//! ```text
//! container eth0 ── pod router out ── eth0 sink
//! ```

use std::{net::Ipv4Addr, path::Path};

use anyhow::Context;
use nix::unistd::Pid;
use underpass_daemon::testbed::{Namespace, Router, join};

use super::super::stream::Ends;

const CONTAINER: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 2);
/// An address of the sink's, which has a socket for what is sent there.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 2);
/// One that the sink's device gets and nobody has: what is sent there is counted and ends.
pub const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 9);

/// What limits the container's packets, where they come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    None,
    /// A policer at ingress.
    Police {
        mbits: u64,
        /// In bytes.
        burst: u64,
    },
    /// Redirected to an ifb with an HTB.
    Ifb {
        mbits: u64,
    },
    /// An HTB at ingress itself.
    Ingress {
        mbits: u64,
    },
    /// What Kubernetes' plugin does: ifb and TBF, and TBF for what goes to the container.
    Plugin {
        mbits: u64,
        burst: u64,
    },
    /// The same with a policer in the place of the ifb.
    PolicePlugin {
        mbits: u64,
        burst: u64,
    },
}

const PLUGIN: &str = include_str!("../cni-bandwidth/ifb-tbf.sh");
const POLICE_PLUGIN: &str = include_str!("../cni-bandwidth/police.sh");

impl Limit {
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "no limit",
            Self::Police { .. } => "police at ingress",
            Self::Ifb { .. } => "ifb + HTB",
            Self::Ingress { .. } => "HTB at ingress, no ifb",
            Self::Plugin { .. } => "cni-bandwidth: ifb + TBF",
            Self::PolicePlugin { .. } => "cni-bandwidth: police",
        }
    }

    /// The lines that ask for it: the document's, with a class for what has none.
    fn lines(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Police { mbits, burst } => format!(
                "tc qdisc add dev pod ingress
                 tc filter add dev pod parent ffff: protocol all prio 49 basic police rate {mbits}mbit burst {burst} \
                 mtu 65535 drop"
            ),
            Self::Ifb { mbits } => format!(
                "tc qdisc add dev pod ingress
                 tc filter add dev pod parent ffff: protocol ip u32 match u32 0 0 action mirred egress redirect dev ifb1
                 tc qdisc add dev ifb1 root handle 1: htb default 10
                 tc class add dev ifb1 parent 1: classid 1:10 htb rate {mbits}mbit"
            ),
            Self::Ingress { mbits } => format!(
                "tc qdisc add dev pod clsact
                 tc qdisc add dev pod parent ffff:fff2 handle 1: htb default 10
                 tc class add dev pod parent 1: classid 1:10 htb rate {mbits}mbit"
            ),
            Self::Plugin { mbits, burst } => format!("set -- add pod {mbits}mbit {burst}\n{PLUGIN}"),
            Self::PolicePlugin { mbits, burst } => format!("set -- add pod {mbits}mbit {burst}\n{POLICE_PLUGIN}"),
        }
    }

    /// The lines that take it away.
    fn undo(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Police { .. } => "tc qdisc del dev pod ingress".to_owned(),
            Self::Ifb { .. } => "tc qdisc del dev pod ingress\ntc qdisc del dev ifb1 root".to_owned(),
            Self::Ingress { .. } => "tc qdisc del dev pod clsact".to_owned(),
            Self::Plugin { .. } => format!("set -- del pod\n{PLUGIN}"),
            Self::PolicePlugin { .. } => format!("set -- del pod\n{POLICE_PLUGIN}"),
        }
    }
}

/// Who forwards.
enum Forwarder {
    Kernel,
    Underpass(Router),
}

pub struct Network {
    container: Namespace,
    host: Namespace,
    sink: Namespace,
    forwarder: Forwarder,
}

impl Network {
    /// With Underpass of so many workers, or with the kernel's own router.
    pub fn build(underpass: Option<(&Path, u8)>) -> anyhow::Result<Self> {
        let [container, host, sink] = ["container", "host", "sink"].map(Namespace::new);
        let (container, host, sink) = (container?, host?, sink?);
        join(&container, "eth0", &host, "pod")?;
        join(&host, "out", &sink, "eth0")?;
        container.run(&format!(
            "ip link set eth0 up; ip addr add {CONTAINER}/24 dev eth0; ip route add default via 10.9.1.1"
        ))?;
        sink.run(&format!(
            "ip link set eth0 address 02:00:00:00:09:02 up
             ip addr add {SERVER}/24 dev eth0
             ip route add default via 10.9.2.1"
        ))?;
        host.run(&format!(
            "sysctl -qw net.ipv4.ip_forward=1
             ip link set pod up; ip addr add 10.9.1.1/24 dev pod
             ip link set out up; ip addr add 10.9.2.1/24 dev out
             ip neigh add {NOBODY} lladdr 02:00:00:00:09:02 dev out nud permanent"
        ))?;
        let forwarder = match underpass {
            None => Forwarder::Kernel,
            Some((program, workers)) => {
                let workers = workers.to_string();
                Forwarder::Underpass(Router::start(program, &host, &["--workers", &workers])?)
            }
        };
        let network = Self { container, host, sink, forwarder };
        network.configure("ip link add ifb1 type ifb\nip link set ifb1 up")?;
        Ok(network)
    }

    /// Runs lines of shell with `ip` and `tc`.
    fn configure(&self, lines: &str) -> anyhow::Result<()> {
        // Traced, so that an error tells the line.
        let lines = format!("set -x\n{lines}");
        match &self.forwarder {
            Forwarder::Kernel => self.host.run(&lines)?,
            Forwarder::Underpass(router) => router.run(&lines)?,
        };
        Ok(())
    }

    /// Does something with a limit in force.
    pub fn with<T>(&self, limit: Limit, action: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.configure(&limit.lines()).with_context(|| limit.name())?;
        let done = action().with_context(|| limit.name());
        self.configure(&limit.undo()).with_context(|| limit.name())?;
        done
    }

    /// From the container to the sink.
    pub fn ends(&self) -> Ends {
        Ends { from: self.container.clone(), to: self.sink.clone(), address: SERVER.into() }
    }

    /// From the sink to the container.
    pub fn back(&self) -> Ends {
        Ends { from: self.sink.clone(), to: self.container.clone(), address: CONTAINER.into() }
    }

    /// How many packets the sink has got.
    pub fn received(&self) -> anyhow::Result<u64> {
        self.sink.received("eth0")
    }

    /// The process that forwards, if it is one.
    pub fn router(&self) -> Option<Pid> {
        match &self.forwarder {
            Forwarder::Kernel => None,
            Forwarder::Underpass(router) => Some(router.pid()),
        }
    }

    /// What the router said.
    pub fn log(&self) -> String {
        match &self.forwarder {
            Forwarder::Kernel => String::new(),
            Forwarder::Underpass(router) => router.log().unwrap_or_default(),
        }
    }

    /// Ends the router.
    pub fn stop(self) -> anyhow::Result<()> {
        match self.forwarder {
            Forwarder::Kernel => Ok(()),
            Forwarder::Underpass(router) => router.stop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the document are ours, but for the device's name.
    #[test]
    fn the_lines_of_the_document() {
        let all = [Limit::Police { mbits: 20000, burst: 1 << 20 }, Limit::Ifb { mbits: 10000 }];
        let lines = all.map(Limit::lines).join("\n");
        for line in [
            "tc qdisc add dev pod ingress",
            "tc filter add dev pod parent ffff: protocol ip u32 match u32 0 0 action mirred egress redirect dev ifb1",
            "tc qdisc add dev ifb1 root handle 1: htb default 10",
            "tc filter add dev pod parent ffff: protocol all prio 49 basic police rate 20000mbit burst 1048576 mtu \
             65535 drop",
        ] {
            assert!(lines.lines().any(|found| found.trim() == line), "{line} in\n{lines}");
        }
    }
}
