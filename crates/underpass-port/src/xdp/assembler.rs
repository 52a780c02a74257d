//! An assembler for BPF programs: instructions as RFC 9669 lays them out, and labels for jumps and calls.

use std::os::fd::{AsRawFd, RawFd};

/// One instruction, RFC 9669 section 3.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Instruction {
    opcode: u8,
    /// The destination in the lower four bits, the source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. [`R10`] is the frame pointer, [`R1`] the context at the start; calls take [`R1`] to `R5`, return
/// in [`R0`] and keep [`R6`] to [`R9`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Register(u8);

pub(crate) const R0: Register = Register(0);
pub(crate) const R1: Register = Register(1);
pub(crate) const R2: Register = Register(2);
pub(crate) const R3: Register = Register(3);
pub(crate) const R4: Register = Register(4);
pub(crate) const R5: Register = Register(5);
pub(crate) const R6: Register = Register(6);
pub(crate) const R7: Register = Register(7);
pub(crate) const R8: Register = Register(8);
pub(crate) const R9: Register = Register(9);
pub(crate) const R10: Register = Register(10);

/// How many bytes are loaded or stored.
#[derive(Clone, Copy)]
pub(crate) enum Size {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// What is computed of a register and another, or a number.
#[derive(Clone, Copy)]
pub(crate) enum Do {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    Divide = 0x30,
    Modulo = 0x90,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Xor = 0xa0,
}

/// When a jump is taken; comparisons are unsigned, but for the one that says otherwise.
#[derive(Clone, Copy)]
pub(crate) enum When {
    Equal = 0x10,
    NotEqual = 0x50,
    Greater = 0x20,
    GreaterOrEqual = 0x30,
    Less = 0xa0,
    LessOrEqual = 0xb0,
    /// Of numbers with a sign.
    SignedGreaterOrEqual = 0x70,
    /// Any of the bits is set.
    Bits = 0x40,
}

/// A place in the program that jumps lead to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// A program that is being written.
#[derive(Default)]
pub(crate) struct Program {
    instructions: Vec<Instruction>,
    /// Where each label is.
    labels: Vec<Option<usize>>,
    /// Jumps, and the label that each leads to.
    jumps: Vec<(usize, Label)>,
    /// Calls of functions, and the label that each leads to.
    calls: Vec<(usize, Label)>,
    /// Functions, in the order in which they stand.
    functions: Vec<Function>,
}

/// A function of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Function {
    /// Its first instruction.
    pub(crate) at: u32,
    /// Its name.
    pub(crate) name: &'static str,
    /// How many numbers it takes, in R1 and the following registers. `None`: the kernel verifies it anew for each call of it,
    /// with what it is called with; else once, whatever these numbers are.
    pub(crate) numbers: Option<u32>,
}

impl Program {
    fn push(&mut self, opcode: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.instructions.push(Instruction { opcode, registers: from.0 << 4 | to.0, offset, immediate });
    }

