//! What workers and programs in the kernel have counted, summed. The counters themselves are never set back: an object that gets
//! the id of a former one has a base, what the counters showed at that time, which is subtracted.

use std::mem;

use super::Writer;
use crate::counters::{Count, CounterId, Direction, MplsCount, TcCount, TcCounterId, Totals};
use crate::drops::DropReason;
use crate::tables::{LinkId, NOWHERE};

/// What the counters of a link showed when it was added; counts and drops each way.
pub(super) struct LinkBase {
    counts: [Count; 2],
    drops: [u64; 2],
    mpls: MplsCount,
}

impl Writer {
    /// Makes room for the counters of a link, and notes what they show.
    pub(super) fn begin_link_counts(&mut self, id: LinkId) {
        self.counters.iter().for_each(|counters| counters.reserve_link(id));
        self.records.iter().for_each(|records| records.counters.reserve_link(id));
        let ways = [Direction::Receive, Direction::Transmit];
        let base = LinkBase {
            counts: ways.map(|way| self.sum_link(id, way)),
            drops: ways.map(|way| self.sum_link_drops(id, way)),
            mpls: self.sum_mpls(id),
        };
        self.link_bases.insert(id, base);
    }

    /// A counter of traffic control that shows zero, with room for it in every worker's [`Counters`].
    pub fn add_tc_counter(&mut self) -> TcCounterId {
        let Some((id, _)) = self.tc_counters.take(&self.retirer) else { return TcCounterId(NOWHERE) };
        self.counters.iter().for_each(|counters| counters.reset_tc(TcCounterId(id)));
        self.records.iter().for_each(|records| records.counters.reset_tc(TcCounterId(id)));
        TcCounterId(id)
    }

    /// Gives such a counter back. Nothing may name it any more.
    pub fn remove_tc_counter(&mut self, id: TcCounterId) {
        if id.0 != NOWHERE {
            self.tc_counters.give(id.0, &self.retirer);
        }
    }

    /// What all workers have counted.
    pub fn tc_count(&self, id: TcCounterId) -> TcCount {
        let mut sum = TcCount::default();
        self.counters.iter().for_each(|counters| sum += counters.read_tc(id));
        self.records.iter().for_each(|records| sum += records.counters.tc(id));
        sum
    }

    /// What all workers have counted for a link since it was added, bytes with the link layer.
    pub fn link_count(&self, id: LinkId, way: Direction) -> Count {
        let base = self.link_bases.get(&id).map_or(Count::default(), |base| base.counts[way as usize]);
        self.sum_link(id, way) - base
    }

    /// What a link has dropped since it was added, summed over the workers.
    pub fn link_drops(&self, id: LinkId, way: Direction) -> u64 {
        let base = self.link_bases.get(&id).map_or(0, |base| base.drops[way as usize]);
        self.sum_link_drops(id, way).wrapping_sub(base)
    }

    /// What a link has counted with MPLS labels since it was added, summed over the workers.
    pub fn mpls_count(&self, id: LinkId) -> MplsCount {
        self.sum_mpls(id) - self.link_bases.get(&id).map_or(MplsCount::default(), |base| base.mpls)
    }

    fn sum_mpls(&self, id: LinkId) -> MplsCount {
        let mut sum = MplsCount::default();
        self.counters.iter().for_each(|counters| sum += counters.read_mpls(id));
        self.records.iter().for_each(|records| sum += records.counters.labelled(id));
        sum
    }

    /// What packets with a label have counted since the router was started, summed over the workers.
    pub fn label_count(&self, label: u32) -> Count {
        let labels = self.records.iter().filter_map(|records| records.labels.as_ref());
        labels.fold(self.counted(CounterId::of_label(label)), |mut sum, labels| {
            sum += labels.count(label);
            sum
        })
    }

    fn sum_link(&self, id: LinkId, way: Direction) -> Count {
        let mut sum = Count::default();
        self.counters.iter().for_each(|counters| sum += counters.read_link(id, way));
        self.records.iter().for_each(|records| sum += records.counters.link(id, way));
        sum
    }

    fn sum_link_drops(&self, id: LinkId, way: Direction) -> u64 {
        let all = self.counters.iter().map(|counters| counters.read_link_drops(id, way));
        all.fold(0, u64::wrapping_add)
    }

    /// What became of all packets, summed over the workers.
    pub fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        let programs = self.records.iter().map(|records| records.counters.totals());
        for totals in self.counters.iter().map(|counters| counters.totals()).chain(programs) {
            sum.received += totals.received;
            sum.generated += totals.generated;
            sum.sent += totals.sent;
            sum.delivered += totals.delivered;
            sum.buffer_moves += totals.buffer_moves;
            sum.buffer_moves_avoided += totals.buffer_moves_avoided;
        }
        sum
    }

    /// A counter that shows zero, with room for it in every worker's [`Counters`].
    pub fn add_counter(&mut self) -> CounterId {
        let Some((id, used)) = self.counter_ids.take(&self.retirer) else { return CounterId(NOWHERE) };
        let id = CounterId(id);
        if used {
            self.counter_bases.insert(id, self.counted(id));
            self.counters_used[id.0 as usize] = true;
        } else {
            self.counters.iter().for_each(|counters| counters.reserve(id));
            self.records.iter().for_each(|records| records.counters.reserve_object(id));
            self.counters_used.push(true);
        }
        id
    }

    /// Gives a counter back. No action may name it any more.
    pub fn remove_counter(&mut self, id: CounterId) {
        if self.counters_used.get_mut(id.0 as usize).is_some_and(mem::take) {
            self.counter_bases.remove(&id);
            self.counter_ids.give(id.0, &self.retirer);
        }
    }

    /// What all workers have counted for the counter since it was added. Zero for one that is not there.
    pub fn count(&self, id: CounterId) -> Count {
        match self.counters_used.get(id.0 as usize) {
            Some(true) => self.counted(id) - self.counter_bases.get(&id).copied().unwrap_or_default(),
            _ => Count::default(),
        }
    }

    fn counted(&self, id: CounterId) -> Count {
        let mut sum = Count::default();
        self.counters.iter().for_each(|counters| sum += counters.read(id));
        self.records.iter().for_each(|records| sum += records.counters.object(id));
        sum
    }

    /// How many packets all workers have dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        let programs = self.records.iter().map(|records| records.counters.dropped(reason));
        self.counters.iter().map(|counters| counters.dropped(reason)).chain(programs).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_and_start_at_zero_again() {
        let (mut writer, _, readers) = Writer::new(2);
        let id = writer.add_counter();
        let one = Count { packets: 1, bytes: 100, errors: 2 };
        readers.iter().for_each(|reader| reader.counters().add(id, one));
        assert_eq!(writer.count(id), Count { packets: 2, bytes: 200, errors: 4 });
        writer.remove_counter(id);
        writer.remove_counter(id);
        assert_eq!(writer.count(id), Count::default());
        writer.reclaim();
        assert_eq!(writer.add_counter(), id);
        assert_eq!(writer.count(id), Count::default());
        readers[1].counters().add(id, one);
        assert_eq!(writer.count(id), one);
        assert_ne!(writer.add_counter(), id);
        readers[0].counters().add_drop(DropReason::Loop, 3);
        readers[1].counters().add_drop(DropReason::Loop, 4);
        assert_eq!(writer.dropped(DropReason::Loop), 7);
    }
}
