//! Requests for routes. Linux: `net/ipv4/fib_semantics.c`, `net/ipv6/route.c`.

use std::net::IpAddr;

use libc::{EEXIST, EINVAL, ENOENT, ESRCH};
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use underpass_netlink::RequestError;

use super::change::{duplicate6, same};
use super::check::Owner;
use super::config::{
    Config, HopConfig, RT_TABLE_LOCAL, RT_TABLE_MAIN, RTNH_F_DEAD, RTNH_F_LINKDOWN, metrics,
};
use super::info::{Hop, Info, InfoId, Origin, Ways};
use super::lookup::type_error;
use super::published::LOOPBACK;
use super::table::{Family, Ids, Place};
use crate::dump::Outcome;
use crate::events::Cause;
use crate::{Request, Router};

const RT_SCOPE_HOST: u8 = libc::RT_SCOPE_HOST;

/// `IP6_RT_PRIO_USER`.
const METRIC_USER6: u32 = 1024;

/// `RTM_NEWROUTE`.
pub(crate) fn new(
    router: &mut Router,
    request: &Request<'_>,
    family: Family,
) -> Result<Outcome, RequestError> {
    let config = Config::parse(request, family)?;
    if router.replaces_own(request, &config, family)? {
        return Ok(Outcome::Done);
    }
    let cause = Cause::from(request);
    let flags = request.message.flags;
    match family {
        Family::V4 => router.insert_route4(cause, flags, &config)?,
        Family::V6 => router.insert_route6(cause, flags, config)?,
    }
    Ok(Outcome::Done)
}

/// `RTM_DELROUTE`.
pub(crate) fn delete(
    router: &mut Router,
    request: &Request<'_>,
    family: Family,
) -> Result<Outcome, RequestError> {
    let config = Config::parse(request, family)?;
    if config.nh_id != 0 && router.routes.objects.get(config.nh_id).is_none() {
        return Err(RequestError::new(EINVAL, "Nexthop id does not exist"));
    }
    if !router.routes.tables.contains_key(&(family, config.table)) {
        return Err(RequestError::new(ESRCH, "FIB table does not exist"));
    }
    let cause = Cause::from(request);
    match family {
        Family::V4 => router.delete_route4(cause, &config)?,
        Family::V6 => router.delete_route6(cause, &config)?,
    }
    Ok(Outcome::Done)
}

const fn refuse(message: &'static str) -> RequestError {
    RequestError::new(EINVAL, message)
}

/// The narrowest scope that a route of a type may have. Linux: `fib_props`.
const fn widest_scope(kind: u8) -> u8 {
    match kind {
        libc::RTN_LOCAL => RT_SCOPE_HOST,
        libc::RTN_BROADCAST | libc::RTN_ANYCAST => libc::RT_SCOPE_LINK,
        libc::RTN_UNSPEC | libc::RTN_NAT | libc::RTN_XRESOLVE => libc::RT_SCOPE_NOWHERE,
        _ => libc::RT_SCOPE_UNIVERSE,
    }
}

