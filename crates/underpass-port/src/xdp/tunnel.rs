//! The program through which segments inside a tunnel leave whole, and long frames with a tag beside them.
//!
//! An AF_PACKET socket cannot say that a segment is inside a tunnel, and the kernel drops one that it finds there
//! unannounced. This program takes the outer headers off and puts them on again, which announces them: the segment is
//! then what the kernel's own tunnels send, and whoever has to cut it can.
//!
//! Nor can the socket give the kernel a VLAN tag but in the frame, whose length the kernel checks; the outer tag of a VLAN
//! device of Linux is beside it and does not count. This program puts it there.
//!
//! It runs where packets leave the device and concerns itself with those that [`mark`] and [`mark_of_tag`] mark, which
//! only our own socket does.

use std::io;
use std::os::fd::OwnedFd;

use underpass_engine::offload::{Over, Tunnel};
use underpass_packet::ethernet;

use super::assembler::{Program, R0, R1, R2, R3, R4, R5, R6, R7, R8, R10, Size, When};
use super::bpf::{self, ProgramKind};

/// Helpers, from include/uapi/linux/bpf.h.
const SKB_STORE_BYTES: i32 = 9;
const SKB_VLAN_PUSH: i32 = 18;
const SKB_LOAD_BYTES: i32 = 26;
const SKB_ADJUST_ROOM: i32 = 50;

/// Arguments of `bpf_skb_adjust_room`.
const ROOM_BEHIND_MAC: i32 = 1;
const FIXED_GSO: i32 = 1;
const ENCAP_L3_IPV4: i32 = 1 << 1;
const ENCAP_L3_IPV6: i32 = 1 << 2;
const ENCAP_L4_GRE: i32 = 1 << 3;
const ENCAP_L4_UDP: i32 = 1 << 4;
const DECAP_L3_IPV4: i32 = 1 << 7;
const DECAP_L3_IPV6: i32 = 1 << 8;

/// `struct __sk_buff`.
const MARK: i16 = 8;

const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;

/// The mark: this, four bits, and the length of the outer headers.
const OURS: i32 = 0x7550;
const INNER_IP4: i32 = 1 << 14;
const OUTER_IP4: i32 = 1 << 15;
const OVER_UDP: i32 = 1 << 13;
const OVER_GRE: i32 = 1 << 12;
const LENGTH: i32 = (1 << 12) - 1;

/// The mark of a tag: this, two bits, and its control information. The bits say that it is one of 802.1ad, and that the
/// frame's own tag is: the socket, which lets only one of 802.1Q come on top of the MTU, is told that it is such a one.
const TAG: i32 = 0x7560;
const SERVICE: i32 = 1 << 16;
const INNER_SERVICE: i32 = 1 << 17;
const TAG_BITS: i32 = 3;

/// Longest outer headers: the stack of a program has 512 bytes.
const LONGEST: i32 = 480;

/// The mark of a segment with this tunnel; `None` if the headers are too long.
pub(crate) fn mark(tunnel: Tunnel) -> Option<u32> {
    let length = i32::try_from(tunnel.len).ok().filter(|length| *length <= LONGEST)?;
    let inner = if tunnel.inner_is_ip4 { INNER_IP4 } else { 0 };
    let outer = if tunnel.outer_is_ip4 { OUTER_IP4 } else { 0 };
    let over = match tunnel.over {
        Over::Ip => 0,
        Over::Udp => OVER_UDP,
        Over::Gre => OVER_GRE,
    };
    Some((OURS << 16 | inner | outer | over | length).cast_unsigned())
}

/// The mark of a frame that is to get this tag, of EtherType and control information, and whose own tag, for which the
/// frame says 802.1Q, is to become one of 802.1ad, if `inner_is_service`.
pub(crate) fn mark_of_tag([ethertype, control]: [u16; 2], inner_is_service: bool) -> u32 {
    let outer = if ethertype == ethernet::SERVICE_VLAN { SERVICE } else { 0 };
    let inner = if inner_is_service { INNER_SERVICE } else { 0 };
    (TAG << 16 | outer | inner).cast_unsigned() | u32::from(control)
}

