//! What the program does first: is the packet sound, what does its destination lead to.

use underpass_engine::drops::DropReason;
use underpass_engine::in_kernel::records::{self, MissCause, kind};
use underpass_packet::{ethernet, protocol};

use super::emit::{ETHERNET, Emit, Hook, SKB_PULL_DATA, XDP_GET_BUFF_LEN, frame_length, stack};
use super::traced::Token;
use super::walk::{NO_RECORD, NO_ROUTE, NO_TABLES, follow};
use crate::xdp::assembler::{Do, Label, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Size, When};

/// From the start of an IP header.
pub(super) mod ip4 {
    pub(in super::super) const LEN: i16 = 20;
    pub(in super::super) const TOS: i16 = 1;
    pub(in super::super) const TOTAL: i16 = 2;
    pub(in super::super) const IDENTIFICATION: i16 = 4;
    pub(in super::super) const FRAGMENT: i16 = 6;
    pub(in super::super) const PROTOCOL: i16 = 9;
    pub(in super::super) const TTL: i16 = 8;
    pub(in super::super) const CHECKSUM: i16 = 10;
    pub(in super::super) const SOURCE: i16 = 12;
    pub(in super::super) const DESTINATION: i16 = 16;
}
pub(super) mod ip6 {
    pub(in super::super) const LEN: i16 = 40;
    pub(in super::super) const PAYLOAD: i16 = 4;
    pub(in super::super) const NEXT: i16 = 6;
    pub(in super::super) const HOPS: i16 = 7;
    pub(in super::super) const SOURCE: i16 = 8;
    pub(in super::super) const DESTINATION: i16 = 24;
}

/// How much of a frame must lie together, so that the program reaches it: all headers that it looks at.
const REACHED: i32 = 256;

/// A link's record: which tables, which flags.
pub(super) const LINK_FLAGS: i16 = 4;
pub(super) const LINK_LOOKUP: i16 = 8;
const LINK_MAC: i16 = 16;
pub(super) const LINK_FILTERS: i16 = 32;

/// A look-up's record: the tables of a family.
pub(super) const TABLES4: i32 = 8;
pub(super) const TABLES6: i32 = 16;

/// Where the actions begin that both families have.
#[derive(Clone, Copy)]
struct Actions {
    forward: Label,
    blackhole: Label,
    encapsulate: Label,
    multipath: Label,
    tunnel: Label,
    local: Label,
}

impl Emit {
    /// From the first instruction to the action of the packet. `mark` is that of frames that come back from workers.
    pub(super) fn input(&mut self, mark: i32, token: Token) {
        let p = &mut self.p;
        p.copy(R6, R1);
        p.set(R1, 0);
        p.store(Size::Double, R10, stack::CAUSE, R1);
        p.store(Size::Double, R10, stack::BEHAVIOUR, R1);
        if self.hook == Hook::Tcx {
            p.load(Size::Word, R2, R6, crate::xdp::program::sk_buff::MARK);
            p.jump_if(R2, When::Equal, mark, self.miss);
        }
        p.load(Size::Word, R2, R6, self.context.ifindex);
        p.jump_if(R2, When::GreaterOrEqual, records::MOST_INTERFACES.cast_signed(), self.miss);
        p.compute(R2, Do::ShiftLeft, 2);
        p.compute(R2, Do::Add, self.places.interfaces.cast_signed());
        p.point(R2, R2);
        p.load(Size::Word, R8, R2, 0);
        p.jump_if(R8, When::Equal, 0, self.miss);
        p.store(Size::Double, R10, stack::INGRESS, R8);
        p.point(R8, R8);
        self.note_counters();
        let (hooked, traced, frame) = (
            self.because(MissCause::Hooked),
            self.because(MissCause::Traced),
            self.because(MissCause::Frame),
        );
        let p = &mut self.p;
        p.load(Size::Half, R2, R8, LINK_FLAGS);
        p.compute(R2, Do::And, (records::IN | records::BRIDGE).into());
        p.jump_if(R2, When::Equal, 0, hooked);
        self.traced(token, traced);
        let p = &mut self.p;
        frame_length(p, self.hook, (R2, R3));
        p.store(Size::Double, R10, stack::RECEIVED, R2);
        if self.hook == Hook::Tcx {
            self.enter_bridge();
            self.find_vlan_device(hooked, frame);
            self.pull(REACHED);
        } else {
            // What is in several pieces goes on.
            p.copy(R7, R2);
            p.copy(R1, R6);
            p.call(XDP_GET_BUFF_LEN);
            p.jump_if_register(R0, When::NotEqual, R7, frame);
            self.enter_bridge();
        }
        self.classify(hooked);
        self.reach(ETHERNET.into(), frame);
        let p = &mut self.p;
        p.load(Size::Double, R2, R7, 0);
        p.load(Size::Double, R3, R8, LINK_MAC);
        p.compute_with(R2, Do::Xor, R3);
        p.compute(R2, Do::ShiftLeft, 16);
        p.jump_if(R2, When::NotEqual, 0, frame);
        p.load(Size::Half, R2, R7, 12);
        let [six, four, labelled] = std::array::from_fn(|_| p.label());
        p.jump_if(R2, When::Equal, ethernet::IPV6.to_be().into(), six);
        p.jump_if(R2, When::Equal, ethernet::IPV4.to_be().into(), four);
        p.jump_if(R2, When::Equal, ethernet::MPLS.to_be().into(), labelled);
        p.jump(frame);
        p.here(labelled);
        self.labelled();
        let p = &mut self.p;
        p.here(six);
        self.input6();
        self.p.here(four);
        self.input4();
        self.write_comes_out();
        self.write_bridged();
    }

