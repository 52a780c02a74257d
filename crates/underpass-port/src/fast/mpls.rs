//! MPLS: RFC 3031, RFC 3032. As the fast functions of the engine's `mpls/`. At tcx a label is only changed, as the kernel makes
//! room behind the header of a frame for IP alone.

use underpass_engine::in_kernel::counters::{LABELLED, LINKS, PROCESSOR_BITS};
use underpass_engine::in_kernel::labels::{self, KIND, LABEL, NEXT_HOP, OUTER_LABEL, POP, PROPAGATE, SWAP};
use underpass_engine::in_kernel::records::{self, MissCause};
use underpass_packet::{ethernet, mpls};

use super::emit::{ETHERNET, Emit, Hook, add, sk_buff, stack};
use super::input::{LINK_FLAGS, ip4, ip6};
use super::leave::LONGEST;
use crate::xdp::assembler::{Do, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Register, Size, When};

/// Bytes of a label.
const ENTRY: i16 = 4;
/// Labels of which one must be the last.
const DEEPEST: i16 = 6;
/// Bits of a label's number.
const NUMBER: i32 = mpls::MAX_LABEL.cast_signed();
/// The TTL's bits in an entry.
const TTL: i32 = 0xff;

/// A record of labels to put on.
const LEN: i16 = 2;
const OWN_TTL: i16 = 12;
const ENTRIES: i32 = 16;

impl Emit {
    /// Carries the labelled packet in the frame, to which R7 leads.
    ///
    /// Noted: the entry as a number in [`stack::FIRST`], what its label leads to in [`stack::HIGH`], the label in
    /// [`stack::LOW`].
    pub(super) fn labelled(&mut self) {
        let [frame, hops, no_route, action, header] =
            [MissCause::Frame, MissCause::HopLimit, MissCause::NoRoute, MissCause::Action, MissCause::Header]
                .map(|cause| self.because(cause));
        let (too_long, segment) = (self.because(MissCause::TooLong), self.because(MissCause::Segment));
        let Some((table, _)) = self.places.labels else { return self.p.jump(frame) };
        let p = &mut self.p;
        p.load(Size::Half, R2, R8, LINK_FLAGS);
        p.compute(R2, Do::And, records::LABELS.into());
        p.jump_if(R2, When::Equal, 0, frame);
        if self.hook == Hook::Tcx {
            p.load(Size::Word, R2, R6, sk_buff::GSO_SIZE);
            p.jump_if(R2, When::NotEqual, 0, segment);
        }
        p.load(Size::Double, R1, R10, stack::RECEIVED);
        p.add(R1, -i32::from(ETHERNET));
        p.store(Size::Double, R10, stack::LENGTH, R1);
        self.reach_again((ETHERNET + ENTRY).into(), frame);
        let p = &mut self.p;
        p.load(Size::Word, R4, R7, ETHERNET);
        p.swap(R4, 32);
        p.store(Size::Double, R10, stack::FIRST, R4);
        p.copy(R1, R4);
        p.compute(R1, Do::And, TTL);
        p.jump_if(R1, When::LessOrEqual, 1, hops);
        let ends = p.label();
        p.jump_if(R4, When::Bits, mpls::BOTTOM.cast_signed(), ends);
        for below in 1..DEEPEST {
            self.reach_again((ETHERNET + ENTRY * (below + 1)).into(), header);
            self.p.load(Size::Byte, R1, R7, ETHERNET + ENTRY * below + 2);
            self.p.jump_if(R1, When::Bits, 1, ends);
        }
        let p = &mut self.p;
        p.jump(header);
        p.here(ends);
        p.compute(R4, Do::ShiftRight, 12);
        p.store(Size::Double, R10, stack::LOW, R4);
        p.compute(R4, Do::ShiftLeft, 3);
        p.compute(R4, Do::Add, table.cast_signed());
        p.point(R4, R4);
        p.load(Size::Double, R4, R4, 0);
        p.jump_if(R4, When::Equal, 0, no_route);
        p.store(Size::Double, R10, stack::HIGH, R4);
        p.copy(R1, R4);
        p.compute(R1, Do::And, NEXT_HOP);
        p.compute(R1, Do::ShiftLeft, 2);
        p.compute(R1, Do::Add, self.places.next_hops.cast_signed());
        self.find_next_hop();
        let (swap, pop) = (self.p.label(), self.p.label());
        let p = &mut self.p;
        p.load(Size::Double, R4, R10, stack::HIGH);
        p.compute(R4, Do::ShiftRight, KIND);
        p.jump_if(R4, When::Equal, SWAP, swap);
        if self.hook == Hook::Xdp {
            p.jump_if(R4, When::Equal, POP, pop);
            self.longer(ENTRY.into(), too_long);
            self.swap_push();
            self.p.here(pop);
            self.longer(-i32::from(ENTRY), too_long);
            self.pop_label(header, action);
        } else {
            p.jump(action);
        }
        self.p.here(swap);
        self.longer(0, too_long);
        self.swap_label();
    }

