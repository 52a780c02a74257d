//! `underpass run`: the router as a daemon.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use nix::sys::signal::{SigSet, Signal};
use underpass::{
    launch, offline,
    port_spec::PortSpec,
    serve::{self, Server},
};

/// Run the router.
///
/// With --offline it has virtual ports and nothing of the kernel's, and needs no privileges: configure
/// it with `underpass exec`. A line on standard output says when it is ready. SIGTERM and SIGINT end it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass run --offline --port p0 --port p1
  underpass run --offline --socket /tmp/lab.sock --port wan,mac=02:00:00:00:00:01
  underpass exec -- ip link show      # in another terminal")]
pub struct Args {
    /// No interfaces of the kernel: virtual ports only
    #[arg(long)]
    offline: bool,
    /// Where programs reach the router [default: $XDG_RUNTIME_DIR/underpass/offline.sock,
    /// else /run/underpass/offline.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// A port of the router; may be given several times
    #[arg(long = "port", value_name = "NAME[,mac=XX:XX:XX:XX:XX:XX]")]
    ports: Vec<PortSpec>,
}

/// Runs until a signal ends it.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.offline {
        anyhow::bail!(
            "attaching to the kernel's interfaces is not available yet: \
             give --offline for a router with virtual ports, to be configured with `underpass exec`"
        );
    }
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => launch::runtime_directory().join("offline.sock"),
    };
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    // In every thread, so that only the one that waits for them gets them.
    signals.thread_block()?;
    let (router, _tables, _readers) = offline::router(&args.ports, 0)?;
    let mut server = Server::listen(&socket, &serve::Options::default())?;
    let (stop, waker) = (Arc::new(AtomicBool::new(false)), server.waker());
    let stopped = Arc::clone(&stop);
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if signals.wait().is_ok() {
            stopped.store(true, Relaxed);
            waker.wake();
        }
    })?;
    // Whoever started us may not read it.
    let _ = writeln!(io::stdout(), "underpass: ready at {}", server.path().display());
    offline::serve(&mut server, &Mutex::new(router), &stop)?;
    Ok(ExitCode::SUCCESS)
}
