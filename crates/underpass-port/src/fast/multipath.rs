//! Multipath routes: the hash of the flow, as the engine's `flow.rs` has it, selects the next hop.

use underpass_engine::in_kernel::records::{MOST_PATHS, MissCause, kind};
use underpass_packet::protocol;

use super::emit::{ETHERNET, Emit, Hook, SKB_LOAD_BYTES, XDP_LOAD_BYTES, stack};
use super::input::{ip4, ip6};
use super::walk::follow;
use crate::xdp::assembler::{Do, Label, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Register, Size, When};

/// Numbers of the engine's hash.
const START: u64 = 0x9e37_79b9_7f4a_7c15;
const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
const STEP: u64 = 0x2545_f491_4f6c_dd1d;
/// Packets inside packets that are looked into.
const DEPTH: usize = 2;

/// The stack of the function: bytes of the packet, and where it ends.
const BYTES: i16 = -40;
/// The addresses of an IPv4 header lie otherwise.
const BYTES4: i16 = -36;
const END: i16 = -48;

/// A record: how many paths; from 8 on the bound of each and the slot of its action.
const COUNT: i16 = 2;
const PATHS: i16 = 8;

impl Emit {
    /// Has R9 lead to the record of the path that the packet in the frame takes, of the multipath route whose record it
    /// leads to. Jumps if that does not just forward.
    pub(super) fn choose_path(&mut self) {
        let (action, none) = (self.because(MissCause::Action), self.because(MissCause::NextHop));
        let p = &mut self.p;
        p.copy(R1, R6);
        p.set(R2, ETHERNET.into());
        p.load(Size::Double, R3, R10, stack::LENGTH);
        p.add(R3, ETHERNET.into());
        p.call_here(self.flow);
        let (chosen, next) = (p.label(), p.label());
        p.load(Size::Half, R2, R9, COUNT);
        p.set(R3, 0);
        // The first bound that is not below the hash.
        p.here(next);
        p.jump_if_register(R3, When::GreaterOrEqual, R2, none);
        p.jump_if(R3, When::GreaterOrEqual, MOST_PATHS as i32, none);
        p.load(Size::Word, R1, R9, PATHS);
        p.jump_if_register(R1, When::GreaterOrEqual, R0, chosen);
        p.add(R9, 8);
        p.add(R3, 1);
        p.jump(next);
        p.here(chosen);
        p.load(Size::Word, R1, R9, PATHS + 4);
        follow(p, R1, action);
        p.copy(R9, R1);
        p.load(Size::Byte, R1, R9, 0);
        p.jump_if(R1, When::NotEqual, kind::FORWARD.into(), action);
    }

