//! What Linux has no numbers for is refused, unless the router was started with `--experimental`.

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};
use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_netlink::seg6local::{Action, Counts, FLAVOR_PSP, FLAVOR_REPLACE_CSID, Flavors, Seg6Local};

use super::common::{Lab, up};

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_ENCAP_TYPE: u16 = 21;
const RTA_ENCAP: u16 = 22;
const SEG6_LOCAL: u16 = 7;
const SEG6_LOCAL_ACTION: u16 = 1;
const SEG6_LOCAL_OIF: u16 = 7;
const SEG6_LOCAL_FE2: u16 = 31;

/// A SID of an action, which has nothing else.
fn sid(action: Action) -> Seg6Local {
    Seg6Local {
        action,
        srh: None,
        table: None,
        nh4: None,
        nh6: None,
        oif: None,
        bpf: None,
        vrf_table: None,
        counted: false,
        flavors: None,
        fe2: None,
    }
}

/// The answer to a route with such an encapsulation: its errno, and all of it.
fn add(lab: &mut Lab, encap: impl FnOnce(&mut Reply<'_>)) -> (i32, Vec<u8>) {
    let mut datagram = Vec::new();
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    write_message(&mut datagram, libc::RTM_NEWROUTE, flags, Address::default(), |message| {
        message.fixed(&[libc::AF_INET6 as u8, 80, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]);
        message.attribute(RTA_DST, &[0x5f, 0, 0, 0xb, 0, 0xc, 0, 9, 0, 0x99, 0, 0, 0, 0, 0, 0]);
        message.u32(RTA_OIF, 2);
        message.u16(RTA_ENCAP_TYPE, SEG6_LOCAL);
        let nest = message.nest(RTA_ENCAP);
        encap(message);
        message.end(nest);
    })
    .unwrap();
    let answer = lab.raw(&datagram).concat();
    let errno = answer[16..20].first_chunk().copied().map(i32::from_ne_bytes).unwrap();
    (-errno, answer)
}

/// The same of a SID that has the REPLACE-CSID flavour.
fn replace_csid(lab: &mut Lab) -> (i32, Vec<u8>) {
    let flavors = Flavors { operations: FLAVOR_REPLACE_CSID | FLAVOR_PSP, block: 48, node_function: 32 };
    let sid = Seg6Local { flavors: Some(flavors), ..sid(Action::End) };
    add(lab, |message| sid.write(message, Counts::default()))
}

/// Whether a dump of routes shows these bytes.
fn shown(lab: &mut Lab, bytes: &[u8]) -> bool {
    let mut datagram = Vec::new();
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    write_message(&mut datagram, libc::RTM_GETROUTE, flags, Address::default(), |message| {
        message.fixed(&[libc::AF_INET6 as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    })
    .unwrap();
    lab.raw(&datagram).concat().windows(bytes.len()).any(|there| there == bytes)
}

#[test]
fn replace_csid_is_refused_unless_told() {
    let operations = (FLAVOR_REPLACE_CSID | FLAVOR_PSP).to_ne_bytes();
    let attribute = [&[8, 0, 1, 0][..], &operations].concat();
    let mut lab = Lab::new();
    lab.change(up(2), 0).unwrap();
    let (errno, answer) = replace_csid(&mut lab);
    assert_eq!(errno, libc::EOPNOTSUPP);
    assert!(String::from_utf8_lossy(&answer).contains("--experimental"), "{answer:?}");
    assert!(!shown(&mut lab, &attribute));
    lab.router.allow_experimental();
    assert_eq!(replace_csid(&mut lab).0, 0);
    assert!(shown(&mut lab, &attribute));
}

/// Linux 6.12 answers EINVAL without a text to an action that it does not have (`ip … action End.BM`: 14).
#[test]
fn dx2v_is_no_action_unless_told() {
    let dx2v = Seg6Local { oif: Some(2), counted: true, ..sid(Action::EndDX2V) };
    let of_dx2v = |lab: &mut Lab| add(lab, |message| dx2v.write(message, Counts::default()));
    // Its number and its device, in a dump.
    let attributes =
        [[8, 0, 1, 0], (1_u32 << 31 | 22).to_ne_bytes(), [8, 0, 7, 0], 2_u32.to_ne_bytes()].concat();
    let mut lab = Lab::new();
    lab.change(up(2), 0).unwrap();
    let unknown = |lab: &mut Lab, action: u32| {
        add(lab, |message| {
            message.u32(SEG6_LOCAL_ACTION, action);
            message.u32(SEG6_LOCAL_OIF, 2);
        })
    };
    let without_number = |(errno, mut answer): (i32, Vec<u8>)| {
        let at = answer.windows(4).position(|bytes| bytes == [8, 0, 1, 0]);
        at.map(|at| answer.drain(at + 4..at + 8));
        (errno, answer)
    };
    let as_unknown = without_number(unknown(&mut lab, 1 << 31 | 22));
    assert_eq!(as_unknown.0, libc::EINVAL);
    assert_eq!(as_unknown, without_number(unknown(&mut lab, 14)));
    assert_eq!(of_dx2v(&mut lab).0, libc::EINVAL);
    assert!(!shown(&mut lab, &attributes));
    lab.router.allow_experimental();
    // Without a device it is refused as End.DX2 is.
    let bare = sid(Action::EndDX2V);
    assert_eq!(add(&mut lab, |message| bare.write(message, Counts::default())).0, libc::EINVAL);
    assert_eq!(of_dx2v(&mut lab).0, 0);
    assert!(shown(&mut lab, &attributes));
    let saved = lab.router.save(&()).text();
    let line = "underpass sid replace 5f00:b:c:9:99::/80 End.DX2V --oif";
    assert!(saved.contains(line) && !saved.contains("action End.DX2V"), "{saved}");
    // Linux's numbers stay what they are: 17, which patches have claimed for it.
    for action in [14, 17, 22, 1 << 31, 1 << 31 | 21] {
        assert_eq!(unknown(&mut lab, action).0, libc::EINVAL, "{action}");
    }
}

/// Arg.FE2 of End.DT2M has to lie in the address behind the prefix, and has at most 64 bits.
#[test]
fn arg_fe2_lies_in_the_sid() {
    let mut lab = Lab::new();
    lab.router.allow_experimental();
    lab.change(up(2), 0).unwrap();
    lab.make("srl0", "srv6l2", 20, &[]);
    lab.change(up(20), 0).unwrap();
    let (bits, place) = ("Arg.FE2 has 1 to 64 bits", "Arg.FE2 has to begin where the prefix");
    for (link, argument, expected) in [
        (2, [80, 2, 8], Some("has to be an srv6l2 device")),
        (20, [64, 2, 8], Some(place)),
        (20, [81, 2, 8], Some(place)),
        (20, [127, 1, 1], Some(place)),
        (20, [80, 4, 13], Some(bits)),
        (20, [120, 1, 9], Some(bits)),
        (20, [80, 0, 8], Some(bits)),
        (20, [80, 1, 17], Some(bits)),
        (20, [80, 1, 0], Some(bits)),
        (20, [0, 5, 16], Some(bits)),
        (20, [80, 3, 16], None),
    ] {
        let (errno, answer) = add(&mut lab, |message| {
            message.u32(SEG6_LOCAL_ACTION, 1 << 31 | 24);
            message.u32(SEG6_LOCAL_OIF, link);
            message.attribute(SEG6_LOCAL_FE2, &argument);
        });
        assert_eq!(errno, if expected.is_some() { libc::EINVAL } else { 0 }, "{argument:?}");
        let text = expected.unwrap_or_default();
        assert!(String::from_utf8_lossy(&answer).contains(text), "{argument:?}: {answer:?}");
    }
}