    /// A new label, which is nowhere yet.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label is here.
    pub(crate) fn here(&mut self, label: Label) {
        let here = self.instructions.len();
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(here);
        }
    }

    /// `to = from`
    pub(crate) fn copy(&mut self, to: Register, from: Register) {
        self.push(0xbf, to, from, 0, 0);
    }

    /// `to = value`
    pub(crate) fn set(&mut self, to: Register, value: i32) {
        self.push(0xb7, to, R0, 0, value);
    }

    /// `to += value`
    pub(crate) fn add(&mut self, to: Register, value: i32) {
        self.push(0x07, to, R0, 0, value);
    }

    /// `to &= value`
    pub(crate) fn and(&mut self, to: Register, value: i32) {
        self.push(0x57, to, R0, 0, value);
    }

    /// `to >>= bits`
    pub(crate) fn shift_right(&mut self, to: Register, bits: i32) {
        self.push(0x77, to, R0, 0, bits);
    }

    /// `to = to what value`
    pub(crate) fn compute(&mut self, to: Register, what: Do, value: i32) {
        self.push(0x07 | what as u8, to, R0, 0, value);
    }

    /// `to = to what from`
    pub(crate) fn compute_with(&mut self, to: Register, what: Do, from: Register) {
        self.push(0x0f | what as u8, to, from, 0, 0);
    }

    /// `to = value`, of 32 bits; the upper half becomes 0, as of all that is computed of words.
    pub(crate) fn set_word(&mut self, to: Register, value: u32) {
        self.push(0xb4, to, R0, 0, value.cast_signed());
    }

    /// `to = to what from`, of the lower 32 bits.
    pub(crate) fn compute_words(&mut self, to: Register, what: Do, from: Register) {
        self.push(0x0c | what as u8, to, from, 0, 0);
    }

    /// Clears the upper half.
    pub(crate) fn lower(&mut self, to: Register) {
        self.push(0xbc, to, to, 0, 0);
    }

    /// `to = value`, of 64 bits.
    pub(crate) fn set_wide(&mut self, to: Register, value: u64) {
        self.push(0x18, to, R0, 0, value as i32);
        self.push(0, R0, R0, 0, (value >> 32) as i32);
    }

    /// Turns the lowest so many bits from the machine's order into that of the network, or back, and clears the others.
    pub(crate) fn swap(&mut self, to: Register, bits: i32) {
        self.push(0xdc, to, R0, 0, bits);
    }

    /// `to =` the pointer to what lies so many bytes behind the first of the arena.
    pub(crate) fn point(&mut self, to: Register, from: Register) {
        /// `BPF_ADDR_SPACE_CAST`, from address space 1 to 0: Documentation/bpf/standardization, `addr_space_cast`.
        const CAST: (i16, i32) = (1, 1);
        self.push(0xbf, to, from, CAST.0, CAST.1);
    }

    /// Here begins a function.
    pub(crate) fn function(&mut self, label: Label, name: &'static str, numbers: Option<u32>) {
        self.here(label);
        let at = self.instructions.len() as u32;
        self.functions.push(Function { at, name, numbers });
    }

    /// The functions.
    pub(crate) fn functions(&self) -> Vec<Function> {
        self.functions.clone()
    }

    /// Calls a function of the program.
    pub(crate) fn call_here(&mut self, label: Label) {
        const FUNCTION: Register = Register(1);
        self.calls.push((self.instructions.len(), label));
        self.push(0x85, R0, FUNCTION, 0, 0);
    }

    /// `to = -to`
    pub(crate) fn negate(&mut self, to: Register) {
        self.push(0x87, to, R0, 0, 0);
    }

    /// `to = *(base + offset)`, in the machine's byte order.
    pub(crate) fn load(&mut self, size: Size, to: Register, base: Register, offset: i16) {
        self.push(0x61 | size as u8, to, base, offset, 0);
    }

    /// `*(base + offset) = from`
    pub(crate) fn store(&mut self, size: Size, base: Register, offset: i16, from: Register) {
        self.push(0x63 | size as u8, base, from, offset, 0);
    }

    /// `*(base + offset) = from`, if R0 is what was there, which is in R0 then: 64 bits, at once.
    pub(crate) fn exchange_if_r0(&mut self, base: Register, offset: i16, from: Register) {
        /// `BPF_CMPXCHG`.
        const COMPARE_AND_EXCHANGE: i32 = 0xf1;
        self.push(0xdb, base, from, offset, COMPARE_AND_EXCHANGE);
    }

    /// `to =` the map behind this descriptor.
    pub(crate) fn map(&mut self, to: Register, map: &impl AsRawFd) {
        const MAP_FD: Register = Register(1);
        let fd: RawFd = map.as_raw_fd();
        self.push(0x18, to, MAP_FD, 0, fd);
        self.push(0, R0, R0, 0, 0);
    }

    /// Calls the kernel's helper of this number.
    pub(crate) fn call(&mut self, helper: i32) {
        self.push(0x85, R0, R0, 0, helper);
    }

    /// Jumps if `register` is to `value` as `when` says.
    pub(crate) fn jump_if(&mut self, register: Register, when: When, value: i32, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(0x05 | when as u8, register, R0, 0, value);
    }

    /// Jumps if `register` is to `other` as `when` says.
    pub(crate) fn jump_if_register(&mut self, register: Register, when: When, other: Register, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(0x0d | when as u8, register, other, 0, 0);
    }

    /// Jumps.
    pub(crate) fn jump(&mut self, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(0x05, R0, R0, 0, 0);
    }

    /// Returns R0.
    pub(crate) fn exit(&mut self) {
        self.push(0x95, R0, R0, 0, 0);
    }

    /// The instructions. A jump to a label that is nowhere leads to itself, which the kernel refuses.
    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let target = self.labels.get(label.0).copied().flatten().unwrap_or(at);
            if let Some(jump) = self.instructions.get_mut(at) {
                jump.offset = (target as isize - at as isize - 1) as i16;
            }
        }
        for (at, label) in self.calls {
            let target = self.labels.get(label.0).copied().flatten().unwrap_or(at);
            if let Some(call) = self.instructions.get_mut(at) {
                call.immediate = (target as isize - at as isize - 1) as i32;
            }
        }
        self.instructions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `llvm-objdump -d` prints these bytes as:
    /// `r2 = *(u32 *)(r1 + 0)`, `if r2 != 7 goto +2`, `r0 = 1`, `exit`, `r0 = 0`, `exit`.
    #[test]
    fn the_layout_is_that_of_rfc_9669() {
        let mut program = Program::default();
        let other = program.label();
        program.load(Size::Word, R2, R1, 0);
        program.jump_if(R2, When::NotEqual, 7, other);
        program.set(R0, 1);
        program.exit();
        program.here(other);
        program.set(R0, 0);
        program.exit();
        let bytes: Vec<u8> = program
            .finish()
            .iter()
            .flat_map(|i| {
                [&[i.opcode, i.registers][..], &i.offset.to_le_bytes(), &i.immediate.to_le_bytes()].concat()
            })
            .collect();
        assert_eq!(
            bytes,
            [
                0x61, 0x12, 0, 0, 0, 0, 0, 0, 0x55, 0x02, 2, 0, 7, 0, 0, 0, 0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95,
                0, 0, 0, 0, 0, 0, 0, 0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0,
            ]
        );
    }
}
