//! Rates of bytes as requests give them and dumps show them. Linux: `struct tc_ratespec`,
//! `psched_ratecfg_precompute`, `psched_ratecfg_getrate`.

use super::{RateSpec, ns_to_ticks, ticks_to_ns, word};
use crate::attribute::Attribute;

/// `TC_LINKLAYER_ATM`: packets go in cells of 48 bytes of 53.
pub const ATM: u8 = 2;
/// `TC_LINKLAYER_ETHERNET`.
pub const ETHERNET: u8 = 1;
/// `TC_LINKLAYER_UNAWARE`: the link layer is what a table of times says.
const UNAWARE: u8 = 0;
/// `TC_LINKLAYER_MASK`.
const LAYER: u8 = 0x0f;
/// `TC_RTAB_SIZE`: length of a table of times.
const TABLE: usize = 1024;

/// Ticks of 32 bits as nanoseconds.
pub const fn from_ticks(ticks: u32) -> u64 {
    ticks_to_ns(ticks as u64)
}

/// Nanoseconds as ticks of 32 bits.
pub const fn to_ticks(nanoseconds: u64) -> u32 {
    ns_to_ticks(nanoseconds) as u32
}

/// The `struct tc_ratespec` at an offset of another structure; what is missing is 0.
pub fn spec(bytes: &[u8], at: usize) -> RateSpec {
    let mut spec = [0; RateSpec::LEN];
    spec.iter_mut().zip(bytes.get(at..).unwrap_or_default()).for_each(|(to, from)| *to = *from);
    RateSpec::read(&spec)
}

/// Takes the link layer from the table of times of an old tc, if it did not say. Linux: `qdisc_get_rtab`,
/// `__detect_linklayer`.
#[must_use]
pub fn detect(mut spec: RateSpec, table: Option<Attribute<'_>>) -> RateSpec {
    let Some(table) = table.filter(|table| table.value.len() == TABLE) else { return spec };
    if spec.linklayer != UNAWARE || spec.rate == 0 || !(1..32).contains(&spec.cell_log) {
        return spec;
    }
    let time = |cell: u32| word(table.value, 4 * cell as usize);
    let low = u32::from(spec.mpu).next_multiple_of(48);
    let high = (low + 1).next_multiple_of(48);
    let (low, high) = (low >> spec.cell_log, (high >> spec.cell_log).wrapping_sub(1));
    // A table is too coarse at more than 100 Mbit/s.
    let coarse = spec.rate > 100_000_000 / 8 || time(0) == 0;
    let cells = !coarse && (high as i32) > low as i32 && high < 256 && time(low) == time(high);
    spec.linklayer = if cells { ATM } else { ETHERNET };
    spec
}

/// A rate, and what a packet counts at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rate {
    /// Bytes a second.
    pub bytes: u64,
    /// Bytes that each packet is longer on the wire.
    pub overhead: u16,
    /// Bytes that a packet counts at least.
    pub mpu: u16,
    /// `TC_LINKLAYER_*`.
    pub link_layer: u8,
}

impl Rate {
    /// The rate of a specification, and of the attribute of 64 bits that goes with one that is too high for it.
    pub fn new(spec: &RateSpec, wide: Option<Attribute<'_>>) -> Self {
        Self {
            bytes: u64::from(spec.rate).max(wide.map_or(0, |wide| wide.u64())),
            overhead: spec.overhead,
            mpu: spec.mpu,
            link_layer: spec.linklayer & LAYER,
        }
    }

    /// As it is shown.
    pub fn spec(&self) -> RateSpec {
        RateSpec {
            linklayer: self.link_layer,
            overhead: self.overhead,
            mpu: self.mpu,
            rate: u32::try_from(self.bytes).unwrap_or(u32::MAX),
            ..RateSpec::default()
        }
    }

    /// Whether 32 bits do not hold it.
    pub const fn wide(&self) -> bool {
        self.bytes > u32::MAX as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What tc of before 2013 sends with `linklayer atm`: cells in the table.
    #[test]
    fn cells_are_seen_in_a_table() {
        let old = RateSpec { cell_log: 3, rate: 125_000, ..RateSpec::default() };
        let table = |time: fn(u32) -> u32| -> Vec<u8> {
            (0..256).flat_map(|cell| time(cell).to_ne_bytes()).collect()
        };
        let seen = |value: &[u8]| detect(old, Some(Attribute { kind: 2, offset: 0, value })).linklayer;
        assert_eq!(seen(&table(|cell| (cell + 1) * 8)), ETHERNET);
        assert_eq!(seen(&table(|cell| ((cell + 1) * 8).div_ceil(48) * 53)), ATM);
        assert_eq!(detect(old, None).linklayer, UNAWARE);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..1100), rate: u64) {
            let spec = spec(&bytes, 0);
            let table = Attribute { kind: 2, offset: 0, value: bytes.get(12..1036).unwrap_or(&bytes) };
            let rate = Rate { bytes: rate, ..Rate::new(&detect(spec, Some(table)), None) };
            prop_assert_eq!(rate.wide(), rate.spec().rate == u32::MAX && rate.bytes != u64::from(u32::MAX));
        }
    }
}
