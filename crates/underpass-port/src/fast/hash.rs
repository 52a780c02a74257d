//! Hashes of the engine's: of flows, by which outer headers differ, and of what tunnels are found by.

use underpass_packet::protocol;

use super::emit::{ETHERNET, Emit, stack};
use super::input::{ip4, ip6};
use crate::xdp::assembler::{Do, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Size, When};

/// Numbers of the engine's hashes.
pub(super) const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
pub(super) const SECOND: u64 = 0xd6e8_feb8_6659_fd93;
const THIRD: u64 = 0x2545_f491_4f6c_dd1d;

impl Emit {
    /// `R0 = fold(R1, R2)`: the product, its upper half and its lower.
    pub(super) fn function_fold(&mut self) {
        self.p.function(self.fold, "fold", Some(2));
        let p = &mut self.p;
        // R3, R4: the upper and the lower half of one; R5, R1: those of the other.
        p.copy(R0, R1);
        p.compute_with(R0, Do::Multiply, R2);
        p.copy(R6, R0);
        for (upper, lower, of) in [(R3, R4, R1), (R5, R7, R2)] {
            p.copy(upper, of);
            p.compute(upper, Do::ShiftRight, 32);
            p.copy(lower, of);
            p.lower(lower);
        }
        // Lower by lower: what it carries. Then both crosses, and upper by upper.
        p.copy(R8, R4);
        p.compute_with(R8, Do::Multiply, R7);
        p.compute(R8, Do::ShiftRight, 32);
        p.copy(R9, R3);
        p.compute_with(R9, Do::Multiply, R5);
        for (one, other) in [(R4, R5), (R3, R7)] {
            p.copy(R0, one);
            p.compute_with(R0, Do::Multiply, other);
            p.copy(R1, R0);
            p.compute(R1, Do::ShiftRight, 32);
            p.compute_with(R9, Do::Add, R1);
            p.lower(R0);
            p.compute_with(R8, Do::Add, R0);
        }
        p.compute(R8, Do::ShiftRight, 32);
        p.compute_with(R9, Do::Add, R8);
        p.copy(R0, R9);
        p.compute_with(R0, Do::Xor, R6);
        p.exit();
    }

    /// `R0 = fold(R1 ^ one, R2 ^ other)`.
    pub(super) fn fold_with(&mut self, one: u64, other: u64) {
        for (register, number) in [(R1, one), (R2, other)] {
            self.p.set_wide(R3, number);
            self.p.compute_with(register, Do::Xor, R3);
        }
        self.p.call_here(self.fold);
    }

    /// R1 becomes the ports of a packet of the protocol in R3, of which R1 has the word with them; 0 if it has none. R2
    /// becomes the protocol in its upper half.
    fn ports(&mut self) {
        let p = &mut self.p;
        let (there, done) = (p.label(), p.label());
        for protocol in [protocol::TCP, protocol::UDP, protocol::SCTP] {
            p.jump_if(R3, When::Equal, protocol.into(), there);
        }
        p.set(R1, 0);
        p.jump(done);
        p.here(there);
        p.here(done);
        p.copy(R2, R3);
        p.compute(R2, Do::ShiftLeft, 32);
        p.compute_with(R2, Do::Or, R1);
    }

    /// Jumps if the packet has no four bytes behind its header of so many. What is behind the packet is none of it.
    fn reach_ports(&mut self, header: i16, short: Label) {
        self.p.load(Size::Double, R1, R10, stack::LENGTH);
        self.p.jump_if(R1, When::Less, i32::from(header) + 4, short);
        self.reach_again((ETHERNET + header + 4).into(), short);
    }

    /// R0 becomes the hash of the flow of the IPv4 packet in the frame, to which R7 leads: `entropy::hash4`.
    pub(super) fn hash4(&mut self, short: Label) {
        self.reach_ports(ip4::LEN, short);
        let p = &mut self.p;
        let whole = p.label();
        p.load(Size::Byte, R3, R7, ETHERNET + ip4::PROTOCOL);
        p.load(Size::Word, R1, R7, ETHERNET + ip4::LEN);
        p.load(Size::Half, R2, R7, ETHERNET + ip4::FRAGMENT);
        p.compute(R2, Do::And, 0x3fff_u16.to_be().into());
        p.jump_if(R2, When::Equal, 0, whole);
        p.set(R1, 0);
        p.here(whole);
        self.ports();
        self.p.load(Size::Double, R1, R7, ETHERNET + ip4::SOURCE);
        self.mix();
    }

    /// The same of an IPv6 packet: `entropy::hash6`.
    pub(super) fn hash6(&mut self, short: Label) {
        self.reach_ports(ip6::LEN, short);
        let p = &mut self.p;
        p.load(Size::Double, R1, R7, ETHERNET + ip6::SOURCE);
        p.load(Size::Double, R2, R7, ETHERNET + ip6::DESTINATION);
        self.fold_with(FIRST, SECOND);
        let p = &mut self.p;
        p.store(Size::Double, R10, stack::HIGH, R0);
        p.load(Size::Double, R1, R7, ETHERNET + ip6::SOURCE + 8);
        p.load(Size::Double, R2, R7, ETHERNET + ip6::DESTINATION + 8);
        self.fold_with(SECOND, THIRD);
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::HIGH);
        p.compute_with(R0, Do::Xor, R1);
        p.store(Size::Double, R10, stack::HIGH, R0);
        p.load(Size::Byte, R3, R7, ETHERNET + ip6::NEXT);
        p.load(Size::Word, R1, R7, ETHERNET + ip6::LEN);
        self.ports();
        let p = &mut self.p;
        // The flow label, as it lies.
        p.load(Size::Word, R1, R7, ETHERNET);
        p.set_wide(R3, 0xffff_0f00);
        p.compute_with(R1, Do::And, R3);
        p.compute(R1, Do::ShiftLeft, 29);
        p.compute_with(R2, Do::Xor, R1);
        p.load(Size::Double, R1, R10, stack::HIGH);
        self.mix();
    }

    /// `R0 = mix(R1, R2)`, 32 bits.
    fn mix(&mut self) {
        self.fold_with(FIRST, SECOND);
        let p = &mut self.p;
        p.copy(R1, R0);
        p.compute(R1, Do::ShiftRight, 32);
        p.compute_with(R0, Do::Xor, R1);
        p.lower(R0);
    }
}
