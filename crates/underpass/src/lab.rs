//! `underpass lab`: a network of hosts and routers on this machine, to look at.

mod all;
mod fou;
mod l3vpn;
mod meter;
mod mpls;
mod police;
mod soak;
mod stream;

use std::{env, process::ExitCode};

use anyhow::{Context, bail};
use underpass::testbed;

/// Build a network of hosts and routers in network namespaces, show that it works, and remove it.
///
/// Needs root. The routers are those of `underpass run`, configured by the shell scripts of examples/ through
/// `underpass exec`. Whatever ends the program, nothing stays behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass lab l3vpn             # an L3VPN of two tenants over SRv6, checked step by step
  underpass lab l3vpn --keep      # the same, left running until Ctrl-C, to be looked at
  underpass lab mpls              # label-switched paths beside plain forwarding: transactions a second
  underpass lab fou               # TCP through tunnels, in foo-over-UDP and not, beside TCP without
  underpass lab police            # a container's packets, policed and shaped: packets a second, exact rates
  underpass lab all               # the five experiments, and docs/experiments.md, which tells of them
  underpass lab soak              # an hour of traffic, changes and faults, after which everything is to be right")]
pub struct Args {
    #[command(subcommand)]
    network: Network,
}

#[derive(Debug, clap::Subcommand)]
enum Network {
    /// An L3VPN of two tenants with the same addresses: PE1, P, PE2 and four hosts
    L3vpn {
        /// Leave it running until Ctrl-C; its namespaces get names for `ip netns exec`
        #[arg(long)]
        keep: bool,
    },
    /// Paths of one and two labels and next hops, beside plain forwarding: UDP requests and responses
    Mpls(mpls::Args),
    /// TCP through GRE, IPIP and SIT, in foo-over-UDP with and without a checksum, and without it
    Fou(fou::Args),
    /// What comes in limited by police, by ifb and HTB, by HTB alone: packets a second, and how exact the rates are
    Police(police::Args),
    /// The five experiments one after the other, and a page with their tables and plots, beside the documents' figures
    All(all::Args),
    /// Traffic of every kind while the configuration changes and things break: memory, queues, sums are to be right
    Soak(soak::Args),
}

/// Builds the network that is asked for.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if !testbed::permitted() {
        bail!("a lab makes network namespaces and devices: run it as root");
    }
    let program = env::current_exe().context("cannot find this program itself")?;
    match &args.network {
        Network::L3vpn { keep } => l3vpn::show(&program, *keep)?,
        Network::Mpls(args) => mpls::measure(&program, args)?,
        Network::Fou(args) => fou::measure(&program, args)?,
        Network::Police(args) => police::measure(&program, args)?,
        Network::All(args) => all::write(&program, args)?,
        Network::Soak(args) => soak::run(&program, args)?,
    }
    Ok(ExitCode::SUCCESS)
}
