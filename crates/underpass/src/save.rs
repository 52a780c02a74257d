//! `underpass save`: what is configured, as lines.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use underpass_daemon::{
    launch,
    live::{SAVE, SAVE_PATIENCE},
    output,
    persist::Lines,
    query::answer_within,
};

/// Print the router's configuration as ip, tc and sysctl lines.
///
/// `underpass run --config FILE` with these lines makes the same state: links, addresses, neighbours, next hops, routes, labels,
/// rules, qdiscs, filters, actions, foo-over-UDP ports, IOAM, HMAC keys with their secrets, and variables. Beside a kernel
/// they are what the router owns, and what the kernel has by the devices that the router has made. Routes that FRR
/// programs by FPM are left out: zebra sends them again.
///
/// What no line can say is named on standard error, and the exit status is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass save > /etc/underpass/router.conf
  underpass run --config /etc/underpass/router.conf
  ip netns exec r1 underpass save
  underpass save --socket /tmp/lab.sock")]
pub struct Args {
    /// The router's socket [default: as for `underpass exec`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Asks and prints.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = launch::chosen_socket(args.socket.as_deref())?;
    let answer = answer_within(&socket, SAVE, SAVE_PATIENCE)?;
    let lines: Lines = serde_json::from_str(&answer).context("the router's answer")?;
    output::print(&lines.text)?;
    for what in &lines.left_out {
        eprintln!("underpass save: not saved: {what}");
    }
    Ok(if lines.left_out.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
