//! Functions of the program: the look-up of an address in the tries of the engine, and the length of the parts of a
//! large segment.

use underpass_engine::in_kernel::layout;
use underpass_packet::protocol;

use super::emit::{Emit, SKB_LOAD_BYTES, sk_buff};
use crate::xdp::assembler::{
    Do, Label, Program, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Register, Size, When,
};

/// What a look-up says that found no action, by 0, 1, 2; more is the address of a record.
pub(super) const NO_ROUTE: i32 = 0;
pub(super) const NO_TABLES: i32 = 1;
pub(super) const NO_RECORD: i32 = 2;

/// Frames of the look-up.
const HIGH: i16 = -8;
const LOW: i16 = -16;
const ROOT: i16 = -24;
const SECOND: i16 = -32;

/// Most nodes on the way to a leaf of IPv6: one for each byte behind the root.
const DEPTH: usize = 14;
/// Most prefixes in a node.
const PREFIXES: usize = 256;

impl Emit {
    /// `R0 = find(R1: slot of the look-up, R2: first half of the address, R3: second, R4: where in the look-up's record the
    /// tables of the family are)`. The action's record, or why there is none.
    pub(super) fn function_find(&mut self) {
        let (found, absent, unknown) = (self.p.label(), self.p.label(), self.p.label());
        self.p.function(self.find, "find", Some(4));
        let p = &mut self.p;
        p.store(Size::Double, R10, HIGH, R2);
        p.store(Size::Double, R10, LOW, R3);
        follow(p, R1, unknown);
        p.compute_with(R1, Do::Add, R4);
        p.load(Size::Word, R2, R1, 4);
        p.load(Size::Word, R1, R1, 0);
        p.jump_if(R1, When::Equal, 0, unknown);
        p.store(Size::Double, R10, SECOND, R2);
        p.load(Size::Double, R2, R10, HIGH);
        p.load(Size::Double, R3, R10, LOW);
        p.call_here(self.walk);
        p.jump_if(R0, When::NotEqual, 0, found);
        p.load(Size::Double, R1, R10, SECOND);
        p.jump_if(R1, When::Equal, 0, absent);
        p.load(Size::Double, R2, R10, HIGH);
        p.load(Size::Double, R3, R10, LOW);
        p.call_here(self.walk);
        p.jump_if(R0, When::Equal, 0, absent);
        // A mark is a leaf and 1.
        p.here(found);
        p.compute(R0, Do::ShiftLeft, 2);
        p.compute(R0, Do::Add, self.places.actions.cast_signed() - 4);
        p.point(R1, R0);
        p.load(Size::Word, R0, R1, 0);
        let there = p.label();
        p.jump_if(R0, When::NotEqual, 0, there);
        p.set(R0, NO_RECORD);
        p.here(there);
        p.exit();
        p.here(absent);
        p.set(R0, NO_ROUTE);
        p.exit();
        p.here(unknown);
        p.set(R0, NO_TABLES);
        p.exit();
    }

