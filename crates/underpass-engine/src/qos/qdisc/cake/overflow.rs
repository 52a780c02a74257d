//! Which queue of all tins is the longest: a heap, as long as there was no room lately.

use super::chains::QUEUES;
use crate::tables::CAKE_TINS;

const ALL: usize = QUEUES * CAKE_TINS;

/// Names a queue of a tin: bits as in the heap of Linux do not matter.
pub(super) fn code(tin: usize, flow: u16) -> u16 {
    (tin as u16) << 10 | flow
}

/// The tin and the flow.
pub(super) fn parts(code: u16) -> (usize, u16) {
    (usize::from(code >> 10), code & 1023)
}

/// All queues, the longest first, once there was no room.
#[derive(Debug)]
pub(super) struct Overflow {
    heap: Box<[u16]>,
    /// Where each is in the heap.
    places: Box<[u16]>,
    /// For how many packets that leave the heap is kept as it is to be; 0: it is none.
    kept: u16,
}

impl Default for Overflow {
    fn default() -> Self {
        // The queues of a tin stand apart, as those of a flow number stand together.
        let heap: Box<[u16]> =
            (0..QUEUES as u16).flat_map(|flow| (0..CAKE_TINS).map(move |tin| code(tin, flow))).collect();
        let mut places = vec![0; ALL].into_boxed_slice();
        for (at, code) in heap.iter().enumerate() {
            if let Some(place) = places.get_mut(usize::from(*code)) {
                *place = at as u16;
            }
        }
        Self { heap, places, kept: 0 }
    }
}

impl Overflow {
    /// The longest queue.
    pub(super) fn longest(&mut self, backlog: impl Fn(u16) -> u32) -> u16 {
        if self.kept == 0 {
            (0..ALL / 2).rev().for_each(|at| self.down(at, &backlog));
        }
        self.kept = u16::MAX;
        self.at(0)
    }

    /// The heap is not in order; it is built anew next time.
    pub(super) fn forget(&mut self) {
        self.kept = 0;
    }

    /// A packet has left.
    pub(super) fn left(&mut self) {
        self.kept = self.kept.saturating_sub(1);
    }

    /// A queue has become shorter.
    pub(super) fn shorter(&mut self, code: u16, backlog: impl Fn(u16) -> u32) {
        if self.kept != 0 {
            self.down(self.place(code), &backlog);
        }
    }

    /// A queue has become longer.
    pub(super) fn longer(&mut self, code: u16, backlog: impl Fn(u16) -> u32) {
        if self.kept == 0 {
            return;
        }
        let mut at = self.place(code);
        while at > 0 && backlog(self.at(at)) > backlog(self.at((at - 1) / 2)) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn at(&self, at: usize) -> u16 {
        self.heap.get(at).copied().unwrap_or_default()
    }

    fn place(&self, code: u16) -> usize {
        self.places.get(usize::from(code)).map_or(0, |place| usize::from(*place))
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for at in [a, b] {
            let code = self.at(at);
            if let Some(place) = self.places.get_mut(usize::from(code)) {
                *place = at as u16;
            }
        }
    }

    fn down(&mut self, mut at: usize, backlog: &impl Fn(u16) -> u32) {
        loop {
            let mut longest = (at, backlog(self.at(at)));
            for child in [2 * at + 1, 2 * at + 2].into_iter().filter(|child| *child < ALL) {
                let length = backlog(self.at(child));
                if length > longest.1 {
                    longest = (child, length);
                }
            }
            if longest.0 == at {
                return;
            }
            self.swap(at, longest.0);
            at = longest.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_is_the_longest(steps in prop::collection::vec((0u16..8192, 0u32..50), 1..100)) {
            let mut overflow = Overflow::default();
            let mut backlogs = vec![0; ALL];
            for (step, (code, length)) in steps.into_iter().enumerate() {
                let old = std::mem::replace(&mut backlogs[usize::from(code)], length);
                let backlog = |code: u16| backlogs[usize::from(code)];
                if length > old {
                    overflow.longer(code, backlog);
                } else {
                    overflow.shorter(code, backlog);
                }
                if step % 10 == 9 {
                    overflow.forget();
                }
                let longest = overflow.longest(backlog);
                prop_assert_eq!(backlog(longest), backlogs.iter().copied().max().unwrap());
            }
        }
    }
}
