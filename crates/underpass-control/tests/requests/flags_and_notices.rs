//! What `ip` reads but does not print: the flags of a dump's messages, and the order of notifications. What
//! is expected was sent by Linux 6.12.

use super::common::{Lab, up};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use underpass_netlink::messages;
use underpass_netlink::reply::{Address, write_message};

/// The flags of the first message of a dump of routes and of its end.
fn flags_of_dump(strict: bool, family: u8, table: u32) -> (u16, u16) {
    let mut lab = Lab::recorded();
    lab.client.strict_check = strict;
    let mut datagram = Vec::new();
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    write_message(&mut datagram, libc::RTM_GETROUTE, flags, Address::default(), |message| {
        message.fixed(&[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        if table != 0 {
            message.u32(libc::RTA_TABLE, table);
        }
    })
    .unwrap();
    let answers = lab.raw(&datagram);
    let all: Vec<u16> = answers.iter().flat_map(|answer| messages(answer)).map(|m| m.flags).collect();
    (*all.first().unwrap(), *all.last().unwrap())
}

/// `NLM_F_MULTI` 2, `NLM_F_DUMP_FILTERED` 0x20, `NLM_F_ACK_TLVS` 0x200.
#[test]
fn what_a_dump_of_routes_is_marked_with() {
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        assert_eq!(flags_of_dump(false, family, 0), (2, 2));
        assert_eq!(flags_of_dump(true, family, 0), (0x22, 2));
        assert_eq!(flags_of_dump(true, family, 254), (0x22, 0x22));
        assert_eq!(flags_of_dump(true, family, 4711), (0x222, 0x222));
    }
    assert_eq!(flags_of_dump(true, 0, 4711), (0x22, 0x22));
}

/// Type, family or link's flags, and `ifi_change` of what the members of the groups hear.
fn heard(lab: &mut Lab, change: RouteNetlinkMessage) -> Vec<(u16, u32, u32)> {
    lab.change(change, 0).unwrap();
    let word = |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let told = lab.router.notifications().map(|notification| {
        let bytes = &notification.bytes;
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        match kind {
            16 => (kind, word(bytes, 24) & 0x13ff, word(bytes, 28)),
            _ => (kind, bytes[16].into(), 0),
        }
    });
    told.collect()
}

/// `ip monitor link netconf` beside `ip link set v0 promisc on`, `up`, `mtu 1000`, `mtu 1500`, `promisc off`,
/// `name v9`.
#[test]
fn what_follows_a_change_of_a_link() {
    let mut lab = Lab::new();
    /// `RTNLGRP_MPLS_NETCONF`.
    const OF_LABELS: u32 = 29;
    let groups = [libc::RTNLGRP_LINK, libc::RTNLGRP_IPV4_NETCONF, libc::RTNLGRP_IPV6_NETCONF, OF_LABELS];
    groups.into_iter().for_each(|group| lab.router.join(&mut lab.client, group).unwrap());
    let index = lab.router.links().find(|link| link.name == "v0").unwrap().index;
    let promiscuous = |on: bool| {
        let RouteNetlinkMessage::NewLink(mut link) = up(index) else { panic!() };
        link.header.flags = if on { LinkFlags::Promisc } else { LinkFlags::empty() };
        link.header.change_mask = LinkFlags::Promisc;
        RouteNetlinkMessage::NewLink(link)
    };
    let with = |attribute| {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(attribute);
        RouteNetlinkMessage::NewLink(link)
    };
    let (down, running) = (0x1002, 0x1043);
    assert_eq!(heard(&mut lab, promiscuous(true)), [(16, down | 0x100, 0x100)]);
    assert_eq!(heard(&mut lab, up(index)), [(16, running | 0x100, 1)]);
    assert_eq!(heard(&mut lab, with(LinkAttribute::Mtu(1000))), [(16, running | 0x100, 0), (81, 10, 0)]);
    assert_eq!(heard(&mut lab, with(LinkAttribute::Mtu(1500))), [(16, running | 0x100, 0), (80, 10, 0)]);
    assert_eq!(heard(&mut lab, promiscuous(false)), [(16, running, 0x100)]);
    let renamed = heard(&mut lab, with(LinkAttribute::IfName("v9".into())));
    let families = [2, 10, 28].map(|family| [(81, family, 0), (80, family, 0)]);
    assert_eq!(renamed, [&[(16, running, 0)][..], families.as_flattened()].concat());
}

/// `ip -d monitor link` beside `ip link del d9` of one that is up: `qdisc noop`. Linux: `dev_shutdown`.
#[test]
fn a_link_that_goes_has_no_queue() {
    let mut lab = Lab::new();
    lab.make("d9", "dummy", 9, &[]);
    lab.change(up(9), 0).unwrap();
    lab.router.join(&mut lab.client, libc::RTNLGRP_LINK).unwrap();
    let mut gone = LinkMessage::default();
    gone.header.index = 9;
    lab.change(RouteNetlinkMessage::DelLink(gone), 0).unwrap();
    let told: Vec<Vec<u8>> = lab.router.notifications().map(|told| told.bytes.to_vec()).collect();
    let last = told.last().unwrap();
    assert_eq!(u16::from_ne_bytes([last[4], last[5]]), libc::RTM_DELLINK);
    assert!(last.windows(5).any(|bytes| bytes == b"noop\0"), "{last:?}");
}
