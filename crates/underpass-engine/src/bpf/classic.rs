//! Classic BPF: the programs that libpcap makes of `tcp port 80`, and sockets take by `SO_ATTACH_FILTER`.
//!
//! A program is checked once, by the rules of Linux's `bpf_check_classic`: only known instructions, jumps that go
//! forward and stay inside, scratch memory that exists, a return at the end. So it ends after as many steps as it has
//! instructions at most, and whoever runs it need not trust who sent it.

use thiserror::Error;

/// Most instructions of a program: Linux's `BPF_MAXINSNS`.
pub const MAX_INSTRUCTIONS: usize = 4096;
/// Words of scratch memory: `BPF_MEMWORDS`.
pub const SCRATCH: usize = 16;

/// An instruction as it is handed over: `struct sock_filter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Instruction {
    /// What is done.
    pub code: u16,
    /// Instructions to pass over if a comparison holds.
    pub jt: u8,
    /// The same if it does not.
    pub jf: u8,
    /// A number, an offset, a place in scratch memory.
    pub k: u32,
}

/// Why a program is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Invalid {
    /// It has no instructions, or more than [`MAX_INSTRUCTIONS`].
    #[error("a program of {0} instructions, not 1 to {MAX_INSTRUCTIONS}")]
    Length(usize),
    /// An instruction that does not exist, or that only a kernel can do (ancillary data).
    #[error("instruction {0} is not one of classic BPF")]
    Unknown(usize),
    /// A jump out of the program.
    #[error("instruction {0} jumps out of the program")]
    Jump(usize),
    /// A place in scratch memory that is not there.
    #[error("instruction {0} reaches beyond the scratch memory")]
    Scratch(usize),
    /// A division by a constant 0, a shift by 32 or more.
    #[error("instruction {0} divides by 0 or shifts too far")]
    Operand(usize),
    /// The last instruction is no return.
    #[error("the program does not end")]
    Endless,
}

/// What is added, compared or divided by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// A number.
    K(u32),
    /// The index register.
    X,
}

/// What is computed of `A` and an operand. Modulo 2³²; a division by 0 ends the program, which returns 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arithmetic {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient.
    Div,
    /// Remainder.
    Mod,
    /// Either bit.
    Or,
    /// Both bits.
    And,
    /// One of both bits.
    Xor,
    /// To the left, by the operand's lower five bits.
    Lsh,
    /// To the right, by the operand's lower five bits.
    Rsh,
}

/// What a branch asks of `A` and an operand, both unsigned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// Equal.
    Eq,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// They have a bit in common.
    Set,
}

/// A checked instruction. `A` and `X` are the two registers, of 32 bits, 0 at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `A = packet[k ..]`, of 1, 2 or 4 bytes, and with X added to k. Behind the packet's end, the program returns 0.
    Load {
        /// How many bytes.
        size: u8,
        /// Whether X is added.
        indexed: bool,
        /// Where.
        k: u32,
    },
    /// `A` or `X` = the length of the packet.
    LoadLength {
        /// Whether it is `X`.
        x: bool,
    },
    /// `A` or `X` = a number.
    LoadNumber {
        /// Whether it is `X`.
        x: bool,
        /// The number.
        k: u32,
    },
    /// `A` or `X` = a word of scratch memory, which is 0 at first.
    LoadScratch {
        /// Whether it is `X`.
        x: bool,
        /// Which of the 16 words.
        at: u8,
    },
    /// `X = 4 * (packet[k] & 0xf)`: the length of an IPv4 header.
    LoadHeaderLength {
        /// Where.
        k: u32,
    },
    /// A word of scratch memory = `A` or `X`.
    Store {
        /// Whether it is `X`.
        x: bool,
        /// Which of the 16 words.
        at: u8,
    },
    /// `A = A what operand`.
    Arithmetic(Arithmetic, Operand),
    /// `A = -A`.
    Negate,
    /// To pass over so many.
    Jump(u16),
    /// To pass over some.
    Branch {
        /// What is asked.
        test: Test,
        /// Of what besides `A`.
        with: Operand,
        /// How many are passed over if it holds.
        jt: u8,
        /// And if it does not.
        jf: u8,
    },
    /// The program returns the number, or `A`.
    Return(Option<u32>),
    /// `X = A`, or the other way round.
    Move {
        /// Whether it is `X` that changes.
        to_x: bool,
    },
}

/// A checked program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    ops: Box<[Op]>,
}

