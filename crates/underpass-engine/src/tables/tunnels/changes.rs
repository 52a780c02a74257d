//! What the control thread does to tunnels: they are put where workers find them, and taken out again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, Release},
};

use super::TunnelTable;
use crate::publish::Retirer;
use crate::tables::tunnel_match::{Class, chain, end_of, found_by};
use crate::tables::{
    FouPort, InnerProtocol, Link, LinkId, PrecomputedDecap, StoredTunnel, Tunnel, TunnelKind, TunnelRole,
};

/// Which tunnels each link has: those of its routes too. And what of tunnels has changed since somebody has looked.
#[derive(Default)]
pub(in crate::tables) struct TunnelsOfLinks {
    of: BTreeMap<LinkId, Vec<u32>>,
    changed: RefCell<Vec<Changed>>,
}

/// What has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Changed {
    /// This tunnel.
    Tunnel(u32),
    /// The end that is found at once at this place.
    End(u32),
}

impl TunnelsOfLinks {
    /// What has changed since the last time.
    pub(in crate::tables) fn take_changed(&self) -> Vec<Changed> {
        self.changed.take()
    }

    fn change(&self, what: Changed) {
        self.changed.borrow_mut().push(what);
    }
}

impl TunnelTable {
    /// Puts a tunnel where what comes in for it finds it, and what is told of its way.
    fn link_in(&self, id: u32, tunnel: &Tunnel) {
        if let (Some(end), Some(next)) =
            (self.ends.get(end_of(tunnel.remote)), self.end_nexts.get(id as usize))
        {
            next.store(end.load(Relaxed), Relaxed);
            end.store(id + 1, Release);
        }
        if !matches!(tunnel.role, TunnelRole::Route { .. })
            && let Some(slot) = self.of_link.get(tunnel.link.0 as usize)
        {
            slot.store(id + 1, Relaxed);
        }
        let Some((class, seen)) = found_by(tunnel) else { return };
        let (Some(head), Some(next)) =
            (self.heads.get(chain(tunnel.kind, class, seen)), self.nexts.get(id as usize))
        else {
            return;
        };
        next.store(head.load(Relaxed), Relaxed);
        head.store(id + 1, Release);
        self.counts[tunnel.kind as usize][class as usize].fetch_add(1, Relaxed);
        self.receivers.fetch_add(1, Relaxed);
    }

    /// Takes it out again. Its own `next` stays, for those who are there.
    fn link_out(&self, id: u32, tunnel: &Tunnel) {
        if let Some(end) = self.ends.get(end_of(tunnel.remote)) {
            take_out(end, &self.end_nexts, id);
        }
        if let Some(slot) = self.of_link.get(tunnel.link.0 as usize)
            && slot.load(Relaxed) == id + 1
        {
            slot.store(0, Relaxed);
        }
        let Some((class, seen)) = found_by(tunnel) else { return };
        let Some(head) = self.heads.get(chain(tunnel.kind, class, seen)) else { return };
        if take_out(head, &self.nexts, id) {
            self.counts[tunnel.kind as usize][class as usize].fetch_sub(1, Relaxed);
            self.receivers.fetch_sub(1, Relaxed);
        }
    }

    fn link_port_in(&self, id: u32, port: &FouPort) {
        let heads = self.port_heads.get(usize::from(port.port));
        let (Some(head), Some(next)) = (heads, self.port_nexts.get(id as usize)) else { return };
        next.store(head.load(Relaxed), Relaxed);
        head.store(id + 1, Release);
        self.listeners.fetch_add(1, Relaxed);
        self.receivers.fetch_add(1, Relaxed);
    }

    fn link_port_out(&self, id: u32, port: &FouPort) {
        if let Some(head) = self.port_heads.get(usize::from(port.port))
            && take_out(head, &self.port_nexts, id)
        {
            self.listeners.fetch_sub(1, Relaxed);
            self.receivers.fetch_sub(1, Relaxed);
        }
    }

