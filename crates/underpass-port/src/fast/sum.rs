//! Checksums of UDP outside: of datagrams that come, and of those that leave.

use underpass_engine::drops::DropReason;
use underpass_engine::in_kernel::records::MissCause;
use underpass_packet::protocol;

use super::decap::udp;
use super::emit::{CSUM_DIFF, ETHERNET, Emit, Hook, SKB_LOAD_BYTES, XDP_LOAD_BYTES, sk_buff, stack};
use super::input::{ip4, ip6};
use crate::xdp::assembler::{
    Do, Label, Program, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Register, Size, When,
};

/// Bytes that are summed at once.
const CHUNK: i16 = 64;
/// The longest datagram that programs sum.
const MOST: i32 = 9216;
/// What [`Emit::function_sum`] says of what it cannot read; sums are less.
const NONE: i32 = 1 << 16;
/// Where the checksum is in a header of TCP.
const TCP_CHECKSUM: i16 = 16;
/// The protocol of UDP in a pseudo header, as the machine reads it.
const UDP: i32 = (protocol::UDP as u16).to_be() as i32;

impl Emit {
    /// `R0 = sum(R1: context, R2: where in the frame, R3: how many bytes)`: their sum of 16 bits, RFC 1071, as they lie.
    pub(super) fn function_sum(&mut self) {
        const BYTES: i16 = -CHUNK;
        self.p.function(self.sum, "sum", None);
        let load = if self.hook == Hook::Tcx { SKB_LOAD_BYTES } else { XDP_LOAD_BYTES };
        let p = &mut self.p;
        let [again, tail, done, none] = std::array::from_fn(|_| p.label());
        p.copy(R6, R1);
        p.copy(R7, R2);
        p.copy(R8, R3);
        p.set(R9, 0);
        p.jump_if(R8, When::Greater, MOST, none);
        p.here(again);
        p.jump_if(R8, When::Less, CHUNK.into(), tail);
        p.set(R4, CHUNK.into());
        add_chunk(p, BYTES, load, none);
        p.add(R7, CHUNK.into());
        p.add(R8, -i32::from(CHUNK));
        p.jump(again);
        p.here(tail);
        p.jump_if(R8, When::Equal, 0, done);
        p.set(R1, 0);
        for word in (0..CHUNK).step_by(8) {
            p.store(Size::Double, R10, BYTES + word, R1);
        }
        p.copy(R4, R8);
        add_chunk(p, BYTES, load, none);
        p.here(done);
        fold(p, R9, R1);
        p.copy(R0, R9);
        p.exit();
        p.here(none);
        p.set(R0, NONE);
        p.exit();
    }

    /// R0 becomes the sum of the datagram in the frame that begins where R2 says, with its pseudo header; jumps if it is
    /// not known. Of its addresses R7 then leads to the frame. Changes R1 to R5.
    fn sum_datagram(&mut self, over6: bool, none: Label) {
        let p = &mut self.p;
        p.load(Size::Double, R3, R10, stack::SUMMED);
        p.store(Size::Double, R10, stack::HIGH, R3);
        p.copy(R1, R6);
        p.call_here(self.sum);
        self.p.jump_if(R0, When::GreaterOrEqual, NONE, none);
        self.reach((ETHERNET + if over6 { ip6::LEN } else { ip4::LEN }).into(), none);
        let p = &mut self.p;
        add_addresses(p, over6, R0, R1);
        p.add(R0, UDP);
        p.load(Size::Double, R1, R10, stack::HIGH);
        p.swap(R1, 16);
        p.compute_with(R0, Do::Add, R1);
        fold(p, R0, R1);
    }

