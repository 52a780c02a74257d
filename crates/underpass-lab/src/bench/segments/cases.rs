//! What is put on packets, by the number of segments. A case more is a row more in [`CASES`].

use std::net::Ipv6Addr;

use super::super::scenario::{CLASS, Flow, HOPS, SOURCE, incoming, outgoing, segment};
use super::super::wire::{self, Ip6};

/// Most segments that are measured.
pub const MOST: usize = 30;

/// One way to put headers on a packet.
pub struct Case {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it is called in a plot.
    pub title: &'static str,
    /// What follows the prefix in `ip -6 route add`.
    pub route: fn(usize) -> String,
    /// Bytes of the headers, without a frame that goes inside.
    pub header: fn(usize) -> usize,
    /// Bytes of the frame that goes inside.
    pub framed: usize,
    /// What the flow's packet must come out as.
    pub expected: fn(&Flow, usize) -> Vec<u8>,
}

/// The cases, in the order of the table.
pub const CASES: &[Case] = &[
    Case {
        name: "srv6-encap",
        title: "SRv6 H.Encaps",
        route: |count| format!("encap seg6 mode encap segs {} dev p1", list(count)),
        header: |count| 40 + 8 + 16 * count,
        framed: 0,
        expected: |flow, count| around(flow, wire::IPV6, &flow.packet6(HOPS), count),
    },
    Case {
        name: "srv6-inline",
        title: "SRv6 H.Insert",
        route: |count| format!("encap seg6 mode inline segs {} dev p1", list(count)),
        // The packet's own destination is one segment more.
        header: |count| 8 + 16 * (count + 1),
        framed: 0,
        expected: |flow, count| {
            let packet = flow.packet6(HOPS);
            let path = [path(count), vec![flow.destination6]].concat();
            let routed = wire::srh(&path, count as u8, wire::UDP, &packet[40..]);
            let header = Ip6 { source: flow.source6, ..outer(flow) };
            outgoing(&wire::ipv6(header, wire::ROUTING, &routed))
        },
    },
    Case {
        name: "srv6-l2encap",
        title: "SRv6 H.Encaps.L2",
        route: |count| format!("encap seg6 mode l2encap segs {} dev p1", list(count)),
        header: |count| 40 + 8 + 16 * count,
        framed: 14,
        expected: |flow, count| around(flow, wire::ETHERNET, &incoming(&flow.packet6(HOPS)), count),
    },
    Case {
        name: "rpl",
        title: "RPL source route",
        // `ip` takes the addresses in the reverse order of the visit.
        route: |count| {
            let typed: Vec<_> = visited(count).iter().rev().map(Ipv6Addr::to_string).collect();
            format!("encap rpl segs {} dev p1", typed.join(","))
        },
        header: |count| 8 + 16 * count,
        framed: 0,
        expected: |flow, count| {
            let packet = flow.packet6(HOPS);
            // RFC 6554: nothing is compressed, and with no address but the last CmprI says 15.
            let compressed = if count == 1 { 0xf0 } else { 0 };
            let mut routed = vec![wire::UDP, 2 * count as u8, 3, count as u8, compressed, 0, 0, 0];
            for address in visited(count).iter().skip(1).chain([&flow.destination6]) {
                routed.extend(address.octets());
            }
            routed.extend(&packet[40..]);
            let header = Ip6 { source: flow.source6, ..outer(flow) };
            outgoing(&wire::ipv6(header, wire::ROUTING, &routed))
        },
    },
    Case {
        name: "ioam",
        title: "IOAM, a trace of 8 bytes a segment",
        route: |count| {
            let size = 8 * count;
            let trace = format!("trace prealloc type 0x800000 ns 1 size {size}");
            format!("encap ioam6 mode inline {trace} via fd01::2 dev p1")
        },
        header: |count| 16 + 8 * count,
        framed: 0,
        expected: |flow, count| {
            let packet = flow.packet6(HOPS);
            let size = 8 * count as u8;
            // RFC 9486: the option behind two bytes of padding. RFC 9197: namespace 1, one word a node, and the
            // words that are left; hop limit and node id, which is not set, in the last of them.
            let mut options = vec![wire::UDP, count as u8 + 1, 1, 0, 0x31, 10 + size, 0, 0];
            options.extend([0, 1, 1 << 3, size / 4 - 1, 0x80, 0, 0, 0]);
            options.extend(vec![0; usize::from(size) - 4]);
            options.extend([HOPS - 1, 0xff, 0xff, 0xff]);
            options.extend(&packet[40..]);
            let header = Ip6 { source: flow.source6, destination: flow.destination6, ..outer(flow) };
            outgoing(&wire::ipv6(header, wire::HOP_BY_HOP, &options))
        },
    },
];

fn path(count: usize) -> Vec<Ipv6Addr> {
    (1..=count).map(segment).collect()
}

fn list(count: usize) -> String {
    path(count).iter().map(Ipv6Addr::to_string).collect::<Vec<_>>().join(",")
}

fn outer(flow: &Flow) -> Ip6 {
    Ip6 { source: SOURCE, destination: segment(1), class: CLASS, label: flow.label, hop_limit: HOPS - 1 }
}

/// The addresses of an RPL source route but for the last: nothing in common with the first, so that none gets shorter.
fn visited(count: usize) -> Vec<Ipv6Addr> {
    let far = |n: usize| Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, n as u16);
    [segment(1)].into_iter().chain((2..=count).map(far)).collect()
}

/// A packet or frame inside an IPv6 header and a list.
fn around(flow: &Flow, next_header: u8, inside: &[u8], count: usize) -> Vec<u8> {
    let routed = wire::srh(&path(count), count as u8 - 1, next_header, inside);
    outgoing(&wire::ipv6(outer(flow), wire::ROUTING, &routed))
}