    /// Puts a tunnel, with its link and whether the MTU of its way is locked, or none, in the place of what `id` names. Whether
    /// there was one.
    pub(in crate::tables) fn put(
        &self,
        id: u32,
        tunnel: Option<(Tunnel, (Option<&Link>, bool))>,
        links: &mut TunnelsOfLinks,
        retirer: &mut Retirer,
    ) -> bool {
        let old = self.tunnels.peek(id, retirer);
        let before = old.map(|old| (old.config.clone(), Arc::clone(&old.sequence)));
        let sequence = before.as_ref().map_or_else(Arc::default, |(_, sequence)| Arc::clone(sequence));
        let stays = matches!((&before, &tunnel), (Some((old, _)), Some((new, _)))
            if found_by(old) == found_by(new) && old.remote == new.remote && old.kind == new.kind && old.link == new.link && old.role == new.role);
        if let Some((old, _)) = &before
            && !stays
        {
            self.link_out(id, old);
            if let Some(tunnels) = links.of.get_mut(&old.link) {
                tunnels.retain(|other| *other != id);
            }
        }
        let stored = tunnel.map(|(tunnel, place)| StoredTunnel::new(tunnel, place, sequence));
        let config = stored.as_ref().map(|stored| stored.config.clone());
        self.store(id, stored, links, retirer);
        if let Some(tunnel) = config.as_ref().filter(|_| !stays) {
            self.link_in(id, tunnel);
            links.of.entry(tunnel.link).or_default().push(id);
        }
        let before = before.map(|(old, _)| old);
        before.iter().chain(&config).for_each(|tunnel| self.refresh_end(tunnel, links, retirer));
        for kind in self.count_bound(before.as_ref(), config.as_ref()).into_iter().flatten() {
            self.refresh_ends(kind, links, retirer);
        }
        before.is_some()
    }

    /// Counts a tunnel that takes the place of another, if they are bound: the kinds of which tunnels may be found at once
    /// that may not have been before, or the other way round.
    fn count_bound(&self, old: Option<&Tunnel>, new: Option<&Tunnel>) -> [Option<TunnelKind>; 2] {
        let place = |tunnel: Option<&Tunnel>| {
            let tunnel = tunnel.filter(|tunnel| tunnel.bound.is_some())?;
            Some((tunnel.kind, found_by(tunnel)?.0))
        };
        let (old, new) = (place(old), place(new));
        let kinds = [old, new].map(|place| Some((place?.0, self.has_bound(place?.0))));
        if let Some((kind, class)) = new {
            self.bounds[kind as usize][class as usize].fetch_add(1, Relaxed);
        }
        if let Some((kind, class)) = old {
            self.bounds[kind as usize][class as usize].fetch_sub(1, Relaxed);
        }
        kinds.map(|kind| kind.filter(|(kind, before)| self.has_bound(*kind) != *before).map(|(kind, _)| kind))
    }

    /// Whether there are bound tunnels of this kind that do not have both addresses, and yet come before those that do.
    fn has_bound(&self, kind: TunnelKind) -> bool {
        let [_, others @ ..] = &self.bounds[kind as usize];
        kind != TunnelKind::Sit && others.iter().any(|number| number.load(Relaxed) > 0)
    }

    /// Brings up to date what is found at once of all tunnels of this kind.
    fn refresh_ends(&self, kind: TunnelKind, links: &TunnelsOfLinks, retirer: &mut Retirer) {
        for id in links.of.values().flatten() {
            let tunnel = self.tunnels.peek(*id, retirer).filter(|tunnel| tunnel.kind == kind);
            if let Some(config) = tunnel.map(|tunnel| tunnel.config.clone()) {
                self.refresh_end(&config, links, retirer);
            }
        }
    }

    fn store(&self, id: u32, tunnel: Option<StoredTunnel>, links: &TunnelsOfLinks, retirer: &mut Retirer) {
        links.change(Changed::Tunnel(id));
        for (slab, inside) in self.precomputed.iter().zip([InnerProtocol::Ip4, InnerProtocol::Ip6]) {
            let precomputed = tunnel.as_ref().and_then(|tunnel| tunnel.precomputed(inside));
            slab.replace(id, precomputed, retirer);
        }
        self.tunnels.replace(id, tunnel, retirer);
    }

    /// Brings up to date what is found at once of the chain that a tunnel is, or was, in.
    fn refresh_end(&self, tunnel: &Tunnel, links: &TunnelsOfLinks, retirer: &mut Retirer) {
        let Some((class, seen)) = found_by(tunnel) else { return };
        let place = chain(tunnel.kind, class, seen);
        links.change(Changed::End(place as u32));
        let first = self.heads.get(place).and_then(|head| head.load(Relaxed).checked_sub(1));
        let first = first.and_then(|id| self.tunnels.peek(id, retirer));
        let both = first.filter(|first| {
            first.found.is_some_and(|(class, _)| class == Class::Both)
                && (first.config.bound.is_some()
                    || first.kind == TunnelKind::Sit
                    || !self.has_bound(first.kind) && self.is_alone(place, first, retirer))
        });
        let end = both.and_then(|first| first.end.clone());
        self.precomputed_decaps.replace(place as u32, end, retirer);
    }

