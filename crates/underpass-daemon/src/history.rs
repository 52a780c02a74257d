//! How rates went in the last hour: for a page that is opened after what it is opened for.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use serde::Serialize;

/// Between two points.
pub const STEP: Duration = Duration::from_secs(5);
/// Points of an hour.
const POINTS: usize = 720;
/// Rates of a router that are remembered: three megabytes of points.
const SERIES: usize = 1000;

/// The rates of counters, by their names.
#[derive(Debug)]
pub struct History {
    /// When the counters were read last, in milliseconds.
    time: Option<u64>,
    series: BTreeMap<String, Series>,
    /// Rates that are remembered at most.
    room: usize,
}

impl Default for History {
    fn default() -> Self {
        Self::with_room(SERIES)
    }
}

#[derive(Debug)]
struct Series {
    count: u64,
    rates: VecDeque<f32>,
}

/// What a page gets of it.
#[derive(Debug, Serialize)]
pub struct Told<'a> {
    /// Seconds between two points.
    step: u64,
    /// Points of an hour.
    points: usize,
    /// Rates in a second, the latest last; those that were 0 all the time are left out.
    series: BTreeMap<&'a str, Vec<f32>>,
}

impl History {
    /// Of as many counters as `room` at most; of more, those that are read first.
    pub const fn with_room(room: usize) -> Self {
        Self { time: None, series: BTreeMap::new(), room }
    }

    /// Reads counters at a time in milliseconds. One that is not among them is forgotten.
    pub fn read(&mut self, time: u64, counters: impl IntoIterator<Item = (String, u64)>) {
        let before = self.time.replace(time);
        let seconds = before.map(|before| time.saturating_sub(before) as f32 / 1000.0).filter(|s| *s > 0.0);
        let mut old = std::mem::take(&mut self.series);
        for (name, count) in counters.into_iter().take(self.room) {
            // What has begun to count since the last time was 0 then.
            let mut series = old.remove(&name).unwrap_or_else(|| Series {
                count: if before.is_some() { 0 } else { count },
                rates: VecDeque::new(),
            });
            if let Some(seconds) = seconds {
                if series.rates.len() == POINTS {
                    series.rates.pop_front();
                }
                series.rates.push_back(count.saturating_sub(series.count) as f32 / seconds);
            }
            series.count = count;
            self.series.insert(name, series);
        }
    }

    /// What there is of the counters whose names `wanted` takes.
    pub fn told(&self, wanted: impl Fn(&str) -> bool) -> Told<'_> {
        let moved = self
            .series
            .iter()
            .filter(|(name, series)| wanted(name) && series.rates.iter().any(|rate| *rate > 0.0));
        let rounded = |rate: &f32| (rate * 10.0).round() / 10.0;
        Told {
            step: STEP.as_secs(),
            points: POINTS,
            series: moved
                .map(|(name, series)| (name.as_str(), series.rates.iter().map(rounded).collect()))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(history: &History) -> serde_json::Value {
        let text = serde_json::to_string(&history.told(|name| name != "c")).unwrap();
        text.parse::<serde_json::Value>().unwrap()["series"].clone()
    }

    #[test]
    fn rates_of_an_hour() {
        let mut history = History::default();
        let mut read = |time, counters: &[(&str, u64)]| {
            history.read(time, counters.iter().map(|(name, count)| ((*name).to_owned(), *count)));
            told(&history)
        };
        assert_eq!(read(1000, &[("a", 7)]), serde_json::json!({}));
        // A counter that comes later has begun at 0; one that has begun anew shows no rate below 0.
        assert_eq!(
            read(6000, &[("a", 17), ("b", 1), ("c", 5)]),
            serde_json::json!({ "a": [2.0], "b": [0.2] })
        );
        assert_eq!(read(7000, &[("a", 3)])["a"][1], 0.0);
        assert!(read(8000, &[("a", 3)]).get("b").is_none());
        for second in 9..2000 {
            read(second * 1000, &[("a", 3 + second * 4)]);
        }
        let rates = told(&history)["a"].as_array().unwrap().clone();
        assert_eq!((rates.len(), &rates[0], &rates[POINTS - 1]), (POINTS, &4.0.into(), &4.0.into()));
    }

    #[test]
    fn there_is_an_end_to_names() {
        let mut history = History::default();
        let many = |time| (0..2 * SERIES as u64).map(move |n| (n.to_string(), n * time));
        (1..4).for_each(|time| history.read(time * 1000, many(time)));
        assert_eq!(history.series.len(), SERIES);
    }
}
