//! Labelled packets into tunnels.

use std::net::Ipv4Addr;

use super::lab::{Watcher, frame, ip4};
use super::pair::Pair;
use underpass_engine::buffer::PortId;
use underpass_engine::tables::{Action, NextHop, Push, Rewrite, TunnelKind};
use underpass_packet::mpls::Entry;
use underpass_packet::{FromBytes, IntoBytes, ethernet, ipv4, protocol};

/// The label 0x45000 looks like the front of an IPv4 header.
const LABEL: u32 = 0x45000;

/// A route that puts a label on, through a tunnel whose frames or packets may be `mtu` bytes long; whether the outer ones
/// must not be cut.
fn labelled(kind: TunnelKind, mtu: u32, whole: bool) -> Pair {
    let mut pair = Pair::of(kind, |tunnel| tunnel.dont_fragment = whole);
    let bytes = [5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 0, 0, 0, 0, 0, 0, 0, 0];
    let rewrite = kind.carries_frames().then_some(Rewrite { bytes, len: 12 });
    let address = Ipv4Addr::new(10, 77, 0, 3).into();
    let hop = NextHop {
        link: pair.links[0],
        port: PortId::NONE,
        mtu,
        locked: false,
        hop_limit: 0,
        rewrite,
        address,
    };
    let next_hop = pair.near.writer.add_next_hop(hop);
    let labels = Entry::new(LABEL, 0, true, 0).as_bytes().into();
    let action = pair.near.writer.add_action(Action::Push(Push { labels, ttl: None, next_hop }));
    pair.near.writer.insert4(pair.near.fib4, Ipv4Addr::new(10, 51, 0, 0), 16, action);
    pair
}

fn packet(len: usize) -> Vec<u8> {
    let mut packet = ip4([10, 1, 0, 7], [10, 51, 0, 7], protocol::UDP, &vec![7; len - 20]);
    let (header, _) = ipv4::Header::mut_from_prefix(&mut packet).unwrap();
    header.flags_offset = 0.into();
    header.fill_checksum(&[]);
    frame(ethernet::IPV4, &packet)
}

/// Where the label of an outer packet in a frame is; what is before it is as it has to be.
fn label_at(kind: TunnelKind, wire: &[u8]) -> usize {
    let at = 14 + 20 + 4;
    if kind == TunnelKind::Gre {
        assert_eq!(wire[at - 4..at], [0, 0, 0x88, 0x47]);
        return at;
    }
    assert_eq!(wire[at - 4..at], [0, 0, 0x65, 0x58]);
    assert_eq!(wire[at..at + 14], [5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 0x88, 0x47]);
    at + 14
}

/// By both paths, whole and in fragments, each of which has the label: RFC 3032 section 3.4.
#[test]
fn whole_and_in_fragments() {
    for kind in [TunnelKind::Gre, TunnelKind::Gretap] {
        for watched in [false, true] {
            let mut pair = labelled(kind, 1000, false);
            for (len, fragments) in [(996, vec![996]), (1400, vec![996, 424])] {
                let sent = match watched {
                    true => pair.near.send_watched(&[packet(len)], &mut Watcher),
                    false => pair.near.send(&[packet(len)]),
                };
                let lengths = sent.iter().map(|(_, wire)| {
                    let at = label_at(kind, wire);
                    assert_eq!(wire[at..at + 4], [0x45, 0, 1, 39]);
                    let (header, _) = ipv4::Header::ref_from_prefix(&wire[at + 4..]).unwrap();
                    assert_eq!(header.ttl, 39);
                    usize::from(header.total_length.get())
                });
                assert_eq!(lengths.collect::<Vec<_>>(), fragments, "{kind:?} {len}");
            }
            pair.assert_accounted();
        }
    }
}

/// What is below a label is not taken for an IP packet: nobody is told that it does not fit outside.
#[test]
fn nobody_is_told() {
    for kind in [TunnelKind::Gre, TunnelKind::Gretap] {
        let mut pair = labelled(kind, 1500, true);
        pair.narrow(600);
        assert_eq!(pair.near.send(&[packet(1000)]), [], "{kind:?}");
        assert_eq!(pair.near.drops(), [("too-big", 1)]);
        pair.assert_accounted();
    }
}
