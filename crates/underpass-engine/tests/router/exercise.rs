//! Runs arbitrary programs on a packet, and checks what must hold whatever they are. The tests and the fuzz target
//! share them.
#![allow(dead_code, reason = "each uses its part")]

use std::cell::RefCell;
use std::sync::Arc;

use underpass_engine::bpf::{Map, Program, Region, Unsupported};
use underpass_engine::tables::{Action, ActionId, Behaviour, Bpf, Endpoint};

use crate::lab::{Lab, frame, ip6, udp, v6, with_srh};

/// A router with one SID, the program of which can be changed.
pub struct Machine {
    pub lab: Lab,
    action: ActionId,
}

/// The number by which programs name the map.
pub const MAP: u32 = 9;

/// An instruction.
pub fn op(opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let ([a, b], [c, d, e, f]) = (offset.to_le_bytes(), immediate.to_le_bytes());
    [opcode, src << 4 | dst, a, b, c, d, e, f]
}

/// r = constant; exit.
pub fn exit(value: i32) -> [[u8; 8]; 2] {
    [op(0xb7, 0, 0, 0, value), op(0x95, 0, 0, 0, 0)]
}

impl Machine {
    pub fn new() -> Self {
        let mut lab = Lab::new();
        let action = lab.writer.add_action(Action::Local);
        lab.writer.insert6(lab.fib6, v6("fc00::1"), 128, action);
        Self { lab, action }
    }

    /// Gives the SID this program, with a map of 3 values of 12 bytes.
    pub fn load(&mut self, code: &[u8]) -> Result<(), Unsupported> {
        let map = Map::array(Region::zeroed(48), 12, 3).unwrap();
        let program = Arc::new(Program::new(code, vec![(MAP, map)])?);
        let (lookup, source) = (self.lab.lookup, v6("fd00:1::1"));
        let tables = [(254, lookup)].into();
        let bpf = Box::new(Bpf { program, lookup, tables, source, fixed_source: true });
        let (behaviour, link) = (Behaviour::Bpf(bpf), self.lab.links[0]);
        let endpoint = Endpoint { behaviour, flavours: None, counter: None, link };
        self.lab.writer.set_action(self.action, Action::Endpoint(endpoint));
        self.lab.writer.reclaim();
        Ok(())
    }

    /// Sends a packet through it: what leaves.
    pub fn send(&mut self) -> Vec<(u16, Vec<u8>)> {
        let inner = ip6("2001:db8:0::7", "2001:db8:1::7", 17, &udp(20));
        let routed = with_srh(&["fc00::1", "fd00:1::9"], 1, 41, &inner);
        let sent = self.lab.send(&[frame(0x86dd, &ip6("2001:db8:0::7", "fc00::1", 43, &routed))]);
        self.lab.assert_accounted();
        sent
    }
}

thread_local! {
    static MACHINE: RefCell<Machine> = RefCell::new(Machine::new());
}

/// Bytes as instructions. Whether they are a program.
pub fn raw(bytes: &[u8]) -> bool {
    MACHINE.with_borrow_mut(|machine| {
        let loads = machine.load(bytes).is_ok();
        machine.send();
        loads
    })
}

/// Bytes of which the first says how the others become instructions. Whether they are a program.
pub fn any(bytes: &[u8]) -> bool {
    match bytes.split_first() {
        Some((0, code)) => raw(code),
        Some((_, choices)) => likely(choices),
        None => false,
    }
}

