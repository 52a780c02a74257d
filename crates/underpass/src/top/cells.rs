//! What tables of `top` are made of: cells with their numbers and bars, columns, rows.

use std::borrow::Cow;

/// What stands in a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Text(String),
    /// A number, shown short: a count, or a rate that is not known yet.
    Count(u64),
    /// Packets a second.
    Rate(Option<u64>),
    /// Bytes a second, shown in bits.
    Bits(Option<u64>),
    /// How a rate went.
    Spark(Vec<u64>),
}

impl Cell {
    /// What a name or an address is shown as.
    pub fn text(text: impl ToString) -> Self {
        Self::Text(text.to_string())
    }

    /// The number that a column is sorted by; text is sorted as text.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Count(count) => Some(*count),
            Self::Rate(rate) | Self::Bits(rate) => Some(rate.unwrap_or(0)),
            Self::Spark(rates) => Some(rates.iter().sum()),
            Self::Text(_) => None,
        }
    }

    /// As it is shown in `width` columns.
    pub fn show(&self, width: usize) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => short(*count as f64),
            Self::Rate(rate) => rate.map_or("-".to_owned(), |rate| short(rate as f64)),
            Self::Bits(rate) => rate.map_or("-".to_owned(), |rate| short(rate as f64 * 8.0)),
            Self::Spark(rates) => spark(rates, width),
        }
    }
}

/// A number in at most five characters.
pub fn short(number: f64) -> String {
    let mut rest = number;
    for unit in ["", "k", "M", "G", "T", "P"] {
        if rest < 999.5 || unit == "P" {
            let digits = if unit.is_empty() || rest >= 99.95 {
                0
            } else if rest >= 9.995 {
                1
            } else {
                2
            };
            return format!("{rest:.digits$}{unit}");
        }
        rest /= 1000.0;
    }
    number.to_string()
}

/// Bars of the last rates, as high as they are beside the highest of them.
fn spark(rates: &[u64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let rates = rates.get(rates.len().saturating_sub(width)..).unwrap_or_default();
    let highest = rates.iter().copied().max().unwrap_or(0);
    let bar = |rate: &u64| match (*rate, highest) {
        (0, _) => ' ',
        (rate, highest) => {
            let bar = (rate as u128 * 7).div_ceil(u128::from(highest)) as usize;
            BARS.get(bar).copied().unwrap_or('█')
        }
    };
    format!("{:>width$}", rates.iter().map(bar).collect::<String>())
}

/// A column: its name, and how many characters it has; 0: what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub width: u16,
    /// Numbers stand to the right.
    pub right: bool,
}

/// A column of texts.
pub const fn left(name: &'static str, width: u16) -> Column {
    Column { name, width, right: false }
}

/// A column of numbers.
pub const fn right(name: &'static str, width: u16) -> Column {
    Column { name, width, right: true }
}

/// A row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub cells: Vec<Cell>,
    /// Something is lost here now.
    pub alarm: bool,
}

/// A table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub title: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// The column that it is sorted by unless configured otherwise, the largest first.
    pub sorted_by: usize,
    /// What is said where there is no row.
    pub empty: Cow<'static, str>,
}

impl Table {
    /// Leaves the rows with `filter` in one of their texts. If that hides all rows, the table says so.
    pub fn filter(&mut self, filter: &str) {
        if filter.is_empty() || self.rows.is_empty() {
            return;
        }
        let lower = filter.to_lowercase();
        let has = |cell: &Cell| matches!(cell, Cell::Text(text) if text.to_lowercase().contains(&lower));
        self.rows.retain(|row| row.cells.iter().any(has));
        if self.rows.is_empty() {
            self.empty = format!("no row contains '{filter}'").into();
        }
    }

    /// Sorts by a column: numbers from the largest on, texts from A on; or the other way round.
    pub fn sort(&mut self, column: Option<usize>, reverse: bool) {
        let column = column.unwrap_or(self.sorted_by);
        self.rows.sort_by(|a, b| {
            let (Some(a), Some(b)) = (a.cells.get(column), b.cells.get(column)) else {
                return std::cmp::Ordering::Equal;
            };
            let order = match (a, b) {
                (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
                _ => b.number().cmp(&a.number()),
            };
            if reverse { order.reverse() } else { order }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (999.0, "999"),
            (1000.0, "1.00k"),
            (9_994.0, "9.99k"),
            (99_949.0, "99.9k"),
            (999_499.0, "999k"),
            (999_500.0, "1.00M"),
            (12_345_678.0, "12.3M"),
            (1.5e9, "1.50G"),
            (u64::MAX as f64, "18447P"),
        ] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn bars() {
        assert_eq!(spark(&[0, 1, 50, 100], 6), "   ▂▅█");
        assert_eq!(spark(&[9, 9, 0, 7], 2), " █", "the last ones");
        assert_eq!(spark(&[], 3), "   ");
        assert_eq!(spark(&[u64::MAX], 1), "█");
    }

    #[test]
    fn sorted_and_filtered() {
        let row = |name: &str, rate| Row { cells: vec![Cell::text(name), Cell::Rate(rate)], alarm: false };
        let mut table = Table {
            title: String::new(),
            columns: vec![left("a", 3), right("b", 3)],
            rows: vec![row("b", Some(1)), row("a", Some(7)), row("c", None)],
            sorted_by: 1,
            empty: "".into(),
        };
        let order = |table: &Table| table.rows.iter().map(|row| row.cells[0].show(0)).collect::<String>();
        table.sort(None, false);
        assert_eq!(order(&table), "abc");
        table.sort(Some(0), true);
        assert_eq!(order(&table), "cba");
        table.filter("B");
        assert_eq!(order(&table), "b");
        table.filter("x");
        assert_eq!((order(&table).as_str(), &*table.empty), ("", "no row contains 'x'"));
    }
}