impl Filter {
    /// Checks a program.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub fn new(program: &[Instruction]) -> Result<Self, Invalid> {
        if program.is_empty() || program.len() > MAX_INSTRUCTIONS {
            return Err(Invalid::Length(program.len()));
        }
        let ops = program.iter().enumerate().map(|(at, instruction)| {
            let op = decode(*instruction, at)?;
            let behind = program.len() - at - 1;
            let farthest = match op {
                Op::Jump(over) => over.into(),
                Op::Branch { jt, jf, .. } => usize::from(jt.max(jf)),
                _ => 0,
            };
            let jumps = matches!(op, Op::Jump(_) | Op::Branch { .. });
            if jumps && farthest >= behind { Err(Invalid::Jump(at)) } else { Ok(op) }
        });
        let ops = ops.collect::<Result<Box<[Op]>, Invalid>>()?;
        match ops.last() {
            Some(Op::Return(_)) => Ok(Self { ops }),
            _ => Err(Invalid::Endless),
        }
    }

    /// Its instructions. Jumps lead on, and stay inside.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// What the program returns for a packet: 0 if it does not match, else how many of its bytes are wanted. A packet
    /// that is too short for a load does not match, nor does one for which there is a division by 0.
    pub fn run(&self, packet: &[u8]) -> u32 {
        self.steps(packet).unwrap_or(0)
    }

    /// Whether the program takes a packet.
    pub fn matches(&self, packet: &[u8]) -> bool {
        self.run(packet) != 0
    }

    fn steps(&self, packet: &[u8]) -> Option<u32> {
        let (mut a, mut x) = (0u32, 0u32);
        let mut scratch = [0u32; SCRATCH];
        let mut ops = self.ops.iter();
        loop {
            match *ops.next()? {
                Op::Load { size, indexed, k } => {
                    let at = if indexed { k.checked_add(x)? } else { k };
                    a = load(packet, at as usize, size)?;
                }
                Op::LoadLength { x: to_x } => *(if to_x { &mut x } else { &mut a }) = packet.len() as u32,
                Op::LoadNumber { x: to_x, k } => *(if to_x { &mut x } else { &mut a }) = k,
                Op::LoadScratch { x: to_x, at } => {
                    *(if to_x { &mut x } else { &mut a }) = *scratch.get(usize::from(at))?;
                }
                Op::LoadHeaderLength { k } => x = 4 * (load(packet, k as usize, 1)? & 0xf),
                Op::Store { x: from_x, at } => {
                    *scratch.get_mut(usize::from(at))? = if from_x { x } else { a };
                }
                Op::Arithmetic(operation, with) => a = operation.of(a, with.value(x))?,
                Op::Negate => a = a.wrapping_neg(),
                Op::Jump(over) => skip(&mut ops, over.into()),
                Op::Branch { test, with, jt, jf } => {
                    let holds = test.of(a, with.value(x));
                    skip(&mut ops, if holds { jt } else { jf }.into());
                }
                Op::Return(k) => return Some(k.unwrap_or(a)),
                Op::Move { to_x: true } => x = a,
                Op::Move { to_x: false } => a = x,
            }
        }
    }
}

fn skip(ops: &mut std::slice::Iter<'_, Op>, over: usize) {
    *ops = ops.as_slice().get(over..).unwrap_or_default().iter();
}

/// `size` bytes of the packet, in network byte order.
fn load(packet: &[u8], at: usize, size: u8) -> Option<u32> {
    let bytes = packet.get(at..at.checked_add(size.into())?)?;
    Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
}

impl Operand {
    fn value(self, x: u32) -> u32 {
        match self {
            Self::K(k) => k,
            Self::X => x,
        }
    }
}

impl Arithmetic {
    fn of(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => a.checked_div(b)?,
            Self::Mod => a.checked_rem(b)?,
            Self::Or => a | b,
            Self::And => a & b,
            Self::Xor => a ^ b,
            // Linux takes the lower five bits of what X holds.
            Self::Lsh => a.wrapping_shl(b),
            Self::Rsh => a.wrapping_shr(b),
        })
    }
}

impl Test {
    fn of(self, a: u32, b: u32) -> bool {
        match self {
            Self::Eq => a == b,
            Self::Gt => a > b,
            Self::Ge => a >= b,
            Self::Set => a & b != 0,
        }
    }
}

