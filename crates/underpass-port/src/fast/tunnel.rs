//! Tunnels over IPv4: IPIP, SIT, GRE with and without a key, each behind UDP (foo-over-UDP, GUE) too, without checksums. As
//! the fast functions of the engine's `tunnel/`.

use underpass_engine::in_kernel::counters::SENT;
use underpass_engine::in_kernel::records::{IN_VRF, MissCause, kind};
use underpass_engine::in_kernel::tunnels::{
    END_FORWARDS4, END_FORWARDS6, END_KEY, LONGEST_OUTER, OPEN_DF, OPEN_PORT, OPEN_TOS, OPEN_TTL,
};
use underpass_engine::tables::TunnelKind;
use underpass_packet::{ethernet, protocol};

use super::emit::{ETHERNET, Emit, SKB_ADJUST_ROOM, sk_buff, stack};
use super::input::{LINK_FLAGS, LINK_LOOKUP, TABLES4, TABLES6, ip4, ip6};
use super::leave::{LONGEST, room};
use super::walk::follow;
use crate::xdp::assembler::{Do, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Register, Size, When};

/// The record of an outer header.
mod template {
    pub(super) const LEN: i16 = 2;
    pub(super) const OPEN: i16 = 4;
    pub(super) const NEXT_HOP: i16 = 8;
    pub(super) const COUNTER: i16 = 12;
    pub(super) const MTU: i16 = 16;
    pub(super) const TOS: i16 = 20;
    pub(super) const UDP: i16 = 21;
    pub(super) const PORTS: i16 = 24;
    pub(super) const PORT_COUNT: i16 = 26;
    pub(super) const ROOM: i16 = 28;
    pub(super) const HEADER: i32 = 32;
}

/// The record of an end.
mod end {
    pub(super) const KIND: i16 = 0;
    pub(super) const FLAGS: i16 = 1;
    pub(super) const LOCAL: i16 = 8;
    pub(super) const REMOTE: i16 = 12;
    pub(super) const KEY: i16 = 16;
    pub(super) const COUNTER: i16 = 20;
    pub(super) const LOOKUP: i16 = 24;
}

/// The record of a port of foo-over-UDP.
mod fou {
    pub(super) const GUE: i16 = 0;
    pub(super) const PROTOCOL: i16 = 1;
    pub(super) const LOCAL: i16 = 8;
}

/// Numbers of the engine's hashes.
const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xd6e8_feb8_6659_fd93;
const THIRD: u64 = 0x2545_f491_4f6c_dd1d;

