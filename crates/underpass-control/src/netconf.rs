//! `RTM_GETNETCONF`: how IPv4 and IPv6 are set on the links, which `ip netconf` shows. Linux:
//! `net/ipv4/devinet.c`, `net/ipv6/addrconf.c`.

use libc::{EINVAL, EOPNOTSUPP};
use underpass_netlink::{Replies, Reply, RequestError, Type, Validate, policy};

use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::link::Link;
use crate::route::Family;
use crate::route::mpls::dump_next_netconf;
use crate::{Request, Router};

pub(crate) const RTM_NEWNETCONF: u16 = 80;
pub(crate) const RTM_DELNETCONF: u16 = 81;
pub(crate) const RTM_GETNETCONF: u16 = 82;

pub(crate) const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
const NETCONFA_RP_FILTER: u16 = 3;
const NETCONFA_MC_FORWARDING: u16 = 4;
const NETCONFA_PROXY_NEIGH: u16 = 5;
const NETCONFA_IGNORE_ROUTES_WITH_LINKDOWN: u16 = 6;
const NETCONFA_BC_FORWARDING: u16 = 8;
const POLICY: [Type; 9] = policy(&[(NETCONFA_IFINDEX, Type::U32)]);

/// `NETCONFA_IFINDEX_ALL`.
const ALL: i32 = -1;
/// `NETCONFA_IFINDEX_DEFAULT`.
const DEFAULT: i32 = -2;

/// `struct netconfmsg`.
pub(crate) const HEADER: usize = 1;
/// `struct netconfmsg`, with the padding behind it.
pub(crate) const HEADER_PADDED: usize = 4;

/// The families that have such settings, in the order in which they are told.
pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Whether a link has settings of a family.
pub(crate) const fn has(link: &Link, family: Family) -> bool {
    matches!(family, Family::V4) || link.ipv6()
}

const fn refuse(family: Family, [of_v4, of_v6]: [&'static str; 2]) -> RequestError {
    RequestError::new(EINVAL, if matches!(family, Family::V6) { of_v6 } else { of_v4 })
}

/// Linux: `inet_netconf_fill_devconf`, `inet6_netconf_fill_devconf`. Every link forwards both families;
/// nothing else that they tell of is done by this router.
fn write(reply: &mut Reply<'_>, family: Family, index: i32, gone: bool) {
    reply.fixed(&[family.number(), 0, 0, 0]);
    reply.u32(NETCONFA_IFINDEX, index as u32);
    if gone {
        return;
    }
    reply.u32(NETCONFA_FORWARDING, 1);
    match family {
        Family::V4 => {
            reply.u32(NETCONFA_RP_FILTER, 0);
            reply.u32(NETCONFA_MC_FORWARDING, 0);
            reply.u32(NETCONFA_BC_FORWARDING, 0);
        }
        Family::V6 => reply.u32(NETCONFA_MC_FORWARDING, 0),
    }
    reply.u32(NETCONFA_PROXY_NEIGH, 0);
    reply.u32(NETCONFA_IGNORE_ROUTES_WITH_LINKDOWN, 0);
}

/// Answers a question about one link, about all of them, or about those to come.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let family = Family::from_number(request.family()).ok_or(RequestError::errno(EOPNOTSUPP))?;
    let (_, attributes) = request.parse::<HEADER, 9>(&POLICY, request.validate())?;
    if request.validate() == Validate::Strict
        && attributes.iter().any(|attribute| attribute.kind != NETCONFA_IFINDEX)
    {
        let texts = [
            "ipv4: Unsupported attribute in netconf get request",
            "Unsupported attribute in netconf get request",
        ];
        return Err(refuse(family, texts));
    }
    let index = attributes.get(NETCONFA_IFINDEX).ok_or(RequestError::errno(EINVAL))?.u32() as i32;
    if index != ALL && index != DEFAULT {
        let link = router.links.get(index as u32).filter(|link| has(link, family));
        link.ok_or(RequestError::errno(EINVAL))?;
    }
    replies.message(RTM_NEWNETCONF, 0, request.reply_to(), |reply| write(reply, family, index, false))?;
    Ok(Outcome::Done)
}

struct NetconfDump {
    /// Families that are still to be dumped, the present one last.
    families: Vec<Family>,
    /// What was written last: a link, then `ALL`, then `DEFAULT`.
    last: i32,
    /// In a dump of all families, of which link MPLS was told last.
    labels: Option<u32>,
}

/// Starts a dump of the settings of one family, or of all.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let families = match Family::from_number(request.family()) {
        Some(family) => vec![family],
        None if request.family() == 0 => vec![Family::V6, Family::V4],
        None => return Err(RequestError::errno(EOPNOTSUPP)),
    };
    if request.strict && request.message.body().len() > HEADER_PADDED {
        let texts = [
            "ipv4: Invalid data after header in netconf dump request",
            "Invalid data after header in netconf dump request",
        ];
        return Err(refuse(families.last().copied().unwrap_or(Family::V4), texts));
    }
    let labels = (request.family() == 0).then_some(0);
    Ok(Outcome::Dump(Box::new(NetconfDump { families, last: 0, labels })))
}

impl Dump for NetconfDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        if router.live.is_some() {
            // Of these the kernel tells.
            self.families.clear();
        }
        let Some(&family) = self.families.last() else {
            return match &mut self.labels {
                Some(last) => dump_next_netconf(router, last, out),
                None => Ok(More::No),
            };
        };
        let next = match self.last {
            DEFAULT => {
                self.families.pop();
                self.last = 0;
                return Ok(More::Yes);
            }
            ALL => DEFAULT,
            last => {
                let link = router.links.after(last as u32);
                link.map_or(ALL, |link| link.index as i32)
            }
        };
        self.last = next;
        if next < 0 || router.links.get(next as u32).is_some_and(|link| has(link, family)) {
            out.message(RTM_NEWNETCONF, |reply| write(reply, family, next, false))?;
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.links.generation
    }
}

/// Notifies listeners that a link has got settings of a family, or has lost them.
pub(crate) fn notify_netconf(router: &mut Router, cause: Cause, kind: u16, link: u32, family: Family) {
    let group = match family {
        Family::V4 => libc::RTNLGRP_IPV4_NETCONF,
        Family::V6 => libc::RTNLGRP_IPV6_NETCONF,
    };
    // Linux tells of these without the request that was the cause.
    let cause = Cause { to: underpass_netlink::reply::Address::default(), ..cause };
    router.events.notify(Cause { echo: false, ..cause }, group, kind, 0, |reply| {
        write(reply, family, link as i32, kind == RTM_DELNETCONF);
    });
}
