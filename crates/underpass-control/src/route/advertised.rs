//! Routes that the kernel has from router advertisements. A router follows none, unless `accept_ra` is 2 (RFC 4861
//! section 6.2.1, Linux's `ipv6_accept_ra`). The kernel beside the router is a host where its `forwarding` is 0, and
//! has them: they are for what it sends itself.
//!
//! Where `accept_ra` is 0 somebody else has put them there, who knows.

use std::collections::BTreeSet;

use super::change::{Place, same};
use super::info::Info;
use super::table::Family;
use crate::Router;

/// `RTPROT_RA`.
const RTPROT_RA: u8 = 9;

/// The routes that are not followed.
#[derive(Debug, Default)]
pub(crate) struct Advertised {
    /// The links on which packets come and go, and `accept_ra` is 1.
    links: BTreeSet<u32>,
    aside: Vec<(Place, Info)>,
}

impl Advertised {
    /// All is told again.
    pub fn clear(&mut self) {
        self.aside.clear();
    }

    /// The link is gone.
    pub fn forget(&mut self, link: u32) {
        self.links.remove(&link);
        self.aside.retain(|(_, info)| info.hops().iter().all(|hop| hop.oif != link));
    }

    fn ignores(&self, family: Family, info: &Info) -> bool {
        family == Family::V6
            && info.protocol == RTPROT_RA
            && info.hops().iter().any(|hop| self.links.contains(&hop.oif))
    }
}

impl Router {
    /// Says whether routes of router advertisements on a link are not followed.
    pub fn ignore_advertised(&mut self, link: u32, ignore: bool) {
        let Some(live) = &mut self.live else { return };
        let changed = match ignore {
            true => live.advertised.links.insert(link),
            false => live.advertised.links.remove(&link),
        };
        if !changed {
            return;
        }
        if !ignore {
            let Some(live) = &mut self.live else { return };
            let by = |(_, info): &mut (Place, Info)| info.hops().iter().any(|hop| hop.oif == link);
            let back: Vec<_> = live.advertised.aside.extract_if(.., by).collect();
            back.into_iter().for_each(|(place, info)| self.append_mirrored6(place, info));
            return;
        }
        let by = |info: &Info| {
            !info.own() && info.protocol == RTPROT_RA && info.hops().iter().any(|hop| hop.oif == link)
        };
        for place in self.places_of(by) {
            for (position, id) in self.mirrored(place).into_iter().rev() {
                let info = self.routes.infos.get(id).filter(|info| by(info)).map(|info| Info::clone(info));
                if let Some(info) = info {
                    self.take(place, position);
                    self.set_aside(libc::RTM_NEWROUTE, place, &info);
                }
            }
        }
    }

    /// Keeps a route of the kernel's for when it is to be followed. `false`: it is.
    pub(super) fn set_aside(&mut self, kind: u16, place: Place, info: &Info) -> bool {
        let Some(live) = &mut self.live else { return false };
        if !live.advertised.ignores(place.0, info) {
            return false;
        }
        live.advertised.aside.retain(|(at, aside)| *at != place || !same(aside, info));
        if kind == libc::RTM_NEWROUTE {
            live.advertised.aside.push((place, info.clone()));
        }
        true
    }
}
