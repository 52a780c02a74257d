//! `underpass replay`: captures go through a router of this process.

mod input;
mod summary;
mod trace;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use underpass_control::LinkKind;
use underpass_daemon::offline::Offline;
use underpass_daemon::packet_path::LinkName;
use underpass_daemon::port_spec::PortSpec;
use underpass_engine::buffer::{HEADROOM, Packet, Pool, PortId};
use underpass_engine::trace::Watch;
use underpass_engine::worker::{Burst, Worker};
use underpass_port::pcap::{MAX_FRAME, Nanoseconds, Reader, Writer};

use input::{Feed, Input};
use summary::{Capture, Shown, Summary};
use trace::{Form, Printer};
use underpass_daemon::output;
use underpass_daemon::script::{self, Line};

/// Send captures through a router that a file of ip and tc lines configures.
///
/// Needs no privileges: the router and its ports live in this process. The real tools run the lines of the
/// configuration. Packets of several captures are merged by time stamp. What a port sends is written to
/// DIR/PORT.pcap with the time stamp of the packet that caused it.
///
/// Captures are pcap or pcapng, plain or compressed by gzip or zstd, of Ethernet, `tcpdump -i any` (Linux cooked),
/// IP without a link layer, or BSD loopback. A packet without an Ethernet header gets one to the port's address.
/// One that was cut by a snap length is filled up with zeros. What the captured machine itself sent is left out
/// where the capture says so. The summary counts each of these.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass replay --config vpn.conf --rx wan=in.pcap --port lan,mac=02:00:00:00:00:02 --out out
  underpass replay --config vpn.conf --rx wan=in.pcap --out out --trace
  underpass replay --config vpn.conf --rx wan=in.pcap --out out --trace-json steps.jsonl
  underpass replay --config vpn.conf --rx wan-and-lan.pcapng.zst --out out
  underpass replay --config vpn.conf --rx wan=any.pcap,interface=2 --rx lan=any.pcap,interface=3 --out out
  underpass replay --config vpn.conf --rx wan=in.pcap --out out --show 'ip -6 -s route show'")]
pub struct Args {
    /// Lines for ip and tc; # starts a comment, a trailing \ continues the line
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Send a capture into a port, or what was captured at one of its interfaces; repeatable. Without PORT each
    /// interface of a pcapng goes into the port of its name. An interface without a name has a number: that of
    /// `tcpdump -i any`, or its place in the file, from 0
    #[arg(long = "rx", value_name = "[PORT=]FILE[,interface=NAME]", required = true)]
    inputs: Vec<Input>,
    /// Send in what the captured machine itself sent, too
    #[arg(long)]
    include_sent: bool,
    /// Add a port; a port that only --rx names gets a MAC address of the router's choice
    #[arg(long = "port", value_name = "NAME[,mac=XX:XX:XX:XX:XX:XX]")]
    ports: Vec<PortSpec>,
    /// Directory for the captures of what each port sends; created if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print each packet's path, step by step
    #[arg(long)]
    trace: bool,
    /// Write each step of each packet's path as a JSON document on a line of its own; - for standard output
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    trace_json: Option<PathBuf>,
    /// Print the summary as JSON, and the trace to standard error
    #[arg(long)]
    json: bool,
    /// Run this line at the end, such as 'ip -6 -s route show'; repeatable
    #[arg(long = "show", value_name = "LINE", value_parser = script::parse_one)]
    show: Vec<Line>,
}

/// Buffers of the router. A packet leaves its buffer as soon as it was written, unless it waits in a qdisc.
const BUFFERS: usize = 4096;
/// Times in a row that a qdisc may let nothing go when it was to.
const PATIENCE: u32 = 100_000;

