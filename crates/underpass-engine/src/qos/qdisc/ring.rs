//! Numbers in their order, of which each has its turn: a set of bits, and a pointer into it.

/// A set of the numbers below a bound, found in order.
#[derive(Debug, Default, Clone)]
pub(super) struct Bits {
    words: Box<[u64]>,
    /// A bit for each of `words` that is not 0.
    summary: Box<[u64]>,
}

impl Bits {
    pub(super) fn new(bound: usize) -> Self {
        let words = bound.div_ceil(64);
        Self { words: vec![0; words].into(), summary: vec![0; words.div_ceil(64)].into() }
    }

    #[inline]
    pub(super) fn insert(&mut self, number: u32) {
        let at = number as usize / 64;
        if let (Some(word), Some(summary)) = (self.words.get_mut(at), self.summary.get_mut(at / 64)) {
            *word |= 1 << (number % 64);
            *summary |= 1 << (at % 64);
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u32) {
        let at = number as usize / 64;
        if let (Some(word), Some(summary)) = (self.words.get_mut(at), self.summary.get_mut(at / 64)) {
            *word &= !(1 << (number % 64));
            if *word == 0 {
                *summary &= !(1 << (at % 64));
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.summary.iter().all(|word| *word == 0)
    }

    /// The first number that is `from` or more.
    #[inline]
    pub(super) fn at_least(&self, from: u32) -> Option<u32> {
        let at = from as usize / 64;
        let rest = self.words.get(at)? & (!0 << (from % 64));
        if rest != 0 {
            return Some(at as u32 * 64 + rest.trailing_zeros());
        }
        let at = at + 1;
        let mut place = at / 64;
        let mut summary = self.summary.get(place)? & (!0 << (at % 64));
        while summary == 0 {
            place += 1;
            summary = *self.summary.get(place)?;
        }
        let at = place * 64 + summary.trailing_zeros() as usize;
        Some(at as u32 * 64 + self.words.get(at)?.trailing_zeros())
    }
}

/// A set of which each has its turn: an rb-tree of classes with its `ptr` and `last_ptr_id` in `sch_htb.c`.
#[derive(Debug, Default, Clone)]
pub(super) struct Ring {
    set: Bits,
    /// Whose turn it is. `None`: behind the last, or see `remembered`.
    turn: Option<u32>,
    /// Whose turn it was when it went.
    remembered: Option<u32>,
}

impl Ring {
    pub(super) fn new(bound: usize) -> Self {
        Self { set: Bits::new(bound), turn: None, remembered: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    pub(super) fn insert(&mut self, number: u32) {
        self.set.insert(number);
    }

    /// Takes a number out, whose turn then is that of the next.
    pub(super) fn remove(&mut self, number: u32) {
        if self.turn == Some(number) {
            self.next();
        }
        self.set.remove(number);
    }

    /// Takes a number out, whose turn comes if it is back in time.
    pub(super) fn forget(&mut self, number: u32) {
        if self.turn == Some(number) {
            (self.turn, self.remembered) = (None, Some(number));
        }
        self.set.remove(number);
    }

    /// Ends the turn.
    pub(super) fn next(&mut self) {
        self.turn = self.turn.and_then(|turn| self.set.at_least(turn + 1));
    }

    /// Whose turn it is; `None` behind the last.
    #[inline]
    pub(super) fn turn(&mut self) -> Option<u32> {
        let remembered = self.remembered.take();
        if self.turn.is_none() {
            self.turn = remembered.and_then(|number| self.set.at_least(number));
        }
        self.turn
    }

    /// Begins with the first again.
    pub(super) fn rewind(&mut self) -> Option<u32> {
        self.turn = self.set.at_least(0);
        self.turn
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_found_in_order(steps in prop::collection::vec((0u32..9000, any::<bool>()), 0..100), from in 0u32..10_000) {
            let mut bits = Bits::new(9000);
            let mut model = BTreeSet::new();
            for (number, insert) in steps {
                if insert {
                    bits.insert(number);
                    model.insert(number);
                } else {
                    bits.remove(number);
                    model.remove(&number);
                }
                prop_assert_eq!(bits.at_least(from), model.range(from..).next().copied());
                prop_assert_eq!(bits.is_empty(), model.is_empty());
            }
        }
    }
}
