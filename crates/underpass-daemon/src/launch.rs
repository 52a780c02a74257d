//! How a program is started with its netlink sockets led to a router: where the router's socket is,
//! where the preload library is, and the environment that joins them.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::MetadataExt,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, connect, recv, send, shutdown,
        socket, socketpair,
    },
};
use std::os::fd::AsRawFd;

use crate::protocol::{AUTO_VARIABLE, RUNTIME, RUNTIME_VARIABLE, SOCKET_VARIABLE, socket_name};

/// File name of the preload library.
const LIBRARY: &str = "libunderpass_preload.so";

/// Why a program cannot be led to a router; each says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Nothing listens there.
    #[error(
        "no router at {}: start one with `underpass run --offline --socket {}`, or name another with --socket",
        .0.display(), .0.display()
    )]
    NoRouter(PathBuf),
    /// Nothing listens where a router is looked for by default.
    #[error(
        "no router in this network namespace (nothing listens at {}), nor one that is offline (at {}): start one \
         with `underpass run` or `underpass run --offline`, or name another's socket with --socket",
        here.display(), offline.display()
    )]
    NoneHere {
        /// Where the namespace's would listen.
        here: PathBuf,
        /// Where an offline one would listen.
        offline: PathBuf,
    },
    /// Something is there, but it cannot be used.
    #[error("cannot reach the router at {}: {error}{}", path.display(), permission(error))]
    Unreachable {
        /// The socket's path.
        path: PathBuf,
        /// What connect(2) said.
        error: io::Error,
    },
    /// The library is in none of the places where it may be.
    #[error(
        "{LIBRARY} is missing; looked in {}: build it with `cargo build -p underpass -p underpass-preload`, \
         or install it beside this program",
        list(.0)
    )]
    NoLibrary(Vec<PathBuf>),
    /// The dynamic loader splits LD_PRELOAD at blanks and colons.
    #[error("{}: LD_PRELOAD cannot name a path with a blank or a colon: move the program elsewhere", .0.display())]
    UnusablePath(PathBuf),
    /// The program's own path is not known.
    #[error("cannot find this program's own directory: {0}")]
    NoExecutable(io::Error),
}

fn list(directories: &[PathBuf]) -> String {
    directories.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Whose the socket is, if it may not be used.
pub(crate) fn permission(error: &io::Error) -> &'static str {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return "";
    }
    ": only root, and members of the group of `underpass run --socket-group`, may use it"
}

/// Which router a program is led to unless configured otherwise: that of `$UNDERPASS_SOCKET`, which `exec` sets for
/// what it starts; else that of the caller's network namespace; else the one at `offline.sock` in
/// [`runtime_directory`]. `None`: by namespace.
///
/// # Errors
/// [`LaunchError::NoneHere`] if there is none of them, [`LaunchError::Unreachable`] if the one there is cannot be
/// reached.
pub fn default_socket() -> Result<Option<PathBuf>, LaunchError> {
    if let Some(path) = env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(Some(path.into()));
    }
    let here = namespace_socket()
        .map_err(|error| LaunchError::Unreachable { path: "/proc/thread-self/ns/net".into(), error })?;
    match check_router(&here) {
        Ok(()) => return Ok(None),
        Err(LaunchError::NoRouter(_)) => {}
        Err(error) => return Err(error),
    }
    let offline = runtime_directory().join("offline.sock");
    match check_router(&offline) {
        Ok(()) => Ok(Some(offline)),
        Err(LaunchError::NoRouter(_)) => Err(LaunchError::NoneHere { here, offline }),
        Err(error) => Err(error),
    }
}

/// Which router is asked: that at `named`, else that of [`default_socket`].
///
/// # Errors
/// As [`default_socket`].
pub fn chosen_socket(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    Ok(match named {
        Some(named) => named.to_owned(),
        None => match default_socket()? {
            Some(socket) => socket,
            None => namespace_socket()?,
        },
    })
}

/// Where the daemon of the calling thread's network namespace listens, in [`RUNTIME`].
///
/// # Errors
/// What stat(2) says of `/proc/thread-self/ns/net`.
pub fn namespace_socket() -> io::Result<PathBuf> {
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(Path::new(RUNTIME).join(socket_name(namespace)))
}

/// `$XDG_RUNTIME_DIR/underpass`, or `/run/underpass` where there is no such variable.
pub fn runtime_directory() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory).join("underpass"),
        _ => PathBuf::from("/run/underpass"),
    }
}

