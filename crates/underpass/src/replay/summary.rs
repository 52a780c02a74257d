//! What became of every packet of a replay.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use serde::Serialize;
use underpass_engine::counters::Counters;
use underpass_engine::drops::DropReason;

/// One capture that was read or written.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// The port's name.
    pub port: String,
    /// The file.
    pub file: PathBuf,
    /// Its packets.
    pub packets: u64,
    /// Their bytes, link layer included.
    pub bytes: u64,
    /// Of these, packets that were cut by a snap length, and filled up with zeros.
    #[serde(skip_serializing_if = "is_zero")]
    pub padded: u64,
    /// Beside these, packets that the captured machine itself sent.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out_sent: u64,
    /// Beside these, what no Ethernet frame can carry.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out_foreign: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Capture {
    /// One without packets.
    pub fn new(port: &str, file: &Path) -> Self {
        let (port, file) = (port.to_owned(), file.to_owned());
        Self { port, file, packets: 0, bytes: 0, padded: 0, left_out_sent: 0, left_out_foreign: 0 }
    }
}

/// The packets that were dropped for one reason.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// The reason's name.
    pub reason: &'static str,
    /// How many.
    pub packets: u64,
}

/// A line that was run at the end, and what it printed.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The line.
    pub line: String,
    /// The output of its tool.
    pub output: String,
}

/// The end of a run: `in + generated = out + delivered + dropped`.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// What was read.
    #[serde(rename = "in")]
    pub received: Vec<Capture>,
    /// What was written, a file a port.
    #[serde(rename = "out")]
    pub sent: Vec<Capture>,
    /// Packets that the router made beyond those that came in: fragments, ICMP errors.
    pub generated: u64,
    /// Packets for the router itself.
    pub delivered: u64,
    /// Packets that ended in the router, by reason.
    pub dropped: Vec<Dropped>,
    /// Times that a packet was moved to make room for headers.
    pub buffer_moves: u64,
    /// Times that headers found room before or in a packet.
    pub buffer_moves_avoided: u64,
    /// What `--show` printed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub show: Vec<Shown>,
}

impl Summary {
    /// The sum of what a worker counted and what its ports saw.
    pub fn new(received: Vec<Capture>, sent: Vec<Capture>, counters: &Counters) -> Self {
        let totals = counters.totals();
        let dropped = DropReason::ALL
            .iter()
            .map(|reason| Dropped { reason: reason.name(), packets: counters.dropped(*reason) })
            .filter(|dropped| dropped.packets > 0)
            .collect();
        Self {
            received,
            sent,
            generated: totals.generated,
            delivered: totals.delivered,
            dropped,
            buffer_moves: totals.buffer_moves,
            buffer_moves_avoided: totals.buffer_moves_avoided,
            show: Vec::new(),
        }
    }

    /// Whether every packet is accounted for; both sides of the equation if not.
    ///
    /// # Errors
    /// The sums on both sides.
    pub fn balance(&self) -> Result<(), (u64, u64)> {
        let count = |captures: &[Capture]| captures.iter().map(|capture| capture.packets).sum::<u64>();
        let arrived = count(&self.received) + self.generated;
        let dropped = self.dropped.iter().map(|dropped| dropped.packets).sum::<u64>();
        let ended = count(&self.sent) + self.delivered + dropped;
        if arrived == ended { Ok(()) } else { Err((arrived, ended)) }
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = |captures: &[Capture]| captures.iter().map(|c| c.port.len()).max().unwrap_or_default();
        let width = width(&self.received).max(width(&self.sent));
        for (way, captures) in [("in ", &self.received), ("out", &self.sent)] {
            for capture in captures {
                let Capture { port, file, packets, bytes, .. } = capture;
                let file = file.display();
                writeln!(f, "{way}  {port:width$}  {packets:>8} packets  {bytes:>10} bytes  {file}")?;
                for (count, what) in [
                    (capture.padded, "cut by a snap length: filled up with zeros"),
                    (capture.left_out_sent, "left out: sent by the captured machine, see --include-sent"),
                    (capture.left_out_foreign, "left out: no Ethernet frame can carry them"),
                ] {
                    if count > 0 {
                        writeln!(f, "     {:width$}  {count:>8} {what}", "")?;
                    }
                }
            }
        }
        if self.generated > 0 {
            writeln!(f, "generated by the router  {}", self.generated)?;
        }
        writeln!(f, "delivered to the router  {}", self.delivered)?;
        writeln!(f, "dropped  {}", self.dropped.iter().map(|dropped| dropped.packets).sum::<u64>())?;
        for Dropped { reason, packets } in &self.dropped {
            write!(f, "    {packets:>8}  {reason}")?;
            if *reason == DropReason::OtherHost.name() {
                write!(f, ": for another MAC address than the port's, see --port NAME,mac=…")?;
            }
            writeln!(f)?;
        }
        if self.buffer_moves > 0 {
            writeln!(f, "copied for lack of headroom  {}", self.buffer_moves)?;
        }
        for Shown { line, output } in &self.show {
            write!(f, "\n$ {line}\n{output}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(port: &str, packets: u64) -> Capture {
        Capture {
            packets,
            bytes: packets * 100,
            ..Capture::new(port, &PathBuf::from(format!("{port}.pcap")))
        }
    }

    #[test]
    fn every_packet_is_in_the_balance() {
        let dropped = vec![Dropped { reason: "no-route", packets: 2 }];
        let mut summary = Summary {
            received: vec![capture("a", 5), capture("b", 4)],
            sent: vec![capture("a", 0), capture("b", 8)],
            generated: 2,
            delivered: 1,
            dropped,
            buffer_moves: 3,
            buffer_moves_avoided: 0,
            show: Vec::new(),
        };
        assert_eq!(summary.balance(), Ok(()));
        let text = summary.to_string();
        assert!(text.contains("in   b         4 packets         400 bytes  b.pcap\n"), "{text}");
        assert!(text.contains("dropped  2\n           2  no-route\n"), "{text}");
        assert!(text.contains("copied for lack of headroom  3\n"), "{text}");
        summary.delivered = 0;
        assert_eq!(summary.balance(), Err((11, 10)));
    }
}
