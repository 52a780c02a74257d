//! A TUN or TAP device as a port: drivers/net/tun.c. Its other side is the host's, with addresses and
//! sockets. Large segments and unfinished checksums cross it whole.
//!
//! A TUN device carries IP packets. Its port puts an Ethernet header before what it receives and takes it
//! off what it sends, so that the engine sees Ethernet everywhere.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use underpass_engine::buffer::{HEADROOM, Packet, Pool, SLOT};
use underpass_engine::coalesce::Coalescer;
use underpass_engine::offload;
use underpass_engine::worker::Burst;
use underpass_packet::{IntoBytes, ethernet};

use crate::live::Tally;
use crate::{sys, vnet};

/// The router's address on a TUN device: locally administered.
pub const ROUTER_MAC: [u8; 6] = [0x02, 0x75, 0x70, 0, 0, 1];
/// The host's.
pub const HOST_MAC: [u8; 6] = [0x02, 0x75, 0x70, 0, 0, 2];

/// Room for a frame behind the headroom of a slot that is not large.
const SMALL: usize = SLOT - HEADROOM;

/// What a device carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunKind {
    /// IP packets.
    Tun,
    /// Ethernet frames.
    Tap,
}

/// A queue of a TUN or TAP device, which exists as long as one of its queues is open.
pub struct TunPort {
    name: String,
    kind: TunKind,
    /// Slots for the next packet: an ordinary one, and a large one for what does not fit into it.
    slots: Option<(Packet, Packet)>,
    coalescer: Coalescer,
    pub(crate) tally: Tally,
    /// Whether the device takes large UDP segments.
    udp_segments: bool,
    device: File,
}

impl TunPort {
    /// Makes a device of this name, or opens a further queue of the device that an open port has made with
    /// `queues`. It is down and has no address.
    ///
    /// # Errors
    /// EBUSY: there is one already, which is in use or has one queue only. EINVAL: there is one of the other
    /// kind. ENOENT: there is no /dev/net/tun.
    pub fn open(name: &str, kind: TunKind, queues: bool) -> io::Result<Self> {
        Self::open_at(name, kind, queues, 0)
    }

    /// The same; a new device gets this interface index, unless it is 0.
    ///
    /// # Errors
    /// As [`TunPort::open`]; EBUSY if another device has the index.
    pub fn open_at(name: &str, kind: TunKind, queues: bool, index: u32) -> io::Result<Self> {
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")?;
        let mut request = sys::ifreq(name)?;
        let mode = if kind == TunKind::Tun { libc::IFF_TUN } else { libc::IFF_TAP };
        let more = if queues { libc::IFF_MULTI_QUEUE } else { 0 };
        request.ifr_ifru.ifru_flags = (mode | libc::IFF_NO_PI | libc::IFF_VNET_HDR | more) as libc::c_short;
        let fd = device.as_raw_fd();
        if index != 0 {
            // SAFETY: the request takes an int.
            sys::check(unsafe { libc::ioctl(fd, libc::TUNSETIFINDEX, &raw const index) })?;
        }
        // SAFETY: the request takes a `struct ifreq`.
        sys::check(unsafe { libc::ioctl(fd, libc::TUNSETIFF, &raw mut request) })?;
        let length = vnet::LEN as libc::c_int;
        // SAFETY: the request takes an int.
        sys::check(unsafe { libc::ioctl(fd, libc::TUNSETVNETHDRSZ, &raw const length) })?;
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
        // SAFETY: the request takes its argument by value.
        let offload =
            |flags: u32| unsafe { sys::check(libc::ioctl(fd, libc::TUNSETOFFLOAD, u64::from(flags))) };
        // UDP segments came with Linux 6.2.
        let udp_segments = offload(tcp | udp).is_ok();
        if !udp_segments {
            offload(tcp)?;
        }
        Ok(Self {
            name: name.to_owned(),
            kind,
            slots: None,
            coalescer: Coalescer::new(udp_segments),
            tally: Tally::default(),
            udp_segments,
            device,
        })
    }

