//! The names of network namespaces, as `ip netns` gives them: mounts in a directory.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Where `ip netns` has them.
const DIRECTORY: &str = "/run/netns";
/// How long a name may be an empty file: a moment later the namespace is mounted there.
const MOUNTING: Duration = Duration::from_secs(1);

/// The inode of the namespace that has this name; `None` if none has.
pub fn namespace(path: &Path) -> Option<u64> {
    let (named, own) = (fs::metadata(path).ok()?, fs::metadata("/proc/thread-self/ns/net").ok()?);
    // All namespaces are in one file system of the kernel's.
    (named.dev() == own.dev()).then_some(named.ino())
}

/// All names; those that no namespace is mounted at yet, too.
pub fn all() -> Vec<PathBuf> {
    let entries = fs::read_dir(DIRECTORY).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// What sees names come and go.
#[derive(Debug)]
pub struct Watch(Inotify);

impl Watch {
    /// Begins to look. Makes the directory, if there is none yet.
    ///
    /// # Errors
    /// Those of mkdir(2) and inotify(7).
    pub fn new() -> io::Result<Self> {
        fs::create_dir_all(DIRECTORY)?;
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
        let changes = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO;
        inotify.add_watch(DIRECTORY, changes)?;
        Ok(Self(inotify))
    }

    /// Waits for a change.
    ///
    /// # Errors
    /// Those of read(2).
    pub fn wait(&self) -> io::Result<()> {
        self.0.read_events()?;
        Ok(())
    }
}

/// Waits until there is a namespace at every name. One that stays an empty file is passed over.
pub fn settle() {
    let end = Instant::now() + MOUNTING;
    while Instant::now() < end && all().iter().any(|path| namespace(path).is_none()) {
        thread::sleep(Duration::from_millis(5));
    }
}
