//! The return path of frames to the kernel: where a worker gets all frames that come in by a device, so that filters see
//! them, those that pass and are the kernel's come back to it as if they had just come in by that device.
//!
//! A worker writes them into a TAP device. A program at its ingress hook sends them to the ingress of the other device,
//! with checksums and segments as they are. There, a mark distinguishes them from frames of the wire.

use std::io;

use underpass_engine::buffer::{Packet, Pool};

use crate::clsact::Hook;
use crate::kernel_frames::KernelFrames;
use crate::live::{Hooked, Tally, hook};
use crate::sys;
use crate::tun::{TunKind, TunPort};
use crate::xdp::assembler::{Program, R1, R2, Size};
use crate::xdp::bpf::{self, ProgramKind};

/// Helper and flag, from include/uapi/linux/bpf.h.
const REDIRECT: i32 = 23;
const INGRESS: i32 = 1;
/// `struct __sk_buff`.
const MARK: i16 = 8;

/// The return path of one device. It ends with its last port.
pub struct ReturnPath {
    index: u32,
    _hook: Hooked,
}

impl ReturnPath {
    /// Makes the TAP device `name`, which is down, for frames of the device `ifindex`; and its ports, one a worker.
    ///
    /// # Errors
    /// The right to make it or to load a program is missing, or there is a device of that name.
    pub fn make(
        name: &str,
        ifindex: u32,
        kernel_frames: &KernelFrames,
        workers: usize,
    ) -> io::Result<(Self, Vec<ReturnPort>)> {
        let program = {
            let mut program = Program::default();
            program.set(R2, kernel_frames.mark().cast_signed());
            program.store(Size::Word, R1, MARK, R2);
            program.set(R1, ifindex.cast_signed());
            program.set(R2, INGRESS);
            program.call(REDIRECT);
            program.exit();
            bpf::load(ProgramKind::Classifier, "underpass_back", &program.finish())?
        };
        // Several queues, so that the next return path of this name can be made before the last port of this one is closed.
        let open = |_| TunPort::open(name, TunKind::Tap, true).map(ReturnPort);
        let ports = (0..workers.max(1)).map(open).collect::<io::Result<Vec<_>>>()?;
        let index = sys::index_of(name)?;
        let hook = hook(&program, index, Hook::Ingress)?;
        Ok((Self { index, _hook: hook }, ports))
    }

    /// The index of the TAP device.
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// A worker's end of a return path: frames go in, and none come out.
pub struct ReturnPort(TunPort);

impl ReturnPort {
    /// Gives frames to the kernel, and their slots to the pool.
    pub(crate) fn send(&mut self, pool: &mut Pool, packets: impl Iterator<Item = Packet>) {
        self.0.send(pool, packets);
    }

    pub(crate) fn tally(&self) -> Tally {
        self.0.tally
    }

    pub(crate) fn close(self, pool: &mut Pool) {
        self.0.close(pool);
    }
}
