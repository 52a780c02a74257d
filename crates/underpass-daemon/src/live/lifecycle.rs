//! One daemon a network namespace: its lock, what it leaves for the next one if it is killed, and the word to
//! the service manager.

#![allow(unsafe_code)]

use std::{
    env,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    mem::size_of_val,
    os::{
        fd::AsRawFd,
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
            net::{SocketAddr, UnixDatagram},
        },
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use serde::{Deserialize, Serialize};

/// Where the daemons of all namespaces keep their files.
const RUNTIME: &str = "/run/underpass";

/// Why there can be no daemon here.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// There is one already.
    #[error(
        "a router runs in this network namespace already (process {process}, lock {}): configure it with \
         `underpass exec`, or end it first", path.display()
    )]
    Taken {
        /// Its process id, as far as it is known.
        process: String,
        /// The lock file.
        path: PathBuf,
    },
    /// The directory or the file cannot be made.
    #[error("{}", path.display())]
    Io {
        /// What it is about.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        error: io::Error,
    },
}

/// The right to be the router of this network namespace, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    file: Flock<File>,
    path: PathBuf,
}

/// What a daemon has changed in the kernel that does not go away with it: written down before it is done.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Cookie of the network namespace: its inode number may have been another's before.
    pub namespace: u64,
    /// Sysctls of devices.
    pub sysctls: Vec<Changed>,
}

/// A sysctl of a device that has another value now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The device's index, which it keeps when it is given another name.
    pub device: u32,
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// The sysctl.
    pub name: String,
    /// What it held before.
    pub before: String,
}

impl Lock {
    /// Becomes the router of this network namespace.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take() -> Result<Self, LockError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| LockError::Io { path, error }
        };
        let directory = Path::new(RUNTIME);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed(directory))?;
        let own = Path::new("/proc/thread-self/ns/net");
        let inode = fs::metadata(own).map_err(failed(own))?.ino();
        let path = directory.join(format!("netns-{inode}.lock"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // What it leads to is overwritten: whoever puts a link in its place must not say what that is.
        options.custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(failed(&path))?;
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                let process = text.lines().next().filter(|line| !line.is_empty()).unwrap_or("?").to_owned();
                return Err(LockError::Taken { process, path });
            }
            Err((_, errno)) => return Err(LockError::Io { path, error: errno.into() }),
        };
        Ok(Self { file, path })
    }

    /// What the daemon before this one has left behind, if it was killed.
    pub fn left(&mut self) -> Left {
        let mut text = String::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_string(&mut text));
        let left: Option<Left> = read
            .ok()
            .and_then(|_| text.split_once('\n'))
            .and_then(|(_, left)| serde_json::from_str(left).ok());
        left.filter(|left| left.namespace == namespace_cookie()).unwrap_or_default()
    }

    /// Writes down what has to be undone if this process is killed.
    ///
    /// # Errors
    /// Those of writing.
    pub fn leave(&mut self, left: &Left) -> io::Result<()> {
        let text = format!("{}\n{}\n", std::process::id(), serde_json::to_string(left)?);
        self.file.rewind()?;
        self.file.set_len(0)?;
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still locked: who comes next makes a file of its own.
        let _ = fs::remove_file(&self.path);
    }
}

/// A number that no other network namespace has had since the machine was started: `SO_NETNS_COOKIE`.
/// 0 where the kernel does not tell.
pub fn namespace_cookie() -> u64 {
    let Ok(socket) = UnixDatagram::unbound() else { return 0 };
    let mut cookie = 0u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: getsockopt writes at most `length` bytes to `cookie`, and the length.
    let got = unsafe {
        let to = (&raw mut cookie).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, to, &raw mut length)
    };
    if got == 0 { cookie } else { 0 }
}

/// Says something to the service manager that started this process, if one did: `sd_notify(3)`.
pub fn notify(state: &str) {
    if let Some(path) = env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty())
        && let Err(error) = send_state(&path, state)
    {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

fn send_state(path: &OsString, state: &str) -> io::Result<()> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