/// Reads an instruction: `BPF_CLASS`, and the fields that the class has.
fn decode(Instruction { code, jt, jf, k }: Instruction, at: usize) -> Result<Op, Invalid> {
    let unknown = Err(Invalid::Unknown(at));
    let place = || u8::try_from(k).ok().filter(|k| usize::from(*k) < SCRATCH).ok_or(Invalid::Scratch(at));
    let with = if code & 0x08 != 0 { Operand::X } else { Operand::K(k) };
    Ok(match code {
        // BPF_LD | BPF_W, BPF_H, BPF_B; BPF_ABS, BPF_IND. Negative offsets are Linux's ancillary data.
        0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 if k <= i32::MAX as u32 => {
            let size = match code & 0x18 {
                0x00 => 4,
                0x08 => 2,
                _ => 1,
            };
            Op::Load { size, indexed: code & 0xe0 == 0x40, k }
        }
        0x80 | 0x81 => Op::LoadLength { x: code == 0x81 },
        0x00 | 0x01 => Op::LoadNumber { x: code == 0x01, k },
        0x60 | 0x61 => Op::LoadScratch { x: code == 0x61, at: place()? },
        0xb1 if k <= i32::MAX as u32 => Op::LoadHeaderLength { k },
        0x02 | 0x03 => Op::Store { x: code == 0x03, at: place()? },
        0x04 | 0x0c => Op::Arithmetic(Arithmetic::Add, with),
        0x14 | 0x1c => Op::Arithmetic(Arithmetic::Sub, with),
        0x24 | 0x2c => Op::Arithmetic(Arithmetic::Mul, with),
        0x34 | 0x94 if k == 0 => return Err(Invalid::Operand(at)),
        0x34 | 0x3c => Op::Arithmetic(Arithmetic::Div, with),
        0x44 | 0x4c => Op::Arithmetic(Arithmetic::Or, with),
        0x54 | 0x5c => Op::Arithmetic(Arithmetic::And, with),
        0x64 | 0x74 if k >= 32 => return Err(Invalid::Operand(at)),
        0x64 | 0x6c => Op::Arithmetic(Arithmetic::Lsh, with),
        0x74 | 0x7c => Op::Arithmetic(Arithmetic::Rsh, with),
        0x84 => Op::Negate,
        0x94 | 0x9c => Op::Arithmetic(Arithmetic::Mod, with),
        0xa4 | 0xac => Op::Arithmetic(Arithmetic::Xor, with),
        0x05 => Op::Jump(u16::try_from(k).map_err(|_| Invalid::Jump(at))?),
        0x15 | 0x1d => Op::Branch { test: Test::Eq, with, jt, jf },
        0x25 | 0x2d => Op::Branch { test: Test::Gt, with, jt, jf },
        0x35 | 0x3d => Op::Branch { test: Test::Ge, with, jt, jf },
        0x45 | 0x4d => Op::Branch { test: Test::Set, with, jt, jf },
        0x06 => Op::Return(Some(k)),
        0x16 => Op::Return(None),
        0x07 => Op::Move { to_x: true },
        0x87 => Op::Move { to_x: false },
        _ => return unknown,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn program(text: &str) -> Vec<Instruction> {
        let number = |word: Option<&str>| word.unwrap().parse::<u32>().unwrap();
        text.lines()
            .map(str::split_whitespace)
            .map(|mut words| Instruction {
                code: number(words.next()) as u16,
                jt: number(words.next()) as u8,
                jf: number(words.next()) as u8,
                k: number(words.next()),
            })
            .collect()
    }

    /// `tcpdump -y EN10MB -ddd 'udp dst port 53'`, libpcap 1.10.3, without the first line, which counts the others.
    const DNS: &str = "40 0 0 12\n21 0 4 34525\n48 0 0 20\n21 0 11 17\n40 0 0 56\n21 8 9 53\n21 0 8 2048\n48 0 0 23\n\
                       21 0 6 17\n40 0 0 20\n69 4 0 8191\n177 0 0 14\n72 0 0 16\n21 0 1 53\n6 0 0 262144\n6 0 0 0";

    #[test]
    fn a_program_of_libpcap() {
        let filter = Filter::new(&program(DNS)).unwrap();
        let udp = |ihl: u8, port: u16, fragment: u16| {
            let mut frame = vec![0; 14 + usize::from(ihl) * 4 + 8];
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            frame[14] = 0x40 | ihl;
            frame[20..22].copy_from_slice(&fragment.to_be_bytes());
            frame[23] = 17;
            let at = 14 + usize::from(ihl) * 4;
            frame[at + 2..at + 4].copy_from_slice(&port.to_be_bytes());
            frame
        };
        assert_eq!(filter.run(&udp(5, 53, 0)), 262_144);
        assert!(filter.matches(&udp(8, 53, 0)), "behind options");
        assert!(!filter.matches(&udp(5, 54, 0)));
        assert!(!filter.matches(&udp(5, 53, 7)), "not the first fragment");
        assert!(!filter.matches(&udp(5, 53, 0)[..37]), "too short");
        let mut six = vec![0; 62];
        six[12..14].copy_from_slice(&[0x86, 0xdd]);
        (six[20], six[57]) = (17, 53);
        assert!(filter.matches(&six));
    }

    /// Each operation alone: `A` and `X` are set, the operation is done, `A` is returned.
    #[test]
    fn operations() {
        let run = |a: u32, x: u32, code: u16, k: u32| {
            let number = |code, k| Instruction { code, k, ..Instruction::default() };
            let program = [number(0x01, x), number(0x00, a), number(code, k), number(0x16, 0)];
            Filter::new(&program).map(|filter| filter.run(&[0x45, 1, 2, 3, 4]))
        };
        for (code, k, expected) in [
            (0x04, 5, 12),
            (0x0c, 0, 10),
            (0x14, 8, u32::MAX),
            (0x1c, 0, 4),
            (0x24, 3, 21),
            (0x2c, 0, 21),
            (0x34, 2, 3),
            (0x3c, 0, 2),
            (0x44, 8, 15),
            (0x4c, 0, 7),
            (0x54, 5, 5),
            (0x5c, 0, 3),
            (0x64, 4, 112),
            (0x6c, 0, 56),
            (0x74, 1, 3),
            (0x7c, 0, 0),
            (0x84, 0, 7u32.wrapping_neg()),
            (0x94, 4, 3),
            (0x9c, 0, 1),
            (0xa4, 1, 6),
            (0xac, 0, 4),
            (0x20, 1, 0x0102_0304),
            (0x28, 1, 0x0102),
            (0x30, 1, 1),
            (0x40, 2, 0),
            (0x48, 0, 0x0304),
            (0x50, 0, 3),
            (0x80, 0, 5),
            (0x87, 0, 3),
        ] {
            assert_eq!(run(7, 3, code, k), Ok(expected), "{code:#x}");
        }
        assert_eq!(run(7, 0, 0x3c, 0), Ok(0), "a division by 0 ends the program");
        assert_eq!(run(7, 33, 0x6c, 0), Ok(14), "a shift takes five bits of X");
        for (code, k, why) in [
            (0x34, 0, Invalid::Operand(2)),
            (0x94, 0, Invalid::Operand(2)),
            (0x64, 32, Invalid::Operand(2)),
            (0x02, 16, Invalid::Scratch(2)),
            (0x30, 0xffff_f000, Invalid::Unknown(2)),
            (0x05, 1, Invalid::Jump(2)),
            (0x05, u32::MAX, Invalid::Jump(2)),
            (0xff, 0, Invalid::Unknown(2)),
        ] {
            assert_eq!(run(7, 3, code, k), Err(why), "{code:#x} {k}");
        }
    }

    #[test]
    fn programs_that_do_not_end_are_refused() {
        let one = |code, jt, jf| Instruction { code, jt, jf, k: 0 };
        assert_eq!(Filter::new(&[]), Err(Invalid::Length(0)));
        assert_eq!(Filter::new(&vec![one(6, 0, 0); 4097]), Err(Invalid::Length(4097)));
        assert_eq!(Filter::new(&[one(0x80, 0, 0)]), Err(Invalid::Endless));
        assert_eq!(Filter::new(&[one(0x15, 0, 1), one(6, 0, 0)]), Err(Invalid::Jump(0)));
        assert!(Filter::new(&[one(0x15, 0, 1), one(6, 0, 0), one(6, 0, 0)]).is_ok());
    }

    proptest! {
        /// Whatever is taken runs to its end on whatever packet, without a panic.
        #[test]
        fn any_program_ends(
            codes in prop::collection::vec(
                (prop_oneof![0u16..0x100, any::<u16>()], 0u8..4, 0u8..4, prop_oneof![0u32..40, any::<u32>()]), 1..40),
            packet in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut program: Vec<Instruction> =
                codes.into_iter().map(|(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect();
            // What is refused is made a return, so that not all are.
            while let Err(Invalid::Unknown(at) | Invalid::Jump(at) | Invalid::Scratch(at) | Invalid::Operand(at)) =
                Filter::new(&program)
            {
                program[at] = Instruction { code: 0x16, ..Instruction::default() };
            }
            program.push(Instruction { code: 0x16, ..Instruction::default() });
            Filter::new(&program).unwrap().run(&packet);
        }
    }
}