    /// Jumps if the packet, with so many bytes more, is longer than the next hop in R9 takes. Changes R1 and R2.
    fn longer(&mut self, more: i32, too_long: Label) {
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::LENGTH);
        p.add(R1, more);
        p.load(Size::Word, R2, R9, LONGEST);
        p.jump_if_register(R1, When::Greater, R2, too_long);
    }

    /// `to =` the bits that a label takes over from that whose place it takes.
    fn kept(&mut self, to: Register) {
        self.p.set(to, self.places.common.cast_signed() + 16);
        self.p.point(to, to);
        self.p.load(Size::Word, to, to, 0);
    }

    /// Another label takes the place of the first.
    fn swap_label(&mut self) {
        self.reach_for_sure((ETHERNET + ENTRY).into());
        self.kept(R3);
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::FIRST);
        p.compute_with(R3, Do::And, R2);
        self.new_label(LABEL);
        let p = &mut self.p;
        p.swap(R1, 32);
        p.store(Size::Word, R7, ETHERNET, R1);
        self.count_label();
        self.count_sent_label();
        self.leave_labelled();
    }

    /// R1 becomes the entry of the label that begins so many bits from the right of what the first one leads to, with the
    /// bits in R3 and the TTL of the entry in R2, less 1. Changes R4.
    fn new_label(&mut self, from: i32) {
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::HIGH);
        p.compute(R1, Do::ShiftRight, from);
        p.compute(R1, Do::And, NUMBER);
        p.compute(R1, Do::ShiftLeft, 12);
        p.compute_with(R1, Do::Or, R3);
        p.copy(R4, R2);
        p.compute(R4, Do::And, TTL);
        p.add(R4, -1);
        p.compute_with(R1, Do::Or, R4);
    }

    /// Two labels take the place of the first.
    fn swap_push(&mut self) {
        let room = self.because(MissCause::Room);
        self.p.set(R2, ENTRY.into());
        self.make_room();
        self.p.jump_if(R0, When::NotEqual, 0, room);
        self.reach_for_sure((ETHERNET + 2 * ENTRY).into());
        for (at, from, bits) in [
            (ETHERNET, OUTER_LABEL, mpls::TRAFFIC_CLASS),
            (ETHERNET + ENTRY, LABEL, mpls::TRAFFIC_CLASS | mpls::BOTTOM),
        ] {
            self.kept(R3);
            let p = &mut self.p;
            p.load(Size::Double, R2, R10, stack::FIRST);
            p.compute_with(R3, Do::And, R2);
            p.compute(R3, Do::And, bits.cast_signed());
            self.new_label(from);
            self.p.swap(R1, 32);
            self.p.store(Size::Word, R7, at, R1);
        }
        self.count_label();
        self.count_sent_label();
        self.leave_labelled();
    }

    /// The label is taken off.
    fn pop_label(&mut self, header: Label, action: Label) {
        let room = self.because(MissCause::Room);
        // With one class for packets and labels, what is below takes that over too.
        self.kept(R3);
        self.p.jump_if(R3, When::Bits, mpls::TRAFFIC_CLASS.cast_signed(), action);
        let [below, four, six, taken] = std::array::from_fn(|_| self.p.label());
        const IP: i16 = ETHERNET + ENTRY;
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::FIRST);
        p.set(R5, ethernet::MPLS.to_be().into());
        p.jump_if(R2, When::Bits, mpls::BOTTOM.cast_signed(), below);
        p.jump(taken);
        // What is below the last one is IP.
        p.here(below);
        self.reach_again((IP + ip4::LEN).into(), header);
        let p = &mut self.p;
        p.load(Size::Byte, R1, R7, IP);
        p.compute(R1, Do::ShiftRight, 4);
        p.jump_if(R1, When::Equal, 6, six);
        p.jump_if(R1, When::Equal, 4, four);
        p.jump(header);
        p.here(six);
        self.reach_again((IP + ip6::LEN).into(), header);
        self.p.set(R5, ethernet::IPV6.to_be().into());
        self.p.jump(taken);
        self.p.here(four);
        self.p.set(R5, ethernet::IPV4.to_be().into());

        self.p.here(taken);
        let p = &mut self.p;
        p.store(Size::Double, R10, stack::FAMILY, R5);
        p.set(R2, -i32::from(ENTRY));
        self.make_room();
        self.p.jump_if(R0, When::NotEqual, 0, room);
        let [four, six, written, labelled] = std::array::from_fn(|_| self.p.label());
        let p = &mut self.p;
        p.load(Size::Double, R5, R10, stack::FAMILY);
        p.jump_if(R5, When::Equal, ethernet::IPV6.to_be().into(), six);
        p.jump_if(R5, When::Equal, ethernet::IPV4.to_be().into(), four);
        self.count_label();
        self.p.jump(labelled);

        self.p.here(six);
        self.reach_for_sure((ETHERNET + ip6::LEN).into());
        self.handed_ttl(ETHERNET + ip6::HOPS);
        self.p.store(Size::Byte, R7, ETHERNET + ip6::HOPS, R1);
        self.p.jump(written);

        self.p.here(four);
        self.reach_for_sure((ETHERNET + ip4::LEN).into());
        self.handed_ttl(ETHERNET + ip4::TTL);
        // RFC 1624, of the first byte of a word, as it lies: `checksum::update_first`.
        let p = &mut self.p;
        p.load(Size::Byte, R3, R7, ETHERNET + ip4::TTL);
        p.store(Size::Byte, R7, ETHERNET + ip4::TTL, R1);
        p.compute(R1, Do::ShiftLeft, 8);
        p.compute(R3, Do::ShiftLeft, 8);
        p.load(Size::Half, R4, R7, ETHERNET + ip4::CHECKSUM);
        p.swap(R4, 16);
        p.compute(R4, Do::Xor, 0xffff);
        p.add(R4, 0xffff);
        p.compute_with(R4, Do::Add, R1);
        p.compute_with(R4, Do::Subtract, R3);
        for _ in 0..2 {
            p.copy(R3, R4);
            p.compute(R3, Do::ShiftRight, 16);
            p.compute(R4, Do::And, 0xffff);
            p.compute_with(R4, Do::Add, R3);
        }
        p.compute(R4, Do::Xor, 0xffff);
        p.swap(R4, 16);
        p.store(Size::Half, R7, ETHERNET + ip4::CHECKSUM, R4);
        p.here(written);
        self.count_label();
        self.leave_as_noted();

        self.p.here(labelled);
        self.count_sent_label();
        self.leave_as_noted();
    }

    /// R1 becomes the TTL of what was below the label: the label's or its own, which lies at `own` behind R7, less 1.
    fn handed_ttl(&mut self, own: i16) {
        let p = &mut self.p;
        let (lowered, taken_over) = (p.label(), p.label());
        p.load(Size::Double, R2, R10, stack::HIGH);
        p.load(Size::Double, R1, R10, stack::FIRST);
        p.compute(R1, Do::And, TTL);
        p.jump_if(R2, When::Bits, PROPAGATE, taken_over);
        p.load(Size::Byte, R1, R7, own);
        p.here(taken_over);
        p.jump_if(R1, When::Equal, 0, lowered);
        p.add(R1, -1);
        p.here(lowered);
    }

    /// Puts the labels of the record in R9 on the packet in the frame.
    pub(super) fn push_labels(&mut self, six: bool) {
        let [action, too_long, room] =
            [MissCause::Action, MissCause::TooLong, MissCause::Room].map(|cause| self.because(cause));
        if self.hook == Hook::Tcx {
            return self.p.jump(action);
        }
        // With one class for packets and labels, they have that of the packet.
        self.kept(R3);
        let p = &mut self.p;
        p.jump_if(R3, When::Bits, mpls::TRAFFIC_CLASS.cast_signed(), action);
        p.load(Size::Half, R2, R9, LEN);
        p.store(Size::Double, R10, stack::AT, R2);
        p.load(Size::Word, R1, R9, 8);
        self.find_next_hop();
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::LENGTH);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R1, Do::Add, R2);
        p.load(Size::Word, R2, R9, LONGEST);
        p.jump_if_register(R1, When::Greater, R2, too_long);
        self.trim();
        self.p.load(Size::Double, R2, R10, stack::AT);
        self.make_room();
        self.p.jump_if(R0, When::NotEqual, 0, room);
        self.lower_inside(six);
        let p = &mut self.p;
        let given = p.label();
        p.load(Size::Double, R5, R10, stack::ACTION);
        p.point(R5, R5);
        p.load(Size::Word, R1, R5, OWN_TTL);
        p.jump_if(R1, When::NotEqual, 0, given);
        p.load(Size::Byte, R1, R7, ETHERNET + if six { ip6::HOPS } else { ip4::TTL });
        p.here(given);
        p.store(Size::Double, R10, stack::HOPS, R1);
        p.add(R5, ENTRIES);
        p.load(Size::Double, R4, R10, stack::AT);
        self.copy_in(ETHERNET.into(), records::MOST_LABELS * ENTRY as usize, Size::Word);
        let written = self.p.label();
        for label in 0..records::MOST_LABELS as i16 {
            let p = &mut self.p;
            p.load(Size::Double, R4, R10, stack::AT);
            p.jump_if(R4, When::LessOrEqual, (label * ENTRY).into(), written);
            self.reach_for_sure((ETHERNET + (label + 1) * ENTRY).into());
            self.p.load(Size::Double, R1, R10, stack::HOPS);
            self.p.store(Size::Byte, R7, ETHERNET + label * ENTRY + 3, R1);
        }
        self.p.here(written);
        self.count_sent_label();
        self.leave_labelled();
    }

    /// Sends a labelled packet to the next hop in R9.
    fn leave_labelled(&mut self) {
        self.reach_for_sure(ETHERNET.into());
        self.write_ethertype(ethernet::MPLS);
        self.finish();
    }

    /// Sends a packet of the noted EtherType to the next hop in R9.
    fn leave_as_noted(&mut self) {
        self.reach_for_sure(ETHERNET.into());
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::FAMILY);
        p.store(Size::Half, R7, 12, R1);
        self.finish();
    }

    /// Counts the packet, as it came, by its first label, and as labelled by its link. Changes R1 to R5.
    fn count_label(&mut self) {
        self.pass_filters();
        let (counters, own) = (self.places.counters, self.places.labels.map_or(0, |(_, own)| own));
        let p = &mut self.p;
        p.load(Size::Double, R4, R10, stack::LENGTH);
        p.load(Size::Double, R1, R10, stack::COUNTERS);
        p.compute(R1, Do::Subtract, counters.cast_signed());
        p.compute(R1, Do::ShiftLeft, labels::PROCESSOR_BITS - PROCESSOR_BITS.cast_signed());
        p.load(Size::Double, R2, R10, stack::LOW);
        p.compute(R2, Do::ShiftLeft, labels::COUNTER_BITS);
        p.compute_with(R1, Do::Add, R2);
        p.compute(R1, Do::Add, own.cast_signed());
        p.point(R1, R1);
        add(p, R1, 0, None);
        add(p, R1, 8, Some(R4));
        p.load(Size::Double, R5, R10, stack::INGRESS);
        p.point(R5, R5);
        self.count_labelled(R5, 0, R4);
    }

    /// Counts the frame, as it leaves by the link in R8, as labelled. Changes R1 to R5.
    fn count_sent_label(&mut self) {
        self.pass_filters();
        super::emit::frame_length(&mut self.p, self.hook, (R4, R1));
        self.p.add(R4, -i32::from(ETHERNET));
        self.count_labelled(R8, 16, R4);
    }

    /// Adds a packet, and its bytes, to the counters of labelled packets of a link, at `at` of these. Changes R1 to R3.
    fn count_labelled(&mut self, link: Register, at: i16, bytes: Register) {
        let p = &mut self.p;
        // Half as many bytes as where the link is counted.
        p.load(Size::Word, R2, link, 12);
        p.compute(R2, Do::Subtract, LINKS.cast_signed());
        p.compute(R2, Do::ShiftRight, 1);
        p.compute(R2, Do::Add, LABELLED.cast_signed());
        p.load(Size::Double, R1, R10, stack::COUNTERS);
        p.compute_with(R1, Do::Add, R2);
        p.point(R1, R1);
        add(p, R1, at, None);
        add(p, R1, at + 8, Some(bytes));
    }
}
