//! The last snapshot of each worker's counters. A worker takes one between two bursts. If it takes too long to answer, its last
//! snapshot counts: a counter never goes back, and nothing that has been counted vanishes.

use std::{
    mem::replace,
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

use super::worker::Snapshot;

/// How long the workers may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// The last snapshot of each worker.
pub struct WorkerSnapshots {
    to: Sender<Snapshot>,
    answers: Receiver<Snapshot>,
    /// By the worker's number.
    last: Vec<Snapshot>,
    /// Who has been asked and has not answered yet: nobody is asked twice at a time.
    asked: Vec<bool>,
}

impl WorkerSnapshots {
    /// Of so many workers, none of which has counted anything yet.
    pub fn new(workers: usize) -> Self {
        let (to, answers) = channel();
        let last = (0..workers).map(|number| Snapshot { number, ..Snapshot::default() }).collect();
        Self { to, answers, last, asked: vec![false; workers] }
    }

    /// Asks each worker for a new snapshot. Returns the last one of each, by the workers' numbers.
    pub fn collect(&mut self, order: impl Fn(usize, Sender<Snapshot>)) -> &[Snapshot] {
        // Those that came too late.
        while let Ok(snapshot) = self.answers.try_recv() {
            self.take(snapshot);
        }
        for (number, asked) in self.asked.iter_mut().enumerate() {
            if !replace(asked, true) {
                order(number, self.to.clone());
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while self.asked.contains(&true)
            && let Ok(snapshot) =
                self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            self.take(snapshot);
        }
        &self.last
    }

    /// The last ones, by the workers' numbers.
    pub fn last(&self) -> &[Snapshot] {
        &self.last
    }

    fn take(&mut self, snapshot: Snapshot) {
        if let (Some(last), Some(asked)) =
            (self.last.get_mut(snapshot.number), self.asked.get_mut(snapshot.number))
        {
            (*last, *asked) = (snapshot, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use underpass_engine::{buffer::PortId, counters::Totals, drops::DropReason};
    use underpass_port::live::Tally;

    use super::*;

    fn snapshot(number: usize, count: u64) -> Snapshot {
        Snapshot {
            number,
            ports: vec![(PortId(3), Tally { queue_full: count, ..Tally::default() })],
            totals: Totals { received: count, ..Totals::default() },
            drops: vec![(DropReason::NoRoute, count)],
            held: count as usize,
            ..Snapshot::default()
        }
    }

    /// What is told of two workers, the second of which is slow: received, dropped at a port, dropped, held.
    fn sums(snapshots: &[Snapshot]) -> Vec<(u64, u64, u64, usize)> {
        let sum = |snapshot: &Snapshot| {
            let at_ports = snapshot.ports.iter().map(|(_, tally)| tally.queue_full).sum();
            let drops = snapshot.drops.iter().map(|(_, count)| count).sum();
            (snapshot.totals.received, at_ports, drops, snapshot.held)
        };
        snapshots.iter().map(sum).collect()
    }

    #[test]
    fn of_a_slow_worker_the_last_account_counts() {
        let late = RefCell::new(Vec::new());
        let mut snapshots = WorkerSnapshots::new(2);
        let mut ask = |count: u64, slow: bool| {
            let told = snapshots.collect(|number, to| {
                if number == 1 && slow {
                    late.borrow_mut().push(to);
                } else {
                    to.send(snapshot(number, count)).unwrap();
                }
            });
            sums(told)
        };
        let all = |count: u64| (count, count, count, count as usize);
        assert_eq!(ask(5, true), [all(5), all(0)], "it has never said anything");
        late.borrow_mut().pop().unwrap().send(snapshot(1, 6)).unwrap();
        assert_eq!(ask(7, false), [all(7), all(7)]);
        assert_eq!(ask(8, true), [all(8), all(7)], "nothing goes back, nothing vanishes");
        assert_eq!(ask(9, true), [all(9), all(7)]);
        assert_eq!(late.borrow().len(), 1, "it is asked once until it has answered");
        late.borrow_mut().pop().unwrap().send(snapshot(1, 10)).unwrap();
        assert_eq!(ask(11, true), [all(11), all(10)], "what came too late is told the next time");
    }
}
