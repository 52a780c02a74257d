//! What a daemon runs before it is ready: the lines of `run --config`, or those of the directory of `run --state`.

use std::path::{Path, PathBuf};

use underpass_control::RequestError;

use crate::persist::StateDirectory;
use crate::script::{self, Line, ScriptError, Target};

/// Lines to be run at the start.
#[derive(Debug, Clone)]
pub struct Startup {
    /// The file that they are of.
    pub file: PathBuf,
    /// The lines.
    pub lines: Vec<Line>,
    /// Lines behind one that fails are run, too.
    pub goes_on: bool,
    /// Those that could not be read.
    pub unread: Failed,
}

/// Why lines failed, and the lines.
#[derive(Debug, Clone, Default)]
pub struct Failed(pub Vec<(ScriptError, String)>);

impl Startup {
    /// Reads a file of lines that all have to succeed, or of which each is tried.
    ///
    /// # Errors
    /// It cannot be read, or has a line that is none and has to succeed: with its number.
    pub fn read(file: &Path, goes_on: bool) -> anyhow::Result<Self> {
        let bytes = std::fs::read(file).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        let (mut lines, mut unread) = (Vec::new(), Failed::default());
        for (raw, line) in script::parse_each(file, &text) {
            match line {
                Ok(line) => lines.push(line),
                Err(error) if goes_on => unread.0.push((error, raw)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self { file: file.to_owned(), lines, goes_on, unread })
    }

    /// Runs the lines; returns those that failed.
    ///
    /// # Errors
    /// The first that fails, if all have to succeed.
    pub fn run(&self, router: &dyn Target) -> Result<Failed, ScriptError> {
        if !self.goes_on {
            script::configure(router, &self.file, &self.lines)?;
            return Ok(Failed::default());
        }
        let failed = script::configure_all(router, &self.file, &self.lines).into_iter().filter_map(|error| {
            let line = self.lines.iter().find(|line| line.number == error.line)?.text();
            Some((error, line))
        });
        Ok(Failed(self.unread.0.iter().cloned().chain(failed).collect()))
    }
}

impl Failed {
    /// Says which lines failed.
    pub fn log(&self) {
        for (error, _) in &self.0 {
            tracing::error!("not restored: {error}");
        }
    }

    /// Keeps them for somebody to look at.
    pub fn keep(&self, directory: &StateDirectory) {
        if self.0.is_empty() {
            return;
        }
        if let Err(error) = directory.keep_failed(self) {
            tracing::error!("what could not be restored cannot be kept: {error}");
        }
    }
}

/// How a router that another thread has reads and writes its variables.
pub trait Variables {
    /// Reads one.
    ///
    /// # Errors
    /// `ENOENT` where there is none.
    fn read(&self, path: &str) -> Result<String, RequestError>;

    /// Writes one.
    ///
    /// # Errors
    /// As reading; `EINVAL` for a value that it cannot have.
    fn write(&self, path: &str, value: &[u8]) -> Result<(), RequestError>;
}

/// A router that another thread serves, as lines are run against it.
pub struct Served<V> {
    /// Path of its socket.
    pub socket: PathBuf,
    /// Its variables.
    pub variables: V,
}

impl<V: Variables> Target for Served<V> {
    fn socket(&self) -> &Path {
        &self.socket
    }

    fn read_sysctl(&self, path: &str) -> Result<String, RequestError> {
        self.variables.read(path)
    }

    fn write_sysctl(&self, path: &str, value: &[u8]) -> Result<(), RequestError> {
        self.variables.write(path, value)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Of lines that are kept, one that cannot be read is put aside, whatever is wrong with it; of others it ends the start.
    #[test]
    fn what_cannot_be_read_is_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state.conf");
        fs::write(
            &file,
            b"ip link add a type dummy\nrm -rf x\nip link add 'b\nip link add d\xff type dummy\nip addr\n",
        )
        .unwrap();
        let kept = Startup::read(&file, true).unwrap();
        let numbers: Vec<usize> = kept.lines.iter().map(|line| line.number).collect();
        assert_eq!(numbers, [1, 5]);
        let unread: Vec<(usize, &str)> =
            kept.unread.0.iter().map(|(error, line)| (error.line, line.as_str())).collect();
        assert_eq!(unread, [(2, "rm -rf x"), (3, "ip link add 'b"), (4, "ip link add d\u{fffd} type dummy")]);
        let refused = Startup::read(&file, false).unwrap_err().to_string();
        assert!(
            refused.ends_with(
                "state.conf:2: 'rm' is none of the tools that may run here: ip, tc, bridge, sysctl, underpass"
            ),
            "{refused}"
        );
    }
}
