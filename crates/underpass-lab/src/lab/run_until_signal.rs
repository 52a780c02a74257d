//! Running a network until a signal ends it: names of its namespaces for `ip netns`, and the signals.

use std::os::fd::AsFd;

use anyhow::{Context, bail};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use underpass_daemon::testbed::Namespace;

/// Names of namespaces for `ip netns`; they go when this is dropped.
pub struct Names(Vec<String>);

impl Names {
    /// `PREFIX-NAME` for each.
    ///
    /// # Errors
    /// A network namespace has that name already.
    pub fn give<'a>(
        namespaces: impl IntoIterator<Item = &'a Namespace>,
        prefix: &str,
    ) -> anyhow::Result<Self> {
        let mut names = Self(Vec::new());
        for namespace in namespaces {
            let name = format!("{prefix}-{}", namespace.name());
            namespace.run(&format!("ip netns attach {name} $$")).with_context(|| {
                format!("is a lab of another time still there? `ip netns del {name}` removes the name")
            })?;
            names.0.push(name);
        }
        Ok(names)
    }

    /// The names.
    pub fn all(&self) -> &[String] {
        &self.0
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = std::process::Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// The signals that end a lab. They are held back from this thread and those that it starts, so that what was built is removed
/// first.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
    /// One has come.
    came: bool,
}

impl Signals {
    /// Holds them back.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn block() -> anyhow::Result<Self> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        signals.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self { descriptor: SignalFd::with_flags(&signals, flags)?, came: false })
    }

    /// Whether the lab may go on.
    ///
    /// # Errors
    /// One has come.
    pub fn none_has_come(&mut self) -> anyhow::Result<()> {
        self.came |= self.descriptor.read_signal()?.is_some();
        if self.came { bail!("ended by a signal") } else { Ok(()) }
    }

    /// Waits until one comes, if none has.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait(&mut self) -> anyhow::Result<()> {
        while self.none_has_come().is_ok() {
            poll(&mut [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
        }
        Ok(())
    }
}
