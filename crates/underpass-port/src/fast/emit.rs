//! The program while it is written, and what its parts have in common.
//!
//! R6 is the context, R7 the first byte of the frame, R8 the record of a link: that by which the packet came in, and later
//! that by which it leaves; R9 the record of the action, and later of the next hop. What else is known lies on the stack.

use std::collections::BTreeMap;

use underpass_engine::in_kernel::counters::{DROPS, MISSES, OBJECTS, PROCESSOR_BITS, RECEIVED, SENT};
use underpass_engine::in_kernel::records::{MissCause, Places};

use crate::xdp::assembler::{Do, Label, Program, R0, R1, R2, R3, R4, R6, R7, R8, R10, Register, Size, When};

/// Helpers, from include/uapi/linux/bpf.h.
pub(super) const GET_SMP_PROCESSOR_ID: i32 = 8;
pub(super) const REDIRECT: i32 = 23;
pub(super) const SKB_LOAD_BYTES: i32 = 26;
pub(super) const CSUM_DIFF: i32 = 28;
pub(super) const SKB_CHANGE_TAIL: i32 = 38;
pub(super) const SKB_PULL_DATA: i32 = 39;
pub(super) const SKB_ADJUST_ROOM: i32 = 50;
pub(super) const REDIRECT_PEER: i32 = 155;
pub(super) const XDP_ADJUST_HEAD: i32 = 44;
pub(super) const XDP_ADJUST_TAIL: i32 = 65;
pub(super) const XDP_GET_BUFF_LEN: i32 = 188;
pub(super) const XDP_LOAD_BYTES: i32 = 189;

/// `struct __sk_buff`.
pub(super) mod sk_buff {
    pub(in super::super) const LEN: i16 = 0;
    pub(in super::super) const VLAN_PRESENT: i16 = 20;
    pub(in super::super) const VLAN_TCI: i16 = 24;
    pub(in super::super) const VLAN_PROTO: i16 = 28;
    pub(in super::super) const IFINDEX: i16 = 40;
    pub(in super::super) const CB: i16 = 48;
    pub(in super::super) const DATA: i16 = 76;
    pub(in super::super) const DATA_END: i16 = 80;
    pub(in super::super) const GSO_SIZE: i16 = 176;
}

/// `struct xdp_md`.
mod xdp_md {
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_END: i16 = 4;
    pub(super) const INGRESS_IFINDEX: i16 = 12;
}

/// Verdicts.
pub(super) const TCX_DROP: i32 = 2;
pub(super) const TCX_REDIRECT: i32 = 7;
pub(super) const XDP_DROP: i32 = 1;
pub(super) const XDP_REDIRECT: i32 = 4;

/// Where a program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// At ingress of traffic control: tcx.
    Tcx,
    /// In the driver of a device, before the kernel makes a socket buffer of a frame. What it does not carry goes on, to the
    /// program at tcx.
    Xdp,
}

/// Where a program finds what in its context.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub(super) data: i16,
    pub(super) data_end: i16,
    pub(super) ifindex: i16,
}

impl Hook {
    fn context(self) -> Context {
        match self {
            Self::Tcx => {
                Context { data: sk_buff::DATA, data_end: sk_buff::DATA_END, ifindex: sk_buff::IFINDEX }
            }
            Self::Xdp => {
                Context { data: xdp_md::DATA, data_end: xdp_md::DATA_END, ifindex: xdp_md::INGRESS_IFINDEX }
            }
        }
    }
}

/// The stack, below what the classification of frames has there (`xdp/program.rs`).
pub(super) mod stack {
    /// Why no program takes the packet: the cause and 1, or 0.
    pub(in super::super) const CAUSE: i16 = -160;
    /// Bytes of the frame as it came.
    pub(in super::super) const RECEIVED: i16 = -168;
    /// The record of the link by which it came.
    pub(in super::super) const INGRESS: i16 = -176;
    /// The counters of this processor.
    pub(in super::super) const COUNTERS: i16 = -184;
    /// The counter of the SID, and 1; 0: none.
    pub(in super::super) const BEHAVIOUR: i16 = -192;
    /// Bytes of the packet, by its header.
    pub(in super::super) const LENGTH: i16 = -200;
    /// Where the packet inside begins in the frame.
    pub(in super::super) const AT: i16 = -208;
    /// The destination, or the next segment: as numbers.
    pub(in super::super) const HIGH: i16 = -216;
    pub(in super::super) const LOW: i16 = -224;
    /// What is done with the SRH.
    pub(in super::super) const MODE: i16 = -232;
    /// What an outer header takes over: its first word, and the hop limit.
    pub(in super::super) const FIRST: i16 = -240;
    pub(in super::super) const HOPS: i16 = -248;
    /// Where the link below the VLAN device counts by which it came, or 0.
    pub(in super::super) const BELOW: i16 = -256;
    /// The record of the action.
    pub(in super::super) const ACTION: i16 = -264;
    /// The family of the packet inside: its EtherType as in a frame, as the machine reads it.
    pub(in super::super) const FAMILY: i16 = -272;
    /// An IPv6 header, on its way elsewhere.
    pub(in super::super) const HEADER: i16 = -312;
    /// The record of the filters of what comes in, or 0.
    pub(in super::super) const FILTERS: i16 = -320;
    /// What they say.
    pub(in super::super) const HELD: i16 = -328;
    /// Bytes of the datagram that is summed.
    pub(in super::super) const SUMMED: i16 = -336;
}

