//! An AF_PACKET port: a ring for what is received, so that small packets cost no system call, and
//! `sendmmsg` for what is sent, or an AF_XDP socket for packets without offloads. Ring and messages carry a `struct
//! virtio_net_hdr`, so that unfinished checksums and large segments go through as they are. packet(7), Documentation/networking/packet_mmap.rst.
//!
//! A segment that is longer than an entry of the ring waits in the socket's queue, in order: its entry
//! says so.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use underpass_engine::buffer::{BURST, HEADROOM, Packet, Pool};
use underpass_engine::worker::{Burst, Kept};
use underpass_packet::ethernet;

use crate::kernel_frames::KernelFrames;
use crate::live::Tally;
use crate::sys::{self, Mapping};
use crate::vnet;
use crate::xdp::socket::XdpPort;

mod send;

use send::open_sender;

/// Entries of the ring, and bytes of each: a frame of an Ethernet MTU and what the kernel puts before it.
const ENTRIES: usize = 2048;
const ENTRY: usize = 2048;
const BLOCK: usize = 1 << 16;

/// The socket's queue of long segments, in bytes of kernel memory.
const RECEIVE_BUFFER: i32 = 64 << 20;
const SEND_BUFFER: i32 = 16 << 20;

/// How often a socket may say that its device was down before a frame is read.
const ERRORS: usize = 8;

/// include/uapi/linux/if_packet.h
mod packet_option {
    pub(super) const RX_RING: i32 = 5;
    pub(super) const STATISTICS: i32 = 6;
    pub(super) const COPY_THRESH: i32 = 7;
    pub(super) const VERSION: i32 = 10;
    pub(super) const VNET_HDR: i32 = 15;
    pub(super) const FANOUT: i32 = 18;
    pub(super) const QDISC_BYPASS: i32 = 20;
    pub(super) const IGNORE_OUTGOING: i32 = 23;
    pub(super) const TPACKET_V2: i32 = 1;
    /// Spread by the flow; fragments by their addresses, so that all of a packet come to the same. A group does not
    /// take over its sockets' `IGNORE_OUTGOING`.
    pub(super) const FANOUT_FLOWS: u32 = 0x4000 << 16;
    pub(super) const FANOUT_UNIQUE_ID: u32 = 0x2000 << 16;
}

/// Bits of [`Header::status`].
mod status {
    pub(super) const KERNEL: u32 = 0;
    pub(super) const USER: u32 = 1;
    pub(super) const COPY: u32 = 2;
    pub(super) const VLAN_VALID: u32 = 1 << 4;
    pub(super) const TPID_VALID: u32 = 1 << 6;
}

/// `struct tpacket2_hdr`, without its end, which we do not read.
#[repr(C)]
struct Header {
    status: AtomicU32,
    len: u32,
    captured: u32,
    link: u16,
    network: u16,
    seconds: u32,
    nanoseconds: u32,
    tag: u16,
    tag_protocol: u16,
}

/// A VLAN tag that the kernel has taken off a frame: EtherType and control information.
type Tag = [u16; 2];

/// The tag that the kernel says that it has taken off.
fn tag(status: u32, protocol: u16, control: u16) -> Option<Tag> {
    let protocol = if status & status::TPID_VALID != 0 { protocol } else { ethernet::VLAN };
    (status & status::VLAN_VALID != 0).then_some([protocol, control])
}

/// Length of an Ethernet header's addresses, and of a tag behind them.
const ADDRESSES: usize = 12;
const TAG: usize = 4;

/// The outer tag of a frame that has one.
fn outer_tag(frame: &[u8]) -> Option<Tag> {
    let [a, b, c, d] = *frame.get(ADDRESSES..)?.first_chunk()?;
    let [ethertype, control] = [[a, b], [c, d]].map(u16::from_be_bytes);
    matches!(ethertype, ethernet::VLAN | ethernet::SERVICE_VLAN).then_some([ethertype, control])
}