    /// Whether no other tunnel of the chain at a place is found by the same.
    fn is_alone(&self, place: usize, one: &StoredTunnel, retirer: &Retirer) -> bool {
        let mut next = self.heads.get(place).map_or(0, |head| head.load(Relaxed));
        let mut number = 0;
        while let Some(id) = next.checked_sub(1) {
            let same = |tunnel: &StoredTunnel| tunnel.kind == one.kind && tunnel.found == one.found;
            number += u32::from(self.tunnels.peek(id, retirer).is_some_and(same));
            next = self.nexts.get(id as usize).map_or(0, |next| next.load(Relaxed));
        }
        number <= 1
    }

    /// Takes note that a link has changed, or gone.
    pub(in crate::tables) fn link_changed(
        &self,
        id: LinkId,
        link: Option<&Link>,
        links: &TunnelsOfLinks,
        retirer: &mut Retirer,
    ) {
        for tunnel in links.of.get(&id).into_iter().flatten() {
            let Some(old) = self.tunnels.peek(*tunnel, retirer) else { continue };
            let config = old.config.clone();
            let new = StoredTunnel::new(config.clone(), (link, old.locked), Arc::clone(&old.sequence));
            self.store(*tunnel, Some(new), links, retirer);
            self.refresh_end(&config, links, retirer);
        }
    }

    /// The end that is found at once at a place.
    pub(in crate::tables) fn end_at<'r>(
        &'r self,
        place: u32,
        retirer: &'r Retirer,
    ) -> Option<&'r PrecomputedDecap> {
        self.precomputed_decaps.peek(place, retirer)
    }

    /// The port of foo-over-UDP of a UDP port, if it is the only one and takes all datagrams there.
    pub(in crate::tables) fn only_port(&self, port: u16, retirer: &Retirer) -> Option<FouPort> {
        let id = self.port_heads.get(usize::from(port))?.load(Relaxed).checked_sub(1)?;
        let alone = self.port_nexts.get(id as usize)?.load(Relaxed) == 0;
        let fou = self.ports.peek(id, retirer).filter(|_| alone)?;
        (fou.peer.is_none() && fou.bound.is_none()).then_some(*fou)
    }

    /// Brings up to date which ports of a UDP port stand for all of their family: several VXLANs have the same.
    fn refresh_plain(&self, port: u16, retirer: &Retirer) {
        for ipv6 in [false, true] {
            let mut next = self.port_heads.get(usize::from(port)).map_or(0, |head| head.load(Relaxed));
            let mut plain: Option<(u32, &FouPort)> = None;
            let mut alike = true;
            while let Some(id) = next.checked_sub(1) {
                next = self.port_nexts.get(id as usize).map_or(0, |next| next.load(Relaxed));
                let Some(fou) = self.ports.peek(id, retirer).filter(|fou| fou.ipv6 == ipv6) else { continue };
                alike &=
                    fou.peer.is_none() && fou.bound.is_none() && plain.is_none_or(|(_, other)| other == fou);
                plain = Some((id, fou));
            }
            let plain = plain.filter(|_| alike).map_or(0, |(id, _)| id + 1);
            if let Some(place) = self.plain_ports.get(2 * usize::from(port) + usize::from(ipv6)) {
                place.store(plain, Relaxed);
            }
        }
    }

    /// Puts a port, or none, in the place of what `id` names. Whether there was one.
    pub(in crate::tables) fn put_port(&self, id: u32, port: Option<FouPort>, retirer: &mut Retirer) -> bool {
        let before = self.ports.peek(id, retirer).copied();
        if let Some(old) = &before {
            self.link_port_out(id, old);
            self.refresh_plain(old.port, retirer);
        }
        self.ports.replace(id, port, retirer);
        if let Some(port) = &port {
            self.link_port_in(id, port);
            self.refresh_plain(port.port, retirer);
        }
        before.is_some()
    }
}

/// Takes `id` out of a chain, if it is there.
fn take_out(head: &AtomicU32, nexts: &[AtomicU32], id: u32) -> bool {
    let own = nexts.get(id as usize).map_or(0, |next| next.load(Relaxed));
    let mut place = head;
    loop {
        let at = place.load(Relaxed);
        if at == id + 1 {
            place.store(own, Relaxed);
            return true;
        }
        match at.checked_sub(1).and_then(|at| nexts.get(at as usize)) {
            Some(next) => place = next,
            None => return false,
        }
    }
}
