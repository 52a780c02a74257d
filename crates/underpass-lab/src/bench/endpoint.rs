//! SRv6 endpoints: the packet is for a SID of the router. Each SID counts.

use std::io::Write;
use std::net::Ipv6Addr;

use underpass_port::memory::Patches;

use super::routes::{DESTINATIONS, Route};
use super::scenario::{
    BASE, CHECKED, CLASS, Flow, HOPS, KEY, Load, OUTER_HOPS, SID, SOURCE, Scenario, VRF, flows, incoming,
    outgoing, segment, set_key,
};
use super::wire::{self, Ip6};
use crate::random::Random;

/// The segment that follows the router's SID in what is sent.
const NEXT: Ipv6Addr = Ipv6Addr::new(0xfc00, 2, 0, 0, 0, 0, 0, 0xe);

/// The prefixes of the router's compressed SID and of the one that follows it: RFC 9800, 32 bits of block, 16 of
/// node and function.
const CSID: &str = "fc00:a:1::/48";
const CSID_NEXT: &str = "fc00:a:2::/48";

/// Lengths of headers.
const ETHERNET: usize = 14;
const IPV6: usize = 40;

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    let sid = |base: &str, action: &str, dev: &str, more: &str| {
        format!("{base}ip -6 route add {SID}/128 encap seg6local action {action} count dev {dev}\n{more}")
    };
    let csid = |action: &str, more: &str| {
        let action = format!("{action} flavors next-csid lblen 32 nflen 16 count");
        format!("{BASE}ip -6 route add {CSID} encap seg6local action {action} dev p0\n{more}")
    };
    let segments = "ip -6 route add fc00:2::/32 via fd01::2 dev p1\n";
    let binding = format!("End.B6.Encaps srh segs {},{}", segment(1), segment(2));
    let checked = format!("{segments}{}sysctl -q -w net.ipv6.conf.p0.seg6_require_hmac=1\n", set_key());
    let table = "ip -6 route add fc00:2::/32 via fd01::2 dev p1 table 100\n";
    let mut scenarios = vec![
        Scenario::new("srv6-end", 178, sid(BASE, "End", "p0", segments), advanced),
        Scenario::new("srv6-end-x", 130, sid(BASE, "End.X nh6 fd01::2", "p0", ""), advanced),
        Scenario::new("srv6-end-t", None, sid(BASE, "End.T table 100", "p0", table), advanced),
        Scenario::new("srv6-end-psp", 190, sid(BASE, "End flavors psp", "p0", segments), popped),
        Scenario::new(
            "srv6-un",
            195,
            csid("End", &format!("ip -6 route add {CSID_NEXT} via fd01::2 dev p1\n")),
            shifted,
        ),
        Scenario::new("srv6-ua", None, csid("End.X nh6 fd01::2", ""), shifted),
        Scenario::new("srv6-hmac-check", None, sid(BASE, "End", "p0", &checked), sealed),
        Scenario::new(
            "srv6-end-b6-encaps",
            209,
            sid(&format!("{BASE}ip sr tunsrc set {SOURCE}\n"), &binding, "p0", segments),
            bound,
        ),
    ];
    scenarios.extend(programmed(segments));
    let tenant6 = "ip -6 route add 2001:db8:1::/48 via fd01::2 dev p1 table 10\n";
    let tenant4 = "ip route add 198.18.0.0/16 via 10.1.0.2 dev p1 table 10\n";
    let both = &format!("{tenant4}{tenant6}");
    // Name, cycles of VPP without an SRH, configuration, what is inside.
    type Decapsulation = (&'static str, Option<u32>, String, fn(&Flow) -> Inner);
    let decapsulations: [Decapsulation; 6] = [
        ("dx2", Some(106), sid(BASE, "End.DX2 oif p1", "p0", ""), |f| Inner::frame(f, 100)),
        ("dx4", Some(118), sid(BASE, "End.DX4 nh4 10.1.0.2", "p0", ""), Inner::ipv4),
        ("dx6", Some(122), sid(BASE, "End.DX6 nh6 fd01::2", "p0", ""), Inner::ipv6),
        ("dt4", Some(133), sid(VRF, "End.DT4 vrftable 10", "vrf10", tenant4), Inner::ipv4),
        ("dt6", Some(177), sid(VRF, "End.DT6 vrftable 10", "vrf10", tenant6), Inner::ipv6),
        ("dt46", None, sid(VRF, "End.DT46 vrftable 10", "vrf10", both), Inner::either),
    ];
    for (name, vpp, config, inner) in decapsulations {
        let name = format!("srv6-end-{name}");
        let pair = move |flow: &Flow| carried(flow, Srh::None, &inner(flow));
        scenarios.push(Scenario::new(&name, vpp, config.clone(), pair));
        let pair = move |flow: &Flow| carried(flow, Srh::Two, &inner(flow));
        scenarios.push(Scenario::new(format!("{name}-srh"), None, config, pair));
    }
    scenarios
}

