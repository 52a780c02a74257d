//! What is due when: a heap of numbers from a dense range, each at most once, that knows where each of them is.

use crate::limiter::Nanos;

const NOWHERE: u32 = u32::MAX;

/// Numbers by the time at which they are due.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    heap: Vec<(Nanos, u32)>,
    /// Where each number is.
    places: Vec<u32>,
}

impl Heap {
    /// For the numbers below `count`.
    pub(crate) fn new(count: usize) -> Self {
        Self { heap: Vec::with_capacity(count), places: vec![NOWHERE; count] }
    }

    /// For more numbers.
    pub(crate) fn grow(&mut self, count: usize) {
        if count > self.places.len() {
            self.places.resize(count, NOWHERE);
            self.heap.reserve(count - self.heap.len());
        }
    }

    /// The first, and when it is due.
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<(Nanos, u32)> {
        self.heap.first().copied()
    }

    /// Says when a number is due, which may be in already. Without meaning for numbers beyond the range.
    pub(crate) fn set(&mut self, number: u32, due: Nanos) {
        let Some(place) = self.places.get_mut(number as usize) else { return };
        let at = if *place == NOWHERE {
            *place = self.heap.len() as u32;
            self.heap.push((due, number));
            *place as usize
        } else {
            let at = *place as usize;
            if let Some(entry) = self.heap.get_mut(at) {
                entry.0 = due;
            }
            at
        };
        let at = self.up(at);
        self.down(at);
    }

    /// Takes a number out.
    pub(crate) fn remove(&mut self, number: u32) {
        let Some(place) = self.places.get_mut(number as usize) else { return };
        let at = std::mem::replace(place, NOWHERE) as usize;
        if at >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(at);
        if let Some(&(_, moved)) = self.heap.get(at) {
            self.place(moved, at);
            let at = self.up(at);
            self.down(at);
        }
    }

    fn place(&mut self, number: u32, at: usize) {
        if let Some(place) = self.places.get_mut(number as usize) {
            *place = at as u32;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for at in [a, b] {
            if let Some(&(_, number)) = self.heap.get(at) {
                self.place(number, at);
            }
        }
    }

    fn up(&mut self, mut at: usize) -> usize {
        while at > 0 && self.heap.get(at) < self.heap.get((at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        at
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let children = [2 * at + 1, 2 * at + 2];
            let least = children.into_iter().filter(|child| *child < self.heap.len());
            let Some(child) = least.min_by_key(|child| self.heap.get(*child)) else { return };
            if self.heap.get(child) >= self.heap.get(at) {
                return;
            }
            self.swap(at, child);
            at = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_is_the_least(steps in prop::collection::vec((0u32..40, 0u64..50, any::<bool>()), 0..200)) {
            let mut heap = Heap::new(20);
            heap.grow(40);
            let mut model = BTreeMap::new();
            for (number, due, set) in steps {
                if set {
                    heap.set(number, due);
                    model.insert(number, due);
                } else {
                    heap.remove(number);
                    model.remove(&number);
                }
                prop_assert_eq!(heap.first(), model.iter().map(|(number, due)| (*due, *number)).min());
            }
        }
    }
}
