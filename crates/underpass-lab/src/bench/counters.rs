//! What counting costs: End.DX2 over packets of about 100 bytes with the counters compiled out, there
//! but off, and on, in turn.

use std::sync::Arc;

use anyhow::{Context, bail};
use underpass_engine::buffer::BURST;
use underpass_engine::tables::{Reader, Tables};
use underpass_port::memory::Generator;

use super::clock::{self, Pace};
use super::endpoint::{self, Inner, Srh};
use super::measure::{Line, median, undisturbed};
use super::scenario::{BASE, Flow, SID, Scenario};

/// The three, in the order of the table.
pub const VARIANTS: [&str; 3] = ["compiled out", "off", "on"];

/// Rounds of each, and how long one takes, about, in nanoseconds.
const ROUNDS: usize = 400;
const ROUND: f64 = 1e6;

/// End.DX2 over Ethernet frames of 46 bytes: 100 with the headers around them.
pub fn scenario(count: bool) -> Scenario {
    let count = if count { " count" } else { "" };
    let config =
        format!("{BASE}ip -6 route add {SID}/128 encap seg6local action End.DX2 oif p1{count} dev p0\n");
    Scenario::new("counters", None, config, |flow: &Flow| {
        endpoint::carried(flow, Srh::None, &Inner::frame(flow, 46))
    })
}

/// What one of the three took.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Packets that were timed.
    pub packets: u64,
    /// Ticks of the path for each packet, the middle of the rounds.
    pub path: f64,
    /// Average and standard deviation of the rounds' packets in a tick, of the path alone.
    pub rate: (f64, f64),
}

/// What the three took, and the generator and the sink, in ticks for each packet.
pub struct Outcome {
    pub floor: f64,
    pub variants: [Variant; 3],
    /// How the core ran meanwhile.
    pub pace: Option<Pace>,
}

/// Measures the three: `off` and `on` are the tables of [`scenario`] without and with `count`, the first
/// with readers for two workers.
///
/// # Errors
/// A packet does not come out as expected.
pub fn measure(
    off: (Arc<Tables>, [Reader; 2]),
    on: (Arc<Tables>, Reader),
    ticks_per_nanosecond: f64,
) -> anyhow::Result<Outcome> {
    let load = (scenario(true).load)();
    let generator = || Generator::new(&load.templates, None);
    let (tables, [first, second]) = off;
    let mut without: Line<false> = Line::new(Arc::clone(&tables), first, generator());
    let mut present: Line<true> = Line::new(tables, second, generator());
    let mut counting: Line<true> = Line::new(on.0, on.1, generator());
    without.check(&load.expected).context(VARIANTS[0])?;
    present.check(&load.expected).context(VARIANTS[1])?;
    counting.check(&load.expected).context(VARIANTS[2])?;
    without.bursts(ticks_per_nanosecond, ROUND)?;
    present.bursts(ticks_per_nanosecond, ROUND)?;
    let bursts = counting.bursts(ticks_per_nanosecond, ROUND)?;

    let (mut floors, mut paces) = (Vec::new(), Vec::new());
    let mut rounds: [Vec<u64>; 3] = Default::default();
    for round in 0..ROUNDS {
        paces.extend(clock::pace());
        floors.push(undisturbed(|| present.floor(bursts))?);
        // Each is first, second and third equally often.
        for turn in 0..3 {
            let variant = (round + turn) % 3;
            rounds[variant].push(match variant {
                // All with the same packets in the same memory: other memory is often several per cent slower.
                0 => {
                    without.exchange_packets(&mut present);
                    let ticks = undisturbed(|| without.path(bursts))?;
                    without.exchange_packets(&mut present);
                    ticks
                }
                1 => undisturbed(|| present.path(bursts))?,
                _ => {
                    counting.exchange_packets(&mut present);
                    let ticks = undisturbed(|| counting.path(bursts))?;
                    counting.exchange_packets(&mut present);
                    ticks
                }
            });
        }
    }
    let packets = bursts * BURST as u64;
    let floor = median(&mut floors);
    let mut variants = Vec::new();
    for rounds in &mut rounds {
        let rates: Vec<f64> =
            rounds.iter().map(|ticks| packets as f64 / ticks.saturating_sub(floor).max(1) as f64).collect();
        let path = median(rounds).saturating_sub(floor) as f64 / packets as f64;
        variants.push(Variant { packets: packets * ROUNDS as u64, path, rate: average(&rates) });
    }
    let Ok(variants) = variants.try_into() else { bail!("three were measured") };
    Ok(Outcome { floor: floor as f64 / packets as f64, variants, pace: Pace::middle(paces) })
}

/// Average and standard deviation of a sample.
fn average(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn average_and_deviation() {
        assert_eq!(average(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).0, 5.0);
        assert!(
            (average(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).1 - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12
        );
    }
}