/// Where steps are written, if they are, and how.
fn steps_to(args: &Args) -> anyhow::Result<Option<(Box<dyn Write>, Form)>> {
    let out: Box<dyn Write> = match &args.trace_json {
        Some(path) if path.as_os_str() == "-" => Box::new(io::stdout().lock()),
        Some(path) => Box::new(File::create(path).with_context(|| path.display().to_string())?),
        None if !args.trace => return Ok(None),
        None if args.json => Box::new(io::stderr()),
        None => Box::new(io::stdout().lock()),
    };
    Ok(Some((out, if args.trace_json.is_some() { Form::Json } else { Form::Words })))
}

/// Runs the replay.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let text = fs::read_to_string(&args.config).with_context(|| args.config.display().to_string())?;
    let lines = script::parse(&args.config, &text)?;
    let feeds = input::feeds(&args.inputs)?;
    let ports = ports(&args.ports, &feeds);
    let mut sources = sources(&feeds, &ports, args.include_sent)?;
    // One for the worker, one for the trace, which tells what the worker's ids stand for.
    let (router, tables, readers) = Offline::new(&ports, 2)?;
    let Ok([worker_reader, trace_reader]) = <[_; 2]>::try_from(readers) else {
        bail!("a router with two readers is needed");
    };
    script::configure(&router, &args.config, &lines)?;
    for link in router.router().links() {
        // What was captured without addresses goes to the address that the configuration has given the port.
        let into = |source: &&mut Source| link.kind == LinkKind::Port(source.port);
        sources.iter_mut().filter(into).for_each(|source| source.reader.set_station(link.mac));
    }

    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let mut sinks =
        ports.iter().map(|port| Sink::create(&args.out, &port.name)).collect::<anyhow::Result<Vec<_>>>()?;
    let counters = Arc::clone(worker_reader.counters());
    let pool = Pool::with_slot_size(BUFFERS, HEADROOM + MAX_FRAME);
    let mut worker: Worker = Worker::new(Arc::clone(&tables), worker_reader, pool).alone();
    if let Some(out) = steps_to(args)? {
        let links = router.router();
        let names = links.links().map(|link| {
            let port = if let LinkKind::Port(port) = link.kind { Some(port) } else { None };
            LinkName { id: link.id, port, name: link.name.clone() }
        });
        let names = names.collect();
        // The printer asks the router itself.
        drop(links);
        let mut printer = Printer::new(out, (tables, trace_reader), names, &router);
        replay(&mut worker, &mut sources, &mut sinks, Some(&mut printer))?;
        printer.finish().context("the trace cannot be written")?;
    } else {
        replay(&mut worker, &mut sources, &mut sinks, None)?;
    }

    let received = sources.into_iter().map(Source::finish).collect();
    let sent = sinks.into_iter().map(Sink::finish).collect::<anyhow::Result<_>>()?;
    let mut summary = Summary::new(received, sent, &counters);
    for line in &args.show {
        let output = script::run(&router, line).map_err(|problem| anyhow::anyhow!("--show: {problem}"))?;
        summary.show.push(Shown { line: line.words.join(" "), output });
    }
    if args.json {
        output::print(&format!("{}\n", serde_json::to_string_pretty(&summary)?))?;
    } else {
        output::print(&summary.to_string())?;
    }
    if let Err((arrived, ended)) = summary.balance() {
        bail!("{arrived} packets came in or were made, but {ended} are accounted for");
    }
    Ok(ExitCode::SUCCESS)
}

/// The ports, those of `--port` first.
fn ports(declared: &[PortSpec], feeds: &[Feed]) -> Vec<PortSpec> {
    let mut ports = declared.to_vec();
    for feed in feeds {
        if ports.iter().all(|port| port.name != feed.port.name) {
            ports.push(feed.port.clone());
        }
    }
    ports
}

/// A capture that is being read.
struct Source {
    port: PortId,
    reader: Reader,
    next: Option<(Nanoseconds, Packet)>,
    capture: Capture,
}

impl Source {
    fn finish(self) -> Capture {
        let tally = self.reader.tally();
        Capture {
            padded: tally.padded,
            left_out_sent: tally.sent,
            left_out_foreign: tally.foreign,
            ..self.capture
        }
    }
}

