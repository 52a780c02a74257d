//! Traffic control: what it costs a packet to be policed or shaped where the rate is far above the load.

pub mod versus;

use super::scenario::{BASE, HOPS, Scenario, incoming, outgoing};

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

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    vec![scenario("ifb-htb", IFB_HTB), scenario("ingress-htb", INGRESS_HTB)]
}
