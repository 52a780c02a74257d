//! Routers of several network namespaces, each a process of its own: for `exec --auto` and `run --all`.

mod member;
pub mod names;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use member::Member;
use underpass_daemon::{
    launch,
    protocol::{RUNTIME, socket_name},
};

/// What the routers are started with.
#[derive(Debug)]
pub struct Options {
    /// This program.
    pub program: PathBuf,
    /// Arguments of `underpass run`.
    pub arguments: Vec<OsString>,
    /// Where each has a directory of the namespace's name for its state.
    pub state: Option<PathBuf>,
    /// Routers that end are started anew.
    pub restart: bool,
}

/// The routers, by the paths of the namespaces' names.
#[derive(Debug)]
pub struct Fleet {
    options: Arc<Options>,
    /// `None`: all have been ended, and no other is started.
    members: Mutex<Option<BTreeMap<PathBuf, Arc<Member>>>>,
    tidying: Mutex<()>,
}

impl Fleet {
    /// No router yet.
    pub fn new(options: Options) -> Self {
        Self {
            options: Arc::new(options),
            members: Mutex::new(Some(BTreeMap::new())),
            tidying: Mutex::default(),
        }
    }

    fn members(&self) -> MutexGuard<'_, Option<BTreeMap<PathBuf, Arc<Member>>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a router in the network namespace of this name, if it has none.
    pub fn start(&self, path: &Path) {
        let Some(namespace) = names::namespace(path) else { return };
        let mut members = self.members();
        let Some(members) = members.as_mut() else { return };
        if members.get(path).is_none_or(|member| member.namespace != namespace) {
            let member = Member::start(path.to_owned(), namespace, Arc::clone(&self.options));
            members.insert(path.to_owned(), member);
        }
    }

    /// Ends the routers of namespaces that do not have their names any more, and returns when they have ended.
    pub fn tidy(&self) {
        // Those that another thread ends are waited for, too.
        let _turn = self.tidying.lock().unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        if let Some(members) = self.members().as_mut() {
            members.retain(|path, member| {
                let stays = names::namespace(path) == Some(member.namespace);
                gone.extend((!stays).then(|| Arc::clone(member)));
                stays
            });
        }
        gone.iter().for_each(|member| member.end());
        gone.iter().for_each(|member| member.wait_for_end());
    }

    /// Ends and starts routers as the names say that are there now.
    pub fn follow(&self) {
        self.tidy();
        names::settle();
        names::all().iter().for_each(|path| self.start(path));
    }

    /// Waits until the router of a network namespace is ready; says whether it is, if there is to be one.
    pub fn settle(&self, namespace: u64) -> Result<(), ()> {
        let member = self
            .members()
            .iter()
            .flat_map(BTreeMap::values)
            .find_map(|member| (member.namespace == namespace).then(|| Arc::clone(member)));
        // There may be one that somebody else has started.
        let other = || launch::check_router(&Path::new(RUNTIME).join(socket_name(namespace))).is_ok();
        if member.is_none_or(|member| member.is_ready() || other()) { Ok(()) } else { Err(()) }
    }

    /// Ends all routers, and returns when they have ended; also those that are being ended because their names are gone.
    pub fn end(&self) {
        let members = self.members().take().unwrap_or_default();
        let _turn = self.tidying.lock().unwrap_or_else(PoisonError::into_inner);
        members.values().for_each(|member| member.end());
        members.values().for_each(|member| member.wait_for_end());
    }
}