    /// What keeps the device there, for who neither reads nor writes.
    pub(crate) fn into_device(self) -> File {
        self.device
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The descriptor that becomes readable when packets come.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Bytes of Ethernet header that are made up here.
    const fn made_up(&self) -> usize {
        match self.kind {
            TunKind::Tun => ethernet::Header::LEN,
            TunKind::Tap => 0,
        }
    }

    /// Puts the packets that have come into `burst`, as many as it has room for.
    pub fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) {
        while !burst.is_full() {
            let Some((mut small, mut large)) =
                self.slots.take().or_else(|| pool.take().zip(pool.take_large()))
            else {
                // The packet stays where it is.
                return;
            };
            match self.read(&mut small, &mut large) {
                Ok(true) => {
                    burst.push(large);
                    self.slots = pool.take_large().map(|large| (small, large));
                }
                Ok(false) if small.len() != 0 => {
                    burst.push(small);
                    self.slots = pool.take().map(|small| (small, large));
                }
                Ok(false) => {
                    self.tally.malformed += 1;
                    self.slots = Some((small, large));
                }
                // Nothing there, or the device is down.
                Err(_) => {
                    self.slots = Some((small, large));
                    return;
                }
            }
        }
    }

    /// Reads a packet into the slot that it fits into; whether that is the large one.
    fn read(&mut self, small: &mut Packet, large: &mut Packet) -> io::Result<bool> {
        let made_up = self.made_up();
        let mut header = [0; vnet::LEN];
        let start = HEADROOM + made_up;
        let part =
            |bytes: &mut [u8]| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // What does not fit into the small slot continues in the large one, where it would lie had it been
        // read there whole.
        let parts = [
            part(&mut header),
            part(small.slot_mut().get_mut(start..).unwrap_or_default()),
            part(large.slot_mut().get_mut(HEADROOM + SMALL..).unwrap_or_default()),
        ];
        // SAFETY: the parts are ours and of the lengths that are said.
        let len = unsafe { libc::readv(self.device.as_raw_fd(), parts.as_ptr(), parts.len() as i32) };
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        let len = len.saturating_sub(vnet::LEN) + made_up;
        let is_large = len > SMALL;
        let packet = if is_large {
            let front = small.slot().get(start..).unwrap_or_default();
            if let Some(room) = large.slot_mut().get_mut(start..start + front.len()) {
                room.copy_from_slice(front);
            }
            large
        } else {
            small
        };
        let empty = len <= made_up || packet.place(HEADROOM, len).is_err();
        if empty || !self.complete(packet) || vnet::read(header, made_up, packet).is_err() {
            packet.truncate(0);
            return Ok(false);
        }
        Ok(is_large)
    }

    /// Writes the made-up Ethernet header; not if the packet is not IP.
    fn complete(&self, packet: &mut Packet) -> bool {
        let Some((room, rest)) = packet.bytes_mut().split_at_mut_checked(self.made_up()) else {
            return false;
        };
        if room.is_empty() {
            return true;
        }
        let ethertype = match rest.first().map(|byte| byte >> 4) {
            Some(4) => ethernet::IPV4,
            Some(6) => ethernet::IPV6,
            _ => return false,
        };
        room.copy_from_slice(ethernet::Header::new(ROUTER_MAC, HOST_MAC, ethertype).as_bytes());
        true
    }

    /// Sends packets, TCP segments and UDP datagrams that follow each other as one, and gives them to the pool.
    pub fn send(&mut self, pool: &mut Pool, packets: impl Iterator<Item = Packet>) {
        self.tally.coalesced += self.coalescer.put(pool, packets);
        while let Some(packet) = self.coalescer.next() {
            let udp = packet.has_offload() && offload::is_udp_segment(&packet);
            if offload::leaves(&packet) != offload::Leaves::Whole || (udp && !self.udp_segments) {
                self.send_cut(pool, &packet);
            } else {
                self.write(&packet);
            }
            pool.give(packet);
        }
    }

    #[cold]
    fn send_cut(&mut self, pool: &mut Pool, packet: &Packet) {
        let Some(mut cut) = offload::Cut::new(packet) else {
            self.tally.malformed += 1;
            return;
        };
        while let Some(part) = cut.next(packet, pool) {
            let Ok(part) = part else {
                self.tally.no_buffer += 1;
                break;
            };
            self.write(&part);
            pool.give(part);
        }
        self.tally.cut += 1;
    }

    fn write(&mut self, packet: &Packet) {
        let made_up = self.made_up();
        let header = vnet::write(packet, made_up);
        let bytes = packet.bytes().get(made_up..).unwrap_or_default();
        let part =
            |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let parts = [part(&header), part(bytes)];
        // SAFETY: the kernel reads the parts, which are ours and of the lengths that are said.
        if unsafe { libc::writev(self.device.as_raw_fd(), parts.as_ptr(), parts.len() as i32) } < 0 {
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS) => self.tally.queue_full += 1,
                _ => self.tally.send_errors += 1,
            }
        }
    }

    /// Closes the queue, and the device with its last one.
    pub fn close(mut self, pool: &mut Pool) {
        if let Some((small, large)) = self.slots.take() {
            pool.give(small);
            pool.give(large);
        }
    }
}
