//! `run --state DIR`: what is configured, kept in a file that is up to date shortly after every change.
//!
//! A thread writes the file, so that no packet and no program waits for a disk. It is written beside the old one and put
//! in its place, so that there is a whole one at any time.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::ensure;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use serde::{Deserialize, Serialize};
use underpass_control::{Elsewhere, Router};

use crate::startup::{Failed, Startup};

/// The lines that are restored.
const FILE: &str = "state.conf";
/// What could not be restored.
const FAILED: &str = "not-restored.conf";
/// The interface indices of the devices that the lines make: an index and a name a line.
const INDICES: &str = "indices";
/// How long changes may follow each other before they are written.
const SETTLE: Duration = Duration::from_millis(100);
/// The time between two writings, at least …
const INTERVAL: Duration = Duration::from_secs(1);
/// … and so many times as long as the router takes to say what is configured.
const SHARE: u32 = 20;

/// What is configured, as `underpass save` gets it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lines {
    /// The lines of `ip`, `tc` and `sysctl`, with comments.
    pub text: String,
    /// What no line says, a sentence each.
    pub left_out: Vec<String>,
    /// Interface indices of the devices that the router has made, by name.
    #[serde(default)]
    pub indices: BTreeMap<String, u32>,
}

impl Lines {
    /// What is configured of a router, but for what another program keeps.
    pub fn of(router: &Router, elsewhere: &dyn Elsewhere) -> Self {
        let saved = router.save(elsewhere);
        Self { text: saved.text(), left_out: saved.left_out, indices: router.indices() }
    }
}

/// The directory.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    /// Of one router at a time.
    _lock: Flock<File>,
}

impl StateDirectory {
    /// Opens a directory, which is made if it is not there: for root alone, because keys are in the file.
    ///
    /// # Errors
    /// It cannot be made or written, or another router has it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let failed = |error: io::Error| anyhow::anyhow!("{}: {error}", path.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let file = private().truncate(false).open(path.join("lock")).map_err(failed)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => anyhow::anyhow!("{}: another router keeps its state there", path.display()),
            errno => failed(errno.into()),
        })?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The lines that were kept, if there are any.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn startup(&self) -> anyhow::Result<Option<Startup>> {
        let file = self.path.join(FILE);
        if file.try_exists().is_ok_and(|exists| !exists) {
            Ok(None)
        } else {
            Startup::read(&file, true).map(Some)
        }
    }

    /// The interface indices that devices had, by name.
    pub fn indices(&self) -> BTreeMap<String, u32> {
        let text = fs::read_to_string(self.path.join(INDICES)).unwrap_or_default();
        let line = |line: &str| {
            let (index, name) = line.split_once(' ')?;
            Some((name.to_owned(), index.parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }

    /// Keeps lines that could not be restored, for somebody to look at.
    ///
    /// # Errors
    /// Those of writing.
    pub fn keep_failed(&self, failed: &Failed) -> io::Result<()> {
        let mut file = private().append(true).open(self.path.join(FAILED))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        writeln!(file, "# Not restored at {since} seconds since 1970:")?;
        for (error, line) in &failed.0 {
            writeln!(file, "# {}\n{line}", error.problem.replace('\n', " "))?;
        }
        file.sync_all()
    }

    /// Puts lines and indices in the place of those that are kept.
    fn write(&self, lines: &Lines) -> io::Result<()> {
        let indices = lines.indices.iter().map(|(name, index)| format!("{index} {name}\n"));
        self.write_file(INDICES, &indices.collect::<String>())?;
        self.write_file(FILE, &lines.text)
    }

    fn write_file(&self, name: &str, text: &str) -> io::Result<()> {
        let new = self.path.join(format!("{name}.new"));
        let mut file = private().truncate(true).open(&new)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.inspect_err(|_| {
            // On a full disk, a file of less than it was to have.
            let _ = fs::remove_file(&new);
        })?;
        fs::rename(&new, self.path.join(name))?;
        // The name, too.
        File::open(&self.path)?.sync_all()
    }
}

/// A file that nobody else may read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

/// What was written last, and where; nothing more once it is closed.
#[derive(Debug)]
struct Written {
    directory: StateDirectory,
    lines: Option<Lines>,
    left_out: Vec<String>,
    closed: bool,
    failing: bool,
}

impl Written {
    /// Writes lines if they are others than before.
    fn update(&mut self, lines: Lines) {
        if self.closed || self.lines.as_ref() == Some(&lines) {
            return;
        }
        for what in lines.left_out.iter().filter(|what| !self.left_out.contains(what)) {
            tracing::warn!("not kept: {what}");
        }
        self.left_out.clone_from(&lines.left_out);
        match self.directory.write(&lines) {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("what is configured is kept again");
                }
                self.lines = Some(lines);
            }
            Err(error) => {
                self.failing = true;
                tracing::error!("{}: what is configured is not kept: {error}", self.directory.path.display());
            }
        }
    }
}

