//! How a packet leaves: is it short enough, whose addresses are before it.

use underpass_engine::drops::DropReason;
use underpass_engine::in_kernel::records::MissCause;

use super::emit::{
    ETHERNET, Emit, Hook, SKB_ADJUST_ROOM, SKB_CHANGE_TAIL, XDP_ADJUST_HEAD, XDP_ADJUST_TAIL, sk_buff, stack,
};
use super::input::{ip4, ip6};
use crate::xdp::assembler::{Do, R0, R1, R2, R3, R4, R5, R6, R7, R9, R10, Size, When};

/// A next hop's record: the longest packet, the MAC addresses.
pub(super) const LONGEST: i16 = 8;
const MACS: i16 = 12;

/// Flags of `bpf_skb_adjust_room`, from include/uapi/linux/bpf.h.
pub(super) mod room {
    /// Behind the Ethernet header: `BPF_ADJ_ROOM_MAC`.
    pub(in super::super) const MAC: i32 = 1;
    /// The parts of a large segment stay as long as they are.
    pub(in super::super) const FIXED_GSO: i32 = 1;
    pub(in super::super) const ENCAP_L3_IPV6: i32 = 1 << 2;
    pub(in super::super) const DECAP_L3_IPV4: i32 = 1 << 7;
    pub(in super::super) const DECAP_L3_IPV6: i32 = 1 << 8;
}

impl Emit {
    /// Jumps if the packet at `at` in the frame is longer than the next hop in R9 takes, with `more` bytes before it; of a
    /// large segment, its parts. R0 is the length. Changes R1 to R5.
    pub(super) fn fits(&mut self, at: i16, more: i32) {
        self.p.set(R2, at.into());
        self.fits_from(more);
    }

    /// The same with `at` in R2.
    pub(super) fn fits_from(&mut self, more: i32) {
        self.part_from();
        let too_long = self.because(MissCause::TooLong);
        let p = &mut self.p;
        p.add(R0, more);
        p.load(Size::Word, R1, R9, LONGEST);
        p.jump_if_register(R0, When::Greater, R1, too_long);
    }

    /// R0 becomes the length of the packet that begins in the frame where R2 says; of a large segment, that of its parts.
    pub(super) fn part_from(&mut self) {
        let segment = self.because(MissCause::Segment);
        let p = &mut self.p;
        let (plain, known) = (p.label(), p.label());
        // No large segments come by a driver.
        if self.hook == Hook::Tcx {
            p.load(Size::Word, R1, R6, sk_buff::GSO_SIZE);
            p.jump_if(R1, When::Equal, 0, plain);
            p.copy(R1, R6);
            p.call_here(self.part);
            p.jump_if(R0, When::Equal, 0, segment);
            p.jump(known);
        }
        p.here(plain);
        p.load(Size::Double, R0, R10, stack::LENGTH);
        p.add(R0, ETHERNET.into());
        p.compute_with(R0, Do::Subtract, R2);
        p.here(known);
    }

    /// Cuts off what is behind the packet in its frame.
    pub(super) fn trim(&mut self) {
        let broken = self.because(MissCause::Room);
        let p = &mut self.p;
        let whole = p.label();
        p.load(Size::Double, R2, R10, stack::LENGTH);
        p.add(R2, ETHERNET.into());
        p.load(Size::Double, R3, R10, stack::RECEIVED);
        p.jump_if_register(R2, When::Equal, R3, whole);
        p.copy(R1, R6);
        if self.hook == Hook::Tcx {
            p.set(R3, 0);
            p.call(SKB_CHANGE_TAIL);
        } else {
            p.compute_with(R2, Do::Subtract, R3);
            p.call(XDP_ADJUST_TAIL);
        }
        p.jump_if(R0, When::NotEqual, 0, broken);
        p.here(whole);
    }

    /// Takes the headers between that of the frame and R2, which is where the packet inside begins, out of the frame.
    /// `flags` besides, in R4. The EtherType is then to be written.
    pub(super) fn take_out(&mut self) {
        let broken = self.because(MissCause::Room);
        self.p.negate(R2);
        self.p.add(R2, ETHERNET.into());
        self.make_room();
        self.p.jump_if(R0, When::NotEqual, 0, broken);
    }

