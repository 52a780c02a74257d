//! What leaves by an AF_PACKET port: by its AF_XDP socket, or with what the kernel has to be told of it.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use arrayvec::ArrayVec;
use underpass_engine::buffer::{BURST, Offload, Packet, Pool};
use underpass_engine::offload::{self, Leaves, Tunnel};
use underpass_packet::ethernet;

use super::{ADDRESSES, PacketPort, SEND_BUFFER, TAG, bind, outer_tag, packet_option};
use crate::sys;
use crate::vnet;
use crate::xdp::tunnel;

/// A control message that marks a packet.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    mark: u32,
    _padding: u32,
}

/// By which socket packets leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Socket {
    /// The kernel needs to know nothing of it: AF_XDP.
    Plain,
    /// Its checksum is not finished, or it is long.
    Told,
    /// It stands for several.
    Segment,
}

impl Socket {
    fn of(packet: &Packet) -> Self {
        match packet.offload() {
            Some(Offload { segment: Some(_), .. }) => Self::Segment,
            None if !packet.has_offload() && !packet.is_large() => Self::Plain,
            _ => Self::Told,
        }
    }
}

impl PacketPort {
    /// Sends packets, and gives them to the pool.
    pub fn send(&mut self, pool: &mut Pool, packets: impl Iterator<Item = Packet>) {
        let mut batch = ArrayVec::<Packet, BURST>::new();
        let mut batch_way = Socket::Plain;
        for mut packet in packets {
            // What came before leaves before.
            let mut way = Socket::of(&packet);
            if packet.len() > self.longest && self.needs_its_tag_beside(&packet, way) {
                self.flush(pool, &mut batch, batch_way);
                let Some(left) = self.send_beside(pool, packet) else { continue };
                (way, packet) = (Socket::of(&left), left);
            }
            if batch.is_full() || way != batch_way {
                self.flush(pool, &mut batch, batch_way);
                batch_way = way;
            }
            match offload::leaves(&packet) {
                Leaves::Whole => batch.push(packet),
                Leaves::Tunnelled(tunnel) => {
                    self.flush(pool, &mut batch, way);
                    self.send_tunnelled(pool, packet, tunnel, &mut batch);
                }
                Leaves::Cut => {
                    self.flush(pool, &mut batch, way);
                    self.send_cut(pool, packet, &mut batch);
                }
            }
        }
        self.flush(pool, &mut batch, batch_way);
        if let Some(port) = self.plain.as_mut().filter(|port| port.is_away()) {
            port.send(pool, std::iter::empty());
        }
    }

    /// Whether a frame that is longer than one without tags is too long for who counts its outer tag, too: of the kernel's
    /// own VLAN devices, that tag is beside the frame. An AF_PACKET socket admits the length of one tag, if that is of 802.1Q,
    /// and all but [`Socket::Plain`] pass by it; so does one device to another in the same kernel, as the two ends of a
    /// pair, with a tag of any kind.
    fn needs_its_tag_beside(&self, packet: &Packet, way: Socket) -> bool {
        way != Socket::Segment
            && outer_tag(packet.bytes()).is_some_and(|[ethertype, _]| {
                let admitted = way == Socket::Plain && self.has_xdp() || ethertype == ethernet::VLAN;
                !admitted || packet.len() > self.longest + TAG
            })
    }

    /// Why its queue of AF_XDP cannot be opened again: [`XdpPort::take_trouble`].
    pub(crate) fn take_trouble(&mut self) -> Option<(u32, io::Error)> {
        self.plain.as_mut()?.take_trouble()
    }

    /// Whether plain packets leave by AF_XDP.
    fn has_xdp(&self) -> bool {
        self.plain.as_ref().is_some_and(|port| !port.is_away())
    }

    /// Sends a frame with its outer tag beside it. A packet that is left has to be sent as it is: nothing can put the tag
    /// there, or the frame would be too long without it, too.
    #[cold]
    fn send_beside(&mut self, pool: &mut Pool, mut packet: Packet) -> Option<Packet> {
        let inner = packet.bytes().get(TAG..).and_then(outer_tag);
        let admitted = self.longest + if inner.is_some() { 2 * TAG } else { TAG };
        let Some(outer) = outer_tag(packet.bytes()).filter(|_| self.tunnels && packet.len() <= admitted)
        else {
            // Of AF_XDP, nobody asks for the length.
            if self.has_xdp() && !packet.is_large() {
                offload::finish(&mut packet);
            }
            return Some(packet);
        };
        packet.bytes_mut().copy_within(..ADDRESSES, TAG);
        packet.pull(TAG);
        let inner_is_service = inner.is_some_and(|[ethertype, _]| ethertype == ethernet::SERVICE_VLAN);
        if inner_is_service && let Some(field) = packet.bytes_mut().get_mut(ADDRESSES..ADDRESSES + 2) {
            field.copy_from_slice(&ethernet::VLAN.to_be_bytes());
        }
        self.send_marked(&packet, tunnel::mark_of_tag(outer, inner_is_service));
        pool.give(packet);
        None
    }

    /// Sends what has been gathered.
    fn flush(&mut self, pool: &mut Pool, batch: &mut ArrayVec<Packet, BURST>, way: Socket) {
        match &mut self.plain {
            Some(port) if way == Socket::Plain && !port.is_away() => port.send(pool, batch.drain(..)),
            _ if way == Socket::Segment => self.send_batch(pool, batch, self.segments.as_raw_fd()),
            _ => self.send_batch(pool, batch, self.sender()),
        }
    }

