//! Tagged frames through VLAN devices: beside a router that has none, which gets the same packets without tags.
//!
//! ```text
//! port 0: 10 (802.1Q), in it 30 (802.1Q); 20 (802.1ad)    port 1: 40 (802.1Q), by which 10.3/16 and fd00:3::/32 are reached
//! ```

use super::lab::{Lab, MACS, PEERS, frame, ip4, ip6, udp, v6};
use underpass_engine::buffer::{HEADROOM, PortId};
use underpass_engine::tables::{Action, Link, LinkId, NextHop, Rewrite, Vlan, Vlans};
use underpass_engine::worker::{Burst, Keeper, Kept};
use underpass_packet::{ethernet, protocol};

/// The port by which the host sends by VLAN 40, and gets its frames.
pub const HOST: PortId = PortId(9);
/// EtherType and identifier of the tags, by VLAN device; the last is in the first.
pub const TAGS: [[u8; 4]; 4] = [[0x81, 0, 0, 10], [0x88, 0xa8, 0, 20], [0x81, 0, 0, 40], [0x81, 0, 0, 30]];

/// The kernel keeps what ends with an odd byte.
struct Odd;

impl Keeper for Odd {
    fn kept(&mut self, _: u32, frame: &[u8]) -> Kept {
        match frame.last().map(|last| last % 4) {
            Some(1) => Kept::Yes,
            Some(3) => Kept::Copy,
            _ => Kept::No,
        }
    }
}

/// A router with routes to 10.3/16 and fd00:3::/32 by `port`, of the neighbour there.
pub fn to_third(lab: &mut Lab, link: LinkId, port: PortId) {
    let mut bytes = [0; 20];
    bytes[..6].copy_from_slice(&PEERS[1]);
    bytes[6..12].copy_from_slice(&MACS[1]);
    let rewrite = Some(Rewrite { bytes, len: 12 });
    let address = std::net::Ipv4Addr::new(10, 3, 0, 2).into();
    let next_hop = lab.writer.add_next_hop(NextHop {
        link,
        port,
        mtu: 1500,
        locked: false,
        hop_limit: 0,
        rewrite,
        address,
    });
    let action = lab.writer.add_action(Action::Forward(next_hop));
    lab.writer.insert4(lab.fib4, [10, 3, 0, 0].into(), 16, action);
    lab.writer.insert6(lab.fib6, v6("fd00:3::"), 32, action);
}

/// EtherType, identifier and link of a VLAN device.
fn of(number: usize, link: LinkId) -> (u16, u16, LinkId) {
    let [a, b, c, d] = TAGS[number];
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]), link)
}

/// The link of a VLAN device, with the address and the tables of the port below.
pub fn vlan_link(lab: &Lab, number: usize, lower: LinkId) -> Link {
    let (protocol, id, _) = of(number, lower);
    let vlan = Vlan { lower, protocol, id, keeps_tags: false, ingress: [0; 8], egress: [].into() };
    Link {
        ifindex: 10 + number as u32,
        port: Some(PortId(20 + number as u16)),
        vlan: Some(Box::new(vlan)),
        ..lab.link(u16::from(number == 2))
    }
}

fn device(lab: &mut Lab, number: usize, lower: LinkId) -> LinkId {
    let link = vlan_link(lab, number, lower);
    lab.writer.add_link(link)
}

/// The router with VLAN devices; with a kernel beside it, the host has a device of the VLAN 40.
pub fn tagged(beside: bool) -> Lab {
    let mut lab = Lab::new();
    if beside {
        lab.worker = lab.worker.beside_kernel(0).kept_by(Odd);
    }
    let [port0, port1] = lab.links;
    // The first once more, when it is known which is in it.
    let first = device(&mut lab, 0, port0);
    let [second, third] = [(1, port0), (2, port1)].map(|(number, lower)| device(&mut lab, number, lower));
    let inner = device(&mut lab, 3, first);
    let stacked = Vlans::new([of(3, inner)]);
    let link = Link { vlans: stacked, ..vlan_link(&lab, 0, port0) };
    lab.writer.set_link(first, link);
    if beside {
        let link = Link { kernel: Some(HOST), ..vlan_link(&lab, 2, port1) };
        lab.writer.set_link(third, link);
    }
    for (id, port, above) in [(port0, 0, vec![of(0, first), of(1, second)]), (port1, 1, vec![of(2, third)])] {
        let link = Link { vlans: Vlans::new(above), ..lab.link(port) };
        lab.writer.set_link(id, link);
    }
    to_third(&mut lab, third, PortId(22));
    lab
}

/// A frame with these tags, the outermost first: numbers of [`TAGS`], and what the first byte of the control information has
/// besides.
pub fn with_tags(frame: &[u8], tags: &[(usize, u8)]) -> Vec<u8> {
    let mut tagged = frame.get(..12).unwrap_or_default().to_vec();
    for (number, control) in tags {
        let [a, b, c, d] = TAGS[number % TAGS.len()];
        tagged.extend([a, b, c | control & 0xf0, d]);
    }
    tagged.extend(frame.get(12..).unwrap_or_default());
    tagged
}

/// Any bytes as a frame: the first says how the others are understood. Whether anything leaves.
pub fn send(bytes: &[u8]) -> bool {
    let [kind, control, rest @ ..] = bytes else { return false };
    let payload = udp(rest.len().min(1200));
    let packet = match kind % 4 {
        0 => ip4([10, 0, 0, 2], [10, 3, *control, 2], protocol::UDP, rest),
        1 => ip6("fd00:0::2", "fd00:3::2", protocol::UDP, rest),
        2 => ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::UDP, &payload),
        _ => rest.to_vec(),
    };
    let ethertype = if kind % 4 == 1 { ethernet::IPV6 } else { ethernet::IPV4 };
    let inside = frame(ethertype, &packet);
    let tags = [(usize::from(kind >> 2), *control), (usize::from(kind >> 4), control << 4)];
    let frame = match kind >> 6 {
        0 => with_tags(&inside, &tags[..1]),
        1 => with_tags(&inside, &tags),
        2 => rest.to_vec(),
        _ => inside,
    };
    let mut lab = tagged(true);
    let mut out = lab.send(std::slice::from_ref(&frame)).len();
    out += by(&mut lab, HOST, &frame);
    lab.assert_accounted();
    out > 0
}

/// A frame comes by a port; how many leave by ports 0, 1 and that of the host.
pub fn by(lab: &mut Lab, port: PortId, frame: &[u8]) -> usize {
    let mut packet = lab.worker.pool().take().unwrap();
    if packet.set(HEADROOM, frame).is_err() {
        lab.worker.pool().give(packet);
        return 0;
    }
    let mut burst: Burst = [packet].into_iter().collect();
    lab.worker.process(port, &mut burst, 0, None);
    [PortId(0), PortId(1), HOST].map(|port| lab.worker.discard_sent(port)).iter().sum()
}