fn sources(feeds: &[Feed], ports: &[PortSpec], include_sent: bool) -> anyhow::Result<Vec<Source>> {
    let open = |feed: &Feed| {
        let name = &feed.port.name;
        let index = ports.iter().position(|port| port.name == *name).context("a port without a number")?;
        let mut reader = Reader::open(&feed.file)?;
        if let Some(interface) = &feed.interface {
            reader = reader.only(interface);
        }
        if include_sent {
            reader = reader.with_sent();
        }
        Ok(Source {
            port: PortId(u16::try_from(index).context("too many ports")?),
            reader,
            next: None,
            capture: Capture::new(name, &feed.file),
        })
    };
    feeds.iter().map(open).collect()
}

/// A capture that is being written.
struct Sink {
    writer: Writer,
    capture: Capture,
}

impl Sink {
    fn create(directory: &Path, port: &str) -> anyhow::Result<Self> {
        let file = directory.join(format!("{port}.pcap"));
        let writer = Writer::create(&file)?;
        Ok(Self { writer, capture: Capture::new(port, &file) })
    }

    fn finish(self) -> anyhow::Result<Capture> {
        self.writer.finish()?;
        Ok(self.capture)
    }
}

/// Sends the packets in, the earliest first, and writes what comes out.
fn replay(
    worker: &mut Worker,
    sources: &mut [Source],
    sinks: &mut [Sink],
    mut printer: Option<&mut Printer<'_>>,
) -> anyhow::Result<()> {
    for source in sources.iter_mut() {
        source.next = source.reader.receive(worker.pool())?;
    }
    let mut number = 0;
    let mut burst = Burst::new();
    // Of packets of one time, the first capture's goes first.
    while let Some(source) =
        sources.iter_mut().filter(|s| s.next.is_some()).min_by_key(|s| s.next.as_ref().map(|(time, _)| *time))
    {
        let Some((time, packet)) = source.next.take() else { break };
        advance(worker, sinks, printer.as_deref_mut(), time)?;
        source.capture.packets += 1;
        source.capture.bytes += packet.len() as u64;
        number += 1;
        if let Some(printer) = &mut printer {
            printer.begin(number, time);
        }
        burst.push(packet);
        worker.process(source.port, &mut burst, time, watch(&mut printer));
        worker.printed(|text, _| {
            text.lines().for_each(|line| eprintln!("packet {number}: bpf_trace_printk: {line}"))
        });
        write(worker, sinks, time)?;
        source.next = source.reader.receive(worker.pool())?;
    }
    // What qdiscs still hold leaves in its time.
    advance(worker, sinks, printer, Nanoseconds::MAX)
}

/// The printer, as a worker calls it.
fn watch<'a>(printer: &'a mut Option<&mut Printer<'_>>) -> Option<&'a mut dyn Watch> {
    printer.as_mut().map(|printer| &mut **printer as _)
}

/// Sends what qdiscs let go until `time`, each packet at its own.
fn advance(
    worker: &mut Worker,
    sinks: &mut [Sink],
    mut printer: Option<&mut Printer<'_>>,
    time: Nanoseconds,
) -> anyhow::Result<()> {
    let mut in_vain = 0;
    while let Some(due) = worker.deadline()
        && due <= time
        && in_vain < PATIENCE
    {
        worker.advance(due, watch(&mut printer));
        in_vain = if write(worker, sinks, due)? > 0 { 0 } else { in_vain + 1 };
    }
    Ok(())
}

/// Writes what has left at `time`; returns how many packets.
fn write(worker: &mut Worker, sinks: &mut [Sink], time: Nanoseconds) -> anyhow::Result<usize> {
    let mut count = 0;
    for (port, sink) in (0..).map(PortId).zip(sinks.iter_mut()) {
        let (pool, sent) = worker.pool_and_sent(port);
        for packet in sent {
            sink.writer.send(time, packet.bytes())?;
            sink.capture.packets += 1;
            sink.capture.bytes += packet.len() as u64;
            pool.give(packet);
            count += 1;
        }
    }
    Ok(count)
}
