//! VLANs of bridges and their ports, as no tool asks for them. What is expected was answered by Linux 6.12.

use super::common::Lab;
use libc::{EINVAL, ENODEV, EOPNOTSUPP, ERANGE};
use netlink_packet_core::{NLA_F_NESTED, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use underpass_netlink::messages;
use underpass_netlink::reply::{Address, Reply, write_message};

const NEW: u16 = 112;
const DEL: u16 = 113;
const GET: u16 = 114;
/// A link that is no port of a bridge, a port, and its bridge.
const OTHER: u32 = 2;
const PORT: u32 = 3;
const BRIDGE: u32 = 4;

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.make("br1", "bridge", BRIDGE, &[]);
    let mut datagram = Vec::new();
    write_message(
        &mut datagram,
        libc::RTM_NEWLINK,
        NLM_F_REQUEST | NLM_F_ACK,
        Address::default(),
        |message| {
            message.fixed(&link_header(PORT));
            message.u32(libc::IFLA_MASTER, BRIDGE);
        },
    )
    .unwrap();
    assert_eq!(error(&lab.raw(&datagram)), (0, String::new()));
    lab
}

fn link_header(index: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

/// The errno and the text of an answer.
fn error(answers: &[Vec<u8>]) -> (i32, String) {
    let answer = answers.last().unwrap();
    let errno = -i32::from_ne_bytes(answer[16..20].try_into().unwrap());
    let text = String::from_utf8_lossy(answer);
    let at =
        ["bridge: ", "Unknown", "NLA_F", "Attribute", "integer", "invalid", "states", "options", "bytes"];
    let start = at.iter().filter_map(|start| text.find(start)).min();
    (errno, start.map(|start| text[start..].split('\0').next().unwrap().to_owned()).unwrap_or_default())
}

fn ask(lab: &mut Lab, kind: u16, flags: u16, index: u32, rest: impl FnOnce(&mut Reply<'_>)) -> Vec<Vec<u8>> {
    let mut datagram = Vec::new();
    write_message(&mut datagram, kind, NLM_F_REQUEST | flags, Address::default(), |message| {
        let [a, b, c, d] = index.to_ne_bytes();
        message.fixed(&[libc::AF_BRIDGE as u8, 0, 0, 0, a, b, c, d]);
        rest(message);
    })
    .unwrap();
    lab.raw(&datagram)
}

/// `RTM_NEWVLAN` or `RTM_DELVLAN` with one entry.
fn vlan(lab: &mut Lab, kind: u16, index: u32, flags: u16, id: u16, more: &[(u16, &[u8])]) -> (i32, String) {
    let answers = ask(lab, kind, NLM_F_ACK, index, |message| entry(message, flags, id, more));
    error(&answers)
}

fn entry(message: &mut Reply<'_>, flags: u16, id: u16, more: &[(u16, &[u8])]) {
    let entry = message.nest(1);
    let ([a, b], [c, d]) = (flags.to_ne_bytes(), id.to_ne_bytes());
    message.attribute(1, &[a, b, c, d]);
    more.iter().for_each(|(kind, value)| message.attribute(*kind, value));
    message.end(entry);
}

/// The first VLANs of the ranges that `bridge vlan show` shows of a link.
fn shown(lab: &mut Lab, index: u32) -> Vec<u16> {
    let answers = ask(lab, GET, NLM_F_DUMP, index, |_| ());
    let all = answers.iter().flat_map(|answer| messages(answer)).filter(|message| message.kind == NEW);
    let entries = all.flat_map(|message| message.attributes(8).collect::<Vec<_>>());
    let infos = entries.filter_map(|entry| entry.nested().find(|inner| inner.kind == 1));
    infos.map(|info| u16::from_ne_bytes([info.value[2], info.value[3]])).collect()
}

fn refused(errno: i32, text: &str) -> (i32, String) {
    (errno, text.to_owned())
}

/// What this router lacks is no error of Linux's: nothing of such a request is done.
#[test]
fn what_is_refused_changes_nothing() {
    let mut lab = lab();
    let text = "states of VLANs are not supported by this router";
    assert_eq!(vlan(&mut lab, NEW, PORT, 0, 7, &[(3, &[2])]), refused(EOPNOTSUPP, text));
    let answers = ask(&mut lab, NEW, NLM_F_ACK, PORT, |message| {
        entry(message, 0, 8, &[]);
        entry(message, 0, 9, &[(3, &[2])]);
    });
    assert_eq!(error(&answers), refused(EOPNOTSUPP, text));
    let answers = ask(&mut lab, NEW, NLM_F_ACK, BRIDGE, |message| {
        entry(message, 0, 10, &[]);
        let options = message.nest(2);
        message.u16(1, 10);
        message.end(options);
    });
    assert_eq!(error(&answers).0, EOPNOTSUPP);
    assert_eq!((shown(&mut lab, PORT), shown(&mut lab, BRIDGE)), (vec![1], vec![1]));
}

/// The entries before one that Linux refuses stay there.
#[test]
fn requests_are_read_strictly() {
    let mut lab = lab();
    let answers = ask(&mut lab, NEW, NLM_F_ACK, PORT, |message| {
        entry(message, 0, 50, &[]);
        entry(message, 0, 60, &[(11, &[])]);
    });
    assert_eq!(error(&answers), refused(EINVAL, "Unknown attribute type"));
    assert_eq!(shown(&mut lab, PORT), [1, 50]);
    let answers = ask(&mut lab, NEW, NLM_F_ACK, PORT, |message| {
        entry(message, 0, 8, &[]);
        message.attribute(3, &[1]);
    });
    assert_eq!(error(&answers), refused(EINVAL, "Unknown attribute type"));
    let answers =
        ask(&mut lab, NEW, NLM_F_ACK, PORT, |message| message.attribute(1, &[8, 0, 1, 0, 0, 0, 7, 0]));
    assert_eq!(error(&answers), refused(EINVAL, "NLA_F_NESTED is missing"));
    for (more, errno, text) in [
        ((7, &[1, 0, 0, 0][..]), EINVAL, "Attribute failed policy validation"),
        ((2, &[9]), EINVAL, "invalid attribute length"),
        ((9, &[2]), ERANGE, "integer out of range"),
        ((4, &[8, 0, 1, 0, 1, 0, 0, 0]), EINVAL, "NLA_F_NESTED is missing"),
        ((1 | NLA_F_NESTED, &[0, 0, 9, 0]), EINVAL, "NLA_F_NESTED not expected"),
    ] {
        assert_eq!(vlan(&mut lab, NEW, PORT, 0, 8, &[more]), refused(errno, text), "{more:?}");
    }
    assert_eq!(shown(&mut lab, PORT), [1, 50]);
    let answers = ask(&mut lab, DEL, NLM_F_ACK, BRIDGE, |message| message.attribute(2, &[]));
    assert_eq!(error(&answers), refused(EINVAL, "bridge: Global vlan options support only set operation"));
    let answers = ask(&mut lab, NEW, NLM_F_ACK, PORT, |message| message.attribute(2, &[]));
    let text = "bridge: Global vlan options can only be set on bridge device";
    assert_eq!(error(&answers), refused(EINVAL, text));
}

/// `BRIDGE_VLAN_INFO_MASTER`: the bridge itself gets the VLAN of its port, and loses it with it.
#[test]
fn a_vlan_of_a_port_and_of_its_bridge() {
    let mut lab = lab();
    assert_eq!(vlan(&mut lab, NEW, PORT, 1, 9, &[]).0, 0);
    assert_eq!(vlan(&mut lab, NEW, BRIDGE, 1, 12, &[]).0, 0);
    assert_eq!((shown(&mut lab, PORT), shown(&mut lab, BRIDGE)), (vec![1, 9], vec![1, 9, 12]));
    assert_eq!(vlan(&mut lab, DEL, PORT, 1, 9, &[]).0, 0);
    assert_eq!((shown(&mut lab, PORT), shown(&mut lab, BRIDGE)), (vec![1], vec![1, 12]));
}

/// A link is looked at before the flags.
#[test]
fn questions_about_one_link() {
    let mut lab = lab();
    let mut errno = |index: u32, kind: u16, value: &[u8]| {
        let answers = ask(&mut lab, GET, NLM_F_DUMP, index, |message| {
            if !value.is_empty() {
                message.attribute(kind, value);
            }
        });
        let last = messages(answers.last().unwrap()).last().unwrap();
        -i32::from_ne_bytes(*last.body().first_chunk().unwrap())
    };
    let global = 2u32.to_ne_bytes();
    assert_eq!((errno(PORT, 1, &[]), errno(PORT, 1, &global), errno(0, 1, &global)), (0, 0, 0));
    assert_eq!((errno(OTHER, 1, &[]), errno(OTHER, 1, &global)), (EINVAL, EINVAL));
    assert_eq!((errno(999, 1, &[]), errno(999, 1, &global)), (ENODEV, ENODEV));
    assert_eq!((errno(PORT, 2, &global), errno(PORT, 1, &[1])), (EINVAL, EINVAL));
}

/// Type and family of what members of `RTNLGRP_LINK` hear of `bridge vlan set vid 1 dev v1 neigh_suppress on`, and of
/// `RTM_NEWVLAN` and `RTM_DELVLAN`.
#[test]
fn what_is_heard() {
    let mut lab = lab();
    lab.router.join(&mut lab.client, libc::RTNLGRP_LINK).unwrap();
    lab.router.notifications().for_each(drop);
    let mut heard = |kind: u16, index: u32, flags: u16, id: u16, more: &[(u16, &[u8])]| {
        assert_eq!(vlan(&mut lab, kind, index, flags, id, more).0, 0);
        let told = lab.router.notifications();
        told.map(|told| (u16::from_ne_bytes([told.bytes[4], told.bytes[5]]), told.bytes[16]))
            .collect::<Vec<_>>()
    };
    assert_eq!(heard(NEW, PORT, 1 << 6, 1, &[(9, &[1])]), []);
    assert_eq!(heard(NEW, PORT, 0, 7, &[]), [(libc::RTM_SETLINK, 7)]);
    assert_eq!(heard(NEW, PORT, 0, 7, &[(9, &[1])]), []);
    assert_eq!(heard(NEW, BRIDGE, 0, 9, &[]), [(libc::RTM_SETLINK, 7)]);
    assert_eq!(heard(NEW, PORT, 1, 10, &[]), [(libc::RTM_SETLINK, 7)]);
    assert_eq!(heard(DEL, PORT, 0, 7, &[]), [(libc::RTM_DELLINK, 7)]);
}
