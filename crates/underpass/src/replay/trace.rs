//! `--trace` and `--trace-json`: each packet's path, a line a step.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use serde::Serialize;
use underpass_control::matched;
use underpass_daemon::offline::Offline;
use underpass_daemon::packet_path::{self, LinkName, Names, facts::Facts};
use underpass_engine::buffer::Packet;
use underpass_engine::tables::{Reader, Tables};
use underpass_engine::trace::{Event, Watch};

/// How steps are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// In words, below a line that says which packet they are of.
    Words,
    /// A JSON document a step.
    Json,
}

/// A step for programs, as `underpass trace --json` has them, with the packet that it is of.
#[derive(Serialize)]
struct Step<'a> {
    packet: u64,
    /// When the packet came in: nanoseconds, by the capture.
    time: u64,
    step: &'a str,
    text: &'a str,
    #[serde(flatten)]
    facts: Facts,
}

/// Writes the steps of packets, with the names that the configuration gave.
pub struct Printer<'a> {
    out: BufWriter<Box<dyn Write>>,
    form: Form,
    /// The number and the time of the packet that the next steps are of.
    packet: (u64, u64),
    tables: Arc<Tables>,
    reader: Reader,
    names: Vec<LinkName>,
    router: &'a Offline,
    /// The first failure to write.
    failed: Option<io::Error>,
}

impl<'a> Printer<'a> {
    /// `names` are those of the links of `router`.
    pub fn new(
        (out, form): (Box<dyn Write>, Form),
        (tables, reader): (Arc<Tables>, Reader),
        names: Vec<LinkName>,
        router: &'a Offline,
    ) -> Self {
        Self { out: BufWriter::new(out), form, packet: (0, 0), tables, reader, names, router, failed: None }
    }

    /// Says which packet the next steps are of.
    pub fn begin(&mut self, number: u64, time: u64) {
        self.packet = (number, time);
        if self.form == Form::Words {
            self.line(format_args!(
                "packet {number} at {}.{:09}",
                time / 1_000_000_000,
                time % 1_000_000_000
            ));
        }
    }

    /// Writes what is still buffered.
    ///
    /// # Errors
    /// The first failure to write.
    pub fn finish(mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)?;
        self.out.flush()
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        if let Err(error) = writeln!(self.out, "{line}") {
            self.failed.get_or_insert(error);
        }
    }
}

impl Watch for Printer<'_> {
    fn step(&mut self, event: Event, packet: &Packet) {
        let shown = packet_path::packet(&event, packet);
        let guard = self.reader.enter();
        let routes = |address, action| matched(&self.router.router(), address, action);
        let names = Names { tables: &self.tables, guard: &guard, names: &self.names, routes: &routes };
        let line = packet_path::line(&event, &shown, &names);
        match self.form {
            Form::Words => self.line(format_args!("  {line}")),
            Form::Json => {
                let (packet, time) = self.packet;
                let step = packet_path::word(&event);
                let step = Step { packet, time, step, text: &line, facts: Facts::of(&event, &names) };
                match serde_json::to_string(&step) {
                    Ok(step) => self.line(format_args!("{step}")),
                    Err(error) => _ = self.failed.get_or_insert(error.into()),
                }
            }
        }
        // What only this printer has looked at must not keep memory from being freed.
        self.reader.idle();
    }
}
