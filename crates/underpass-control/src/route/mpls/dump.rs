//! Label routes as messages. Linux: `mpls_dump_routes`, `mpls_dump_route`.

use underpass_netlink::mpls::{stack, via};
use underpass_netlink::{Reply, RequestError, Type, Validate, policy};

use super::{AF_MPLS, FIRST_UNRESERVED, LabelNextHop, RTA_NEWDST, RTA_TTL_PROPAGATE};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::route::config::{
    ATTRIBUTES, RT_TABLE_MAIN, RTA_DST, RTA_MULTIPATH, RTA_NH_ID, RTA_OIF, RTA_VIA, RTMSG, RTNH_F_DEAD,
    RTNH_F_LINKDOWN, RouteHeader,
};
use crate::{Request, Router};

/// `RTNLGRP_MPLS_ROUTE`.
const GROUP: u32 = 27;
const POLICY: [Type; ATTRIBUTES] = policy(&[(RTA_OIF, Type::U32)]);

#[derive(Debug)]
pub(crate) struct LabelDump {
    next: u32,
    /// Those by this link only; 0 for all.
    oif: u32,
    /// Those of this protocol only; 0 for all.
    protocol: u8,
}

/// Starts a dump of the label routes.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (mut oif, mut protocol) = (0, 0);
    // Only a strict client's filters are looked at.
    if request.strict {
        let (header, attributes) = request.parse::<RTMSG, ATTRIBUTES>(&POLICY, Validate::Liberal)?;
        protocol = RouteHeader::read(&header).protocol;
        oif = attributes.get(RTA_OIF).map_or(0, |oif| oif.u32());
    }
    Ok(Outcome::Dump(Box::new(LabelDump::new(oif, protocol))))
}

impl LabelDump {
    /// All label routes, or those by a link or of a protocol that is not 0.
    pub(crate) const fn new(oif: u32, protocol: u8) -> Self {
        Self { next: FIRST_UNRESERVED, oif, protocol }
    }
}

impl Dump for LabelDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let labels = &router.routes.labels;
        while (self.next as usize) < labels.routes.len() {
            let label = self.next;
            self.next += 1;
            let Some((_, spec)) = labels.get(label) else { continue };
            let wanted = (self.oif == 0 || spec.ways.iter().any(|way| way.oif == self.oif))
                && (self.protocol == 0 || spec.protocol == self.protocol);
            if wanted {
                out.message(libc::RTM_NEWROUTE, |reply| write_label(router, reply, label, true))?;
                return Ok(More::Yes);
            }
        }
        Ok(More::No)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.routes.labels.generation
    }

    fn filtered(&self) -> bool {
        self.oif != 0 || self.protocol != 0
    }
}

/// Writes the route of a label; not `whole`: as an answer to where a packet would go, by the first way.
pub(super) fn write_label(router: &Router, reply: &mut Reply<'_>, label: u32, whole: bool) {
    let Some((route, spec)) = router.routes.labels.get(label) else { return };
    let stacks = router.routes.labels.stacks(route);
    let labels = |index: usize| match (stacks.get(index), spec.ways.get(index)) {
        (Some(stack), Some(way)) if way.labels.is_empty() => &stack[..],
        (_, way) => way.map_or(&[][..], |way| &way.labels),
    };
    let start = reply.len();
    let mut header = RouteHeader {
        dst_len: 20,
        table: RT_TABLE_MAIN as u8,
        protocol: spec.protocol,
        kind: libc::RTN_UNICAST,
        ..RouteHeader::default()
    };
    let write = |header: &RouteHeader| {
        let mut fixed = header.write(super::super::Family::V4);
        fixed[0] = AF_MPLS;
        fixed
    };
    reply.fixed(&write(&header));
    reply.attribute(RTA_DST, &stack(&[label]));
    if let Some(propagate) = spec.propagate.filter(|_| whole) {
        reply.u8(RTA_TTL_PROPAGATE, u8::from(propagate));
    }
    if let Some(object) = spec.object.filter(|_| whole) {
        reply.u32(RTA_NH_ID, object);
    }
    match &spec.ways[..] {
        [way, rest @ ..] if rest.is_empty() || !whole => {
            write_way(reply, way, labels(0));
            reply.u32(RTA_OIF, way.oif);
            if whole {
                header.flags |= way_flags(router, way);
            }
        }
        ways => {
            let nest = reply.nest_unflagged(RTA_MULTIPATH);
            for (index, way) in ways.iter().enumerate() {
                let start = reply.len();
                let mut fixed = [0; 8];
                fixed[2] = way_flags(router, way) as u8;
                fixed[3] = (way.weight - 1).min(255) as u8;
                fixed[4..].copy_from_slice(&way.oif.to_ne_bytes());
                reply.fixed(&fixed);
                write_way(reply, way, labels(index));
                let len = (reply.len() - start) as u16;
                reply.fill(start, &len.to_ne_bytes());
            }
            reply.end(nest);
        }
    }
    let fixed = write(&header);
    reply.fill(start, &fixed);
}

fn write_way(reply: &mut Reply<'_>, way: &LabelNextHop, labels: &[u32]) {
    if !labels.is_empty() {
        reply.attribute(RTA_NEWDST, &stack(labels));
    }
    if let Some(address) = way.via {
        reply.attribute(RTA_VIA, &via(address));
    }
}

fn way_flags(router: &Router, way: &LabelNextHop) -> u32 {
    match router.links.get(way.oif) {
        Some(link) if !link.up() => RTNH_F_DEAD | RTNH_F_LINKDOWN,
        Some(link) if !link.carrier => RTNH_F_LINKDOWN,
        _ => 0,
    }
}

/// Notifies listeners of a change of a label's route.
pub(super) fn notify_label(router: &mut Router, cause: Cause, kind: u16, flags: u16, label: u32) {
    if !router.events.heard(cause, GROUP) {
        return;
    }
    let mut events = std::mem::take(&mut router.events);
    events.notify(cause, GROUP, kind, flags, |reply| write_label(router, reply, label, true));
    router.events = events;
}
