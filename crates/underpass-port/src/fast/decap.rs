//! Out of a tunnel, as [`super::encap`] has them. As `decap_fast` of the engine's `tunnel/decap.rs`.

use underpass_engine::in_kernel::records::{IN_VRF, MissCause, kind};
use underpass_engine::in_kernel::tunnels::{END_FOREIGN, END_FORWARDS4, END_FORWARDS6, END_KEY, END_OWN};
use underpass_engine::tables::TunnelKind;
use underpass_packet::{ethernet, protocol};

use super::emit::{ETHERNET, Emit, stack};
use super::hash::{FIRST, SECOND};
use super::input::{LINK_FLAGS, LINK_LOOKUP, TABLES4, TABLES6, ip4, ip6};
use super::walk::{NO_RECORD, NO_TABLES, follow};
use crate::xdp::assembler::{
    Do, Label, Program, R0, R1, R2, R3, R4, R5, R7, R8, R9, R10, Register, Size, When,
};

/// The record of an end.
mod end {
    pub(super) const KIND: i16 = 0;
    pub(super) const FLAGS: i16 = 1;
    pub(super) const LOCAL: i16 = 8;
    pub(super) const REMOTE: i16 = 12;
    pub(super) const KEY: i16 = 16;
    pub(super) const COUNTER: i16 = 20;
    pub(super) const LOOKUP: i16 = 24;
    pub(super) const UNDERLAY: i16 = 28;
    pub(super) const LOCAL6: i16 = 32;
    pub(super) const REMOTE6: i16 = 48;
}

/// The record of a port of foo-over-UDP.
mod fou {
    pub(super) const GUE: i16 = 0;
    pub(super) const PROTOCOL: i16 = 1;
    pub(super) const SIX: i16 = 2;
    pub(super) const LOCAL: i16 = 8;
}

/// Bytes of an encapsulation limit and what is around it.
const LIMIT: i16 = 8;

/// A UDP header: its fields, and how long it is.
pub(super) mod udp {
    pub(super) const DESTINATION: i16 = 2;
    pub(in super::super) const LENGTH: i16 = 4;
    pub(in super::super) const CHECKSUM: i16 = 6;
    pub(in super::super) const LEN: i16 = 8;
}

