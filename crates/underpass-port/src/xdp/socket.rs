//! An AF_XDP port: a socket for each queue of a device that this worker serves.

#![allow(unsafe_code)]

use std::io;
use std::iter::Peekable;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

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

/// How soon a queue is opened again that could not be, and then less and less often: the kernel lets go of it a moment after
/// its socket is closed.
const AGAIN: Duration = Duration::from_millis(10);
const SELDOM: Duration = Duration::from_secs(1);

/// A worker's share of a device that is attached with XDP.
pub struct XdpPort {
    ifindex: u32,
    queues: Vec<Queue>,
    /// The queue that was closed, as what was in its ring must not leave any more.
    away: Option<Away>,
    /// The device took nothing when it was last tried.
    down: bool,
    /// A socket was closed or opened.
    changed: bool,
    /// Why its queue cannot be opened again, until somebody asks.
    trouble: Option<io::Error>,
    /// Where the program finds the sockets, if the port receives.
    sockets: Option<Arc<Map>>,
    /// What the kernel has dropped before it reached sockets that are closed.
    dropped_before: u64,
    /// The queue that is received from first, the next time.
    turn: usize,
    memory: Memory,
    /// Frames may have unfinished checksums and stand for several, of which AF_XDP says nothing.
    unsaid: bool,
    /// Bytes of an IP packet that came in by the device as it was sent; more is a large segment.
    mtu: usize,
    pub(crate) tally: Tally,
}

/// A queue that is to be opened again.
struct Away {
    number: u32,
    /// Who has the slots that were in the rings.
    holder: Holder,
    /// Closes the socket. `None`: it is closed.
    closing: Option<JoinHandle<()>>,
    /// When it was last tried, and its slots were back at the latest.
    tried: Option<Instant>,
    /// How long to wait from then on.
    wait: Duration,
    /// Whether somebody was told why it is still away.
    told: bool,
}

