//! What the router begins with, and what is kept of it for the next one.

use std::{
    io::{self, Write},
    path::Path,
    thread,
};

use underpass_control::Router;

use super::{Live, Question, lifecycle, priority::Hurry};
use crate::{
    fpm::Fpm,
    persist::{Keeper, Lines, StateDirectory},
    serve::Server,
    startup::{Failed, Served, Startup},
};

/// What is configured, but for what zebra sends again.
pub(super) fn saved(router: &Router, fpm: Option<&Fpm>) -> Lines {
    match fpm {
        Some(fpm) => Lines::of(router, fpm.kept()),
        None => Lines::of(router, &()),
    }
}

/// The directory of `--state`: nothing is written there before all has been restored.
#[derive(Default)]
pub(super) struct Keeping {
    waiting: Option<StateDirectory>,
    keeper: Option<Keeper>,
    /// While all is restored.
    hurry: Option<Hurry>,
    /// All has been restored.
    pub done: bool,
    seen: u64,
}

impl Keeping {
    pub fn new(directory: Option<StateDirectory>) -> Self {
        Self { waiting: directory, ..Self::default() }
    }

    /// Reports what has changed.
    pub fn follow(&mut self, router: &Router) {
        if let Some(keeper) = &self.keeper
            && self.seen != router.changes()
        {
            self.seen = router.changes();
            keeper.changed();
        }
    }

    /// Writes the last state.
    pub fn close(&self, router: &Router, fpm: Option<&Fpm>) {
        if let Some(keeper) = &self.keeper {
            keeper.close(saved(router, fpm));
        }
    }
}

impl Live {
    /// Runs the lines of the start, if there are any, while other programs wait; then says that the router is ready.
    pub(super) fn begin(&mut self, startup: Option<Startup>, server: &mut Server) -> anyhow::Result<()> {
        let socket = server.path();
        let Some(startup) = startup else { return self.started(&Failed::default(), socket) };
        let socket = socket.to_owned();
        server.serve_own();
        self.keeping.hurry = Some(Hurry::begin());
        let questions = self.listening.asking.clone();
        let router = Served { socket, variables: questions.clone() };
        thread::Builder::new().name("startup".to_owned()).spawn(move || {
            // Nobody hears it if the router has ended.
            let _ = questions.send(Question::Started(startup.run(&router)));
        })?;
        Ok(())
    }

    /// All lines of the start have been run.
    pub(super) fn started(&mut self, failed: &Failed, socket: &Path) -> anyhow::Result<()> {
        self.keeping.hurry = None;
        failed.log();
        if let Some(directory) = self.keeping.waiting.take() {
            failed.keep(&directory);
            let questions = self.listening.asking.clone();
            self.keeping.keeper = Some(Keeper::start(directory, move || questions.saved().ok())?);
        }
        self.keeping.done = true;
        // Whoever started us may not read it.
        let _ = writeln!(io::stdout(), "underpass: ready at {}", socket.display());
        lifecycle::notify("READY=1\n");
        Ok(())
    }
}
