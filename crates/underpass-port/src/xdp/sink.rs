//! What ends packets for measurements, where they cost the least.

use std::io;

use super::bpf::ProgramKind;
use super::program::{TCX_DROP, always};
use crate::clsact::Hook;
use crate::live::{Hooked, hook};
use crate::sys;

/// Drops all that a device receives before any protocol sees it, for as long as this lives. Sockets of AF_PACKET do see it.
pub struct Sink {
    _hooked: Hooked,
}

impl Sink {
    /// At the device `name` of the current namespace.
    ///
    /// # Errors
    /// There is no such device; BPF is refused.
    pub fn at(name: &str) -> io::Result<Self> {
        let program = always(ProgramKind::Classifier, TCX_DROP)?;
        Ok(Self { _hooked: hook(&program, sys::index_of(name)?, Hook::Ingress)? })
    }
}
