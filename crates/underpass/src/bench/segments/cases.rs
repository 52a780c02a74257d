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

/// A packet or frame inside an IPv6 header and a list.
fn around(flow: &Flow, next_header: u8, inside: &[u8], count: usize) -> Vec<u8> {
    let routed = wire::srh(&path(count), count as u8 - 1, next_header, inside);
    outgoing(&wire::ipv6(outer(flow), wire::ROUTING, &routed))
}
