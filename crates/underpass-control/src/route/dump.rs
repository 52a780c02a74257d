//! `RTM_GETROUTE` for all routes. Linux: `inet_dump_fib`, `inet6_dump_fib`.

use std::sync::Arc;

use libc::{EINVAL, ENODEV, ENOENT, RTM_NEWROUTE};
use underpass_netlink::{RequestError, Validate};

use super::change::siblings;
use super::config::{ATTRIBUTES, RTA_OIF, RTA_TABLE, RTM_F_CLONED, RTMSG, RouteHeader, route_policy};
use super::encode::write_route;
use super::info::{Info, InfoId};
use super::lookup::ways_of;
use super::mpls::LabelDump;
use super::table::{Family, Ids, Key};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::{Request, Router};

const RTM_F_PREFIX: u32 = 0x800;

/// What a strict client asks for; 0 for any.
#[derive(Clone, Copy, Debug, Default)]
struct Filter {
    table: u32,
    protocol: u8,
    kind: u8,
    link: u32,
    set: bool,
    /// The client is a strict one: it gets no cached routes.
    strict: bool,
}

/// Where a dump is: behind so many routes to this prefix of this table.
#[derive(Debug)]
struct RouteDump {
    /// Families that are still to be dumped, the present one last.
    families: Vec<Family>,
    filter: Filter,
    /// Rank and number of the present table.
    table: Option<(Rank, u32)>,
    key: Option<Key>,
    /// Routes to the prefix behind `key` that are written already.
    done: usize,
    /// The table that was asked for is not there.
    missing: Option<RequestError>,
    /// Label routes, which come last where every family is asked for.
    labels: Option<LabelDump>,
}

/// The order of tables in a dump: Linux's 256 chains, the newest table of each first.
type Rank = (u32, std::cmp::Reverse<u32>);

/// Starts a dump of one family, or of all where `family` is none.
pub(crate) fn dump(
    router: &Router,
    request: &Request<'_>,
    family: Option<Family>,
) -> Result<Outcome, RequestError> {
    let mut filter = Filter { strict: request.strict, ..Filter::default() };
    let mut families = match family {
        Some(family) => vec![family],
        None => vec![Family::V6, Family::V4],
    };
    if request.strict {
        let policy = route_policy(family.unwrap_or(Family::V4));
        let short = RequestError::new(EINVAL, "Invalid header for FIB dump request");
        let header = RouteHeader::read(&request.fixed::<RTMSG>().map_err(|_| short)?);
        if header.dst_len != 0 || header.src_len != 0 || header.tos != 0 || header.scope != 0 {
            return Err(RequestError::new(EINVAL, "Invalid values in header for FIB dump request"));
        }
        if header.flags & !(RTM_F_CLONED | RTM_F_PREFIX) != 0 {
            return Err(RequestError::new(EINVAL, "Invalid flags for FIB dump request"));
        }
        let (_, attributes) = request.parse::<RTMSG, ATTRIBUTES>(policy, Validate::Strict)?;
        filter.table = header.table.into();
        filter.protocol = header.protocol;
        filter.kind = header.kind;
        for attribute in attributes.iter() {
            match attribute.kind {
                RTA_TABLE => filter.table = attribute.u32(),
                RTA_OIF => {
                    filter.link = attribute.u32();
                    router.links.get(filter.link).ok_or(RequestError::errno(ENODEV))?;
                }
                _ => return Err(RequestError::new(EINVAL, "Unsupported attribute in dump request")),
            }
        }
        filter.set = header.flags != 0
            || filter.table != 0
            || filter.protocol != 0
            || filter.kind != 0
            || filter.link != 0;
        if header.flags != 0 {
            families.clear(); // no route is a cached one, none comes from a router advertisement
        }
    } else if let Ok(header) = request.fixed::<RTMSG>()
        && RouteHeader::read(&header).flags & (RTM_F_CLONED | RTM_F_PREFIX) != 0
    {
        families.clear();
    }
    if filter.table != 0
        && let Some(family) = family
        && !router.routes.tables.contains_key(&(family, filter.table))
    {
        let message = match family {
            Family::V4 => "ipv4: FIB table does not exist",
            Family::V6 => "ipv6: FIB table does not exist",
        };
        // Linux finds out when it has begun: the error ends the dump.
        let missing = Some(RequestError::new(ENOENT, message));
        return Ok(Outcome::Dump(Box::new(RouteDump { missing, ..RouteDump::new(families, filter) })));
    }
    // Linux has no tables and no types of label routes.
    let labels = family.is_none() && !families.is_empty() && filter.table == 0 && filter.kind == 0;
    let labels = labels.then(|| LabelDump::new(filter.link, filter.protocol));
    Ok(Outcome::Dump(Box::new(RouteDump { labels, ..RouteDump::new(families, filter) })))
}