/// Whether a router listens at `path`.
///
/// # Errors
/// [`LaunchError::NoRouter`] where nothing listens, [`LaunchError::Unreachable`] where connecting fails
/// otherwise.
pub fn check_router(path: &Path) -> Result<(), LaunchError> {
    let attempt = || {
        let probe = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        connect(probe.as_raw_fd(), &UnixAddr::new(path)?)
    };
    attempt().map_err(|errno| match errno {
        Errno::ENOENT | Errno::ECONNREFUSED => LaunchError::NoRouter(path.to_owned()),
        _ => LaunchError::Unreachable { path: path.to_owned(), error: errno.into() },
    })
}

/// Waits until the router of a network namespace is ready, if `underpass exec --auto` starts one there and this process
/// runs under it.
///
/// # Errors
/// There should be one, and it could not be started.
pub fn settle(namespace: u64) -> Result<(), Errno> {
    let Some(path) = env::var_os(AUTO_VARIABLE).filter(|path| !path.is_empty()) else { return Ok(()) };
    let keeper = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    // Where it has ended, there are no routers of its own any more.
    if connect(keeper.as_raw_fd(), &UnixAddr::new(path.as_os_str())?).is_err() {
        return Ok(());
    }
    send(keeper.as_raw_fd(), &namespace.to_ne_bytes(), MsgFlags::MSG_NOSIGNAL)?;
    let mut answer = [0; 4];
    loop {
        return match recv(keeper.as_raw_fd(), &mut answer, MsgFlags::empty()) {
            Err(Errno::EINTR) => continue,
            Ok(4) if answer != [0; 4] => Err(Errno::from_raw(i32::from_ne_bytes(answer))),
            _ => Ok(()),
        };
    }
}

/// Finds the preload library: beside the program, in `deps/` below or beside it (a build directory), or in
/// `../lib/underpass` (an installed one).
///
/// # Errors
/// [`LaunchError::NoLibrary`] lists where it was looked for; [`LaunchError::UnusablePath`].
pub fn find_library() -> Result<PathBuf, LaunchError> {
    let program = env::current_exe().map_err(LaunchError::NoExecutable)?;
    let here = program.parent().unwrap_or(Path::new("/"));
    let up = here.parent().unwrap_or(here);
    let places = vec![here.to_owned(), here.join("deps"), up.join("lib/underpass")];
    // A build directory may hold two, of which cargo has renewed one.
    let found = places.iter().map(|place| place.join(LIBRARY));
    let found = found.filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)));
    let Some((_, library)) = found.max() else { return Err(LaunchError::NoLibrary(places)) };
    if library.as_os_str().as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || *byte == b':') {
        return Err(LaunchError::UnusablePath(library));
    }
    Ok(library)
}

/// Which router the netlink sockets of a program lead to.
#[derive(Debug, Clone, Copy)]
pub enum Lead<'a> {
    /// The one at this socket, whatever namespace the program is in.
    To(&'a Path),
    /// That of the network namespace which the program is in when it opens a socket; the kernel where there is
    /// none.
    ByNamespace,
}

/// Sets the environment of `command` so that its netlink sockets, and those of what it starts, lead to a
/// router. What LD_PRELOAD held before stays, after our library.
///
/// # Errors
/// As [`find_library`]; [`LaunchError::Unreachable`] if the socket is relative and the current directory
/// is gone.
pub fn carry_netlink(command: &mut Command, lead: Lead<'_>) -> Result<(), LaunchError> {
    let library = find_library()?;
    let mut preload = OsString::from(&library);
    let others = other_libraries(&library);
    if !others.is_empty() {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload);
    match lead {
        Lead::To(socket) => {
            // The program may change its directory before it opens a socket.
            let socket = std::path::absolute(socket)
                .map_err(|error| LaunchError::Unreachable { path: socket.to_owned(), error })?;
            command.env(SOCKET_VARIABLE, socket).env_remove(RUNTIME_VARIABLE);
        }
        Lead::ByNamespace => {
            command.env(RUNTIME_VARIABLE, RUNTIME).env_remove(SOCKET_VARIABLE);
        }
    }
    Ok(())
}

/// A command whose netlink sockets lead to the router at a socket.
///
/// # Errors
/// As [`carry_netlink`].
pub fn command(socket: &Path, program: impl AsRef<OsStr>) -> Result<Command, LaunchError> {
    let mut command = Command::new(program);
    carry_netlink(&mut command, Lead::To(socket))?;
    Ok(command)
}

