//! The configuration across restarts: running the lines of the start, and keeping the directory of `--state` up to date.

use std::{
    io::{self, Write},
    path::Path,
    thread,
};

use underpass_control::Router;

use super::{Live, Query, lifecycle, priority::Hurry};
use crate::{
    fpm::Fpm,
    persist::{Keeper, Lines, StateDirectory},
    serve::Server,
    startup::{Failed, Served, Startup},
};

/// The configuration, without the routes that zebra sends again.
pub(super) fn saved(router: &Router, fpm: Option<&Fpm>) -> Lines {
    match fpm {
        Some(fpm) => Lines::of(router, fpm.kept()),
        None => Lines::of(router, &()),
    }
}

/// The directory of `--state`: nothing is written there before all has been restored.
#[derive(Default)]
pub(super) struct Persistence {
    waiting: Option<StateDirectory>,
    keeper: Option<Keeper>,
    /// The priority of this thread is raised while the configuration is restored.
    hurry: Option<Hurry>,
    /// All has been restored.
    pub done: bool,
    seen: u64,
}

impl Persistence {
    pub fn new(directory: Option<StateDirectory>) -> Self {
        Self { waiting: directory, ..Self::default() }
    }

    /// Has the state written if the router has changed since the last call.
    pub fn follow(&mut self, router: &Router) {
        if let Some(keeper) = &self.keeper
            && self.seen != router.changes()
        {
            self.seen = router.changes();
            keeper.changed();
        }
    }

    /// Writes the last state.
    ///
    /// # Errors
    /// It is not written.
    pub fn close(&self, router: &Router, fpm: Option<&Fpm>) -> anyhow::Result<()> {
        self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.close(saved(router, fpm)))
    }
}

impl Live {
    /// Runs the lines of the start, if there are any, while other programs wait; then says that the router is ready.
    pub(super) fn begin(&mut self, startup: Option<Startup>, server: &mut Server) -> anyhow::Result<()> {
        let socket = server.path();
        let Some(startup) = startup else { return self.started(&Failed::default(), socket) };
        let socket = socket.to_owned();
        server.serve_own();
        self.persistence.hurry = Some(Hurry::begin());
        let queries = self.listeners.sender.clone();
        let router = Served { socket, variables: queries.clone() };
        thread::Builder::new().name("startup".to_owned()).spawn(move || {
            // Nobody hears it if the router has ended.
            let _ = queries.send(Query::Started(startup.run(&router)));
        })?;
        Ok(())
    }

    /// All lines of the start have been run.
    pub(super) fn started(&mut self, failed: &Failed, socket: &Path) -> anyhow::Result<()> {
        self.persistence.hurry = None;
        failed.log();
        if let Some(directory) = self.persistence.waiting.take() {
            failed.keep(&directory);
            let queries = self.listeners.sender.clone();
            self.persistence.keeper = Some(Keeper::start(directory, move || queries.saved().ok())?);
        }
        self.persistence.done = true;
        // Whoever started us may not read it.
        let _ = writeln!(io::stdout(), "underpass: ready at {}", socket.display());
        lifecycle::notify("READY=1\n");
        Ok(())
    }
}
