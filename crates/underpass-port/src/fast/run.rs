//! The program over one frame, without a device that it comes by: `BPF_PROG_TEST_RUN`. For tests and measurements.

use std::io;
use std::time::Duration;

use super::device::Fast;
use super::emit::{TCX_DROP, TCX_REDIRECT, sk_buff};
use crate::xdp::bpf;
use crate::xdp::program::TCX_NEXT;

/// What the program said of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is the kernel's.
    Kept,
    /// It ends here.
    Dropped,
    /// It goes on by a device, or to a worker by the device for misses: the counters tell.
    Redirected,
}

/// Most bytes that a run puts before a frame.
const GROWTH: usize = 1024;
/// `struct __sk_buff`.
const CONTEXT: usize = 192;

impl Fast {
    /// Runs the program over a frame, as if it had come in by the device of this index. `left` becomes the frame as it is
    /// then. Nothing is sent, but what is counted is counted.
    ///
    /// # Errors
    /// EINVAL: the frame ends within its Ethernet or IP header, or is as long as a page, or there is no such device. EPERM.
    pub fn run(&self, frame: &[u8], ifindex: u32, left: &mut Vec<u8>) -> io::Result<Verdict> {
        left.resize(frame.len() + GROWTH, 0);
        self.ran(frame, ifindex, left).map(|(verdict, _)| verdict)
    }

    /// The same without what becomes of the frame; how long the program took, as the kernel says.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn time(&self, frame: &[u8], ifindex: u32) -> io::Result<(Verdict, Duration)> {
        self.ran(frame, ifindex, &mut Vec::new())
    }

    fn ran(&self, frame: &[u8], ifindex: u32, left: &mut Vec<u8>) -> io::Result<(Verdict, Duration)> {
        let mut context = [0; CONTEXT];
        let at = sk_buff::IFINDEX as usize;
        context[at..at + 4].copy_from_slice(&ifindex.to_ne_bytes());
        let ran = bpf::run_once(self.program(), frame, &context, left)?;
        let verdict = match ran.verdict.cast_signed() {
            TCX_NEXT => Verdict::Kept,
            TCX_DROP => Verdict::Dropped,
            TCX_REDIRECT => Verdict::Redirected,
            other => return Err(io::Error::other(format!("the program says {other}"))),
        };
        Ok((verdict, ran.duration))
    }
}
