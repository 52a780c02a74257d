//! Two hosts with two routers between them, and ways of every kind.
//!
//! ```text
//! h1 eth0 ── near r1 far ── far r2 near ── eth0 h2
//!                    slow ── slow
//! ```
//! What is policed and shaped goes by a link of its own: where filters and qdiscs are, workers carry every packet.
//! A way has addresses of h2's own, so that r1 decides by them how packets get there. r1 runs all the time; r2 is killed
//! and started again, and gets its part of the ways anew each time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Context;
use underpass_daemon::testbed::{Namespace, Router, join};

/// How packets get from h1 to h2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Ip4,
    Ip6,
    /// Two segments, and decapsulation into the main table.
    Srv6,
    /// IPv4 behind a reduced header with one segment, and End.DX4.
    Srv6Ip4,
    /// Two labels.
    Mpls,
    Ipip,
    /// IPv6 inside, with a key.
    Gre,
    /// IPIP in foo-over-UDP.
    Fou,
    /// More is sent than a policer lets through.
    Policed,
    /// More is sent than a class of an HTB lets through: its queue is always full.
    Shaped,
    /// The next hop does not answer.
    Unresolved,
}

impl Service {
    pub const ALL: [Self; 11] = [
        Self::Ip4,
        Self::Ip6,
        Self::Srv6,
        Self::Srv6Ip4,
        Self::Mpls,
        Self::Ipip,
        Self::Gre,
        Self::Fou,
        Self::Policed,
        Self::Shaped,
        Self::Unresolved,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Ip4 => "ip4",
            Self::Ip6 => "ip6",
            Self::Srv6 => "srv6",
            Self::Srv6Ip4 => "srv6-ip4",
            Self::Mpls => "mpls",
            Self::Ipip => "ipip",
            Self::Gre => "gre",
            Self::Fou => "fou",
            Self::Policed => "policed",
            Self::Shaped => "shaped",
            Self::Unresolved => "unresolved",
        }
    }

    /// Its number in addresses.
    const fn number(self) -> u8 {
        self as u8
    }

    /// Whether all that is sent arrives where nothing is broken.
    pub const fn is_free(self) -> bool {
        !matches!(self, Self::Policed | Self::Shaped | Self::Unresolved)
    }

    /// h2's address.
    pub const fn address(self) -> IpAddr {
        let number = self.number();
        match self {
            Self::Ip6 | Self::Srv6 | Self::Gre => {
                IpAddr::V6(Ipv6Addr::new(0xfd20, number as u16, 0, 0, 0, 0, 0, 2))
            }
            _ => IpAddr::V4(Ipv4Addr::new(10, 20, number, 2)),
        }
    }
}

/// What both routers' kernels need.
const FORWARDING: &str = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
     net.ipv6.conf.all.keep_addr_on_down=1 net.ipv6.conf.all.seg6_enabled=1 net.ipv6.conf.default.seg6_enabled=1
     for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done\n";

/// What both routers have, seen from `own`: tunnels to the other, and room for what is changed all the time.
fn tunnels(own: u8) -> String {
    let other = 3 - own;
    format!(
        "ip link add ipip1 type ipip local 10.12.5.{own} remote 10.12.5.{other} ttl 64
         ip link add gre1 type gre local 10.12.6.{own} remote 10.12.6.{other} key 7 ttl 64
         ip fou add port 5555 ipproto 4
         ip link add fou1 type ipip local 10.12.7.{own} remote 10.12.7.{other} ttl 64 \
           encap fou encap-sport auto encap-dport 5555
         ip link set ipip1 up; ip link set gre1 up; ip link set fou1 up
         sysctl -qw net.mpls.platform_labels=2000 net.mpls.conf.far.input=1 net.mpls.conf.lo.input=1\n"
    )
}

/// r1's part of the ways.
const FIRST: &str = "
     ip route add 10.20.0.0/24 via 10.12.0.2
     ip -6 route add fd20:1::/64 via fd12::2
     ip -6 route add fc00:2::/48 via fd12::2
     ip -6 route add fd20:2::/64 encap seg6 mode encap segs fc00:2::e,fc00:2::d6 dev far
     ip route add 10.20.3.0/24 encap seg6 mode encap.red segs fc00:2::d4 dev far
     ip route add 10.20.4.0/24 encap mpls 100/200 via inet 10.12.0.2
     ip route add 10.20.5.0/24 dev ipip1
     ip -6 route add fd20:6::/64 dev gre1
     ip route add 10.20.7.0/24 dev fou1
     ip route add 10.20.8.0/24 via 10.13.0.2
     ip route add 10.20.9.0/24 via 10.13.0.2
     ip route add 10.20.10.0/24 via 10.12.0.99
     tc qdisc add dev slow root handle 1: htb default 10
     tc class add dev slow parent 1: classid 1:10 htb rate 1gbit
     tc class add dev slow parent 1: classid 1:9 htb rate 200kbit
     tc qdisc add dev slow parent 1:9 handle 9: pfifo limit 50
     tc filter add dev slow parent 1: protocol ip prio 9 u32 match ip dst 10.20.9.0/24 flowid 1:9\n";

