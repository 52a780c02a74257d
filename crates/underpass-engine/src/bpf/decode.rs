//! Instructions as they are given to bpf(2), and as they are run.
//!
//! ```text
//! | opcode: 8 | dst: 4 | src: 4 | offset: 16, signed | immediate: 32, signed |
//! ```
//!
//! RFC 9669; the numbers of helpers are those of include/uapi/linux/bpf.h.

use super::memory::{handle_of, values_of};

/// Why a program cannot be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsupported {
    /// No instructions, half an instruction, or more than the kernel takes.
    #[error("a program of {0} bytes")]
    Length(usize),
    /// An instruction that does not exist, or that this machine does not have.
    #[error("instruction {at} (opcode {opcode:#04x}) is not supported")]
    Instruction {
        /// Its place, in instructions.
        at: usize,
        /// Its opcode.
        opcode: u8,
    },
    /// A jump to where no instruction begins.
    #[error("instruction {0} jumps out of the program")]
    Jump(usize),
    /// A helper that this machine does not have.
    #[error("helper {0} is not supported")]
    Helper(i32),
    /// `bpf_tail_call`.
    #[error("bpf_tail_call is not supported")]
    TailCall,
    /// A map that is not among those that came with the program.
    #[error("map {0} is not known")]
    Map(u32),
}

/// `BPF_COMPLEXITY_LIMIT_INSNS`: most instructions of a program.
const MOST: usize = 1_000_000;
const INSTRUCTION: usize = 8;

macro_rules! helpers {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal,)+) => {
        /// Helpers of Linux for programs of the kind `BPF_PROG_TYPE_LWT_SEG6LOCAL`, by their numbers.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Helper { $($(#[doc = $doc])+ $name = $number,)+ }

        impl Helper {
            fn from_number(number: i32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }

            fn from_place(place: i64) -> Option<Self> {
                Self::from_number(i32::try_from(place).ok()?)
            }
        }
    };
}

helpers! {
    /// `bpf_map_lookup_elem`
    MapLookup = 1,
    /// `bpf_map_update_elem`
    MapUpdate = 2,
    /// `bpf_map_delete_elem`
    MapDelete = 3,
    /// `bpf_ktime_get_ns`
    Time = 5,
    /// `bpf_trace_printk`
    Print = 6,
    /// `bpf_get_prandom_u32`
    Random = 7,
    /// `bpf_get_smp_processor_id`
    Processor = 8,
    /// `bpf_get_cgroup_classid`
    ClassId = 17,
    /// `bpf_get_route_realm`
    Realm = 24,
    /// `bpf_skb_load_bytes`
    LoadBytes = 26,
    /// `bpf_csum_diff`
    ChecksumDifference = 28,
    /// `bpf_get_hash_recalc`
    Hash = 34,
    /// `bpf_skb_pull_data`
    PullData = 39,
    /// `bpf_get_numa_node_id`
    Node = 42,
    /// `bpf_lwt_seg6_store_bytes`
    StoreBytes = 74,
    /// `bpf_lwt_seg6_adjust_srh`
    AdjustSrh = 75,
    /// `bpf_lwt_seg6_action`
    Action = 76,
    /// `bpf_ktime_get_coarse_ns`
    CoarseTime = 160,
    /// `bpf_strncmp`
    CompareText = 182,
}

const TAIL_CALL: i32 = 12;

