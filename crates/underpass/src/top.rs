//! `underpass top`: a running router, live in a terminal.

mod cells;
mod meter;
mod screen;
mod views;

use std::{
    fmt::Write as _,
    io::{self, IsTerminal},
    os::fd::AsFd,
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEventKind},
};
use underpass_daemon::{launch, live::state::State, output, query};

use meter::Meter;
use screen::{Screen, Wish, lines};
use views::View;

/// Watch a running router: traffic, and drops with their reasons.
///
/// Views of ports, drops, SIDs, labels, tunnels, queues, policers and workers, with current rates and their recent
/// history. Press ? for the keys.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass top
  underpass top --view sids
  underpass top --once
  underpass top --once --json | jq .drops
  ip netns exec r1 underpass top")]
pub struct Args {
    /// The router's socket [default: as for `underpass exec`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The view to start with
    #[arg(long, value_enum, default_value = "overview")]
    view: Name,
    /// Refresh interval in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    every: u64,
    /// Print every view once, with the rates of one interval, and exit
    #[arg(long)]
    once: bool,
    /// With --once: print the state as one JSON document, without rates
    #[arg(long, requires = "once")]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    Overview,
    Ports,
    Drops,
    Sids,
    Labels,
    Tunnels,
    Queues,
    Policers,
    Workers,
}

impl Name {
    fn view(self) -> View {
        View::ALL.get(self as usize).copied().unwrap_or(View::Overview)
    }
}

/// How often keys and signals are looked for.
const TICK: Duration = Duration::from_millis(100);
/// Characters of a line that is not for a terminal.
const WIDTH: u16 = 120;

/// Watches until a key or a signal ends it.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = launch::chosen_socket(args.socket.as_deref())?;
    let ask = || -> anyhow::Result<State> {
        serde_json::from_str(&query::answer(&socket, "state")?).context("the router's answer")
    };
    let first = ask()?;
    let every = Duration::from_secs(args.every);
    if args.once {
        if args.json {
            output::print(&format!("{}\n", serde_json::to_string_pretty(&first)?))?;
        } else {
            let mut meter = Meter::default();
            meter.read(&first);
            thread::sleep(every);
            let now = ask()?;
            meter.read(&now);
            output::print(&text(&now, &meter))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("this is no terminal: --once prints what there is to see");
    }
    // So that the terminal is given back as it was, whatever ends this.
    let mut ending = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        ending.add(signal);
    }
    ending.thread_block()?;
    let signals = SignalFd::with_flags(&ending, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut terminal = ratatui::try_init()?;
    let watched = watch(&mut terminal, &signals, Screen::new(args.view.view()), first, ask, every);
    ratatui::try_restore()?;
    watched.map(|()| ExitCode::SUCCESS)
}

fn watch(
    terminal: &mut DefaultTerminal,
    signals: &SignalFd,
    mut screen: Screen,
    first: State,
    ask: impl Fn() -> anyhow::Result<State>,
    every: Duration,
) -> anyhow::Result<()> {
    let mut meter = Meter::default();
    meter.read(&first);
    let (mut state, mut read, mut draw) = (first, Instant::now(), true);
    loop {
        if std::mem::take(&mut draw) {
            terminal.draw(|frame| screen.draw(frame, &state, &meter))?;
        }
        if signals.read_signal()?.is_some() {
            return Ok(());
        }
        let left = every.saturating_sub(read.elapsed());
        if gone(signals, left.min(TICK))? {
            return Ok(());
        }
        while event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let columns =
                        screen.tables(&state, &meter).first().map_or(1, |table| table.columns.len());
                    if screen.key(key, columns) == Wish::Quit {
                        return Ok(());
                    }
                }
                _ => {}
            }
            draw = true;
        }
        if read.elapsed() >= every {
            read = Instant::now();
            if !screen.paused {
                match ask() {
                    Ok(now) => {
                        meter.read(&now);
                        (state, screen.trouble) = (now, None);
                    }
                    Err(_) => screen.trouble = Some("THE ROUTER DOES NOT ANSWER".to_owned()),
                }
            }
            draw = true;
        }
    }
}

/// Waits for a key, a signal or the end of that time. Whether the terminal has gone away: crossterm would read from it for
/// ever.
fn gone(signals: &SignalFd, time: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut asked =
        [PollFd::new(stdin.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    match poll(&mut asked, PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO)) {
        // A change of the terminal's size, which crossterm tells.
        Err(Errno::EINTR) => return Ok(false),
        result => result?,
    };
    let lost = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    Ok(asked[0].revents().is_some_and(|events| events.intersects(lost)))
}

/// Every view as text.
fn text(state: &State, meter: &Meter) -> String {
    let mut text = String::new();
    let mut shown = Vec::new();
    for view in View::ALL.into_iter().skip(1) {
        for table in Screen::new(view).tables(state, meter) {
            // Some tables are part of two views.
            if shown.contains(&table.title) {
                continue;
            }
            shown.push(table.title.clone());
            for line in lines(&table, WIDTH, 0) {
                // Writing to a String does not fail.
                let _ = writeln!(text, "{}", line.to_string().trim_end());
            }
            text.push('\n');
        }
    }
    text
}
