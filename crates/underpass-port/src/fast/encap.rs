//! Into a tunnel: IPIP, SIT, ip6tnl, GRE and ip6gre with and without a key, each behind UDP (foo-over-UDP, GUE) too. As
//! `encap_fast` of the engine's `tunnel/encap.rs`.

use underpass_engine::drops::DropReason;
use underpass_engine::in_kernel::counters::SENT;
use underpass_engine::in_kernel::records::MissCause;
use underpass_engine::in_kernel::tunnels::{
    LONGEST_OUTER, OPEN_DF, OPEN_HASH_LABEL, OPEN_LABEL, OPEN_NO_ECN, OPEN_PORT, OPEN_SUM, OPEN_TOS,
    OPEN_TTL, OUTER_IPV6,
};
use underpass_packet::{ethernet, protocol};

use super::decap::udp;
use super::emit::{ETHERNET, Emit, stack};
use super::input::{ip4, ip6};
use super::leave::LONGEST;
use super::sum::fold;
use crate::xdp::assembler::{Do, Label, R0, R1, R2, R3, R4, R5, R6, R7, R9, R10, Size, When};

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
    pub(super) const HEADER: i16 = 32;
}

/// The bits of a flow label.
const FLOW_LABEL: i32 = 0xf_ffff;

impl Emit {
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
        if inside6 {
            self.is_nobodys_else(action);
        }
        // What the outer header takes over: of TOS, TTL, and don't fragment or the flow label.
        self.inherit(inside6);
        let unchecked = self.p.label();
        self.p.load(Size::Half, R1, R9, template::OPEN);
        self.p.compute(R1, Do::And, OPEN_SUM.into());
        self.p.jump_if(R1, When::Equal, 0, unchecked);
        self.may_be_summed(inside6, action);
        self.p.here(unchecked);
        // The source port, or the flow label.
        let by_flow = self.p.label();
        self.p.load(Size::Half, R1, R9, template::OPEN);
        self.p.compute(R1, Do::And, (OPEN_PORT | OPEN_HASH_LABEL).into());
        self.p.jump_if(R1, When::Equal, 0, by_flow);
        if inside6 {
            self.hash6(header)
        } else {
            self.hash4(header)
        };
        let p = &mut self.p;
        let (labels, ports) = (p.label(), p.label());
        p.load(Size::Half, R1, R9, template::OPEN);
        p.jump_if(R1, When::Bits, OPEN_HASH_LABEL.into(), labels);
        p.jump(ports);
        p.here(labels);
        p.copy(R1, R0);
        p.compute(R1, Do::ShiftRight, 12);
        p.store(Size::Double, R10, stack::FAMILY, R1);
        p.here(ports);
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
        p.load(Size::Double, R2, R10, stack::AT);
        self.make_room();
        self.p.jump_if(R0, When::NotEqual, 0, room);
        self.lower_inside(inside6);
        let p = &mut self.p;
        p.load(Size::Double, R5, R10, stack::ACTION);
        p.point(R5, R5);
        p.add(R5, template::HEADER.into());
        p.load(Size::Double, R4, R10, stack::AT);
        self.copy_in(ETHERNET.into(), LONGEST_OUTER, Size::Word);
        self.fill_outer();
        self.pass_filters();
        // The device of the tunnel.
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::ACTION);
        p.point(R2, R2);
        p.load(Size::Word, R2, R2, template::COUNTER);
        p.load(Size::Double, R4, R10, stack::LENGTH);
        self.count(R2, R4);
        self.finish();
    }

    /// Jumps if the IPv6 packet in the frame, to which R7 leads, goes into a tunnel over IPv6, as the template in R9 says,
    /// and may have an encapsulation limit or comes from its other end. Changes R1 and R2.
    fn is_nobodys_else(&mut self, otherwise: Label) {
        let p = &mut self.p;
        let fine = p.label();
        p.load(Size::Half, R1, R9, template::OPEN);
        p.compute(R1, Do::And, OUTER_IPV6.into());
        p.jump_if(R1, When::Equal, 0, fine);
        p.load(Size::Byte, R1, R7, ETHERNET + ip6::NEXT);
        for extension in [
            protocol::HOP_BY_HOP,
            protocol::ROUTING,
            protocol::FRAGMENT,
            protocol::AUTHENTICATION,
            protocol::DESTINATION_OPTIONS,
        ] {
            p.jump_if(R1, When::Equal, extension.into(), otherwise);
        }
        for half in [0, 8] {
            p.load(Size::Double, R1, R7, ETHERNET + ip6::SOURCE + half);
            p.load(Size::Double, R2, R9, template::HEADER + ip6::DESTINATION + half);
            p.jump_if_register(R1, When::NotEqual, R2, fine);
        }
        p.jump(otherwise);
        p.here(fine);
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
    /// of the template in R9: the TOS in [`stack::FIRST`], the TTL in [`stack::HOPS`] or 0, don't fragment or the flow label
    /// in [`stack::FAMILY`].
    fn inherit(&mut self, inside6: bool) {
        let p = &mut self.p;
        if inside6 {
            p.load(Size::Half, R1, R7, ETHERNET);
            p.swap(R1, 16);
            p.compute(R1, Do::ShiftRight, 4);
            p.compute(R1, Do::And, 0xff);
            p.load(Size::Byte, R2, R7, ETHERNET + ip6::HOPS);
            // Of what goes into IPv4 never.
            p.load(Size::Word, R3, R7, ETHERNET);
            p.swap(R3, 32);
            p.compute(R3, Do::And, FLOW_LABEL);
        } else {
            p.load(Size::Byte, R1, R7, ETHERNET + ip4::TOS);
            p.load(Size::Byte, R2, R7, ETHERNET + ip4::TTL);
            p.load(Size::Byte, R3, R7, ETHERNET + ip4::FRAGMENT);
            p.compute(R3, Do::And, 0x40);
        }
        p.load(Size::Half, R4, R9, template::OPEN);
        // ECN, but that congestion experienced becomes ECT(0).
        let [own_tos, whole, own_ttl, own_df, over6] = std::array::from_fn(|_| p.label());
        p.copy(R5, R1);
        p.compute(R5, Do::And, 3);
        p.copy(R0, R5);
        p.compute(R0, Do::ShiftRight, 1);
        p.compute(R0, Do::Xor, 3);
        p.compute_with(R5, Do::And, R0);
        p.jump_if(R4, When::Bits, OPEN_TOS.into(), own_tos);
        p.load(Size::Byte, R1, R9, template::TOS);
        p.here(own_tos);
        p.jump_if(R4, When::Bits, OPEN_NO_ECN.into(), whole);
        p.compute(R1, Do::And, 0xfc);
        p.compute_with(R1, Do::Or, R5);
        p.here(whole);
        p.store(Size::Double, R10, stack::FIRST, R1);
        p.add(R2, -1);
        p.jump_if(R4, When::Bits, OPEN_TTL.into(), own_ttl);
        p.set(R2, 0);
        p.here(own_ttl);
        p.store(Size::Double, R10, stack::HOPS, R2);
        p.jump_if(R4, When::Bits, OUTER_IPV6.into(), over6);
        p.jump_if(R4, When::Bits, OPEN_DF.into(), own_df);
        p.set(R3, 0);
        p.jump(own_df);
        p.here(over6);
        p.jump_if(R4, When::Bits, OPEN_LABEL.into(), own_df);
        p.load(Size::Word, R3, R9, template::HEADER);
        p.swap(R3, 32);
        p.compute(R3, Do::And, FLOW_LABEL);
        p.here(own_df);
        p.store(Size::Double, R10, stack::FAMILY, R3);
    }

    /// Takes 1 from the TTL or hop limit of the packet behind the outer header.
    pub(super) fn lower_inside(&mut self, inside6: bool) {
        let gone = self.p.label();
        let p = &mut self.p;
        p.load(Size::Word, R7, R6, self.context.data);
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
        self.drop(DropReason::NoHeadroom);
        self.p.here(there);
    }

    /// Fills in what of the outer header depends on the packet, and the EtherType. R7 then leads to the frame.
    fn fill_outer(&mut self) {
        let (six, filled) = (self.p.label(), self.p.label());
        let p = &mut self.p;
        p.load(Size::Double, R4, R10, stack::ACTION);
        p.point(R4, R4);
        p.load(Size::Half, R1, R4, template::OPEN);
        p.jump_if(R1, When::Bits, OUTER_IPV6.into(), six);
        self.fill_outer4();
        self.fill_udp(false);
        self.p.jump(filled);
        self.p.here(six);
        self.fill_outer6();
        self.fill_udp(true);
        self.p.here(filled);
    }

    /// Of an IPv4 header: `write_ipv4`.
    fn fill_outer4(&mut self) {
        self.reach_for_sure((ETHERNET + ip4::LEN).into());
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::FIRST);
        p.store(Size::Byte, R7, ETHERNET + ip4::TOS, R1);
        p.load(Size::Double, R1, R10, stack::LENGTH);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R1, Do::Add, R2);
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
        fold(p, R1, R2);
        p.compute(R1, Do::Xor, -1);
        p.store(Size::Half, R7, ETHERNET + ip4::CHECKSUM, R1);
        self.write_ethertype(ethernet::IPV4);
    }

    /// Of an IPv6 header: as `push_outer`.
    fn fill_outer6(&mut self) {
        self.reach_for_sure((ETHERNET + ip6::LEN).into());
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::FIRST);
        p.compute(R1, Do::ShiftLeft, 20);
        p.load(Size::Double, R2, R10, stack::FAMILY);
        p.compute_with(R1, Do::Or, R2);
        p.compute(R1, Do::Or, 6 << 28);
        p.swap(R1, 32);
        p.store(Size::Word, R7, ETHERNET, R1);
        p.load(Size::Double, R1, R10, stack::LENGTH);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R1, Do::Add, R2);
        p.add(R1, -i32::from(ip6::LEN));
        p.swap(R1, 16);
        p.store(Size::Half, R7, ETHERNET + ip6::PAYLOAD, R1);
        let own = p.label();
        p.load(Size::Double, R1, R10, stack::HOPS);
        p.jump_if(R1, When::Equal, 0, own);
        p.store(Size::Byte, R7, ETHERNET + ip6::HOPS, R1);
        p.here(own);
        self.write_ethertype(ethernet::IPV6);
    }

    /// Of a UDP header, if there is one: length, source port and checksum. R7 leads to the frame, before and then.
    fn fill_udp(&mut self, over6: bool) {
        let [none, fixed, gone, there] = std::array::from_fn(|_| self.p.label());
        let p = &mut self.p;
        p.load(Size::Double, R4, R10, stack::ACTION);
        p.point(R4, R4);
        p.load(Size::Byte, R5, R4, template::UDP);
        p.jump_if(R5, When::Equal, 0, none);
        p.compute(R5, Do::And, 0x3f);
        p.compute_with(R7, Do::Add, R5);
        self.reach_again((ETHERNET + udp::LEN).into(), gone);
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::LENGTH);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R1, Do::Add, R2);
        p.compute_with(R1, Do::Subtract, R5);
        p.swap(R1, 16);
        p.store(Size::Half, R7, ETHERNET + udp::LENGTH, R1);
        p.load(Size::Half, R1, R4, template::OPEN);
        p.compute(R1, Do::And, OPEN_PORT.into());
        p.jump_if(R1, When::Equal, 0, fixed);
        p.load(Size::Double, R1, R10, stack::MODE);
        p.store(Size::Half, R7, ETHERNET, R1);
        p.here(fixed);
        p.jump(there);
        p.here(gone);
        self.drop(DropReason::NoHeadroom);
        self.p.here(there);
        let p = &mut self.p;
        let unchecked = p.label();
        p.load(Size::Half, R1, R4, template::OPEN);
        p.compute(R1, Do::And, OPEN_SUM.into());
        p.jump_if(R1, When::Equal, 0, unchecked);
        p.load(Size::Double, R3, R10, stack::LENGTH);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R3, Do::Add, R2);
        p.compute_with(R3, Do::Subtract, R5);
        p.copy(R2, R5);
        p.add(R2, ETHERNET.into());
        self.write_sum(over6);
        self.p.here(unchecked);
        self.reach_for_sure(ETHERNET.into());
        self.p.here(none);
    }
}
