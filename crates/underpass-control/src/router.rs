//! How the router is made, and the path of a request through it. Linux: `net/core/rtnetlink.c`.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use libc::{EBUSY, EOPNOTSUPP};
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};
use underpass_engine::buffer::PortId;
use underpass_engine::tables::Writer;
use underpass_netlink::reply::write_done;
use underpass_netlink::{Message, Replies, RequestError, messages};

use crate::address::{self, Addresses};
use crate::dump::{Empty, More, Outcome, Running};
use crate::events::{Cause, Events, Notification, check_group};
use crate::fou::FouPorts;
use crate::hmac::HmacKeys;
use crate::ioam::Ioam;
use crate::ioam::request::publish_ioam;
use crate::link::bridge::options::{RTM_DELVLAN, RTM_GETVLAN, RTM_NEWVLAN};
use crate::link::bridge::trees::Trees;
use crate::link::bridge::{self, fdb::request as fdb};
use crate::link::change::{add_link, add_loopback};
use crate::link::publish::{change_sink, free_port};
use crate::link::tunnel::Tunnels;
use crate::link::{self, Link, LinkKind, Links, valid_mac, valid_name};
use crate::neighbour::{self, Neighbours};
use crate::program::Offered;
use crate::psample::{Psample, count_member};
use crate::route::mpls::{self, AF_MPLS};
use crate::route::publish::begin_publishing;
use crate::route::recompile::refresh_lookups;
use crate::route::{self, Family, Routes, nexthop};
use crate::sysctl::Sysctls;
use crate::tc::action::{self, Actions};
use crate::tc::filter::publish::{WAIT, publish_filters};
use crate::tc::filter::{self, Filters};
use crate::tc::{self, TrafficControl};
use crate::{Client, Protocol, Request, Router, generic, netconf, stats};

/// Asks for the ids of other network namespaces, of which the router knows none.
const RTM_GETNSID: u16 = 90;
// Ask for groups of bridges, buckets of resilient groups, and VNIs: include/uapi/linux/rtnetlink.h.
const RTM_GETMDB: u16 = 86;
const RTM_GETNEXTHOPBUCKET: u16 = 118;
const RTM_GETTUNNEL: u16 = 122;
/// `RTNL_FAMILY_IPMR`, `RTNL_FAMILY_IP6MR`: multicast routes, of which there is none.
const MULTICAST_ROUTING: [u8; 2] = [128, 129];

/// Types below this are netlink's own: `NLMSG_MIN_TYPE`.
const MIN_TYPE: u16 = 16;

/// Whether an rtnetlink message only asks: of its types every fourth does.
const fn is_question(kind: u16) -> bool {
    kind % 4 == libc::RTM_GETLINK % 4
}

/// Whether a request is about bridges, their ports, VLANs and stations.
fn is_of_bridges(request: &Request<'_>) -> bool {
    i32::from(request.family()) == libc::AF_BRIDGE
}

/// Whether a request that was refused is an rtnetlink dump: of those types every fourth is a question. A
/// type that nobody answers is refused before it is one.
fn is_dump(request: &Request<'_>, error: &RequestError) -> bool {
    is_question(request.message.kind) && request.dump() && error.errno != EOPNOTSUPP
}

impl Router {
    /// A router with nothing but its loopback link. What it is told it publishes to `engine`.
    pub fn new(engine: Writer) -> Self {
        let mut router = Self::empty(engine);
        add_loopback(&mut router);
        router
    }

    /// A router beside a kernel, which is the authority for links, addresses, neighbours, plain routes,
    /// rules and plain next-hop objects: [`Router::mirror`] takes what it reports of these.
    pub fn live(engine: Writer) -> Self {
        let mut router = Self::empty(engine);
        router.events.beside_kernel = true;
        router.routes.clear_rules();
        router.live = Some(Box::default());
        refresh_lookups(&mut router);
        router
    }

    fn empty(engine: Writer) -> Self {
        let mut router = Self {
            links: Links::default(),
            stations: BTreeMap::new(),
            trees: Trees::default(),
            addresses: Addresses::default(),
            neighbours: Neighbours::default(),
            routes: Routes::default(),
            events: Events::default(),
            tunnel_source: Ipv6Addr::UNSPECIFIED,
            hmac_keys: HmacKeys::default(),
            sysctls: Sysctls::default(),
            ioam: Ioam::default(),
            tunnels: Tunnels::default(),
            fou: FouPorts::default(),
            tc: TrafficControl::default(),
            actions: Actions::default(),
            filters: Filters::default(),
            psample: Psample::default(),
            began: Instant::now(),
            stopped_at: None,
            changes: 0,
            programs: Offered::new(),
            experimental: false,
            carriers: BTreeMap::new(),
            live: None,
            engine,
        };
        begin_publishing(&mut router);
        publish_ioam(&mut router);
        router
    }