impl Emit {
    /// Takes the packet in the frame, which is for the router, out of its tunnel: `decap_fast`. Jumps to the end for what is
    /// none's, to be the kernel's.
    pub(super) fn leave_tunnel(&mut self, over6: bool) {
        let (action, header) = (self.because(MissCause::Action), self.because(MissCause::Header));
        let miss = self.miss;
        // R9: the protocol inside; R2: where it begins.
        if over6 {
            self.outer6(header);
        } else {
            self.outer4(miss);
        }
        let tunnelled = self.p.label();
        self.p.jump_if(R9, When::NotEqual, protocol::UDP.into(), tunnelled);
        self.pass_udp(over6, miss);
        self.p.here(tunnelled);
        let [inside4, inside6, gre, known] = std::array::from_fn(|_| self.p.label());
        let p = &mut self.p;
        p.jump_if(R9, When::Equal, protocol::IPV4.into(), inside4);
        p.jump_if(R9, When::Equal, protocol::IPV6.into(), inside6);
        p.jump_if(R9, When::Equal, protocol::GRE.into(), gre);
        p.jump(miss);
        // R5: the kind of the tunnel, and whether there is a key above; R4: the key; the EtherType is noted.
        let (of4, of6) = if over6 {
            (TunnelKind::Ip6tnl, TunnelKind::Ip6tnl)
        } else {
            (TunnelKind::Ipip, TunnelKind::Sit)
        };
        for (label, tunnel, ethertype) in [(inside4, of4, ethernet::IPV4), (inside6, of6, ethernet::IPV6)] {
            p.here(label);
            p.set(R5, tunnel as i32);
            p.set(R4, 0);
            p.set(R1, ethertype.to_be().into());
            p.jump(known);
        }
        p.here(gre);
        self.gre(over6, header, known);
        let p = &mut self.p;
        p.here(known);
        p.store(Size::Double, R10, stack::FAMILY, R1);
        p.store(Size::Double, R10, stack::AT, R2);
        p.store(Size::Double, R10, stack::LOW, R4);
        p.store(Size::Double, R10, stack::MODE, R5);
        if over6 {
            self.find_end6(action);
            self.may_come6(action);
        } else {
            self.find_end4(action);
            self.may_come4(action);
        }
        let [out4, out6] = self.comes_out;
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::AT);
        p.load(Size::Double, R1, R10, stack::FAMILY);
        p.jump_if(R1, When::Equal, ethernet::IPV6.to_be().into(), out6);
        p.jump(out4);
    }

    /// Notes the TOS of the outer IPv4 header; R9 is then the protocol behind it, R2 where that begins. Jumps for fragments.
    fn outer4(&mut self, fragment: Label) {
        let p = &mut self.p;
        p.load(Size::Half, R1, R7, ETHERNET + ip4::FRAGMENT);
        p.compute(R1, Do::And, 0x3fff_u16.to_be().into());
        p.jump_if(R1, When::NotEqual, 0, fragment);
        p.load(Size::Byte, R1, R7, ETHERNET + ip4::TOS);
        p.store(Size::Double, R10, stack::FIRST, R1);
        p.load(Size::Byte, R9, R7, ETHERNET + ip4::PROTOCOL);
        p.set(R2, (ETHERNET + ip4::LEN).into());
    }

    /// The same of IPv6, where an encapsulation limit may stand between, as Linux writes it; jumps for other options.
    fn outer6(&mut self, options: Label) {
        const AT: i16 = ETHERNET + ip6::LEN;
        let plain = self.p.label();
        let p = &mut self.p;
        p.load(Size::Half, R1, R7, ETHERNET);
        p.swap(R1, 16);
        p.compute(R1, Do::ShiftRight, 4);
        p.compute(R1, Do::And, 0xff);
        p.store(Size::Double, R10, stack::FIRST, R1);
        p.load(Size::Byte, R9, R7, ETHERNET + ip6::NEXT);
        p.set(R2, AT.into());
        p.jump_if(R9, When::NotEqual, protocol::DESTINATION_OPTIONS.into(), plain);
        self.reach_again((AT + LIMIT).into(), options);
        let p = &mut self.p;
        for (at, byte) in [(1, 0), (2, 4), (3, 1), (5, 1), (6, 1), (7, 0)] {
            p.load(Size::Byte, R1, R7, AT + at);
            p.jump_if(R1, When::NotEqual, byte, options);
        }
        p.load(Size::Byte, R9, R7, AT);
        p.set(R2, (AT + LIMIT).into());
        p.here(plain);
    }

    /// Goes past UDP, and GUE, if it is for a port of foo-over-UDP; else jumps to `other`. R9 and R2 as in
    /// [`Self::leave_tunnel`].
    fn pass_udp(&mut self, over6: bool, other: Label) {
        let action = self.because(MissCause::Action);
        let fou_ports = self.places.fou_ports.cast_signed();
        self.p.store(Size::Double, R10, stack::AT, R2);
        self.reach_inside(udp::LEN.into(), other);
        let p = &mut self.p;
        p.load(Size::Half, R1, R7, udp::DESTINATION);
        p.swap(R1, 16);
        p.compute(R1, Do::ShiftLeft, 2);
        p.compute(R1, Do::Add, fou_ports);
        follow(p, R1, other);
        p.copy(R9, R1);
        p.load(Size::Byte, R1, R9, fou::SIX);
        p.jump_if(R1, When::NotEqual, over6.into(), other);
        // Which ports a VRF has is for a worker.
        p.load(Size::Half, R1, R8, LINK_FLAGS);
        p.compute(R1, Do::And, IN_VRF.into());
        p.jump_if(R1, When::NotEqual, 0, action);
        p.load(Size::Half, R1, R7, udp::LENGTH);
        p.swap(R1, 16);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R1, Do::Add, R2);
        p.add(R1, -i32::from(ETHERNET));
        p.load(Size::Double, R2, R10, stack::LENGTH);
        p.jump_if_register(R1, When::NotEqual, R2, action);
        let unchecked = p.label();
        p.load(Size::Half, R1, R7, udp::CHECKSUM);
        p.jump_if(R1, When::Equal, 0, unchecked);
        self.check_datagram(over6, action);
        let p = &mut self.p;
        p.here(unchecked);
        // The address, if it is for one alone.
        let any = p.label();
        let (size, parts, local): (_, &[i16], _) = if over6 {
            (Size::Double, &[0, 8], ETHERNET + ip6::DESTINATION)
        } else {
            (Size::Word, &[0], ETHERNET + ip4::DESTINATION)
        };
        p.set(R2, 0);
        for part in parts {
            p.load(size, R1, R9, fou::LOCAL + part);
            p.compute_with(R2, Do::Or, R1);
        }
        p.jump_if(R2, When::Equal, 0, any);
        self.reach((ETHERNET + if over6 { ip6::LEN } else { ip4::LEN }).into(), action);
        let p = &mut self.p;
        for part in parts {
            p.load(size, R1, R9, fou::LOCAL + part);
            p.load(size, R2, R7, local + part);
            p.jump_if_register(R1, When::NotEqual, R2, action);
        }
        p.here(any);
        let (plain, done) = (p.label(), p.label());
        p.load(Size::Byte, R1, R9, fou::GUE);
        p.jump_if(R1, When::Equal, 0, plain);
        p.load(Size::Double, R2, R10, stack::AT);
        self.reach_inside((udp::LEN + 4).into(), action);
        let p = &mut self.p;
        // Variant 0, no fields, not control.
        p.load(Size::Byte, R1, R7, udp::LEN);
        p.jump_if(R1, When::NotEqual, 0, action);
        p.load(Size::Half, R1, R7, udp::LEN + 2);
        p.jump_if(R1, When::NotEqual, 0, action);
        p.load(Size::Byte, R9, R7, udp::LEN + 1);
        p.load(Size::Double, R2, R10, stack::AT);
        p.add(R2, (udp::LEN + 4).into());
        p.jump(done);
        p.here(plain);
        p.load(Size::Byte, R9, R9, fou::PROTOCOL);
        p.load(Size::Double, R2, R10, stack::AT);
        p.add(R2, udp::LEN.into());
        p.here(done);
    }

    /// Reads a GRE header with at most a key, and goes on at `known`.
    fn gre(&mut self, over6: bool, malformed: Label, known: Label) {
        let kind = if over6 { TunnelKind::Ip6gre } else { TunnelKind::Gre } as i32;
        let with_key = kind | i32::from(END_KEY) << 8;
        self.p.store(Size::Double, R10, stack::AT, R2);
        self.reach_inside(4, malformed);
        let (keyed, typed) = (self.p.label(), self.p.label());
        let p = &mut self.p;
        p.load(Size::Half, R0, R7, 2);
        p.store(Size::Double, R10, stack::FAMILY, R0);
        p.load(Size::Half, R1, R7, 0);
        // Over IPv6 no key is key 0.
        p.set(R5, if over6 { with_key } else { kind });
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
        p.set(R5, with_key);
        p.load(Size::Double, R2, R10, stack::AT);
        p.add(R2, 8);
        p.here(typed);
        p.load(Size::Double, R1, R10, stack::FAMILY);
        p.jump_if(R1, When::Equal, ethernet::IPV4.to_be().into(), known);
        p.jump_if(R1, When::Equal, ethernet::IPV6.to_be().into(), known);
        p.jump(malformed);
    }

    /// R9 becomes the record of the end that a packet is for, as noted: `TunnelTable::precomputed_decap`.
    fn find_end4(&mut self, none: Label) {
        self.reach((ETHERNET + ip4::LEN).into(), none);
        let p = &mut self.p;
        p.load(Size::Word, R1, R7, ETHERNET + ip4::SOURCE);
        p.swap(R1, 32);
        p.load(Size::Word, R2, R7, ETHERNET + ip4::DESTINATION);
        p.swap(R2, 32);
        p.compute(R2, Do::ShiftLeft, 32);
        p.compute_with(R1, Do::Xor, R2);
        self.find_end(none);
        // It may be another one's place.
        self.reach((ETHERNET + ip4::LEN).into(), none);
        let p = &mut self.p;
        for (place, at) in [(end::LOCAL, ip4::DESTINATION), (end::REMOTE, ip4::SOURCE)] {
            p.load(Size::Word, R1, R9, place);
            p.load(Size::Word, R2, R7, ETHERNET + at);
            p.swap(R2, 32);
            p.jump_if_register(R1, When::NotEqual, R2, none);
        }
    }

    /// The same over IPv6.
    fn find_end6(&mut self, none: Label) {
        self.reach((ETHERNET + ip6::LEN).into(), none);
        let p = &mut self.p;
        // Both halves of each in one, and both in one.
        for (to, address, turned) in [(R1, ip6::SOURCE, 0), (R4, ip6::DESTINATION, 32)] {
            p.load(Size::Double, to, R7, ETHERNET + address + 8);
            p.swap(to, 64);
            p.load(Size::Double, R2, R7, ETHERNET + address);
            p.swap(R2, 64);
            rotate(p, R2, 23, R3);
            p.compute_with(to, Do::Xor, R2);
            if turned > 0 {
                rotate(p, to, turned, R3);
            }
        }
        p.compute_with(R1, Do::Xor, R4);
        self.find_end(none);
        self.reach((ETHERNET + ip6::LEN).into(), none);
        let p = &mut self.p;
        for (place, at) in [(end::LOCAL6, ip6::DESTINATION), (end::REMOTE6, ip6::SOURCE)] {
            for half in [0, 8] {
                p.load(Size::Double, R1, R9, place + half);
                p.load(Size::Double, R2, R7, ETHERNET + at + half);
                p.jump_if_register(R1, When::NotEqual, R2, none);
            }
        }
    }

    /// R9 becomes the record at the place of what is noted and of the addresses, which R1 has; jumps if it has another kind
    /// or key. The addresses are still to be compared.
    fn find_end(&mut self, none: Label) {
        let p = &mut self.p;
        // The hash of the chain.
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
    }

    /// Jumps if the other end is an address of the router's.
    fn may_come4(&mut self, refused: Label) {
        let p = &mut self.p;
        let foreign = p.label();
        p.load(Size::Word, R1, R8, LINK_LOOKUP);
        p.load(Size::Word, R2, R9, end::REMOTE);
        p.compute(R2, Do::ShiftLeft, 32);
        p.set(R3, 0);
        p.set(R4, TABLES4);
        p.call_here(self.find);
        let p = &mut self.p;
        p.jump_if(R0, When::LessOrEqual, NO_RECORD, foreign);
        p.point(R1, R0);
        p.load(Size::Byte, R1, R1, 0);
        p.jump_if(R1, When::Equal, kind::LOCAL.into(), refused);
        p.here(foreign);
    }

    /// The same over IPv6 where the end says so; also if the packet came in by a VRF, for an address that is none of the
    /// router's where outer packets go: `find_fast`.
    fn may_come6(&mut self, refused: Label) {
        let tables = self.because(MissCause::Tables);
        let (at_home, foreign) = (self.p.label(), self.p.label());
        self.unless_end_has(END_OWN, at_home);
        let p = &mut self.p;
        p.load(Size::Half, R1, R8, LINK_FLAGS);
        p.compute(R1, Do::And, IN_VRF.into());
        p.jump_if(R1, When::Equal, 0, at_home);
        self.kind_of_end(end::LOCAL6, tables, refused);
        let p = &mut self.p;
        p.jump_if(R1, When::NotEqual, kind::LOCAL.into(), refused);
        p.here(at_home);
        self.unless_end_has(END_FOREIGN, foreign);
        self.kind_of_end(end::REMOTE6, tables, foreign);
        let p = &mut self.p;
        p.jump_if(R1, When::Equal, kind::LOCAL.into(), refused);
        p.here(foreign);
    }

    /// Jumps if the end in R9 does not have the flag. Changes R1.
    fn unless_end_has(&mut self, flag: u8, otherwise: Label) {
        let p = &mut self.p;
        p.load(Size::Byte, R1, R9, end::FLAGS);
        p.compute(R1, Do::And, flag.into());
        p.jump_if(R1, When::Equal, 0, otherwise);
    }

    /// R1 becomes the kind of the action of an address of the end in R9, where outer packets are looked up; jumps if that
    /// is not known, or there is none.
    fn kind_of_end(&mut self, address: i16, unknown: Label, none: Label) {
        let p = &mut self.p;
        p.load(Size::Word, R1, R9, end::UNDERLAY);
        for (to, half) in [(R2, 0), (R3, 8)] {
            p.load(Size::Double, to, R9, address + half);
            p.swap(to, 64);
        }
        p.set(R4, TABLES6);
        p.call_here(self.find);
        let p = &mut self.p;
        p.jump_if(R0, When::Equal, NO_TABLES, unknown);
        p.jump_if(R0, When::LessOrEqual, NO_RECORD, none);
        p.point(R1, R0);
        p.load(Size::Byte, R1, R1, 0);
    }

    /// What the labels of packets that come out do.
    pub(super) fn write_comes_out(&mut self) {
        for (label, six) in self.comes_out.into_iter().zip([false, true]) {
            self.p.here(label);
            self.comes_out(six);
        }
    }

    /// The packet at R2 in the frame comes out by the end in R9, and goes where its destination leads.
    fn comes_out(&mut self, six: bool) {
        let action = self.because(MissCause::Action);
        let forwards = if six { END_FORWARDS6 } else { END_FORWARDS4 };
        self.unless_end_has(forwards, action);
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

/// Turns a register to the left by so many bits. Changes `other`.
fn rotate(p: &mut Program, of: Register, bits: i32, other: Register) {
    p.copy(other, of);
    p.compute(of, Do::ShiftLeft, bits);
    p.compute(other, Do::ShiftRight, 64 - bits);
    p.compute_with(of, Do::Or, other);
}
