//! `underpass run`: the router as a daemon.

use std::{
    env, ffi::OsString, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, thread, time::Duration,
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use nix::{
    sys::signal::{SigSet, Signal},
    unistd::{Group, geteuid},
};
use underpass_daemon::{
    fpm::{self, Fpm},
    launch, limits,
    live::{self, Driver, FastPath, KernelFilters},
    offline_daemon,
    persist::StateDirectory,
    port_spec::PortSpec,
    startup::Startup,
};

use crate::fleet::{self, Fleet, names::Watch};

/// Run the router of this network namespace, beside its kernel.
///
/// It attaches to every Ethernet device of the namespace, or to those that --attach names, also to devices that come
/// later, and forwards packets in the kernel's place. Configure it with `underpass exec`. With --offline it has virtual ports
/// only, does not use the kernel's network, and needs no privileges. It prints a line on standard output when
/// it is ready. On SIGTERM or SIGINT it gives everything back and exits.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass run
  underpass run --attach eth0 --attach eth1 --workers 2 --metrics 127.0.0.1:9117
  underpass exec -- ip -6 route add fc00:1::/64 encap seg6 mode encap segs fc00:2::1 dev eth1
  underpass run --config /etc/underpass/router.conf
  underpass run --state /var/lib/underpass
  underpass run --all --state /var/lib/underpass   # a router in each namespace of `ip netns`
  underpass run --offline --port p0 --port p1
  underpass run --offline --socket /tmp/lab.sock --port wan,mac=02:00:00:00:00:01")]
pub struct Args {
    /// Use virtual ports only, no kernel interfaces
    #[arg(long)]
    offline: bool,
    /// Keep a router in every network namespace that `ip netns` names, now or later, instead of in this one
    ///
    /// Each is a process of its own, with the options given here. It ends when the name is deleted, and is started anew
    /// if it ends by itself.
    #[arg(long, conflicts_with_all = ["offline", "attach", "metrics", "socket", "config", "fpm"])]
    all: bool,
    /// Attach this device; repeatable [default: every Ethernet device]
    #[arg(long, value_name = "DEV", conflicts_with = "offline")]
    attach: Vec<String>,
    /// Number of worker threads [default: one per CPU]
    #[arg(long, value_name = "N", conflicts_with = "offline", value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,
    /// How to attach devices
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "offline")]
    driver: DriverName,
    /// Let the kernel forward by itself what it can, by BPF programs (needs Linux 6.9)
    #[arg(long, value_enum, value_name = "MODE", default_value = "auto", conflicts_with = "offline")]
    fast_path: FastPathMode,
    /// What to do with devices whose packets the kernel filters, shapes or translates: `tc`, tcx, nftables, iptables
    ///
    /// Packets that the router forwards do not pass these.
    #[arg(long, value_enum, value_name = "POLICY", default_value = "warn", conflicts_with = "offline")]
    kernel_filters: FiltersPolicy,
    /// Make bridges here and not in the kernel: frames between their ports do not pass the kernel
    ///
    /// It holds for `ip link add … type bridge` under `underpass exec` and in the configuration. Bridges that the kernel has
    /// stay its own. Where the kernel has no bridges, those of the router are always its own.
    #[arg(long, conflicts_with = "offline")]
    own_bridges: bool,
    /// Serve Prometheus metrics and the web page at this address
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "offline")]
    metrics: Option<SocketAddr>,
    /// Log level (logs go to standard error)
    #[arg(long, value_enum, value_name = "LEVEL")]
    log: Option<Level>,
    /// Path of the control socket [default: /run/underpass/netns-INODE.sock of the namespace; with
    /// --offline $XDG_RUNTIME_DIR/underpass/offline.sock, else /run/underpass/offline.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Let members of this group configure the router too
    #[arg(long, value_name = "GROUP", conflicts_with = "offline")]
    socket_group: Option<String>,
    /// Run the ip, tc and sysctl lines of FILE before being ready; the first that fails ends the router
    ///
    /// The syntax is that of `replay --config`. Not run if --state has kept a configuration.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Keep the configuration in DIR, and restore it at the start
    ///
    /// DIR/state.conf is up to date about a second after a change, and has the lines that `underpass save` prints. A line
    /// that fails when it is restored is logged and added to DIR/not-restored.conf; the others are run. With --all each
    /// router has a directory of its namespace's name in DIR.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Add a port; repeatable
    #[arg(long = "port", value_name = "NAME[,mac=XX:XX:XX:XX:XX:XX]", requires = "offline")]
    ports: Vec<PortSpec>,
    /// Let FRR's zebra (-M dplane_fpm_nl) program the router at this address [default port: 2620]
    ///
    /// Anyone who can connect can change every route: use a loopback address.
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = fpm::parse_address)]
    fpm: Option<SocketAddr>,
    /// How long to keep routes that FRR has not re-sent after reconnecting
    #[arg(long, value_name = "SECONDS", default_value_t = fpm::GRACE.as_secs(), requires = "fpm")]
    fpm_grace: u64,
    /// Take requests for what Linux has no netlink numbers for yet: the numbers may change
    ///
    /// SIDs with the REPLACE-CSID flavour (RFC 9800), bit 31 of SEG6_LOCAL_FLV_OPERATION; of End.DX2V, End.DT2U and End.DT2M
    /// (RFC 8986), SEG6_LOCAL_ACTION 0x80000016 to 0x80000018; `ip link add … type srv6l2`. `ip` has no word for the SIDs: see
    /// `underpass sid`.
    #[arg(long)]
    experimental: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DriverName {
    /// The best choice for each device
    Auto,
    /// AF_XDP
    Xdp,
    /// AF_PACKET
    Packet,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FastPathMode {
    /// Where it works
    Auto,
    /// Never: workers carry every packet
    Off,
    /// At tcx, or do not start
    Tcx,
    /// In the drivers of devices too where they run programs, at tcx else; or do not start. A host on this machine, behind a
    /// veth pair, must not leave its checksums to the device: ethtool -K DEV tx off
    Xdp,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FiltersPolicy {
    /// Attach them, and log what is bypassed
    Warn,
    /// Leave them to the kernel
    Leave,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Args {
    /// What a router needs that was not permitted something.
    pub fn needs(&self) -> Option<&'static str> {
        (!self.offline).then_some(
            "a router beside the kernel needs root, or NET_ADMIN, NET_RAW, BPF, PERFMON and IPC_LOCK and a directory \
             /run/underpass that it may write; `underpass run --offline` needs neither",
        )
    }

    /// What is to be said on standard error.
    pub fn log_level(&self) -> tracing::Level {
        match (self.log, self.offline) {
            (Some(Level::Error), _) => tracing::Level::ERROR,
            (Some(Level::Warn), _) | (None, true) => tracing::Level::WARN,
            (Some(Level::Info), _) | (None, false) => tracing::Level::INFO,
            (Some(Level::Debug), _) => tracing::Level::DEBUG,
            (Some(Level::Trace), _) => tracing::Level::TRACE,
        }
    }
}

/// Runs until a signal ends it.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    // Whatever `--config` names may take its time, and a signal ends that.
    let startup = if args.all { None } else { Some(startup(args)?) };
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    // In every thread, so that only the one that waits for them gets them.
    signals.thread_block()?;
    limits::raise_descriptors();
    match startup {
        None => all(args, &signals)?,
        Some(startup) if args.offline => offline(args, startup, signals)?,
        Some((startup, state)) => {
            let options = live::Options { startup, ..options(args)? };
            live::run(&options, fpm(args)?, state, &signals)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn options(args: &Args) -> anyhow::Result<live::Options> {
    let group = |name: &String| match Group::from_name(name)? {
        Some(group) => Ok(group.gid.as_raw()),
        None => name.parse().map_err(|_| anyhow::anyhow!("there is no group {name}")),
    };
    Ok(live::Options {
        attach: args.attach.clone(),
        workers: args.workers.map(usize::from),
        driver: match args.driver {
            DriverName::Auto => Driver::Auto,
            DriverName::Xdp => Driver::Xdp,
            DriverName::Packet => Driver::Packet,
        },
        fast_path: match args.fast_path {
            FastPathMode::Auto => FastPath::Auto,
            FastPathMode::Off => FastPath::Off,
            FastPathMode::Tcx => FastPath::Tcx,
            FastPathMode::Xdp => FastPath::Xdp,
        },
        kernel_filters: match args.kernel_filters {
            FiltersPolicy::Warn => KernelFilters::Warn,
            FiltersPolicy::Leave => KernelFilters::Leave,
        },
        own_bridges: args.own_bridges,
        metrics: args.metrics,
        socket: args.socket.clone(),
        group: args.socket_group.as_ref().map(group).transpose()?,
        startup: None,
        experimental: args.experimental,
    })
}

/// Keeps a router in every network namespace that has a name.
fn all(args: &Args, signals: &SigSet) -> anyhow::Result<()> {
    if !geteuid().is_root() {
        bail!("--all starts a router in each network namespace, which only root may enter: run it as root");
    }
    let value = |option: &str, value: Option<String>| -> Vec<OsString> {
        value.map_or_else(Vec::new, |value| vec![option.into(), value.into()])
    };
    let arguments = [
        value("--workers", args.workers.map(|workers| workers.to_string())),
        value("--driver", name_of(&args.driver)),
        value("--fast-path", name_of(&args.fast_path)),
        value("--kernel-filters", name_of(&args.kernel_filters)),
        args.experimental.then(|| "--experimental".into()).into_iter().collect(),
        args.own_bridges.then(|| "--own-bridges".into()).into_iter().collect(),
        value("--log", args.log.as_ref().and_then(name_of)),
        value("--socket-group", args.socket_group.clone()),
    ];
    let program = env::current_exe().context("this program's own path")?;
    let state = args.state.clone();
    let options = fleet::Options { program, arguments: arguments.concat(), state, restart: true };
    let fleet = Arc::new(Fleet::new(options));
    let watch = Watch::new().context("watching the names of network namespaces")?;
    let follower = Arc::clone(&fleet);
    thread::Builder::new().name("names".to_owned()).spawn(move || {
        loop {
            follower.follow();
            if let Err(error) = watch.wait() {
                return tracing::error!("watching the names of network namespaces: {error}");
            }
        }
    })?;
    signals.wait()?;
    fleet.end();
    Ok(())
}

/// What a value is called on the command line.
fn name_of(value: &impl ValueEnum) -> Option<String> {
    Some(value.to_possible_value()?.get_name().to_owned())
}

/// The listener for FRR, if one is asked for.
fn fpm(args: &Args) -> anyhow::Result<Option<Fpm>> {
    let Some(address) = args.fpm else { return Ok(None) };
    let fpm = Fpm::listen(address, !args.offline, Duration::from_secs(args.fpm_grace));
    fpm.map(Some).with_context(|| format!("cannot listen for FRR at {address}"))
}

fn offline(args: &Args, (startup, state): Begin, signals: SigSet) -> anyhow::Result<()> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => launch::runtime_directory().join("offline.sock"),
    };
    let options = offline_daemon::Options {
        ports: &args.ports,
        socket: &socket,
        startup,
        experimental: args.experimental,
        state,
    };
    offline_daemon::run(options, fpm(args)?, signals)
}

/// The lines to begin with, and where the state is kept.
type Begin = (Option<Startup>, Option<StateDirectory>);

/// What is kept comes before the lines of `--config`.
fn startup(args: &Args) -> anyhow::Result<Begin> {
    let state = args.state.as_deref().map(StateDirectory::open).transpose()?;
    if let Some(kept) = state.as_ref().map(StateDirectory::startup).transpose()?.flatten() {
        if let Some(config) = &args.config {
            tracing::info!("{} is kept: {} is not run", kept.file.display(), config.display());
        }
        return Ok((Some(kept), state));
    }
    Ok((args.config.as_deref().map(|file| Startup::read(file, false)).transpose()?, state))
}
