//! Bridges: a frame from a station that is known at its port, for one that is known at another, leaves by that. As the engine's
//! `l2/bridge.rs`, in the same table. All else is a worker's.

use underpass_engine::in_kernel::counters::MOST_LINKS;
use underpass_engine::in_kernel::records::{BRIDGE, BRIDGE_OUT, MissCause};
use underpass_engine::l2::fdb::{ENTRY_LINK, ENTRY_LOCAL, ENTRY_PRESENT, KEY_USED, SHIFTS};
use underpass_packet::ethernet;

use super::emit::{ETHERNET, Emit, Hook, sk_buff, stack};
use super::input::{LINK_FILTERS, LINK_FLAGS};
use crate::xdp::assembler::{Do, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Register, Size, When};

/// The record of a link: its MTU.
const LINK_MTU: i16 = 24;
/// That of a port of a bridge.
const SLOTS: i16 = 40;
const MASK: i16 = 44;
const FACTOR: i16 = 48;
const HEARD: i16 = 56;
const NUMBER: i16 = 60;
const OF_BRIDGE: i16 = 64;

/// How many slots are looked at for a station. Most are in the first.
const PROBES: usize = 4;

/// Bytes of a tag, which Linux allows beyond what a link takes: `is_skb_forwardable`.
const TAG: i32 = 4;

impl Emit {
    /// Jumps to where frames go through a bridge if the link in R8 is a port of one. Changes R1.
    pub(super) fn enter_bridge(&mut self) {
        let bridged = self.bridged;
        self.p.load(Size::Half, R1, R8, LINK_FLAGS);
        self.p.jump_if(R1, When::Bits, BRIDGE.into(), bridged);
    }

    /// Frames go through a bridge.
    pub(super) fn write_bridged(&mut self) {
        let (unknown, too_long, hooked) = (
            self.because(MissCause::Station),
            self.because(MissCause::TooLong),
            self.because(MissCause::Hooked),
        );
        self.p.here(self.bridged);
        // Which filters are about a frame with a tag workers say.
        let (tagged, plain) = (self.p.label(), self.p.label());
        match self.hook {
            Hook::Tcx => {
                let p = &mut self.p;
                p.set(R1, 0);
                p.store(Size::Double, R10, stack::BELOW, R1);
                p.load(Size::Word, R1, R6, sk_buff::VLAN_PRESENT);
                p.jump_if(R1, When::Equal, 0, plain);
            }
            Hook::Xdp => {
                self.reach(ETHERNET.into(), unknown);
                let p = &mut self.p;
                p.load(Size::Half, R1, R7, 12);
                p.jump_if(R1, When::Equal, ethernet::VLAN.to_be().into(), tagged);
                p.jump_if(R1, When::NotEqual, ethernet::SERVICE_VLAN.to_be().into(), plain);
            }
        }
        let p = &mut self.p;
        p.here(tagged);
        p.load(Size::Word, R1, R8, LINK_FILTERS);
        p.jump_if(R1, When::NotEqual, 0, hooked);
        p.here(plain);
        self.classify(hooked);
        self.reach(ETHERNET.into(), unknown);
        // Destination and source, as numbers.
        let p = &mut self.p;
        p.load(Size::Double, R1, R7, 0);
        p.swap(R1, 64);
        p.compute(R1, Do::ShiftRight, 16);
        p.load(Size::Double, R2, R7, 4);
        p.swap(R2, 64);
        p.compute(R2, Do::ShiftLeft, 16);
        p.compute(R2, Do::ShiftRight, 16);
        p.set_wide(R4, KEY_USED);
        for (address, place) in [(R1, stack::HIGH), (R2, stack::LOW)] {
            p.copy(R3, address);
            p.compute(R3, Do::ShiftRight, 40);
            p.jump_if(R3, When::Bits, 1, unknown);
            p.compute_with(address, Do::Or, R4);
            p.store(Size::Double, R10, place, address);
        }

        // The source is heard here, again.
        self.find_station(stack::LOW, unknown);
        let p = &mut self.p;
        p.load(Size::Word, R3, R8, NUMBER);
        p.jump_if_register(R2, When::NotEqual, R3, unknown);
        let heard = p.label();
        p.load(Size::Word, R3, R8, HEARD);
        p.compute_with(R1, Do::Add, R3);
        p.point(R1, R1);
        p.load(Size::Byte, R3, R1, 0);
        p.jump_if(R3, When::NotEqual, 0, heard);
        p.set(R3, 1);
        p.store(Size::Byte, R1, 0, R3);
        p.here(heard);

        // The destination is elsewhere.
        self.find_station(stack::HIGH, unknown);
        let p = &mut self.p;
        p.load(Size::Word, R3, R8, NUMBER);
        p.jump_if_register(R2, When::Equal, R3, unknown);
        p.jump_if(R2, When::GreaterOrEqual, MOST_LINKS.cast_signed(), unknown);
        p.load(Size::Word, R1, R8, OF_BRIDGE);
        p.store(Size::Double, R10, stack::AT, R1);
        p.copy(R1, R2);
        p.compute(R1, Do::ShiftLeft, 2);
        p.compute(R1, Do::Add, self.places.links.cast_signed());
        self.find_link();
        let none = self.because(MissCause::NextHop);
        let p = &mut self.p;
        p.load(Size::Half, R1, R8, LINK_FLAGS);
        p.compute(R1, Do::And, BRIDGE_OUT.into());
        p.jump_if(R1, When::Equal, 0, none);
        p.load(Size::Word, R1, R8, OF_BRIDGE);
        p.load(Size::Double, R2, R10, stack::AT);
        p.jump_if_register(R1, When::NotEqual, R2, none);
        let fits = p.label();
        if self.hook == Hook::Tcx {
            p.load(Size::Word, R1, R6, sk_buff::GSO_SIZE);
            p.jump_if(R1, When::NotEqual, 0, fits);
        }
        // In a driver a tag is in the frame, and one that may be longer for that is a worker's.
        p.load(Size::Word, R1, R8, LINK_MTU);
        p.add(R1, i32::from(ETHERNET) + TAG);
        p.load(Size::Double, R2, R10, stack::RECEIVED);
        p.jump_if_register(R2, When::Greater, R1, too_long);
        p.here(fits);
        if self.hook == Hook::Tcx {
            // What is beside the frame is counted with it.
            let plain = p.label();
            p.load(Size::Word, R1, R6, sk_buff::VLAN_PRESENT);
            p.jump_if(R1, When::Equal, 0, plain);
            p.load(Size::Double, R2, R10, stack::RECEIVED);
            p.add(R2, TAG);
            p.store(Size::Double, R10, stack::RECEIVED, R2);
            p.here(plain);
        }
        self.pass_filters();
        self.count_received();
        self.go_by_device();
    }