/// Keeps what is configured up to date in a directory.
#[derive(Debug)]
pub struct Keeper {
    written: Arc<Mutex<Written>>,
    changed: SyncSender<()>,
}

impl Keeper {
    /// Starts the thread. `lines` asks the router; `None`: it does not answer.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(
        directory: StateDirectory,
        lines: impl FnMut() -> Option<Lines> + Send + 'static,
    ) -> io::Result<Self> {
        let (changed, changes) = sync_channel(1);
        let written = Written { directory, lines: None, left_out: Vec::new(), closed: false, failing: false };
        let written = Arc::new(Mutex::new(written));
        let thread = Arc::clone(&written);
        thread::Builder::new().name("state".to_owned()).spawn(move || follow(&thread, &changes, lines))?;
        let keeper = Self { written, changed };
        keeper.changed();
        Ok(keeper)
    }

    /// Something may have changed.
    pub fn changed(&self) {
        // If one is there already, it will do.
        let _ = self.changed.try_send(());
    }

    /// Writes the last state, before the router goes.
    ///
    /// # Errors
    /// It is not written: what is kept is an older one.
    pub fn close(&self, lines: Lines) -> anyhow::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.update(lines);
        written.closed = true;
        let path = written.directory.path.display();
        ensure!(
            !written.failing,
            "{path}: the last state could not be written: what is kept is an older one"
        );
        Ok(())
    }
}

/// Writes after changes, until nobody can report any more. What could not be written is tried again without a change.
fn follow(written: &Mutex<Written>, changes: &Receiver<()>, mut lines: impl FnMut() -> Option<Lines>) {
    let mut again = false;
    loop {
        let wait = if again { INTERVAL * 10 } else { Duration::MAX };
        if matches!(changes.recv_timeout(wait), Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        thread::sleep(SETTLE);
        let _ = changes.try_recv();
        let start = Instant::now();
        let Some(lines) = lines() else {
            again = true;
            continue;
        };
        let took = start.elapsed();
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        written.update(lines);
        again = written.failing;
        drop(written);
        thread::sleep(INTERVAL.max(took * SHARE));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    fn kept(directory: &Path) -> String {
        fs::read_to_string(directory.join(FILE)).unwrap_or_default()
    }

    fn wait(mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(30), "it takes too long");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn changes_are_written_at_a_bounded_rate_and_the_last_state_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::open(directory.path()).unwrap();
        let taken = StateDirectory::open(directory.path()).unwrap_err().to_string();
        assert!(taken.ends_with("another router keeps its state there"), "{taken}");
        assert!(state.startup().unwrap().is_none());
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let lines = move || {
            let number = count.fetch_add(1, SeqCst);
            let text = format!("ip link set p0 mtu {}\n", 1400 + number);
            Some(Lines { text, ..Lines::default() })
        };
        let keeper = Keeper::start(state, lines).unwrap();
        wait(|| kept(directory.path()).contains("mtu 1400"));
        let start = Instant::now();
        (0..100_000).for_each(|_| keeper.changed());
        wait(|| kept(directory.path()).contains("mtu 1401"));
        assert!(asked.load(SeqCst) as u64 <= 3 + start.elapsed().as_secs());
        keeper.close(Lines { text: "ip link set p0 up\n".to_owned(), ..Lines::default() }).unwrap();
        let before = asked.load(SeqCst);
        keeper.changed();
        wait(|| asked.load(SeqCst) > before);
        assert_eq!(kept(directory.path()), "ip link set p0 up\n");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(directory.path().join(FILE)).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_could_not_be_restored_is_kept_as_lines() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::open(directory.path()).unwrap();
        let line = crate::script::parse_one("ip sr hmac set 1 sha256 <<< 'a secret'").unwrap();
        let error = crate::script::ScriptError { file: "x".into(), line: 7, problem: "no\nway".to_owned() };
        state.keep_failed(&Failed(vec![(error, line.text())])).unwrap();
        let text = fs::read_to_string(directory.path().join(FAILED)).unwrap();
        assert!(text.ends_with("# no way\nip sr hmac set 1 sha256 <<< 'a secret'\n"), "{text}");
    }
}
