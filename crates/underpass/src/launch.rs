//! How a program is started with its netlink sockets led to a router: where the router's socket is,
//! where the preload library is, and the environment that joins them.

use std::{
    env,
    ffi::OsString,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
};
use std::os::fd::AsRawFd;

use crate::protocol::SOCKET_VARIABLE;

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
    /// Something is there, but it cannot be used.
    #[error("cannot reach the router at {}: {error}", path.display())]
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

/// Where a router listens unless told otherwise: `$UNDERPASS_SOCKET`, which `exec` sets for what it
/// starts, else `offline.sock` in [`runtime_directory`].
pub fn default_socket() -> PathBuf {
    match env::var_os(SOCKET_VARIABLE) {
        Some(path) if !path.is_empty() => path.into(),
        _ => runtime_directory().join("offline.sock"),
    }
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
    let Some(library) = places.iter().map(|place| place.join(LIBRARY)).find(|path| path.is_file()) else {
        return Err(LaunchError::NoLibrary(places));
    };
    if library.as_os_str().as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || *byte == b':') {
        return Err(LaunchError::UnusablePath(library));
    }
    Ok(library)
}

/// Sets the environment of `command` so that its netlink sockets, and those of what it starts, lead to
/// the router at `socket`. What LD_PRELOAD held before stays, after our library.
///
/// # Errors
/// As [`find_library`]; [`LaunchError::Unreachable`] if `socket` is relative and the current directory
/// is gone.
pub fn carry_netlink(command: &mut Command, socket: &Path) -> Result<(), LaunchError> {
    let library = find_library()?;
    // The program may change its directory before it opens a socket.
    let socket = std::path::absolute(socket)
        .map_err(|error| LaunchError::Unreachable { path: socket.to_owned(), error })?;
    let mut preload = OsString::from(&library);
    if let Some(others) = env::var_os("LD_PRELOAD") {
        let ours = library.as_os_str().as_bytes();
        let mut words = others.as_bytes().split(|byte| *byte == b':' || byte.is_ascii_whitespace());
        if words.any(|word| word == ours) {
            preload = others;
        } else if !others.is_empty() {
            preload.push(":");
            preload.push(others);
        }
    }
    command.env("LD_PRELOAD", preload).env(SOCKET_VARIABLE, socket);
    Ok(())
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
        carry_netlink(&mut command, Path::new("some.sock")).unwrap();
        let value = |name: &str| {
            command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value).unwrap().to_owned()
        };
        assert!(Path::new(&value(SOCKET_VARIABLE)).is_absolute());
        assert!(value("LD_PRELOAD").to_string_lossy().contains(LIBRARY));
    }
}
