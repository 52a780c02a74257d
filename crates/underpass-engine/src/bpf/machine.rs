//! The interpreter.

use super::decode::{Code, Helper, IMMEDIATE, Op};
use super::memory::{CONTEXT, Context, FRAME, FRAMES, Memory, STACK};
use super::region::Update;
use super::{Field, Program};

/// Why a program was stopped. One that the kernel's verifier has accepted does not come to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It read or wrote what is not its own, or went on behind its end.
    Address,
    /// It took too many instructions.
    Budget,
}

/// Instructions that a program may take: as many as the verifier looks at in one (`BPF_COMPLEXITY_LIMIT_INSNS`).
const BUDGET: usize = 1_000_000;

/// What a program runs on: the packet, and the helpers that see it.
pub(crate) trait Host {
    /// The packet as it is now.
    fn packet(&self) -> &[u8];

    /// Does what a helper does, and returns what it returns.
    fn call(&mut self, helper: Helper, arguments: [u64; 5], memory: &mut Memory<'_>) -> Result<u64, Fault>;
}

/// A function that waits for the one that it called.
#[derive(Clone, Copy, Default)]
struct Caller {
    place: usize,
    /// Registers 6 to 9, which are its own.
    kept: [u64; 4],
}

/// The memory of programs that run, one after the other.
pub(crate) struct Machine {
    stack: [u8; FRAME * FRAMES],
    context: Context,
}

impl Machine {
    /// A machine that has run nothing.
    pub(crate) fn new() -> Self {
        Self { stack: [0; FRAME * FRAMES], context: Context::new() }
    }

    /// Runs a program; `fill` writes what its context says before, `done` reads what the program has left there.
    /// What it returns are the lower 32 bits of register 0.
    ///
    /// # Errors
    /// Why it was stopped. What it has done to the packet by then stays done.
    pub(crate) fn run<H: Host>(
        &mut self,
        program: &Program,
        host: &mut H,
        fill: &[(Field, u32)],
    ) -> Result<u32, Fault> {
        self.context.clear();
        let mut memory = Memory { context: &mut self.context, stack: &mut self.stack, maps: &program.maps };
        for (field, value) in fill {
            memory.set(*field, *value);
        }
        memory.set_len(host.packet().len());
        run(&program.ops, host, &mut memory)
    }

