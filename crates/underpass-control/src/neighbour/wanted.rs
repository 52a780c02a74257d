//! Neighbours that packets will need: those of new next hops and of what encapsulations lead to. The kernel is asked
//! for them before the first packet comes.

use std::net::IpAddr;

use underpass_engine::tables::LookupId;

use super::LIMIT;
use crate::route::{Flow, Scope};
use crate::{Link, Router};

impl Router {
    /// Packets may leave for this neighbour.
    pub(crate) fn want_neighbour(&mut self, link: u32, address: IpAddr) {
        if let Some(live) = &mut self.live
            && live.wants.new.len() < LIMIT
        {
            live.wants.new.insert((link, address));
        }
    }

    /// Packets to this address, which are looked up so, lead to no next hop: perhaps as it is a neighbour itself.
    pub(crate) fn want_on_link(&mut self, address: IpAddr, lookup: LookupId) {
        if self.live.is_none() || address.is_unspecified() || address.is_multicast() {
            return;
        }
        let Some(Scope::Rules { vrf, .. }) = self.scope_of_lookup(lookup) else { return };
        let hop = self.hop_of(&Flow { l3mdev: vrf, ..Flow::to(address) });
        if let Some(hop) = hop.filter(|hop| hop.gateway.is_none() && hop.tunnel.is_none()) {
            self.want_neighbour(hop.oif, address);
        }
    }

    /// The neighbours that have become needed, on links that are ready, and of which nothing is known.
    pub fn take_wanted(&mut self) -> Vec<(u32, IpAddr)> {
        let generation = self.links.generation;
        let Some(live) = &mut self.live else { return Vec::new() };
        let mut all = std::mem::take(&mut live.wants.new);
        if live.wants.seen != generation {
            live.wants.seen = generation;
            all.append(&mut live.wants.asleep);
        }
        let ready = |link: &Link| link.up() && link.carrier && link.port().is_some();
        let mut wanted = Vec::new();
        for (index, address) in all {
            let Some(link) = self.links.get(index).filter(|link| link.resolves()) else { continue };
            if self.tunnels.id(index).is_some() || self.neighbours.get(index, address).is_some() {
                continue;
            }
            if ready(link) {
                wanted.push((index, address));
            } else if let Some(live) = &mut self.live
                && live.wants.asleep.len() < LIMIT
            {
                live.wants.asleep.insert((index, address));
            }
        }
        wanted
    }
}
