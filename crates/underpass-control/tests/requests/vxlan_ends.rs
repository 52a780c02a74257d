//! Other ends of VXLANs, which have numbers that are never given back.

use libc::{EEXIST, ENOENT, NTF_SELF, NUD_REACHABLE, RTM_NEWNEIGH};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST};
use underpass_netlink::reply::{Address, write_message};

use super::common::Lab;

const DEVICE: u32 = 9;
/// More than there are numbers.
const MANY: u32 = 16_384;

/// `bridge fdb … 02:00:00:00:05:LAST dev x0 dst 10.…`; the errno.
fn station(lab: &mut Lab, flags: u16, last: u8, end: u32) -> i32 {
    let mut datagram = Vec::new();
    write_message(
        &mut datagram,
        RTM_NEWNEIGH,
        flags | NLM_F_REQUEST | NLM_F_ACK,
        Address::default(),
        |message| {
            let [low, high] = NUD_REACHABLE.to_ne_bytes();
            message.fixed(&[libc::AF_BRIDGE as u8, 0, 0, 0, DEVICE as u8, 0, 0, 0, low, high, NTF_SELF, 0]);
            message.attribute(libc::NDA_LLADDR, &[2, 0, 0, 0, 5, last]);
            message.attribute(libc::NDA_DST, &(0x0a00_0000 + end).to_be_bytes());
        },
    )
    .unwrap();
    -i32::from_ne_bytes(*lab.raw(&datagram)[0][16..].first_chunk().unwrap())
}

/// `ip link add x0 type vxlan id 5`: requests for more ends than there are numbers are refused, and one more is not.
#[test]
fn a_refusal_takes_no_number() {
    let mut lab = Lab::new();
    lab.make("x0", "vxlan", DEVICE, &5u32.to_ne_bytes());
    assert_eq!(station(&mut lab, NLM_F_CREATE, 1, 1), 0);
    for end in 2..MANY {
        assert_eq!(station(&mut lab, NLM_F_REPLACE, 2, end), ENOENT);
    }
    for end in MANY..2 * MANY {
        assert_eq!(station(&mut lab, NLM_F_CREATE | NLM_F_EXCL, 1, end), EEXIST);
    }
    // What is there stays behind its end.
    for end in 2 * MANY..3 * MANY {
        assert_eq!(station(&mut lab, NLM_F_CREATE, 1, end), 0);
    }
    assert_eq!(station(&mut lab, NLM_F_CREATE, 3, 3 * MANY), 0);
}
