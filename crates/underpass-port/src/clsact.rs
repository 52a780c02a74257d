//! Programs at the traffic control hooks of a device as filters of a clsact qdisc, for kernels before 6.6,
//! which have no links for them. Unlike a link, a filter stays when the process dies: the next attachment
//! takes its place. rtnetlink(7), net/sched/cls_bpf.c.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::netlink::{attribute, exchange};

/// Ours is the filter of this priority: before those that are made without one, and told apart from others.
pub const PRIORITY: u32 = 0x7570;

const HANDLE: u32 = 1;

/// include/uapi/linux/pkt_sched.h
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;

/// Attributes, include/uapi/linux/{rtnetlink,pkt_cls}.h
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const BPF_FD: u16 = 6;
const BPF_NAME: u16 = 7;
const BPF_FLAGS: u16 = 8;
const ACT_DIRECT: u32 = 1;

/// Where a program runs: on what a device receives, or on what it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hook {
    Ingress,
    Egress,
}

impl Hook {
    /// The parent of its filters: `TC_H_MIN_INGRESS`, `TC_H_MIN_EGRESS` of the clsact qdisc.
    const fn parent(self) -> u32 {
        match self {
            Self::Ingress => 0xffff_fff2,
            Self::Egress => 0xffff_fff3,
        }
    }
}

/// A program at a hook, which is taken away when this is dropped.
#[derive(Debug)]
pub(crate) struct Filter {
    ifindex: u32,
    hook: Hook,
}

impl Filter {
    /// Puts a program at a hook of the device. A clsact qdisc is made if there is none, and stays.
    pub(crate) fn attach(program: &OwnedFd, ifindex: u32, hook: Hook) -> io::Result<Self> {
        const CREATE: i32 = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let kind = attribute(TCA_KIND, b"clsact\0");
        match request(libc::RTM_NEWQDISC, CREATE, ifindex, [CLSACT_HANDLE, CLSACT, 0], &kind) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
            _ => {}
        }
        // What a process that was killed has left.
        let filter = Self { ifindex, hook };
        let _ = filter.delete();
        let options = [
            attribute(BPF_FD, &program.as_raw_fd().to_ne_bytes()),
            attribute(BPF_NAME, b"underpass\0"),
            attribute(BPF_FLAGS, &ACT_DIRECT.to_ne_bytes()),
        ];
        let attributes = [attribute(TCA_KIND, b"bpf\0"), attribute(TCA_OPTIONS, &options.concat())].concat();
        request(libc::RTM_NEWTFILTER, CREATE, ifindex, filter.place(), &attributes)?;
        Ok(filter)
    }

    /// Handle, parent, and priority with protocol.
    fn place(&self) -> [u32; 3] {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        [HANDLE, self.hook.parent(), PRIORITY << 16 | u32::from(protocol)]
    }

    fn delete(&self) -> io::Result<()> {
        let kind = attribute(TCA_KIND, b"bpf\0");
        request(libc::RTM_DELTFILTER, 0, self.ifindex, self.place(), &kind)
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // The device may be gone, and its filters with it.
        let _ = self.delete();
    }
}

/// Sends a request about `struct tcmsg` and waits for its acknowledgement.
fn request(kind: u16, flags: i32, ifindex: u32, message: [u32; 3], attributes: &[u8]) -> io::Result<()> {
    let [handle, parent, info] = message;
    let body = [0, ifindex, handle, parent, info].map(u32::to_ne_bytes).concat();
    exchange(libc::NETLINK_ROUTE, kind, flags | libc::NLM_F_ACK, &[&body, attributes].concat()).map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use super::*;
    use crate::kernel_frames::KernelFrames;
    use crate::sys;
    use crate::xdp::bpf::ProgramKind;
    use crate::xdp::program;

    /// As a kernel without links at these hooks would have it: what a killed process left is replaced, and
    /// nothing stays in the end.
    #[test]
    fn filters_come_and_go() {
        let test = || {
            let kernel_frames = KernelFrames::new();
            // SAFETY: no memory is passed; the thread ends with the test.
            let made = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            let (Ok(_), 0) = (kernel_frames.maps(), made) else {
                eprintln!("SKIPPED filters_come_and_go: needs the right to load BPF programs");
                return;
            };
            let ifindex = sys::index_of("lo").unwrap();
            let filters = |hook| {
                let words = ["filter", "show", "dev", "lo", hook];
                let output = std::process::Command::new("tc").args(words).output().unwrap();
                String::from_utf8(output.stdout).unwrap().matches("underpass direct-action").count()
            };
            let program = program::load(ProgramKind::Classifier, &kernel_frames, None).unwrap();
            std::mem::forget(Filter::attach(&program, ifindex, Hook::Ingress).unwrap());
            let ingress = Filter::attach(&program, ifindex, Hook::Ingress).unwrap();
            let egress = Filter::attach(&program, ifindex, Hook::Egress).unwrap();
            assert_eq!((filters("ingress"), filters("egress")), (1, 1));
            drop((ingress, egress));
            assert_eq!((filters("ingress"), filters("egress")), (0, 0));
        };
        std::thread::spawn(test).join().unwrap();
    }
}
