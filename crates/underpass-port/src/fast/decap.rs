//! Out of a tunnel over IPv4, as [`super::encap`] has them. As `decap_fast` of the engine's `tunnel/decap.rs`.

use underpass_engine::in_kernel::records::{IN_VRF, MissCause, kind};
use underpass_engine::in_kernel::tunnels::{END_FORWARDS4, END_FORWARDS6, END_KEY};
use underpass_engine::tables::TunnelKind;
use underpass_packet::{ethernet, protocol};

use super::emit::{ETHERNET, Emit, stack};
use super::hash::{FIRST, SECOND};
use super::input::{LINK_FLAGS, LINK_LOOKUP, TABLES4, ip4};
use super::walk::follow;
use crate::xdp::assembler::{Do, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Size, When};

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

/// A UDP header: its fields, and how long it is.
pub(super) mod udp {
    pub(super) const DESTINATION: i16 = 2;
    pub(in super::super) const LENGTH: i16 = 4;
    pub(super) const CHECKSUM: i16 = 6;
    pub(in super::super) const LEN: i16 = 8;
}

impl Emit {
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
        self.reach_again((AT + udp::LEN).into(), other);
        let fou_ports = self.places.fou_ports.cast_signed();
        let p = &mut self.p;
        p.load(Size::Half, R1, R7, AT + udp::DESTINATION);
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
        p.load(Size::Half, R1, R7, AT + udp::LENGTH);
        p.swap(R1, 16);
        p.add(R1, ip4::LEN.into());
        p.load(Size::Double, R2, R10, stack::LENGTH);
        p.jump_if_register(R1, When::NotEqual, R2, action);
        p.load(Size::Half, R1, R7, AT + udp::CHECKSUM);
        p.jump_if(R1, When::NotEqual, 0, action);
        let (plain, done) = (p.label(), p.label());
        p.load(Size::Byte, R1, R9, fou::GUE);
        p.jump_if(R1, When::Equal, 0, plain);
        self.reach_again((AT + udp::LEN + 4).into(), action);
        let p = &mut self.p;
        // Variant 0, no fields, not control.
        p.load(Size::Byte, R1, R7, AT + udp::LEN);
        p.jump_if(R1, When::NotEqual, 0, action);
        p.load(Size::Half, R1, R7, AT + udp::LEN + 2);
        p.jump_if(R1, When::NotEqual, 0, action);
        p.load(Size::Byte, R9, R7, AT + udp::LEN + 1);
        p.set(R2, (AT + udp::LEN + 4).into());
        p.jump(done);
        p.here(plain);
        p.load(Size::Byte, R9, R9, fou::PROTOCOL);
        p.set(R2, (AT + udp::LEN).into());
        p.here(done);
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
        p.load(Size::Word, R7, R6, self.context.data);
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
        let action = self.because(MissCause::Action);
        let forwards = if six { END_FORWARDS6 } else { END_FORWARDS4 };
        let p = &mut self.p;
        p.load(Size::Byte, R1, R9, end::FLAGS);
        p.compute(R1, Do::And, forwards.into());
        p.jump_if(R1, When::Equal, 0, action);
        self.sound_inside(six);
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
        self.look_up_inside(six);
        self.unwrap(six);
        self.pass_filters();
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::ACTION);
        p.load(Size::Double, R4, R10, stack::LENGTH);
        p.load(Size::Double, R1, R10, stack::AT);
        p.compute_with(R4, Do::Subtract, R1);
        p.add(R4, ETHERNET.into());
        self.count(R2, R4);
        self.finish();
    }
}