    /// Makes room for as many bytes as R2 says behind the header of the frame, or takes out as many if that is negative; R4
    /// says besides what they are, as [`room`] has it. R0 is 0 if that was done. The frame's header is to be written anew.
    pub(super) fn make_room(&mut self) {
        let p = &mut self.p;
        p.copy(R1, R6);
        match self.hook {
            Hook::Tcx => {
                p.set(R3, room::MAC);
                p.compute(R4, Do::Or, room::FIXED_GSO);
                p.call(SKB_ADJUST_ROOM);
            }
            Hook::Xdp => {
                p.negate(R2);
                p.call(XDP_ADJUST_HEAD);
            }
        }
    }

    /// Has R7 lead to the frame, of which there are at least so many bytes: that was looked at before.
    pub(super) fn reach_for_sure(&mut self, bytes: i32) {
        let (there, gone) = (self.p.label(), self.p.label());
        self.reach(bytes, gone);
        self.p.jump(there);
        self.p.here(gone);
        self.drop(DropReason::NoHeadroom);
        self.p.here(there);
    }

    /// Takes 1 from the hop limit of the IPv6 header at `at`, to which R7 then leads.
    pub(super) fn lower6(&mut self, at: i16) {
        self.reach_for_sure((at + ip6::LEN).into());
        self.lower6_here(at);
    }

    /// The same of that at `at` behind what R7 leads to.
    pub(super) fn lower6_here(&mut self, at: i16) {
        let p = &mut self.p;
        p.load(Size::Byte, R1, R7, at + ip6::HOPS);
        p.add(R1, -1);
        p.store(Size::Byte, R7, at + ip6::HOPS, R1);
    }

    /// Takes 1 from the TTL of the IPv4 header at `at`: RFC 1624.
    pub(super) fn lower4(&mut self, at: i16) {
        self.reach_for_sure((at + ip4::LEN).into());
        self.lower4_here(at);
    }

    /// The same of that at `at` behind what R7 leads to.
    pub(super) fn lower4_here(&mut self, at: i16) {
        let p = &mut self.p;
        p.load(Size::Byte, R1, R7, at + ip4::TTL);
        p.add(R1, -1);
        p.store(Size::Byte, R7, at + ip4::TTL, R1);
        p.load(Size::Half, R1, R7, at + ip4::CHECKSUM);
        p.add(R1, i32::from(0x0100_u16.to_be()));
        // All ones are 0 too, and written so.
        p.copy(R2, R1);
        p.add(R2, 1);
        p.compute(R2, Do::ShiftRight, 16);
        p.compute_with(R1, Do::Add, R2);
        p.store(Size::Half, R7, at + ip4::CHECKSUM, R1);
    }

    /// Writes the addresses of the next hop in R9 before the frame, to which R7 leads, and sends it.
    pub(super) fn finish(&mut self) {
        let p = &mut self.p;
        p.load(Size::Word, R1, R9, MACS);
        p.store(Size::Word, R7, 0, R1);
        p.load(Size::Double, R1, R9, MACS + 4);
        p.store(Size::Double, R7, 4, R1);
        self.send();
    }

    /// Copies bytes, as many as R4 says, which is a multiple of what is copied at once, from what R5 leads to in the arena to the frame from `to` on; R7 leads to
    /// the frame, and changes. At most `most` bytes.
    pub(super) fn copy_in(&mut self, to: i32, most: usize, size: Size) {
        let step = if matches!(size, Size::Word) { 4 } else { 8 };
        let (done, gone) = (self.p.label(), self.p.label());
        let p = &mut self.p;
        p.load(Size::Word, R7, R6, self.context.data);
        p.add(R7, to);
        for _ in 0..most / step as usize {
            p.jump_if(R4, When::Equal, 0, done);
            p.add(R4, -step);
            p.load(Size::Word, R2, R6, self.context.data_end);
            p.copy(R3, R7);
            p.add(R3, step);
            p.jump_if_register(R3, When::Greater, R2, gone);
            p.load(size, R1, R5, 0);
            p.store(size, R7, 0, R1);
            p.add(R7, step);
            p.add(R5, step);
        }
        p.jump_if(R4, When::Equal, 0, done);
        p.here(gone);
        self.drop(DropReason::NoHeadroom);
        self.p.here(done);
    }
}
