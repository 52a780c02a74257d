//! Bars as an SVG file: groups of them, one beside the other for what is compared.

use std::fmt::{self, Write};

/// What is compared, in the same order in each group.
pub struct Bars {
    /// What stands above all.
    pub title: String,
    /// What the bars of a group are.
    pub series: Vec<&'static str>,
    pub groups: Vec<Group>,
}

pub struct Group {
    pub name: String,
    /// A value a series; `None` where there is none.
    pub values: Vec<Option<f64>>,
}

/// Colours that those who see no red or no green tell apart too.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// In the drawing's units, which are those of its text.
const WIDTH: f64 = 420.0;
const NAMES: f64 = 230.0;
const VALUES: f64 = 70.0;
const BAR: f64 = 12.0;
const GAP: f64 = 10.0;
const TOP: f64 = 30.0;
const LEGEND: f64 = 18.0;

/// The drawing.
pub fn svg(bars: &Bars) -> Result<String, fmt::Error> {
    let most = bars.groups.iter().flat_map(|group| &group.values).flatten().copied().fold(0.0, f64::max);
    let group_height = BAR * bars.series.len() as f64 + GAP;
    let above = TOP + LEGEND * bars.series.len() as f64;
    let (width, height) = (NAMES + WIDTH + VALUES, above + GAP + group_height * bars.groups.len() as f64);
    let mut svg = String::new();
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{NAMES}\" y=\"18\" font-size=\"13\" font-weight=\"bold\">{}</text>",
        text(&bars.title)
    )?;
    let colour = |series: usize| COLOURS[series % COLOURS.len()];
    for (number, series) in bars.series.iter().enumerate() {
        let y = TOP + LEGEND * number as f64;
        writeln!(
            svg,
            "<rect x=\"{NAMES}\" y=\"{y}\" width=\"{BAR}\" height=\"10\" fill=\"{}\"/>",
            colour(number)
        )?;
        writeln!(svg, "<text x=\"{}\" y=\"{}\">{}</text>", NAMES + 18.0, y + 9.0, text(series))?;
    }
    for (number, group) in bars.groups.iter().enumerate() {
        let y = above + GAP + group_height * number as f64;
        let middle = y + BAR * bars.series.len() as f64 / 2.0 + 4.0;
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
            NAMES - 8.0,
            text(&group.name)
        )?;
        for (series, value) in group.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let (top, long) = (y + BAR * series as f64, WIDTH * value / most.max(f64::MIN_POSITIVE));
            writeln!(
                svg,
                "<rect x=\"{NAMES}\" y=\"{top:.1}\" width=\"{long:.1}\" height=\"{}\" fill=\"{}\"/>",
                BAR - 2.0,
                colour(series)
            )?;
            writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                NAMES + long + 4.0,
                top + BAR - 3.0,
                figure(*value)
            )?;
        }
    }
    writeln!(svg, "</svg>")?;
    Ok(svg)
}

/// Three digits, or as many as it has before the point.
fn figure(value: f64) -> String {
    match value {
        100.0.. => super::thousands(value),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn text(plain: &str) -> String {
    plain.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let group =
            |name: &str, values: &[Option<f64>]| Group { name: name.to_owned(), values: values.to_vec() };
        let bars = Bars {
            title: "a < b".to_owned(),
            series: vec!["one", "other"],
            groups: vec![group("first", &[Some(50.0), Some(200.0)]), group("second", &[None, Some(0.0)])],
        };
        let svg = svg(&bars).unwrap();
        let widths: Vec<_> = svg.matches("width=\"105.0\"").chain(svg.matches("width=\"420.0\"")).collect();
        assert_eq!(widths.len(), 2, "{svg}");
        assert!(
            svg.contains(">a &lt; b</text>") && svg.contains(">50.0</text>") && svg.contains(">200</text>")
        );
        // Two of the legend, three with values, and the ground.
        assert_eq!(svg.matches("<rect").count(), 6);
    }
}