    /// Jumps if the checksum of the datagram that is noted in the frame is not right, or not known here: it may be one that
    /// a device is still to fill in.
    pub(super) fn check_datagram(&mut self, over6: bool, otherwise: Label) {
        if self.hook == Hook::Tcx {
            self.p.load(Size::Word, R1, R6, sk_buff::GSO_SIZE);
            self.p.jump_if(R1, When::NotEqual, 0, otherwise);
        }
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::AT);
        p.load(Size::Double, R3, R10, stack::LENGTH);
        p.add(R3, ETHERNET.into());
        p.compute_with(R3, Do::Subtract, R2);
        p.store(Size::Double, R10, stack::SUMMED, R3);
        self.sum_datagram(over6, otherwise);
        let p = &mut self.p;
        p.jump_if(R0, When::NotEqual, 0xffff, otherwise);
        // That of the pseudo header alone is one that is not finished.
        p.set(R0, 0);
        add_addresses(p, over6, R0, R1);
        p.add(R0, UDP);
        p.load(Size::Double, R1, R10, stack::HIGH);
        p.swap(R1, 16);
        p.compute_with(R0, Do::Add, R1);
        p.load(Size::Double, R2, R10, stack::AT);
        self.reach_inside(udp::LEN.into(), otherwise);
        self.is_finished(udp::CHECKSUM, otherwise);
    }

    /// Jumps if the checksum at `at` behind R7 is that of the pseudo header, whose sum is in R0. Changes R0 and R1.
    fn is_finished(&mut self, at: i16, otherwise: Label) {
        let p = &mut self.p;
        p.load(Size::Half, R1, R7, at);
        p.compute(R1, Do::Xor, 0xffff);
        p.compute_with(R0, Do::Add, R1);
        fold(p, R0, R1);
        p.jump_if(R0, When::Equal, 0xffff, otherwise);
    }

    /// Jumps if the packet in the frame, to which R7 leads, may have a checksum that is not finished, stands for several, or
    /// is too long to be summed behind as many bytes as are noted.
    pub(super) fn may_be_summed(&mut self, inside6: bool, otherwise: Label) {
        let too_long = self.because(MissCause::TooLong);
        let [tcp, udp, finished] = std::array::from_fn(|_| self.p.label());
        if self.hook == Hook::Tcx {
            let segment = self.because(MissCause::Segment);
            self.p.load(Size::Word, R1, R6, sk_buff::GSO_SIZE);
            self.p.jump_if(R1, When::NotEqual, 0, segment);
        }
        let p = &mut self.p;
        p.load(Size::Double, R4, R10, stack::LENGTH);
        p.load(Size::Double, R1, R10, stack::AT);
        p.compute_with(R1, Do::Add, R4);
        p.jump_if(R1, When::Greater, MOST, too_long);
        let (header, icmp) = if inside6 {
            p.load(Size::Byte, R5, R7, ETHERNET + ip6::NEXT);
            (ip6::LEN, protocol::ICMPV6)
        } else {
            p.load(Size::Half, R1, R7, ETHERNET + ip4::FRAGMENT);
            p.compute(R1, Do::And, 0x3fff_u16.to_be().into());
            p.jump_if(R1, When::NotEqual, 0, otherwise);
            p.load(Size::Byte, R5, R7, ETHERNET + ip4::PROTOCOL);
            (ip4::LEN, protocol::ICMP)
        };
        // What follows it, and its length: as in a pseudo header.
        p.set(R0, 0);
        add_addresses(p, inside6, R0, R1);
        p.copy(R1, R5);
        p.swap(R1, 16);
        p.compute_with(R0, Do::Add, R1);
        p.add(R4, -i32::from(header));
        p.swap(R4, 16);
        p.compute_with(R0, Do::Add, R4);
        p.jump_if(R5, When::Equal, protocol::TCP.into(), tcp);
        p.jump_if(R5, When::Equal, protocol::UDP.into(), udp);
        p.jump_if(R5, When::NotEqual, icmp.into(), otherwise);
        p.jump(finished);
        for (label, at) in [(tcp, TCP_CHECKSUM), (udp, udp::CHECKSUM)] {
            let at = ETHERNET + header + at;
            self.p.here(label);
            self.reach_again((at + 2).into(), otherwise);
            self.is_finished(at, otherwise);
            self.p.jump(finished);
        }
        self.p.here(finished);
    }

    /// Writes the checksum of the UDP header in the frame that begins where R2 says, and has so many bytes behind it as R3
    /// says with its own.
    pub(super) fn write_sum(&mut self, over6: bool) {
        let (gone, there) = (self.p.label(), self.p.label());
        let p = &mut self.p;
        p.store(Size::Double, R10, stack::MODE, R2);
        p.store(Size::Double, R10, stack::SUMMED, R3);
        self.sum_datagram(over6, gone);
        let p = &mut self.p;
        let some = p.label();
        p.compute(R0, Do::Xor, 0xffff);
        // RFC 768: 0 is no checksum.
        p.jump_if(R0, When::NotEqual, 0, some);
        p.set(R0, 0xffff);
        p.here(some);
        p.load(Size::Double, R2, R10, stack::MODE);
        self.reach_inside(udp::LEN.into(), gone);
        self.p.store(Size::Half, R7, udp::CHECKSUM, R0);
        self.p.jump(there);
        self.p.here(gone);
        self.drop(DropReason::NoHeadroom);
        self.p.here(there);
    }
}

/// Adds as many bytes of the frame as R4 says, from R7 on, to R9. Those behind them in the chunk count too.
fn add_chunk(p: &mut Program, to: i16, load: i32, none: Label) {
    p.copy(R1, R6);
    p.copy(R2, R7);
    p.copy(R3, R10);
    p.add(R3, to.into());
    p.call(load);
    p.jump_if(R0, When::NotEqual, 0, none);
    p.set(R1, 0);
    p.set(R2, 0);
    p.copy(R3, R10);
    p.add(R3, to.into());
    p.set(R4, CHUNK.into());
    p.set(R5, 0);
    p.call(CSUM_DIFF);
    p.lower(R0);
    p.compute_with(R9, Do::Add, R0);
}

/// Adds the addresses of the IP header in the frame, to which R7 leads, to `sum`. Changes `other`.
fn add_addresses(p: &mut Program, six: bool, sum: Register, other: Register) {
    let (from, to) = if six { (ip6::SOURCE, ip6::LEN) } else { (ip4::SOURCE, ip4::LEN) };
    for word in (from..to).step_by(4) {
        p.load(Size::Word, other, R7, ETHERNET + word);
        p.compute_with(sum, Do::Add, other);
    }
}

/// Folds a sum to 16 bits. Changes `other`.
pub(super) fn fold(p: &mut Program, sum: Register, other: Register) {
    p.copy(other, sum);
    p.compute(other, Do::ShiftRight, 32);
    p.lower(sum);
    p.compute_with(sum, Do::Add, other);
    for _ in 0..3 {
        p.copy(other, sum);
        p.compute(other, Do::ShiftRight, 16);
        p.compute(sum, Do::And, 0xffff);
        p.compute_with(sum, Do::Add, other);
    }
}
