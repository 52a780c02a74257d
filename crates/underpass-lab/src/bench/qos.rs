//! Traffic control: what it costs a packet to be policed or shaped where the rate is far above the load, and where many
//! classes let some packets pass and have others wait.

pub mod versus;

use std::fmt::Write;

use super::scenario::{BASE, CHECKED, HOPS, Load, Order, Scenario, flows, incoming, outgoing};

/// What the source document does for shaping at ingress, with a class for all packets.
const IFB_HTB: &str = "\
ip link add ifb1 type ifb
ip link set ifb1 up
tc qdisc add dev p0 ingress
tc filter add dev p0 parent ffff: protocol ip u32 match u32 0 0 action mirred egress redirect dev ifb1
tc qdisc add dev ifb1 root handle 1: htb default 10
tc class add dev ifb1 parent 1: classid 1:1 htb rate 30gbit burst 64mb cburst 64mb quantum 60000
tc class add dev ifb1 parent 1:1 classid 1:10 htb rate 30gbit burst 64mb cburst 64mb quantum 60000
";

/// The same without an ifb.
const INGRESS_HTB: &str = "\
tc qdisc add dev p0 clsact
tc qdisc add dev p0 parent ffff:fff2 handle 1: htb default 10
tc class add dev p0 parent 1: classid 1:1 htb rate 30gbit burst 64mb cburst 64mb quantum 60000
tc class add dev p0 parent 1:1 classid 1:10 htb rate 30gbit burst 64mb cburst 64mb quantum 60000
";

/// The line of the source document.
const POLICE: &str = "\
tc qdisc add dev p0 ingress
tc filter add dev p0 parent ffff: protocol all prio 49 basic police rate 20000mbit burst 1mb mtu 65535 drop
";

/// Plain forwarding with these lines besides.
fn scenario(name: &str, lines: &str) -> Scenario {
    let config = format!("{BASE}ip route add 198.18.0.0/16 via 10.1.0.2 dev p1\n{lines}");
    Scenario::new(name, None, config, |flow| {
        (incoming(&flow.packet4(HOPS)), outgoing(&flow.packet4(HOPS - 1)))
    })
}

/// Leaf classes below one, and the filters that choose among them.
const CLASSES: u32 = 1000;
const FILTERS: u32 = 1024;

/// A leaf for each address modulo 1000: four filters in each bucket of a hash table by the last byte. Packets come at
/// 5 Gbit/s, four flows a leaf on average, so that a leaf borrows for some of its packets and waits with others for its
/// ceil, which lets one go each 40 µs.
fn many_classes() -> Scenario {
    let load = || {
        let mut lines = String::new();
        for leaf in 0..CLASSES {
            // Writing to a string cannot fail.
            let _ = writeln!(
                lines,
                "class add dev p1 parent 1:1 classid 1:{:x} htb rate 4mbit ceil 20mbit burst 150 cburst 150 quantum 1514",
                leaf + 2
            );
        }
        lines += "filter add dev p1 parent 1: protocol ip prio 1 handle 1: u32 divisor 256\n\
                  filter add dev p1 parent 1: protocol ip prio 1 u32 match u32 0 0 link 1: hashkey mask 0xff at 16\n";
        for filter in 0..FILTERS {
            let (bucket, rest, leaf) = (filter & 0xff, filter >> 8, filter % CLASSES + 2);
            let _ = writeln!(
                lines,
                "filter add dev p1 parent 1: protocol ip prio 1 u32 ht 1:{bucket:x}: match u8 {rest:#x} 0x03 at 18 \
                 flowid 1:{leaf:x}"
            );
        }
        let flows = flows();
        Load {
            batches: vec![("tc", lines)],
            order: Order::Waits,
            templates: flows.iter().map(|flow| incoming(&flow.packet4(HOPS)).into_boxed_slice()).collect(),
            expected: flows.iter().take(CHECKED).map(|flow| outgoing(&flow.packet4(HOPS - 1))).collect(),
            ..Load::default()
        }
    };
    Scenario {
        name: format!("htb-{CLASSES}-classes"),
        vpp: None,
        config: format!(
            "{BASE}ip route add 198.18.0.0/16 via 10.1.0.2 dev p1\ntc qdisc add dev p1 root handle 1: htb\n\
             tc class add dev p1 parent 1: classid 1:1 htb rate 10gbit burst 64k cburst 64k\n"
        ),
        mass: Some(format!(
            "{CLASSES} classes below 1:1 with rate 4mbit ceil 20mbit, {FILTERS} u32 filters in 256 buckets"
        )),
        load: Box::new(load),
    }
}

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    vec![scenario("ifb-htb", IFB_HTB), scenario("ingress-htb", INGRESS_HTB), many_classes()]
}
