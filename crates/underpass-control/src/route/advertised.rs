//! Routes that the kernel has from router advertisements. A router follows none, unless `accept_ra` is 2 (RFC 4861
//! section 6.2.1, Linux's `ipv6_accept_ra`). The kernel beside the router is a host where its `forwarding` is 0, and
//! has them: they are for what it sends itself.
//!
//! Where `accept_ra` is 0 somebody else has put them there, who knows.

use super::info::Info;
use super::table::Place;
use crate::Router;
use crate::live::RTPROT_RA;

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
}
