//! How `top` is drawn, and what its keys do.

use ratatui::{
    Frame,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize},
    text::{Line, Span},
    widgets::{Clear, Paragraph},
};
use underpass_daemon::live::state::State;

use super::{
    cells::{Column, Row, Table, short},
    meter::Meter,
    views::{View, tables},
};

/// What is on the screen, and how.
#[derive(Debug)]
pub struct Screen {
    pub view: View,
    /// The column that the first table is sorted by, if it is not the view's own.
    pub sort: Option<usize>,
    pub reverse: bool,
    pub filter: String,
    /// The filter is being typed.
    pub typing: bool,
    pub paused: bool,
    pub help: bool,
    pub scroll: usize,
    /// Why there is nothing new, if there is not.
    pub trouble: Option<String>,
}

/// What a key asks of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Draw again.
    Draw,
    /// End.
    Quit,
}

const HELP: [&str; 11] = [
    "1 … 9, Tab, ← →   choose the view",
    "↑ ↓ PgUp PgDn     scroll",
    "s S               sort by the next column, by the one before",
    "r                 reverse the order",
    "/                 show only rows with a text; Enter keeps it, Esc drops it",
    "p, space          pause, and go on",
    "?, h              this help",
    "q, Ctrl-C         quit",
    "",
    "Rates are of the last second; bars go back a minute, each as high as it",
    "is beside the highest. Red: something is lost here now.",
];

impl Screen {
    pub fn new(view: View) -> Self {
        Self {
            view,
            sort: None,
            reverse: false,
            filter: String::new(),
            typing: false,
            paused: false,
            help: false,
            scroll: 0,
            trouble: None,
        }
    }

    fn show(&mut self, view: View) {
        (self.view, self.sort, self.reverse, self.scroll) = (view, None, false, 0);
    }

    fn turn(&mut self, by: usize) {
        let at = View::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
        self.show(View::ALL[(at + by) % View::ALL.len()]);
    }

