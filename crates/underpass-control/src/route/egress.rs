//! Look-ups for packets that have to leave by a link: outer packets of tunnels with `dev`. Linux: `flowi_oif`,
//! `ip_route_output_key_hash_rcu`, `rt6_score_route`.

use super::info::{Info, InfoId};
use super::lookup::{blackhole_object, preferred, type_error, usable};
use super::published::{Egress, Scope};
use super::rule::Flow;
use super::table::{Family, Ids, Prefix, Table};
use crate::Router;

/// By which link packets leave that are looked up so; `None`: by any.
pub(super) fn egress_of(router: &Router, scope: Scope) -> Option<Egress> {
    let Scope::Out { link, family } = scope else { return None };
    let up = router.links.get(link).is_some_and(crate::Link::up);
    let on_link = family == Family::V4 && up && router.links.vrf_of(link).is_none();
    Some(Egress { link, on_link })
}

/// The route for what is on a link whatever other routes say, made if need be.
pub(super) fn on_link(router: &mut Router, link: u32) -> InfoId {
    if let Some(&id) = router.routes.published.on_links.get(&link) {
        return id;
    }
    let info = Info::plain(libc::RTN_UNICAST, libc::RT_SCOPE_LINK, link, None, None);
    let id = router.routes.infos.acquire(info);
    router.routes.published.on_links.insert(link, id);
    id
}

/// Whether a route ends look-ups with an error. Linux: `fib_table_lookup`.
pub(super) fn errs(router: &Router, id: InfoId) -> bool {
    let info = router.routes.infos.get(id);
    info.is_some_and(|info| {
        info.kind != libc::RTN_THROW && (type_error(info.kind).is_some() || blackhole_object(router, info))
    })
}

/// The routes of an IPv4 prefix by which packets may leave, in their order.
fn by_link(router: &Router, ids: &[InfoId], egress: Egress) -> Ids {
    let flow = Flow { oif: egress.link, ..Flow::to(Family::V4.address(0)) };
    ids.iter().filter(|&&id| usable(router, Family::V4, id, &flow).is_some()).copied().collect()
}

/// Whether a table has routes to exactly this prefix by which packets may leave.
pub(super) fn has(router: &Router, family: Family, routes: &Table, prefix: Prefix, egress: Egress) -> bool {
    let ids = routes.get(prefix);
    match family {
        Family::V4 => !by_link(router, ids, egress).is_empty(),
        Family::V6 => !ids.is_empty(),
    }
}

/// The routes to the longest prefix that covers this one by which packets may leave: over IPv4 those by the link alone,
/// and those that end in an error; over IPv6 all, beginning with that which is to be used.
pub(super) fn longest(
    router: &Router,
    family: Family,
    routes: &Table,
    prefix: Prefix,
    egress: Egress,
) -> Option<(Prefix, Ids)> {
    match family {
        Family::V4 => {
            let (found, ids) = routes.longest_by(prefix, |ids| !by_link(router, ids, egress).is_empty())?;
            Some((found, by_link(router, ids, egress)))
        }
        Family::V6 => {
            let (found, ids) = routes.longest(prefix)?;
            let first = preferred(router, ids, egress.link)?;
            let spreads = router.routes.infos.get(first).is_some_and(|info| info.spreads());
            Some((found, if spreads { ids.iter().copied().collect() } else { Ids::from_slice(&[first]) }))
        }
    }
}