/// Puts it back. Whether there was room.
#[cold]
fn put_back(tag: Tag, packet: &mut Packet) -> bool {
    let Ok(front) = packet.push(TAG) else { return false };
    if front.len() < TAG + ADDRESSES {
        return false;
    }
    front.copy_within(TAG..TAG + ADDRESSES, 0);
    for (to, from) in front.iter_mut().skip(ADDRESSES).zip(tag.map(u16::to_be_bytes).as_flattened()) {
        *to = *from;
    }
    true
}

/// How many sockets a device has.
#[derive(Clone, Copy)]
pub(crate) enum Fanout {
    /// One.
    Alone,
    /// One of a group, between which the flows are spread: of this number, or of a new one, which
    /// [`PacketPort::group`] tells.
    Group(Option<u16>),
}

/// A worker's share of a device that is attached with AF_PACKET.
pub struct PacketPort {
    ring: Mapping,
    next: usize,
    ifindex: u32,
    /// What BPF would do, where there is none.
    kernel_frames: Option<KernelFrames>,
    /// A socket that only sends, for plain packets: a message of `sendmmsg` costs more than a descriptor. `None`
    /// where all queues have one already, or there is no AF_XDP.
    plain: Option<XdpPort>,
    /// A socket for segments. The kernel may have to cut them, which it does not do on the way past its queues, and
    /// announces those inside tunnels on the way through them.
    segments: OwnedFd,
    /// A socket for what else needs a message. `None`: that which receives.
    told: Option<OwnedFd>,
    /// Whether the program for those inside tunnels, and for tags beside a frame, is attached.
    tunnels: bool,
    /// The longest frame without a tag.
    longest: usize,
    /// What has been sent is counted and given back together.
    headers: Box<[[u8; vnet::LEN]; BURST]>,
    tally: Tally,
    kernel_drops: u64,
    /// Behind the ring, which is unmapped before it is closed.
    socket: OwnedFd,
}

/// The longest frame without a tag.
const fn longest(mtu: usize) -> usize {
    mtu + ethernet::Header::LEN
}

