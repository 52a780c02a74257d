//! Which packets are workers' because somebody traces them. All are, unless a program that is made of the tracer's filter has
//! seen them first and said otherwise: it stands before the other at the devices, and leaves its answer in the packet's
//! control block, with a token by which that is known.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;

use underpass_engine::bpf::classic::{Arithmetic, Filter, Op, Operand, SCRATCH, Test};

use super::device::Fast;
use super::emit::{Emit, Hook, SKB_LOAD_BYTES, sk_buff};
use crate::xdp::assembler::{
    Do, Label, Program, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Register, Size, When,
};
use crate::xdp::bpf::{self, Attach, ProgramKind};
use crate::xdp::program::TCX_NEXT;

/// Registers of a filter.
const A: Register = R9;
const X: Register = R7;

/// Where the stack has scratch memory, and behind that bytes of the packet.
const MEMORY: i16 = -4 * SCRATCH as i16;
const BYTES: i16 = MEMORY - 8;

/// Where the token is in the context, and the answer: 0 if the packet is not traced.
const TOKEN: [i16; 2] = [sk_buff::CB, sk_buff::CB + 4];
const ANSWER: i16 = sk_buff::CB + 8;

/// What tells an answer from what else a control block may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Token([u32; 2]);

impl Token {
    pub(super) fn new() -> Self {
        let bits = RandomState::new().hash_one(0);
        Self([bits as u32, (bits >> 32) as u32])
    }
}

impl Emit {
    /// Jumps to `traced` if somebody traces packets and this may be one of them.
    pub(super) fn traced(&mut self, Token(token): Token, traced: Label) {
        let nobody = self.p.label();
        let p = &mut self.p;
        p.set(R2, self.places.common.cast_signed());
        p.point(R2, R2);
        p.load(Size::Word, R2, R2, 4);
        if self.hook == Hook::Xdp {
            // The program at tcx looks at it again.
            p.jump_if(R2, When::NotEqual, 0, traced);
            return;
        }
        p.jump_if(R2, When::Equal, 0, nobody);
        for (half, at) in token.into_iter().zip(TOKEN) {
            p.load(Size::Word, R2, R6, at);
            p.set_word(R3, half);
            p.jump_if_register(R2, When::NotEqual, R3, traced);
        }
        p.load(Size::Word, R2, R6, ANSWER);
        p.jump_if(R2, When::NotEqual, 0, traced);
        // A filter is for frames with their tags in them.
        p.load(Size::Word, R2, R6, sk_buff::VLAN_PRESENT);
        p.jump_if(R2, When::NotEqual, 0, traced);
        p.here(nobody);
    }
}

/// As long as there is one, only the packets that a filter matches are traced.
pub struct Matching {
    program: OwnedFd,
    _links: Vec<OwnedFd>,
}

impl Matching {
    pub(super) fn program(&self) -> &OwnedFd {
        &self.program
    }
}

impl Fast {
    /// Has only those packets be traced that a filter matches, as far as there is one, and that come in by a device, as far
    /// as one is said: of what comes in by these devices. Of others, all are.
    ///
    /// # Errors
    /// What the kernel refuses. All packets are traced then.
    pub fn trace(
        &self,
        filter: Option<&Filter>,
        ifindex: Option<u32>,
        devices: impl Iterator<Item = u32>,
    ) -> io::Result<Matching> {
        /// `BPF_F_BEFORE`.
        const BEFORE: u32 = 1 << 3;
        let program = translate(filter, ifindex, self.token()).finish();
        let program = bpf::load(ProgramKind::Classifier, "underpass_trace", &program)?;
        let attach = |device| bpf::link(&program, device, Attach::TcIngress, BEFORE);
        let links = devices.map(attach).collect::<io::Result<_>>()?;
        Ok(Matching { program, _links: links })
    }
}

/// The program of a filter.
fn translate(filter: Option<&Filter>, ifindex: Option<u32>, Token(token): Token) -> Program {
    let mut p = Program::default();
    let (other, matches, done) = (p.label(), p.label(), p.label());
    p.copy(R6, R1);
    p.set(R2, 0);
    p.store(Size::Word, R6, ANSWER, R2);
    for (half, at) in token.into_iter().zip(TOKEN) {
        p.set_word(R2, half);
        p.store(Size::Word, R6, at, R2);
    }
    if let Some(ifindex) = ifindex {
        p.load(Size::Word, R2, R6, sk_buff::IFINDEX);
        p.set_word(R8, ifindex);
        p.jump_if_register(R2, When::NotEqual, R8, done);
    }
    if let Some(filter) = filter {
        instructions(&mut p, filter.ops(), (matches, other));
    }
    p.here(matches);
    p.set(R2, 1);
    p.store(Size::Word, R6, ANSWER, R2);
    p.jump(done);
    p.here(other);
    p.here(done);
    p.set(R0, TCX_NEXT);
    p.exit();
    p
}