    /// `R0 = walk(R1: root, R2, R3: the address)`: the mark of the longest prefix, or 0. As `Lpm::lookup`.
    ///
    /// R2 and R3 are the rest of the address, R4 the entry, R5 scratch, R6 the node, R7 the slot in it, R8 the root's slot.
    pub(super) fn function_walk(&mut self) {
        self.p.function(self.walk, "walk", Some(3));
        let p = &mut self.p;
        let (leaf, record, cover, default) = (p.label(), p.label(), p.label(), p.label());
        let stop = p.label();
        p.store(Size::Double, R10, HIGH, R2);
        p.store(Size::Double, R10, LOW, R3);
        p.store(Size::Double, R10, ROOT, R1);
        let trie = p.label();
        self.look_up_laid_out(trie, default);
        let p = &mut self.p;
        p.here(trie);
        p.load(Size::Double, R1, R10, ROOT);
        p.load(Size::Double, R2, R10, HIGH);
        p.load(Size::Double, R3, R10, LOW);
        p.copy(R8, R2);
        p.compute(R8, Do::ShiftRight, 48);
        p.copy(R4, R8);
        p.compute(R4, Do::ShiftLeft, 3);
        p.compute_with(R4, Do::Add, R1);
        p.point(R4, R4);
        p.load(Size::Double, R4, R4, 0);
        shift_address(p, 16);
        p.set(R6, 0);
        p.set(R7, 0);
        for _ in 0..DEPTH {
            // Does the entry lead on? Then its kind is 1, and the address goes on with its suffix.
            differs(p);
            p.jump_if(R5, When::NotEqual, 0, stop);
            p.copy(R5, R4);
            p.compute(R5, Do::And, 3);
            p.jump_if(R5, When::NotEqual, 1, stop);
            // Past the suffix.
            length(p, R5);
            p.compute_with(R2, Do::ShiftLeft, R5);
            p.copy(R0, R3);
            p.compute(R0, Do::ShiftRight, 1);
            p.copy(R9, R5);
            p.compute(R9, Do::Xor, 63);
            p.compute_with(R0, Do::ShiftRight, R9);
            p.compute_with(R2, Do::Or, R0);
            p.compute_with(R3, Do::ShiftLeft, R5);
            // Into the node: the byte of the slot, and the entry that it names.
            p.copy(R6, R4);
            p.compute(R6, Do::ShiftLeft, 24);
            p.compute(R6, Do::ShiftRight, 32);
            p.compute(R6, Do::ShiftLeft, 3);
            p.compute(R6, Do::Add, self.places.nodes.cast_signed());
            p.copy(R7, R2);
            p.compute(R7, Do::ShiftRight, 56);
            p.copy(R5, R6);
            p.compute_with(R5, Do::Add, R7);
            p.point(R5, R5);
            p.load(Size::Byte, R5, R5, 0);
            p.compute(R5, Do::ShiftLeft, 3);
            p.compute_with(R5, Do::Add, R6);
            p.point(R5, R5);
            p.load(Size::Double, R4, R5, layout::NODE_ENTRIES * 8);
            shift_address(p, 8);
        }
        p.here(stop);
        differs(p);
        p.jump_if(R5, When::NotEqual, 0, cover);
        p.copy(R5, R4);
        p.compute(R5, Do::And, 3);
        p.jump_if(R5, When::Equal, 0, leaf);
        p.jump_if(R5, When::Equal, 1, cover);
        p.jump(record);

        // A leaf says what it says, but for one of the root that is empty.
        p.here(leaf);
        p.copy(R0, R4);
        p.compute(R0, Do::ShiftLeft, 32);
        p.compute(R0, Do::ShiftRight, 40);
        let empty = p.label();
        p.jump_if(R0, When::Equal, 0, empty);
        p.exit();
        p.here(empty);
        p.jump_if(R6, When::NotEqual, 0, default);
        p.jump(cover);

        // A record has the whole prefix: both halves, and its length over its mark.
        p.here(record);
        p.compute(R4, Do::ShiftLeft, 24);
        p.compute(R4, Do::ShiftRight, 32);
        p.compute(R4, Do::ShiftLeft, 3);
        p.compute(R4, Do::Add, self.places.nodes.cast_signed());
        p.point(R4, R4);
        p.load(Size::Double, R2, R4, 0);
        p.load(Size::Double, R5, R10, HIGH);
        p.compute_with(R2, Do::Xor, R5);
        p.load(Size::Double, R3, R4, 8);
        p.load(Size::Double, R5, R10, LOW);
        p.compute_with(R3, Do::Xor, R5);
        p.load(Size::Word, R5, R4, 20);
        p.load(Size::Word, R0, R4, 16);
        let (second, matches) = (p.label(), p.label());
        p.compute(R5, Do::And, 0xff);
        p.jump_if(R5, When::Greater, 64, second);
        p.jump_if(R5, When::Equal, 0, matches);
        p.set(R4, 64);
        p.compute_with(R4, Do::Subtract, R5);
        p.compute(R4, Do::And, 63);
        p.compute_with(R2, Do::ShiftRight, R4);
        p.jump_if(R2, When::NotEqual, 0, cover);
        p.exit();
        p.here(second);
        p.jump_if(R2, When::NotEqual, 0, cover);
        p.set(R4, 128);
        p.compute_with(R4, Do::Subtract, R5);
        p.compute(R4, Do::And, 63);
        p.compute_with(R3, Do::ShiftRight, R4);
        p.jump_if(R3, When::NotEqual, 0, cover);
        p.here(matches);
        p.exit();

        // What shorter prefixes say of the slot: those painted on the root's, or those in the node, the longest last.
        p.here(cover);
        let (in_node, search) = (p.label(), p.label());
        p.jump_if(R6, When::NotEqual, 0, in_node);
        p.load(Size::Double, R1, R10, ROOT);
        p.compute(R1, Do::Add, layout::COVERED);
        p.point(R2, R1);
        p.load(Size::Double, R0, R2, 0);
        p.jump_if(R0, When::Equal, 0, default);
        p.load(Size::Double, R1, R10, ROOT);
        p.compute(R8, Do::ShiftLeft, 3);
        p.compute_with(R1, Do::Add, R8);
        p.compute(R1, Do::Add, layout::COVERS);
        p.point(R2, R1);
        p.load(Size::Word, R0, R2, 0);
        p.jump_if(R0, When::Equal, 0, default);
        p.exit();

        p.here(in_node);
        p.point(R1, R6);
        p.load(Size::Double, R1, R1, layout::NODE_META * 8);
        // How many prefixes; the class of the block's size, by which its end is known.
        p.copy(R8, R1);
        p.compute(R8, Do::ShiftRight, 49);
        p.compute(R8, Do::And, 0x1ff);
        p.copy(R2, R1);
        p.compute(R2, Do::ShiftRight, 58);
        p.compute(R2, Do::And, 31);
        p.compute(R2, Do::ShiftLeft, 3);
        p.compute(R2, Do::Add, self.places.sizes.cast_signed());
        p.point(R2, R2);
        p.load(Size::Word, R2, R2, 0);
        p.compute_with(R6, Do::Add, R2);
        p.copy(R0, R1);
        p.compute(R0, Do::And, (1 << 30) - 1);
        p.compute(R7, Do::Or, 0x100);
        p.set(R9, 0);
        p.here(search);
        let (done, next) = (p.label(), p.label());
        p.jump_if_register(R9, When::GreaterOrEqual, R8, done);
        p.jump_if(R9, When::GreaterOrEqual, PREFIXES as i32, done);
        p.compute(R9, Do::Add, 1);
        p.compute(R6, Do::Subtract, 8);
        p.point(R1, R6);
        p.load(Size::Double, R2, R1, 0);
        p.copy(R3, R2);
        p.compute(R3, Do::ShiftRight, 32);
        p.compute(R3, Do::And, 0xff);
        // 1 and the prefix's bits: the slot, with a 1 before its bits, begins with them.
        p.copy(R4, R7);
        for _ in 0..8 {
            let longer = p.label();
            p.compute(R4, Do::ShiftRight, 1);
            p.jump_if_register(R3, When::NotEqual, R4, longer);
            p.copy(R0, R2);
            p.lower(R0);
            p.jump(done);
            p.here(longer);
        }
        p.here(next);
        p.jump(search);
        p.here(done);
        p.jump_if(R0, When::Equal, 0, default);
        p.exit();

        p.here(default);
        p.load(Size::Double, R1, R10, ROOT);
        p.compute(R1, Do::Add, layout::DEFAULT);
        p.point(R1, R1);
        p.load(Size::Word, R0, R1, 0);
        p.exit();
    }