/// What an instruction does. `64` and `32`: with how many bits; the upper ones of the result are then zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[rustfmt::skip]
pub(super) enum Code {
    Add64, Sub64, Mul64, Div64, SignedDiv64, Or64, And64, Lsh64, Rsh64, Neg64, Mod64, SignedMod64, Xor64,
    Mov64, Arsh64, MovSigned8, MovSigned16, MovSigned32,
    Add32, Sub32, Mul32, Div32, SignedDiv32, Or32, And32, Lsh32, Rsh32, Neg32, Mod32, SignedMod32, Xor32,
    Mov32, Arsh32, MovSigned8To32, MovSigned16To32,
    /// To little-endian, which the programs' processor is: the upper bits go.
    Cut16, Cut32,
    Swap16, Swap32, Swap64,
    Load8, Load16, Load32, Load64, LoadSigned8, LoadSigned16, LoadSigned32,
    Store8, Store16, Store32, Store64,
    /// The immediate says what: [`super::machine::atomic`].
    Atomic32, Atomic64,
    Jump,
    Equal64, Greater64, GreaterEqual64, Set64, NotEqual64, SignedGreater64, SignedGreaterEqual64,
    Less64, LessEqual64, SignedLess64, SignedLessEqual64,
    Equal32, Greater32, GreaterEqual32, Set32, NotEqual32, SignedGreater32, SignedGreaterEqual32,
    Less32, LessEqual32, SignedLess32, SignedLessEqual32,
    Helper(Helper), Call, Exit,
    /// Nothing.
    Nop,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub code: Code,
    pub dst: u8,
    /// The register of the operand; [`IMMEDIATE`]: it is the immediate.
    pub src: u8,
    /// What is added to an address, or the place in the program that is jumped to.
    pub offset: i32,
    pub immediate: i64,
}

/// Stands for no register.
pub(super) const IMMEDIATE: u8 = 0xff;

const LD: u8 = 0;
const LDX: u8 = 1;
const ST: u8 = 2;
const STX: u8 = 3;
const ALU: u8 = 4;
const JMP: u8 = 5;
const JMP32: u8 = 6;
/// Source of the operand: a register.
const X: u8 = 8;
const LD_IMM64: u8 = 0x18;

#[derive(Clone, Copy)]
struct Instruction {
    opcode: u8,
    dst: u8,
    src: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    fn read(bytes: [u8; INSTRUCTION]) -> Self {
        let [opcode, registers, o0, o1, immediate @ ..] = bytes;
        Self {
            opcode,
            dst: registers & 15,
            src: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            immediate: i32::from_le_bytes(immediate),
        }
    }
}

/// Decodes a program; the address of the map at place `n` of `maps` is named by the number there.
pub(super) fn decode(code: &[u8], maps: &[u32]) -> Result<Vec<Op>, Unsupported> {
    let (slots, rest) = code.as_chunks::<INSTRUCTION>();
    if slots.is_empty() || !rest.is_empty() || slots.len() > MOST {
        return Err(Unsupported::Length(code.len()));
    }
    let instructions: Vec<_> = slots.iter().map(|slot| Instruction::read(*slot)).collect();
    let mut ops = Vec::with_capacity(instructions.len());
    // Where the instruction of each slot has gone; `None`: it is the second half of one.
    let mut places = Vec::with_capacity(instructions.len());
    let mut rest = instructions.iter();
    while let Some(instruction) = rest.next() {
        places.push(Some(ops.len()));
        let unknown = Unsupported::Instruction { at: places.len() - 1, opcode: instruction.opcode };
        if instruction.opcode == LD_IMM64 {
            places.push(None);
            let upper = rest.next().filter(|upper| upper.opcode == 0 && upper.dst == 0 && upper.src == 0);
            ops.push(constant(*instruction, *upper.ok_or(unknown)?, maps)?.ok_or(unknown)?);
            continue;
        }
        ops.push(single(*instruction)?.ok_or(unknown)?);
    }
    for (at, op) in places.iter().enumerate().filter_map(|(at, place)| Some((at, (*place)?))) {
        let Some(op) = ops.get_mut(op) else { continue };
        let jumps = matches!(op.code, Code::Jump | Code::Call) || is_condition(op.code);
        if jumps {
            let target = i64::try_from(at).ok().and_then(|at| at.checked_add(1 + i64::from(op.offset)));
            let place = target.and_then(|target| places.get(usize::try_from(target).ok()?).copied()?);
            op.offset = place.and_then(|place| i32::try_from(place).ok()).ok_or(Unsupported::Jump(at))?;
        }
    }
    Ok(ops)
}

