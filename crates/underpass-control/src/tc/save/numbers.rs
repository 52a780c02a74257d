//! Numbers as `tc` writes and reads them.

use underpass_netlink::tc;

/// Ticks of `tc` in a microsecond.
pub(super) const TICKS: f64 = 15.625;

/// The handle of a qdisc or the number of a class.
pub(in crate::tc) fn handle(handle: u32) -> String {
    match tc::minor(handle) {
        0 => format!("{:x}:", handle >> 16),
        minor => format!("{:x}:{minor:x}", handle >> 16),
    }
}

/// A rate in bytes a second.
pub(in crate::tc) fn rate_word(bytes: u64) -> String {
    format!("{}bit", u128::from(bytes) * 8)
}

/// So many bytes take so many ticks at a rate. iproute2 from 6.14 on: `tc_calc_xmittime`.
pub(super) fn ticks(bytes: u32, rate: u64) -> u64 {
    (1_000_000.0 * (f64::from(bytes) / rate as f64) * TICKS).ceil() as u64
}

/// The same before 6.14, which counts in microseconds.
pub(super) fn ticks_before(bytes: u32, rate: u64) -> u64 {
    ((1_000_000.0 * (f64::from(bytes) / rate as f64)).floor() * TICKS) as u64
}

/// The bytes that `tc` turns into so many ticks at a rate: those that all its versions do, if there are any, else those that
/// older ones do.
///
/// # Errors
/// Nearly as many, where there are none.
pub(in crate::tc) fn burst_of(wanted: u64, rate: u64) -> Result<u32, u32> {
    let rate = rate.max(1);
    let before = search(wanted, |bytes| ticks_before(bytes, rate));
    let now = search(wanted, |bytes| ticks(bytes, rate));
    match (before, now) {
        (Ok(before), Ok(now)) => {
            let both = before.min(now);
            let fits = |bytes| ticks_before(bytes, rate) == wanted;
            Ok(if fits(both) { both } else { before })
        }
        (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
        (Err(near), Err(_)) => Err(near),
    }
}

/// The bytes that take so many nanoseconds by a function.
///
/// # Errors
/// As [`burst_of`].
pub(in crate::tc) fn bytes_of(wanted: u64, nanos: impl Fn(u32) -> u64) -> Result<u32, u32> {
    search(wanted, nanos)
}

/// The greatest number for which a growing function has a value, or an error: a number for which it has a value nearby.
fn search(wanted: u64, function: impl Fn(u32) -> u64) -> Result<u32, u32> {
    let (mut low, mut high) = (0, u32::MAX);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if function(middle) <= wanted { low = middle } else { high = middle - 1 }
    }
    if function(low) == wanted { Ok(low) } else { Err(low) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn handles() {
        assert_eq!(handle(0x8001_0000), "8001:");
        assert_eq!(handle(0x1_0010), "1:10");
    }

    proptest! {
        #[test]
        fn what_tc_makes_of_a_burst_is_found_again(bytes in 1_u32..100_000_000, rate in 1_u64..10_000_000_000) {
            for wanted in [ticks(bytes, rate), ticks_before(bytes, rate)] {
                let found = burst_of(wanted, rate).unwrap();
                prop_assert!([ticks(found, rate), ticks_before(found, rate)].contains(&wanted));
            }
        }
    }
}
