//! The program over one frame, without a device that it comes by: `BPF_PROG_TEST_RUN`. For tests and measurements.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::device::Fast;
use super::emit::{Hook, TCX_DROP, TCX_REDIRECT, XDP_DROP, XDP_REDIRECT, sk_buff};
use super::traced::Matching;
use crate::xdp::bpf;
use crate::xdp::program::{TCX_NEXT, XDP_PASS};

/// What the program said of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is the kernel's, or that of the program at tcx.
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

/// Where `struct xdp_md` has the frame's end and the interface index, and how long it is.
const XDP_DATA_END: usize = 4;
const XDP_IFINDEX: usize = 12;
const XDP_CONTEXT: usize = 24;

impl Fast {
    /// Runs the program of a hook over a frame, as if it had come in by the device of this index: at tcx its first tag is beside it
    /// while the program runs. `left` becomes the frame as
    /// it is then. Nothing is sent, but what is counted is counted.
    ///
    /// # Errors
    /// EINVAL: the frame ends within its Ethernet or IP header, or is as long as a page, or there is no such device. EPERM.
    pub fn run(&self, hook: Hook, frame: &[u8], ifindex: u32, left: &mut Vec<u8>) -> io::Result<Verdict> {
        left.resize(frame.len() + GROWTH, 0);
        let program = if hook == Hook::Tcx { self.around()? } else { self.program(hook)? };
        self.ran((hook, program), None, frame, ifindex, left).map(|(verdict, _)| verdict)
    }

    /// The same at tcx behind the program that says what is traced.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_behind(
        &self,
        first: &Matching,
        frame: &[u8],
        ifindex: u32,
        left: &mut Vec<u8>,
    ) -> io::Result<Verdict> {
        left.resize(frame.len() + GROWTH, 0);
        self.ran((Hook::Tcx, self.around()?), Some(first), frame, ifindex, left).map(|(verdict, _)| verdict)
    }

    /// The same at tcx, of a frame without a tag, without what becomes of it; how long the program took, as the kernel says.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn time(&self, frame: &[u8], ifindex: u32) -> io::Result<(Verdict, Duration)> {
        self.ran((Hook::Tcx, self.program(Hook::Tcx)?), None, frame, ifindex, &mut Vec::new())
    }

    fn ran(
        &self,
        (hook, program): (Hook, &OwnedFd),
        first: Option<&Matching>,
        frame: &[u8],
        ifindex: u32,
        left: &mut Vec<u8>,
    ) -> io::Result<(Verdict, Duration)> {
        let mut context = [0; CONTEXT];
        let put = |context: &mut [u8], at: usize, value: u32| {
            context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        let context = match hook {
            Hook::Tcx => {
                put(&mut context, sk_buff::IFINDEX as usize, ifindex);
                if let Some(first) = first {
                    context = bpf::run_for_context(first.program(), frame, &context)?;
                }
                &context[..]
            }
            Hook::Xdp => {
                put(&mut context, XDP_DATA_END, frame.len() as u32);
                put(&mut context, XDP_IFINDEX, ifindex);
                &context[..XDP_CONTEXT]
            }
        };
        let ran = bpf::run_once(program, frame, context, left)?;
        let verdict = match (hook, ran.verdict.cast_signed()) {
            (Hook::Tcx, TCX_NEXT) | (Hook::Xdp, XDP_PASS) => Verdict::Kept,
            (Hook::Tcx, TCX_DROP) | (Hook::Xdp, XDP_DROP) => Verdict::Dropped,
            (Hook::Tcx, TCX_REDIRECT) | (Hook::Xdp, XDP_REDIRECT) => Verdict::Redirected,
            (_, other) => return Err(io::Error::other(format!("the program says {other}"))),
        };
        Ok((verdict, ran.duration))
    }
}
