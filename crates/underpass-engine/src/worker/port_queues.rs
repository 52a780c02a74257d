//! What waits to be sent, a queue a port.

use crate::buffer::{Packet, PortId};
use crate::counters::{Count, Counters, Direction, MplsCount, Totals};
use crate::qos::edit::tag_of;
use crate::tables::{LinkId, QdiscId};
use crate::worker::view::View;

/// Most packets that wait to be sent by one port.
pub(crate) const QUEUE: usize = 1024;

/// For so many bursts a queue without packets keeps its memory.
const IDLE: u8 = 32;

/// What waits to be sent, a queue a port. A queue has memory while it is in use: with thousands of ports, what is done for
/// each burst is done for those in use alone.
#[derive(Default)]
pub(crate) struct Transmit {
    queues: Vec<Queue>,
    /// The ports whose queues have memory, in order.
    used: Vec<u16>,
    /// Memory of queues that were in use.
    spare: Vec<Vec<Packet>>,
}

#[derive(Default)]
pub(crate) struct Queue {
    packets: Vec<Packet>,
    /// How many of them, and how many bytes, have been counted for the link.
    counted: usize,
    bytes: u64,
    /// How many of them need not go through the link's qdisc, or have.
    shaped: usize,
    /// How many of them the egress hook of the link has classified.
    classified: usize,
    /// For how many bursts it has had no packet.
    idle: u8,
    /// Labelled packets since the last time, and their bytes from the first label on.
    labelled: (u64, u64),
}

impl Transmit {
    /// Puts a frame of `len` bytes into the queue of `port`; gives it back if that is full.
    #[inline]
    pub(crate) fn push(&mut self, port: PortId, packet: Packet, len: usize) -> Result<(), Packet> {
        self.push_used(port, packet, len).or_else(|packet| self.push_unused(port, packet, len))
    }

    /// The same if the queue has memory, else gives it back too.
    #[inline(always)]
    pub(crate) fn push_used(&mut self, port: PortId, packet: Packet, len: usize) -> Result<(), Packet> {
        match self.queues.get_mut(usize::from(port.0)) {
            // Compared as `Vec::push` compares, which then need not do it again.
            Some(queue) if queue.packets.len() != queue.packets.capacity() => {
                queue.bytes += len as u64;
                queue.packets.push(packet);
                Ok(())
            }
            _ => Err(packet),
        }
    }