    /// What the last program has left in a field of its context.
    pub(crate) fn left(&mut self, field: Field) -> u32 {
        Memory { context: &mut self.context, stack: &mut self.stack, maps: &[] }.get(field)
    }
}

/// What an atomic instruction does, by its immediate.
fn atomic(immediate: i64, r0: u64) -> Update {
    match immediate & !1 {
        0x00 => Update::Add,
        0x40 => Update::Or,
        0x50 => Update::And,
        0xa0 => Update::Xor,
        0xe0 => Update::Exchange,
        _ => Update::CompareExchange(r0),
    }
}

fn run<H: Host>(ops: &[Op], host: &mut H, memory: &mut Memory<'_>) -> Result<u32, Fault> {
    let mut registers = [0u64; 16];
    registers[1] = CONTEXT;
    registers[10] = STACK + FRAME as u64;
    let mut callers = [Caller::default(); FRAMES - 1];
    let mut depth = 0;
    let mut left = BUDGET;
    let mut place = 0;
    // Where the instructions began that are not yet taken off the budget.
    let mut since = 0;
    macro_rules! go {
        ($to:expr) => {{
            left = left.checked_sub(place - since).ok_or(Fault::Budget)?;
            place = $to;
            since = place;
        }};
    }
    while let Some(op) = ops.get(place) {
        place += 1;
        let at = usize::from(op.dst & 15);
        let a = registers[at];
        let b = if op.src == IMMEDIATE { op.immediate as u64 } else { registers[usize::from(op.src & 15)] };
        let (a32, b32) = (a as u32, b as u32);
        // Of a load and of a store the operand is an address or a value.
        let plus = |base: u64| base.wrapping_add(op.offset as u64);
        macro_rules! is {
            ($value:expr) => {
                registers[at] = $value
            };
        }
        macro_rules! is32 {
            ($value:expr) => {{
                let value: u32 = $value;
                registers[at] = u64::from(value)
            }};
        }
        macro_rules! if_so {
            ($condition:expr) => {
                if $condition {
                    go!(op.offset as usize);
                }
            };
        }
        macro_rules! load {
            ($type:ty) => {
                <$type>::from_le_bytes(memory.load(host.packet(), plus(b))?)
            };
        }
        match op.code {
            Code::Add64 => is!(a.wrapping_add(b)),
            Code::Sub64 => is!(a.wrapping_sub(b)),
            Code::Mul64 => is!(a.wrapping_mul(b)),
            // RFC 9669 section 4.1: divided by zero is 0, and the remainder is all.
            Code::Div64 => is!(a.checked_div(b).unwrap_or(0)),
            Code::SignedDiv64 => is!(if b == 0 { 0 } else { (a as i64).wrapping_div(b as i64) as u64 }),
            Code::Or64 => is!(a | b),
            Code::And64 => is!(a & b),
            Code::Lsh64 => is!(a.wrapping_shl(b32)),
            Code::Rsh64 => is!(a.wrapping_shr(b32)),
            Code::Neg64 => is!(a.wrapping_neg()),
            Code::Mod64 => is!(a.checked_rem(b).unwrap_or(a)),
            Code::SignedMod64 => is!(if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 }),
            Code::Xor64 => is!(a ^ b),
            Code::Mov64 => is!(b),
            Code::Arsh64 => is!((a as i64).wrapping_shr(b32) as u64),
            Code::MovSigned8 => is!(b as i8 as u64),
            Code::MovSigned16 => is!(b as i16 as u64),
            Code::MovSigned32 => is!(b as i32 as u64),
            Code::Add32 => is32!(a32.wrapping_add(b32)),
            Code::Sub32 => is32!(a32.wrapping_sub(b32)),
            Code::Mul32 => is32!(a32.wrapping_mul(b32)),
            Code::Div32 => is32!(a32.checked_div(b32).unwrap_or(0)),
            Code::SignedDiv32 => {
                is32!(if b32 == 0 { 0 } else { (a32 as i32).wrapping_div(b32 as i32) as u32 })
            }
            Code::Or32 => is32!(a32 | b32),
            Code::And32 => is32!(a32 & b32),
            Code::Lsh32 => is32!(a32.wrapping_shl(b32)),
            Code::Rsh32 => is32!(a32.wrapping_shr(b32)),
            Code::Neg32 => is32!(a32.wrapping_neg()),
            Code::Mod32 => is32!(a32.checked_rem(b32).unwrap_or(a32)),
            Code::SignedMod32 => {
                is32!(if b32 == 0 { a32 } else { (a32 as i32).wrapping_rem(b32 as i32) as u32 })
            }
            Code::Xor32 => is32!(a32 ^ b32),
            Code::Mov32 => is32!(b32),
            Code::Arsh32 => is32!((a32 as i32).wrapping_shr(b32) as u32),
            Code::MovSigned8To32 => is32!(b as i8 as u32),
            Code::MovSigned16To32 => is32!(b as i16 as u32),
            Code::Cut16 => is!(a & 0xffff),
            Code::Cut32 => is!(a & 0xffff_ffff),
            Code::Swap16 => is!(u64::from((a as u16).swap_bytes())),
            Code::Swap32 => is32!(a32.swap_bytes()),
            Code::Swap64 => is!(a.swap_bytes()),
            Code::Load8 => is!(u64::from(load!(u8))),
            Code::Load16 => is!(u64::from(load!(u16))),
            Code::Load32 => is!(u64::from(load!(u32))),
            Code::Load64 => is!(load!(u64)),
            Code::LoadSigned8 => is!(load!(i8) as u64),
            Code::LoadSigned16 => is!(load!(i16) as u64),
            Code::LoadSigned32 => is!(load!(i32) as u64),
            Code::Store8 => memory.store(plus(a), [b as u8])?,
            Code::Store16 => memory.store(plus(a), (b as u16).to_le_bytes())?,
            Code::Store32 => memory.store(plus(a), b32.to_le_bytes())?,
            Code::Store64 => memory.store(plus(a), b.to_le_bytes())?,
            Code::Atomic32 | Code::Atomic64 => {
                let wide = op.code == Code::Atomic64;
                let r0 = if wide { registers[0] } else { u64::from(registers[0] as u32) };
                let update = atomic(op.immediate, r0);
                let old = memory.update(plus(a), wide, update, b)?;
                match update {
                    Update::CompareExchange(_) => registers[0] = old,
                    _ if op.immediate & 1 != 0 => registers[usize::from(op.src & 15)] = old,
                    _ => {}
                }
            }
            Code::Jump => go!(op.offset as usize),
            Code::Equal64 => if_so!(a == b),
            Code::Greater64 => if_so!(a > b),
            Code::GreaterEqual64 => if_so!(a >= b),
            Code::Set64 => if_so!(a & b != 0),
            Code::NotEqual64 => if_so!(a != b),
            Code::SignedGreater64 => if_so!(a as i64 > b as i64),
            Code::SignedGreaterEqual64 => if_so!(a as i64 >= b as i64),
            Code::Less64 => if_so!(a < b),
            Code::LessEqual64 => if_so!(a <= b),
            Code::SignedLess64 => if_so!((a as i64) < b as i64),
            Code::SignedLessEqual64 => if_so!(a as i64 <= b as i64),
            Code::Equal32 => if_so!(a32 == b32),
            Code::Greater32 => if_so!(a32 > b32),
            Code::GreaterEqual32 => if_so!(a32 >= b32),
            Code::Set32 => if_so!(a32 & b32 != 0),
            Code::NotEqual32 => if_so!(a32 != b32),
            Code::SignedGreater32 => if_so!(a32 as i32 > b32 as i32),
            Code::SignedGreaterEqual32 => if_so!(a32 as i32 >= b32 as i32),
            Code::Less32 => if_so!(a32 < b32),
            Code::LessEqual32 => if_so!(a32 <= b32),
            Code::SignedLess32 => if_so!((a32 as i32) < b32 as i32),
            Code::SignedLessEqual32 => if_so!(a32 as i32 <= b32 as i32),
            Code::Helper(helper) => {
                let [_, r1, r2, r3, r4, r5, ..] = registers;
                registers[0] = host.call(helper, [r1, r2, r3, r4, r5], memory)?;
            }
            Code::Call => {
                let caller = callers.get_mut(depth).ok_or(Fault::Address)?;
                let [_, _, _, _, _, _, r6, r7, r8, r9, ..] = registers;
                *caller = Caller { place, kept: [r6, r7, r8, r9] };
                depth += 1;
                registers[10] += FRAME as u64;
                go!(op.offset as usize);
            }
            Code::Exit => {
                let Some(caller) = depth.checked_sub(1).and_then(|place| callers.get(place)) else {
                    return Ok(registers[0] as u32);
                };
                depth -= 1;
                [registers[6], registers[7], registers[8], registers[9]] = caller.kept;
                registers[10] -= FRAME as u64;
                go!(caller.place);
            }
            Code::Nop => {}
        }
    }
    Err(Fault::Address)
}
