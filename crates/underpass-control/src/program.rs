//! BPF programs that requests name by descriptors of whoever sends them.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use underpass_engine::bpf;
use underpass_netlink::RequestError;

/// A program that is loaded in the kernel and decoded for the packet path.
#[derive(Clone)]
pub struct Program {
    /// The kernel's id of it.
    id: u32,
    code: Arc<bpf::Program>,
    /// Keeps it loaded.
    _loaded: Arc<dyn Any + Send + Sync>,
}

impl Program {
    /// The program that the kernel knows by this id, which stays loaded as long as `loaded` is there.
    pub fn new(id: u32, code: bpf::Program, loaded: Arc<dyn Any + Send + Sync>) -> Self {
        Self { id, code: Arc::new(code), _loaded: loaded }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn code(&self) -> Arc<bpf::Program> {
        Arc::clone(&self.code)
    }
}

/// The same program, not an equal one.
impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
    }
}

impl Eq for Program {}

impl Hash for Program {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program(id {}, {:?})", self.id, self.code)
    }
}

/// The programs that the next requests may name, by the numbers of their descriptors there: each, or why it cannot
/// be used.
pub type Offered = Vec<(u32, Result<Program, RequestError>)>;
