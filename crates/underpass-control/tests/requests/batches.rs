//! A client that batches: many changes in a datagram, and a dump that is longer than what may wait.

use super::common::Lab;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REQUEST};
use underpass_control::Replies;
use underpass_netlink::reply::{Address, write_message};

/// `ip -6 route add 2001:db8:…::/64 via fd00::2 dev v0`, `count` of them, in datagrams of 32 KiB; or `del`.
fn routes(kind: u16, count: u32) -> Vec<Vec<u8>> {
    let mut datagrams = vec![Vec::new()];
    for n in 0..count {
        if datagrams.last().unwrap().len() > 32_000 {
            datagrams.push(Vec::new());
        }
        let datagram = datagrams.last_mut().unwrap();
        let flags = NLM_F_REQUEST | NLM_F_CREATE;
        write_message(datagram, kind, flags, Address::default(), |message| {
            let mut destination = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            destination[4..8].copy_from_slice(&n.to_be_bytes());
            // struct rtmsg: AF_INET6, length, main table, boot, universe, unicast
            message.fixed(&[10, 64, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]);
            message.attribute(libc::RTA_DST, &destination);
            message.attribute(libc::RTA_GATEWAY, &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            message.u32(libc::RTA_OIF, 14);
        })
        .unwrap();
    }
    datagrams
}

fn dump(lab: &mut Lab) -> (usize, usize, usize) {
    let mut replies = Replies::default();
    let request = [28, 0, 0, 0, 26, 0, 1, 3, 1, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    lab.router.request(&mut lab.client, &request, &mut replies);
    let (mut messages, mut bytes, mut longest) = (0, 0, 0);
    loop {
        for datagram in replies.iter() {
            messages += underpass_netlink::messages(datagram)
                .filter(|message| message.kind == libc::RTM_NEWROUTE)
                .count();
            bytes += datagram.len();
            longest = longest.max(datagram.len());
        }
        replies.clear();
        if !lab.client.dumping() {
            return (messages, bytes, longest);
        }
        lab.router.continue_dump(&mut lab.client, &mut replies);
    }
}

#[test]
fn a_dump_comes_in_datagrams() {
    let mut lab = Lab::recorded();
    let before = dump(&mut lab).0;
    for datagram in routes(libc::RTM_NEWROUTE, 2_000) {
        assert!(lab.raw(&datagram).is_empty());
    }
    let (messages, bytes, longest) = dump(&mut lab);
    assert_eq!(messages - before, 2_000);
    assert!(longest <= 32 * 1024 && bytes > 4 * longest);
    for datagram in routes(libc::RTM_DELROUTE, 2_000) {
        assert!(lab.raw(&datagram).is_empty());
    }
    assert_eq!(dump(&mut lab).0, before);
}
