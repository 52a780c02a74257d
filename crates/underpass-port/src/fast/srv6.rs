//! SRv6: endpoint behaviours and the policy headend, RFC 8986, RFC 9800. As the fast functions of the engine's `srv6/`.

use underpass_engine::in_kernel::records::{MissCause, NEXT_CSID, PSP, USD, kind};
use underpass_packet::{ethernet, protocol, srh};

use super::emit::{ETHERNET, Emit, Hook, sk_buff, stack};
use super::input::{LINK_LOOKUP, TABLES6, ip6};
use super::leave::{LONGEST, room};
use crate::xdp::assembler::{Do, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Size, When};

/// Where the SRH begins in the frame, and its fields.
const SRH: i16 = ETHERNET + ip6::LEN;
const SRH_NEXT: i16 = SRH;
const SRH_LEN: i16 = SRH + 1;
const SRH_TYPE: i16 = SRH + 2;
const SRH_LEFT: i16 = SRH + 3;
const SRH_LAST: i16 = SRH + 4;
const SEGMENTS: i16 = SRH + 8;

/// The counter of a SID's record, and of a headend's.
const COUNTER: i16 = 4;

/// A SID's record.
const FLAVOURS: i16 = 1;
const PLACE: i16 = 8;
const SHIFT: i16 = 12;
const BLOCK: i16 = 16;
const INSTANCE: i16 = 32;

/// What becomes of the SRH.
const ADVANCED: i32 = 0;
const KEPT: i32 = 1;
const POPPED: i32 = 2;

/// A headend's record.
const HEADER_LEN: i16 = 2;
const VIA_LOOKUP: i16 = 12;
const HEADER: i32 = 16;
/// The longest header that is put before packets: 14 segments.
const LONGEST_HEADER: usize = 40 + 8 + 14 * 16;

impl Emit {
    /// Jumps if the SID may only be entered by links of another look-up, and notes its counter.
    fn enter_sid(&mut self) {
        let action = self.because(MissCause::Action);
        let p = &mut self.p;
        let any = p.label();
        p.load(Size::Word, R1, R9, INSTANCE);
        p.jump_if(R1, When::Equal, 0, any);
        p.load(Size::Word, R2, R8, LINK_LOOKUP);
        p.jump_if_register(R1, When::NotEqual, R2, action);
        p.here(any);
        self.note_counter();
    }

    /// Notes the counter of a SID or a headend, whose record R9 leads to. Changes R1.
    fn note_counter(&mut self) {
        self.p.load(Size::Half, R1, R9, COUNTER);
        self.p.store(Size::Double, R10, stack::BEHAVIOUR, R1);
    }

