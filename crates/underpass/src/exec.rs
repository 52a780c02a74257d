//! `underpass exec`: runs a program whose netlink sockets lead to the router.

use std::{
    ffi::OsString,
    io::ErrorKind,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use underpass_daemon::launch::{self, LaunchError, Lead};

/// Run a program that talks to the router instead of the kernel.
///
/// A small library in LD_PRELOAD connects the rtnetlink and generic-netlink sockets of the program, and of
/// everything it starts, to the router. Statically linked and set-user-ID programs do not load the library
/// and see the kernel.
///
/// The exit status is the program's own; 127 if it is not found, 126 if it cannot be run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass exec -- ip -6 route add fc00:1::1/128 encap seg6local action End count dev p0
  underpass exec -- ip -6 -s route show
  underpass exec -- ip -n blue route show   # the router of namespace blue, else its kernel
  underpass exec --socket /tmp/lab.sock -- sh ./configure-lab.sh
  underpass exec -- bash          # a shell in which every ip and tc talks to the router")]
pub struct Args {
    /// The socket of one router for CMD, whatever network namespace it enters [default: $UNDERPASS_SOCKET,
    /// else the router of the namespace that CMD is in when it opens a netlink socket, else
    /// $XDG_RUNTIME_DIR/underpass/offline.sock or /run/underpass/offline.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Becomes the program; returns only if that fails.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = args.command.split_first() else {
        anyhow::bail!("no command given");
    };
    let mut command = Command::new(program);
    command.args(arguments);
    match &args.socket {
        Some(socket) => lead_to(&mut command, socket)?,
        None => match launch::default_socket()? {
            Some(socket) => lead_to(&mut command, &socket)?,
            None => launch::carry_netlink(&mut command, Lead::ByNamespace)?,
        },
    }
    let error = command.exec();
    let (why, status) = match error.kind() {
        ErrorKind::NotFound => ("command not found".to_owned(), 127),
        _ => (error.to_string(), 126),
    };
    eprintln!("underpass exec: {}: {why}", program.to_string_lossy());
    Ok(ExitCode::from(status))
}

fn lead_to(command: &mut Command, socket: &Path) -> Result<(), LaunchError> {
    launch::check_router(socket)?;
    launch::carry_netlink(command, Lead::To(socket))
}