    /// Answers a datagram of a client: its messages one after the other, as Linux's `netlink_rcv_skb`
    /// does. A dump that it starts goes on with [`Router::continue_dump`].
    pub fn request(&mut self, client: &mut Client, datagram: &[u8], replies: &mut Replies) {
        for message in messages(datagram) {
            if message.flags & NLM_F_REQUEST == 0 || message.kind < MIN_TYPE {
                if message.flags & NLM_F_ACK != 0 {
                    self.acknowledge(client, &message, Ok(()), replies);
                }
                continue;
            }
            let request = Request { message, port: client.port, strict: client.strict_check };
            self.changes += u64::from(client.protocol == Protocol::Generic || !is_question(message.kind));
            let outcome = match client.protocol {
                Protocol::Route => self.route(&request, replies),
                Protocol::Generic => generic::answer(self, &request, replies),
            };
            if !self.events.echoes.is_empty() {
                self.events.echoes.iter().for_each(|echo| replies.datagram(echo));
                self.events.echoes.clear();
            }
            match outcome {
                Ok(Outcome::Done | Outcome::Warning(_)) if message.flags & NLM_F_ACK == 0 => {}
                Ok(Outcome::Done) => self.acknowledge(client, &message, Ok(()), replies),
                Ok(Outcome::Warning(text)) => {
                    let warning = RequestError { message: Some(text), ..RequestError::errno(0) };
                    self.acknowledge(client, &message, Err(&warning), replies);
                }
                Ok(Outcome::Dump(_)) if client.dump.is_some() => {
                    self.acknowledge(client, &message, Err(&RequestError::errno(EBUSY)), replies);
                }
                Ok(Outcome::Dump(dump)) => {
                    client.dump = Some(Running::new(dump, request.reply_to(), self));
                    self.continue_dump(client, replies);
                }
                // Linux reads the request of a dump when it writes the first part.
                Err(error) if client.protocol == Protocol::Route && is_dump(&request, &error) => {
                    let mut bytes = Vec::new();
                    write_done(&mut bytes, 0, request.reply_to(), Some(&error), client.extended_ack);
                    replies.datagram(&bytes);
                }
                Err(error) => self.acknowledge(client, &message, Err(&error), replies),
            }
        }
        if !self.filters.gathers() {
            self.publish_gathered();
        }
        self.engine.reclaim();
    }

    /// Writes the next datagram of the client's dump, if one is under way; says whether there is more.
    pub fn continue_dump(&self, client: &mut Client, replies: &mut Replies) -> bool {
        let limit = client.longest_part();
        if let Some(dump) = &mut client.dump
            && dump.datagram(self, limit, client.extended_ack, replies) == More::No
        {
            client.dump = None;
        }
        client.dumping()
    }

    /// Makes the client a member of a multicast group (`NETLINK_ADD_MEMBERSHIP`).
    ///
    /// # Errors
    /// `EINVAL` if there is no such group.
    pub fn join(&mut self, client: &mut Client, group: u32) -> Result<(), RequestError> {
        check_group(group)?;
        if !client.listens_to(group) {
            client.groups.push(group);
            match client.protocol {
                Protocol::Route => self.events.join(group),
                Protocol::Generic => count_member(self, group, true),
            }
        }
        Ok(())
    }

    /// Ends a membership (`NETLINK_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    /// `EINVAL` if there is no such group.
    pub fn leave(&mut self, client: &mut Client, group: u32) -> Result<(), RequestError> {
        check_group(group)?;
        if client.listens_to(group) {
            client.groups.retain(|&member| member != group);
            match client.protocol {
                Protocol::Route => self.events.leave(group),
                Protocol::Generic => count_member(self, group, false),
            }
        }
        Ok(())
    }

    /// Forgets a client whose socket was closed.
    pub fn close(&mut self, client: Client) {
        for group in client.groups {
            match client.protocol {
                Protocol::Route => self.events.leave(group),
                Protocol::Generic => count_member(self, group, false),
            }
        }
    }