    /// End, End.X and End.T.
    pub(super) fn end(&mut self) {
        let segments = self.because(MissCause::Segments);
        self.enter_sid();
        let [srh, next, used_up] = std::array::from_fn(|_| self.p.label());
        self.next_csid(srh, next);
        self.p.here(srh);
        self.next_segment(used_up);
        let p = &mut self.p;
        // R4: segments left, which has 1 taken off.
        let not_last = p.label();
        p.set(R1, ADVANCED);
        p.jump_if(R4, When::NotEqual, 0, not_last);
        p.load(Size::Byte, R2, R9, FLAVOURS);
        p.compute(R2, Do::And, PSP.into());
        p.jump_if(R2, When::Equal, 0, not_last);
        p.set(R1, POPPED);
        p.here(not_last);
        p.store(Size::Double, R10, stack::MODE, R1);

        // To the next hop of the SID, or that of the segment.
        p.here(next);
        let (via, look_up, found) = (p.label(), p.label(), p.label());
        p.load(Size::Byte, R2, R9, 0);
        p.jump_if(R2, When::Equal, kind::X.into(), via);
        p.load(Size::Word, R1, R8, LINK_LOOKUP);
        p.jump_if(R2, When::Equal, kind::END.into(), look_up);
        p.load(Size::Word, R1, R9, PLACE);
        p.here(look_up);
        p.load(Size::Double, R2, R10, stack::HIGH);
        p.load(Size::Double, R3, R10, stack::LOW);
        p.set(R4, TABLES6);
        p.call_here(self.find);
        self.forwards();
        self.p.jump(found);
        let p = &mut self.p;
        p.here(via);
        // No link takes a group of the scope of the node, or of none.
        p.load(Size::Double, R1, R10, stack::HIGH);
        p.compute(R1, Do::ShiftRight, 48);
        p.compute(R1, Do::And, 0xff0e);
        p.jump_if(R1, When::Equal, 0xff00, segments);
        p.load(Size::Word, R1, R9, PLACE);
        p.here(found);
        self.find_next_hop();

        let (popped, write) = (self.p.label(), self.p.label());
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::MODE);
        p.jump_if(R1, When::Equal, POPPED, popped);
        self.fits(ETHERNET, 0);
        self.trim();
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::MODE);
        p.jump_if(R1, When::Equal, KEPT, write);
        self.reach_for_sure(SEGMENTS.into());
        let p = &mut self.p;
        p.load(Size::Byte, R1, R7, SRH_LEFT);
        p.add(R1, -1);
        p.store(Size::Byte, R7, SRH_LEFT, R1);
        // Behind the fixed header there may be less than that, where there is no SRH.
        p.here(write);
        self.reach_for_sure((ETHERNET + ip6::LEN).into());
        let p = &mut self.p;
        p.load(Size::Byte, R1, R7, ETHERNET + ip6::HOPS);
        p.add(R1, -1);
        p.store(Size::Byte, R7, ETHERNET + ip6::HOPS, R1);
        self.write_destination();
        self.finish();

        self.p.here(popped);
        self.pop_srh();

        // No next segment: RFC 8986 section 4.16.3.
        let (p, either) = (&mut self.p, self.either);
        p.here(used_up);
        p.load(Size::Byte, R1, R9, FLAVOURS);
        p.compute(R1, Do::And, USD.into());
        p.jump_if(R1, When::Equal, 0, segments);
        p.jump(either);
    }

    /// NEXT-CSID: jumps to `next` with the destination that the argument says, or to `srh` if there is none.
    fn next_csid(&mut self, srh: Label, next: Label) {
        let p = &mut self.p;
        p.load(Size::Byte, R1, R9, FLAVOURS);
        p.compute(R1, Do::And, NEXT_CSID.into());
        p.jump_if(R1, When::Equal, 0, srh);
        // Moved to the left, and what is behind the block of that.
        p.load(Size::Double, R2, R10, stack::HIGH);
        p.load(Size::Double, R3, R10, stack::LOW);
        p.load(Size::Word, R1, R9, SHIFT);
        p.compute(R1, Do::And, 63);
        p.copy(R4, R2);
        p.compute_with(R4, Do::ShiftLeft, R1);
        p.set(R5, 64);
        p.compute_with(R5, Do::Subtract, R1);
        p.compute(R5, Do::And, 63);
        p.copy(R0, R3);
        p.compute_with(R0, Do::ShiftRight, R5);
        p.compute_with(R4, Do::Or, R0);
        p.copy(R5, R3);
        p.compute_with(R5, Do::ShiftLeft, R1);
        p.load(Size::Double, R0, R9, BLOCK);
        p.compute(R0, Do::Xor, -1);
        p.compute_with(R4, Do::And, R0);
        p.load(Size::Double, R0, R9, BLOCK + 8);
        p.compute(R0, Do::Xor, -1);
        p.compute_with(R5, Do::And, R0);
        p.copy(R0, R4);
        p.compute_with(R0, Do::Or, R5);
        p.jump_if(R0, When::Equal, 0, srh);
        p.load(Size::Double, R0, R9, BLOCK);
        p.compute_with(R2, Do::And, R0);
        p.compute_with(R2, Do::Or, R4);
        p.store(Size::Double, R10, stack::HIGH, R2);
        p.load(Size::Double, R0, R9, BLOCK + 8);
        p.compute_with(R3, Do::And, R0);
        p.compute_with(R3, Do::Or, R5);
        p.store(Size::Double, R10, stack::LOW, R3);
        p.set(R1, KEPT);
        p.store(Size::Double, R10, stack::MODE, R1);
        p.jump(next);
    }

    /// Jumps if there is no SRH without TLVs and with segments left; else the next segment becomes the destination, and R4
    /// how many are left then.
    fn next_segment(&mut self, none: Label) {
        self.reach_again(SEGMENTS.into(), none);
        let p = &mut self.p;
        p.load(Size::Byte, R1, R7, ETHERNET + ip6::NEXT);
        p.jump_if(R1, When::NotEqual, protocol::ROUTING.into(), none);
        p.load(Size::Byte, R1, R7, SRH_TYPE);
        p.jump_if(R1, When::NotEqual, srh::ROUTING_TYPE.into(), none);
        self.whole_srh(none);
        let p = &mut self.p;
        p.load(Size::Byte, R4, R7, SRH_LEFT);
        p.jump_if(R4, When::Equal, 0, none);
        p.load(Size::Byte, R1, R7, SRH_LAST);
        p.add(R1, 1);
        p.jump_if_register(R4, When::Greater, R1, none);
        p.add(R4, -1);
        p.compute(R4, Do::And, 0xff);
        p.copy(R5, R4);
        p.compute(R5, Do::ShiftLeft, 4);
        p.copy(R1, R7);
        p.compute_with(R1, Do::Add, R5);
        p.copy(R2, R1);
        p.add(R2, i32::from(SEGMENTS) + 16);
        p.load(Size::Word, R3, R6, self.context.data_end);
        p.jump_if_register(R2, When::Greater, R3, none);
        p.load(Size::Double, R2, R1, SEGMENTS);
        p.swap(R2, 64);
        p.store(Size::Double, R10, stack::HIGH, R2);
        p.load(Size::Double, R2, R1, SEGMENTS + 8);
        p.swap(R2, 64);
        p.store(Size::Double, R10, stack::LOW, R2);
    }

    /// Jumps if the SRH has TLVs, or ends behind the packet. R2 is then how long it is. Changes R1 to R3.
    fn whole_srh(&mut self, other: Label) {
        let p = &mut self.p;
        p.load(Size::Byte, R2, R7, SRH_LEN);
        p.load(Size::Byte, R1, R7, SRH_LAST);
        p.add(R1, 1);
        p.compute(R1, Do::ShiftLeft, 1);
        p.jump_if_register(R1, When::NotEqual, R2, other);
        p.compute(R2, Do::ShiftLeft, 3);
        p.add(R2, 8);
        p.copy(R1, R2);
        p.add(R1, ip6::LEN.into());
        p.load(Size::Double, R3, R10, stack::LENGTH);
        p.jump_if_register(R1, When::Greater, R3, other);
    }

    /// Jumps if the action that was found, which R0 says, is not that of a route that just forwards; R1 is the slot of its
    /// next hop. R9 stays.
    pub(super) fn forwards(&mut self) {
        let (no_route, action) = (self.because(MissCause::NoRoute), self.because(MissCause::Action));
        let p = &mut self.p;
        p.jump_if(R0, When::Equal, 0, no_route);
        p.jump_if(R0, When::LessOrEqual, 2, action);
        p.point(R2, R0);
        p.load(Size::Byte, R1, R2, 0);
        p.jump_if(R1, When::NotEqual, kind::FORWARD.into(), action);
        p.load(Size::Word, R1, R2, 8);
    }

    /// Writes the destination that was noted into the IPv6 header of the frame, to which R7 leads.
    fn write_destination(&mut self) {
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::HIGH);
        p.swap(R1, 64);
        p.store(Size::Double, R7, ETHERNET + ip6::DESTINATION, R1);
        p.load(Size::Double, R1, R10, stack::LOW);
        p.swap(R1, 64);
        p.store(Size::Double, R7, ETHERNET + ip6::DESTINATION + 8, R1);
    }

    /// Penultimate segment pop: the last segment is the destination, and the SRH goes.
    fn pop_srh(&mut self) {
        let (segments, room) = (self.because(MissCause::Segments), self.because(MissCause::Room));
        let too_long = self.because(MissCause::TooLong);
        self.p.set(R2, ETHERNET.into());
        self.part_from();
        self.reach(SEGMENTS.into(), segments);
        let p = &mut self.p;
        p.load(Size::Byte, R1, R7, SRH_LEN);
        p.compute(R1, Do::ShiftLeft, 3);
        p.add(R1, 8);
        p.store(Size::Double, R10, stack::AT, R1);
        p.compute_with(R0, Do::Subtract, R1);
        p.load(Size::Word, R2, R9, LONGEST);
        p.jump_if_register(R0, When::Greater, R2, too_long);
        self.trim();
        self.reach(SEGMENTS.into(), room);
        // The fixed header as it will be.
        let p = &mut self.p;
        for word in (0..24).step_by(8) {
            p.load(Size::Double, R1, R7, ETHERNET + word);
            p.store(Size::Double, R10, stack::HEADER + word, R1);
        }
        p.load(Size::Double, R1, R10, stack::LENGTH);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R1, Do::Subtract, R2);
        p.add(R1, -i32::from(ip6::LEN));
        p.swap(R1, 16);
        p.store(Size::Half, R10, stack::HEADER + ip6::PAYLOAD, R1);
        p.load(Size::Byte, R1, R7, SRH_NEXT);
        p.store(Size::Byte, R10, stack::HEADER + ip6::NEXT, R1);
        p.load(Size::Byte, R1, R7, ETHERNET + ip6::HOPS);
        p.add(R1, -1);
        p.store(Size::Byte, R10, stack::HEADER + ip6::HOPS, R1);
        p.add(R2, ETHERNET.into());
        p.set(R4, 0);
        self.take_out();
        self.reach_for_sure((ETHERNET + ip6::LEN).into());
        let p = &mut self.p;
        for word in (0..24).step_by(8) {
            p.load(Size::Double, R1, R10, stack::HEADER + word);
            p.store(Size::Double, R7, ETHERNET + word, R1);
        }
        self.write_destination();
        self.write_ethertype(ethernet::IPV6);
        self.finish();
    }

    /// Where the packet inside begins, of a protocol, behind the fixed header or an SRH that is used up and has no TLVs:
    /// noted, and in R2. Jumps if there is none.
    fn inside(&mut self, protocol: u8, none: Label) {
        let p = &mut self.p;
        let (at_once, found) = (p.label(), p.label());
        p.load(Size::Byte, R1, R7, ETHERNET + ip6::NEXT);
        p.jump_if(R1, When::Equal, protocol.into(), at_once);
        p.jump_if(R1, When::NotEqual, protocol::ROUTING.into(), none);
        self.reach_again(SEGMENTS.into(), none);
        let p = &mut self.p;
        p.load(Size::Byte, R1, R7, SRH_TYPE);
        p.jump_if(R1, When::NotEqual, srh::ROUTING_TYPE.into(), none);
        p.load(Size::Byte, R1, R7, SRH_LEFT);
        p.jump_if(R1, When::NotEqual, 0, none);
        p.load(Size::Byte, R1, R7, SRH_NEXT);
        p.jump_if(R1, When::NotEqual, protocol.into(), none);
        self.whole_srh(none);
        let p = &mut self.p;
        p.add(R2, SRH.into());
        p.jump(found);
        p.here(at_once);
        p.set(R2, SRH.into());
        p.here(found);
        p.store(Size::Double, R10, stack::AT, R2);
    }

    /// Has R7 lead to what begins at R2 in the frame, of which so many bytes can be reached.
    pub(super) fn reach_inside(&mut self, bytes: i32, shorter: Label) {
        let p = &mut self.p;
        p.compute(R2, Do::And, 0xfff);
        p.load(Size::Word, R7, R6, self.context.data);
        p.compute_with(R7, Do::Add, R2);
        self.reach_again(bytes, shorter);
    }

    /// End.DX2: the frame inside leaves by a link.
    pub(super) fn end_dx2(&mut self) {
        let (segments, header) = (self.because(MissCause::Segments), self.because(MissCause::Header));
        let too_long = self.because(MissCause::TooLong);
        self.enter_sid();
        self.inside(protocol::ETHERNET, segments);
        self.reach_inside(ETHERNET.into(), header);
        let p = &mut self.p;
        // With what the kernel is to know of it: frames of other types are a worker's.
        let known = p.label();
        p.load(Size::Half, R1, R7, 12);
        p.set(R4, room::DECAP_L3_IPV6);
        p.jump_if(R1, When::Equal, ethernet::IPV6.to_be().into(), known);
        p.set(R4, room::DECAP_L3_IPV4);
        p.jump_if(R1, When::NotEqual, ethernet::IPV4.to_be().into(), header);
        p.here(known);
        p.store(Size::Double, R10, stack::FAMILY, R4);
        // Its own header is in the place of the packet's.
        for word in [0, 8] {
            let size = if word == 0 { Size::Double } else { Size::Word };
            p.load(size, R1, R7, word);
            p.store(size, R10, stack::HEADER + word, R1);
        }
        p.load(Size::Half, R1, R7, 12);
        p.store(Size::Half, R10, stack::HEADER + 12, R1);
        p.load(Size::Word, R1, R9, PLACE);
        self.find_link();
        self.p.load(Size::Double, R2, R10, stack::AT);
        self.p.add(R2, ETHERNET.into());
        self.part_from();
        let p = &mut self.p;
        p.load(Size::Word, R1, R8, 24);
        p.jump_if_register(R0, When::Greater, R1, too_long);
        self.trim();
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::AT);
        p.add(R2, ETHERNET.into());
        p.load(Size::Double, R4, R10, stack::FAMILY);
        self.take_out();
        self.reach_for_sure(ETHERNET.into());
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::HEADER);
        p.store(Size::Double, R7, 0, R1);
        p.load(Size::Word, R1, R10, stack::HEADER + 8);
        p.store(Size::Word, R7, 8, R1);
        p.load(Size::Half, R1, R10, stack::HEADER + 12);
        p.store(Size::Half, R7, 12, R1);
        self.send();
    }

    /// End.DX4, End.DX6, End.DT4, End.DT6 and End.DT46.
    pub(super) fn decapsulate(&mut self) {
        let segments = self.because(MissCause::Segments);
        self.enter_sid();
        let (four, six, either) = (self.p.label(), self.p.label(), self.either);
        let p = &mut self.p;
        p.load(Size::Byte, R2, R9, 0);
        p.jump_if(R2, When::Equal, kind::DX4.into(), four);
        p.jump_if(R2, When::Equal, kind::DT4.into(), four);
        p.jump_if(R2, When::Equal, kind::DT46.into(), either);

        self.p.here(six);
        self.inside(protocol::IPV6, segments);
        self.goes_on(true);

        self.p.here(either);
        // IPv4 where the header says so, or else IPv6.
        let p = &mut self.p;
        let behind = p.label();
        p.load(Size::Byte, R1, R7, ETHERNET + ip6::NEXT);
        p.jump_if(R1, When::Equal, protocol::IPV4.into(), four);
        p.jump_if(R1, When::Equal, protocol::ROUTING.into(), behind);
        p.jump(six);
        p.here(behind);
        self.reach_again(SEGMENTS.into(), segments);
        let p = &mut self.p;
        p.load(Size::Byte, R1, R7, SRH_NEXT);
        p.jump_if(R1, When::Equal, protocol::IPV4.into(), four);
        p.jump(six);

        self.p.here(four);
        self.inside(protocol::IPV4, segments);
        self.goes_on(false);
    }

    /// The packet at R2 in the frame goes where the SID or its destination says.
    fn goes_on(&mut self, six: bool) {
        self.sound_inside(six);
        let p = &mut self.p;
        let via = p.label();
        p.load(Size::Word, R1, R9, PLACE);
        p.load(Size::Byte, R2, R9, 0);
        for kind in [if six { kind::DX6 } else { kind::DX4 }, kind::X] {
            p.jump_if(R2, When::Equal, kind.into(), via);
        }
        self.look_up_inside(six);
        self.p.here(via);
        self.unwrap(six);
        self.finish();
    }

    /// Jumps if the packet inside, of so many bytes as R1 says, does not end where the outer packet ends. Changes R2, R3.
    pub(super) fn ends_there(&mut self, otherwise: Label) {
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R2, Do::Add, R1);
        p.load(Size::Double, R3, R10, stack::LENGTH);
        p.add(R3, ETHERNET.into());
        p.jump_if_register(R2, When::NotEqual, R3, otherwise);
    }

    /// Writes the EtherType of the frame, to which R7 leads.
    pub(super) fn write_ethertype(&mut self, ethertype: u16) {
        self.p.set(R1, ethertype.to_be().into());
        self.p.store(Size::Half, R7, 12, R1);
    }

    /// H.Encaps and H.Encaps.Red of a packet of the protocol in R1, whose first word and hop limit the outer header takes
    /// over, as noted.
    pub(super) fn encapsulate(&mut self) {
        let (action, room) = (self.because(MissCause::Action), self.because(MissCause::Room));
        let too_long = self.because(MissCause::TooLong);
        let p = &mut self.p;
        p.store(Size::Double, R10, stack::FAMILY, R1);
        p.load(Size::Word, R1, R9, VIA_LOOKUP);
        p.load(Size::Word, R2, R8, LINK_LOOKUP);
        p.jump_if_register(R1, When::NotEqual, R2, action);
        p.load(Size::Half, R4, R9, HEADER_LEN);
        p.jump_if(R4, When::Greater, LONGEST_HEADER as i32, action);
        p.store(Size::Double, R10, stack::AT, R4);
        self.note_counter();
        // The length of the outer packet takes 16 bits.
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::LENGTH);
        p.compute_with(R1, Do::Add, R4);
        p.jump_if(R1, When::Greater, 0xffff + i32::from(ip6::LEN), too_long);
        p.load(Size::Word, R1, R9, 8);
        self.find_next_hop();
        self.p.set(R2, ETHERNET.into());
        self.part_from();
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::AT);
        p.compute_with(R0, Do::Add, R1);
        p.load(Size::Word, R1, R9, LONGEST);
        p.jump_if_register(R0, When::Greater, R1, too_long);
        self.trim();
        let p = &mut self.p;
        let (done, again) = (p.label(), p.label());
        p.load(Size::Double, R2, R10, stack::AT);
        p.set(R4, room::ENCAP_L3_IPV6);
        self.make_room();
        let p = &mut self.p;
        p.jump_if(R0, When::Equal, 0, done);
        if self.hook == Hook::Tcx {
            // Something was put before it on this machine already: the kernel has one more header for it where no segments
            // are to be cut and the family stays.
            p.load(Size::Word, R1, R6, sk_buff::GSO_SIZE);
            p.jump_if(R1, When::NotEqual, 0, room);
            p.load(Size::Double, R1, R10, stack::FAMILY);
            p.jump_if(R1, When::Equal, protocol::IPV6.into(), again);
            p.jump(room);
            p.here(again);
            p.load(Size::Double, R2, R10, stack::AT);
            p.set(R4, 0);
            self.make_room();
            self.p.jump_if(R0, When::NotEqual, 0, room);
        } else {
            p.jump(room);
        }
        let p = &mut self.p;
        p.here(done);
        p.load(Size::Double, R5, R10, stack::ACTION);
        p.point(R5, R5);
        p.add(R5, HEADER);
        p.load(Size::Double, R4, R10, stack::AT);
        self.copy_in(ETHERNET.into(), LONGEST_HEADER, Size::Double);
        self.reach_for_sure((ETHERNET + ip6::LEN).into());
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::FIRST);
        p.store(Size::Word, R7, ETHERNET, R1);
        p.load(Size::Double, R1, R10, stack::LENGTH);
        p.load(Size::Double, R2, R10, stack::AT);
        p.compute_with(R1, Do::Add, R2);
        p.add(R1, -i32::from(ip6::LEN));
        p.swap(R1, 16);
        p.store(Size::Half, R7, ETHERNET + ip6::PAYLOAD, R1);
        let own = p.label();
        p.load(Size::Double, R1, R10, stack::HOPS);
        p.jump_if(R1, When::NotEqual, 0, own);
        p.load(Size::Byte, R1, R7, ETHERNET + ip6::HOPS);
        p.here(own);
        p.add(R1, -1);
        p.store(Size::Byte, R7, ETHERNET + ip6::HOPS, R1);
        let (alone, written) = (p.label(), p.label());
        p.load(Size::Double, R4, R10, stack::FAMILY);
        p.load(Size::Double, R2, R10, stack::AT);
        p.jump_if(R2, When::Equal, ip6::LEN.into(), alone);
        self.reach_for_sure(SEGMENTS.into());
        self.p.store(Size::Byte, R7, SRH_NEXT, R4);
        self.p.jump(written);
        self.p.here(alone);
        self.p.store(Size::Byte, R7, ETHERNET + ip6::NEXT, R4);
        self.p.here(written);
        self.write_ethertype(ethernet::IPV6);
        self.finish();
    }
}
