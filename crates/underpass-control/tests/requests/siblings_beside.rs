//! IPv6 routes to a prefix that are partly the kernel's and partly the router's own: each shows and deletes its own.

use libc::{ESRCH, RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE};
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST};
use underpass_control::{Client, Protocol, Replies};
use underpass_netlink::messages;
use underpass_netlink::reply::{Address, Reply, write_message};

use super::common::beside::{Done, LOWER, Lab};

const PREFIX: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn gateway(last: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

fn write_header(message: &mut Reply<'_>) {
    message.fixed(&[10, 64, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]);
    message.attribute(libc::RTA_DST, &PREFIX);
}

/// The kernel says that it has `2001:db8:9::/64 via fe80::LAST dev v0`.
fn kernel_has(lab: &mut Lab, last: u8) {
    let mut bytes = Vec::new();
    let flags = NLM_F_CREATE | NLM_F_APPEND;
    write_message(&mut bytes, RTM_NEWROUTE, flags, Address { port: 0, sequence: 1 }, |message| {
        write_header(message);
        message.u32(libc::RTA_PRIORITY, 1024);
        message.u32(libc::RTA_OIF, LOWER);
        message.attribute(libc::RTA_GATEWAY, &gateway(last));
    })
    .unwrap();
    messages(&bytes).for_each(|message| lab.router.mirror(&message));
}

/// `ip -6 route append 2001:db8:9::/64 encap seg6 mode encap segs fc00::9 via fe80::LAST dev v0`
fn add_own(lab: &mut Lab, last: u8) {
    let errno = lab.request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_APPEND, |message| {
        write_header(message);
        message.u32(libc::RTA_OIF, LOWER);
        message.attribute(libc::RTA_GATEWAY, &gateway(last));
        let nest = message.nest(22);
        let mut tunnel = 1u32.to_ne_bytes().to_vec();
        tunnel
            .extend_from_slice(&[0, 2, 4, 0, 0, 0, 0, 0, 0xfc, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        message.attribute(1, &tunnel);
        message.end(nest);
        message.u16(21, 5);
    });
    assert_eq!(errno, 0);
}

/// How many next hops each route of the router's part of a dump has.
fn shown(lab: &mut Lab) -> Vec<usize> {
    let mut bytes = Vec::new();
    write_message(&mut bytes, RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP, Address::default(), |message| {
        message.fixed(&[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    })
    .unwrap();
    let (mut client, mut replies) = (Client::new(Protocol::Route, 78), Replies::default());
    lab.router.request(&mut client, &bytes, &mut replies);
    let answers = replies.iter().flat_map(|datagram| messages(datagram).collect::<Vec<_>>());
    let routes = answers.filter(|message| message.kind == RTM_NEWROUTE);
    let gateways = |value: &[u8]| value.windows(15).filter(|part| *part == &gateway(0)[..15]).count();
    routes.map(|route| gateways(route.body())).collect()
}

#[test]
fn the_routers_part_of_a_dump_has_its_own_alone() {
    for own_first in [true, false] {
        let mut lab = Lab::new(true);
        if own_first {
            add_own(&mut lab, 2);
        }
        kernel_has(&mut lab, 1);
        if !own_first {
            add_own(&mut lab, 2);
        }
        assert_eq!(shown(&mut lab), [1], "own first: {own_first}");
        kernel_has(&mut lab, 3);
        add_own(&mut lab, 4);
        assert_eq!(shown(&mut lab), [2], "own first: {own_first}");
    }
}

/// `ip -6 route del 2001:db8:9::/64 nexthop via fe80::1 dev v0 nexthop via fe80::2 dev v0`
fn delete(lab: &mut Lab, lasts: &[u8]) -> (i32, usize) {
    lab.done();
    let errno = lab.request(RTM_DELROUTE, 0, |message| {
        write_header(message);
        let hops: Vec<u8> = lasts
            .iter()
            .flat_map(|last| {
                let head = [&28u16.to_ne_bytes()[..], &[0, 0], &LOWER.to_ne_bytes()].concat();
                [&head[..], &20u16.to_ne_bytes(), &libc::RTA_GATEWAY.to_ne_bytes(), &gateway(*last)].concat()
            })
            .collect();
        message.attribute(libc::RTA_MULTIPATH, &hops);
    });
    let deleted = |done: &Done| matches!(done, Done::Requested { kind: RTM_DELROUTE, .. });
    (errno, lab.done().iter().filter(|done| deleted(done)).count())
}

#[test]
fn a_deletion_reaches_both() {
    let mut lab = Lab::new(true);
    kernel_has(&mut lab, 1);
    add_own(&mut lab, 2);
    add_own(&mut lab, 3);
    assert_eq!(delete(&mut lab, &[1, 2]), (0, 1));
    assert_eq!(shown(&mut lab), [1]);
    // Of what nobody has, Linux deletes the rest and says so.
    assert_eq!(delete(&mut lab, &[3, 9]), (ESRCH, 0));
    assert_eq!(shown(&mut lab), [0; 0]);
}
