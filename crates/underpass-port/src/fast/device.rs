//! The program at a device, and the device that stands for it: what no program carries and the kernel does not keep comes in
//! there, with its unfinished checksum and its segments, and a worker takes it.
//!
//! A worker cannot listen at the device itself: sockets see frames before programs do.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use underpass_engine::in_kernel::records::{Leaving, Places};

use super::arena::Arena;
use super::traced::Token;
use super::{Form, Hook as At};
use crate::clsact::Hook;
use crate::kernel_frames::KernelFrames;
use crate::live::{Hooked, hook};
use crate::netlink;
use crate::sys;
use crate::tun::{TunKind, TunPort};
use crate::xdp::bpf::{self, Attach, ProgramKind};
use crate::xdp::program::{self, TCX_DROP};

/// A filter's word for all of a packet.
const ALL: i32 = -1;

/// The programs that carry packets, for all devices of a router.
pub struct Fast {
    tcx: OwnedFd,
    /// By which it knows what another program says of traced packets.
    token: Token,
    /// That for drivers, from when it is needed.
    xdp: OnceLock<OwnedFd>,
    /// That for runs without a device.
    around: OnceLock<OwnedFd>,
    kernel_frames: KernelFrames,
    places: Places,
    /// Programs read it.
    arena: Arena,
}

impl Fast {
    /// Loads the program, which reads what is at `places` in the arena; `keep` says what the kernel keeps.
    ///
    /// # Errors
    /// What the kernel refuses: with what its verifier says.
    pub fn load(arena: Arena, places: Places, kernel_frames: &KernelFrames) -> io::Result<Self> {
        let token = Token::new();
        let tcx = super::load(Form::At(At::Tcx), arena.map(), places, kernel_frames, token)?;
        let [xdp, around] = [const { OnceLock::new() }; 2];
        Ok(Self { tcx, token, xdp, around, kernel_frames: kernel_frames.clone(), places, arena })
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// The program for a hook.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(super) fn program(&self, hook: At) -> io::Result<&OwnedFd> {
        match hook {
            At::Tcx => Ok(&self.tcx),
            At::Xdp => self.loaded(&self.xdp, Form::At(hook)),
        }
    }

    /// That for a frame as the kernel has it before tcx.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(super) fn around(&self) -> io::Result<&OwnedFd> {
        self.loaded(&self.around, Form::Around)
    }

    fn loaded<'f>(&'f self, place: &'f OnceLock<OwnedFd>, form: Form) -> io::Result<&'f OwnedFd> {
        if let Some(program) = place.get() {
            return Ok(program);
        }
        let program = super::load(form, self.arena.map(), self.places, &self.kernel_frames, self.token)?;
        Ok(place.get_or_init(|| program))
    }

    /// The program at a hook of a device, until what is returned is dropped.
    ///
    /// # Errors
    /// EINVAL: the kernel is older than Linux 6.6. EOPNOTSUPP, EINVAL: the driver runs no programs. EBUSY: it has one.
    pub(crate) fn attach(&self, hook: At, ifindex: u32) -> io::Result<OwnedFd> {
        /// `XDP_FLAGS_DRV_MODE`.
        const BY_DRIVER: u32 = 1 << 2;
        match hook {
            At::Tcx => bpf::link(self.program(hook)?, ifindex, Attach::TcIngress, 0),
            At::Xdp => {
                let program = self.program(hook)?;
                sys::soon(|| bpf::link(program, ifindex, Attach::Xdp, BY_DRIVER))
            }
        }
    }
}

/// Drivers of virtual machines, whose devices hand up segments as long as the machine beside sent them. A program in the
/// driver would make many of each.
const WHOLE_SEGMENTS: [&str; 4] = ["virtio_net", "vmxnet3", "vif", "hv_netvsc"];

/// Why a program is not for the driver of a device, if nobody has asked for one.
pub(crate) fn not_in_driver(name: &str) -> Option<&'static str> {
    let driver = sys::driver_of(name);
    match driver.as_str() {
        "veth" => Some("only tcx passes unsegmented TSO frames over veth"),
        "" => Some("it is not a hardware device"),
        driver if WHOLE_SEGMENTS.contains(&driver) => {
            Some("only tcx receives TSO frames unsegmented from this driver")
        }
        _ => None,
    }
}

/// What may be done with packets that leave by a device: if it is one end of a veth pair, and the other is in another
/// namespace, they can be given to that at once.
pub(crate) fn leaving(name: &str, ifindex: u32) -> Leaving {
    let elsewhere = || other_end_is_elsewhere(ifindex).unwrap_or(false);
    if sys::driver_of(name) == "veth" && elsewhere() { Leaving::Peer } else { Leaving::Redirect }
}

/// Whether the other end of a veth pair is in another namespace. The kernel says so, as a path of sysfs does not: that shows
/// the devices of the namespace it was mounted in.
fn other_end_is_elsewhere(ifindex: u32) -> io::Result<bool> {
    /// Of an answer, include/uapi/linux/if_link.h: there only if the namespaces differ.
    const LINK_NETNSID: u16 = 37;
    const EXT_MASK: u16 = 29;
    const SKIP_STATS: u32 = 1 << 3;
    /// Bytes of `struct ifinfomsg`.
    const FIXED: usize = 16;
    let fixed = [0, ifindex, 0, 0].map(u32::to_ne_bytes).concat();
    let mask = netlink::attribute(EXT_MASK, &SKIP_STATS.to_ne_bytes());
    let answer = netlink::exchange(libc::NETLINK_ROUTE, libc::RTM_GETLINK, 0, &[fixed, mask].concat())?;
    let attributes = answer.get(FIXED..).unwrap_or_default();
    Ok(netlink::attributes(attributes).any(|(kind, _)| kind == LINK_NETNSID))
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
        let drop = hook(&program::always(ProgramKind::Classifier, TCX_DROP)?, index, Hook::Ingress)?;
        let filter = program::always(ProgramKind::Filter, ALL)?;
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

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use super::*;

    /// Also where the devices that sysfs shows are those of another namespace, as after setns(2).
    #[test]
    fn the_other_end_of_a_pair_is_here_or_elsewhere() {
        let test = || {
            // SAFETY: no memory is passed; the thread ends with the test.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                eprintln!("SKIPPED the_other_end_of_a_pair_is_here_or_elsewhere: needs root");
                return;
            }
            let lines = "ip link add here0 type veth peer name here1
                ip link add away0 type veth peer name away1 netns $1";
            let holder = std::process::Command::new("unshare").args(["-n", "sleep", "60"]).spawn();
            let mut holder = holder.unwrap();
            let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
            let other = format!("/proc/{}/ns/net", holder.id());
            // It has its namespace only a while after it was started.
            while std::fs::read_link(&other).unwrap() == own {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let pid = holder.id().to_string();
            let made = std::process::Command::new("sh").args(["-ec", lines, "sh", &pid]).status();
            assert!(made.unwrap().success());
            for (name, expected) in
                [("here0", Leaving::Redirect), ("away0", Leaving::Peer), ("lo", Leaving::Redirect)]
            {
                assert_eq!(leaving(name, sys::index_of(name).unwrap()), expected, "{name}");
            }
            holder.kill().unwrap();
            holder.wait().unwrap();
        };
        std::thread::spawn(test).join().unwrap();
    }
}
