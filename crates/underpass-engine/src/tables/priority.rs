//! Who needs `skb->priority`: forwarding finds it out for no packet where nobody does.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{
    Classifier, Ematch, EmatchTest, Hook, HookId, MetaTerm, MetaValue, Qdisc, QdiscKind, TcActionKind, Writer,
};
use crate::qos::StoredHook;

/// The first two bytes of an IPv4 header, in little-endian order, of which the express path looks at the first alone,
/// or at the bits of the second, TOS, that give a packet a priority too.
const FIRST: u32 = 0x00ff;
const FIRST_AND_TOS: u32 = 0x18ff;

/// The users of priorities in the tables.
#[derive(Debug)]
pub(super) struct Priorities {
    /// Qdiscs and filters that look at the priority of a packet.
    readers: AtomicU32,
    /// Actions that set it.
    writers: AtomicU32,
    /// What the express path compares of an IPv4 header: [`FIRST_AND_TOS`] while there are readers.
    compared: AtomicU32,
}

impl Default for Priorities {
    fn default() -> Self {
        Self { readers: AtomicU32::new(0), writers: AtomicU32::new(0), compared: AtomicU32::new(FIRST) }
    }
}

/// There is one thread that writes.
fn replace(count: &AtomicU32, old: bool, new: bool) -> u32 {
    let number = count.load(Relaxed) + u32::from(new) - u32::from(old);
    count.store(number, Relaxed);
    number
}

impl Priorities {
    /// Takes note that a qdisc or a hook has taken the place of another.
    pub(super) fn replace_reader(&self, old: bool, new: bool) {
        let readers = replace(&self.readers, old, new);
        self.compared.store(if readers == 0 { FIRST } else { FIRST_AND_TOS }, Relaxed);
    }

    /// The same of an action.
    pub(super) fn replace_writer(&self, old: bool, new: bool) {
        replace(&self.writers, old, new);
    }
}

impl super::Tables {
    /// Whether a qdisc or a filter looks at the priority of packets.
    #[inline]
    pub(crate) fn reads_priority(&self) -> bool {
        self.priorities.readers.load(Relaxed) != 0
    }

    /// Whether an action sets the priority of packets.
    #[inline(always)]
    pub(crate) fn sets_priority(&self) -> bool {
        self.priorities.writers.load(Relaxed) != 0
    }

    /// Which of the first bits of an IPv4 header, in little-endian order, have to be those of version 4 without options for
    /// the express path: where priorities are read, TOS has to be one that gives none too.
    #[inline(always)]
    pub(crate) fn plain_bits4(&self) -> u32 {
        self.priorities.compared.load(Relaxed)
    }
}

impl Hook {
    /// Whether one of its filters looks at the priority of packets.
    pub(crate) fn reads_priority(&self) -> bool {
        let priorities = self.chains.iter().flat_map(|chain| &chain.priorities);
        priorities.map(|priority| &priority.classifier).any(|classifier| match classifier {
            Classifier::Basic(filters) => filters.iter().any(|filter| any_reads(&filter.ematches)),
            Classifier::Matchall(_) | Classifier::U32(_) | Classifier::Flower(_) | Classifier::Fw(_) => false,
        })
    }
}

fn any_reads(ematches: &[Ematch]) -> bool {
    let reads = |term: &MetaTerm| matches!(term, MetaTerm::Of { value: MetaValue::Priority, .. });
    ematches.iter().any(|ematch| match &ematch.test {
        EmatchTest::Group(inside) => any_reads(inside),
        EmatchTest::Meta { left, right, .. } => reads(left) || reads(right),
        EmatchTest::Cmp(_) | EmatchTest::U32 { .. } | EmatchTest::Nbyte { .. } => false,
    })
}

impl Qdisc {
    /// Whether it, or one below it, distinguishes packets by a priority that forwarding gives: no handle is one.
    pub(crate) fn reads_priority(&self) -> bool {
        match &self.kind {
            QdiscKind::PfifoFast(_) | QdiscKind::Prio(_) | QdiscKind::Fq(_) => true,
            QdiscKind::Fifo(_)
            | QdiscKind::FqCodel(_)
            | QdiscKind::Codel(_)
            | QdiscKind::Sfq(_)
            | QdiscKind::Cake(_) => false,
            QdiscKind::Tbf(tbf) => tbf.child.reads_priority(),
            QdiscKind::Red(red) => red.child.reads_priority(),
            QdiscKind::Netem(netem) => netem.child.as_ref().is_some_and(Qdisc::reads_priority),
            QdiscKind::Htb(htb) => htb.classes.iter().any(|class| class.leaf.reads_priority()),
        }
    }
}

impl TcActionKind {
    /// Whether it sets the priority of packets.
    pub(crate) fn sets_priority(&self) -> bool {
        matches!(self, Self::Skbedit(edit) if edit.priority.is_some() || edit.inherit_dsfield)
    }
}

impl Writer {
    /// Adds the filters of a place. Beyond the room for them the id names nothing.
    pub fn add_hook(&mut self, hook: Hook) -> HookId {
        let Some((id, _)) = self.hooks.take(&self.retirer) else { return HookId(super::NOWHERE) };
        self.replace_hook(id, Some(hook));
        HookId(id)
    }

    /// Puts other filters in the place of those of a place. Does nothing if the id names none.
    pub fn set_hook(&mut self, id: HookId, hook: Hook) {
        if self.tables.hooks.peek(id.0, &self.retirer).is_some() {
            self.replace_hook(id.0, Some(hook));
        }
    }

    /// Removes the filters of a place, if the id names some.
    pub fn remove_hook(&mut self, id: HookId) {
        if self.replace_hook(id.0, None) {
            self.hooks.give(id.0, &self.retirer);
        }
    }

    fn replace_hook(&mut self, id: u32, hook: Option<Hook>) -> bool {
        let reads = |hook: Option<&StoredHook>| {
            hook.map_or((false, false), |hook| (hook.reads_priority, hook.reads_input))
        };
        let (old_priority, old_input) = reads(self.tables.hooks.peek(id, &self.retirer));
        self.record_hook(HookId(id), hook.as_ref());
        let hook = hook.map(StoredHook::from);
        let (priority, input) = reads(hook.as_ref());
        self.tables.priorities.replace_reader(old_priority, priority);
        self.tables.input_readers.replace(old_input, input);
        self.record_common();
        self.tables.hooks.replace(id, hook, &mut self.retirer)
    }
}