struct Queue {
    number: u32,
    /// Packets that the kernel has dropped of those that it has not said to have taken.
    dropped: u32,
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
        sockets: &Arc<Map>,
        unsaid: bool,
        mtu: usize,
    ) -> io::Result<Self> {
        let mut port = Self::empty(ifindex, memory);
        (port.sockets, port.unsaid, port.mtu) = (Some(Arc::clone(sockets)), unsaid, mtu);
        for &queue in queues {
            let opened = sys::soon(|| Queue::open(ifindex, queue, &port.memory));
            if let Err(error) = opened.and_then(|queue| port.enter(queue, pool)) {
                port.close(pool);
                return Err(error);
            }
        }
        Ok(port)
    }

    /// The device has another MTU.
    pub(crate) fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    /// A port without queues.
    fn empty(ifindex: u32, memory: &Memory) -> Self {
        Self {
            ifindex,
            queues: Vec::new(),
            away: None,
            down: false,
            changed: false,
            trouble: None,
            sockets: None,
            dropped_before: 0,
            turn: 0,
            memory: memory.clone(),
            unsaid: false,
            mtu: 0,
            tally: Tally::default(),
        }
    }

    /// Takes up a queue. If the port receives, the queue gets slots, and the program finds its socket.
    fn enter(&mut self, mut queue: Queue, pool: &mut Pool) -> io::Result<()> {
        let mut entered = Ok(());
        if let Some(sockets) = &self.sockets {
            queue.refill(&self.memory, pool);
            entered = sockets.insert(&queue.number.to_ne_bytes(), &queue.socket.as_raw_fd().to_ne_bytes());
        }
        match entered {
            Ok(()) => self.queues.push(queue),
            Err(_) => queue.close(&self.memory, pool),
        }
        entered
    }

    /// A port that only sends.
    pub(crate) fn sender(ifindex: u32, queue: u32, memory: &Memory) -> io::Result<Self> {
        let mut port = Self::empty(ifindex, memory);
        port.queues.push(Queue::open(ifindex, queue, memory)?);
        Ok(port)
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
        if self.down || self.away.is_some() {
            return self.send_again(pool, packets.peekable());
        }
        self.send_now(pool, packets);
    }

    fn send_now(&mut self, pool: &mut Pool, packets: impl Iterator<Item = Packet>) {
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
        if !queue.flush(&mut self.tally) {
            self.give_up(pool);
        }
    }

    /// Gives up what a device does not take that is down: it must not leave when that is up again, maybe much later. The
    /// kernel may have seen it in the ring, from which nobody can take it back then: the socket is closed, by a thread, as
    /// that waits for all processors.
    #[cold]
    fn give_up(&mut self, pool: &mut Pool) {
        let Some(mut queue) = (!self.queues.is_empty()).then(|| self.queues.remove(0)) else { return };
        (self.down, self.changed) = (true, true);
        self.tally.send_errors += u64::from(queue.transmit.pending().saturating_sub(queue.dropped));
        self.dropped_before += queue.kernel_drops() + u64::from(queue.receive.available());
        if let Partial::Some(packet) = std::mem::replace(&mut queue.partial, Partial::None) {
            pool.give(packet);
        }
        self.memory.forget(queue.holder);
        let (number, holder) = (queue.number, queue.holder);
        // Without a thread it is closed here.
        let closing = thread::Builder::new().name("close".to_owned()).spawn(move || drop(queue));
        self.away =
            Some(Away { number, holder, closing: closing.ok(), tried: None, wait: AGAIN, told: false });
    }

    /// Sends by a device that was down, if it is up again. An empty ring is asked first, so that nothing is in it that has
    /// to be given up.
    #[cold]
    #[inline(never)]
    fn send_again(&mut self, pool: &mut Pool, mut packets: Peekable<impl Iterator<Item = Packet>>) {
        self.come_back(pool);
        if packets.peek().is_none() {
            return;
        }
        // By another queue of the port packets of a flow would overtake each other.
        self.down = self.away.is_some() || self.queues.first().is_none_or(|queue| queue.wake().is_err());
        if !self.down {
            return self.send_now(pool, packets);
        }
        for packet in packets {
            self.tally.send_errors += 1;
            pool.give(packet);
        }
    }

    /// Opens the queue again that was closed, once the kernel has let go of it.
    fn come_back(&mut self, pool: &mut Pool) {
        let Some(away) = &mut self.away else { return };
        if let Some(closing) = away.closing.take_if(|closing| closing.is_finished()) {
            let _ = closing.join();
        }
        if away.closing.is_some() || away.tried.is_some_and(|tried| tried.elapsed() < away.wait) {
            return;
        }
        if away.tried.replace(Instant::now()).is_none() {
            self.memory.release(away.holder).for_each(|packet| pool.give(packet));
        }
        away.wait = SELDOM.min(away.wait * 2);
        let tells = away.wait == SELDOM && !away.told;
        let opened = Queue::open(self.ifindex, away.number, &self.memory);
        match opened.and_then(|queue| self.enter(queue, pool)) {
            Ok(()) => (self.away, self.changed) = (None, true),
            // One that is down is not in trouble.
            Err(error) if tells && error.raw_os_error() != Some(libc::ENETDOWN) => {
                self.trouble = Some(error);
                if let Some(away) = &mut self.away {
                    away.told = true;
                }
            }
            Err(_) => {}
        }
    }

    /// The index of the device, and why a queue of it, which was closed, cannot be opened again: said once.
    pub(crate) fn take_trouble(&mut self) -> Option<(u32, io::Error)> {
        self.trouble.take().map(|error| (self.ifindex, error))
    }

    /// Whether the port has other descriptors than when this was last asked.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Whether the port has no queue to send by, as it was closed.
    pub(crate) fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Whether there is something to be done: what was to be sent is still here, as the device was busy, or a queue is to be
    /// opened again. The next call of [`XdpPort::send`] does it, also without packets.
    pub(crate) fn unsent(&mut self) -> bool {
        self.is_away() || self.queues.first_mut().is_some_and(|queue| queue.transmit.pending() != 0)
    }

    /// Closes the sockets and gives all of their slots back.
    pub fn close(mut self, pool: &mut Pool) {
        for queue in std::mem::take(&mut self.queues) {
            queue.close(&self.memory, pool);
        }
        if let Some(Away { holder, closing, .. }) = self.away.take() {
            if let Some(closing) = closing {
                let _ = closing.join();
            }
            self.memory.release(holder).for_each(|packet| pool.give(packet));
        }
    }

    /// What the kernel has dropped before it reached the port: no slot, no room in a ring, too long.
    pub(crate) fn kernel_drops(&self) -> u64 {
        self.dropped_before + self.queues.iter().map(Queue::kernel_drops).sum::<u64>()
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
        let (number, dropped, lent) = (queue, 0, 0);
        Ok(Self { number, dropped, receive, transmit, fill, completion, lent, holder, partial, socket })
    }

    /// Closes the socket and gives all of its slots back.
    fn close(mut self, memory: &Memory, pool: &mut Pool) {
        let (holder, partial) = (self.holder, std::mem::replace(&mut self.partial, Partial::None));
        memory.forget(holder);
        if let Partial::Some(packet) = partial {
            pool.give(packet);
        }
        drop(self);
        memory.release(holder).for_each(|packet| pool.give(packet));
    }

    /// What the kernel has dropped before it reached the socket.
    fn kernel_drops(&self) -> u64 {
        let none = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        // `rx_fill_ring_empty_descs` counts attempts, each of which is in `rx_dropped` too.
        sys::get_option(self.socket.as_raw_fd(), libc::SOL_XDP, libc::XDP_STATISTICS, none)
            .map_or(0, |counted| counted.rx_dropped + counted.rx_ring_full)
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
            // What is refused is given up behind the last packet.
            let _ = self.flush(tally);
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

    /// Shows the kernel what is to be sent, and has it sent. Whether the device may take what is left: not if it is down.
    #[must_use]
    fn flush(&mut self, tally: &mut Tally) -> bool {
        self.transmit.produce();
        let mut stalls = 0;
        let mut pending = self.transmit.pending();
        while pending != 0 && stalls < STALLS {
            let done = self.wake();
            let left = self.transmit.pending();
            let taken = left < pending;
            (stalls, self.dropped) = if taken { (0, 0) } else { (stalls + 1, self.dropped) };
            pending = left;
            match done.map_err(|error| error.raw_os_error()) {
                // More than one call sends, or the device is busy.
                Ok(()) | Err(Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => {}
                // It has dropped one, as it has no carrier or its other end takes no more. Some kernels say only with the next
                // calls that they have taken it.
                Err(Some(libc::EBUSY)) if taken => tally.send_errors += 1,
                Err(Some(libc::EBUSY)) if self.dropped < pending => {
                    (stalls, self.dropped) = (0, self.dropped + 1);
                    tally.send_errors += 1;
                }
                Err(Some(libc::EBUSY)) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Has the kernel send what is in the ring.
    fn wake(&self) -> io::Result<()> {
        let fd = self.socket.as_raw_fd();
        // SAFETY: no memory is passed.
        let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
