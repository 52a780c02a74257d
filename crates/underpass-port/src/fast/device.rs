//! The program at a device, and the device that stands for it: what no program carries and the kernel does not keep comes in
//! there, with its unfinished checksum and its segments, and a worker takes it.
//!
//! A worker cannot listen at the device itself: sockets see frames before programs do.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use underpass_engine::in_kernel::records::{Leaving, Places};

use super::arena::Arena;
use super::emit::TCX_DROP;
use crate::clsact::Hook;
use crate::keep::Keep;
use crate::live::{Hooked, hook};
use crate::sys;
use crate::tun::{TunKind, TunPort};
use crate::xdp::assembler::{Program, R0};
use crate::xdp::bpf::{self, Attach, ProgramKind};

/// A filter's word for all of a packet.
const ALL: i32 = -1;

/// The program that carries packets, for all devices of a router.
pub struct Fast {
    program: OwnedFd,
    /// The program reads it, and so must there be somebody who has it.
    _arena: Arena,
}

impl Fast {
    /// Loads the program, which reads what is at `places` in the arena; `keep` says what the kernel keeps.
    ///
    /// # Errors
    /// What the kernel refuses: with what its verifier says.
    pub fn load(arena: Arena, places: Places, keep: &Keep) -> io::Result<Self> {
        Ok(Self { program: super::load(arena.map(), places, keep)?, _arena: arena })
    }

    pub(super) fn program(&self) -> &OwnedFd {
        &self.program
    }

    /// The program at the ingress of a device, until what is returned is dropped.
    ///
    /// # Errors
    /// EINVAL: the kernel is older than Linux 6.6.
    pub(crate) fn attach(&self, ifindex: u32) -> io::Result<OwnedFd> {
        bpf::link(&self.program, ifindex, Attach::TcIngress, 0)
    }
}

/// What may be done with packets that leave by a device: if it is one end of a veth pair, and the other is in another
/// namespace, they can be given to that at once.
pub(crate) fn leaving(name: &str, ifindex: u32) -> Leaving {
    let link = |name: &str| {
        let text = std::fs::read_to_string(Path::new("/sys/class/net").join(name).join("iflink")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    let Some(other) = link(name).filter(|_| sys::driver_of(name) == "veth") else { return Leaving::Redirect };
    // Indexes are counted by each namespace: the other end is here if a device of its index has this one for its other end.
    let here = sys::name_of(other).is_ok_and(|name| link(&name) == Some(ifindex));
    if here { Leaving::Redirect } else { Leaving::Peer }
}

/// The device that stands for another one.
pub(crate) struct Misses {
    name: String,
    index: u32,
    /// What a socket there takes: everything.
    pub(crate) filter: OwnedFd,
    /// What the kernel does with it then: nothing.
    _drop: Hooked,
    /// It is there as long as this is.
    _tap: File,
}

impl Misses {
    /// Makes the device `name`, which is down.
    pub(crate) fn make(name: &str) -> io::Result<Self> {
        let tap = TunPort::open(name, TunKind::Tap, false)?;
        let index = sys::index_of(name)?;
        let always = |kind, verdict| {
            let mut program = Program::default();
            program.set(R0, verdict);
            program.exit();
            bpf::load(kind, "underpass_all", &program.finish())
        };
        let drop = hook(&always(ProgramKind::Classifier, TCX_DROP)?, index, Hook::Ingress)?;
        let filter = always(ProgramKind::Filter, ALL)?;
        Ok(Self { name: name.to_owned(), index, filter, _drop: drop, _tap: tap.into_device() })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its index.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}
