//! Lines over segment counts as an SVG file: a panel a case, a line a model.

use std::fmt::{self, Write};

/// A line of a panel.
pub struct Line {
    /// What the legend says.
    pub name: String,
    /// By segment count, from 1 on; millions of packets a second.
    pub values: Vec<f64>,
}

/// The curves of a case.
pub struct Panel {
    /// What stands above it.
    pub title: String,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// Colours of the lines, told apart by those who see no red or no green too, and dashes for the rest.
const STROKES: [(&str, &str); 2] = [("#0072b2", ""), ("#d55e00", " stroke-dasharray=\"5 3\"")];

/// Bytes of a panel's frame in the drawing, and of its margins.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 48.0;
const TOP: f64 = 36.0;
const RIGHT: f64 = 16.0;
const BOTTOM: f64 = 44.0;
const COLUMNS: usize = 2;

/// The drawing.
pub fn svg(panels: &[Panel]) -> Result<String, fmt::Error> {
    let columns = panels.len().clamp(1, COLUMNS);
    let rows = panels.len().div_ceil(COLUMNS).max(1);
    let (panel_width, panel_height) = (LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM);
    let (width, height) = (panel_width * columns as f64, panel_height * rows as f64);
    let mut svg = String::new();
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    )?;
    for (number, panel) in panels.iter().enumerate() {
        let (x, y) = ((number % COLUMNS) as f64 * panel_width, (number / COLUMNS) as f64 * panel_height);
        writeln!(svg, "<g transform=\"translate({} {})\">", x + LEFT, y + TOP)?;
        draw(&mut svg, panel)?;
        writeln!(svg, "</g>")?;
    }
    writeln!(svg, "</svg>")?;
    Ok(svg)
}

fn draw(svg: &mut String, panel: &Panel) -> fmt::Result {
    let most = panel.lines.iter().map(|line| line.values.len()).max().unwrap_or(1);
    let top = panel.lines.iter().flat_map(|line| &line.values).copied().fold(0.0, f64::max);
    let tick = tick(top);
    let ceiling = ((top / tick).ceil() * tick).max(tick);
    let across = |count: usize| WIDTH * (count as f64 - 1.0) / (most.max(2) as f64 - 1.0);
    let up = |value: f64| HEIGHT * (1.0 - value / ceiling);
    writeln!(
        svg,
        "<text x=\"0\" y=\"-22\" font-size=\"13\" font-weight=\"bold\">{}</text>",
        text(&panel.title)
    )?;
    let mut value = 0.0;
    while value <= ceiling + tick / 2.0 {
        let y = up(value);
        writeln!(svg, "<path d=\"M0 {y:.1}H{WIDTH}\" stroke=\"#ddd\"/>")?;
        writeln!(svg, "<text x=\"-6\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>", y + 4.0)?;
        value += tick;
    }
    for count in (1..=most).filter(|count| *count == 1 || count % 5 == 0) {
        let x = across(count);
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{count}</text>", HEIGHT + 16.0)?;
    }
    let below = HEIGHT + 34.0;
    writeln!(svg, "<text x=\"{}\" y=\"{below}\" text-anchor=\"middle\">segments</text>", WIDTH / 2.0)?;
    writeln!(svg, "<text x=\"-40\" y=\"-6\">million packets a second</text>")?;
    for (number, line) in panel.lines.iter().enumerate() {
        let (colour, dashes) = STROKES[number % STROKES.len()];
        let points: Vec<String> = (1..)
            .zip(&line.values)
            .map(|(count, value)| format!("{:.1},{:.1}", across(count), up(*value)))
            .collect();
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dashes}/>",
            points.join(" ")
        )?;
        let y = HEIGHT - 12.0 - 16.0 * (panel.lines.len() - 1 - number) as f64;
        writeln!(svg, "<path d=\"M12 {y}h24\" stroke=\"{colour}\" stroke-width=\"1.8\"{dashes}/>")?;
        writeln!(svg, "<text x=\"42\" y=\"{}\">{}</text>", y + 4.0, text(&line.name))?;
    }
    Ok(())
}

/// 1, 2 or 5 times a power of ten, so that there are about five of them.
fn tick(top: f64) -> f64 {
    let rough = (top / 5.0).max(1e-6);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].iter().map(|step| step * power).find(|step| *step >= rough).unwrap_or(rough)
}

fn text(plain: &str) -> String {
    plain.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        for (top, expected) in [(27.3, 10.0), (24.0, 5.0), (4.2, 1.0), (0.9, 0.2), (130.0, 50.0)] {
            assert!((tick(top) - expected).abs() < 1e-9, "{top}: {}", tick(top));
        }
    }

    #[test]
    fn each_point_is_where_its_value_is() {
        let line = |name: &str, values: &[f64]| Line { name: name.to_owned(), values: values.to_vec() };
        let lines = vec![line("ours", &[10.0, 5.0, 0.0]), line("a < b", &[2.5, 2.5, 2.5])];
        let svg = svg(&[Panel { title: "One".to_owned(), lines }]).unwrap();
        assert!(svg.contains("points=\"0.0,0.0 200.0,120.0 400.0,240.0\""), "{svg}");
        assert!(svg.contains("points=\"0.0,180.0 200.0,180.0 400.0,180.0\""), "{svg}");
        assert!(svg.contains(">a &lt; b</text>") && svg.ends_with("</svg>\n"), "{svg}");
        assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
    }
}
