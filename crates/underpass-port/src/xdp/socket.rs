//! An AF_XDP port: a socket for each queue of a device that this worker serves.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use underpass_engine::buffer::{Packet, Pool, SLOT};
use underpass_engine::offload;
use underpass_engine::worker::Burst;

use super::bpf::Map;
use super::ring::Ring;
use super::umem::{Holder, Memory};
use crate::live::Tally;
use crate::sys;

/// Entries of each ring.
const RING: u32 = 2048;

/// Slots that wait for packets in each queue: what may come in while the worker is elsewhere.
const FILL: u32 = 1024;

/// setsockopt: how many packets one sendto(2) sends. The kernel's own is 32. include/uapi/linux/if_xdp.h.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// Times that the kernel is asked to send on without having sent anything.
const STALLS: u32 = 4;

/// A worker's share of a device that is attached with XDP.
pub struct XdpPort {
    queues: Vec<Queue>,
    /// The queue that is received from first, the next time.
    turn: usize,
    memory: Memory,
    /// Frames may have unfinished checksums and stand for several, of which AF_XDP says nothing.
    unsaid: bool,
    /// Bytes of an IP packet that came in by the device as it was sent; more is a large segment.
    mtu: usize,
    pub(crate) tally: Tally,
}

struct Queue {
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    /// Slots lent for packets that come, filled or not.
    lent: u32,
    holder: Holder,
    /// A packet of several descriptors, of which some are still to come.
    partial: Partial,
    /// Behind the rings: they are unmapped before it is closed, else its queue is not free afterwards.
    socket: OwnedFd,
}

/// A frame that comes in several pieces.
enum Partial {
    None,
    Some(Packet),
    /// There was no room for it.
    Lost,
}

impl XdpPort {
    /// Opens a socket for each of `queues` of the device, over `memory`, and enters it into `sockets`.
    pub(crate) fn open(
        ifindex: u32,
        queues: &[u32],
        memory: &Memory,
        pool: &mut Pool,
        sockets: &Map,
        unsaid: bool,
        mtu: usize,
    ) -> io::Result<Self> {
        let (memory, queues_wanted) = (memory.clone(), queues);
        let (queues, tally) = (Vec::new(), Tally::default());
        let mut port = Self { queues, turn: 0, memory, unsaid, mtu, tally };
        for &queue in queues_wanted {
            match sys::soon(|| Queue::open(ifindex, queue, &port.memory)) {
                Ok(mut opened) => {
                    opened.refill(&port.memory, pool);
                    let fd = opened.socket.as_raw_fd();
                    port.queues.push(opened);
                    if let Err(error) = sockets.insert(&queue.to_ne_bytes(), &fd.to_ne_bytes()) {
                        port.close(pool);
                        return Err(error);
                    }
                }
                Err(error) => {
                    port.close(pool);
                    return Err(error);
                }
            }
        }
        Ok(port)
    }

    /// A port that only sends.
    pub(crate) fn sender(ifindex: u32, queue: u32, memory: &Memory) -> io::Result<Self> {
        let queues = vec![Queue::open(ifindex, queue, memory)?];
        let (memory, tally) = (memory.clone(), Tally::default());
        Ok(Self { queues, turn: 0, memory, unsaid: false, mtu: 0, tally })
    }

    /// The descriptors that become readable when packets come.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.queues.iter().map(|queue| queue.socket.as_raw_fd())
    }

    /// Puts the packets that have come into `burst`, as many as it has room for.
    pub fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) {
        for _ in 0..self.queues.len() {
            self.turn = if self.turn + 1 < self.queues.len() { self.turn + 1 } else { 0 };
            let Some(queue) = self.queues.get_mut(self.turn) else { return };
            let before = burst.len();
            queue.receive(&self.memory, pool, burst, &mut self.tally);
            if self.unsaid {
                for packet in burst.iter_mut().skip(before) {
                    offload::find(packet, self.mtu);
                }
            }
        }
    }

    /// Sends packets, and gives them to the pool when they are gone.
    pub fn send(&mut self, pool: &mut Pool, packets: impl Iterator<Item = Packet>) {
        let Some(queue) = self.queues.first_mut() else {
            return packets.for_each(|packet| pool.give(packet));
        };
        queue.complete(&self.memory, pool);
        for packet in packets {
            if packet.has_offload() || packet.is_large() {
                queue.send_unusual(&self.memory, pool, packet, &mut self.tally);
            } else {
                queue.send(&self.memory, pool, packet, &mut self.tally);
            }
        }
        queue.flush(&mut self.tally);
    }

    /// Whether something that was to be sent is still here: the device was down, or busy. The next call of
    /// [`XdpPort::send`] tries again, also without packets.
    pub(crate) fn unsent(&mut self) -> bool {
        self.queues.first_mut().is_some_and(|queue| queue.transmit.pending() != 0)
    }

    /// Closes the sockets and gives all of their slots back.
    pub fn close(mut self, pool: &mut Pool) {
        for queue in std::mem::take(&mut self.queues) {
            let Queue { holder, partial, .. } = queue;
            self.memory.forget(holder);
            if let Partial::Some(packet) = partial {
                pool.give(packet);
            }
            drop((queue.receive, queue.transmit, queue.fill, queue.completion));
            drop(queue.socket);
            self.memory.release(holder).for_each(|packet| pool.give(packet));
        }
    }

    /// What the kernel has dropped before it reached the port: no slot, no room in a ring, too long.
    pub(crate) fn kernel_drops(&self) -> u64 {
        let drops = self.queues.iter().map(|queue| {
            let none = libc::xdp_statistics {
                rx_dropped: 0,
                rx_invalid_descs: 0,
                tx_invalid_descs: 0,
                rx_ring_full: 0,
                rx_fill_ring_empty_descs: 0,
                tx_ring_empty_descs: 0,
            };
            let fd = queue.socket.as_raw_fd();
            // `rx_fill_ring_empty_descs` counts attempts, each of which is in `rx_dropped` too.
            sys::get_option(fd, libc::SOL_XDP, libc::XDP_STATISTICS, none)
                .map_or(0, |counted| counted.rx_dropped + counted.rx_ring_full)
        });
        drops.sum()
    }
}