    /// Takes the notifications that wait to be sent to the members of their groups.
    pub fn notifications(&mut self) -> impl Iterator<Item = Notification> + '_ {
        self.events.take()
    }

    fn acknowledge(
        &self,
        client: &Client,
        message: &Message<'_>,
        outcome: Result<(), &RequestError>,
        replies: &mut Replies,
    ) {
        replies.acknowledge(message, client.port, outcome, client.cap_ack, client.extended_ack);
    }

    fn route(&mut self, request: &Request<'_>, replies: &mut Replies) -> Result<Outcome, RequestError> {
        if request.message.body().is_empty() {
            return Ok(Outcome::Done); // shorter than a `struct rtgenmsg`
        }
        self.follow_stations();
        match request.message.kind {
            libc::RTM_NEWLINK => link::new(self, request),
            libc::RTM_SETLINK | libc::RTM_DELLINK if is_of_bridges(request) => {
                bridge::request::change(self, request)
            }
            libc::RTM_SETLINK => link::set(self, request),
            libc::RTM_DELLINK => link::delete(self, request),
            libc::RTM_GETLINK if request.dump() => link::dump(request),
            libc::RTM_GETLINK => link::get(self, request, replies),
            nexthop::RTM_NEWNEXTHOP => nexthop::new(self, request),
            nexthop::RTM_DELNEXTHOP => nexthop::delete(self, request),
            nexthop::RTM_GETNEXTHOP if request.dump() => nexthop::dump(request),
            nexthop::RTM_GETNEXTHOP => nexthop::get(self, request, replies),
            libc::RTM_NEWRULE => route::new_rule(self, request),
            libc::RTM_DELRULE => route::delete_rule(self, request),
            libc::RTM_GETRULE if request.dump() => route::dump_rules(request),
            RTM_NEWVLAN | RTM_DELVLAN if is_of_bridges(request) => bridge::options::change(self, request),
            RTM_GETVLAN if request.dump() && is_of_bridges(request) => bridge::options::dump(self, request),
            // Of groups nothing is kept, and there are no resilient groups.
            RTM_GETNEXTHOPBUCKET | RTM_GETTUNNEL | RTM_GETMDB if request.dump() => {
                Ok(Outcome::Dump(Box::new(Empty)))
            }
            RTM_GETNSID if request.dump() => Ok(Outcome::Dump(Box::new(Empty))),
            libc::RTM_GETROUTE if request.dump() && MULTICAST_ROUTING.contains(&request.family()) => {
                Ok(Outcome::Dump(Box::new(Empty)))
            }
            libc::RTM_GETROUTE if request.dump() && request.family() == 0 => route::dump(self, request, None),
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_GETROUTE if request.family() == AF_MPLS => {
                match request.message.kind {
                    libc::RTM_NEWROUTE => mpls::new(self, request),
                    libc::RTM_DELROUTE => mpls::delete(self, request),
                    _ if request.dump() => mpls::dump(request),
                    _ => mpls::get(self, request, replies),
                }
            }
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_GETROUTE => {
                let family = Family::from_number(request.family()).ok_or(RequestError::errno(EOPNOTSUPP))?;
                match request.message.kind {
                    libc::RTM_NEWROUTE => route::new(self, request, family),
                    libc::RTM_DELROUTE => route::delete(self, request, family),
                    _ if request.dump() => route::dump(self, request, Some(family)),
                    _ => route::get(self, request, family, replies),
                }
            }
            libc::RTM_GETSTATS if request.dump() => stats::dump(request),
            libc::RTM_GETSTATS => stats::get(self, request, replies),
            netconf::RTM_GETNETCONF if request.family() == AF_MPLS && request.dump() => {
                mpls::dump_netconf(request)
            }
            netconf::RTM_GETNETCONF if request.family() == AF_MPLS => {
                mpls::get_netconf(self, request, replies)
            }
            netconf::RTM_GETNETCONF if request.dump() => netconf::dump(request),
            netconf::RTM_GETNETCONF => netconf::get(self, request, replies),
            libc::RTM_NEWADDR => address::new(self, request),
            libc::RTM_DELADDR => address::delete(self, request),
            libc::RTM_GETADDR if request.dump() => address::dump(self, request),
            libc::RTM_GETADDR => address::get(self, request, replies),
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH | libc::RTM_GETNEIGH if is_of_bridges(request) => {
                match request.message.kind {
                    libc::RTM_NEWNEIGH => fdb::new(self, request),
                    libc::RTM_DELNEIGH => fdb::delete(self, request),
                    _ if request.dump() => fdb::dump(request),
                    _ => fdb::get(self, request, replies),
                }
            }
            libc::RTM_NEWNEIGH => neighbour::new(self, request),
            libc::RTM_DELNEIGH => neighbour::request::delete(self, request),
            libc::RTM_GETNEIGH if request.dump() => neighbour::request::dump(request),
            libc::RTM_GETNEIGH => neighbour::get(self, request, replies),
            libc::RTM_NEWQDISC => tc::new(self, request),
            libc::RTM_DELQDISC => tc::delete(self, request),
            libc::RTM_GETQDISC if request.dump() => tc::dump(request),
            libc::RTM_GETQDISC => tc::get(self, request, replies),
            libc::RTM_NEWTFILTER => filter::change(self, request),
            libc::RTM_DELTFILTER => filter::delete(self, request),
            libc::RTM_GETTFILTER if request.dump() => filter::dump(self, request),
            libc::RTM_GETTFILTER => filter::get(self, request, replies),
            filter::RTM_NEWCHAIN => filter::change_chain(self, request),
            filter::RTM_DELCHAIN => filter::delete_chain(self, request),
            filter::RTM_GETCHAIN if request.dump() => filter::dump_chains(self, request),
            filter::RTM_GETCHAIN => filter::get_chain(self, request, replies),
            action::RTM_NEWACTION => action::change(self, request),
            action::RTM_DELACTION => action::delete(self, request),
            action::RTM_GETACTION if request.dump() => action::dump(request),
            action::RTM_GETACTION => action::get(self, request, replies),
            libc::RTM_NEWTCLASS => tc::new_class(self, request),
            libc::RTM_DELTCLASS => tc::delete_class(self, request),
            libc::RTM_GETTCLASS if request.dump() => tc::dump_classes(request),
            libc::RTM_GETTCLASS => tc::get_class(self, request, replies),
            _ => Err(RequestError::errno(EOPNOTSUPP)),
        }
    }

    /// Declares a port: an Ethernet link that is down. Returns its interface index.
    ///
    /// # Errors
    /// `EEXIST` if there is a link of that name, `EINVAL` if it is not a name for a link, or `mac` is not
    /// the address of one station.
    pub fn add_port(&mut self, name: &str, mac: [u8; 6], port: PortId) -> Result<u32, crate::RequestError> {
        if !valid_name(name) || !valid_mac(mac) {
            return Err(crate::RequestError::errno(libc::EINVAL));
        }
        if self.links.named(name).is_some() {
            return Err(crate::RequestError::errno(libc::EEXIST));
        }
        let index = self.links.free_index();
        let in_its_place = self.links.iter().find(|link| link.sink == Some(port)).cloned();
        if let Some(inside) = in_its_place {
            let sink = Some(PortId(port.0 + 1).max(free_port(self)));
            change_sink(self, Link { sink, ..inside });
        }
        add_link(self, Cause::default(), Link::new(index, name.into(), LinkKind::Port(port), mac));
        Ok(index)
    }

    /// Whether filters that are added to many others may be in force only once [`Router::publish_gathered`] has been
    /// called, and not when they are acknowledged: what the packet path has of a place is made anew each time.
    pub fn gather_filters(&mut self, gathers: bool) {
        self.filters.gathers = gathers;
    }

    /// How long the next request for a filter may take to follow before those that wait for
    /// [`Router::publish_gathered`] are put in force; none: at once. `None` if none wait.
    ///
    /// Putting them in force takes no more than half of the time in the long run, however many there are.
    pub fn gathered(&self) -> Option<Duration> {
        let (least, most) = WAIT;
        let took = self.filters.publishing;
        let left = most.max(took * 4).checked_sub(self.filters.gathered_since?.elapsed());
        Some(left.unwrap_or_default().min(least.max(took)))
    }

    /// Puts all filters in force.
    pub fn publish_gathered(&mut self) {
        if self.filters.gathered_since.take().is_none() {
            return;
        }
        let start = Instant::now();
        for block in std::mem::take(&mut self.filters.gathered) {
            if let Some(qdisc) = self.filters.places.get(&block).map(|place| place.qdisc) {
                publish_filters(self, block, qdisc);
            }
        }
        self.filters.publishing = start.elapsed();
    }
}
