//! A client that batches: many changes in a datagram, and a dump that is longer than what may wait.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;

use std::time::Instant;

use common::Lab;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REQUEST};
use underpass_control::Replies;
use underpass_netlink::reply::{Address, write_message};

/// How destinations lie.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// `2001:db8:…::/64`, one beside the other.
    Dense,
    /// `/48`s all over `2000::/3`.
    Scattered,
}

impl Lie {
    /// Length and address of the prefix of a number.
    fn prefix(self, n: u32) -> (u8, [u8; 16]) {
        let mut address = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        match self {
            Self::Dense => {
                address[4..8].copy_from_slice(&n.to_be_bytes());
                (64, address)
            }
            Self::Scattered => {
                // An odd factor: no two numbers fall together.
                let spread = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 19 << 16;
                address[..8].copy_from_slice(&(1 << 61 | spread & !(7 << 61)).to_be_bytes());
                (48, address)
            }
        }
    }
}

/// `ip -6 route add … via fd00::2 dev v0`, `count` of them, in datagrams of 32 KiB.
fn routes(count: u32, lie: Lie) -> Vec<Vec<u8>> {
    let mut datagrams = vec![Vec::new()];
    for n in 0..count {
        if datagrams.last().unwrap().len() > 32_000 {
            datagrams.push(Vec::new());
        }
        let datagram = datagrams.last_mut().unwrap();
        let flags = NLM_F_REQUEST | NLM_F_CREATE;
        write_message(datagram, libc::RTM_NEWROUTE, flags, Address::default(), |message| {
            let (len, destination) = lie.prefix(n);
            // struct rtmsg: AF_INET6, length, main table, boot, universe, unicast
            message.fixed(&[10, len, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]);
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
    for datagram in routes(2_000, Lie::Dense) {
        assert!(lab.raw(&datagram).is_empty());
    }
    let (messages, bytes, longest) = dump(&mut lab);
    assert_eq!(messages - before, 2_000);
    assert!(longest <= 32 * 1024 && bytes > 4 * longest);
}

/// What the process has in memory, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Run by hand, in a release build: how fast a million routes are added, dumped and deleted, and what they
/// take in the model and the forwarding tables together.
#[test]
#[ignore = "a measurement"]
fn a_million_routes() {
    a_million(Lie::Dense);
}

/// The same with destinations that have little in common.
#[test]
#[ignore = "a measurement"]
fn a_million_scattered_routes() {
    a_million(Lie::Scattered);
}

fn a_million(lie: Lie) {
    let mut lab = Lab::recorded();
    let datagrams = routes(1_000_000, lie);
    let mut replies = Replies::default();
    let before = resident();
    let mut send = |lab: &mut Lab, datagrams: &[Vec<u8>]| {
        let began = Instant::now();
        for datagram in datagrams {
            lab.router.request(&mut lab.client, datagram, &mut replies);
        }
        assert!(replies.is_empty());
        let took = began.elapsed();
        format!("in {took:?}, {:.0} a second", 1e6 / took.as_secs_f64())
    };
    println!("{lie:?}: added {}", send(&mut lab, &datagrams));
    println!("{} MB", (resident() - before) / 1_000_000);
    let began = Instant::now();
    let (messages, bytes, _) = dump(&mut lab);
    println!("{messages} dumped ({bytes} bytes) in {:?}", began.elapsed());
    let delete = |datagram: &Vec<u8>| {
        let mut datagram = datagram.clone();
        let mut at = 0;
        while let Some(&[len, high]) = datagram.get(at..at + 2).and_then(|len| len.first_chunk()) {
            datagram[at + 4..at + 6].copy_from_slice(&libc::RTM_DELROUTE.to_ne_bytes());
            at += usize::from(u16::from_ne_bytes([len, high]));
        }
        datagram
    };
    let deletions: Vec<_> = datagrams.iter().map(delete).collect();
    println!("deleted {}", send(&mut lab, &deletions));
    assert!(dump(&mut lab).0 < 1000);
}
