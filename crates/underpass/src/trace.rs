//! `underpass trace`: packets on their way through a running router.

mod libpcap;
mod summary;

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write},
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{self, ExitCode},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use underpass_daemon::{
    launch,
    live::{
        trace::{Message, PacketPath, Request},
        trace_path,
    },
    output,
    query::unreachable,
    seconds::seconds,
};
use underpass_port::pcapng;

use summary::Summary;

/// Follow packets through a running router, step by step.
///
/// FILTER is a pcap-filter(7) expression, as for tcpdump. It is matched against frames as they are received. Packets
/// that the host sends are received from the router's devices, such as underpass0. Without FILTER every packet
/// matches. Forwarding is not interrupted: each worker traces up to --rate packets per second and counts the ones that
/// it skips. A packet's path is printed once it has been sent, delivered or dropped. Ctrl-C stops tracing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass trace
  underpass trace --count 1 ip6 and dst host fc00:2::1
  underpass trace --drops --time 10
  underpass trace --port eth0 --write out.pcapng 'tcp port 443'
  underpass trace --write - udp | wireshark -k -i -
  underpass trace --drops --summary --time 10 --rate 10000      # by port, table and prefix
  underpass trace --json icmp | jq .dropped")]
pub struct Args {
    /// Which packets to trace
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Stop after N packets
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this many seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Trace only packets received on this port, which must exist when the trace starts
    #[arg(short, long, value_name = "PORT")]
    port: Option<String>,
    /// Trace only packets that are dropped or answered with an ICMP error
    #[arg(short, long)]
    drops: bool,
    /// At most this many packets per second and worker
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Write packets as received and as sent, with their paths as comments; - for standard output
    #[arg(short, long, value_name = "FILE.pcapng")]
    write: Option<PathBuf>,
    /// Print one JSON document per packet
    #[arg(long)]
    json: bool,
    /// Print at the end how many packets took which way, by port, rule, table, prefix and what became of them
    #[arg(long)]
    summary: bool,
    /// The router's socket [default: as for `underpass exec`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// How long the router may take to tell the rest once it was told to end.
const PATIENCE: Duration = Duration::from_secs(3);

/// Follows until there is an end to it.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let filter = args.filter.join(" ");
    let program = if filter.trim().is_empty() { Vec::new() } else { libpcap::compile(&filter)? };
    let mut show = Show::new(args)?;
    let path = trace_path(&launch::chosen_socket(args.socket.as_deref())?);
    let connection = UnixStream::connect(&path).map_err(|error| unreachable(&path, error))?;
    let request = Request {
        filter: program,
        port: args.port.clone(),
        frames: args.write.is_some(),
        drops: args.drops,
        rate: args.rate,
    };
    let request = serde_json::to_string(&request)? + "\n";
    match (&connection).write_all(request.as_bytes()) {
        // Refused before it was asked: the reason lies there to be read.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written?,
    }
    end_in_time(&connection, args.time)?;

    let (mut missed, mut ended) = (0, false);
    for line in BufReader::new(&connection).lines() {
        match serde_json::from_str(&line?).context("the router's answer")? {
            Message::Started => {
                let what = if filter.is_empty() { "every packet".to_owned() } else { format!("'{filter}'") };
                eprintln!("following {what}; Ctrl-C ends it");
            }
            Message::Refused(why) => bail!("{why}"),
            Message::NoFastPath(why) => eprintln!("no packet takes the fast path meanwhile: {why}"),
            Message::PacketPath(_) if show.done(args.count) => {}
            Message::PacketPath(packet_path) => {
                match show.packet_path(&packet_path) {
                    // Whoever read it has what it wants.
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
                    shown => shown.context("the packets cannot be written")?,
                }
                if show.done(args.count) {
                    let _ = connection.shutdown(Shutdown::Write);
                }
            }
            Message::Missed(count) => missed = count,
            Message::Ended => ended = true,
        }
    }
    let plural = if show.packets == 1 { "" } else { "s" };
    if let Some(summary) = &show.summary {
        output::print(&if args.json { summary.json()? } else { summary.table() })?;
    }
    eprintln!("{} packet{plural} followed, {missed} more matched", show.packets);
    if !ended {
        bail!("the router has gone");
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells the router to end after `time`, or upon Ctrl-C; and does not wait for ever for the rest.
fn end_in_time(connection: &UnixStream, time: Option<Duration>) -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let (signals, connection) =
        (SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?, connection.try_clone()?);
    let deadline = time.map(|time| Instant::now() + time);
    thread::Builder::new().name("end".to_owned()).spawn(move || {
        wait(&signals, deadline);
        let _ = connection.shutdown(Shutdown::Write);
        // A second Ctrl-C does not wait.
        wait(&signals, Some(Instant::now() + PATIENCE));
        process::exit(130);
    })?;
    Ok(())
}

/// Waits for a signal, or for the time.
fn wait(signals: &SignalFd, deadline: Option<Instant>) {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A millisecond more, as poll(2) rounds down.
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let mut polled = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, timeout) {
            Ok(0) if deadline.is_some_and(|deadline| Instant::now() < deadline) => {}
            Ok(0) => return,
            Ok(_) => {
                let _ = signals.read_signal();
                return;
            }
            Err(_) => {}
        }
    }
}

