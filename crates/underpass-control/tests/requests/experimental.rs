//! What Linux has no numbers for is refused, unless the router was started with `--experimental`.

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::seg6local::{Action, Counts, FLAVOR_PSP, FLAVOR_REPLACE_CSID, Flavors, Seg6Local};

use super::common::{Lab, up};

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_ENCAP_TYPE: u16 = 21;
const RTA_ENCAP: u16 = 22;
const SEG6_LOCAL: u16 = 7;

/// The answer to a route with a SID that has the REPLACE-CSID flavour: its errno, and all of it.
fn replace_csid(lab: &mut Lab) -> (i32, Vec<u8>) {
    let flavors = Flavors { operations: FLAVOR_REPLACE_CSID | FLAVOR_PSP, block: 48, node_function: 32 };
    let sid = Seg6Local {
        action: Action::End,
        srh: None,
        table: None,
        nh4: None,
        nh6: None,
        oif: None,
        bpf: None,
        vrf_table: None,
        counted: false,
        flavors: Some(flavors),
    };
    let mut datagram = Vec::new();
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    write_message(&mut datagram, libc::RTM_NEWROUTE, flags, Address::default(), |message| {
        message.fixed(&[libc::AF_INET6 as u8, 80, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]);
        message.attribute(RTA_DST, &[0x5f, 0, 0, 0xb, 0, 0xc, 0, 9, 0, 0x99, 0, 0, 0, 0, 0, 0]);
        message.u32(RTA_OIF, 2);
        message.u16(RTA_ENCAP_TYPE, SEG6_LOCAL);
        let nest = message.nest(RTA_ENCAP);
        sid.write(message, Counts::default());
        message.end(nest);
    })
    .unwrap();
    let answer = lab.raw(&datagram).concat();
    let errno = answer[16..20].first_chunk().copied().map(i32::from_ne_bytes).unwrap();
    (-errno, answer)
}

/// The flavours as a dump shows them, if they are there.
fn shown(lab: &mut Lab) -> bool {
    let mut datagram = Vec::new();
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    write_message(&mut datagram, libc::RTM_GETROUTE, flags, Address::default(), |message| {
        message.fixed(&[libc::AF_INET6 as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    })
    .unwrap();
    let operations = (FLAVOR_REPLACE_CSID | FLAVOR_PSP).to_ne_bytes();
    let attribute = [&[8, 0, 1, 0][..], &operations].concat();
    lab.raw(&datagram).concat().windows(8).any(|bytes| bytes == attribute)
}

#[test]
fn replace_csid_is_refused_unless_told() {
    let mut lab = Lab::new();
    lab.change(up(2), 0).unwrap();
    let (errno, answer) = replace_csid(&mut lab);
    assert_eq!(errno, libc::EOPNOTSUPP);
    assert!(String::from_utf8_lossy(&answer).contains("--experimental"), "{answer:?}");
    assert!(!shown(&mut lab));
    lab.router.allow_experimental();
    assert_eq!(replace_csid(&mut lab).0, 0);
    assert!(shown(&mut lab));
}
