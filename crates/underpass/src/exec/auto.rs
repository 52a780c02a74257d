//! `underpass exec --auto`: routers in the network namespaces that a program makes.
//!
//! This process starts and ends the routers. The program runs under another `underpass exec`; the preload library says
//! which namespaces get names, and asks before it opens a socket whether the namespace's router is ready.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::Context;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use underpass_daemon::{
    protocol::{AUTO_VARIABLE, RUNTIME, SOCKET_VARIABLE},
    supervise,
};

use crate::fleet::{Fleet, Options, names::Watch};

/// Starts the program and returns when it and the routers have ended.
pub fn main(args: &super::Args) -> anyhow::Result<ExitCode> {
    if env::var_os(SOCKET_VARIABLE).is_some_and(|path| !path.is_empty()) {
        anyhow::bail!("--auto: {SOCKET_VARIABLE} names one router for all namespaces: unset it");
    }
    if !nix::unistd::geteuid().is_root() {
        anyhow::bail!("--auto: only root may make network namespaces and start routers there");
    }
    // Before there are other threads.
    let signals = supervise::hold_signals()?;
    let program = env::current_exe().context("this program's own path")?;
    let routers = ["--log", "error"].map(Into::into).to_vec();
    let options = Options { program: program.clone(), arguments: routers, state: None, restart: false };
    let fleet = Arc::new(Fleet::new(options));
    let keeper = Keeper::listen()?;
    let watch = Watch::new().context("watching the names of network namespaces")?;
    {
        let fleet = Arc::clone(&fleet);
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            while watch.wait().is_ok() {
                fleet.tidy();
            }
        })?;
    }
    keeper.serve(&fleet)?;
    let mut command = Command::new(program);
    command.arg("exec");
    command.args(args.seccomp.then_some("--seccomp")).args(args.no_seccomp.then_some("--no-seccomp"));
    command.arg("--").args(&args.command).env(AUTO_VARIABLE, &keeper.path);
    let ending = signals.attend(command);
    fleet.end();
    drop(keeper);
    ending?.repeat()
}

/// Where programs say which namespaces they make, and ask for the routers of those. Dropping it removes the file.
struct Keeper {
    listener: UnixListener,
    path: PathBuf,
}

impl Keeper {
    fn listen() -> anyhow::Result<Self> {
        fs::create_dir_all(RUNTIME).context(RUNTIME)?;
        let path = Path::new(RUNTIME).join(format!("auto-{}.sock", std::process::id()));
        // One that was killed may have had this number.
        let _ = fs::remove_file(&path);
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        bind(listener.as_raw_fd(), &UnixAddr::new(&path)?).with_context(|| path.display().to_string())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        listen(&listener, Backlog::MAXCONN)?;
        Ok(Self { listener: UnixListener::from(listener), path })
    }

    /// Answers from now on, each question in a thread of its own.
    fn serve(&self, fleet: &Arc<Fleet>) -> io::Result<()> {
        let (listener, fleet) = (self.listener.try_clone()?, Arc::clone(fleet));
        thread::Builder::new().name("keeper".to_owned()).spawn(move || {
            for connection in listener.incoming() {
                let fleet = Arc::clone(&fleet);
                let answered = connection.and_then(|connection| {
                    let answer = move || drop(answer(connection, &fleet));
                    thread::Builder::new().name("answer".to_owned()).spawn(answer)
                });
                if let Err(error) = answered {
                    // Who asks goes on without an answer.
                    eprintln!("underpass exec --auto: {error}");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        })?;
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Answers a question: see [`AUTO_VARIABLE`].
fn answer(mut connection: UnixStream, fleet: &Fleet) -> io::Result<()> {
    let mut question = [0; 8 + libc::PATH_MAX as usize];
    let length = connection.read(&mut question)?;
    let Some((namespace, path)) = question.get(..length).and_then(|text| text.split_first_chunk()) else {
        return Ok(());
    };
    fleet.tidy();
    let ready = match path {
        [] => fleet.settle(u64::from_ne_bytes(*namespace)),
        path => {
            fleet.start(Path::new(OsStr::from_bytes(path)));
            Ok(())
        }
    };
    let errno = ready.map_or(libc::ECONNREFUSED, |()| 0);
    connection.write_all(&errno.to_ne_bytes())
}
