//! VLAN devices: what comes in with the tag of one comes in by it, and what leaves by one leaves by the link below with its tag.
//! As the engine's `l2/vlan.rs`. At tcx the kernel keeps the first tag of a frame beside it, also of one that is to be sent.

use underpass_engine::drops::DropReason;
use underpass_engine::in_kernel::counters::DROPS;
use underpass_engine::in_kernel::links::{GROUP, GROUPS};
use underpass_engine::in_kernel::records::{IN, VLAN};
use underpass_packet::ethernet;

use super::emit::{ETHERNET, Emit, Hook, TCX_DROP, sk_buff, stack};
use super::input::{LINK_FILTERS, LINK_FLAGS};
use crate::kernel_frames::VLAN_ID;
use crate::xdp::assembler::{Do, Label, Program, R0, R1, R2, R3, R4, R6, R7, R8, R10, Size, When};

/// Helpers, from include/uapi/linux/bpf.h.
const SKB_VLAN_PUSH: i32 = 18;
const SKB_VLAN_POP: i32 = 19;

/// A link's record: where it counts what comes in, and where the slots of its VLANs begin.
const LINK_COUNTERS: i16 = 12;
const LINK_VLANS: i16 = 36;
/// That of a VLAN device: EtherType and control information of its tag, and where the link below counts what is sent.
const PROTOCOL: i16 = 40;
const CONTROL: i16 = 44;
const BELOW_SENT: i16 = 48;
/// The record of some VLANs: their devices.
const DEVICES: i16 = 8;

/// Bytes of a tag.
const TAG: i16 = 4;

impl Emit {
    /// If the frame, whose length is in R2, has a tag beside it, R8 becomes the record of the VLAN device, which is noted, as is
    /// where the link below counts. Jumps to `frame` if there is no device, and to `hooked` if something looks at what comes in
    /// by one of them. Changes R1, R3 and R4.
    pub(super) fn find_vlan_device(&mut self, hooked: Label, frame: Label) {
        let (found, customer) = (self.p.label(), self.p.label());
        let p = &mut self.p;
        p.set(R3, 0);
        p.store(Size::Double, R10, stack::BELOW, R3);
        p.load(Size::Word, R3, R6, sk_buff::VLAN_PRESENT);
        // The verifier goes on here first. What it has seen with any number in that place, it need not see again with 0.
        p.jump_if(R3, When::Equal, 0, found);
        p.load(Size::Word, R1, R8, LINK_COUNTERS);
        p.store(Size::Double, R10, stack::BELOW, R1);
        p.load(Size::Word, R1, R8, LINK_FILTERS);
        p.jump_if(R1, When::NotEqual, 0, hooked);
        p.load(Size::Word, R1, R8, LINK_VLANS);
        p.jump_if(R1, When::Equal, 0, frame);
        p.load(Size::Word, R3, R6, sk_buff::VLAN_PROTO);
        p.jump_if(R3, When::Equal, ethernet::VLAN.to_be().into(), customer);
        p.jump_if(R3, When::NotEqual, ethernet::SERVICE_VLAN.to_be().into(), frame);
        p.add(R1, 4 * GROUPS.cast_signed());
        p.here(customer);
        p.load(Size::Word, R3, R6, sk_buff::VLAN_TCI);
        p.and(R3, VLAN_ID.into());
        p.copy(R4, R3);
        p.compute(R4, Do::ShiftRight, GROUP.cast_signed());
        p.compute(R4, Do::ShiftLeft, 2);
        p.compute_with(R1, Do::Add, R4);
        p.point(R1, R1);
        p.load(Size::Word, R1, R1, 0);
        p.jump_if(R1, When::Equal, 0, frame);
        p.and(R3, (1 << GROUP) - 1);
        p.compute(R3, Do::ShiftLeft, 2);
        p.compute_with(R1, Do::Add, R3);
        p.point(R1, R1);
        p.load(Size::Word, R1, R1, DEVICES);
        p.jump_if(R1, When::Equal, 0, frame);
        p.point(R1, R1);
        p.load(Size::Word, R4, R1, 0);
        p.jump_if(R4, When::Equal, 0, frame);
        p.point(R8, R4);
        p.load(Size::Half, R1, R8, LINK_FLAGS);
        p.copy(R3, R1);
        p.and(R3, VLAN.into());
        p.jump_if(R3, When::Equal, 0, frame);
        p.and(R1, IN.into());
        p.jump_if(R1, When::Equal, 0, hooked);
        p.store(Size::Double, R10, stack::INGRESS, R4);
        p.here(found);
    }