/// r2's part.
const SECOND: &str = "
     ip -6 route add fc00:2::e/128 encap seg6local action End dev far
     ip -6 route add fc00:2::d6/128 encap seg6local action End.DT6 table main dev far
     ip -6 route add fc00:2::d4/128 encap seg6local action End.DX4 nh4 10.2.0.2 dev near
     ip -f mpls route add 100 dev lo
     ip -f mpls route add 200 via inet 10.2.0.2 dev near
     tc qdisc add dev slow ingress
     tc filter add dev slow parent ffff: protocol ip prio 8 u32 match ip dst 10.20.8.0/24 \
       police rate 200kbit burst 10k drop\n";

pub struct Network {
    pub hosts: [Namespace; 2],
    pub edges: [Namespace; 2],
}

impl Network {
    /// Without routers.
    pub fn build() -> anyhow::Result<Self> {
        let [h1, h2, r1, r2] = ["h1", "h2", "r1", "r2"].map(Namespace::new);
        let network = Self { hosts: [h1?, h2?], edges: [r1?, r2?] };
        let [first, second] = &network.edges;
        join(first, "far", second, "far")?;
        join(first, "slow", second, "slow")?;
        for (side, (host, edge)) in (1..).zip(network.hosts.iter().zip(&network.edges)) {
            join(host, "eth0", edge, "near")?;
            edge.run(&edge_lines(side)).with_context(|| edge.name().to_owned())?;
            host.run(&host_lines(side)).with_context(|| host.name().to_owned())?;
        }
        second.run("ip route add 10.20.0.0/16 via 10.2.0.2; ip -6 route add fd20::/16 via fd02::2")?;
        Ok(network)
    }

    /// Gives a router its part of the ways.
    pub fn configure(side: u8, router: &Router) -> anyhow::Result<()> {
        let own = if side == 1 { FIRST } else { SECOND };
        // Traced, so that an error tells the line.
        router.run(&format!("set -x\n{}{own}", tunnels(side)))?;
        Ok(())
    }
}

fn edge_lines(side: u8) -> String {
    format!(
        "{FORWARDING}
         ip link set near up; ip link set far up; ip link set slow up
         ip addr add 10.13.0.{side}/24 dev slow
         ip addr add 10.{side}.0.1/24 dev near; ip addr add fd0{side}::1/64 dev near
         ip addr add fd12::{side}/64 dev far
         for net in 0 5 6 7; do ip addr add 10.12.$net.{side}/24 dev far; done
         {}",
        back_lines(side)
    )
}

/// Routes to the other host, which a router's kernel loses with its link.
pub fn back_lines(side: u8) -> String {
    let other = 3 - side;
    format!(
        "ip route replace 10.{other}.0.0/24 via 10.12.0.{other}; ip -6 route replace fd0{other}::/64 via fd12::{other}"
    )
}

/// What a host needs to send again after its link was down, too.
pub fn host_lines(side: u8) -> String {
    let mut lines = format!(
        "sysctl -qw net.ipv6.conf.all.keep_addr_on_down=1
         ip link set eth0 up
         ip addr replace 10.{side}.0.2/24 dev eth0; ip addr replace fd0{side}::2/64 dev eth0
         ip route replace default via 10.{side}.0.1; ip -6 route replace default via fd0{side}::1\n"
    );
    if side == 2 {
        for way in Service::ALL {
            let address = way.address();
            let len = if address.is_ipv6() { 128 } else { 32 };
            lines += &format!("ip addr replace {address}/{len} dev lo\n");
        }
    }
    lines
}

/// What a router may leave in its namespace: devices, rules, queueing disciplines, programs, routes of its own.
pub fn traces(edge: &Namespace) -> anyhow::Result<String> {
    edge.run(
        "ip -br link | sed 's/ .*//' | sort; ip rule; ip -6 rule; tc qdisc
         ip -d link | grep -o 'xdp.*\\|promiscuity [0-9]*'
         ip route show table all proto 117; ip -6 route show table all proto 117",
    )
}
