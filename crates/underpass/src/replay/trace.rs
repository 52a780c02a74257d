//! `--trace`: each packet's path, a line a step.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use underpass_control::matched;
use underpass_daemon::offline::Offline;
use underpass_daemon::packet_path::{self, LinkName, Names};
use underpass_engine::buffer::Packet;
use underpass_engine::tables::{Reader, Tables};
use underpass_engine::trace::{Event, Watch};

/// Writes the steps of packets, with the names that the configuration gave.
pub struct Printer<'a> {
    out: BufWriter<Box<dyn Write>>,
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
        out: Box<dyn Write>,
        (tables, reader): (Arc<Tables>, Reader),
        names: Vec<LinkName>,
        router: &'a Offline,
    ) -> Self {
        Self { out: BufWriter::new(out), tables, reader, names, router, failed: None }
    }

    /// Says which packet the next steps are of.
    pub fn begin(&mut self, number: u64, time: u64) {
        self.line(format_args!("packet {number} at {}.{:09}", time / 1_000_000_000, time % 1_000_000_000));
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
        self.line(format_args!("  {line}"));
        // What only this printer has looked at must not keep memory from being freed.
        self.reader.idle();
    }
}