/// End.BPF with a program that reads the packet and raises the tag of its SRH by one; tests/golden/bpf has its source.
/// None, if there is nowhere to write it to.
fn programmed(segments: &str) -> Option<Scenario> {
    const TAG: &[u8] = include_bytes!("tag.o");
    let mut file = tempfile::Builder::new().prefix("tag").suffix(".o").tempfile().ok()?;
    file.write_all(TAG).ok()?;
    let action = format!("End.BPF endpoint obj {} section seg6", file.path().display());
    let config =
        format!("{BASE}ip -6 route add {SID}/128 encap seg6local action {action} count dev p0\n{segments}");
    // `ip` reads the file when the scenario is measured.
    Some(Scenario::new("srv6-end-bpf", None, config, move |flow| {
        let _kept = &file;
        tagged(flow)
    }))
}

/// The next segment, and a tag of 1.
fn tagged(flow: &Flow) -> (Vec<u8>, Vec<u8>) {
    let (before, mut after) = advanced(flow);
    let tag = ETHERNET + IPV6 + 7;
    if let Some(tag) = after.get_mut(tag) {
        *tag += 1;
    }
    (before, after)
}

/// An IPv6 packet of the flow on its way through [`SID`] and [`NEXT`]: before the router, and after it.
fn on_the_way(flow: &Flow) -> (Vec<u8>, Vec<u8>) {
    let inner = flow.packet6(HOPS);
    let path = [SID, NEXT];
    let before = wire::srh(&path, 1, wire::IPV6, &inner);
    let after = wire::srh(&path, 0, wire::IPV6, &inner);
    (before, after)
}

/// RFC 8986 sections 4.1 to 4.3: the next segment is the destination.
fn advanced(flow: &Flow) -> (Vec<u8>, Vec<u8>) {
    let (before, after) = on_the_way(flow);
    (
        incoming(&wire::ipv6(flow.outer(SID, OUTER_HOPS), wire::ROUTING, &before)),
        outgoing(&wire::ipv6(flow.outer(NEXT, OUTER_HOPS - 1), wire::ROUTING, &after)),
    )
}

/// So many SIDs with End, and packets for any of them. They go on to fc00:2::/32.
pub fn sids(count: u32) -> Load {
    let sid = |n: u32| Ipv6Addr::new(0xfc00, 1, 1, 0, 0, 0, (n >> 16) as u16, n as u16);
    let mut random = Random(8);
    let drawn: Vec<u32> = (0..DESTINATIONS).map(|_| random.below(u64::from(count)) as u32).collect();
    let (templates, mut expected): (Vec<_>, Vec<_>) = flows().iter().map(advanced).unzip();
    expected.truncate(CHECKED);
    Load {
        routes: (0..count).map(|n| Route::Sid(sid(n))).collect(),
        templates: templates.into_iter().map(Vec::into_boxed_slice).collect(),
        patches: Some(Patches::new(14 + 24, 16, drawn.into_iter().map(|n| sid(n).octets()).collect())),
        expected,
        ..Load::default()
    }
}

/// [`advanced`] by an SRH whose HMAC is right: RFC 8754 section 2.1.2.1 covers neither segments left nor the
/// destination.
fn sealed(flow: &Flow) -> (Vec<u8>, Vec<u8>) {
    let srh = |left| wire::sealed_srh(&[SID, NEXT], left, wire::IPV6, KEY, flow.source6, &flow.packet6(HOPS));
    (
        incoming(&wire::ipv6(flow.outer(SID, OUTER_HOPS), wire::ROUTING, &srh(1))),
        outgoing(&wire::ipv6(flow.outer(NEXT, OUTER_HOPS - 1), wire::ROUTING, &srh(0))),
    )
}