    /// Does what a key says. `columns`: of the first table.
    pub fn key(&mut self, key: KeyEvent, columns: usize) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Wish::Quit;
        }
        if self.typing {
            match key.code {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => {
                    self.filter.pop();
                }
                KeyCode::Char(character) if self.filter.len() < 64 => self.filter.push(character),
                _ => {}
            }
            self.scroll = 0;
            return Wish::Draw;
        }
        if self.help {
            self.help = false;
            return if key.code == KeyCode::Char('q') { Wish::Quit } else { Wish::Draw };
        }
        let sort = self.sort;
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char(digit @ '1'..='9') => {
                if let Some(view) = View::ALL.get(digit as usize - '1' as usize) {
                    self.show(*view);
                }
            }
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(View::ALL.len() - 1),
            KeyCode::Char('s') => self.sort = Some(sort.map_or(0, |at| (at + 1) % columns.max(1))),
            KeyCode::Char('S') => {
                self.sort =
                    Some(sort.map_or(columns.max(1) - 1, |at| (at + columns.max(1) - 1) % columns.max(1)));
            }
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Down => self.scroll += 1,
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll += 10,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(10),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        Wish::Draw
    }

    /// The tables of the view as they are shown.
    pub fn tables(&self, state: &State, meter: &Meter) -> Vec<Table> {
        let mut tables = tables(self.view, state, meter);
        for (at, table) in tables.iter_mut().enumerate() {
            table.filter(&self.filter);
            let chosen = self.sort.filter(|column| at == 0 && *column < table.columns.len());
            table.sort(chosen, self.reverse && at == 0);
        }
        tables
    }

    /// Draws everything.
    pub fn draw(&mut self, frame: &mut Frame<'_>, state: &State, meter: &Meter) {
        let tables = self.tables(state, meter);
        let [head, names, body, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(self.head(state, meter)), head);
        frame.render_widget(Line::from(self.names()), names);
        let sorted = tables.first().map(|table| {
            let column = self.sort.unwrap_or(table.sorted_by);
            table.columns.get(column).map_or("", |column| column.name)
        });
        frame.render_widget(self.foot(sorted.unwrap_or_default()), foot);
        self.body(frame, body, &tables);
        if self.help {
            let [_, middle, _] =
                Layout::vertical([Constraint::Fill(1), Constraint::Length(13), Constraint::Fill(1)])
                    .areas(body);
            frame.render_widget(Clear, middle);
            let lines = HELP.map(|line| Line::from(format!("  {line}")));
            frame.render_widget(Paragraph::new(lines.to_vec()).style(Style::new().reversed()), middle);
        }
    }

    fn head(&self, state: &State, meter: &Meter) -> Vec<Line<'static>> {
        let rate = |name: &str| meter.rate(name).map_or("-".to_owned(), |rate| short(rate as f64));
        let bits = |way: &str| {
            let ports = state.stats.ports.iter();
            let rates = ports.map(|port| meter.rate(&format!("port {} {way} bytes", port.name)));
            rates.sum::<Option<u64>>().map_or("-".to_owned(), |bytes| short(bytes as f64 * 8.0))
        };
        let seconds = state.time / 1000 % 86400;
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let mut first = vec![
            Span::from(format!("underpass {}", state.version)).bold(),
            Span::from(format!(
                "  {} ports  {} workers  {hours:02}:{minutes:02}:{seconds:02} UTC",
                state.stats.ports.len(),
                state.stats.workers.len()
            )),
        ];
        if self.paused {
            first.push(Span::from("  PAUSED").fg(Color::Yellow).bold());
        }
        if let Some(trouble) = &self.trouble {
            first.push(Span::from(format!("  {trouble}")).fg(Color::Red).bold());
        }
        let dropped = Span::from(format!("dropped {}/s", rate("dropped")));
        let lost = meter.rate("dropped").is_some_and(|rate| rate > 0);
        let second = vec![
            Span::from(format!("in {}/s {}bit/s  ", rate("received"), bits("in"))),
            Span::from(format!("out {}/s {}bit/s  ", rate("sent"), bits("out"))),
            if lost { dropped.fg(Color::Red).bold() } else { dropped },
            Span::from(format!("  held {}", state.stats.totals.held)),
            Span::from(format!("  to the host {}/s", rate("delivered"))),
        ];
        vec![first.into(), second.into()]
    }

    fn names(&self) -> Vec<Span<'static>> {
        let name = |(at, view): (usize, &View)| {
            let span = Span::from(format!("{}{}", at + 1, view.name()));
            [if *view == self.view { span.reversed() } else { span }, Span::from(" ")]
        };
        View::ALL.iter().enumerate().flat_map(name).collect()
    }

    fn foot(&self, sorted: &str) -> Line<'static> {
        if self.typing {
            return Line::from(format!("only rows with: {}█", self.filter));
        }
        let order = if self.reverse { "reversed" } else { "" };
        let sorted = if sorted.is_empty() { "its bars" } else { sorted };
        let mut foot = format!("q quit  ? help  / filter  p pause  s sort: {sorted} {order}");
        if !self.filter.is_empty() {
            foot.push_str(&format!("  only: {}", self.filter));
        }
        Line::from(foot).dim()
    }

    /// Tables one below the other; what does not fit is scrolled to in the first.
    fn body(&mut self, frame: &mut Frame<'_>, area: Rect, tables: &[Table]) {
        // The last tables get what they need up to half of the room, the first one the rest.
        let needs = |table: &Table| table.rows.len().max(1) as u16 + 3;
        let rest: u16 = tables.iter().skip(1).map(needs).sum::<u16>().min(area.height / 2);
        let mut heights = vec![Constraint::Length(area.height.saturating_sub(rest))];
        heights.extend(tables.iter().skip(1).map(|_| Constraint::Fill(1)));
        // Short tables stand close together.
        if let Some(first) = tables.first()
            && tables.len() > 1
        {
            heights[0] = Constraint::Length(needs(first).min(area.height.saturating_sub(rest)));
        }
        for (at, (table, area)) in tables.iter().zip(Layout::vertical(heights).split(area).iter()).enumerate()
        {
            let room = usize::from(area.height.saturating_sub(2));
            let most = table.rows.len().saturating_sub(room);
            if at == 0 {
                self.scroll = self.scroll.min(most);
            }
            let from = if at == 0 { self.scroll } else { 0 };
            frame.render_widget(Paragraph::new(lines(table, area.width, from)), *area);
        }
    }
}