/// Opcodes of all kinds.
#[rustfmt::skip]
const OPCODES: [u8; 106] = [
    0x07, 0x0f, 0x17, 0x1f, 0x27, 0x2f, 0x37, 0x3f, 0x47, 0x4f, 0x57, 0x5f, 0x67, 0x6f, 0x77, 0x7f, 0x87, 0x97, 0x9f,
    0xa7, 0xaf, 0xb7, 0xbf, 0xc7, 0xcf, 0xd7, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c,
    0x64, 0x6c, 0x74, 0x7c, 0x84, 0x94, 0x9c, 0xa4, 0xac, 0xb4, 0xbc, 0xc4, 0xcc, 0xd4, 0xdc, 0x61, 0x69, 0x71, 0x79,
    0x81, 0x89, 0x91, 0x62, 0x6a, 0x72, 0x7a, 0x63, 0x6b, 0x73, 0x7b, 0xc3, 0xdb, 0x05, 0x06, 0x15, 0x1d, 0x25, 0x2d,
    0x35, 0x3d, 0x45, 0x4d, 0x55, 0x5d, 0x65, 0x6d, 0x75, 0x7d, 0xa5, 0xad, 0xb5, 0xbd, 0xc5, 0xcd, 0xd5, 0xdd, 0x16,
    0x1e, 0x2e, 0x46, 0x66, 0xae, 0xbe, 0xde, 0x85, 0x85, 0x85, 0x85,
];

/// Helpers that there are.
const HELPERS: [i32; 18] = [1, 2, 3, 5, 6, 7, 8, 17, 24, 26, 28, 34, 39, 42, 74, 75, 76, 182];
const ATOMICS: [i32; 10] = [0x00, 0x01, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1];
/// What helpers take for offsets, lengths, actions and return values.
const NUMBERS: [i32; 24] =
    [0, 1, 2, 3, 4, 7, 8, 9, 10, 16, 24, 36, 40, 44, 45, 46, 48, 76, 80, 88, 254, -8, -16, 4000];

/// Bytes as the choice of instructions that a program has mostly, four each, between a beginning that saves the
/// context and points at the packet, the stack and the map, and an end. Whether it is a program.
pub fn likely(bytes: &[u8]) -> bool {
    let mut code = vec![
        op(0xbf, 6, 1, 0, 0),  // r6 = r1
        op(0x61, 7, 1, 76, 0), // r7 = data
        op(0xbf, 8, 10, 0, 0), // r8 = r10 - 64
        op(0x07, 8, 0, 0, -64),
        op(0x18, 9, 2, 0, MAP as i32), // r9 = the value of the map
        op(0, 0, 0, 0, 8),
    ];
    // A list of one segment, for actions that take one.
    code.push(op(0x7a, 10, 0, -64, 0x0004_0200));
    for chunk in bytes.as_chunks::<4>().0.iter().take(96) {
        let [a, b, c, d] = *chunk;
        let opcode = OPCODES[usize::from(a) % OPCODES.len()];
        let (dst, src) = (b & 15, b >> 4);
        let number = NUMBERS[usize::from(d) % NUMBERS.len()];
        let offset = if opcode & 7 >= 4 { i16::from(c as i8 % 12) } else { i16::from(c as i8) };
        let next = match opcode {
            0x85 => {
                // With the context as the first argument, mostly.
                if c & 7 != 0 {
                    code.push(op(0xbf, 1, 6, 0, 0));
                }
                op(opcode, 0, 0, 0, HELPERS[usize::from(d) % HELPERS.len()])
            }
            0xc3 | 0xdb => op(opcode, dst % 11, src % 11, offset, ATOMICS[usize::from(d) % ATOMICS.len()]),
            0xd4 | 0xdc | 0xd7 => op(opcode, dst % 10, 0, 0, [16, 32, 64][usize::from(d) % 3]),
            0x05 => op(opcode, 0, 0, offset, 0),
            0x06 => op(opcode, 0, 0, 0, offset.into()),
            // An operation on the immediate or of a pointer, a sign or none.
            _ if opcode & 7 >= 4 && opcode & 7 != 5 && opcode & 7 != 6 => {
                let signed = matches!(opcode & 0xf0, 0x30 | 0x90) && c & 1 == 1;
                op(opcode, dst % 10, src % 11, i16::from(signed), number)
            }
            _ => op(opcode, dst % if opcode & 6 == 2 { 11 } else { 10 }, src % 11, offset, number),
        };
        code.push(next);
    }
    code.extend(exit(0));
    raw(&code.concat())
}
