//! Insertion of SRv6, IOAM and RPL headers by the number of segments.

use serde::Deserialize;

use super::{Section, read, table};
use crate::bench::segments::plot::{Line, Panel, svg};

#[derive(Deserialize)]
struct Case {
    case: String,
    curves: Vec<Curve>,
}

#[derive(Deserialize)]
struct Curve {
    model: String,
    points: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    segments: usize,
    mpps: f64,
    moves: u64,
}

impl Curve {
    fn at(&self, segments: usize) -> Option<&Point> {
        self.points.iter().find(|point| point.segments == segments)
    }

    /// By how much, in percent, a count lies below the middle of its neighbours.
    fn step(&self, segments: usize) -> Option<f64> {
        let middle = (self.at(segments - 1)?.mpps + self.at(segments + 1)?.mpps) / 2.0;
        Some(100.0 * (1.0 - self.at(segments)?.mpps / middle))
    }
}

/// The numbers of segments at which the document has a step down.
const STEPS: [usize; 5] = [13, 14, 17, 21, 29];

pub fn section(printed: &[String]) -> anyhow::Result<Section> {
    let cases: Vec<Case> = read(printed, 0)?;
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for Case { case, curves } in &cases {
        for curve in curves {
            let mpps = |at| curve.at(at).map_or(String::new(), |point| format!("{:.2}", point.mpps));
            let mut row = vec![case.clone(), curve.model.clone()];
            row.extend([1, 10, 20, 30].map(mpps));
            row.extend(STEPS.map(|at| curve.step(at).map_or(String::new(), |step| format!("{step:.1}"))));
            row.push(curve.points.iter().map(|point| point.moves).max().unwrap_or_default().to_string());
            rows.push(row);
        }
        let lines = curves.iter().map(|curve| Line {
            name: curve.model.clone(),
            values: curve.points.iter().map(|point| point.mpps).collect(),
        });
        panels.push(Panel { title: case.clone(), lines: lines.collect() });
    }
    let head =
        ["", "", "1 segment: Mpps", "10", "20", "30", "step at 13: %", "14", "17", "21", "29", "moves"];
    Ok(Section {
        title: "Header insertion without a second reallocation",
        about: "In the document the kernel moves a packet twice where its headroom is short at some numbers of segments (13, 17,\n\
                21 …, in another case 14, 18, 22 …), which costs 23 % of the packets a second there; asked for the room of\n\
                the way out first, it moves once. `ours` is this router, which has the room beforehand and never moves a\n\
                packet; `double` is the same router with the headroom and the order of checks of Linux before. A step is how much a\n\
                number of segments lies below the middle of its neighbours; `moves` are those of a packet, at most.",
        body: table(2, &head, &rows),
        plots: vec![("segments", svg(&panels)?)],
    })
}