    /// Has so much of the frame, whose length R2 is, lie together, or all of it.
    fn pull(&mut self, bytes: i32) {
        let (enough, room) = (self.p.label(), self.because(MissCause::Room));
        let p = &mut self.p;
        p.load(Size::Word, R7, R6, self.context.data);
        p.load(Size::Word, R3, R6, self.context.data_end);
        p.compute_with(R3, Do::Subtract, R7);
        p.jump_if(R3, When::GreaterOrEqual, bytes, enough);
        p.jump_if_register(R3, When::GreaterOrEqual, R2, enough);
        let all = p.label();
        p.jump_if(R2, When::Less, bytes, all);
        p.set(R2, bytes);
        p.here(all);
        p.copy(R1, R6);
        p.call(SKB_PULL_DATA);
        p.jump_if(R0, When::NotEqual, 0, room);
        p.here(enough);
    }

    fn input6(&mut self) {
        let (header, hops, tables) = (
            self.because(MissCause::Header),
            self.because(MissCause::HopLimit),
            self.because(MissCause::Tables),
        );
        self.reach((ETHERNET + ip6::LEN).into(), header);
        self.sound6(ETHERNET, header, hops);
        // The length by the header; behind it there may be padding.
        let p = &mut self.p;
        p.load(Size::Half, R2, R7, ETHERNET + ip6::PAYLOAD);
        p.jump_if(R2, When::Equal, 0, header);
        p.swap(R2, 16);
        p.add(R2, ip6::LEN.into());
        p.load(Size::Double, R3, R10, stack::RECEIVED);
        p.add(R3, -i32::from(ETHERNET));
        p.jump_if_register(R2, When::Greater, R3, header);
        p.store(Size::Double, R10, stack::LENGTH, R2);
        p.load(Size::Half, R2, R8, LINK_FLAGS);
        p.compute(R2, Do::And, records::FORWARD6.into());
        p.jump_if(R2, When::Equal, 0, tables);
        p.load(Size::Double, R2, R7, ETHERNET + ip6::DESTINATION);
        p.swap(R2, 64);
        p.store(Size::Double, R10, stack::HIGH, R2);
        p.load(Size::Double, R3, R7, ETHERNET + ip6::DESTINATION + 8);
        p.swap(R3, 64);
        p.store(Size::Double, R10, stack::LOW, R3);
        p.load(Size::Word, R1, R8, LINK_LOOKUP);
        p.set(R4, TABLES6);
        p.call_here(self.find);
        self.found();

        let actions = self.compare_actions();
        let p = &mut self.p;
        let [end, dx2, decapsulate] = std::array::from_fn(|_| p.label());
        p.jump_if(R2, When::Equal, kind::END.into(), end);
        p.jump_if(R2, When::Equal, kind::X.into(), end);
        p.jump_if(R2, When::Equal, kind::T.into(), end);
        p.jump_if(R2, When::Equal, kind::DX2.into(), dx2);
        for decapsulating in [kind::DX4, kind::DX6, kind::DT4, kind::DT6, kind::DT46] {
            p.jump_if(R2, When::Equal, decapsulating.into(), decapsulate);
        }
        self.act(actions, true);

        self.p.here(end);
        self.end();
        self.p.here(dx2);
        self.end_dx2();
        self.p.here(decapsulate);
        self.decapsulate();

        self.p.here(actions.encapsulate);
        let p = &mut self.p;
        p.load(Size::Word, R1, R7, ETHERNET);
        p.store(Size::Double, R10, stack::FIRST, R1);
        p.load(Size::Byte, R1, R7, ETHERNET + ip6::HOPS);
        p.store(Size::Double, R10, stack::HOPS, R1);
        p.set(R1, protocol::IPV6.into());
        self.encapsulate();
    }

