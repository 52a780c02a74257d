//! Filters of tracers: classic BPF of any kind.

use underpass_engine::bpf::classic::{Filter, Instruction};

use crate::random::Random;

/// A filter that matches about half of all packets. Every instruction can be reached, as in all that libpcap makes.
pub fn filter(random: &mut Random) -> Filter {
    let mut program: Vec<Instruction> = Vec::new();
    let count = 1 + random.below(30);
    for left in (0..count).rev() {
        program.push(instruction(random, left));
    }
    let with = |code, k| Instruction { code, jt: 0, jf: 0, k };
    // A & 1
    program.extend([with(0x54, 1), with(0x16, 0)]);
    Filter::new(&program).expect("a filter")
}

/// An instruction before `left` others, and the two of the end.
fn instruction(random: &mut Random, left: u64) -> Instruction {
    const LOADS: [u16; 6] = [0x20, 0x28, 0x30, 0x40, 0x48, 0x50];
    const SIMPLE: [u16; 6] = [0x80, 0x81, 0x84, 0x07, 0x87, 0x05];
    const SCRATCH: [u16; 4] = [0x60, 0x61, 0x02, 0x03];
    const WITH_NUMBER: [u16; 8] = [0x00, 0x01, 0x04, 0x14, 0x24, 0x44, 0x54, 0xa4];
    const WITH_X: [u16; 10] = [0x0c, 0x1c, 0x2c, 0x3c, 0x4c, 0x5c, 0x6c, 0x7c, 0x9c, 0xac];
    const BRANCHES: [u16; 8] = [0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d];
    let any = |codes: &[u16], random: &mut Random| codes[random.below(codes.len() as u64) as usize];
    let number = match random.below(4) {
        0 => random.next() as u32,
        1 => u32::MAX - random.below(4) as u32,
        _ => random.below(256) as u32,
    };
    let at = if random.below(20) == 0 { number >> 1 } else { random.below(64) as u32 };
    let (code, k) = match random.below(20) {
        0..8 => (any(&LOADS, random), at),
        8 => (0xb1, at),
        9 => (any(&SIMPLE, random), 0),
        10 => (any(&SCRATCH, random), random.below(16) as u32),
        11 | 12 => (any(&WITH_NUMBER, random), number),
        13 => (any(&WITH_X, random), 0),
        14 => (any(&[0x34, 0x94], random), number | 1),
        15 => (any(&[0x64, 0x74], random), number & 31),
        _ => (any(&BRANCHES, random), number),
    };
    let over = random.below(left + 2) as u8;
    let (jt, jf) = match code & 7 {
        5 if code != 0x05 && random.below(2) == 0 => (over, 0),
        5 if code != 0x05 => (0, over),
        _ => (0, 0),
    };
    Instruction { code, jt, jf, k }
}