fn is_condition(code: Code) -> bool {
    CONDITIONS.iter().flatten().any(|condition| *condition == code)
}

/// An instruction of two slots: a constant of 64 bits, or an address.
fn constant(low: Instruction, upper: Instruction, maps: &[u32]) -> Result<Option<Op>, Unsupported> {
    /// `BPF_PSEUDO_MAP_FD`.
    const MAP: u8 = 1;
    /// `BPF_PSEUDO_MAP_VALUE`.
    const VALUE: u8 = 2;
    let number = low.immediate as u32;
    let place = || maps.iter().position(|map| *map == number).ok_or(Unsupported::Map(number));
    let immediate = match low.src {
        0 => i64::from(upper.immediate) << 32 | i64::from(number),
        MAP => handle_of(place()?) as i64,
        VALUE => (values_of(place()?) + u64::from(upper.immediate as u32)) as i64,
        _ => return Ok(None),
    };
    let op = Op { code: Code::Mov64, dst: low.dst, src: IMMEDIATE, offset: 0, immediate };
    Ok((low.dst < 10 && low.offset == 0).then_some(op))
}

/// An instruction of one slot. `None`: there is no such instruction.
fn single(instruction: Instruction) -> Result<Option<Op>, Unsupported> {
    let Instruction { opcode, dst, src, offset, immediate } = instruction;
    let class = opcode & 7;
    let from_register = opcode & X != 0 && matches!(class, ALU | JMP | JMP32 | 7);
    let operand = match class {
        LDX | STX => src,
        _ if from_register => src,
        _ => IMMEDIATE,
    };
    let mut op =
        Op { code: Code::Nop, dst, src: operand, offset: offset.into(), immediate: immediate.into() };
    let code = match class {
        LD => None,
        LDX => load(opcode),
        ST => store(opcode).filter(|_| opcode & 0xe0 == 0x60),
        STX if opcode & 0xe0 == 0xc0 => match opcode & 0x18 {
            0x00 if is_atomic(immediate) => Some(Code::Atomic32),
            0x18 if is_atomic(immediate) => Some(Code::Atomic64),
            _ => None,
        },
        STX => store(opcode),
        JMP | JMP32 => return jump(instruction, op),
        // What a byte order is turned to stands in the bit of the source.
        ALU if opcode & 0xf0 == 0xd0 => match (from_register, immediate) {
            (false, 16) => Some(Code::Cut16),
            (false, 32) => Some(Code::Cut32),
            (false, 64) => Some(Code::Nop),
            (true, _) => swap(immediate),
            _ => None,
        },
        7 if opcode == 0xd7 => swap(immediate),
        _ => arithmetic(opcode, offset),
    };
    // The second of what an atomic instruction does is a register; register 10 is only read.
    let stores = matches!(class, ST | STX);
    let registers = src <= 10 && (dst < 10 || stores && dst == 10);
    if matches!(op.code, Code::Nop) && !stores && class != LDX {
        op.offset = 0;
    }
    Ok(code.filter(|_| registers).map(|code| Op { code, ..op }))
}

fn load(opcode: u8) -> Option<Code> {
    Some(match opcode & 0xf8 {
        0x60 => Code::Load32,
        0x68 => Code::Load16,
        0x70 => Code::Load8,
        0x78 => Code::Load64,
        0x80 => Code::LoadSigned32,
        0x88 => Code::LoadSigned16,
        0x90 => Code::LoadSigned8,
        _ => return None,
    })
}

fn store(opcode: u8) -> Option<Code> {
    Some(match opcode & 0xf8 {
        0x60 => Code::Store32,
        0x68 => Code::Store16,
        0x70 => Code::Store8,
        0x78 => Code::Store64,
        _ => return None,
    })
}