impl Router {
    /// Linux: `fib_create_info`.
    fn info4(&mut self, config: &Config<'_>) -> Result<Info, RequestError> {
        if widest_scope(config.kind) > config.scope {
            return Err(refuse("Invalid scope"));
        }
        if config.hop.flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN) != 0 {
            return Err(refuse("Invalid rtm_flags - can not contain DEAD or LINKDOWN"));
        }
        if config.nh_id != 0 && self.routes.objects.get(config.nh_id).is_none() {
            return Err(refuse("Nexthop id does not exist"));
        }
        if config.multipath.as_ref().is_some_and(Vec::is_empty) {
            return Err(refuse("Invalid nexthop configuration - no valid nexthops"));
        }
        let metrics = metrics(config.metrics)?;
        let ways = self.ways4(config)?;
        if let Some(IpAddr::V4(source)) = config.source
            && !self.valid_source4(config, source)
        {
            return Err(refuse("Invalid prefsrc address"));
        }
        Ok(Info {
            kind: config.kind,
            protocol: config.protocol,
            scope: config.scope,
            metric: config.metric,
            preference: 0,
            reject: false,
            source: config.source,
            metrics,
            ways,
            origin: Origin::Own,
            tos: 0,
            unknown: 0,
        })
    }

    fn ways4(&mut self, config: &Config<'_>) -> Result<Ways, RequestError> {
        if type_error(config.kind).is_some() {
            if config.hop.gateway.is_some() || config.hop.oif != 0 || config.multipath.is_some() {
                let message = "Gateway, device and multipath can not be specified for this route type";
                return Err(refuse(message));
            }
            return Ok(if config.nh_id != 0 {
                Ways::Object(config.nh_id)
            } else {
                Ways::Hops(Box::default())
            });
        }
        if !matches!(config.kind, libc::RTN_UNICAST..=libc::RTN_MULTICAST) {
            return Err(refuse("Invalid route type"));
        }
        if config.scope > RT_SCOPE_HOST {
            return Err(refuse("Invalid scope"));
        }
        if config.nh_id != 0 {
            self.routes.objects.check4(config.nh_id, config.scope)?;
            return Ok(Ways::Object(config.nh_id));
        }
        let single = std::slice::from_ref(&config.hop);
        let hops = config.multipath.as_deref().unwrap_or(single);
        if config.scope == RT_SCOPE_HOST {
            let [hop] = hops else {
                return Err(refuse("Route with host scope can not have multiple nexthops"));
            };
            if hop.gateway.is_some() {
                return Err(refuse("Route with host scope can not have a gateway"));
            }
            let tunnel = self.tunnel(hop, Family::V4)?;
            if self.links.get(hop.oif).is_none() {
                return Err(RequestError::errno(libc::ENODEV));
            }
            let hop = Hop { oif: hop.oif, gateway: None, onlink: false, dead: false, weight: 1, tunnel };
            return Ok(Ways::Hops(Box::new([hop])));
        }
        let owner = Owner { table: config.table, scope: config.scope, kind: config.kind, loopback: false };
        let hops = hops.iter().map(|hop| self.check_hop4(owner, hop)).collect::<Result<_, _>>()?;
        Ok(Ways::Hops(hops))
    }

    /// Linux: `fib_valid_prefsrc`.
    fn valid_source4(&self, config: &Config<'_>, source: std::net::Ipv4Addr) -> bool {
        let own = super::table::bits(source.into());
        if config.kind == libc::RTN_LOCAL && config.prefix.bits == own {
            return true;
        }
        let table = if config.table == RT_TABLE_MAIN { RT_TABLE_LOCAL } else { config.table };
        [table, RT_TABLE_LOCAL].into_iter().any(|table| self.address_type4(source, table) == libc::RTN_LOCAL)
    }

    fn insert_route4(&mut self, cause: Cause, flags: u16, config: &Config<'_>) -> Result<(), RequestError> {
        let info = self.info4(config)?;
        let key = (Family::V4, config.table, config.prefix);
        let ids = self.ids(key);
        let metric = |id: InfoId| self.routes.infos.get(id).map_or(0, |info| info.metric);
        let begin = ids.iter().take_while(|&&id| metric(id) < info.metric).count();
        let end = begin + ids[begin..].iter().take_while(|&&id| metric(id) == info.metric).count();
        let equal = |&id: &InfoId| self.routes.infos.get(id).is_some_and(|old| same(old, &info));
        let found = ids[begin..end].iter().position(equal);
        let mut said = NLM_F_EXCL;
        let mut position = begin;
        if begin < end {
            if flags & NLM_F_EXCL != 0 {
                return Err(RequestError::errno(EEXIST));
            }
            said = 0;
            match found {
                Some(0) if flags & NLM_F_REPLACE != 0 => return Ok(()),
                Some(_) => return Err(RequestError::errno(EEXIST)),
                None if flags & NLM_F_REPLACE != 0 => {
                    if let Some(old) = self.routes.infos.get(ids[begin]).cloned() {
                        self.displace(key, &old);
                    }
                    let info = self.with_counters(info);
                    let id = self.put(key, Some(begin), begin, info);
                    self.notify_route(cause, libc::RTM_NEWROUTE, NLM_F_REPLACE, key, &[id]);
                    return Ok(());
                }
                None if flags & NLM_F_APPEND != 0 => {
                    said |= NLM_F_APPEND;
                    position = end;
                }
                None => {}
            }
        }
        if flags & NLM_F_CREATE == 0 {
            return Err(RequestError::errno(ENOENT));
        }
        let info = self.with_counters(info);
        let id = self.put(key, None, position, info);
        self.notify_route(cause, libc::RTM_NEWROUTE, said | NLM_F_CREATE, key, &[id]);
        Ok(())
    }

    fn delete_route4(&mut self, cause: Cause, config: &Config<'_>) -> Result<(), RequestError> {
        let key = (Family::V4, config.table, config.prefix);
        let position = self.match4(key, config)?.ok_or(RequestError::errno(ESRCH))?;
        let ids = self.ids(key);
        self.notify_route(cause, libc::RTM_DELROUTE, 0, key, &[ids[position]]);
        self.take(key, position);
        Ok(())
    }

    /// The position of the route that a deletion means.
    pub(crate) fn match4(&self, key: Place, config: &Config<'_>) -> Result<Option<usize>, RequestError> {
        let ids = self.ids(key);
        let wanted_metrics = metrics(config.metrics)?;
        let matches = |&id: &InfoId| {
            let Some(info) = self.routes.infos.get(id) else { return false };
            self.is_clients(info)
                && (config.kind == 0 || info.kind == config.kind)
                && (config.scope == libc::RT_SCOPE_NOWHERE || info.scope == config.scope)
                && (config.source.is_none() || info.source == config.source)
                && (config.protocol == 0 || info.protocol == config.protocol)
                && (config.metric == 0 || info.metric == config.metric)
                && self.ways_match4(config, info)
                && wanted_metrics.as_ref().is_none_or(|wanted| {
                    let has = info.metrics.as_deref().copied().unwrap_or_default();
                    wanted.iter().zip(has).all(|(&wanted, has)| wanted == 0 || wanted == has)
                })
        };
        Ok(ids.iter().position(matches))
    }

    /// Linux: `fib_nh_match`.
    fn ways_match4(&self, config: &Config<'_>, info: &Info) -> bool {
        let hops = match &info.ways {
            Ways::Object(id) if config.nh_id != 0 => return *id == config.nh_id,
            Ways::Object(_) => {
                return config.hop.oif == 0 && config.hop.gateway.is_none() && config.multipath.is_none();
            }
            Ways::Hops(_) if config.nh_id != 0 => return false,
            Ways::Hops(hops) => hops,
        };
        let fits = |wanted: &HopConfig<'_>, hop: &Hop| {
            (wanted.oif == 0 || wanted.oif == hop.oif)
                && (wanted.gateway.is_none() || wanted.gateway == hop.gateway)
        };
        if config.hop.oif != 0 || config.hop.gateway.is_some() {
            let Some(hop) = hops.first() else { return false };
            let encapsulated = match self.tunnel(&config.hop, Family::V4) {
                Ok(None) => true,
                Ok(Some(wanted)) => hop.encap().is_some_and(|encap| encap.is_like(&wanted.encap)),
                Err(_) => false,
            };
            return encapsulated && fits(&config.hop, hop);
        }
        match &config.multipath {
            None => true,
            Some(wanted) => {
                let same_weight = |w: &HopConfig<'_>, h: &Hop| w.weight <= 1 || w.weight == h.weight;
                wanted.len() == hops.len()
                    && wanted.iter().zip(hops.iter()).all(|(w, h)| same_weight(w, h) && fits(w, h))
            }
        }
    }

    /// Linux: `ip6_route_info_create`.
    fn info6(&mut self, config: &Config<'_>, hop: &HopConfig<'_>) -> Result<Info, RequestError> {
        let object = match config.nh_id {
            0 => None,
            id => Some(self.routes.objects.check6(id)?),
        };
        // Linux makes the table before it looks at the rest, and keeps it where it refuses the route.
        self.table_mut(Family::V6, config.table);
        let metrics = metrics(config.metrics)?;
        let host = config.prefix.len == 128 && config.prefix.bits == 1;
        let owner = Owner { table: config.table, scope: 0, kind: config.kind, loopback: host };
        let (ways, reject) = match object {
            Some(()) => (Ways::Object(config.nh_id), type_error(config.kind).is_some()),
            None => {
                let (hop, reject) = self.check_hop6(owner, hop)?;
                (Ways::Hops(Box::new([hop])), reject)
            }
        };
        if let Some(IpAddr::V6(source)) = config.source {
            let first = match &ways {
                Ways::Hops(hops) => hops.first().map(|hop| hop.oif),
                Ways::Object(id) => self.routes.objects.ways(*id).first().map(|hop| hop.oif),
            };
            let table = first.and_then(|link| self.l3mdev_table(link)).unwrap_or(RT_TABLE_LOCAL);
            if !self.own_address6(source, table, None) {
                return Err(refuse("Invalid source address"));
            }
        }
        Ok(Info {
            kind: if config.kind == 0 { libc::RTN_UNICAST } else { config.kind },
            protocol: if config.protocol == 0 { libc::RTPROT_BOOT } else { config.protocol },
            scope: 0,
            metric: config.metric,
            preference: config.preference,
            reject,
            source: config.source,
            metrics,
            ways,
            origin: Origin::Own,
            tos: 0,
            unknown: 0,
        })
    }

    fn insert_route6(
        &mut self,
        cause: Cause,
        mut flags: u16,
        mut config: Config<'_>,
    ) -> Result<(), RequestError> {
        if config.metric == 0 {
            config.metric = METRIC_USER6;
        }
        let key = (Family::V6, config.table, config.prefix);
        let Some(hops) = config.multipath.take() else {
            let info = self.info6(&config, &config.hop)?;
            let (id, said) = self.add6(flags, key, info)?;
            let whole = self.siblings(key, id);
            self.notify_route(cause, libc::RTM_NEWROUTE, said, key, &whole);
            return Ok(());
        };
        let mut infos: Vec<Info> = Vec::new();
        for hop in &hops {
            // Linux lets RTA_OIF, RTA_GATEWAY and RTA_ENCAP beside RTA_MULTIPATH stand in for what a
            // next hop lacks.
            let mut hop = hop.clone();
            hop.flags |= config.hop.flags;
            if hop.oif == 0 {
                hop.oif = config.hop.oif;
            }
            hop.gateway = hop.gateway.or(config.hop.gateway);
            hop.encap = hop.encap.or(config.hop.encap);
            let info = self.info6(&config, &hop)?;
            if !info.spreads() {
                let message = "Device only routes can not be added for IPv6 using the multipath API.";
                return Err(refuse(message));
            }
            if infos.iter().any(|other| duplicate6(other, &info)) {
                return Err(RequestError::errno(EEXIST));
            }
            infos.push(info);
        }
        let Some(first) = infos.first() else {
            return Err(refuse("Invalid nexthop configuration - no valid nexthops"));
        };
        // All that can refuse one of them is asked before the first is added.
        self.refuses6(flags, key, first)?;
        if flags & NLM_F_REPLACE == 0 {
            infos.iter().skip(1).try_for_each(|info| self.refuses6(flags & !NLM_F_EXCL, key, info))?;
        }
        let (mut first, mut said) = (None, 0);
        for info in infos {
            let (id, told) = self.add6(flags, key, info)?;
            if first.is_none() {
                (first, said) = (Some(id), told);
            }
            flags = flags & !(NLM_F_EXCL | NLM_F_REPLACE) | NLM_F_CREATE;
        }
        if let Some(id) = first {
            let whole = self.siblings(key, id);
            self.notify_route(cause, libc::RTM_NEWROUTE, said, key, &whole);
        }
        Ok(())
    }

    fn delete_route6(&mut self, cause: Cause, config: &Config<'_>) -> Result<(), RequestError> {
        let key = (Family::V6, config.table, config.prefix);
        if let Some(hops) = &config.multipath {
            let mut outcome = Ok(());
            for hop in hops {
                let gone = self.delete6_one(cause, key, config, hop, false);
                if gone.is_err() {
                    outcome = gone;
                }
            }
            return outcome;
        }
        self.delete6_one(cause, key, config, &config.hop, true)
    }

    fn delete6_one(
        &mut self,
        cause: Cause,
        key: Place,
        config: &Config<'_>,
        hop: &HopConfig<'_>,
        all: bool,
    ) -> Result<(), RequestError> {
        let ids = self.ids(key);
        let position = self.match6(key, config, hop).ok_or_else(|| {
            // Linux: what stands for no default route, by `lo`, is no route to delete.
            let null = config.prefix.len == 0 && ids.is_empty() && config.nh_id == 0;
            let all = config.metric == 0 && config.protocol == 0 && hop.gateway.is_none();
            RequestError::errno(if null && all && matches!(hop.oif, 0 | LOOPBACK) { ENOENT } else { ESRCH })
        })?;
        let gone = match hop.gateway {
            None if all => self.siblings(key, ids[position]),
            _ => Ids::from_slice(&[ids[position]]),
        };
        self.notify_route(cause, libc::RTM_DELROUTE, 0, key, &gone);
        for position in (0..ids.len()).rev().filter(|&i| gone.contains(&ids[i])) {
            self.take(key, position);
        }
        Ok(())
    }

    /// The position of the route that a deletion means.
    pub(crate) fn match6(&self, key: Place, config: &Config<'_>, hop: &HopConfig<'_>) -> Option<usize> {
        let ids = self.ids(key);
        let matches = |id: &InfoId| {
            let Some(info) = self.routes.infos.get(*id).filter(|info| self.is_clients(info)) else {
                return false;
            };
            if config.metric != 0 && config.metric != info.metric
                || config.protocol != 0 && config.protocol != info.protocol
            {
                return false;
            }
            match &info.ways {
                Ways::Object(id) => config.nh_id == 0 || config.nh_id == *id,
                Ways::Hops(_) if config.nh_id != 0 => false,
                Ways::Hops(hops) => hops.first().is_none_or(|own| {
                    (hop.oif == 0 || hop.oif == own.oif)
                        && (hop.gateway.is_none() || hop.gateway == own.gateway)
                }),
            }
        };
        ids.iter().position(matches)
    }

    /// Whether requests of clients may touch a route: beside a kernel only the router's own.
    pub(crate) fn is_clients(&self, info: &Info) -> bool {
        self.live.is_none() || info.own()
    }
}
