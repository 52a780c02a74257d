//! What members of `RTNLGRP_NEIGH` hear, as `ip monitor neigh` showed it on Linux 6.12.

use libc::{NTF_EXT_LEARNED, NUD_FAILED, NUD_NONE, NUD_PERMANENT, NUD_REACHABLE, RTM_DELNEIGH, RTM_NEWNEIGH};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use underpass_netlink::messages;
use underpass_netlink::reply::{Address, write_message};

use super::common::{Lab, address, up};

const V0: u32 = 2;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
const ADD: u16 = NLM_F_CREATE | NLM_F_EXCL;
const REPLACE: u16 = NLM_F_CREATE | NLM_F_REPLACE;
/// `NDA_PROTOCOL`.
const PROTOCOL: u16 = 12;

/// Type, state and flags of a notification.
type Heard = (u16, u16, u8);

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.change(up(V0), 0).unwrap();
    lab.change(address(V0, "10.0.0.1", 24), ADD).unwrap();
    lab.router.join(&mut lab.client, libc::RTNLGRP_NEIGH).unwrap();
    lab.router.notifications().for_each(drop);
    lab
}

fn heard(lab: &mut Lab) -> Vec<Heard> {
    let told = lab.router.notifications().map(|notification| {
        let message = messages(&notification.bytes).next().unwrap();
        let body = message.body();
        (message.kind, u16::from_ne_bytes([body[8], body[9]]), body[10])
    });
    told.collect()
}

/// `ip neigh … 10.0.0.9 [lladdr …] dev v0 nud … [protocol …] [extern_learn]`
fn neighbour(
    lab: &mut Lab,
    kind: u16,
    flags: u16,
    (state, mark): (u16, u8),
    more: &[(u16, &[u8])],
) -> Vec<Heard> {
    let mut datagram = Vec::new();
    write_message(&mut datagram, kind, flags | NLM_F_REQUEST | NLM_F_ACK, Address::default(), |message| {
        let [low, high] = state.to_ne_bytes();
        message.fixed(&[2, 0, 0, 0, V0 as u8, 0, 0, 0, low, high, mark, 0]);
        message.attribute(libc::NDA_DST, &[10, 0, 0, 9]);
        more.iter().for_each(|(kind, value)| message.attribute(*kind, value));
    })
    .unwrap();
    assert_eq!(lab.raw(&datagram)[0][16..20], [0; 4]);
    heard(lab)
}

fn replaced(lab: &mut Lab, state: u16) -> Vec<Heard> {
    neighbour(lab, RTM_NEWNEIGH, REPLACE, (state, 0), &[(libc::NDA_LLADDR, &MAC)])
}

#[test]
fn what_changes_nothing_is_not_heard() {
    let mut lab = lab();
    assert_eq!(replaced(&mut lab, NUD_PERMANENT), [(RTM_NEWNEIGH, NUD_PERMANENT, 0)]);
    let updated = |lab: &Lab| lab.router.neighbours().next().unwrap().2.updated;
    let before = updated(&lab);
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(replaced(&mut lab, NUD_PERMANENT), []);
    assert_eq!(updated(&lab), before);
    let mac = (libc::NDA_LLADDR, &MAC[..]);
    assert_eq!(neighbour(&mut lab, RTM_NEWNEIGH, REPLACE, (NUD_PERMANENT, 0), &[mac, (PROTOCOL, &[44])]), []);
    assert_eq!(lab.router.neighbours().next().unwrap().2.protocol, 44);
    let learned = neighbour(&mut lab, RTM_NEWNEIGH, REPLACE, (NUD_PERMANENT, NTF_EXT_LEARNED), &[mac]);
    assert_eq!(learned, [(RTM_NEWNEIGH, NUD_PERMANENT, NTF_EXT_LEARNED)]);
    assert_eq!(replaced(&mut lab, NUD_PERMANENT), [(RTM_NEWNEIGH, NUD_PERMANENT, 0)]);
    assert_eq!(replaced(&mut lab, NUD_REACHABLE), [(RTM_NEWNEIGH, NUD_REACHABLE, 0)]);
    assert_eq!(replaced(&mut lab, NUD_FAILED), [(RTM_NEWNEIGH, NUD_FAILED, 0)]);
    assert_eq!(replaced(&mut lab, NUD_FAILED), []);
    // It was not valid, and is not.
    assert_eq!(replaced(&mut lab, NUD_NONE), []);
}

#[test]
fn a_new_one_that_is_not_valid_is_not_heard() {
    let mut lab = lab();
    assert_eq!(neighbour(&mut lab, RTM_NEWNEIGH, ADD, (NUD_FAILED, 0), &[]), []);
    assert_eq!(lab.router.neighbours().count(), 1);
    assert_eq!(neighbour(&mut lab, libc::RTM_DELNEIGH, 0, (0, 0), &[]), [(RTM_DELNEIGH, NUD_FAILED, 0)]);
}

#[test]
fn a_deletion_fails_it_first_if_it_was_valid() {
    let mut lab = lab();
    let mac = (libc::NDA_LLADDR, &MAC[..]);
    neighbour(&mut lab, RTM_NEWNEIGH, ADD, (NUD_REACHABLE, NTF_EXT_LEARNED), &[mac]);
    let gone = neighbour(&mut lab, RTM_DELNEIGH, 0, (0, 0), &[]);
    assert_eq!(gone, [(RTM_NEWNEIGH, NUD_FAILED, 0), (RTM_DELNEIGH, NUD_FAILED, 0)]);
}

/// `ip link set v0 down`, `ip link set v0 address …`
#[test]
fn those_that_go_with_a_link_go_as_they_were() {
    let down = |link: &mut LinkMessage| link.header.change_mask = LinkFlags::Up;
    let moved = |link: &mut LinkMessage| link.attributes.push(LinkAttribute::Address(vec![2, 0, 0, 0, 0, 7]));
    for change in [down as fn(&mut LinkMessage), moved] {
        let mut lab = lab();
        replaced(&mut lab, NUD_PERMANENT);
        let mut link = LinkMessage::default();
        link.header.index = V0;
        change(&mut link);
        lab.change(Message::NewLink(link), 0).unwrap();
        assert_eq!(heard(&mut lab), [(RTM_DELNEIGH, NUD_PERMANENT, 0)]);
    }
}
