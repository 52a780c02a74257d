//! Choices that are made by bytes.
#![allow(dead_code, reason = "each test uses its part")]

/// Bytes from which choices are made; zeros once they are used up.
pub struct Dice<'b>(pub &'b [u8]);

impl Dice<'_> {
    pub fn byte(&mut self) -> u8 {
        let [first, rest @ ..] = self.0 else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub fn bool(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    pub fn word(&mut self) -> u32 {
        // Small ones, which lead somewhere, and any.
        match self.byte() {
            small @ 0..200 => u32::from(small % 70),
            _ => u32::from_be_bytes([0; 4].map(|_: u8| self.byte())),
        }
    }

    pub fn some<T>(&mut self, of: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.bool() { Some(of(self)) } else { None }
    }

    pub fn list<T>(&mut self, most: usize, mut of: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| of(self)).collect()
    }

    pub fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
}
