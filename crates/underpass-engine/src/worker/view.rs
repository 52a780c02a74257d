//! What a burst sees of the tables.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::hmac::{Check, Require};
use crate::limiter::Nanos;
use crate::tables::{
    Action, Guard, Instance, Link, LinkId, Lookup, LookupId, NextHopId, StoredNextHop, Tables,
};

/// What a burst sees: the tables as they are now, and the time.
pub(crate) struct View<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) guard: &'a Guard<'a>,
    pub(crate) now: Nanos,
    /// The Unix time at which `now` was 0, in nanoseconds.
    pub(crate) epoch: Nanos,
}

impl<'a> View<'a> {
    #[inline]
    pub(crate) fn link(&self, id: LinkId) -> Option<&'a Link> {
        self.tables.link(id, self.guard)
    }

    /// The IPv4 address that the router sends from by a link when nothing else says which: Linux's `inet_select_addr`.
    #[cold]
    pub(crate) fn source4(&self, link: &Link) -> Option<Ipv4Addr> {
        link.source4.or_else(|| self.common_sources(link).0)
    }

    /// The same for IPv6: a global address of the link, or of its routing instance, or else a link-local one.
    #[cold]
    pub(crate) fn source6(&self, link: &Link) -> Option<Ipv6Addr> {
        link.source6.or_else(|| self.common_sources(link).1).or_else(|| link.own6.first().copied())
    }

    /// What the links of a link's routing instance send from that have no address of their own.
    fn common_sources(&self, link: &Link) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
        let device = match link.instance {
            Instance::Of(device) => self.link(device),
            Instance::Own { .. } => Some(link),
        };
        match device.map(|device| device.instance) {
            Some(Instance::Own { source4, source6 }) => (source4, source6),
            Some(Instance::Of(_)) | None => (None, None),
        }
    }

    /// Every link.
    pub(crate) fn links(&self) -> impl Iterator<Item = &'a Link> {
        self.tables.links(self.guard)
    }

    /// Which HMACs SRHs need that have come in by a link.
    #[inline]
    pub(crate) fn check(&self, ingress: LinkId) -> Check<'a> {
        let require = self.link(ingress).map_or(Require::Present, |link| link.require_hmac);
        Check { require, keys: self.tables.hmac_keys(self.guard) }
    }

    #[inline]
    pub(crate) fn lookup(&self, id: LookupId) -> Option<&'a Lookup> {
        self.tables.lookup(id, self.guard)
    }

    /// Where the router looks up what it sends itself in the routing instance of these tables. It names the instance:
    /// by which link packets come in may decide how they are looked up, not to which instance they belong.
    #[cold]
    pub(crate) fn own_lookup(&self, id: LookupId) -> LookupId {
        self.lookup(id).and_then(|lookup| lookup.own).unwrap_or(id)
    }

    /// The device of the VRF that these tables belong to, if they belong to one.
    #[cold]
    pub(crate) fn vrf_of(&self, lookup: LookupId) -> Option<(LinkId, &'a Link)> {
        let own = self.own_lookup(lookup);
        let mut links = self.tables.links_by_id(self.guard);
        links.find(|(_, link)| link.vrf && self.own_lookup(link.lookup) == own)
    }

    /// The loopback device.
    #[cold]
    pub(crate) fn loopback(&self) -> Option<LinkId> {
        let mut links = self.tables.links_by_id(self.guard);
        links.find(|(_, link)| link.ifindex == LOOPBACK).map(|(id, _)| id)
    }
}

/// Linux's interface index of `lo`.
const LOOPBACK: u32 = 1;

/// The look-up of links that are in no VRF, which the control thread makes first.
pub(crate) const OUTSIDE: LookupId = LookupId(0);

impl<'a> View<'a> {
    #[inline(always)]
    pub(crate) fn next_hop(&self, id: Option<NextHopId>) -> Option<&'a StoredNextHop> {
        self.tables.next_hop(id?, self.guard)
    }
}

/// The link of a route, as far as one of its own packets leaves by it, whatever it gets before it.
#[cold]
pub(crate) fn egress_of(view: &View<'_>, action: &Action) -> Option<LinkId> {
    let link_of = |next_hop| Some(view.tables.next_hop(next_hop, view.guard)?.link);
    match action {
        Action::Forward(next_hop) => link_of(*next_hop),
        Action::OnLink(link) => Some(*link),
        Action::Tunnel(route) => Some(view.tables.tunnels().tunnel(route.tunnel, view.guard)?.link),
        Action::Headend(headend) => Some(headend.link),
        Action::Push(push) => link_of(push.next_hop),
        _ => None,
    }
}