    /// `R0 = part(R1: context, R2: where an IP packet begins in the frame)`: how long the parts of a large segment are
    /// from there on, each with all its headers. 0: that is not known.
    pub(super) fn function_part(&mut self) {
        const BYTES: i16 = -40;
        const START: i16 = -48;
        /// Headers that are passed over.
        const HEADERS: usize = 6;
        self.p.function(self.part, "part", None);
        let p = &mut self.p;
        let (unknown, tcp) = (p.label(), p.label());
        p.copy(R6, R1);
        p.copy(R7, R2);
        p.store(Size::Double, R10, START, R2);
        // R8 is the protocol of what begins at R7; that of the first is said by its version.
        p.set(R8, i32::from(protocol::IPV4));
        for _ in 0..HEADERS {
            let (ip, extension, next) = (p.label(), p.label(), p.label());
            p.jump_if(R8, When::Equal, i32::from(protocol::TCP), tcp);
            p.jump_if(R8, When::Equal, i32::from(protocol::IPV4), ip);
            p.jump_if(R8, When::Equal, i32::from(protocol::IPV6), ip);
            p.jump_if(R8, When::Equal, i32::from(protocol::ROUTING), extension);
            p.jump(unknown);

            p.here(ip);
            bytes(p, BYTES, 20, unknown);
            p.load(Size::Byte, R1, R10, BYTES);
            let six = p.label();
            p.copy(R2, R1);
            p.compute(R2, Do::ShiftRight, 4);
            p.jump_if(R2, When::Equal, 6, six);
            p.jump_if(R1, When::NotEqual, 0x45, unknown);
            p.load(Size::Byte, R8, R10, BYTES + 9);
            p.compute(R7, Do::Add, 20);
            p.jump(next);
            p.here(six);
            p.load(Size::Byte, R8, R10, BYTES + 6);
            p.compute(R7, Do::Add, 40);
            p.jump(next);

            p.here(extension);
            bytes(p, BYTES, 2, unknown);
            p.load(Size::Byte, R8, R10, BYTES);
            p.load(Size::Byte, R1, R10, BYTES + 1);
            p.compute(R1, Do::ShiftLeft, 3);
            p.compute_with(R7, Do::Add, R1);
            p.compute(R7, Do::Add, 8);
            p.here(next);
        }
        p.jump_if(R8, When::NotEqual, i32::from(protocol::TCP), unknown);
        p.here(tcp);
        bytes(p, BYTES, 14, unknown);
        p.load(Size::Byte, R0, R10, BYTES + 12);
        p.compute(R0, Do::ShiftRight, 4);
        p.compute(R0, Do::ShiftLeft, 2);
        p.compute_with(R0, Do::Add, R7);
        p.load(Size::Double, R1, R10, START);
        p.compute_with(R0, Do::Subtract, R1);
        p.load(Size::Word, R1, R6, sk_buff::GSO_SIZE);
        p.compute_with(R0, Do::Add, R1);
        p.exit();
        p.here(unknown);
        p.set(R0, 0);
        p.exit();
    }
}

