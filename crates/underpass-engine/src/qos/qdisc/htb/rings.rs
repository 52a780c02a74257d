//! Where classes stand: the rows of their levels and the feeds of the classes above, and whose turn it is.

use arrayvec::ArrayVec;

use super::{Class, Htb, Level, Mode};
use crate::tables::HTB_DEPTH;

impl Htb {
    /// Puts a class back where its state says that it is, after the classes were made anew.
    pub(in crate::qos::qdisc) fn resume(&mut self, index: u32) {
        let Some(class) = self.classes.get(index as usize) else { return };
        let (mode, due, at_level) = (class.state.mode, class.state.due, class.at_level);
        let holds = class.leaf.as_ref().is_some_and(|leaf| leaf.len() > 0);
        if mode != Mode::CanSend
            && let Some(level) = self.levels.get_mut(usize::from(class.level))
        {
            level.waiting.set(at_level, due);
        }
        if holds {
            self.activate(index);
        }
    }

    /// A leaf has packets: `htb_activate`.
    pub(in crate::qos::qdisc) fn activate(&mut self, index: u32) {
        if let Some(class) = self.classes.get_mut(index as usize)
            && class.activity == 0
        {
            class.activity = 1 << class.prio;
            self.enter_rings(index);
        }
    }

    /// A leaf has none any more: `htb_deactivate`.
    pub(super) fn deactivate(&mut self, index: u32) {
        self.leave_rings(index);
        if let Some(class) = self.classes.get_mut(index as usize) {
            class.activity = 0;
        }
    }

    /// `htb_activate_prios`.
    pub(super) fn enter_rings(&mut self, index: u32) {
        let Some(class) = self.class(index) else { return };
        let mut mask = class.activity;
        let mut index = index;
        while mask != 0 {
            let Some(class) = self.class(index) else { return };
            let (level, at_level, at_parent) = (class.level, class.at_level, class.at_parent);
            match (class.state.mode, class.parent) {
                (Mode::MayBorrow, Some(parent)) => {
                    let Some(Class { feeds: Some(feeds), activity, .. }) =
                        self.classes.get_mut(parent as usize)
                    else {
                        return;
                    };
                    let mut above = mask;
                    for (prio, feed) in feeds.iter_mut().enumerate().filter(|(prio, _)| mask >> prio & 1 != 0)
                    {
                        if !feed.is_empty() {
                            // The parent stands in its ring for this priority already.
                            above &= !(1 << prio);
                        }
                        feed.insert(at_parent);
                    }
                    *activity |= above;
                    (mask, index) = (above, parent);
                }
                (Mode::CanSend, _) => {
                    let Some(level) = self.levels.get_mut(usize::from(level)) else { return };
                    level.mask |= mask;
                    for (prio, row) in level.rows.iter_mut().enumerate() {
                        if mask >> prio & 1 != 0 {
                            row.insert(at_level);
                        }
                    }
                    return;
                }
                _ => return,
            }
        }
    }

    /// `htb_deactivate_prios`.
    pub(super) fn leave_rings(&mut self, index: u32) {
        let Some(class) = self.class(index) else { return };
        let mut mask = class.activity;
        let mut index = index;
        while mask != 0 {
            let Some(class) = self.class(index) else { return };
            let (level, at_level, at_parent) = (class.level, class.at_level, class.at_parent);
            match (class.state.mode, class.parent) {
                (Mode::MayBorrow, Some(parent)) => {
                    let Some(Class { feeds: Some(feeds), activity, .. }) =
                        self.classes.get_mut(parent as usize)
                    else {
                        return;
                    };
                    let mut above = 0;
                    for (prio, feed) in feeds.iter_mut().enumerate().filter(|(prio, _)| mask >> prio & 1 != 0)
                    {
                        feed.forget(at_parent);
                        if feed.is_empty() {
                            above |= 1 << prio;
                        }
                    }
                    *activity &= !above;
                    (mask, index) = (above, parent);
                }
                (Mode::CanSend, _) => {
                    let Some(level) = self.levels.get_mut(usize::from(level)) else { return };
                    for (prio, row) in level.rows.iter_mut().enumerate() {
                        if mask >> prio & 1 != 0 {
                            row.remove(at_level);
                            if row.is_empty() {
                                level.mask &= !(1 << prio);
                            }
                        }
                    }
                    return;
                }
                _ => return,
            }
        }
    }

    /// The next in the ring that a leaf was found in has its turn.
    pub(super) fn end_turn(&mut self, leaf: u32, level: usize, prio: usize) {
        let parent = self.class(leaf).and_then(|class| class.parent);
        let ring = match parent {
            Some(parent) if level > 0 => {
                self.classes.get_mut(parent as usize).and_then(|class| class.feeds.as_mut()?.get_mut(prio))
            }
            _ => self.levels.get_mut(level).and_then(|level| level.rows.get_mut(prio)),
        };
        if let Some(ring) = ring {
            ring.next();
        }
    }

    /// The leaf whose turn it is: `htb_lookup_leaf`.
    pub(super) fn leaf_of_turn(&mut self, level: usize, prio: usize) -> Option<u32> {
        // The classes that lead down to where we are.
        let mut above = ArrayVec::<u32, HTB_DEPTH>::new();
        for _ in 0..65_535 {
            let Self { classes, levels, .. } = &mut *self;
            let (ring, members) = match above.last() {
                Some(parent) => {
                    let Class { feeds, children, .. } = classes.get_mut(*parent as usize)?;
                    (feeds.as_mut()?.get_mut(prio)?, &*children)
                }
                None => {
                    let Level { rows, members, .. } = levels.get_mut(level)?;
                    (rows.get_mut(prio)?, &*members)
                }
            };
            let Some(turn) = ring.turn() else {
                // Behind the last: it begins anew, and the one above goes on.
                ring.rewind()?;
                if above.pop().is_some() {
                    self.advance(above.last().copied(), level, prio);
                }
                continue;
            };
            let index = *members.get(turn as usize)?;
            if self.class(index)?.level == 0 {
                return Some(index);
            }
            above.try_push(index).ok()?;
        }
        None
    }

    fn advance(&mut self, parent: Option<u32>, level: usize, prio: usize) {
        let ring = match parent {
            Some(parent) => {
                self.classes.get_mut(parent as usize).and_then(|class| class.feeds.as_mut()?.get_mut(prio))
            }
            None => self.levels.get_mut(level).and_then(|level| level.rows.get_mut(prio)),
        };
        if let Some(ring) = ring {
            ring.next();
        }
    }
}
