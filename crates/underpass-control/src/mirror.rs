//! The mirror of the kernel beside the router: what it reports of its links, addresses, neighbours, routes,
//! next-hop objects and rules is taken into the model, marked as the kernel's.
//!
//! The kernel does not report everything: IPv4 routes that go with a link or an address vanish silently,
//! and so do the next-hop objects of a link. There the model does what Linux does.

use underpass_netlink::{Message, RequestError};

use crate::address::mirror::{mirror_address, unmirror_address};
use crate::link::mirror::{mirror_link, unmirror_link};
use crate::live::Unseen;
use crate::neighbour::mirror::{mirror_neighbour, unmirror_neighbour};
use crate::route::mirror::{mirror_route, sweep_routes, unseen_routes};
use crate::route::nexthop;
use crate::route::nexthop::mirror::{mirror_object, sweep_objects};
use crate::route::rule::mirror::{mirror_rule, sweep_rules};
use crate::route::rule::request::rules_changed;
use crate::{Namespace, Request, Router};

impl Router {
    /// Takes a message that the kernel has multicast, or written in a dump. Messages that the mirror has
    /// no use for are passed over; so are those of a router without a kernel.
    pub fn mirror(&mut self, message: &Message<'_>) {
        if self.live.is_none() {
            return;
        }
        let request = Request { message: *message, port: 0, strict: false };
        // Neighbours come and go without anybody's doing.
        self.changes += u64::from(!matches!(message.kind, libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH));
        let taken = match message.kind {
            libc::RTM_NEWLINK | libc::RTM_DELLINK => mirror_link(self, &request),
            libc::RTM_NEWADDR | libc::RTM_DELADDR => mirror_address(self, &request),
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => mirror_neighbour(self, &request),
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE => mirror_route(self, &request),
            nexthop::RTM_NEWNEXTHOP | nexthop::RTM_DELNEXTHOP => mirror_object(self, &request),
            libc::RTM_NEWRULE | libc::RTM_DELRULE => mirror_rule(self, &request),
            _ => Ok(()),
        };
        if let Err(error) = taken {
            self.log_unmirrored(message.kind, &error);
        }
        self.engine.reclaim();
    }

    fn log_unmirrored(&mut self, kind: u16, error: &RequestError) {
        let Some(live) = &mut self.live else { return };
        let text = error.to_string();
        if !live.logged.contains(&text) {
            tracing::warn!("something of the kernel's is not mirrored (message type {kind}): {text}");
            live.logged.insert(text);
        }
    }

    /// The kernel is about to be dumped anew, because some of its messages were lost: what is mirrored
    /// and not reported again before [`Router::end_resync`] is no more.
    pub fn begin_resync(&mut self) {
        let mut unseen = Unseen {
            links: self.links.iter().map(|link| link.index).collect(),
            addresses: self.addresses.iter().map(|own| (own.link, own.local, own.prefix_len)).collect(),
            neighbours: self.neighbours().map(|(link, address, _)| (link, address)).collect(),
            ..Unseen::default()
        };
        unseen_routes(self, &mut unseen);
        if let Some(live) = &mut self.live {
            live.unseen = Some(Box::new(unseen));
            live.parked.clear();
            live.advertised.clear();
        }
    }

    /// The dump is over.
    pub fn end_resync(&mut self) {
        let Some(mut unseen) = self.live.as_mut().and_then(|live| live.unseen.take()) else { return };
        unseen.rules_changed |= !unseen.rules.is_empty();
        sweep_rules(self, &unseen.rules);
        if unseen.rules_changed {
            rules_changed(self);
        }
        sweep_routes(self, unseen.routes);
        sweep_objects(self, &unseen.objects);
        for (link, address) in unseen.neighbours {
            unmirror_neighbour(self, link, address);
        }
        for (link, address, prefix_len) in unseen.addresses {
            unmirror_address(self, link, address, prefix_len);
        }
        for index in unseen.links {
            unmirror_link(self, index);
        }
        self.engine.reclaim();
    }

    /// Says by what the kernel is requested to do something: only then can devices be made, and links enslaved
    /// to them.
    pub fn set_namespace(&mut self, namespace: Box<dyn Namespace>) {
        if let Some(live) = &mut self.live {
            live.namespace = Some(namespace);
        }
    }
}