    /// If the packet came in by a VLAN device, counts it for the link below and takes the tag off. R4 are the bytes to be counted
    /// for the link by which it came. Changes all registers that functions may.
    pub(super) fn take_tag_off(&mut self) {
        self.p.load(Size::Double, R4, R10, stack::RECEIVED);
        if self.hook == Hook::Xdp {
            return;
        }
        let plain = self.p.label();
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::BELOW);
        p.jump_if(R2, When::Equal, 0, plain);
        p.add(R4, TAG.into());
        self.count(R2, R4);
        let p = &mut self.p;
        p.copy(R1, R6);
        p.call(SKB_VLAN_POP);
        // Linux: `vlan_do_receive` counts what is behind the header.
        p.load(Size::Double, R4, R10, stack::RECEIVED);
        p.add(R4, -i32::from(ETHERNET));
        p.here(plain);
    }

    /// Jumps to where packets leave by a VLAN device if the record in R8 is that of one. Changes R3.
    pub(super) fn leave_by_vlan_device(&mut self) {
        // No driver sends by one.
        if self.hook == Hook::Tcx {
            let leaves = self.tagged;
            let p = &mut self.p;
            p.load(Size::Half, R3, R8, LINK_FLAGS);
            p.jump_if(R3, When::Bits, VLAN.into(), leaves);
        }
    }

    /// Packets leave by the VLAN device whose record is in R8.
    pub(super) fn write_tagged(&mut self) {
        let failed = self.p.label();
        self.p.here(self.tagged);
        let p = &mut self.p;
        p.copy(R1, R6);
        p.load(Size::Word, R2, R8, PROTOCOL);
        p.load(Size::Word, R3, R8, CONTROL);
        p.call(SKB_VLAN_PUSH);
        p.jump_if(R0, When::NotEqual, 0, failed);
        p.load(Size::Word, R2, R8, BELOW_SENT);
        p.load(Size::Word, R4, R6, sk_buff::LEN);
        p.add(R4, TAG.into());
        self.count(R2, R4);
        self.go();
        // The kernel does that to a frame that has no tag.
        self.p.here(failed);
        self.count_one(DROPS + 8 * DropReason::NoHeadroom as u32);
        self.p.set(R0, TCX_DROP);
        self.p.exit();
    }
}

/// A program around the one that `carry` is, which expects frames as the kernel has them: a tag at the start of the frame is beside
/// it meanwhile.
pub(super) fn write_around(p: &mut Program, carry: Label) {
    let [tagged, plain, done] = std::array::from_fn(|_| p.label());
    p.copy(R6, R1);
    p.load(Size::Word, R2, R6, sk_buff::DATA);
    p.load(Size::Word, R3, R6, sk_buff::DATA_END);
    p.copy(R4, R2);
    p.add(R4, (ETHERNET + TAG).into());
    p.jump_if_register(R4, When::Greater, R3, plain);
    p.load(Size::Half, R7, R2, ETHERNET - 2);
    p.load(Size::Half, R8, R2, ETHERNET);
    p.jump_if(R7, When::Equal, ethernet::VLAN.to_be().into(), tagged);
    p.jump_if(R7, When::NotEqual, ethernet::SERVICE_VLAN.to_be().into(), plain);
    p.here(tagged);
    p.copy(R1, R6);
    p.call(SKB_VLAN_POP);
    p.jump_if(R0, When::NotEqual, 0, plain);
    p.copy(R1, R6);
    p.copy(R2, R7);
    p.copy(R3, R8);
    p.swap(R3, 16);
    p.call(SKB_VLAN_PUSH);
    p.here(plain);
    p.copy(R1, R6);
    p.call_here(carry);
    p.copy(R7, R0);
    p.load(Size::Word, R2, R6, sk_buff::VLAN_PRESENT);
    p.jump_if(R2, When::Equal, 0, done);
    // The tag before this one comes into the frame.
    p.copy(R1, R6);
    p.set(R2, ethernet::VLAN.to_be().into());
    p.set(R3, 0);
    p.call(SKB_VLAN_PUSH);
    p.here(done);
    p.copy(R0, R7);
    p.exit();
}