    /// Jumps to the action that R9 points at, if both families have it. R2: its kind.
    fn compare_actions(&mut self) -> Actions {
        let p = &mut self.p;
        p.load(Size::Byte, R2, R9, 0);
        let mut jump = |kind: u8| {
            let label = p.label();
            p.jump_if(R2, When::Equal, kind.into(), label);
            label
        };
        Actions {
            forward: jump(kind::FORWARD),
            blackhole: jump(kind::BLACKHOLE),
            encapsulate: jump(kind::ENCAPS),
            multipath: jump(kind::MULTIPATH),
            tunnel: jump(kind::TUNNEL),
            local: jump(kind::LOCAL),
        }
    }

    /// Performs the actions that both families have, but for the encapsulation, which the caller writes: what it takes over
    /// from the packet is the family's. An action of another kind is the router's to perform.
    fn act(&mut self, actions: Actions, ipv6: bool) {
        let (action, push) = (self.because(MissCause::Action), self.p.label());
        self.p.jump_if(R2, When::Equal, kind::PUSH.into(), push);
        self.p.jump(action);
        self.p.here(push);
        self.push_labels(ipv6);

        self.p.here(actions.multipath);
        self.choose_path();
        self.p.here(actions.forward);
        self.p.load(Size::Word, R1, R9, 8);
        self.find_next_hop();
        self.fits(ETHERNET, 0);
        self.trim();
        if ipv6 {
            self.lower6(ETHERNET);
        } else {
            self.lower4(ETHERNET);
        }
        self.finish();

        self.p.here(actions.blackhole);
        self.pass_filters();
        self.drop(DropReason::Blackhole);

        self.p.here(actions.tunnel);
        self.enter_tunnel(ipv6);
        self.p.here(actions.local);
        self.leave_tunnel(ipv6);
    }

    fn input4(&mut self) {
        let (header, hops, tables) = (
            self.because(MissCause::Header),
            self.because(MissCause::HopLimit),
            self.because(MissCause::Tables),
        );
        self.reach((ETHERNET + ip4::LEN).into(), header);
        self.sound4(ETHERNET, header);
        let p = &mut self.p;
        p.load(Size::Byte, R2, R7, ETHERNET + ip4::TTL);
        p.jump_if(R2, When::LessOrEqual, 1, hops);
        p.load(Size::Half, R2, R7, ETHERNET + ip4::TOTAL);
        p.swap(R2, 16);
        p.jump_if(R2, When::Less, ip4::LEN.into(), header);
        p.load(Size::Double, R3, R10, stack::RECEIVED);
        p.add(R3, -i32::from(ETHERNET));
        p.jump_if_register(R2, When::Greater, R3, header);
        p.store(Size::Double, R10, stack::LENGTH, R2);
        p.load(Size::Half, R2, R8, LINK_FLAGS);
        p.compute(R2, Do::And, records::FORWARD4.into());
        p.jump_if(R2, When::Equal, 0, tables);
        p.load(Size::Word, R2, R7, ETHERNET + ip4::DESTINATION);
        p.swap(R2, 32);
        p.compute(R2, Do::ShiftLeft, 32);
        p.set(R3, 0);
        p.load(Size::Word, R1, R8, LINK_LOOKUP);
        p.set(R4, TABLES4);
        p.call_here(self.find);
        self.found();

        let actions = self.compare_actions();
        self.act(actions, false);

        self.p.here(actions.encapsulate);
        let p = &mut self.p;
        // Nothing is taken over from IPv4.
        p.set(R1, i32::from(0x60_u8));
        p.store(Size::Double, R10, stack::FIRST, R1);
        p.set(R1, 0);
        p.store(Size::Double, R10, stack::HOPS, R1);
        p.set(R1, protocol::IPV4.into());
        self.encapsulate();
    }