/// Where paths are shown.
struct Show {
    /// Not where the capture goes to standard output.
    text: bool,
    json: bool,
    capture: Option<pcapng::Writer<BufWriter<Box<dyn Write>>>>,
    packets: u64,
    /// In place of each.
    summary: Option<Summary>,
}

impl Show {
    fn new(args: &Args) -> anyhow::Result<Self> {
        let to_stdout = args.write.as_deref() == Some(Path::new("-"));
        if to_stdout && args.json {
            bail!("--json and --write - both go to standard output");
        }
        let open = |path: &PathBuf| -> anyhow::Result<_> {
            let out: Box<dyn Write> = if to_stdout {
                Box::new(io::stdout())
            } else {
                Box::new(File::create(path).with_context(|| path.display().to_string())?)
            };
            let program = concat!("underpass ", env!("CARGO_PKG_VERSION"));
            Ok(pcapng::Writer::new(BufWriter::new(out), program)?)
        };
        let capture = args.write.as_ref().map(open).transpose()?;
        if to_stdout && args.summary {
            bail!("--summary and --write - both go to standard output");
        }
        let summary = args.summary.then(Summary::default);
        Ok(Self { text: !to_stdout && summary.is_none(), json: args.json, capture, packets: 0, summary })
    }

    fn done(&self, count: Option<u64>) -> bool {
        count.is_some_and(|count| self.packets >= count)
    }

    fn packet_path(&mut self, packet_path: &PacketPath) -> io::Result<()> {
        self.packets += 1;
        if let Some(summary) = &mut self.summary {
            summary.add(packet_path);
        }
        let text = words(packet_path);
        if self.text {
            let mut out = io::stdout().lock();
            if self.json {
                let packet_path = PacketPath { frames: Vec::new(), ..packet_path.clone() };
                writeln!(out, "{}", serde_json::to_string(&packet_path)?)?;
            } else {
                out.write_all(text.as_bytes())?;
            }
            out.flush()?;
        }
        let Some(capture) = &mut self.capture else { return Ok(()) };
        for frame in &packet_path.frames {
            let Some(bytes) = frame.bytes() else { continue };
            let way = if frame.left { "as it left" } else { "as it came in" };
            capture.write(&pcapng::Frame {
                port: &frame.port,
                left: frame.left,
                time: packet_path.time + frame.after,
                len: bytes.len() as u32,
                bytes: &bytes,
                comment: &format!("{way}: {}", text.trim_end()),
            })?;
        }
        // Whoever watches the file sees whole packets, whatever becomes of this program.
        capture.flush()
    }
}

/// A path in words, as `replay --trace` tells it.
fn words(packet_path: &PacketPath) -> String {
    let PacketPath { packet, time, worker, .. } = packet_path;
    let (seconds, nanos) = (time / 1_000_000_000, time % 1_000_000_000);
    let mut text = format!("packet {packet} at {seconds}.{nanos:09}, worker {worker}\n");
    let mut before = 0;
    for step in &packet_path.steps {
        // Writing to a String does not fail.
        let _ = match step.after.saturating_sub(before) {
            0 => writeln!(text, "  {}", step.text),
            later => writeln!(text, "  {:.3} ms later: {}", later as f64 / 1e6, step.text),
        };
        before = step.after;
    }
    if !packet_path.ended {
        text.push_str("  nothing more was heard of it\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use underpass_daemon::live::trace::Step;

    use super::*;

    #[test]
    fn a_packet_path_in_words() {
        let step =
            |after, text: &str| Step { after, step: "sent".into(), text: text.into(), ..Step::default() };
        let mut packet_path = PacketPath {
            packet: 3,
            worker: 1,
            time: 1_763_780_000_000_000_042,
            steps: vec![
                step(0, "in by eth0"),
                step(1_250_000, "let go by the qdisc of eth1"),
                step(1_250_000, "x"),
            ],
            ended: true,
            ..PacketPath::default()
        };
        let told = "packet 3 at 1763780000.000000042, worker 1\n  in by eth0\n  \
                    1.250 ms later: let go by the qdisc of eth1\n  x\n";
        assert_eq!(words(&packet_path), told);
        packet_path.ended = false;
        assert_eq!(words(&packet_path), format!("{told}  nothing more was heard of it\n"));
    }
}