/// `register =` what the slot at `register` names; jumps to `none` if that is nothing.
pub(super) fn follow(p: &mut Program, register: Register, none: Label) {
    p.point(register, register);
    p.load(Size::Word, register, register, 0);
    p.jump_if(register, When::Equal, 0, none);
    p.point(register, register);
}

/// `to =` how many suffix bits the entry in R4 has.
fn length(p: &mut Program, to: Register) {
    p.copy(to, R4);
    p.compute(to, Do::ShiftRight, 2);
    p.compute(to, Do::And, 63);
}

/// `R5 =` the suffix bits of the entry in R4 in which the address in R2 differs: `Entry::differs`.
fn differs(p: &mut Program) {
    length(p, R0);
    p.compute(R0, Do::Xor, 63);
    p.copy(R5, R4);
    p.compute_with(R5, Do::Xor, R2);
    p.compute(R5, Do::ShiftRight, 1);
    p.compute_with(R5, Do::ShiftRight, R0);
}

/// Takes the first so many bits off the address in R2 and R3.
fn shift_address(p: &mut Program, bits: i32) {
    p.compute(R2, Do::ShiftLeft, bits);
    p.copy(R5, R3);
    p.compute(R5, Do::ShiftRight, 64 - bits);
    p.compute_with(R2, Do::Or, R5);
    p.compute(R3, Do::ShiftLeft, bits);
}

/// Copies bytes of the frame, from R7 on, to the stack.
fn bytes(p: &mut Program, to: i16, count: i32, unknown: Label) {
    p.copy(R1, R6);
    p.copy(R2, R7);
    p.copy(R3, R10);
    p.add(R3, i32::from(to));
    p.set(R4, count);
    p.call(SKB_LOAD_BYTES);
    p.jump_if(R0, When::NotEqual, 0, unknown);
}