    /// Notes the record of the action that was found, which R0 says, and has R9 lead there.
    pub(super) fn found(&mut self) {
        let (no_route, tables, action) = (
            self.because(MissCause::NoRoute),
            self.because(MissCause::Tables),
            self.because(MissCause::Action),
        );
        let p = &mut self.p;
        p.jump_if(R0, When::Equal, NO_ROUTE, no_route);
        p.jump_if(R0, When::Equal, NO_TABLES, tables);
        p.jump_if(R0, When::Equal, NO_RECORD, action);
        p.store(Size::Double, R10, stack::ACTION, R0);
        p.point(R9, R0);
    }

    /// Jumps if the IPv6 header at `at`, as R7 leads there, is not that of a packet that is simply forwarded. Changes R2.
    pub(super) fn sound6(&mut self, at: i16, header: Label, hops: Label) {
        let p = &mut self.p;
        p.load(Size::Byte, R2, R7, at);
        p.compute(R2, Do::ShiftRight, 4);
        p.jump_if(R2, When::NotEqual, 6, header);
        p.load(Size::Byte, R2, R7, at + ip6::NEXT);
        p.jump_if(R2, When::Equal, protocol::HOP_BY_HOP.into(), header);
        for address in [ip6::SOURCE, ip6::DESTINATION] {
            p.load(Size::Word, R2, R7, at + address);
            p.jump_if(R2, When::Equal, 0, header);
            // Multicast, link-local, site-local.
            p.swap(R2, 32);
            p.compute(R2, Do::ShiftRight, 16);
            p.jump_if(R2, When::GreaterOrEqual, 0xfe80, header);
        }
        p.load(Size::Byte, R2, R7, at + ip6::HOPS);
        p.jump_if(R2, When::LessOrEqual, 1, hops);
    }

    /// The same of an IPv4 header, but for its length and TTL. Changes R1 to R4.
    pub(super) fn sound4(&mut self, at: i16, header: Label) {
        let p = &mut self.p;
        p.set(R3, self.places.common.cast_signed());
        p.point(R3, R3);
        p.load(Size::Word, R3, R3, 0);
        p.load(Size::Word, R2, R7, at);
        p.copy(R1, R2);
        p.compute_with(R1, Do::And, R3);
        p.jump_if(R1, When::NotEqual, 0x45, header);
        for word in [4, 8, 12, 16] {
            p.load(Size::Word, R1, R7, at + word);
            p.compute_with(R2, Do::Add, R1);
        }
        // RFC 1071: folded to 16 bits, all of them set.
        for bits in [32, 16, 16] {
            p.copy(R1, R2);
            p.compute(R1, Do::ShiftRight, bits);
            if bits == 32 {
                p.lower(R2);
            } else {
                p.compute(R2, Do::And, 0xffff);
            }
            p.compute_with(R2, Do::Add, R1);
        }
        p.copy(R1, R2);
        p.compute(R1, Do::ShiftRight, 16);
        p.compute(R2, Do::And, 0xffff);
        p.compute_with(R2, Do::Add, R1);
        p.jump_if(R2, When::NotEqual, 0xffff, header);
        for address in [ip4::SOURCE, ip4::DESTINATION] {
            let plain = p.label();
            p.load(Size::Byte, R2, R7, at + address);
            p.jump_if(R2, When::Equal, 0, header);
            p.jump_if(R2, When::Equal, 127, header);
            p.jump_if(R2, When::GreaterOrEqual, 224, header);
            p.jump_if(R2, When::NotEqual, 169, plain);
            p.load(Size::Byte, R2, R7, at + address + 1);
            p.jump_if(R2, When::Equal, 254, header);
            p.here(plain);
        }
    }

    /// Finds the next hop whose slot is in R1: its record is in R9, and that of the link by which the packet leaves in R8.
    pub(super) fn find_next_hop(&mut self) {
        let none = self.because(MissCause::NextHop);
        let p = &mut self.p;
        follow(p, R1, none);
        p.copy(R9, R1);
        p.load(Size::Word, R1, R9, 0);
        self.find_link();
    }

    /// Finds the link whose slot is in R1.
    pub(super) fn find_link(&mut self) {
        let none = self.because(MissCause::NextHop);
        let p = &mut self.p;
        follow(p, R1, none);
        p.copy(R8, R1);
        p.load(Size::Half, R2, R8, LINK_FLAGS);
        let out = records::OUT | if self.hook == Hook::Xdp { records::XDP_OUT } else { 0 };
        p.compute(R2, Do::And, out.into());
        p.jump_if(R2, When::NotEqual, out.into(), none);
    }
}
