//! A userspace router for the tunnels and traffic controls of Linux.

mod bench;
mod exec;
mod lab;
mod output;
mod processor;
mod random;
mod replay;
mod run;
mod script;
mod stats;
mod top;
mod trace;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// A userspace router for the tunnels and traffic controls of Linux, configured by ip and tc.
#[derive(Debug, Parser)]
#[command(name = "underpass", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// One variant, and one file of that name, a subcommand.
#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Exec(exec::Args),
    Stats(stats::Args),
    Top(top::Args),
    Trace(trace::Args),
    Replay(replay::Args),
    Bench(bench::Args),
    Lab(lab::Args),
}

fn main() -> ExitCode {
    if let Some(feature) = processor::missing() {
        eprintln!("underpass: this processor has no {feature}: build with RUSTFLAGS=-Ctarget-cpu=x86-64");
        return ExitCode::FAILURE;
    }
    if let Err(error) = underpass::launch::shed_library() {
        eprintln!("underpass: cannot start without the preload library: {error}");
        return ExitCode::FAILURE;
    }
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_max_level(match &cli.command {
            Command::Run(args) => args.log_level(),
            _ => tracing::Level::WARN,
        })
        .init();
    let done = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Exec(args) => exec::main(&args),
        Command::Stats(args) => stats::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Replay(args) => replay::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Lab(args) => lab::main(&args),
    };
    match done {
        Ok(status) => status,
        Err(error) => {
            eprintln!("underpass: {error:#}");
            ExitCode::FAILURE
        }
    }
}