/// Runs a program such as `ip` with these arguments against the router at a socket, without input, and waits for it.
///
/// # Errors
/// As [`command`], and if the program cannot be started; a program that fails is no error here.
pub fn output<S: AsRef<OsStr>>(socket: &Path, words: &[S]) -> io::Result<Output> {
    let empty = || io::Error::new(io::ErrorKind::InvalidInput, "an empty line");
    let (program, arguments) = words.split_first().ok_or_else(empty)?;
    command(socket, program).map_err(io::Error::other)?.args(arguments).stdin(Stdio::null()).output()
}

/// As [`output`], with this input, and without a terminal where the program could ask instead.
///
/// # Errors
/// As [`output`]; setsid(1) is needed.
pub fn output_of<S: AsRef<OsStr>>(socket: &Path, words: &[S], input: &str) -> io::Result<Output> {
    let mut command = command(socket, "setsid").map_err(io::Error::other)?;
    command.arg("-w").args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let stdin = child.stdin.take();
    thread::scope(|scope| {
        // A program may write before it has read it all, or end and say why it did.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    })
}

/// As [`output`], with inputs that the program reads one by one: also, how many it has read.
///
/// # Errors
/// As [`output`].
pub fn output_of_each<S: AsRef<OsStr>>(
    path: &Path,
    words: &[S],
    inputs: impl Iterator<Item = String> + Send,
) -> io::Result<(Output, usize)> {
    let empty = || io::Error::new(io::ErrorKind::InvalidInput, "an empty line");
    let (program, arguments) = words.split_first().ok_or_else(empty)?;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let mut command = command(path, program).map_err(io::Error::other)?;
    command.args(arguments).stdin(theirs.try_clone()?).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn()?;
    drop(command);
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut written = 0;
            for input in inputs {
                if send(ours.as_raw_fd(), input.as_bytes(), MsgFlags::MSG_NOSIGNAL).is_err() {
                    break;
                }
                written += 1;
            }
            written
        });
        let output = child.wait_with_output();
        // Nobody reads any more; what is left was not read.
        let _ = shutdown(theirs.as_raw_fd(), Shutdown::Read);
        let written = writer.join().unwrap_or(0);
        let mut byte = [0];
        let unread = std::iter::from_fn(|| {
            recv(theirs.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT).ok().filter(|read| *read > 0)
        });
        Ok((output?, written - unread.count()))
    })
}

/// What LD_PRELOAD names besides `library`.
fn other_libraries(library: &Path) -> OsString {
    let words = env::var_os("LD_PRELOAD").unwrap_or_default();
    let words = words.as_bytes().split(|byte| *byte == b':' || byte.is_ascii_whitespace());
    let others = words.filter(|word| !word.is_empty() && *word != library.as_os_str().as_bytes());
    OsString::from_vec(others.collect::<Vec<_>>().join(&b':'))
}

/// Starts this program anew without the preload library, if it was loaded: a router started from a shell under
/// `underpass exec` must reach the kernel itself. Returns where there is nothing to do.
///
/// # Errors
/// What execve(2) says.
pub fn shed_library() -> io::Result<()> {
    let loaded = |word: &[u8]| Path::new(OsStr::from_bytes(word)).ends_with(LIBRARY);
    let words = env::var_os("LD_PRELOAD").unwrap_or_default();
    let words = words.as_bytes().split(|byte| *byte == b':' || byte.is_ascii_whitespace());
    let Some(library) = words.clone().find(|word| loaded(word)) else { return Ok(()) };
    let others = other_libraries(Path::new(OsStr::from_bytes(library)));
    let mut command = Command::new(env::current_exe()?);
    if let Some(name) = env::args_os().next() {
        command.arg0(name);
    }
    command.args(env::args_os().skip(1)).env("LD_PRELOAD", others);
    Err(command.exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_where_nothing_listens_says_what_to_do() {
        let error = check_router(Path::new("/nonexistent/underpass.sock")).unwrap_err().to_string();
        assert!(error.contains("underpass run --offline --socket /nonexistent/underpass.sock"), "{error}");
    }

    #[test]
    fn the_environment_names_an_absolute_socket() {
        let mut command = Command::new("true");
        carry_netlink(&mut command, Lead::To(Path::new("some.sock"))).unwrap();
        let value = |name: &str| {
            command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value).unwrap().to_owned()
        };
        assert!(Path::new(&value(SOCKET_VARIABLE)).is_absolute());
        assert!(value("LD_PRELOAD").to_string_lossy().contains(LIBRARY));
    }
}