/// UDP without its checksum, from where it begins.
const UDP_DESTINATION: i16 = 2;
const UDP_LEN: i16 = 4;
const UDP_SUM: i16 = 6;
const UDP: i16 = 8;

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
            p.compute(lower, Do::ShiftLeft, 32);
            p.compute(lower, Do::ShiftRight, 32);
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
            p.compute(R0, Do::ShiftLeft, 32);
            p.compute(R0, Do::ShiftRight, 32);
            p.compute_with(R8, Do::Add, R0);
        }
        p.compute(R8, Do::ShiftRight, 32);
        p.compute_with(R9, Do::Add, R8);
        p.copy(R0, R9);
        p.compute_with(R0, Do::Xor, R6);
        p.exit();
    }

    /// `R0 = fold(R1 ^ one, R2 ^ other)`.
    fn fold_with(&mut self, one: u64, other: u64) {
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
    fn hash4(&mut self, short: Label) {
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
    fn hash6(&mut self, short: Label) {
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
        p.compute(R0, Do::ShiftLeft, 32);
        p.compute(R0, Do::ShiftRight, 32);
    }

    /// Puts an outer header before the packet in the frame, as the action in R9 says: `encap_fast`.
    pub(super) fn enter_tunnel(&mut self, inside6: bool) {
        let (action, too_long) = (self.because(MissCause::Action), self.because(MissCause::TooLong));
        let (room, header) = (self.because(MissCause::Room), self.because(MissCause::Header));
        self.tunnels_as_usual(action);
        let p = &mut self.p;
        p.load(Size::Word, R1, R9, if inside6 { 12 } else { 8 });
        p.load(Size::Word, R3, R9, 16);
        p.store(Size::Double, R10, stack::LOW, R3);
        p.point(R1, R1);
        p.load(Size::Word, R1, R1, 0);
        p.jump_if(R1, When::Equal, 0, action);
        p.store(Size::Double, R10, stack::ACTION, R1);
        p.point(R9, R1);
        // Does it fit into the device, and by the route?
        p.set(R2, ETHERNET.into());
        self.part_from();
        let p = &mut self.p;
        p.load(Size::Word, R1, R9, template::MTU);
        p.jump_if_register(R0, When::Greater, R1, too_long);
        let any = p.label();
        p.load(Size::Double, R1, R10, stack::LOW);
        p.jump_if(R1, When::Equal, 0, any);
        p.jump_if_register(R0, When::Greater, R1, too_long);
        p.here(any);
        p.store(Size::Double, R10, stack::LOW, R0);
        p.load(Size::Half, R2, R9, template::LEN);
        p.store(Size::Double, R10, stack::AT, R2);
        p.load(Size::Double, R1, R10, stack::LENGTH);
        p.compute_with(R1, Do::Add, R2);
        p.jump_if(R1, When::Greater, 0xffff, too_long);
        // What the outer header takes over: of TOS, don't fragment and TTL, a byte each.
        self.inherit(inside6);
        // The source port.
        let by_flow = self.p.label();
        self.p.load(Size::Half, R1, R9, template::OPEN);
        self.p.compute(R1, Do::And, OPEN_PORT.into());
        self.p.jump_if(R1, When::Equal, 0, by_flow);
        if inside6 {
            self.hash6(header)
        } else {
            self.hash4(header)
        };
        let p = &mut self.p;
        p.load(Size::Half, R1, R9, template::PORT_COUNT);
        p.compute_with(R0, Do::Multiply, R1);
        p.compute(R0, Do::ShiftRight, 32);
        p.load(Size::Half, R1, R9, template::PORTS);
        p.compute_with(R0, Do::Add, R1);
        p.swap(R0, 16);
        p.store(Size::Double, R10, stack::MODE, R0);
        p.here(by_flow);
        p.load(Size::Word, R1, R9, template::NEXT_HOP);
        self.find_next_hop();
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::LOW);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R1, Do::Add, R2);
        p.load(Size::Word, R2, R9, LONGEST);
        p.jump_if_register(R1, When::Greater, R2, too_long);
        self.trim();

        let p = &mut self.p;
        p.load(Size::Double, R5, R10, stack::ACTION);
        p.point(R5, R5);
        p.load(Size::Word, R4, R5, template::ROOM);
        p.compute(R4, Do::Or, room::FIXED_GSO);
        p.copy(R1, R6);
        p.load(Size::Double, R2, R10, stack::AT);
        p.set(R3, room::MAC);
        p.call(SKB_ADJUST_ROOM);
        p.jump_if(R0, When::NotEqual, 0, room);
        self.lower_inside(inside6);
        let p = &mut self.p;
        p.load(Size::Double, R5, R10, stack::ACTION);
        p.point(R5, R5);
        p.add(R5, template::HEADER);
        p.load(Size::Double, R4, R10, stack::AT);
        self.copy_in(ETHERNET.into(), LONGEST_OUTER, Size::Word);
        self.fill_outer();
        // The device of the tunnel.
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::ACTION);
        p.point(R2, R2);
        p.load(Size::Word, R2, R2, template::COUNTER);
        p.load(Size::Double, R4, R10, stack::LENGTH);
        self.count(R2, R4);
        self.write_ethertype(ethernet::IPV4);
        self.finish();
    }

    /// Jumps if tunnels are the workers' now. Changes R1.
    fn tunnels_as_usual(&mut self, otherwise: Label) {
        let (aside, narrow) = (self.places.common + 8, self.places.narrow);
        let p = &mut self.p;
        for place in [aside, narrow] {
            p.set(R1, place.cast_signed());
            p.point(R1, R1);
            p.load(Size::Word, R1, R1, 0);
            p.jump_if(R1, When::NotEqual, 0, otherwise);
        }
    }

    /// Notes what an outer header is to take over of the packet in the frame, to which R7 leads, by what is open in that
    /// of the template in R9: the TOS in [`stack::FIRST`], the TTL in [`stack::HOPS`] or 0, don't fragment in
    /// [`stack::FAMILY`].
    fn inherit(&mut self, inside6: bool) {
        let p = &mut self.p;
        if inside6 {
            p.load(Size::Half, R1, R7, ETHERNET);
            p.swap(R1, 16);
            p.compute(R1, Do::ShiftRight, 4);
            p.compute(R1, Do::And, 0xff);
            p.load(Size::Byte, R2, R7, ETHERNET + ip6::HOPS);
            p.set(R3, 0);
        } else {
            p.load(Size::Byte, R1, R7, ETHERNET + ip4::TOS);
            p.load(Size::Byte, R2, R7, ETHERNET + ip4::TTL);
            p.load(Size::Byte, R3, R7, ETHERNET + ip4::FRAGMENT);
            p.compute(R3, Do::And, 0x40);
        }
        p.load(Size::Half, R4, R9, template::OPEN);
        // ECN, but that congestion experienced becomes ECT(0).
        let (own_tos, own_ttl, own_df) = (p.label(), p.label(), p.label());
        p.copy(R5, R1);
        p.compute(R5, Do::And, 3);
        p.copy(R0, R5);
        p.compute(R0, Do::ShiftRight, 1);
        p.compute(R0, Do::Xor, 3);
        p.compute_with(R5, Do::And, R0);
        p.compute(R1, Do::And, 0xfc);
        p.jump_if(R4, When::Bits, OPEN_TOS.into(), own_tos);
        p.load(Size::Byte, R1, R9, template::TOS);
        p.compute(R1, Do::And, 0xfc);
        p.here(own_tos);
        p.compute_with(R1, Do::Or, R5);
        p.store(Size::Double, R10, stack::FIRST, R1);
        p.add(R2, -1);
        p.jump_if(R4, When::Bits, OPEN_TTL.into(), own_ttl);
        p.set(R2, 0);
        p.here(own_ttl);
        p.store(Size::Double, R10, stack::HOPS, R2);
        p.jump_if(R4, When::Bits, OPEN_DF.into(), own_df);
        p.set(R3, 0);
        p.here(own_df);
        p.store(Size::Double, R10, stack::FAMILY, R3);
    }

    /// Takes 1 from the TTL or hop limit of the packet behind the outer header.
    fn lower_inside(&mut self, inside6: bool) {
        let gone = self.p.label();
        let p = &mut self.p;
        p.load(Size::Word, R7, R6, sk_buff::DATA);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute(R2, Do::And, 0x7f);
        p.compute_with(R7, Do::Add, R2);
        let len = if inside6 { ip6::LEN } else { ip4::LEN };
        self.reach_again((ETHERNET + len).into(), gone);
        if inside6 {
            self.lower6_here(ETHERNET)
        } else {
            self.lower4_here(ETHERNET)
        };
        let there = self.p.label();
        self.p.jump(there);
        self.p.here(gone);
        self.drop(underpass_engine::drops::DropReason::NoHeadroom);
        self.p.here(there);
    }

    /// Fills in what of the outer header depends on the packet: `write_ipv4`. R7 then leads to the frame.
    fn fill_outer(&mut self) {
        self.reach_for_sure((ETHERNET + ip4::LEN).into());
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::FIRST);
        p.store(Size::Byte, R7, ETHERNET + ip4::TOS, R1);
        p.load(Size::Double, R1, R10, stack::LENGTH);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R1, Do::Add, R2);
        p.copy(R5, R1);
        p.swap(R1, 16);
        p.store(Size::Half, R7, ETHERNET + ip4::TOTAL, R1);
        // An identification that no packet had lately.
        p.load(Size::Double, R1, R10, stack::COUNTERS);
        p.compute(R1, Do::Add, SENT.cast_signed());
        p.point(R1, R1);
        p.load(Size::Double, R1, R1, 0);
        p.store(Size::Half, R7, ETHERNET + ip4::IDENTIFICATION, R1);
        p.load(Size::Byte, R1, R7, ETHERNET + ip4::FRAGMENT);
        p.load(Size::Double, R2, R10, stack::FAMILY);
        p.compute_with(R1, Do::Or, R2);
        p.store(Size::Byte, R7, ETHERNET + ip4::FRAGMENT, R1);
        let own = p.label();
        p.load(Size::Double, R1, R10, stack::HOPS);
        p.jump_if(R1, When::Equal, 0, own);
        p.store(Size::Byte, R7, ETHERNET + ip4::TTL, R1);
        p.here(own);
        // The checksum, which is 0 now.
        p.set(R1, 0);
        for word in (0..ip4::LEN).step_by(4) {
            p.load(Size::Word, R2, R7, ETHERNET + word);
            p.compute_with(R1, Do::Add, R2);
        }
        for bits in [32, 16, 16] {
            p.copy(R2, R1);
            p.compute(R2, Do::ShiftRight, bits);
            let kept = 64 - bits;
            p.compute(R1, Do::ShiftLeft, kept);
            p.compute(R1, Do::ShiftRight, kept);
            p.compute_with(R1, Do::Add, R2);
        }
        p.copy(R2, R1);
        p.compute(R2, Do::ShiftRight, 16);
        p.compute_with(R1, Do::Add, R2);
        p.compute(R1, Do::Xor, -1);
        p.store(Size::Half, R7, ETHERNET + ip4::CHECKSUM, R1);
        let (none, fixed) = (p.label(), p.label());
        p.load(Size::Double, R4, R10, stack::ACTION);
        p.point(R4, R4);
        p.load(Size::Byte, R1, R4, template::UDP);
        p.jump_if(R1, When::Equal, 0, none);
        p.store(Size::Double, R10, stack::HIGH, R5);
        self.reach_for_sure((ETHERNET + ip4::LEN + UDP).into());
        let p = &mut self.p;
        p.load(Size::Double, R5, R10, stack::HIGH);
        p.add(R5, -i32::from(ip4::LEN));
        p.swap(R5, 16);
        p.store(Size::Half, R7, ETHERNET + ip4::LEN + UDP_LEN, R5);
        p.load(Size::Double, R4, R10, stack::ACTION);
        p.point(R4, R4);
        p.load(Size::Half, R1, R4, template::OPEN);
        p.compute(R1, Do::And, OPEN_PORT.into());
        p.jump_if(R1, When::Equal, 0, fixed);
        p.load(Size::Double, R1, R10, stack::MODE);
        p.store(Size::Half, R7, ETHERNET + ip4::LEN, R1);
        p.here(fixed);
        p.here(none);
    }

    /// Takes the packet in the frame, which is for the router, out of its tunnel: `decap_fast`. Jumps to the end for what is
    /// none's, to be the kernel's.
    pub(super) fn leave_tunnel(&mut self) {
        let (action, header) = (self.because(MissCause::Action), self.because(MissCause::Header));
        let miss = self.miss;
        let p = &mut self.p;
        p.load(Size::Half, R1, R7, ETHERNET + ip4::FRAGMENT);
        p.compute(R1, Do::And, 0x3fff_u16.to_be().into());
        p.jump_if(R1, When::NotEqual, 0, miss);
        p.load(Size::Byte, R1, R7, ETHERNET + ip4::TOS);
        p.store(Size::Double, R10, stack::FIRST, R1);
        // R9: the protocol inside; R2: where it begins.
        let (tunnelled, datagram) = (p.label(), p.label());
        p.load(Size::Byte, R9, R7, ETHERNET + ip4::PROTOCOL);
        p.set(R2, (ETHERNET + ip4::LEN).into());
        p.jump_if(R9, When::NotEqual, protocol::UDP.into(), tunnelled);
        p.jump(datagram);
        p.here(datagram);
        self.pass_udp(miss);
        self.p.here(tunnelled);
        let [ipip, sit, gre, known] = std::array::from_fn(|_| self.p.label());
        let p = &mut self.p;
        p.jump_if(R9, When::Equal, protocol::IPV4.into(), ipip);
        p.jump_if(R9, When::Equal, protocol::IPV6.into(), sit);
        p.jump_if(R9, When::Equal, protocol::GRE.into(), gre);
        p.jump(miss);
        // R5: the kind of the tunnel, and whether there is a key above; R4: the key; the EtherType is noted.
        for (label, tunnel, ethertype) in
            [(ipip, TunnelKind::Ipip, ethernet::IPV4), (sit, TunnelKind::Sit, ethernet::IPV6)]
        {
            p.here(label);
            p.set(R5, tunnel as i32);
            p.set(R4, 0);
            p.set(R1, ethertype.to_be().into());
            p.jump(known);
        }
        p.here(gre);
        self.gre(header, known);
        let p = &mut self.p;
        p.here(known);
        p.store(Size::Double, R10, stack::FAMILY, R1);
        p.store(Size::Double, R10, stack::AT, R2);
        p.store(Size::Double, R10, stack::LOW, R4);
        p.store(Size::Double, R10, stack::MODE, R5);
        self.find_end(action);
        // The other end must not be an address of the router's.
        let p = &mut self.p;
        let foreign = p.label();
        p.load(Size::Word, R1, R8, LINK_LOOKUP);
        p.load(Size::Word, R2, R9, end::REMOTE);
        p.compute(R2, Do::ShiftLeft, 32);
        p.set(R3, 0);
        p.set(R4, TABLES4);
        p.call_here(self.find);
        let p = &mut self.p;
        p.jump_if(R0, When::LessOrEqual, 2, foreign);
        p.point(R1, R0);
        p.load(Size::Byte, R1, R1, 0);
        p.jump_if(R1, When::Equal, kind::LOCAL.into(), action);
        p.here(foreign);
        let six = p.label();
        p.load(Size::Double, R2, R10, stack::AT);
        p.load(Size::Double, R1, R10, stack::FAMILY);
        p.jump_if(R1, When::Equal, ethernet::IPV6.to_be().into(), six);
        self.comes_out(false);
        self.p.here(six);
        self.comes_out(true);
    }

    /// Goes past UDP, and GUE, if it is for a port of foo-over-UDP; else jumps to `other`. R9 and R2 as in
    /// [`Self::leave_tunnel`].
    fn pass_udp(&mut self, other: Label) {
        let action = self.because(MissCause::Action);
        const AT: i16 = ETHERNET + ip4::LEN;
        self.reach_again((AT + UDP).into(), other);
        let fou_ports = self.places.fou_ports.cast_signed();
        let p = &mut self.p;
        p.load(Size::Half, R1, R7, AT + UDP_DESTINATION);
        p.swap(R1, 16);
        p.compute(R1, Do::ShiftLeft, 2);
        p.compute(R1, Do::Add, fou_ports);
        follow(p, R1, other);
        p.copy(R9, R1);
        // Which ports a VRF has is for a worker.
        p.load(Size::Half, R1, R8, LINK_FLAGS);
        p.compute(R1, Do::And, IN_VRF.into());
        p.jump_if(R1, When::NotEqual, 0, action);
        let any = p.label();
        p.load(Size::Word, R1, R9, fou::LOCAL);
        p.jump_if(R1, When::Equal, 0, any);
        p.load(Size::Word, R2, R7, ETHERNET + ip4::DESTINATION);
        p.jump_if_register(R1, When::NotEqual, R2, action);
        p.here(any);
        p.load(Size::Half, R1, R7, AT + UDP_LEN);
        p.swap(R1, 16);
        p.add(R1, ip4::LEN.into());
        p.load(Size::Double, R2, R10, stack::LENGTH);
        p.jump_if_register(R1, When::NotEqual, R2, action);
        p.load(Size::Half, R1, R7, AT + UDP_SUM);
        p.jump_if(R1, When::NotEqual, 0, action);
        let (plain, done) = (p.label(), p.label());
        p.load(Size::Byte, R1, R9, fou::GUE);
        p.jump_if(R1, When::Equal, 0, plain);
        self.reach_again((AT + UDP + 4).into(), action);
        let p = &mut self.p;
        // Variant 0, no fields, not control.
        p.load(Size::Byte, R1, R7, AT + UDP);
        p.jump_if(R1, When::NotEqual, 0, action);
        p.load(Size::Half, R1, R7, AT + UDP + 2);
        p.jump_if(R1, When::NotEqual, 0, action);
        p.load(Size::Byte, R9, R7, AT + UDP + 1);
        p.set(R2, (AT + UDP + 4).into());
        p.jump(done);
        p.here(plain);
        p.load(Size::Byte, R9, R9, fou::PROTOCOL);
        p.set(R2, (AT + UDP).into());
        p.here(done);
        let _ = R3;
    }

    /// Reads a GRE header with at most a key, and goes on at `known`.
    fn gre(&mut self, malformed: Label, known: Label) {
        self.p.store(Size::Double, R10, stack::AT, R2);
        self.reach_inside(4, malformed);
        let (keyed, typed) = (self.p.label(), self.p.label());
        let p = &mut self.p;
        p.load(Size::Half, R0, R7, 2);
        p.store(Size::Double, R10, stack::FAMILY, R0);
        p.load(Size::Half, R1, R7, 0);
        p.set(R5, TunnelKind::Gre as i32);
        p.set(R4, 0);
        p.jump_if(R1, When::Equal, 0x2000_u16.to_be().into(), keyed);
        p.jump_if(R1, When::NotEqual, 0, malformed);
        p.load(Size::Double, R2, R10, stack::AT);
        p.add(R2, 4);
        p.jump(typed);
        p.here(keyed);
        self.reach_again(8, malformed);
        let p = &mut self.p;
        p.load(Size::Word, R4, R7, 4);
        p.swap(R4, 32);
        p.set(R5, TunnelKind::Gre as i32 | i32::from(END_KEY) << 8);
        p.load(Size::Double, R2, R10, stack::AT);
        p.add(R2, 8);
        p.here(typed);
        p.load(Size::Word, R7, R6, sk_buff::DATA);
        p.load(Size::Double, R1, R10, stack::FAMILY);
        p.jump_if(R1, When::Equal, ethernet::IPV4.to_be().into(), known);
        p.jump_if(R1, When::Equal, ethernet::IPV6.to_be().into(), known);
        p.jump(malformed);
    }

    /// R9 becomes the record of the end that a packet is for, as noted: `TunnelTable::precomputed_decap`.
    fn find_end(&mut self, none: Label) {
        self.reach((ETHERNET + ip4::LEN).into(), none);
        let p = &mut self.p;
        p.load(Size::Word, R1, R7, ETHERNET + ip4::SOURCE);
        p.swap(R1, 32);
        p.load(Size::Word, R2, R7, ETHERNET + ip4::DESTINATION);
        p.swap(R2, 32);
        p.store(Size::Double, R10, stack::HIGH, R2);
        // The hash of the chain.
        p.compute(R2, Do::ShiftLeft, 32);
        p.compute_with(R1, Do::Xor, R2);
        p.load(Size::Double, R5, R10, stack::MODE);
        p.copy(R2, R5);
        p.compute(R2, Do::And, 0xff);
        p.compute(R2, Do::ShiftLeft, 40);
        let keyless = p.label();
        p.compute(R5, Do::And, i32::from(END_KEY) << 8);
        p.jump_if(R5, When::Equal, 0, keyless);
        p.load(Size::Double, R4, R10, stack::LOW);
        p.compute(R4, Do::Xor, 0x5bd1_e995);
        p.compute_with(R2, Do::Xor, R4);
        p.here(keyless);
        self.fold_with(FIRST, SECOND);
        let ends = self.places.ends.cast_signed();
        let p = &mut self.p;
        p.compute(R0, Do::ShiftRight, 7);
        p.compute(R0, Do::And, 0xffff);
        p.compute(R0, Do::ShiftLeft, 2);
        p.compute(R0, Do::Add, ends);
        p.copy(R1, R0);
        follow(p, R1, none);
        p.copy(R9, R1);
        // It may be another one's place.
        self.reach((ETHERNET + ip4::LEN).into(), none);
        let p = &mut self.p;
        p.load(Size::Double, R5, R10, stack::MODE);
        p.copy(R4, R5);
        p.compute(R4, Do::And, 0xff);
        p.load(Size::Byte, R1, R9, end::KIND);
        p.jump_if_register(R1, When::NotEqual, R4, none);
        p.compute(R5, Do::ShiftRight, 8);
        p.load(Size::Byte, R1, R9, end::FLAGS);
        p.compute(R1, Do::And, END_KEY.into());
        p.jump_if_register(R1, When::NotEqual, R5, none);
        p.load(Size::Word, R1, R9, end::KEY);
        p.load(Size::Double, R2, R10, stack::LOW);
        p.jump_if_register(R1, When::NotEqual, R2, none);
        for (place, at) in [(end::LOCAL, ip4::DESTINATION), (end::REMOTE, ip4::SOURCE)] {
            p.load(Size::Word, R1, R9, place);
            p.load(Size::Word, R2, R7, ETHERNET + at);
            p.swap(R2, 32);
            p.jump_if_register(R1, When::NotEqual, R2, none);
        }
    }

    /// The packet at R2 in the frame comes out by the end in R9, and goes where its destination leads.
    fn comes_out(&mut self, six: bool) {
        let (action, header) = (self.because(MissCause::Action), self.because(MissCause::Header));
        let hops = self.because(MissCause::HopLimit);
        let (len, forwards) = if six { (ip6::LEN, END_FORWARDS6) } else { (ip4::LEN, END_FORWARDS4) };
        let p = &mut self.p;
        p.load(Size::Byte, R1, R9, end::FLAGS);
        p.compute(R1, Do::And, forwards.into());
        p.jump_if(R1, When::Equal, 0, action);
        self.reach_inside(len.into(), header);
        if six {
            self.sound6(0, header, hops);
            let p = &mut self.p;
            p.load(Size::Half, R1, R7, ip6::PAYLOAD);
            p.swap(R1, 16);
            p.add(R1, ip6::LEN.into());
        } else {
            self.sound4(0, header);
            let p = &mut self.p;
            p.load(Size::Byte, R1, R7, ip4::TTL);
            p.jump_if(R1, When::LessOrEqual, 1, hops);
            p.load(Size::Half, R1, R7, ip4::TOTAL);
            p.swap(R1, 16);
            p.jump_if(R1, When::Less, ip4::LEN.into(), header);
        }
        self.ends_there(header);
        // ECN of the outer header that changes what is inside, or forbids it.
        let p = &mut self.p;
        let (fine, not_ce) = (p.label(), p.label());
        if six {
            p.load(Size::Byte, R1, R7, 1);
            p.compute(R1, Do::ShiftRight, 4);
        } else {
            p.load(Size::Byte, R1, R7, ip4::TOS);
        }
        p.compute(R1, Do::And, 3);
        p.load(Size::Double, R2, R10, stack::FIRST);
        p.compute(R2, Do::And, 3);
        p.jump_if(R2, When::NotEqual, 3, not_ce);
        p.jump_if(R1, When::NotEqual, 3, action);
        p.here(not_ce);
        p.jump_if(R2, When::NotEqual, 1, fine);
        p.jump_if(R1, When::Equal, 2, action);
        p.here(fine);
        p.load(Size::Word, R1, R9, end::LOOKUP);
        p.load(Size::Word, R2, R9, end::COUNTER);
        p.store(Size::Double, R10, stack::ACTION, R2);
        if six {
            p.load(Size::Double, R2, R7, ip6::DESTINATION);
            p.swap(R2, 64);
            p.load(Size::Double, R3, R7, ip6::DESTINATION + 8);
            p.swap(R3, 64);
            p.set(R4, TABLES6);
        } else {
            p.load(Size::Word, R2, R7, ip4::DESTINATION);
            p.swap(R2, 32);
            p.compute(R2, Do::ShiftLeft, 32);
            p.set(R3, 0);
            p.set(R4, TABLES4);
        }
        p.call_here(self.find);
        self.forwards();
        self.find_next_hop();
        self.p.load(Size::Double, R2, R10, stack::AT);
        self.fits_from(0);
        self.trim();
        self.p.load(Size::Double, R2, R10, stack::AT);
        self.p.set(R4, if six { room::DECAP_L3_IPV6 } else { room::DECAP_L3_IPV4 });
        self.take_out();
        if six {
            self.lower6(ETHERNET)
        } else {
            self.lower4(ETHERNET)
        };
        self.write_ethertype(if six { ethernet::IPV6 } else { ethernet::IPV4 });
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::ACTION);
        p.load(Size::Double, R4, R10, stack::LENGTH);
        p.load(Size::Double, R1, R10, stack::AT);
        p.compute_with(R4, Do::Subtract, R1);
        p.add(R4, ETHERNET.into());
        self.count(R2, R4);
        self.finish();
        let _: Register = R5;
    }
}