impl PacketPort {
    /// Opens a socket for the device: by which frames leave, and where it listens. `filter` is the program that takes the frames for the worker; without
    /// it `keep` says which they are.
    pub(crate) fn open(
        (ifindex, listened): (u32, u32),
        filter: Option<i32>,
        kernel_frames: &KernelFrames,
        fanout: Fanout,
        tunnels: bool,
        plain: Option<XdpPort>,
        mtu: usize,
    ) -> io::Result<Self> {
        use libc::SOL_PACKET;
        // It takes no packet before it is bound.
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        let fd = socket.as_raw_fd();
        sys::set_option(fd, SOL_PACKET, packet_option::VERSION, &packet_option::TPACKET_V2)?;
        sys::set_option(fd, SOL_PACKET, packet_option::VNET_HDR, &1_i32)?;
        sys::set_option(fd, SOL_PACKET, packet_option::COPY_THRESH, &1_i32)?;
        sys::set_option(fd, SOL_PACKET, packet_option::IGNORE_OUTGOING, &1_i32)?;
        sys::set_option(fd, SOL_PACKET, packet_option::QDISC_BYPASS, &1_i32)?;
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER);
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER);
        match filter {
            Some(program) => sys::set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program)?,
            None => attach_classic(fd)?,
        }
        // `struct tpacket_req`
        let (blocks, entries) = ((ENTRIES * ENTRY / BLOCK) as u32, ENTRIES as u32);
        let ring: [u32; 4] = [BLOCK as u32, blocks, ENTRY as u32, entries];
        sys::set_option(fd, SOL_PACKET, packet_option::RX_RING, &ring)?;
        let ring = Mapping::new(fd, ENTRIES * ENTRY, 0)?;
        bind(fd, listened, libc::ETH_P_ALL as u16)?;
        if let Fanout::Group(group) = fanout {
            let group = group.map_or(packet_option::FANOUT_UNIQUE_ID, u32::from);
            sys::set_option(fd, SOL_PACKET, packet_option::FANOUT, &(group | packet_option::FANOUT_FLOWS))?;
        }
        let kernel_frames = filter.is_none().then(|| kernel_frames.clone());
        let (headers, tally) = (Box::new([[0; vnet::LEN]; BURST]), Tally::default());
        let segments = open_sender(ifindex)?;
        let told = if listened == ifindex { None } else { Some(open_sender(ifindex)?) };
        if let Some(told) = &told {
            sys::set_option(told.as_raw_fd(), SOL_PACKET, packet_option::QDISC_BYPASS, &1_i32)?;
        }
        Ok(Self {
            told,
            ring,
            next: 0,
            ifindex,
            kernel_frames,
            plain,
            segments,
            tunnels,
            longest: longest(mtu),
            headers,
            tally,
            kernel_drops: 0,
            socket,
        })
    }

    /// The device has another MTU.
    pub(crate) fn set_mtu(&mut self, mtu: usize) {
        self.longest = longest(mtu);
    }

    /// By which socket leaves what is neither plain nor a segment.
    fn sender(&self) -> RawFd {
        self.told.as_ref().unwrap_or(&self.socket).as_raw_fd()
    }

    /// The group of sockets that share the device.
    pub(crate) fn group(&self) -> io::Result<u16> {
        let fanout = sys::get_option(self.descriptor(), libc::SOL_PACKET, packet_option::FANOUT, 0_u32)?;
        Ok(fanout as u16)
    }

    /// The descriptor that becomes readable when packets come.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Puts the packets that have come into `burst`, as many as it has room for.
    pub fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) {
        while !burst.is_full() {
            let Some(entry) = self.ring.at(self.next * ENTRY, ENTRY) else { return };
            // SAFETY: an entry starts with this header and is aligned to its own length. The kernel writes
            // it while its status says that it has it; the status is only used atomically.
            let status = unsafe { &entry.cast::<Header>().as_ref().status };
            let now = status.load(Ordering::Acquire);
            if now & status::USER == 0 {
                return;
            }
            // SAFETY: as above, and now the entry is ours: nobody writes it until its status says so.
            let header = unsafe { entry.cast::<Header>().as_ref() };
            let (start, len, captured) =
                (usize::from(header.link), header.len as usize, header.captured as usize);
            let tag = tag(now, header.tag_protocol, header.tag);
            // SAFETY: as above; within the mapping, which `at` has checked.
            let bytes = unsafe { std::slice::from_raw_parts(entry.as_ptr(), ENTRY) };
            let received = if now & status::COPY != 0 {
                self.receive_long(pool)
            } else if captured == len
                && let Some(frame) = bytes.get(start..start + len)
                && let Some(offload) = start
                    .checked_sub(vnet::LEN)
                    .and_then(|at| bytes.get(at..))
                    .and_then(|at| at.first_chunk())
            {
                fill(pool, *offload, frame, &mut self.tally)
            } else {
                // Too long for the entry, and the socket's queue was full.
                self.tally.no_buffer += 1;
                None
            };
            status.store(status::KERNEL, Ordering::Release);
            self.next = if self.next + 1 < ENTRIES { self.next + 1 } else { 0 };
            let Some(mut packet) = received else { continue };
            if let Some(tag) = tag
                && !put_back(tag, &mut packet)
            {
                self.tally.malformed += 1;
                pool.give(packet);
                continue;
            }
            match &self.kernel_frames {
                Some(kernel_frames) if kernel_frames.kept(self.ifindex, packet.bytes()) == Kept::Yes => {
                    pool.give(packet)
                }
                _ => burst.push(packet),
            }
        }
    }

    /// Reads a frame that was too long for the ring.
    #[cold]
    fn receive_long(&mut self, pool: &mut Pool) -> Option<Packet> {
        let mut header = [0; vnet::LEN];
        let Some(mut packet) = pool.take_large() else {
            self.tally.no_buffer += 1;
            // It is first in the queue: it has to go.
            self.read_first(&mut header, &mut []);
            return None;
        };
        let room = packet.slot_mut().get_mut(HEADROOM..).unwrap_or_default();
        let len = self.read_first(&mut header, room);
        if len.is_none_or(|len| packet.place(HEADROOM, len).is_err())
            || vnet::read(header, 0, &mut packet).is_err()
        {
            self.tally.malformed += 1;
            pool.give(packet);
            return None;
        }
        Some(packet)
    }

    /// Takes the first frame out of the socket's queue; returns its length, if it was read whole.
    ///
    /// That a device is down, or was, the socket says once, and takes nothing out: who left it at that would have a frame
    /// too many in the queue from then on, find each a turn late, and never sleep again.
    fn read_first(&mut self, header: &mut [u8; vnet::LEN], room: &mut [u8]) -> Option<usize> {
        let mut parts = [
            libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() },
            libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() },
        ];
        // SAFETY: a C struct of integers and pointers, valid with all bytes zero.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
        for _ in 0..ERRORS {
            // SAFETY: the parts are ours and of the lengths that are said.
            let len = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
            if len >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENETDOWN) {
                let len = usize::try_from(len).ok().and_then(|len| len.checked_sub(vnet::LEN));
                return len.filter(|_| message.msg_flags & libc::MSG_TRUNC == 0);
            }
        }
        None
    }

    /// As [`XdpPort::unsent`]; what leaves by the other sockets has left or is dropped.
    pub(crate) fn unsent(&mut self) -> bool {
        self.plain.as_mut().is_some_and(XdpPort::unsent)
    }

    /// What the port itself has dropped or done.
    pub(crate) fn tally(&self) -> Tally {
        let Some(plain) = self.plain.as_ref().map(|port| port.tally) else { return self.tally };
        Tally {
            queue_full: self.tally.queue_full + plain.queue_full,
            send_errors: self.tally.send_errors + plain.send_errors,
            ..self.tally
        }
    }

    /// Closes the sockets and gives the slots back that are with the kernel.
    pub fn close(mut self, pool: &mut Pool) {
        if let Some(port) = self.plain.take() {
            port.close(pool);
        }
    }

    /// What the kernel has dropped as the ring was full.
    pub(crate) fn kernel_drops(&mut self) -> u64 {
        // `struct tpacket_stats`: packets and drops since it was last asked.
        let fd = self.socket.as_raw_fd();
        if let Ok([_, drops]) = sys::get_option(fd, libc::SOL_PACKET, packet_option::STATISTICS, [0_u32; 2]) {
            self.kernel_drops += u64::from(drops);
        }
        self.kernel_drops
    }
}

