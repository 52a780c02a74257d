//! What ends packets for measurements, where they cost the least.

use std::io;
use std::os::fd::OwnedFd;

use super::bpf::{self, Attach, ProgramKind};
use super::program::{TCX_DROP, always};
use crate::clsact::Hook;
use crate::live::{Hooked, hook};
use crate::sys;

/// Drops all that a device receives before any protocol sees it, for as long as this lives.
pub struct Sink {
    _hooked: Hooked,
}

/// The same in the device's driver: no socket sees it either.
pub struct DriverSink {
    _link: OwnedFd,
}

impl Sink {
    /// At the device `name` of the current namespace: at tcx, before which sockets of AF_PACKET see it.
    ///
    /// # Errors
    /// There is no such device; BPF is refused.
    pub fn at(name: &str) -> io::Result<Self> {
        let program = always(ProgramKind::Classifier, TCX_DROP)?;
        Ok(Self { _hooked: hook(&program, sys::index_of(name)?, Hook::Ingress)? })
    }
}

impl DriverSink {
    /// At the device `name` of the current namespace.
    ///
    /// # Errors
    /// There is no such device; its driver runs no programs; BPF is refused.
    pub fn at(name: &str) -> io::Result<Self> {
        /// `XDP_DROP`; `XDP_FLAGS_DRV_MODE`.
        const DROP: i32 = 1;
        const BY_DRIVER: u32 = 1 << 2;
        let program = always(ProgramKind::Xdp, DROP)?;
        let ifindex = sys::index_of(name)?;
        let link = sys::soon(|| bpf::link(&program, ifindex, Attach::Xdp, BY_DRIVER))?;
        Ok(Self { _link: link })
    }
}