/// RFC 8986 section 4.16.1: the next segment, the last one, is the destination, and the SRH is gone.
fn popped(flow: &Flow) -> (Vec<u8>, Vec<u8>) {
    let (before, _) = on_the_way(flow);
    (
        incoming(&wire::ipv6(flow.outer(SID, OUTER_HOPS), wire::ROUTING, &before)),
        outgoing(&wire::ipv6(flow.outer(NEXT, OUTER_HOPS - 1), wire::IPV6, &flow.packet6(HOPS))),
    )
}

/// RFC 9800 section 4.1.1: the compressed SIDs move up. There is no SRH, as the whole list is in the destination.
fn shifted(flow: &Flow) -> (Vec<u8>, Vec<u8>) {
    let before = Ipv6Addr::new(0xfc00, 0xa, 1, 2, 3, 4, 0, 0);
    let after = Ipv6Addr::new(0xfc00, 0xa, 2, 3, 4, 0, 0, 0);
    let inner = flow.packet6(HOPS);
    (
        incoming(&wire::ipv6(flow.outer(before, OUTER_HOPS), wire::IPV6, &inner)),
        outgoing(&wire::ipv6(flow.outer(after, OUTER_HOPS - 1), wire::IPV6, &inner)),
    )
}

/// RFC 8986 section 4.13: the next segment is the destination inside another IPv6 header with the
/// policy's list. As Linux does it, the hop limit falls by one on the outside alone.
fn bound(flow: &Flow) -> (Vec<u8>, Vec<u8>) {
    let (before, after) = on_the_way(flow);
    let inner = wire::ipv6(flow.outer(NEXT, OUTER_HOPS), wire::ROUTING, &after);
    let policy = wire::srh(&[segment(1), segment(2)], 1, wire::IPV6, &inner);
    let outer = Ip6 {
        source: SOURCE,
        destination: segment(1),
        class: CLASS,
        label: flow.label,
        hop_limit: OUTER_HOPS - 1,
    };
    (
        incoming(&wire::ipv6(flow.outer(SID, OUTER_HOPS), wire::ROUTING, &before)),
        outgoing(&wire::ipv6(outer, wire::ROUTING, &policy)),
    )
}

/// How a packet reaches the last SID of its list.
#[derive(Clone, Copy)]
pub enum Srh {
    /// Without an SRH: a list of one, reduced.
    None,
    /// With an SRH of two segments, none left.
    Two,
}

/// What is inside: as it comes, and as the frame that leaves.
pub struct Inner {
    next: u8,
    packet: Vec<u8>,
    leaves: Vec<u8>,
}

impl Inner {
    fn ipv4(flow: &Flow) -> Self {
        Self { next: wire::IPV4, packet: flow.packet4(HOPS), leaves: outgoing(&flow.packet4(HOPS - 1)) }
    }

    fn ipv6(flow: &Flow) -> Self {
        Self { next: wire::IPV6, packet: flow.packet6(HOPS), leaves: outgoing(&flow.packet6(HOPS - 1)) }
    }

    /// IPv4 and IPv6 in turn, as the flows come.
    fn either(flow: &Flow) -> Self {
        if flow.ports.0.is_multiple_of(2) { Self::ipv4(flow) } else { Self::ipv6(flow) }
    }

    /// The flow's frame of this length, which leaves as it is.
    pub fn frame(flow: &Flow, length: usize) -> Self {
        let frame = flow.frame(length);
        Self { next: wire::ETHERNET, packet: frame.clone(), leaves: frame }
    }
}

/// The packet around it, for [`SID`].
pub fn carried(flow: &Flow, srh: Srh, inner: &Inner) -> (Vec<u8>, Vec<u8>) {
    let outer = flow.outer(SID, OUTER_HOPS);
    let packet = match srh {
        Srh::None => wire::ipv6(outer, inner.next, &inner.packet),
        Srh::Two => {
            let list =
                wire::srh(&[Ipv6Addr::new(0xfc00, 3, 0, 0, 0, 0, 0, 1), SID], 0, inner.next, &inner.packet);
            wire::ipv6(outer, wire::ROUTING, &list)
        }
    };
    (incoming(&packet), inner.leaves.clone())
}