impl Drop for XdpPort {
    /// Without [`XdpPort::close`] the slots are lost, but no other socket is led to these.
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| self.memory.forget(queue.holder));
    }
}

impl Queue {
    fn open(ifindex: u32, queue: u32, memory: &Memory) -> io::Result<Self> {
        let socket = sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0)?;
        let fd = socket.as_raw_fd();
        for option in
            [libc::XDP_RX_RING, libc::XDP_TX_RING, libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING]
        {
            sys::set_option(fd, libc::SOL_XDP, option, &RING)?;
        }
        // A socket that shares its memory takes on these flags from the first. AF_XDP without copies would
        // need the chunks not to cross pages.
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP | libc::XDP_USE_SG,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let nothing = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
        let offsets = libc::xdp_mmap_offsets { rx: nothing, tx: nothing, fr: nothing, cr: nothing };
        let offsets = sys::get_option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, offsets)?;
        // Not there before Linux 6.14: 32 packets a call then.
        let _ = sys::set_option(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &RING);
        // What is on its way out counts against this.
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(16_i32 << 20));
        let receive = Ring::map(fd, RING, &offsets.rx, libc::XDP_PGOFF_RX_RING)?;
        let transmit = Ring::map(fd, RING, &offsets.tx, libc::XDP_PGOFF_TX_RING)?;
        let fill = Ring::map(fd, RING, &offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING as i64)?;
        let completion = Ring::map(fd, RING, &offsets.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64)?;
        let holder = memory.bind(fd, address)?;
        let partial = Partial::None;
        Ok(Self { receive, transmit, fill, completion, lent: 0, holder, partial, socket })
    }

    #[inline]
    fn receive(&mut self, memory: &Memory, pool: &mut Pool, burst: &mut Burst, tally: &mut Tally) {
        let count = self.receive.available().min(burst.remaining_capacity() as u32);
        for _ in 0..count {
            let descriptor = self.receive.take();
            let Some(packet) = memory.received(self.holder, descriptor.addr, descriptor.len) else {
                tally.malformed += 1;
                continue;
            };
            self.lent = self.lent.saturating_sub(1);
            if descriptor.options & libc::XDP_PKT_CONTD == 0 && matches!(self.partial, Partial::None) {
                burst.push(packet);
            } else if let Some(whole) = self.join(pool, packet, descriptor.options, tally) {
                burst.push(whole);
            }
        }
        if count != 0 {
            self.receive.consume();
        }
        if self.lent < FILL {
            self.refill(memory, pool);
        }
    }

    /// Lends slots for packets to come, up to [`FILL`].
    fn refill(&mut self, memory: &Memory, pool: &mut Pool) {
        let wanted = FILL.saturating_sub(self.lent);
        for _ in 0..wanted.min(self.fill.room(wanted)) {
            let Some(packet) = pool.take() else { break };
            match memory.lend(self.holder, packet) {
                Ok(address) => {
                    self.fill.put(address);
                    self.lent += 1;
                }
                // A slot of other memory would never do.
                Err(packet) => {
                    pool.give(packet);
                    break;
                }
            }
        }
        self.fill.produce();
        if self.fill.needs_wakeup() {
            // SAFETY: no memory is passed.
            unsafe {
                libc::recvfrom(
                    self.socket.as_raw_fd(),
                    std::ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                )
            };
        }
    }

    /// Puts the pieces of a frame together in a large slot. The frame, with its last piece.
    #[cold]
    fn join(&mut self, pool: &mut Pool, piece: Packet, options: u32, tally: &mut Tally) -> Option<Packet> {
        let last = options & libc::XDP_PKT_CONTD == 0;
        let so_far = match std::mem::replace(&mut self.partial, Partial::Lost) {
            Partial::None => pool.take_large(),
            Partial::Some(packet) => Some(packet),
            Partial::Lost => None,
        };
        let joined = so_far.and_then(|mut whole| {
            let (start, len) = (whole.headroom(), whole.len());
            let end = start + len + piece.len();
            if end > whole.slot().len() {
                pool.give(whole);
                return None;
            }
            whole.slot_mut().get_mut(start + len..end)?.copy_from_slice(piece.bytes());
            whole.place(start, len + piece.len()).ok()?;
            Some(whole)
        });
        pool.give(piece);
        if !last {
            self.partial = joined.map_or(Partial::Lost, Partial::Some);
            return None;
        }
        self.partial = Partial::None;
        if joined.is_none() {
            tally.no_buffer += 1;
        }
        joined
    }

    /// Takes back the slots of packets that are sent.
    #[inline]
    fn complete(&mut self, memory: &Memory, pool: &mut Pool) {
        let count = self.completion.available();
        for _ in 0..count {
            let address = self.completion.take();
            if let Some(packet) = memory.completed(self.holder, address) {
                pool.give(packet);
            }
        }
        if count != 0 {
            self.completion.consume();
        }
    }

    /// Queues a packet to be sent.
    #[inline]
    fn send(&mut self, memory: &Memory, pool: &mut Pool, packet: Packet, tally: &mut Tally) {
        if self.transmit.room(1) == 0 {
            self.flush(tally);
            self.complete(memory, pool);
            if self.transmit.room(1) == 0 {
                tally.queue_full += 1;
                return pool.give(packet);
            }
        }
        let (start, len) = (packet.headroom() as u64, packet.len() as u32);
        match memory.lend(self.holder, packet) {
            Ok(address) => self.transmit.put(libc::xdp_desc { addr: address + start, len, options: 0 }),
            Err(packet) => {
                // Not of this memory: its bytes are sent from a slot that is.
                self.send_copy(memory, pool, &packet, tally);
                pool.give(packet);
            }
        }
    }

    /// Sends a packet with something left to be done, or one in a large slot.
    #[cold]
    #[inline(never)]
    fn send_unusual(&mut self, memory: &Memory, pool: &mut Pool, mut packet: Packet, tally: &mut Tally) {
        if packet.offload().is_some_and(|offload| offload.segment.is_some()) {
            let cut = offload::Cut::new(&packet);
            let Some(mut cut) = cut else {
                tally.malformed += 1;
                return pool.give(packet);
            };
            while let Some(part) = cut.next(&packet, pool) {
                match part {
                    Ok(part) => self.send(memory, pool, part, tally),
                    Err(_) => {
                        tally.no_buffer += 1;
                        break;
                    }
                }
            }
            tally.cut += 1;
            return pool.give(packet);
        }
        offload::finish(&mut packet);
        if packet.is_large() {
            self.send_copy(memory, pool, &packet, tally);
            return pool.give(packet);
        }
        self.send(memory, pool, packet, tally);
    }

    /// Sends the bytes of a packet from slots of this memory, as many as it takes.
    fn send_copy(&mut self, memory: &Memory, pool: &mut Pool, packet: &Packet, tally: &mut Tally) {
        let pieces = packet.len().div_ceil(SLOT) as u32;
        if self.transmit.room(pieces) < pieces || pool.available() < pieces as usize {
            tally.no_buffer += 1;
            return;
        }
        for (index, bytes) in packet.bytes().chunks(SLOT).enumerate() {
            let Some(mut piece) = pool.take() else { return };
            if piece.set(0, bytes).is_err() {
                return pool.give(piece);
            }
            let options = if index as u32 + 1 < pieces { libc::XDP_PKT_CONTD } else { 0 };
            match memory.lend(self.holder, piece) {
                Ok(address) => {
                    self.transmit.put(libc::xdp_desc { addr: address, len: bytes.len() as u32, options });
                }
                Err(piece) => return pool.give(piece),
            }
        }
    }

    /// Shows the kernel what is to be sent, and has it sent.
    fn flush(&mut self, tally: &mut Tally) {
        self.transmit.produce();
        let mut stalls = 0;
        let mut pending = self.transmit.pending();
        while pending != 0 && stalls < STALLS {
            let fd = self.socket.as_raw_fd();
            // SAFETY: no memory is passed.
            let sent =
                unsafe { libc::sendto(fd, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
            if sent < 0 {
                match io::Error::last_os_error().raw_os_error() {
                    // More than one call sends, or the device is busy.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS) => {}
                    _ => {
                        tally.send_errors += 1;
                        return;
                    }
                }
            }
            let left = self.transmit.pending();
            stalls = if left < pending { 0 } else { stalls + 1 };
            pending = left;
        }
    }
}
