//! The kernel of the network namespace, beside which the router lives.
//!
//! [`Kernel`] keeps the router's mirror of what the kernel has: one socket is a member of the multicast
//! groups and reads the dumps too, so that what it reads is in the order in which it happened. When the
//! kernel could not report everything (`ENOBUFS`), all is dumped anew and compared.

mod filters;
mod namespace;
mod requester;
mod socket;
mod solicit;
mod spanning_tree;
mod vrf;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use underpass_control::{PROTOCOL, Router, VrfDoor};
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::{Message, messages};

pub use filters::{Bypassed, Filters};
pub use namespace::{Made, Own};
pub use requester::Requester;
use socket::Socket;
pub use solicit::solicit;

const RTM_GETNEXTHOP: u16 = 106;
const RTNLGRP_NEXTHOP: u32 = 32;

/// What is dumped, in this order: what routes lead to comes before them.
const DUMPS: [(u16, i32); 8] = [
    (libc::RTM_GETLINK, libc::AF_UNSPEC),
    (libc::RTM_GETADDR, libc::AF_UNSPEC),
    (libc::RTM_GETNEIGH, libc::AF_UNSPEC),
    (RTM_GETNEXTHOP, libc::AF_UNSPEC),
    (libc::RTM_GETROUTE, libc::AF_INET),
    (libc::RTM_GETROUTE, libc::AF_INET6),
    (libc::RTM_GETRULE, libc::AF_INET),
    (libc::RTM_GETRULE, libc::AF_INET6),
];

const GROUPS: [u32; 10] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_TC,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV6_RULE,
    RTNLGRP_NEXTHOP,
];

/// Longest datagram of the kernel that is read, in bytes; its dumps come in parts of 32 KiB.
const DATAGRAM: usize = 256 << 10;
/// Datagrams read before others have their turn.
const BURST: usize = 64;
/// A dump that changes interrupted is done again, but not for ever: what changes is reported besides.
const INTERRUPTIONS: u8 = 3;
/// Longest `struct rtmsg`-like header in a dump request.
const FIXED: usize = 16;
/// `IFLA_EXT_MASK` of the dump of links: no statistics (`RTEXT_FILTER_SKIP_STATS`).
const SKIP_STATS: u32 = 1 << 3;

/// A re-dump of all that is mirrored.
#[derive(Debug)]
struct Sync {
    /// Which of [`DUMPS`] is being read, and the sequence number of its request.
    step: usize,
    sequence: u32,
    /// Something was lost or interrupted meanwhile: it has to be done again.
    again: bool,
}

/// The mirror's connection to the kernel.
pub struct Kernel {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
    sync: Option<Sync>,
    /// Something was lost: a re-dump begins when what is in the queue has been read.
    lost: bool,
    /// How many re-dumps in a row were done again because they were interrupted.
    interrupted: u8,
    /// Whether all has been read once.
    synchronised: bool,
    /// Routes and rules of a router that was here before.
    leftovers: Vec<Vec<u8>>,
    requester: Requester,
    made: Made,
    /// The rules that lead into VRFs.
    doors: Vec<VrfDoor>,
    /// Qdiscs or filters have changed.
    control: bool,
}

impl Kernel {
    /// Connects to the kernel of the network namespace of the calling thread.
    ///
    /// # Errors
    /// What socket(2) and bind(2) say.
    pub fn open() -> io::Result<Self> {
        let groups = GROUPS.iter().fold(0, |mask, group| mask | 1 << (group - 1));
        Ok(Self {
            socket: Socket::open(groups)?,
            buffer: vec![0; DATAGRAM],
            sequence: 0,
            sync: None,
            lost: true,
            interrupted: 0,
            synchronised: false,
            leftovers: Vec::new(),
            requester: Requester::open()?,
            made: Made::default(),
            doors: Vec::new(),
            control: true,
        })
    }

    /// What becomes readable when there is something for [`Kernel::turn`] to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Makes the queue of what the kernel reports this many bytes long. It begins as long as is allowed.
    ///
    /// # Errors
    /// What setsockopt(2) says.
    pub fn shrink_queue(&self, bytes: usize) -> io::Result<()> {
        Ok(setsockopt(&self.socket, sockopt::RcvBufForce, &bytes)?)
    }

    /// Whether the mirror is complete, as far as the kernel has reported.
    pub fn synchronised(&self) -> bool {
        self.synchronised && self.sync.is_none() && !self.lost
    }