    /// `R0 = flow(R1: context, R2: where the packet begins in the frame, R3: where it ends)`: `flow::hash`.
    ///
    /// R7 is where the next header begins, R8 the hash so far, R9 the protocol that follows.
    pub(super) fn function_flow(&mut self) {
        self.p.function(self.flow, "flow", None);
        let done = self.p.label();
        let p = &mut self.p;
        p.copy(R6, R1);
        p.copy(R7, R2);
        p.store(Size::Double, R10, END, R3);
        p.set_wide(R8, START);
        for depth in 0..DEPTH {
            let (six, upper, ports, inner) = (self.p.label(), self.p.label(), self.p.label(), self.p.label());
            self.bytes_before_end(BYTES4, ip4::LEN.into(), done);
            let p = &mut self.p;
            p.load(Size::Byte, R1, R10, BYTES4);
            p.copy(R2, R1);
            p.compute(R2, Do::ShiftRight, 4);
            p.jump_if(R2, When::Equal, 6, six);
            p.jump_if(R2, When::NotEqual, 4, done);
            p.compute(R1, Do::And, 15);
            p.compute(R1, Do::ShiftLeft, 2);
            p.compute_with(R7, Do::Add, R1);
            p.load(Size::Byte, R9, R10, BYTES4 + ip4::PROTOCOL);
            p.load(Size::Double, R1, R10, BYTES4 + ip4::SOURCE);
            self.hash_in(R1);
            let p = &mut self.p;
            p.load(Size::Double, R1, R10, END);
            p.jump_if_register(R7, When::Greater, R1, done);
            let whole = p.label();
            p.load(Size::Half, R1, R10, BYTES4 + ip4::FRAGMENT);
            p.compute(R1, Do::And, 0x3fff_u16.to_be().into());
            p.jump_if(R1, When::Equal, 0, whole);
            // Nothing of a fragment is looked at.
            p.load(Size::Double, R7, R10, END);
            p.here(whole);
            p.jump(upper);

            p.here(six);
            self.bytes_before_end(BYTES, ip6::LEN.into(), done);
            let p = &mut self.p;
            p.load(Size::Word, R1, R10, BYTES);
            p.compute(R1, Do::ShiftRight, 8);
            p.set(R2, 0x00ff_ff0f);
            p.compute_with(R1, Do::And, R2);
            self.hash_in(R1);
            for word in (ip6::SOURCE..ip6::LEN).step_by(8) {
                self.p.load(Size::Double, R1, R10, BYTES + word);
                self.hash_in(R1);
            }
            let p = &mut self.p;
            p.load(Size::Byte, R9, R10, BYTES + ip6::NEXT);
            p.add(R7, ip6::LEN.into());
            p.jump_if(R9, When::NotEqual, protocol::ROUTING.into(), upper);
            self.bytes_before_end(BYTES, 2, done);
            let p = &mut self.p;
            p.load(Size::Byte, R9, R10, BYTES);
            p.load(Size::Byte, R1, R10, BYTES + 1);
            p.compute(R1, Do::ShiftLeft, 3);
            p.add(R1, 8);
            p.compute_with(R7, Do::Add, R1);
            p.load(Size::Double, R1, R10, END);
            p.jump_if_register(R7, When::Greater, R1, done);

            self.p.here(upper);
            self.p.copy(R1, R9);
            self.hash_in(R1);
            let p = &mut self.p;
            for protocol in [protocol::IPV4, protocol::IPV6] {
                p.jump_if(R9, When::Equal, protocol.into(), if depth + 1 < DEPTH { inner } else { done });
            }
            for protocol in [protocol::TCP, protocol::UDP, protocol::SCTP] {
                p.jump_if(R9, When::Equal, protocol.into(), ports);
            }
            p.jump(done);
            p.here(ports);
            self.bytes_before_end(BYTES, 4, done);
            self.p.load(Size::Word, R1, R10, BYTES);
            self.hash_in(R1);
            self.p.jump(done);
            self.p.here(inner);
        }
        let p = &mut self.p;
        p.here(done);
        p.copy(R0, R8);
        p.compute(R0, Do::ShiftRight, 32);
        p.compute_with(R0, Do::Xor, R8);
        p.compute(R0, Do::ShiftLeft, 32);
        p.compute(R0, Do::ShiftRight, 33);
        p.exit();
    }

    /// Adds the word in a register, which is R1, to the hash.
    fn hash_in(&mut self, word: Register) {
        let p = &mut self.p;
        p.compute_with(word, Do::Xor, R8);
        p.set_wide(R2, FACTOR);
        p.call_here(self.fold);
        p.set_wide(R8, STEP);
        p.compute_with(R8, Do::Xor, R0);
    }

    /// Copies bytes of the frame, from R7 on, to the stack; jumps if the packet has not so many. Changes R0 to R5.
    fn bytes_before_end(&mut self, to: i16, count: i32, short: Label) {
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, END);
        p.copy(R1, R7);
        p.add(R1, count);
        p.jump_if_register(R1, When::Greater, R2, short);
        p.copy(R1, R6);
        p.copy(R2, R7);
        p.copy(R3, R10);
        p.add(R3, to.into());
        p.set(R4, count);
        p.call(if self.hook == Hook::Tcx { SKB_LOAD_BYTES } else { XDP_LOAD_BYTES });
        p.jump_if(R0, When::NotEqual, 0, short);
    }
}