    /// The queue is full, or gets its memory.
    #[cold]
    #[inline(never)]
    fn push_unused(&mut self, port: PortId, packet: Packet, len: usize) -> Result<(), Packet> {
        self.make(port);
        match self.queues.get_mut(usize::from(port.0)) {
            Some(queue) if queue.packets.capacity() == 0 => {
                queue.packets = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(QUEUE));
                if let Err(at) = self.used.binary_search(&port.0) {
                    self.used.insert(at, port.0);
                    // Their memory comes back between packets, when nothing is to be allocated.
                    self.spare.reserve(self.used.len());
                }
                self.push_used(port, packet, len)
            }
            _ => Err(packet),
        }
    }

    #[cold]
    pub(crate) fn make(&mut self, port: PortId) {
        let count = usize::from(port.0) + 1;
        if self.queues.len() < count {
            self.queues.resize_with(count, Queue::default);
        }
    }

    /// Counts packets of so many bytes with labels that are about to be sent by `port`.
    #[inline(always)]
    pub(crate) fn count_labelled(&mut self, port: PortId, packets: u64, bytes: u64) {
        match self.queues.get_mut(usize::from(port.0)) {
            Some(queue) => {
                queue.labelled.0 += packets;
                queue.labelled.1 += bytes;
            }
            None => {
                self.make(port);
                self.count_labelled(port, packets, bytes);
            }
        }
    }

    pub(crate) fn drain(&mut self, port: PortId) -> impl Iterator<Item = Packet> + '_ {
        self.queues.get_mut(usize::from(port.0)).into_iter().flat_map(|queue| {
            (queue.counted, queue.shaped, queue.classified) = (0, 0, 0);
            queue.packets.drain(..)
        })
    }

    /// Takes all that waits to be sent by a port; [`Transmit::give_back`] has the memory back.
    pub(crate) fn take(&mut self, port: PortId) -> Vec<Packet> {
        self.queues.get_mut(usize::from(port.0)).map_or_else(Vec::new, |queue| {
            (queue.counted, queue.shaped, queue.classified) = (0, 0, 0);
            std::mem::take(&mut queue.packets)
        })
    }

    /// Has the memory of a queue back, which is empty: until the next packet by its port that is not in use.
    pub(crate) fn give_back(&mut self, port: PortId, memory: Vec<Packet>) {
        let again = self.queues.get(usize::from(port.0)).is_some_and(|queue| queue.packets.capacity() != 0);
        if let Ok(at) = self.used.binary_search(&port.0)
            && !again
        {
            self.used.remove(at);
        }
        if memory.capacity() != 0 {
            self.spare.push(memory);
        }
    }

    /// The first port in use behind this one, or of all.
    #[inline]
    pub(crate) fn used_after(&self, last: Option<PortId>) -> Option<PortId> {
        let at = last.map_or(0, |last| self.used.partition_point(|port| *port <= last.0));
        self.used.get(at).copied().map(PortId)
    }

    /// The ports in use.
    pub(crate) fn used(&self) -> impl Iterator<Item = PortId> + '_ {
        self.used.iter().copied().map(PortId)
    }

    /// The ports with packets.
    pub(crate) fn filled(&self) -> impl Iterator<Item = PortId> + '_ {
        let filled = |port: &PortId| {
            self.queues.get(usize::from(port.0)).is_some_and(|queue| !queue.packets.is_empty())
        };
        self.used().filter(filled)
    }

    /// Whether packets have come into the queue of a port whose link has a qdisc.
    #[inline]
    pub(crate) fn any_new(&self, view: &View<'_>) -> bool {
        self.used().any(|port| self.root_of_new(view, port).is_some())
    }

    /// The link of a port and its root qdisc, if packets have come into the port's queue and there is one.
    #[inline]
    pub(crate) fn root_of_new(&self, view: &View<'_>, port: PortId) -> Option<(LinkId, QdiscId)> {
        let queue = self.queues.get(usize::from(port.0))?;
        if queue.packets.len() == queue.shaped {
            return None;
        }
        let (id, link) = view.tables.port_link(port, view.guard)?;
        let root = link.root?;
        // What goes to the host by the device of a tunnel is not what waits before the tunnel.
        view.tables.tunnels().of_link(id).is_none().then_some((id, root))
    }

    /// Takes back what has come into the queue of a port.
    pub(crate) fn take_new(&mut self, port: PortId, into: &mut Vec<Packet>) {
        if let Some(queue) = self.queues.get_mut(usize::from(port.0)) {
            let taken = queue.packets.drain(queue.shaped..);
            into.extend(taken.inspect(|packet| queue.bytes = queue.bytes.wrapping_sub(packet.len() as u64)));
            queue.classified = queue.classified.min(queue.packets.len());
        }
    }

    /// Puts a frame that need not go through the link's qdisc into the queue of `port`, behind which none is that need.
    pub(crate) fn push_back(&mut self, port: PortId, packet: Packet, len: usize) -> Result<(), Packet> {
        self.push(port, packet, len)?;
        if let Some(queue) = self.queues.get_mut(usize::from(port.0)) {
            queue.shaped = queue.packets.len();
            queue.classified = queue.packets.len();
        }
        Ok(())
    }

    /// Whether a port has packets that have not been classified.
    pub(crate) fn has_unclassified(&self, port: PortId) -> bool {
        self.queues.get(usize::from(port.0)).is_some_and(|queue| queue.classified < queue.packets.len())
    }

    /// Takes the packets of a port that have not been classified.
    pub(crate) fn take_unclassified(&mut self, port: PortId, into: &mut Vec<Packet>) {
        if let Some(queue) = self.queues.get_mut(usize::from(port.0)) {
            let taken = queue.packets.drain(queue.classified..);
            into.extend(taken.inspect(|packet| queue.bytes = queue.bytes.wrapping_sub(packet.len() as u64)));
        }
    }

    /// Puts a packet of `len` bytes that was classified into the queue of `port`, where all others have been.
    pub(crate) fn push_classified(&mut self, port: PortId, packet: Packet, len: usize) -> Result<(), Packet> {
        self.push(port, packet, len)?;
        if let Some(queue) = self.queues.get_mut(usize::from(port.0)) {
            queue.classified = queue.packets.len();
        }
        Ok(())
    }

    /// Whether the queue of a port has no room for what a qdisc lets go: it keeps some for what comes in a burst.
    #[inline]
    pub(crate) fn is_full(&self, port: PortId) -> bool {
        self.queues.get(usize::from(port.0)).is_some_and(|queue| queue.packets.len() >= QUEUE - QUEUE / 4)
    }

    /// Whether that is so of any port.
    pub(crate) fn any_full(&self) -> bool {
        self.used().any(|port| self.is_full(port))
    }

    /// Says that no packet is to be classified any more.
    pub(crate) fn all_classified(&mut self) {
        for port in &self.used {
            if let Some(queue) = self.queues.get_mut(usize::from(*port)) {
                queue.classified = queue.packets.len();
            }
        }
    }

    /// Counts what has been queued since the last time. Whether any of it has to go further down: [`Path::pass_down`].
    ///
    /// [`Path::pass_down`]: crate::worker::path::Path::pass_down
    #[must_use]
    pub(crate) fn count(&mut self, view: &View<'_>, counters: &Counters, totals: &mut Totals) -> bool {
        let mut inside = false;
        let mut idle = None;
        for port in &self.used {
            let Some(queue) = self.queues.get_mut(usize::from(*port)) else { continue };
            let packets = (queue.packets.len() - queue.counted) as u64;
            if packets == 0 {
                queue.idle = queue.idle.saturating_add(1);
                if queue.idle >= IDLE && queue.packets.is_empty() {
                    idle = Some(PortId(*port));
                }
                continue;
            }
            queue.idle = 0;
            let before = std::mem::replace(&mut queue.counted, queue.packets.len());
            queue.shaped = queue.counted;
            queue.classified = queue.counted;
            let mut sent = packets;
            let mut count = Count { packets, bytes: std::mem::take(&mut queue.bytes), errors: 0 };
            if let Some((link, known)) = view.tables.port_link(PortId(*port), view.guard) {
                inside |= known.is_inside();
                if known.is_above() {
                    // It is counted as sent where it leaves the router.
                    sent = 0;
                }
                if known.bridge.is_some() {
                    let tags = queue.packets.iter().skip(before).map(|packet| tag_of(packet.bytes()) as u64);
                    count.bytes -= tags.sum::<u64>();
                }
                // What goes to the host by the device of a tunnel has come out of it; what goes in is counted there.
                if view.tables.tunnels().of_link(link).is_none() {
                    counters.add_link(link, Direction::Transmit, count);
                }
                let (tx_packets, tx_bytes) = std::mem::take(&mut queue.labelled);
                if tx_packets != 0 {
                    counters.add_mpls(link, MplsCount { tx_packets, tx_bytes, ..MplsCount::default() });
                }
            }
            totals.sent = totals.sent.wrapping_add(sent);
        }
        if let Some(port) = idle {
            let memory = self.take(port);
            self.give_back(port, memory);
        }
        inside
    }
}
