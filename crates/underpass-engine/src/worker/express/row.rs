//! Packets in a row: what those have in common that go by one route, or through one SID, is found and counted once for all
//! of them.

use super::super::Path;
use super::family::{Family, To};
use super::seen::{Look, Sight};
use super::sid::{decapsulate, through_flavours, through_sid};
use super::{Common, Company, Out, Packets};
use crate::buffer::Packet;
use crate::counters::Count;
use crate::tables::{Action, Behaviour, Endpoint, Via};
use crate::trace::Trace;

/// What a route does to packets beside forwarding them.
pub(super) trait Way<'v, 'a, A: Family>: Copy {
    /// What is counted of packets in a row.
    type Row: Default;

    /// What another leaf's action does, if it is of the same kind.
    fn other(self, common: &Common<'v, 'a>, leaf: Option<u32>) -> Option<Self>;

    /// Does it to a packet of `len` bytes in a frame. `None`: it is not so plain, and as it was.
    fn take<const COUNT: bool>(
        self,
        path: &mut Path<COUNT>,
        common: &Common<'v, 'a>,
        packet: (&mut Packet, usize),
        row: &mut Self::Row,
    ) -> Option<Out>;

    /// Counts packets that went this way.
    fn count<const COUNT: bool>(self, path: &mut Path<COUNT>, row: Self::Row);
}

impl<const COUNT: bool> Path<COUNT> {
    /// Takes packets in a row by routes that all do the same kind of thing, from the first on, which goes this way. The one
    /// that follows the row.
    #[inline(never)]
    pub(super) fn take_way<'v, 'a, T: Trace, A: Family, S: Sight, W: Way<'v, 'a, A>>(
        &mut self,
        company: &mut Company<'_, 'v, 'a, T>,
        packets: &mut Packets<'_>,
        sight: S,
        (mut packet, mut look): (Packet, Look<A>),
        mut way: W,
    ) -> Option<Packet> {
        let common = company.common;
        let mut row = W::Row::default();
        let following = loop {
            match way.take(self, common, (&mut packet, look.len), &mut row) {
                Some(out) => self.send_frame(out, packet, company.trace),
                None => self.take_own_road(company, packet),
            }
            packet = match packets.next() {
                Some(packet) => packet,
                None => break None,
            };
            let Some(next) = sight.next::<A>(common, &packet, packets) else { break Some(packet) };
            if next.leaf != look.leaf {
                let Some(other) = way.other(common, next.leaf) else { break Some(packet) };
                way.count(self, std::mem::take(&mut row));
                way = other;
            }
            look = next;
        };
        way.count(self, row);
        following
    }

    /// Takes packets through their SIDs, from the first on, as long as the look-ups of these are known. The one that follows
    /// them.
    #[inline(never)]
    pub(super) fn take_sids<'v, T: Trace, S: Sight>(
        &mut self,
        company: &mut Company<'_, 'v, '_, T>,
        packets: &mut Packets<'_>,
        sight: S,
        mut first: (Packet, Look<u128>),
        mut sid: &'v Endpoint,
    ) -> Option<Packet> {
        let common = company.common;
        if S::IN_TURN
            && let (_, Look { target, leaf: Some(leaf), .. }) = first
        {
            company.fibs.recent.put(common.link.lookup, target, leaf);
        }
        loop {
            let packet = self.take_row(company, packets, sight, first, sid)?;
            let Some(look) = sight.remembered(common, &company.fibs.recent, &packet, packets) else {
                return Some(packet);
            };
            let Some(Action::Endpoint(next)) = common.action(look.leaf) else { return Some(packet) };
            (first, sid) = ((packet, look), next);
        }
    }

    /// Takes packets in a row that are for the same SID through it, from the first on. The one that follows the row.
    #[inline(never)]
    fn take_row<T: Trace, S: Sight>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packets: &mut Packets<'_>,
        sight: S,
        first: (Packet, Look<u128>),
        sid: &Endpoint,
    ) -> Option<Packet> {
        let (view, fibs) = (company.common.view, &mut *company.fibs);
        let (mut to4, mut to6) = (None::<To<'_, u32>>, None::<To<'_, u128>>);
        let instance = company.common.link.lookup;
        match &sid.behaviour {
            _ if sid.flavours.is_some() => {
                return self.take_row_by(company, packets, sight, first, sid, |company, packet, len| {
                    through_flavours(company.common.view, company.fibs, packet, len, (sid, instance))
                });
            }
            Behaviour::DX4(via) => to4 = company.by(via),
            Behaviour::DX6(via) if via.lookup == instance => to6 = company.by(via),
            Behaviour::DT4 { lookup } => to4 = To::table(view, fibs, *lookup),
            Behaviour::DT6 { lookup } => to6 = To::table(view, fibs, *lookup),
            _ => {}
        }
        if let Some(to) = to4 {
            return self.take_inner_row(company, packets, sight, first, sid, to);
        }
        if let Some(to) = to6 {
            return self.take_inner_row(company, packets, sight, first, sid, to);
        }
        self.take_row_by(company, packets, sight, first, sid, |company, packet, len| {
            through_sid(company.common.view, company.fibs, packet, len, (sid, instance))
        })
    }

    /// The same through a SID that takes the outer headers off packets of one family.
    #[inline(never)]
    fn take_inner_row<'a, T: Trace, S: Sight, A: Family>(
        &mut self,
        company: &mut Company<'_, '_, 'a, T>,
        packets: &mut Packets<'_>,
        sight: S,
        first: (Packet, Look<u128>),
        sid: &Endpoint,
        to: To<'a, A>,
    ) -> Option<Packet> {
        self.take_row_by(company, packets, sight, first, sid, |company, packet, len| {
            decapsulate::<A>(company.common.view, packet, len, |target| {
                to.next_hop(company.common.view, target)
            })
        })
    }

    #[inline(always)]
    fn take_row_by<'x, 'v, 'a, T: Trace, S: Sight>(
        &mut self,
        company: &mut Company<'x, 'v, 'a, T>,
        packets: &mut Packets<'_>,
        sight: S,
        (mut packet, look): (Packet, Look<u128>),
        sid: &Endpoint,
        through: impl Fn(&mut Company<'x, 'v, 'a, T>, &mut Packet, usize) -> Option<Out>,
    ) -> Option<Packet> {
        let common = company.common;
        let mut len = look.len;
        // Counted once for all: a counter for each packet would cost 7 % of End.DX2.
        let mut row = Count::default();
        let following = loop {
            if let Some(out) = through(company, &mut packet, len) {
                row.packets += 1;
                row.bytes += len as u64;
                self.send_frame(out, packet, company.trace);
            } else {
                self.take_own_road(company, packet);
            }
            packet = match packets.next() {
                Some(packet) => packet,
                None => break None,
            };
            len = match sight.again(common, &packet, packets, look) {
                Some(len) => len,
                None => break Some(packet),
            };
        };
        if let Some(counter) = sid.counter.filter(|_| COUNT) {
            self.counters.add(counter, row);
        }
        if sid.behaviour.inserts() {
            self.totals.buffer_moves_avoided += row.packets;
        }
        following
    }
}

impl<'a, T> Company<'_, '_, 'a, T> {
    /// Where a cross-connect goes. `None`: it is not so plain.
    fn by<A: Family>(&mut self, via: &Via) -> Option<To<'a, A>> {
        let view = self.common.view;
        match view.next_hop(via.resolved) {
            Some(next_hop) => Some(To::NextHop(next_hop)),
            None if via.address.is_unspecified() => To::table(view, self.fibs, via.lookup),
            None => None,
        }
    }
}