/// The operations of `BPF_ATOMIC`, in its immediate: with the bit that the old value is wanted, or without.
fn is_atomic(immediate: i32) -> bool {
    matches!(immediate & !1, 0x00 | 0x40 | 0x50 | 0xa0) || matches!(immediate, 0xe1 | 0xf1)
}

fn swap(bits: i32) -> Option<Code> {
    match bits {
        16 => Some(Code::Swap16),
        32 => Some(Code::Swap32),
        64 => Some(Code::Swap64),
        _ => None,
    }
}

#[rustfmt::skip]
fn arithmetic(opcode: u8, offset: i16) -> Option<Code> {
    use Code::*;
    let codes = match (opcode & 0xf0, offset) {
        (0x00, 0) => [Add32, Add64],
        (0x10, 0) => [Sub32, Sub64],
        (0x20, 0) => [Mul32, Mul64],
        (0x30, 0) => [Div32, Div64],
        (0x30, 1) => [SignedDiv32, SignedDiv64],
        (0x40, 0) => [Or32, Or64],
        (0x50, 0) => [And32, And64],
        (0x60, 0) => [Lsh32, Lsh64],
        (0x70, 0) => [Rsh32, Rsh64],
        (0x80, 0) if opcode & X == 0 => [Neg32, Neg64],
        (0x90, 0) => [Mod32, Mod64],
        (0x90, 1) => [SignedMod32, SignedMod64],
        (0xa0, 0) => [Xor32, Xor64],
        (0xb0, 0) => [Mov32, Mov64],
        (0xb0, 8) if opcode & X != 0 => [MovSigned8To32, MovSigned8],
        (0xb0, 16) if opcode & X != 0 => [MovSigned16To32, MovSigned16],
        (0xb0, 32) if opcode == 0xbf => [MovSigned32, MovSigned32],
        (0xc0, 0) => [Arsh32, Arsh64],
        _ => return None,
    };
    codes.get(usize::from(opcode & 7 == 7)).copied()
}

/// The conditions of jumps by the upper half of their opcodes, of 64 bits and of 32.
#[rustfmt::skip]
const CONDITIONS: [[Code; 2]; 11] = {
    use Code::*;
    [
        [Equal64, Equal32], [Greater64, Greater32], [GreaterEqual64, GreaterEqual32], [Set64, Set32],
        [NotEqual64, NotEqual32], [SignedGreater64, SignedGreater32],
        [SignedGreaterEqual64, SignedGreaterEqual32], [Less64, Less32], [LessEqual64, LessEqual32],
        [SignedLess64, SignedLess32], [SignedLessEqual64, SignedLessEqual32],
    ]
};

fn jump(instruction: Instruction, mut op: Op) -> Result<Option<Op>, Unsupported> {
    /// `BPF_PSEUDO_CALL`: of a function of the program.
    const LOCAL: u8 = 1;
    let Instruction { opcode, dst, src, offset, immediate } = instruction;
    let narrow = opcode & 7 == JMP32;
    op.code = match (opcode, src) {
        (0x05, 0) => Code::Jump,
        (0x06, 0) => {
            op.offset = immediate;
            Code::Jump
        }
        (0x85, 0) if immediate == TAIL_CALL => return Err(Unsupported::TailCall),
        (0x85, 0) if offset == 0 => {
            Code::Helper(Helper::from_place(op.immediate).ok_or(Unsupported::Helper(immediate))?)
        }
        (0x85, LOCAL) => {
            op.offset = immediate;
            Code::Call
        }
        (0x95, 0) => Code::Exit,
        _ => {
            let place = match opcode >> 4 {
                place @ 1..=7 => usize::from(place) - 1,
                place @ 0xa..=0xd => usize::from(place) - 3,
                _ => return Ok(None),
            };
            match CONDITIONS.get(place) {
                Some(codes) if dst <= 10 && src <= 10 => codes[usize::from(narrow)],
                _ => return Ok(None),
            }
        }
    };
    Ok((dst <= 10).then_some(op))
}
