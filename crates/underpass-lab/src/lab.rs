//! `underpass lab`: a network of hosts and routers on this machine, to look at.

mod all;
mod fou;
mod l3vpn;
mod meter;
mod mpls;
mod police;
mod run;
mod run_until_signal;
mod soak;
mod stream;

use std::{env, process::ExitCode};

use anyhow::{Context, bail};
use underpass_daemon::testbed;

/// Build a network of hosts and routers in network namespaces, test it, and remove it.
///
/// Needs root. The routers run `underpass run` and are configured by the shell scripts of examples/ through
/// `underpass exec`. No process, namespace or device is left behind, however the program ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass lab l3vpn             # an L3VPN of two tenants over SRv6, checked step by step
  underpass lab l3vpn --keep      # the same, left running until Ctrl-C
  underpass lab mpls              # label-switched paths against plain forwarding: transactions/s
  underpass lab fou               # TCP through tunnels, with and without foo-over-UDP
  underpass lab police            # a container's packets, policed and shaped: packets/s, accuracy
  underpass lab all               # all five experiments; writes docs/experiments.md
  underpass lab run lab.yaml      # the network of a file, and its checks
  underpass lab evpn              # EVPN over VXLAN, then the same over SRv6, configured by FRR
  underpass lab scale             # 64 routers with FRR: time and memory
  underpass lab soak              # an hour of traffic, changes and faults, then checks")]
pub struct Args {
    #[command(subcommand)]
    network: Network,
}

#[derive(Debug, clap::Subcommand)]
enum Network {
    /// An L3VPN of two tenants with the same addresses: PE1, P, PE2 and four hosts
    L3vpn {
        /// Keep it running until Ctrl-C; name its namespaces for `ip netns exec`
        #[arg(long)]
        keep: bool,
    },
    /// UDP request/response over label-switched paths of one and two labels and next hops, and over plain forwarding
    Mpls(mpls::Args),
    /// TCP through GRE, IPIP and SIT: plain, and in foo-over-UDP with and without a checksum
    Fou(fou::Args),
    /// Ingress limits by police, by ifb with HTB, and by HTB alone: packets per second, and how exact the rates are
    Police(police::Args),
    /// Any network: hosts and routers, links, FRR and checks, as a file describes them
    Run(run::Args),
    /// Bridged and routed tenants over VXLAN (EVPN), then over SRv6: two leaves, a spine, FRR, a host that moves
    Evpn(run::EvpnArgs),
    /// Many routers with FRR's L3VPN over SRv6: time until all have all routes, and memory
    Scale(run::ScaleArgs),
    /// Run all five experiments and write a page with their tables and plots beside the published figures
    All(all::Args),
    /// Run mixed traffic, changes and faults, then check memory, queues and counters
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
        Network::Run(args) => run::run(&program, args)?,
        Network::Evpn(args) => run::evpn(&program, args)?,
        Network::Scale(args) => run::scale(&program, args)?,
        Network::All(args) => all::write(&program, args)?,
        Network::Soak(args) => soak::run(&program, args)?,
    }
    Ok(ExitCode::SUCCESS)
}
