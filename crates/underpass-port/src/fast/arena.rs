//! Memory that programs and the process share: a BPF arena, `BPF_MAP_TYPE_ARENA` of Linux 6.9. Pages are there when they are
//! first touched by the process.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use underpass_engine::in_kernel::Programs;
use underpass_engine::in_kernel::region::Region;

use crate::sys;
use crate::xdp::bpf::Map;

/// Bytes of an arena: as many as there can be.
const LEN: usize = 1 << 32;
/// Bytes of a page.
const PAGE: usize = 4096;

/// The memory of programs, in the process.
struct Mapped(*mut u8);

// SAFETY: the memory is not bound to a thread.
unsafe impl Send for Mapped {}
// SAFETY: what is in it is accessed as atomics.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `Arena::new` with this length, and nobody has a reference into it any more.
        unsafe { libc::munmap(self.0.cast(), LEN) };
    }
}

/// A BPF arena, and the tables' part of it.
#[derive(Clone)]
pub struct Arena {
    map: Arc<Map>,
    region: Region,
}

impl Arena {
    /// Makes one.
    ///
    /// # Errors
    /// EPERM: the right to load programs is missing. EINVAL: the kernel is older than Linux 6.9, or has no arenas on this
    /// processor. ENOMEM.
    pub fn new() -> io::Result<Self> {
        let map = Map::arena("underpass", (LEN / PAGE) as u32)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice, which is aligned so that the lower half of an address
        // is how far it lies behind the first.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), LEN, protection, libc::MAP_SHARED, map.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast::<u8>();
        let mapped = Mapped(base);
        if !(base as usize).is_multiple_of(LEN) {
            return Err(io::Error::other("the arena is not where programs expect it"));
        }
        // SAFETY: page-aligned, zeroed, of this length, and the region's alone but for programs; it lives as long as
        // `mapped`.
        let region = unsafe { Region::new(base, LEN, Box::new(mapped)) };
        Ok(Self { map: Arc::new(map), region })
    }

    /// What the tables need of it.
    pub fn programs(&self) -> Programs {
        Programs {
            region: self.region.clone(),
            processors: sys::processors(),
            wait: Box::new(leave_programs),
        }
    }

    pub(crate) fn map(&self) -> &Map {
        &self.map
    }
}

/// Waits until every processor has left the program that it runs: `MEMBARRIER_CMD_GLOBAL`, which waits for what programs
/// run under, a grace period of RCU.
fn leave_programs() {
    const GLOBAL: i32 = 1;
    // SAFETY: no memory is passed.
    if unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) } != 0 {
        // Not where a processor is isolated (`nohz_full`). Far longer than a program runs.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