/// Bytes of the header of a frame.
pub(super) const ETHERNET: i16 = 14;

pub(super) struct Emit {
    pub(super) p: Program,
    pub(super) hook: Hook,
    /// Whether the program knows filters.
    pub(super) polices: bool,
    pub(super) context: Context,
    pub(super) places: Places,
    pub(super) find: Label,
    pub(super) walk: Label,
    pub(super) part: Label,
    pub(super) sum: Label,
    pub(super) fold: Label,
    pub(super) flow: Label,
    /// What is in the packet for a SID goes on by itself, IPv4 or IPv6.
    pub(super) either: Label,
    /// IPv4 comes out of a tunnel, and IPv6.
    pub(super) comes_out: [Label; 2],
    pub(super) classify: Label,
    pub(super) police: Label,
    pub(super) act: Label,
    /// The packet leaves by a VLAN device.
    pub(super) tagged: Label,
    /// The frame goes through a bridge.
    pub(super) bridged: Label,
    /// A filter drops the packet, for the reason in R0.
    pub(super) policed: Label,
    /// The packet is the kernel's or a worker's.
    pub(super) miss: Label,
    causes: BTreeMap<u32, Label>,
}

impl Emit {
    pub(super) fn new(mut p: Program, places: Places, hook: Hook) -> Self {
        let [find, walk, part, sum, fold, flow, miss] = std::array::from_fn(|_| p.label());
        let [either, classify, police, act, policed, tagged, bridged] = std::array::from_fn(|_| p.label());
        let comes_out = std::array::from_fn(|_| p.label());
        let (context, causes) = (hook.context(), BTreeMap::new());
        Self {
            p,
            hook,
            polices: true,
            context,
            places,
            find,
            walk,
            part,
            sum,
            fold,
            flow,
            either,
            comes_out,
            classify,
            police,
            act,
            tagged,
            bridged,
            policed,
            miss,
            causes,
        }
    }

    /// Where to jump to if no program takes the packet for this cause. In a driver it need not be noted: what goes on from there
    /// is looked at again.
    pub(super) fn because(&mut self, cause: MissCause) -> Label {
        if self.hook == Hook::Xdp {
            return self.miss;
        }
        *self.causes.entry(cause as u32).or_insert_with(|| self.p.label())
    }

    /// What the labels of causes do.
    pub(super) fn write_causes(&mut self) {
        for (cause, label) in std::mem::take(&mut self.causes) {
            self.p.here(label);
            self.p.set(R1, cause.cast_signed() + 1);
            self.p.store(Size::Double, R10, stack::CAUSE, R1);
            self.p.jump(self.miss);
        }
    }

    /// Has R7 lead to the frame, of which so many bytes can be reached; jumps if it is shorter. Changes R2 and R3.
    pub(super) fn reach(&mut self, bytes: i32, shorter: Label) {
        self.p.load(Size::Word, R7, R6, self.context.data);
        self.reach_again(bytes, shorter);
    }

    /// The same where R7 does lead there.
    pub(super) fn reach_again(&mut self, bytes: i32, shorter: Label) {
        let p = &mut self.p;
        p.load(Size::Word, R2, R6, self.context.data_end);
        p.copy(R3, R7);
        p.add(R3, bytes);
        p.jump_if_register(R3, When::Greater, R2, shorter);
    }

