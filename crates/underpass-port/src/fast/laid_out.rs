//! The look-up of an address where the engine has laid its table out for programs: flat, or in buckets.

use underpass_engine::in_kernel::layout;

use super::emit::Emit;
use crate::xdp::assembler::{Do, Label, R0, R1, R2, R3, R4, R5, R6, Size, When};

impl Emit {
    /// Looks the address in R2 up in the table whose root is in R1 where that is laid out, and returns the mark; jumps to
    /// `trie` where it is not, or does not say, to `default` if no prefix covers the address. Changes all registers.
    pub(super) fn look_up_laid_out(&mut self, trie: Label, default: Label) {
        let p = &mut self.p;
        let buckets = p.label();
        p.compute(R1, Do::Add, layout::FLAT);
        p.point(R1, R1);
        p.load(Size::Double, R1, R1, 0);
        p.jump_if(R1, When::Equal, 0, trie);
        p.jump_if(R1, When::Bits, layout::DIRECTORY, buckets);
        self.look_up_flat(trie, default);
        self.p.here(buckets);
        self.look_up_bucket(trie, default);
    }

    /// The same in the flat layout that R1 says, of IPv4: as `Layout::mark`.
    fn look_up_flat(&mut self, trie: Label, default: Label) {
        let p = &mut self.p;
        let deep = p.label();
        p.copy(R4, R1);
        p.lower(R4);
        p.copy(R5, R2);
        p.compute(R5, Do::ShiftRight, 40);
        p.compute(R5, Do::ShiftLeft, 1);
        p.compute_with(R4, Do::Add, R5);
        p.point(R4, R4);
        p.load(Size::Half, R0, R4, 0);
        p.jump_if(R0, When::Bits, layout::DEEP, deep);
        p.jump_if(R0, When::Equal, 0, default);
        p.exit();

        p.here(deep);
        p.compute(R0, Do::And, layout::DEEP - 1);
        p.compute(R0, Do::ShiftLeft, 2);
        p.compute(R1, Do::ShiftRight, 32);
        p.compute_with(R1, Do::Add, R0);
        p.point(R1, R1);
        p.load(Size::Word, R4, R1, 0);
        p.jump_if(R4, When::Equal, 0, trie);
        // The mark in the block: that of the last byte, less what is coarse.
        p.copy(R5, R4);
        p.compute(R5, Do::ShiftRight, 28);
        p.compute(R5, Do::And, 6);
        p.copy(R0, R2);
        p.compute(R0, Do::ShiftRight, 32);
        p.compute(R0, Do::And, 0xff);
        p.compute_with(R0, Do::ShiftRight, R5);
        p.compute(R0, Do::ShiftLeft, 2);
        p.compute(R4, Do::And, (1 << 29) - 1);
        p.compute(R4, Do::ShiftLeft, layout::UNIT_BITS);
        p.compute_with(R4, Do::Add, R0);
        p.compute(R4, Do::Add, self.places.nodes.cast_signed());
        p.point(R4, R4);
        p.load(Size::Word, R0, R4, 0);
        p.jump_if(R0, When::Equal, 0, default);
        p.exit();
    }

    /// The same in the buckets whose directory R1 says, of IPv6: the longest prefix of the bucket that matches.
    fn look_up_bucket(&mut self, trie: Label, default: Label) {
        const KIND: i32 = 3;
        const NODE: i32 = 1;
        const RECORD: i32 = 2;
        let p = &mut self.p;
        let found = p.label();
        // The directory: R4 is what a word for the address has in its upper half.
        p.copy(R4, R2);
        p.compute(R4, Do::ShiftRight, 32);
        p.copy(R0, R4);
        p.compute(R0, Do::Multiply, layout::SPREAD);
        p.lower(R0);
        p.copy(R5, R1);
        p.compute(R5, Do::ShiftRight, 32);
        p.compute_with(R0, Do::Multiply, R5);
        p.compute(R0, Do::ShiftRight, 32);
        p.compute(R0, Do::ShiftLeft, 3);
        p.lower(R1);
        p.compute_with(R1, Do::Add, R0);
        p.compute(R1, Do::Subtract, layout::DIRECTORY);
        p.point(R1, R1);
        for n in 0..layout::PROBES {
            p.load(Size::Double, R5, R1, n * 8);
            p.copy(R0, R5);
            p.compute(R0, Do::ShiftRight, 32);
            p.jump_if_register(R0, When::Equal, R4, found);
            p.jump_if(R5, When::Equal, 0, trie);
        }
        p.jump(trie);

        // The bucket: R4 is the address behind its first bits, R5 the word of the directory.
        p.here(found);
        p.jump_if(R5, When::Equal, 0, trie);
        p.copy(R4, R2);
        p.compute(R4, Do::ShiftLeft, 32);
        p.copy(R1, R5);
        p.compute(R1, Do::And, 63);
        p.compute(R1, Do::Xor, 63);
        p.copy(R0, R4);
        p.compute(R0, Do::ShiftRight, 1);
        p.compute_with(R0, Do::ShiftRight, R1);
        p.compute(R0, Do::ShiftLeft, 6);
        p.compute(R5, Do::ShiftLeft, 32);
        p.compute(R5, Do::ShiftRight, 38);
        p.compute(R5, Do::ShiftLeft, 6);
        p.compute_with(R5, Do::Add, R0);
        p.compute(R5, Do::Add, self.places.nodes.cast_signed());
        p.point(R5, R5);
        // Its entries: R0 is the longest yet that matches, R6 the length and kind of that.
        p.set(R0, 0);
        p.set(R6, 0);
        for n in 0..layout::BUCKET_WORDS {
            let next = p.label();
            p.load(Size::Double, R1, R5, n * 8);
            if n == 0 {
                p.copy(R2, R1);
                p.compute(R2, Do::And, KIND);
                p.jump_if(R2, When::Equal, NODE, trie);
            }
            p.jump_if(R1, When::Equal, 0, next);
            p.copy(R2, R1);
            p.compute(R2, Do::ShiftRight, 2);
            p.compute(R2, Do::And, 63);
            p.compute(R2, Do::Xor, 63);
            p.copy(R3, R1);
            p.compute_with(R3, Do::Xor, R4);
            p.compute(R3, Do::ShiftRight, 1);
            p.compute_with(R3, Do::ShiftRight, R2);
            p.jump_if(R3, When::NotEqual, 0, next);
            p.copy(R2, R1);
            p.compute(R2, Do::And, 0xff);
            p.jump_if_register(R2, When::Less, R6, next);
            p.copy(R0, R1);
            p.copy(R6, R2);
            p.here(next);
        }
        p.compute(R6, Do::And, KIND);
        p.jump_if(R6, When::Equal, RECORD, trie);
        // The mark.
        p.compute(R0, Do::ShiftLeft, 32);
        p.compute(R0, Do::ShiftRight, 40);
        p.jump_if(R0, When::Equal, 0, default);
        p.exit();
    }
}