/// The widths of columns: those that say 0 share what is left.
fn widths(columns: &[Column], width: u16) -> Vec<usize> {
    let fixed: u16 = columns.iter().map(|column| column.width + 1).sum();
    let open = columns.iter().filter(|column| column.width == 0).count().max(1) as u16;
    let left = width.saturating_sub(fixed) / open;
    columns.iter().map(|column| usize::from(if column.width == 0 { left } else { column.width })).collect()
}

/// A text in so many columns.
fn fit(text: &str, width: usize, right: bool) -> String {
    let count = text.chars().count();
    if count > width {
        let kept: String = text.chars().take(width.saturating_sub(1)).collect();
        return if width == 0 { String::new() } else { format!("{kept}…") };
    }
    if right { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

/// A table as lines: its title, the names of its columns, its rows from one on.
pub fn lines(table: &Table, width: u16, from: usize) -> Vec<Line<'static>> {
    let widths = widths(&table.columns, width);
    let title = if from > 0 { format!("{}, from {}", table.title, from + 1) } else { table.title.clone() };
    let mut lines = vec![Line::from(title).style(Style::new().add_modifier(Modifier::BOLD))];
    if table.rows.is_empty() {
        lines.push(Line::from(format!("  {}", table.empty)).dim());
        return lines;
    }
    let names = table.columns.iter().zip(&widths);
    let names: Vec<String> = names.map(|(column, width)| fit(column.name, *width, column.right)).collect();
    lines.push(Line::from(names.join(" ")).style(Style::new().add_modifier(Modifier::UNDERLINED)));
    for Row { cells, alarm } in table.rows.iter().skip(from) {
        let cells = cells.iter().zip(&table.columns).zip(&widths);
        let cells: Vec<String> =
            cells.map(|((cell, column), width)| fit(&cell.show(*width), *width, column.right)).collect();
        let line = Line::from(cells.join(" ").trim_end().to_owned());
        lines.push(if *alarm { line.fg(Color::Red) } else { line });
    }
    lines
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};
    use underpass_daemon::live::{PortStats, SidStats, state::Link};

    use super::*;

    fn state(time: u64, packets: u64) -> State {
        let mut state = State { time, version: "9.9.9".into(), ..State::default() };
        state.stats.totals.received = packets;
        state.stats.totals.dropped = packets / 10;
        state.stats.drops = [("no-route".to_owned(), packets / 10), ("loop".to_owned(), 3)].into();
        state.meanings = [("no-route".to_owned(), "No route to the destination.".to_owned())].into();
        state.stats.ports = ["eth0", "eth1"]
            .into_iter()
            .zip([packets, 0])
            .zip(2..)
            .map(|((name, rx_packets), index)| PortStats {
                name: name.into(),
                index,
                driver: "packet".into(),
                rx_packets,
                rx_bytes: rx_packets * 125,
                ..PortStats::default()
            })
            .collect();
        state.links = vec![Link { name: "eth0".into(), index: 2, up: true, ..Link::default() }];
        state.stats.warnings = vec!["a burst is too small".to_owned()];
        state.stats.sids = (0..100)
            .map(|n| SidStats {
                prefix: format!("fc00:{n:x}::/64"),
                behaviour: "End".into(),
                packets: packets * n,
                ..SidStats::default()
            })
            .collect();
        state
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut meter = Meter::default();
        meter.read(&state(0, 0));
        let now = state(1000, 1_234_000);
        meter.read(&now);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame, &now, &meter)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(row).collect()
    }

    fn key(screen: &mut Screen, code: KeyCode) -> Wish {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE), 7)
    }

    /// What is dropped and why stands at the top of the first screen of the smallest terminal.
    #[test]
    fn overview_of_a_small_terminal() {
        let lines = drawn(&mut Screen::new(View::Overview), 80, 24);
        assert_eq!(lines[0], "underpass 9.9.9  2 ports  0 workers  00:00:01 UTC");
        assert_eq!(
            lines[1],
            "in 1.23M/s 1.23Gbit/s  out 0/s 0bit/s  dropped 123k/s  held 0  to the host 0/s"
        );
        assert_eq!(lines[2], "1overview 2ports 3drops 4SIDs 5labels 6tunnels 7queues 8police 9workers");
        assert_eq!(lines[3], "dropped by the packet path, and why");
        assert_eq!(lines[4].split_whitespace().collect::<Vec<_>>()[..3], ["reason", "/s", "all"]);
        assert_eq!(lines[5], "no-route                 123k   123k          █ No route to the destination.");
        assert!(lines[6].starts_with("loop "), "{lines:#?}");
        let ports = lines.iter().position(|line| line == "ports (2)").unwrap();
        assert!(lines[ports + 2].starts_with("eth0            up    1.23M  1.23G        █"), "{lines:#?}");
        assert!(lines[ports + 3].starts_with("eth1            down      0"), "{lines:#?}");
        assert!(lines.iter().any(|line| line == "a burst is too small"), "{lines:#?}");
        assert!(lines[23].starts_with("q quit  ? help  / filter  p pause  s sort: /s"));
    }

    /// Nothing is drawn outside, however small the terminal is.
    #[test]
    fn any_size() {
        for view in View::ALL {
            for (width, height) in [(1, 1), (10, 3), (40, 5), (80, 24), (300, 100)] {
                let mut screen = Screen::new(view);
                screen.help = width == 40;
                drawn(&mut screen, width, height);
            }
        }
    }

    #[test]
    fn keys() {
        let mut screen = Screen::new(View::Overview);
        key(&mut screen, KeyCode::Char('4'));
        assert_eq!(screen.view, View::Sids);
        let first = |screen: &mut Screen| drawn(screen, 80, 24)[5].clone();
        assert!(first(&mut screen).starts_with("fc00:63::/64 "), "the busiest first");
        key(&mut screen, KeyCode::Char('r'));
        assert!(first(&mut screen).starts_with("fc00:0::/64 "));
        key(&mut screen, KeyCode::PageDown);
        assert!(first(&mut screen).starts_with("fc00:a::/64 "));
        // By name.
        key(&mut screen, KeyCode::Char('r'));
        key(&mut screen, KeyCode::Home);
        key(&mut screen, KeyCode::Char('s'));
        assert!(first(&mut screen).starts_with("fc00:0::/64 "));
        for character in "/3F::".chars() {
            key(&mut screen, KeyCode::Char(character));
        }
        assert_eq!((screen.typing, screen.filter.as_str()), (true, "3F::"));
        key(&mut screen, KeyCode::Enter);
        assert!(first(&mut screen).starts_with("fc00:3f::/64 "));
        key(&mut screen, KeyCode::Esc);
        assert_eq!(screen.filter, "");
        key(&mut screen, KeyCode::BackTab);
        assert_eq!((screen.view, screen.sort), (View::Drops, None));
        key(&mut screen, KeyCode::Char('p'));
        assert!(screen.paused && drawn(&mut screen, 80, 24)[0].ends_with("PAUSED"));
        key(&mut screen, KeyCode::Char('?'));
        assert!(drawn(&mut screen, 80, 24).iter().any(|line| line.contains("choose the view")));
        assert_eq!(key(&mut screen, KeyCode::Enter), Wish::Draw);
        assert_eq!(key(&mut screen, KeyCode::Char('q')), Wish::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        screen.typing = true;
        assert_eq!(screen.key(interrupt, 7), Wish::Quit);
    }
}
