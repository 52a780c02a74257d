//! A time on the command line: always in seconds, also parts of one.

use std::time::Duration;

/// Reads a number of seconds above 0.
///
/// # Errors
/// What is wrong with it.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is needed, such as 0.5".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("a number of seconds above 0 is needed".to_owned()),
    }
}

/// The same, from `least` to `most` milliseconds, for clap's `value_parser`.
pub fn within(least: u64, most: u64) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| {
        let time = seconds(text)?;
        let [least, most] = [least, most].map(Duration::from_millis);
        if (least..=most).contains(&time) {
            return Ok(time);
        }
        Err(format!("{} to {} seconds are possible", least.as_secs_f64(), most.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "1e300", "soon", "5s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        let within = within(10, 60_000);
        assert_eq!(within("0.01"), Ok(Duration::from_millis(10)));
        assert_eq!(within("60"), Ok(Duration::from_secs(60)));
        assert_eq!(within("1000"), Err("0.01 to 60 seconds are possible".to_owned()));
    }
}
