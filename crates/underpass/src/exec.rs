//! `underpass exec`: runs a program whose netlink sockets lead to the router.

mod auto;

use std::{
    env,
    ffi::OsString,
    io::ErrorKind,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use underpass_daemon::{
    launch::{self, LaunchError, Lead},
    protocol::{AUTO_VARIABLE, RUNTIME},
    supervise::{self, Routers, SuperviseError, program::Kind},
};

/// Run a program that talks to the router instead of the kernel.
///
/// A small library in LD_PRELOAD connects the rtnetlink and generic-netlink sockets of the program, and of
/// everything it starts, to the router. Static programs and those in Go do not load it: where CMD is one, it is
/// supervised by seccomp user notification (Linux 5.19), and so is everything it starts. With --follow a program is
/// supervised that loads the library itself, for what it starts that does not: static programs, programs in Go,
/// `env -i`, and as root `sudo`.
///
/// With --auto, `ip netns add NAME` starts a router in the new network namespace, and `ip netns del NAME` ends it. It
/// attaches every Ethernet device that comes into the namespace. The routers end with CMD.
///
/// The exit status is the program's own; 127 if it is not found, 126 if it cannot be run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass exec -- ip -6 route add fc00:1::1/128 encap seg6local action End count dev p0
  underpass exec -- ip -6 -s route show
  underpass exec -- ip -n blue route show   # the router of namespace blue, else its kernel
  underpass exec --socket /tmp/lab.sock -- sh ./configure-lab.sh
  underpass exec -- bash          # a shell in which every ip and tc talks to the router
  underpass exec -- busybox ip route          # static: supervised
  underpass exec -- /opt/cni/bin/ptp < conf   # Go: supervised
  underpass exec --follow -- bash             # what the shell starts is reached, whatever it is
  underpass exec --follow -- env -i /usr/sbin/ip route
  underpass exec --auto -- sh ./build-namespaces.sh   # routers in all namespaces that it makes
  underpass exec --no-seccomp -- busybox ip route   # not supervised: shows the kernel's routes")]
pub struct Args {
    /// The socket of one router for CMD, whatever network namespace it enters [default: $UNDERPASS_SOCKET,
    /// else the router of the namespace that CMD is in when it opens a netlink socket, else
    /// $XDG_RUNTIME_DIR/underpass/offline.sock or /run/underpass/offline.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Supervise CMD by seccomp, also if it loads the library, and everything it starts
    #[arg(long, visible_alias = "follow", conflicts_with = "no_seccomp")]
    seccomp: bool,
    /// Never supervise: what does not load the library talks to the kernel
    #[arg(long)]
    no_seccomp: bool,
    /// Start a router in each network namespace that CMD makes with `ip netns add`, and end it with the namespace
    #[arg(long, conflicts_with = "socket")]
    auto: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Becomes the program, or supervises it until it ends; returns only if it cannot be started.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if args.auto {
        return auto::main(args);
    }
    let Some((program, arguments)) = args.command.split_first() else {
        anyhow::bail!("no command given");
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let socket = match &args.socket {
        Some(socket) => Some(socket.clone()),
        // Under --auto there are routers in other namespaces, if not in this one.
        None if env::var_os(AUTO_VARIABLE).is_some() => None,
        None => launch::default_socket()?,
    };
    let routers = match socket {
        Some(socket) => Routers::One(lead_to(&mut command, &socket)?),
        None => {
            launch::carry_netlink(&mut command, Lead::ByNamespace)?;
            Routers::Runtime(RUNTIME.into())
        }
    };
    let kind = supervise::program::kind(program);
    if kind == Kind::Foreign && !args.no_seccomp {
        anyhow::bail!(
            "{}: a static program for another architecture cannot be supervised; --no-seccomp runs it, and then it \
             talks to the kernel",
            program.to_string_lossy()
        );
    }
    let error = if args.seccomp || kind.needs_supervision() && !args.no_seccomp {
        match supervise::run(command, routers) {
            Ok(ending) => ending.repeat(),
            Err(SuperviseError::Start(error)) => error,
            Err(error) => anyhow::bail!("{}: {error}", program.to_string_lossy()),
        }
    } else {
        command.exec()
    };
    let (why, status) = match error.kind() {
        ErrorKind::NotFound => ("command not found".to_owned(), 127),
        _ => (error.to_string(), 126),
    };
    eprintln!("underpass exec: {}: {why}", program.to_string_lossy());
    Ok(ExitCode::from(status))
}

/// Leads a program to the router at a socket, whose absolute path it gives.
fn lead_to(command: &mut Command, socket: &Path) -> Result<PathBuf, LaunchError> {
    launch::check_router(socket)?;
    launch::carry_netlink(command, Lead::To(socket))?;
    std::path::absolute(socket).map_err(|error| LaunchError::Unreachable { path: socket.to_owned(), error })
}