    /// Adds so many bytes, in `bytes`, and a packet to the counter at `at` of a processor's. Changes R1 to R3.
    pub(super) fn count(&mut self, at: Register, bytes: Register) {
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::COUNTERS);
        p.compute_with(R1, Do::Add, at);
        p.point(R1, R1);
        p.load(Size::Double, R3, R1, 8);
        p.compute_with(R3, Do::Add, bytes);
        p.store(Size::Double, R1, 8, R3);
        p.load(Size::Double, R3, R1, 0);
        p.add(R3, 1);
        p.store(Size::Double, R1, 0, R3);
    }

    /// Adds 1 to a processor's number that lies at a place known now. Changes R1 and R3.
    pub(super) fn count_one(&mut self, at: u32) {
        let p = &mut self.p;
        p.load(Size::Double, R1, R10, stack::COUNTERS);
        p.compute(R1, Do::Add, at.cast_signed());
        p.point(R1, R1);
        p.load(Size::Double, R3, R1, 0);
        p.add(R3, 1);
        p.store(Size::Double, R1, 0, R3);
    }

    /// Writes down where the counters of this processor are.
    pub(super) fn note_counters(&mut self) {
        let p = &mut self.p;
        p.call(GET_SMP_PROCESSOR_ID);
        p.compute(R0, Do::ShiftLeft, PROCESSOR_BITS.cast_signed());
        p.compute(R0, Do::Add, self.places.counters.cast_signed());
        p.store(Size::Double, R10, stack::COUNTERS, R0);
    }

    /// Counts a packet as received, by the link by which it came too, and takes the tag off that it came with.
    pub(super) fn count_received(&mut self) {
        self.count_one(RECEIVED);
        self.take_tag_off();
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::INGRESS);
        p.point(R2, R2);
        p.load(Size::Word, R2, R2, 12);
        self.count(R2, R4);
    }

    /// Counts a packet as sent by the link whose record is in R8, and of the SID it came by, and sends it by that link.
    pub(super) fn send(&mut self) {
        self.pass_filters();
        self.count_received();
        self.leave_by_vlan_device();
        self.go();
    }

    /// The same when it is counted as received.
    pub(super) fn go(&mut self) {
        self.go_by(true);
    }

    /// The same of a frame as it came, by the device itself, also where another end might be given it: that would take every
    /// frame for its own.
    pub(super) fn go_by_device(&mut self) {
        self.go_by(false);
    }

    fn go_by(&mut self, changed: bool) {
        let peers = changed && self.hook == Hook::Tcx;
        self.count_one(SENT);
        let p = &mut self.p;
        p.load(Size::Word, R2, R8, 12);
        p.compute(R2, Do::Add, 32);
        match changed {
            true => frame_length(p, self.hook, (R4, R1)),
            false => p.load(Size::Double, R4, R10, stack::RECEIVED),
        }
        self.count(R2, R4);
        let p = &mut self.p;
        let (uncounted, peer) = (p.label(), p.label());
        p.load(Size::Double, R2, R10, stack::BEHAVIOUR);
        p.jump_if(R2, When::Equal, 0, uncounted);
        p.compute(R2, Do::ShiftLeft, 5);
        p.compute(R2, Do::Add, OBJECTS.cast_signed() - 32);
        p.load(Size::Double, R4, R10, stack::LENGTH);
        self.count(R2, R4);
        let p = &mut self.p;
        p.here(uncounted);
        p.load(Size::Word, R1, R8, 0);
        p.set(R2, 0);
        if peers {
            p.load(Size::Half, R3, R8, 4);
            p.jump_if(R3, When::Bits, i32::from(underpass_engine::in_kernel::records::PEER), peer);
        }
        p.call(REDIRECT);
        p.exit();
        if peers {
            p.here(peer);
            p.call(REDIRECT_PEER);
            p.exit();
        }
    }

    /// Drops the packet for a reason.
    pub(super) fn drop(&mut self, reason: underpass_engine::drops::DropReason) {
        self.count_received();
        self.count_one(DROPS + 8 * reason as u32);
        self.p.set(R0, if self.hook == Hook::Tcx { TCX_DROP } else { XDP_DROP });
        self.p.exit();
    }

    /// Counts that a worker gets the packet, if a program might have taken it.
    pub(super) fn count_miss(&mut self) {
        let none = self.p.label();
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::CAUSE);
        p.jump_if(R2, When::Equal, 0, none);
        p.load(Size::Double, R1, R10, stack::COUNTERS);
        p.compute(R2, Do::ShiftLeft, 3);
        p.compute_with(R1, Do::Add, R2);
        p.compute(R1, Do::Add, MISSES.cast_signed() - 8);
        p.point(R1, R1);
        p.load(Size::Double, R3, R1, 0);
        p.add(R3, 1);
        p.store(Size::Double, R1, 0, R3);
        p.here(none);
    }
}

/// `to =` how many bytes a frame has: in a driver, where R6 is the context, what lies together. Changes `other`.
pub(super) fn frame_length(p: &mut Program, hook: Hook, (to, other): (Register, Register)) {
    match hook {
        Hook::Tcx => p.load(Size::Word, to, R6, sk_buff::LEN),
        Hook::Xdp => {
            p.load(Size::Word, other, R6, xdp_md::DATA);
            p.load(Size::Word, to, R6, xdp_md::DATA_END);
            p.compute_with(to, Do::Subtract, other);
        }
    }
}

/// Adds 1, or what is in `more`, to the number at `at` behind what `to` leads to. Changes R3.
pub(super) fn add(p: &mut Program, to: Register, at: i16, more: Option<Register>) {
    p.load(Size::Double, R3, to, at);
    match more {
        Some(more) => p.compute_with(R3, Do::Add, more),
        None => p.add(R3, 1),
    }
    p.store(Size::Double, to, at, R3);
}