/// Loads the program.
pub(crate) fn load() -> io::Result<OwnedFd> {
    const BEHIND_MAC: i32 = ethernet::Header::LEN as i32;
    const HEADERS: i32 = -LONGEST;
    /// Where it is in a frame, and on the stack.
    const ETHERTYPE_AT: i32 = BEHIND_MAC - 2;
    const ETHERTYPE: i16 = -8;
    let mut program = Program::default();
    let (other, drop) = (program.label(), program.label());
    program.copy(R6, R1);
    program.load(Size::Word, R7, R6, MARK);
    program.copy(R2, R7);
    program.shift_right(R2, 16);
    let tag = program.label();
    program.copy(R3, R2);
    program.and(R3, !TAG_BITS);
    program.jump_if(R3, When::Equal, TAG, tag);
    program.jump_if(R2, When::NotEqual, OURS, other);
    program.set(R2, 0);
    program.store(Size::Word, R6, MARK, R2);
    program.copy(R8, R7);
    program.and(R8, LENGTH);
    program.jump_if(R8, When::Equal, 0, drop);
    program.jump_if(R8, When::Greater, LONGEST, drop);

    // The headers, aside.
    program.copy(R1, R6);
    program.set(R2, BEHIND_MAC);
    program.copy(R3, R10);
    program.add(R3, HEADERS);
    program.copy(R4, R8);
    program.call(SKB_LOAD_BYTES);
    program.jump_if(R0, When::NotEqual, 0, drop);

    // Off: what is below is IPv4 or IPv6.
    let inner_is_ip4 = program.label();
    program.set(R4, FIXED_GSO | DECAP_L3_IPV4);
    program.jump_if(R7, When::Bits, INNER_IP4, inner_is_ip4);
    program.set(R4, FIXED_GSO | DECAP_L3_IPV6);
    program.here(inner_is_ip4);
    program.copy(R1, R6);
    program.copy(R2, R8);
    program.negate(R2);
    program.set(R3, ROOM_BEHIND_MAC);
    program.call(SKB_ADJUST_ROOM);
    program.jump_if(R0, When::NotEqual, 0, drop);

    // And on again, as a tunnel.
    let outer_is_ip4 = program.label();
    program.set(R4, FIXED_GSO | ENCAP_L3_IPV4);
    program.jump_if(R7, When::Bits, OUTER_IP4, outer_is_ip4);
    program.set(R4, FIXED_GSO | ENCAP_L3_IPV6);
    program.here(outer_is_ip4);
    let (over_udp, over_gre, over_ip) = (program.label(), program.label(), program.label());
    program.jump_if(R7, When::Bits, OVER_UDP, over_udp);
    program.jump_if(R7, When::Bits, OVER_GRE, over_gre);
    program.jump(over_ip);
    program.here(over_udp);
    program.add(R4, ENCAP_L4_UDP);
    program.jump(over_ip);
    program.here(over_gre);
    program.add(R4, ENCAP_L4_GRE);
    program.here(over_ip);
    program.copy(R1, R6);
    program.copy(R2, R8);
    program.set(R3, ROOM_BEHIND_MAC);
    program.call(SKB_ADJUST_ROOM);
    program.jump_if(R0, When::NotEqual, 0, drop);

    program.copy(R1, R6);
    program.set(R2, BEHIND_MAC);
    program.copy(R3, R10);
    program.add(R3, HEADERS);
    program.copy(R4, R8);
    program.set(R5, 0);
    program.call(SKB_STORE_BYTES);
    program.jump_if(R0, When::NotEqual, 0, drop);
    program.here(other);
    program.set(R0, TCX_NEXT);
    program.exit();

    // A tag beside the frame.
    let (inner_is_right, put) = (program.label(), program.label());
    program.here(tag);
    program.set(R3, 0);
    program.store(Size::Word, R6, MARK, R3);
    program.copy(R8, R7);
    program.and(R8, INNER_SERVICE);
    program.jump_if(R8, When::Equal, 0, inner_is_right);
    program.set(R3, i32::from(ethernet::SERVICE_VLAN.to_be()));
    program.store(Size::Half, R10, ETHERTYPE, R3);
    program.copy(R1, R6);
    program.set(R2, ETHERTYPE_AT);
    program.copy(R3, R10);
    program.add(R3, ETHERTYPE.into());
    program.set(R4, size_of::<u16>() as i32);
    program.set(R5, 0);
    program.call(SKB_STORE_BYTES);
    program.jump_if(R0, When::NotEqual, 0, drop);
    program.here(inner_is_right);
    program.set(R2, i32::from(ethernet::SERVICE_VLAN.to_be()));
    program.jump_if(R7, When::Bits, SERVICE, put);
    program.set(R2, i32::from(ethernet::VLAN.to_be()));
    program.here(put);
    program.copy(R1, R6);
    program.copy(R3, R7);
    program.and(R3, 0xffff);
    program.call(SKB_VLAN_PUSH);
    program.jump_if(R0, When::Equal, 0, other);
    program.here(drop);
    program.set(R0, TCX_DROP);
    program.exit();
    bpf::load(ProgramKind::Classifier, "underpass_gso", &program.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_the_program() {
        if let Err(error) = load() {
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
            eprintln!("SKIPPED the_kernel_takes_the_program: needs the right to load BPF programs");
        }
    }

    #[test]
    fn marks() {
        let tunnel =
            Tunnel { len: 80, outer_is_ip4: false, inner_is_ip4: true, over: Over::Ip, summed: false };
        assert_eq!(mark(tunnel), Some(0x7550_4050));
        assert_eq!(mark(Tunnel { over: Over::Udp, ..tunnel }), Some(0x7550_6050));
        assert_eq!(mark(Tunnel { len: 481, ..tunnel }), None);
        assert_eq!(mark_of_tag([0x8100, 0xe00a], false), 0x7560_e00a);
        assert_eq!(mark_of_tag([0x88a8, 100], false), 0x7561_0064);
        assert_eq!(mark_of_tag([0x88a8, 100], true), 0x7563_0064);
    }
}