    /// R1 becomes the place of the station whose key is on the stack, and R2 the link that it is at. Jumps if it is not known, or is
    /// the bridge's own. Changes R0 to R5.
    fn find_station(&mut self, key: i16, unknown: Label) {
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, key);
        p.load(Size::Double, R2, R8, FACTOR);
        p.call_here(self.fold);
        for bits in SHIFTS {
            p.copy(R1, R0);
            p.compute(R1, Do::ShiftRight, bits.cast_signed());
            p.compute_with(R0, Do::Xor, R1);
        }
        let found = p.label();
        p.load(Size::Word, R3, R8, MASK);
        p.load(Size::Word, R4, R8, SLOTS);
        p.load(Size::Double, R5, R10, key);
        for _ in 0..PROBES {
            p.copy(R1, R0);
            p.compute_with(R1, Do::And, R3);
            slot(p, R2, R1, R4);
            p.load(Size::Double, R9, R2, 0);
            p.jump_if_register(R9, When::Equal, R5, found);
            p.jump_if(R9, When::Equal, 0, unknown);
            p.add(R0, 1);
        }
        p.jump(unknown);
        p.here(found);
        p.load(Size::Double, R2, R2, 8);
        p.copy(R3, R2);
        p.compute(R3, Do::And, (ENTRY_PRESENT | ENTRY_LOCAL).cast_signed());
        p.jump_if(R3, When::NotEqual, ENTRY_PRESENT.cast_signed(), unknown);
        p.compute(R2, Do::And, ENTRY_LINK.cast_signed());
    }
}

/// `to =` where the slot at `place` is, among those that begin at `slots`.
fn slot(p: &mut crate::xdp::assembler::Program, to: Register, place: Register, slots: Register) {
    p.copy(to, place);
    p.compute(to, Do::ShiftLeft, 4);
    p.compute_with(to, Do::Add, slots);
    p.point(to, to);
}