    /// Sends a segment inside a tunnel, whole if that works here.
    fn send_tunnelled(
        &mut self,
        pool: &mut Pool,
        mut packet: Packet,
        tunnel: Tunnel,
        batch: &mut ArrayVec<Packet, BURST>,
    ) {
        let Some(mark) = tunnel::mark(tunnel).filter(|_| self.tunnels) else {
            return self.send_cut(pool, packet, batch);
        };
        if tunnel.summed {
            match offload::make_even(&mut packet, pool) {
                Ok(last) => batch.extend(last),
                Err(offload::Uneven) => return self.send_cut(pool, packet, batch),
            }
        }
        self.send_marked(&packet, mark);
        pool.give(packet);
        self.send_batch(pool, batch, self.segments.as_raw_fd());
    }

    /// Sends a packet past the program that this mark is for.
    fn send_marked(&mut self, packet: &Packet, mark: u32) {
        let header = vnet::write(packet, 0);
        let part =
            |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut parts = [part(&header), part(packet.bytes())];
        let mut control = Control {
            // SAFETY: a C struct of integers, valid with all bytes zero.
            header: unsafe { mem::zeroed() },
            mark,
            _padding: 0,
        };
        control.header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<u32>()) as _;
        (control.header.cmsg_level, control.header.cmsg_type) = (libc::SOL_SOCKET, libc::SO_MARK);
        // SAFETY: a C struct of integers and pointers, valid with all bytes zero.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>() as _;
        // SAFETY: the kernel reads the parts and the control message, which are ours and of these lengths.
        if unsafe { libc::sendmsg(self.segments.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) } < 0 {
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS) => self.tally.queue_full += 1,
                Some(libc::EMSGSIZE) => self.tally.too_long += 1,
                _ => self.tally.send_errors += 1,
            }
        }
    }

    /// Sends the parts of a segment that the kernel cannot cut.
    #[cold]
    fn send_cut(&mut self, pool: &mut Pool, packet: Packet, batch: &mut ArrayVec<Packet, BURST>) {
        let Some(mut cut) = offload::Cut::new(&packet) else {
            self.tally.malformed += 1;
            return pool.give(packet);
        };
        while let Some(part) = cut.next(&packet, pool) {
            let Ok(mut part) = part else {
                self.tally.no_buffer += 1;
                break;
            };
            if part.len() > self.longest && self.needs_its_tag_beside(&part, Socket::Told) {
                self.send_batch(pool, batch, self.sender());
                let Some(left) = self.send_beside(pool, part) else { continue };
                part = left;
            }
            if batch.is_full() {
                self.send_batch(pool, batch, self.sender());
            }
            batch.push(part);
        }
        self.send_batch(pool, batch, self.sender());
        self.tally.cut += 1;
        pool.give(packet);
    }

    fn send_batch(&mut self, pool: &mut Pool, batch: &mut ArrayVec<Packet, BURST>, fd: RawFd) {
        let mut parts = ArrayVec::<[libc::iovec; 2], BURST>::new();
        for (packet, header) in batch.iter_mut().zip(self.headers.iter_mut()) {
            *header = vnet::write(packet, 0);
            let bytes = packet.bytes_mut();
            parts.push([
                libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: vnet::LEN },
                libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() },
            ]);
        }
        let mut messages = ArrayVec::<libc::mmsghdr, BURST>::new();
        for part in &mut parts {
            // SAFETY: a C struct of integers and pointers, valid with all bytes zero.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part.as_mut_ptr(), part.len());
            messages.push(message);
        }
        let mut rest = messages.as_mut_slice();
        let mut again = true;
        while !rest.is_empty() {
            let count = rest.len() as u32;
            // SAFETY: the messages name memory of `headers` and `batch`, which lives on, and its lengths.
            let sent = unsafe { libc::sendmmsg(fd, rest.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
            if sent > 0 {
                rest = rest.get_mut(sent as usize..).unwrap_or_default();
                again = true;
                continue;
            }
            // The first of them is the one that the error is about.
            let error = io::Error::last_os_error().raw_os_error();
            if matches!(error, Some(libc::EAGAIN | libc::ENOBUFS)) && mem::take(&mut again) {
                continue;
            }
            match error {
                Some(libc::EAGAIN | libc::ENOBUFS) => self.tally.queue_full += 1,
                Some(libc::EMSGSIZE) => self.tally.too_long += 1,
                _ => self.tally.send_errors += 1,
            }
            rest = rest.get_mut(1..).unwrap_or_default();
            again = true;
        }
        batch.drain(..).for_each(|packet| pool.give(packet));
    }
}

/// A socket that only sends: through the kernel's queues and past the hook where [`tunnel`]'s program is attached, unless it
/// is told otherwise.
pub(super) fn open_sender(ifindex: u32) -> io::Result<OwnedFd> {
    let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    let fd = socket.as_raw_fd();
    sys::set_option(fd, libc::SOL_PACKET, packet_option::VNET_HDR, &1_i32)?;
    let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER);
    bind(fd, ifindex, 0)?;
    Ok(socket)
}
