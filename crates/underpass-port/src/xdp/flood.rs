//! A generator of packets for measurements: frames that the kernel makes by the million and hands to a device,
//! without a socket buffer or a copy for each.

use std::io;
use std::os::fd::OwnedFd;

use super::assembler::{Program, R0, R1, R2, R3, R4, Size, When};
use super::bpf::{self, ProgramKind};
use crate::sys;

/// `bpf_redirect`, include/uapi/linux/bpf.h.
const REDIRECT: i32 = 23;
const XDP_ABORTED: i32 = 0;

/// One frame that leaves by a device over and over. The device at its other end must receive by polling.
pub struct Flood {
    program: OwnedFd,
    frame: Vec<u8>,
}

impl Flood {
    /// A flood of `frame` out of the device `name` of the current namespace. The frame's length is a multiple
    /// of four.
    ///
    /// # Errors
    /// There is no such device; BPF is refused; the length is another.
    pub fn new(name: &str, frame: &[u8]) -> io::Result<Self> {
        if !frame.len().is_multiple_of(4) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let ifindex = sys::index_of(name)?;
        let mut program = Program::default();
        let short = program.label();
        program.load(Size::Word, R2, R1, 0);
        program.load(Size::Word, R3, R1, 4);
        program.copy(R4, R2);
        program.add(R4, frame.len() as i32);
        program.jump_if_register(R4, When::Greater, R3, short);
        // Whoever had the frame before may have written into it.
        for (offset, word) in (0..).step_by(4).zip(frame.as_chunks::<4>().0) {
            program.set(R4, i32::from_ne_bytes(*word));
            program.store(Size::Word, R2, offset, R4);
        }
        program.set(R1, ifindex as i32);
        program.set(R2, 0);
        program.call(REDIRECT);
        program.exit();
        program.here(short);
        program.set(R0, XDP_ABORTED);
        program.exit();
        let program = bpf::load(ProgramKind::Xdp, "underpass_flood", &program.finish())?;
        Ok(Self { program, frame: frame.to_owned() })
    }

    /// Sends the frame so many times, as fast as this processor can; the device drops what it has no room for.
    ///
    /// # Errors
    /// The kernel has no such generator (it came with Linux 5.18), or is interrupted by a signal.
    pub fn send(&self, count: u32) -> io::Result<()> {
        bpf::run_live(&self.program, &self.frame, count)
    }
}

/// Makes the veth device `name` of the current namespace receive in polls of its own, as a [`Flood`] needs it.
///
/// # Errors
/// Those of ethtool's ioctl.
pub fn receive_by_polling(name: &str) -> io::Result<()> {
    sys::receive_offload(name)
}
