//! `red` in words: `tc` computes a window and a table of an average packet, a burst and a bandwidth. Nobody knows these any
//! more; others that come to the same are as good. iproute2: `tc/q_red.c`, `tc/tc_red.c`.

use underpass_netlink::tc::red::{ECN, HARD_DROP, NO_DROP, Red};

use super::numbers::{TICKS, ticks, ticks_before};
use super::rate_word;
use crate::save::{Save, Words};

/// 2³², of which a probability is a part.
const WHOLE: f64 = 4_294_967_296.0;
/// What `tc` takes without a bandwidth, in bytes a second.
const USUAL_RATE: u64 = 1_250_000;

/// The words of its parameters.
pub(super) fn words(save: &mut Save<'_>, line: &mut Words, settings: &Red, name: &str) {
    let Red { limit, least, most, flags, user_bits, .. } = settings;
    let (said_limit, said_least) = ((*limit).max(1), (*least).max(1));
    let said_most = (*most).max(said_least + 1);
    if (said_limit, said_least, said_most) != (*limit, *least, *most) {
        save.left_out(format!("limit, min and max of the red {name}: `tc` takes no 0, and max is above min"));
    }
    let (packet, burst, rate) = said(settings).unwrap_or_else(|(packet, burst)| {
        save.left_out(format!("the exact burst and bandwidth of the red {name}"));
        (packet, burst, USUAL_RATE)
    });
    line.pair("limit", said_limit).pair("min", said_least).pair("max", said_most);
    line.pair("avpkt", packet).pair("burst", burst).pair("bandwidth", rate_word(rate));
    let least_probability = f64::from(said_most - said_least) / (WHOLE / 2.0);
    let text = probability(settings.probability());
    if text.parse().is_ok_and(|probability: f64| probability > least_probability) {
        line.pair("probability", text);
    } else {
        save.left_out(format!("the probability of the red {name}: `tc` takes none that small"));
        line.pair("probability", format_args!("{:.12}", least_probability * 1.001));
    }
    for (flag, word) in [(ECN, "ecn"), (HARD_DROP, "harddrop"), (NO_DROP, "nodrop")] {
        line.when(flags & flag != 0, word);
    }
    if *user_bits != 0 {
        save.left_out(format!("flags of the red {name} that mean nothing"));
    }
}

/// The shortest text of a probability of 2³² that `tc` reads as the same.
fn probability(of_whole: u32) -> String {
    let text = |digits: u32| {
        let number = (u128::from(of_whole) * 10_u128.pow(digits)).div_ceil(1 << 32);
        format!("0.{number:0>width$}", width = digits as usize)
    };
    let same = |text: &String| text.parse().is_ok_and(|read: f64| (read * WHOLE) as u32 == of_whole);
    (1..20).map(text).find(same).unwrap_or_else(|| (f64::from(of_whole) / WHOLE).to_string())
}

/// Numbers of a range above 0, the roundest first.
fn round(low: u64, high: u64) -> impl Iterator<Item = u64> {
    let units = (0..12).rev().map(|digits| 10_u64.pow(digits));
    units.map(move |unit| low.div_ceil(unit) * unit).filter(move |number| (low..=high).contains(number))
}

/// An average packet, a burst and a bandwidth of which `tc` computes what a red has.
///
/// # Errors
/// A packet and a burst, of which it computes the same window if it does of any.
fn said(settings: &Red) -> Result<(u32, u32, u64), (u32, u32)> {
    let Red { least, window_log, cell_log, ref table, .. } = *settings;
    let least = least.max(1);
    let packets = [1000, least / 2, least, 100, 10, 1].into_iter().filter(|packet| *packet > 0);
    let bursts = packets.filter_map(|packet| Some((packet, burst(window_log, least, packet)?)));
    let damping = Damping { window_log, cell_log, table };
    let exact = damping.ticks().and_then(|ticks| {
        let rate = |packet| damping.bandwidth(packet, ticks);
        bursts.clone().find_map(|(packet, burst)| Some((packet, burst, rate(packet)?)))
    });
    // A burst of as many packets as the minimum has bytes has the shortest window.
    exact.ok_or_else(|| bursts.clone().next().unwrap_or((1, least)))
}

/// How far the average follows a burst of packets, in packets.
fn follows(window_log: u8, burst: u32) -> f64 {
    let weight = 1.0 / f64::from(1_u32 << window_log);
    (1.0 - (1.0 - weight).powf(burst.into())) / weight
}

/// How far it is to follow at least.
fn wanted(burst: u32, least: u32, packet: u32) -> f64 {
    f64::from(burst) + 1.0 - f64::from(least) / f64::from(packet)
}