/// Writes the instructions of a filter, each as one or a few. All that is computed is of 32 bits.
fn instructions(p: &mut Program, ops: &[Op], (matches, other): (Label, Label)) {
    p.set(A, 0);
    p.set(X, 0);
    for at in 0..SCRATCH as u8 {
        p.store(Size::Word, R10, word(at), A);
    }
    let labels: Vec<Label> = ops.iter().map(|_| p.label()).collect();
    // A filter was checked: it does not lead out of itself.
    let label = |at: usize| labels.get(at).copied().unwrap_or(other);
    for (at, op) in ops.iter().enumerate() {
        p.here(label(at));
        let register = |x: bool| if x { X } else { A };
        match *op {
            Op::Load { size, indexed, k } => {
                p.set_word(R2, k);
                if indexed {
                    p.compute_with(R2, Do::Add, X);
                }
                load(p, size, other);
                p.copy(A, R0);
            }
            Op::LoadLength { x } => p.load(Size::Word, register(x), R6, sk_buff::LEN),
            Op::LoadNumber { x, k } => p.set_word(register(x), k),
            Op::LoadScratch { x, at } => p.load(Size::Word, register(x), R10, word(at)),
            Op::LoadHeaderLength { k } => {
                p.set_word(R2, k);
                load(p, 1, other);
                p.and(R0, 0xf);
                p.compute(R0, Do::ShiftLeft, 2);
                p.copy(X, R0);
            }
            Op::Store { x, at } => p.store(Size::Word, R10, word(at), register(x)),
            Op::Arithmetic(what, with) => {
                operand(p, with);
                let (what, divides) = match what {
                    Arithmetic::Add => (Do::Add, false),
                    Arithmetic::Sub => (Do::Subtract, false),
                    Arithmetic::Mul => (Do::Multiply, false),
                    Arithmetic::Div => (Do::Divide, true),
                    Arithmetic::Mod => (Do::Modulo, true),
                    Arithmetic::Or => (Do::Or, false),
                    Arithmetic::And => (Do::And, false),
                    Arithmetic::Xor => (Do::Xor, false),
                    Arithmetic::Lsh => (Do::ShiftLeft, false),
                    Arithmetic::Rsh => (Do::ShiftRight, false),
                };
                if divides {
                    p.jump_if(R8, When::Equal, 0, other);
                }
                p.compute_words(A, what, R8);
            }
            Op::Negate => {
                p.set(R8, 0);
                p.compute_words(R8, Do::Subtract, A);
                p.copy(A, R8);
            }
            Op::Jump(over) => p.jump(label(at + 1 + usize::from(over))),
            Op::Branch { test, with, jt, jf } => {
                operand(p, with);
                let when = match test {
                    Test::Eq => When::Equal,
                    Test::Gt => When::Greater,
                    Test::Ge => When::GreaterOrEqual,
                    Test::Set => When::Bits,
                };
                p.jump_if_register(A, when, R8, label(at + 1 + usize::from(jt)));
                if jf != 0 {
                    p.jump(label(at + 1 + usize::from(jf)));
                }
            }
            Op::Return(Some(k)) => p.jump(if k == 0 { other } else { matches }),
            Op::Return(None) => {
                p.jump_if(A, When::Equal, 0, other);
                p.jump(matches);
            }
            Op::Move { to_x: true } => p.copy(X, A),
            Op::Move { to_x: false } => p.copy(A, X),
        }
    }
}

/// `R0 =` so many bytes of the packet from R2 on, as a number; a packet that ends before is not traced.
fn load(p: &mut Program, size: u8, other: Label) {
    // No packet is so long; and where that would be negative, the kernel has something else.
    p.jump_if(R2, When::Greater, i32::MAX, other);
    p.copy(R1, R6);
    p.copy(R3, R10);
    p.add(R3, BYTES.into());
    p.set(R4, size.into());
    p.call(SKB_LOAD_BYTES);
    p.jump_if(R0, When::NotEqual, 0, other);
    let (bytes, bits) = match size {
        1 => (Size::Byte, 0),
        2 => (Size::Half, 16),
        _ => (Size::Word, 32),
    };
    p.load(bytes, R0, R10, BYTES);
    if bits != 0 {
        p.swap(R0, bits);
    }
}

/// Where a word of scratch memory is on the stack.
fn word(at: u8) -> i16 {
    MEMORY + 4 * i16::from(at)
}

/// `R8 =` an operand.
fn operand(p: &mut Program, with: Operand) {
    match with {
        Operand::K(k) => p.set_word(R8, k),
        Operand::X => p.copy(R8, X),
    }
}