/// A packet of the pool that holds `frame`.
#[inline]
fn fill(pool: &mut Pool, offload: [u8; vnet::LEN], frame: &[u8], tally: &mut Tally) -> Option<Packet> {
    let Some(mut packet) = pool.take_for(frame.len()) else {
        tally.no_buffer += 1;
        return None;
    };
    packet.bytes_mut().copy_from_slice(frame);
    if vnet::read(offload, 0, &mut packet).is_err() {
        tally.malformed += 1;
        pool.give(packet);
        return None;
    }
    Some(packet)
}

/// Binds a socket to a device and the frames of an EtherType; none, if that is 0.
fn bind(fd: RawFd, ifindex: u32, protocol: u16) -> io::Result<()> {
    sys::bind(fd, &sys::link_address(ifindex, protocol))
}

/// A socket of a device: what is read are frames that come in and go out by it, what is written goes out. Reads do not
/// wait.
///
/// # Errors
/// Those of socket(2) and bind(2): EPERM, ENODEV.
pub fn tap(ifindex: u32) -> io::Result<OwnedFd> {
    let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0)?;
    bind(socket.as_raw_fd(), ifindex, libc::ETH_P_ALL as u16)?;
    Ok(socket)
}

/// Without BPF: group frames never reach the worker, but for those with a tag, which it may have to count.
fn attach_classic(fd: RawFd) -> io::Result<()> {
    /// `SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT`, include/uapi/linux/filter.h.
    const TAG_PRESENT: u32 = (-0x1000_i32 + 48).cast_unsigned();
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, TAG_PRESENT),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 2, 0),
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 1, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}