    /// Reads until the mirror is complete.
    ///
    /// # Errors
    /// As [`Kernel::turn`], and `TimedOut` if the kernel does not come to an end.
    pub fn synchronise(&mut self, router: &mut Router) -> io::Result<()> {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            self.turn(router)?;
            if self.synchronised() {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::from(1000u16)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Reads all that the kernel has reported so far, for whoever has just changed something and wants to see
    /// it. A dump that is under way goes on by the way.
    ///
    /// # Errors
    /// As [`Kernel::turn`].
    pub fn catch_up(&mut self, router: &mut Router) -> io::Result<()> {
        while self.turn(router)? {}
        Ok(())
    }

    /// Takes into the mirror what the kernel has reported, a bounded amount; says whether there may be more.
    ///
    /// # Errors
    /// What the kernel's socket says and cannot be helped.
    pub fn turn(&mut self, router: &mut Router) -> io::Result<bool> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut outcome = Ok(true);
        for _ in 0..BURST {
            match self.socket.receive(&mut buffer) {
                Ok(Some(length)) => self.take(router, buffer.get(..length).unwrap_or_default()),
                Ok(None) => {
                    // Whatever was told before the dump has been read: none of it can outlive it.
                    outcome = match self.lost && self.sync.is_none() {
                        true => self.begin(router).map(|()| true),
                        false => Ok(false),
                    };
                    break;
                }
                Err(Errno::ENOBUFS) => {
                    if self.synchronised {
                        tracing::warn!("the kernel told more than could be read: all is read anew");
                    }
                    self.lost = true;
                }
                Err(errno) => {
                    outcome = Err(errno.into());
                    break;
                }
            }
        }
        self.buffer = buffer;
        outcome
    }

    fn begin(&mut self, router: &mut Router) -> io::Result<()> {
        self.lost = false;
        self.leftovers.clear();
        router.begin_resync();
        self.sync = Some(Sync { step: 0, sequence: 0, again: false });
        self.request_dump()
    }

    fn request_dump(&mut self) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let Some(sync) = &mut self.sync else { return Ok(()) };
        let Some(&(kind, family)) = DUMPS.get(sync.step) else { return Ok(()) };
        sync.sequence = self.sequence;
        Ok(self.socket.send(&dump_request(kind, family, self.sequence))?)
    }

    fn take(&mut self, router: &mut Router, datagram: &[u8]) {
        for message in messages(datagram) {
            let mine = self.sync.as_ref().is_some_and(|sync| sync.sequence == message.sequence)
                && message.port() == self.socket.port();
            if mine
                && message.flags & NLM_F_DUMP_INTR != 0
                && let Some(sync) = &mut self.sync
            {
                sync.again |= self.interrupted < INTERRUPTIONS;
            }
            // A kernel without next-hop objects answers with an error.
            let end = [libc::NLMSG_DONE as u16, libc::NLMSG_ERROR as u16].contains(&message.kind);
            if mine && end {
                self.dumped(router);
                continue;
            }
            if !self.synchronised && mine && ours(&message) {
                self.leftovers.push(message.bytes.to_vec());
            }
            self.control |= matches!(message.kind, libc::RTM_NEWQDISC..=libc::RTM_GETTFILTER);
            router.mirror(&message);
        }
    }

    /// The end of one dump.
    fn dumped(&mut self, router: &mut Router) {
        let Some(sync) = &mut self.sync else { return };
        sync.step += 1;
        sync.again |= self.lost;
        if sync.step < DUMPS.len() {
            if let Err(error) = self.request_dump() {
                tracing::error!("the kernel cannot be asked: {error}");
                (self.lost, self.sync) = (true, None);
            }
            return;
        }
        // Where something was lost, nothing can be said about what the dump has not named.
        self.interrupted += u8::from(sync.again && !self.lost);
        self.lost |= sync.again;
        self.sync = None;
        if self.lost {
            return;
        }
        self.interrupted = 0;
        router.end_resync();
        if !std::mem::replace(&mut self.synchronised, true) && !self.leftovers.is_empty() {
            self.remove_leftovers();
            router.restore_connected(false);
        }
    }

    /// Removes the routes and rules that a router which was killed has left in the kernel.
    fn remove_leftovers(&mut self) {
        for mut message in std::mem::take(&mut self.leftovers) {
            if let Some([low, high]) = message.get_mut(4..6) {
                // From RTM_NEW… to RTM_DEL….
                [*low, *high] = (u16::from_ne_bytes([*low, *high]) + 1).to_ne_bytes();
            }
            if let Err(error) = self.requester.send(&mut message) {
                tracing::warn!("a route or rule of an earlier router stays: {error}");
            }
        }
    }

    /// What the router asks the kernel by, for [`Router::set_namespace`].
    ///
    /// # Errors
    /// As [`Requester::open`].
    pub fn namespace(&self, indices: BTreeMap<String, u32>) -> io::Result<Own> {
        Own::open(self.made.clone(), indices)
    }

    /// Whether qdiscs or filters have changed since this was last asked.
    pub fn take_control_change(&mut self) -> bool {
        std::mem::take(&mut self.control)
    }

    /// The queues of devices that the router has made.
    pub fn made(&self) -> &Made {
        &self.made
    }

    /// By which the kernel is asked to change something.
    pub fn requester(&mut self) -> &mut Requester {
        &mut self.requester
    }
}

/// Whether a route or rule is one that a router has put into the kernel for itself.
fn ours(message: &Message<'_>) -> bool {
    const FRA_PROTOCOL: u16 = 21;
    match message.kind {
        libc::RTM_NEWROUTE => message.body().get(5) == Some(&PROTOCOL),
        libc::RTM_NEWRULE => {
            let mut protocol = message.attributes(12).filter(|attribute| attribute.kind == FRA_PROTOCOL);
            protocol.any(|protocol| protocol.u8() == PROTOCOL)
        }
        _ => false,
    }
}

/// The request for a dump.
fn dump_request(kind: u16, family: i32, sequence: u32) -> Vec<u8> {
    let to = Address { port: 0, sequence };
    let mut request = Vec::new();
    let mut fixed = [0; FIXED];
    fixed[0] = family as u8;
    let written = write_message(&mut request, kind, NLM_F_REQUEST | NLM_F_DUMP, to, |message| {
        match kind {
            libc::RTM_GETLINK => {
                message.fixed(&fixed);
                message.u32(libc::IFLA_EXT_MASK, SKIP_STATS);
            }
            RTM_GETNEXTHOP | libc::RTM_GETADDR => message.fixed(&fixed[..8]),
            _ => message.fixed(&fixed[..12]),
        };
    });
    debug_assert!(written.is_ok());
    request
}