impl Filter {
    /// Whether the client gets what these routes are together. Type and protocol are those of the first, as Linux has it.
    fn takes(&self, router: &Router, ids: &[InfoId]) -> bool {
        let info = |id: &InfoId| router.routes.infos.get(*id);
        let by_link = |info: &Arc<Info>| ways_of(router, info).iter().any(|hop| hop.oif == self.link);
        ids.first().and_then(info).is_some_and(|first| {
            (self.kind == 0 || first.kind == self.kind)
                && (self.protocol == 0 || first.protocol == self.protocol)
        }) && (self.link == 0 || ids.iter().filter_map(info).any(by_link))
    }
}

impl RouteDump {
    const fn new(families: Vec<Family>, filter: Filter) -> Self {
        Self { families, filter, table: None, key: None, done: 0, missing: None, labels: None }
    }

    /// The table behind the present one.
    fn next_table(&self, router: &Router, family: Family) -> Option<(Rank, u32)> {
        let tables = router.routes.tables.iter();
        tables
            .filter(|((of, id), _)| *of == family && (self.filter.table == 0 || *id == self.filter.table))
            .map(|((_, id), table)| ((id & 255, std::cmp::Reverse(table.created)), *id))
            .filter(|place| self.table.is_none_or(|present| present < *place))
            .min()
    }

    /// The next routes that are written together: those behind the present place in its table.
    fn next_routes(&mut self, router: &Router, family: Family, id: u32) -> Option<(Key, Ids)> {
        let table = router.routes.tables.get(&(family, id))?;
        loop {
            let (key, ids) = table.after(self.key).next()?;
            // Those of the kernel's are in its part of the answer.
            let own = |id: &&InfoId| router.routes.infos.get(**id).is_some_and(|info| info.own());
            let Some(&first) = ids.iter().skip(self.done).find(own) else {
                (self.key, self.done) = (Some(key), 0);
                continue;
            };
            let siblings = siblings(router, (family, id, key.prefix()), first);
            // Linux goes on behind the last of them, and leaves out what stands between: `fib6_dump_node`.
            let last = ids.iter().rposition(|id| siblings.last() == Some(id));
            self.done = last.map_or(ids.len(), |last| last + 1);
            return Some((key, siblings));
        }
    }
}

impl Dump for RouteDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        if let Some(missing) = self.missing.take() {
            return Err(missing);
        }
        let Some(&family) = self.families.last() else {
            return self.labels.as_mut().map_or(Ok(More::No), |labels| labels.next(router, out));
        };
        if self.table.is_none() {
            self.table = self.next_table(router, family);
        }
        let Some((_, id)) = self.table else {
            self.families.pop();
            return Ok(More::Yes);
        };
        let Some((key, ids)) = self.next_routes(router, family, id) else {
            (self.key, self.done) = (None, 0);
            self.table = self.next_table(router, family);
            if self.table.is_none() {
                self.families.pop();
            }
            return Ok(More::Yes);
        };
        if self.filter.takes(router, &ids) {
            out.message(RTM_NEWROUTE, |reply| {
                write_route(router, reply, (family, id, key.prefix()), &ids, 0);
            })?;
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        let labels = self.labels.as_ref().map_or(0, |labels| labels.generation(router));
        router.routes.generation.wrapping_add(labels)
    }

    fn filtered(&self) -> bool {
        self.filter.set
    }

    fn marks_messages(&self) -> bool {
        self.filter.set || self.filter.strict
    }
}