/// `tc_red_eval_ewma`: the window for a burst, as a power of 2.
fn window(burst: u32, least: u32, packet: u32) -> Option<u8> {
    let wanted = wanted(burst, least, packet);
    if wanted < 1.0 { None } else { (1..32).find(|log| wanted <= follows(*log, burst)) }
}

/// The roundest burst for which `tc` takes a window.
fn burst(window_log: u8, least: u32, packet: u32) -> Option<u32> {
    if !(1..32).contains(&window_log) {
        return None;
    }
    // The longest burst for which the window is not longer. A longer burst has a longer window.
    let longest = |window_log: u8| {
        let (mut low, mut high) = (0, u32::MAX);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let wanted = wanted(middle, least, packet);
            let fits = wanted < 1.0 || window_log > 0 && wanted <= follows(window_log, middle);
            if fits { low = middle } else { high = middle - 1 }
        }
        u64::from(low)
    };
    let all = round(longest(window_log - 1) + 1, longest(window_log));
    all.filter_map(|burst| burst.try_into().ok())
        .find(|burst| window(*burst, least, packet) == Some(window_log))
}

/// How the average falls while nothing waits.
struct Damping<'a> {
    window_log: u8,
    cell_log: u8,
    table: &'a [u8; 256],
}

impl Damping<'_> {
    /// How much it falls in the time of a packet, as a power of e.
    fn fall(&self) -> f64 {
        -(1.0 - 1.0 / f64::from(1_u32 << self.window_log)).ln()
    }

    /// Whether this is what `tc_red_eval_idle_damping` computes if a packet takes so many ticks.
    fn is_of(&self, ticks: u64) -> bool {
        // `tc` before 6.14 counts so for fast links; what it divides by 0 is 0 then.
        if ticks == 0 {
            return self.is_of_no_time();
        }
        let fall = self.fall() / f64::from(ticks as u32);
        let longest = 31.0 / fall;
        let cell_log = (0..32_u8).find(|log| longest / f64::from(1_i32 << *log) < 512.0);
        let shift = |cell: i32| {
            // The products are of 32 bits, and so are the numbers that octets are of.
            let shift = (f64::from(cell.wrapping_shl(self.cell_log.into())) * fall) as i32 as u8;
            shift.min(31)
        };
        let shifts = (1..255).map(shift);
        cell_log == Some(self.cell_log)
            && std::iter::once(0).chain(shifts).chain([31]).eq(self.table.iter().copied())
    }

    fn is_of_no_time(&self) -> bool {
        let (last, others) = self.table.split_last().unwrap_or((&0, &[]));
        self.cell_log == 0 && *last == 31 && others.iter().all(|shift| *shift == 0)
    }

    /// The ticks that a packet may take; none if `tc` does not make such a table.
    fn ticks(&self) -> Option<(u64, u64)> {
        if self.is_of_no_time() {
            return Some((0, 0));
        }
        if !(1..32).contains(&self.window_log) || self.cell_log > 31 {
            return None;
        }
        let fall = self.fall();
        // The cells are as short as they can be.
        let cell = f64::from(1_u32 << self.cell_log) * fall;
        let mut high = cell * 512.0 / 31.0;
        let mut low = if self.cell_log > 0 { high / 2.0 } else { 0.0 };
        for (number, shift) in (0..255_u32).zip(self.table).skip(1) {
            if u64::from(number) << self.cell_log > i32::MAX as u64 {
                break;
            }
            let fallen = cell * f64::from(number);
            if *shift < 31 {
                low = low.max(fallen / f64::from(shift + 1));
            }
            if *shift > 0 {
                high = high.min(fallen / f64::from(*shift));
            }
        }
        // Both are exact but for how a float is rounded.
        let (low, high) = ((low as u64).max(1), high as u64 + 1);
        let first = (low..=low + 2).find(|ticks| self.is_of(*ticks))?;
        let last = (high.saturating_sub(2)..=high).rev().find(|ticks| self.is_of(*ticks))?;
        Some((first, last))
    }

    /// The roundest bandwidth at which a packet takes that many ticks: one that all versions of `tc` compute the same of, if
    /// there is one; else one for those before 6.14, as whole microseconds are from there.
    fn bandwidth(&self, packet: u32, (low, high): (u64, u64)) -> Option<u64> {
        let micros = 1_000_000.0 * f64::from(packet);
        // `tc` has 32 bits for it.
        let range =
            |low: f64, high: f64| (low.ceil().clamp(1.0, WHOLE) as u64, (high as u64).min(u32::MAX.into()));
        let [low, high] = [low, high].map(|ticks| ticks as f64);
        let now = range(micros * TICKS / high, micros * TICKS / (low - 1.0).max(0.0));
        let whole = [(low / TICKS).ceil(), ((high + 1.0) / TICKS).ceil()];
        let before = range(micros / whole[1], micros / whole[0]);
        let both = (now.0.max(before.0), now.1.min(before.1));
        let is_now = |rate: u64| self.is_of(ticks(packet, rate));
        let is_before = |rate: u64| self.is_of(ticks_before(packet, rate));
        let of = |(low, high): (u64, u64)| {
            round(low * 8, high * 8).filter(|bits| bits % 8 == 0).map(|bits| bits / 8)
        };
        of(both)
            .find(|rate| is_now(*rate) && is_before(*rate))
            .or_else(|| of(before).find(|rate| is_before(*rate)))
            .or_else(|| of(now).find(|rate| is_now(*rate)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What `tc` makes of words. `tc_red_eval_idle_damping` in a straight line.
    fn made(least: u32, packet: u32, burst: u32, ticks: u64) -> Option<Red> {
        let window_log = window(burst, least, packet).filter(|log| *log < 10)?;
        let fall = -(1.0 - 1.0 / f64::from(1 << window_log)).ln() / ticks as f64;
        let cell_log = (0..32_u8).find(|log| 31.0 / fall / f64::from(1_i32 << log) < 512.0)?;
        let mut table = [0; 256];
        for (cell, shift) in table.iter_mut().enumerate().skip(1) {
            *shift = ((((cell as i32) << cell_log) as f64 * fall) as i32 as u8).min(31);
        }
        table[255] = 31;
        if ticks == 0 {
            table[..255].fill(0);
        }
        let most = least.max(1) + 1;
        Some(Red {
            limit: 1,
            least,
            most,
            window_log,
            probability_log: 1,
            cell_log,
            table,
            max_p: 1 << 30,
            flags: 0,
            user_bits: 0,
        })
    }

    /// The usual words come out as they went in, but for the burst.
    #[test]
    fn usual_words() {
        let red = made(15360, 1000, 20, ticks_before(1000, 1_250_000)).unwrap();
        assert_eq!(said(&red), Ok((1000, 20, 1_250_000)));
        let red = made(30000, 1000, 55, ticks(1000, 125_000_000)).unwrap();
        let (packet, burst, rate) = said(&red).unwrap();
        assert_eq!((packet, rate), (1000, 125_000_000));
        assert_eq!(window(burst, 30000, 1000), Some(red.window_log));
    }

    /// Tables that `tc` never makes.
    #[test]
    fn what_has_no_words() {
        let mut red = made(15360, 1000, 20, 12500).unwrap();
        red.table[100] ^= 1;
        assert!(said(&red).is_err());
        red.table = [7; 256];
        assert!(said(&red).is_err());
        // A minimum of one byte has the shortest window.
        let red = Red { least: 1, window_log: 5, ..made(15360, 1000, 20, 12500).unwrap() };
        assert_eq!(said(&red), Err((1, 1)));
        assert_eq!(window(1, 1, 1), Some(1));
    }

    #[test]
    fn probabilities() {
        assert_eq!(probability((0.02 * WHOLE) as u32), "0.02");
        assert_eq!(probability(1 << 31), "0.5");
        assert!(probability(u32::MAX).starts_with("0.9999999998"));
    }

    proptest! {
        #[test]
        fn any_probability_is_read_again(of_whole: u32) {
            let read: f64 = probability(of_whole).parse().unwrap();
            prop_assert_eq!((read * WHOLE) as u32, of_whole);
        }

        #[test]
        fn what_tc_makes_is_said(
            (least, packet) in (2_u32..1_000_000).prop_flat_map(|least| (Just(least), 1..=least.min(9000))),
            more in 0_u32..400,
            rate in prop_oneof![100_000_u64..10_000_000, 10_000_000..u64::from(u32::MAX)],
            newer: bool,
        ) {
            let time = if newer { ticks } else { ticks_before };
            let red = made(least, packet, least / packet + 1 + more, time(packet, rate));
            prop_assume!(red.is_some());
            let red = red.unwrap();
            let (packet, burst, rate) = match said(&red) {
                Ok(said) => said,
                // Few bytes a second are no whole number of them.
                Err((packet, burst)) => {
                    prop_assert!(least < 2000, "{least} {packet}");
                    (packet, burst, 0)
                }
            };
            prop_assert_eq!(window(burst, least, packet), Some(red.window_log));
            if rate > 0 {
                let again = |time: fn(u32, u64) -> u64| made(least, packet, burst, time(packet, rate));
                prop_assert!([again(ticks), again(ticks_before)].contains(&Some(red)));
            }
        }
    }
}
