//! What is published is what Linux's look-ups end in: random changes, then each address looked up in the
//! packet path's tables and, naively, in the routes.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST};
use proptest::prelude::*;
use underpass_engine::buffer::PortId;
use underpass_engine::tables::{Action, Discard, Guard, Lookup, Tables, Writer};
use underpass_netlink::Reply;
use underpass_netlink::reply::write_message;

use super::change::take_route;
use super::info::{Hop, Info, NextHops};
use super::publish::lookup_id;
use super::published::Scope;
use super::recompile::set_neighbour;
use super::table::{Family, Ids, Prefix, bits};
use super::update::add_info;
use crate::events::Cause;
use crate::{Client, Protocol, Replies, Router};

const V0: u32 = 2;
const V1: u32 = 3;
const TABLES: [u32; 4] = [255, 254, 253, 100];

fn send(router: &mut Router, kind: u16, flags: u16, write: impl FnOnce(&mut Reply<'_>)) {
    let mut datagram = Vec::new();
    write_message(&mut datagram, kind, flags | NLM_F_REQUEST, Default::default(), write).unwrap();
    let mut replies = Replies::default();
    router.request(&mut Client::new(Protocol::Route, 1), &datagram, &mut replies);
    assert!(replies.is_empty(), "refused");
}

fn set_up(router: &mut Router, link: u32, up: bool) {
    send(router, libc::RTM_NEWLINK, 0, |reply| {
        let [a, b, c, d] = link.to_ne_bytes();
        reply.fixed(&[0, 0, 0, 0, a, b, c, d, u8::from(up), 0, 0, 0, 1, 0, 0, 0]);
    });
}

fn lab() -> (Router, std::sync::Arc<Tables>, underpass_engine::tables::Reader) {
    let (writer, tables, mut readers) = Writer::new(1);
    let mut router = Router::new(writer);
    for (i, name) in ["v0", "v1"].into_iter().enumerate() {
        router.add_port(name, [2, 0, 0, 0, 0, i as u8 + 1], PortId(i as u16)).unwrap();
    }
    send(&mut router, libc::RTM_NEWLINK, NLM_F_CREATE, |reply| {
        reply.fixed(&[0; 16]);
        reply.text(libc::IFLA_IFNAME, "vrf100");
        let info = reply.nest(libc::IFLA_LINKINFO);
        reply.text(1, "vrf");
        let data = reply.nest(2);
        reply.u32(1, 100);
        reply.end(data);
        reply.end(info);
    });
    set_up(&mut router, V0, true);
    set_up(&mut router, V1, true);
    (router, tables, readers.remove(0))
}

/// One of few addresses, so that prefixes nest and neighbours are met.
fn address(family: Family) -> impl Strategy<Value = IpAddr> {
    (0u8..6, 0u128..3).prop_map(move |(high, low)| {
        let bits = (0x20 | u128::from(high)) << 120 | low << (128 - u32::from(family.bits()));
        family.address(bits)
    })
}

fn prefix(family: Family) -> impl Strategy<Value = Prefix> {
    let len = prop_oneof![Just(0), Just(4), Just(6), Just(8), Just(family.bits())];
    (address(family), len).prop_map(|(address, len)| Prefix::new(bits(address), len))
}

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

fn hop(family: Family) -> impl Strategy<Value = Hop> {
    let gateway = proptest::option::of(address(family));
    (prop_oneof![Just(V0), Just(V1)], gateway, 1u16..4).prop_map(|(oif, gateway, weight)| Hop {
        oif,
        gateway,
        onlink: false,
        dead: false,
        weight,
        tunnel: None,
    })
}

fn info(family: Family) -> impl Strategy<Value = Info> {
    const KINDS: [u8; 6] = [
        libc::RTN_UNICAST,
        libc::RTN_UNICAST,
        libc::RTN_UNICAST,
        libc::RTN_LOCAL,
        libc::RTN_BLACKHOLE,
        libc::RTN_THROW,
    ];
    let hops = proptest::collection::vec(hop(family), 1..3);
    (proptest::sample::select(&KINDS[..]), 0u32..3, hops).prop_map(move |(kind, metric, mut hops)| {
        if family == Family::V6 || kind != libc::RTN_UNICAST {
            hops.truncate(1);
        }
        Info {
            kind,
            protocol: 4,
            scope: 0,
            metric,
            preference: 0,
            reject: false,
            source: None,
            metrics: None,
            ways: NextHops::Hops(hops.into()),
            origin: crate::route::Origin::Own,
            tos: 0,
            unknown: 0,
        }
    })
}

#[derive(Clone, Debug)]
enum Change {
    Add(Family, u32, Prefix, Info),
    Remove(Family, u32, Prefix),
    Neighbour(u32, IpAddr, Option<u8>),
    Link(u32, bool),
}

fn change() -> impl Strategy<Value = Change> {
    let table = || proptest::sample::select(&TABLES[..]);
    let link = || prop_oneof![Just(V0), Just(V1)];
    prop_oneof![
        6 => family().prop_flat_map(move |f| (table(), prefix(f), info(f))
            .prop_map(move |(table, prefix, info)| Change::Add(f, table, prefix, info))),
        3 => family().prop_flat_map(move |f| (table(), prefix(f))
            .prop_map(move |(table, prefix)| Change::Remove(f, table, prefix))),
        4 => family().prop_flat_map(move |f| (link(), address(f), proptest::option::of(any::<u8>()))
            .prop_map(|(link, address, mac)| Change::Neighbour(link, address, mac))),
        1 => (link(), any::<bool>()).prop_map(|(link, up)| Change::Link(link, up)),
    ]
}

fn apply(router: &mut Router, change: Change) {
    match change {
        Change::Add(family, table, prefix, info) => {
            let down = |hop: &Hop| router.links.get(hop.oif).is_none_or(|link| !link.up());
            if !info.hops().iter().any(down) {
                add_info(
                    router,
                    Cause::default(),
                    NLM_F_CREATE | NLM_F_APPEND,
                    (family, table, prefix),
                    info,
                );
            }
        }
        Change::Remove(family, table, prefix) => take_route(router, (family, table, prefix), 0),
        Change::Neighbour(link, address, mac) => {
            set_neighbour(router, link, address, mac.map(|last| [2, 0, 0, 0, 1, last]));
        }
        Change::Link(link, up) => set_up(router, link, up),
    }
}

/// Where an address leads.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Nowhere,
    Local,
    Discard(Discard),
    OnLink(u32),
    /// The link, and the neighbour's MAC address if it is known.
    Forward(u32, Option<[u8; 6]>),
    Spread(Vec<Outcome>),
}

/// Looks at every route of every table that the rules name.
fn naive(router: &Router, family: Family, tables: &[u32], address: IpAddr) -> Outcome {
    for &table in tables {
        let Some(routes) = router.routes.tables.get(&(family, table)) else { continue };
        let covering = routes.after(None).filter(|(key, _)| key.prefix().contains(bits(address)));
        let Some((_, ids)) = covering.max_by_key(|(key, _)| key.prefix().len) else { continue };
        let get = |id: &super::info::InfoId| router.routes.infos.get(*id).unwrap().clone();
        let first = get(&ids[0]);
        match first.kind {
            libc::RTN_THROW => continue,
            libc::RTN_BLACKHOLE => return Outcome::Discard(Discard::Blackhole),
            libc::RTN_UNICAST => {}
            _ => return Outcome::Local,
        }
        let all: Ids = match family {
            Family::V6 if first.spreads() => {
                let with = |id: &&super::info::InfoId| get(id).metric == first.metric && get(id).spreads();
                ids.iter().filter(with).copied().collect()
            }
            _ => Ids::from_slice(&ids[..1]),
        };
        let mac = |link, address| router.routes.published.mac(link, address);
        let ways = |hop: &Hop| match hop.gateway {
            Some(gateway) => Outcome::Forward(hop.oif, mac(hop.oif, gateway)),
            None => Outcome::OnLink(hop.oif),
        };
        let mut found: Vec<Outcome> = all
            .iter()
            .flat_map(|id| get(id).hops().to_vec())
            .filter(|hop| !hop.dead)
            .map(|h| ways(&h))
            .collect();
        return match &found[..] {
            [Outcome::OnLink(link)] => match mac(*link, address) {
                Some(mac) => Outcome::Forward(*link, Some(mac)),
                None => Outcome::OnLink(*link),
            },
            [_] => found.remove(0),
            _ => Outcome::Spread(found),
        };
    }
    Outcome::Nowhere
}

fn published(tables: &Tables, guard: &Guard<'_>, lookup: &Lookup, address: IpAddr) -> Outcome {
    let leaves: Vec<u32> = match address {
        IpAddr::V4(a) => {
            let found =
                lookup.fibs4.iter().filter_map(|&fib| tables.fib4(fib, guard)?.lookup(a.to_bits(), guard));
            found.collect()
        }
        IpAddr::V6(a) => {
            let found =
                lookup.fibs6.iter().filter_map(|&fib| tables.fib6(fib, guard)?.lookup(a.to_bits(), guard));
            found.collect()
        }
    };
    let ways = leaves.into_iter().map(|leaf| way(tables, guard, underpass_engine::tables::ActionId(leaf)));
    ways.into_iter().find(|way| *way != Outcome::Discard(Discard::Throw)).unwrap_or(Outcome::Nowhere)
}

fn way(tables: &Tables, guard: &Guard<'_>, id: underpass_engine::tables::ActionId) -> Outcome {
    let index = |id| tables.link(id, guard).unwrap().ifindex;
    match tables.action(id, guard).expect("a leaf names an action") {
        Action::Local | Action::Anycast | Action::Broadcast => Outcome::Local,
        Action::Discard(discard) => Outcome::Discard(*discard),
        Action::OnLink(link) => Outcome::OnLink(index(*link)),
        Action::Forward(next_hop) => {
            let next_hop = tables.next_hop(*next_hop, guard).expect("an action names a next hop");
            let mac = next_hop.rewrite.map(|rewrite| *rewrite.bytes.first_chunk::<6>().unwrap());
            Outcome::Forward(index(next_hop.link), mac)
        }
        Action::Multipath(multipath) => {
            Outcome::Spread(multipath.buckets.iter().map(|&(_, id)| way(tables, guard, id)).collect())
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn published_is_what_the_rules_say(
        changes in proptest::collection::vec(change(), 1..60),
        wanted in proptest::collection::vec(family().prop_flat_map(address), 1..12),
    ) {
        let (mut router, tables, mut reader) = lab();
        changes.into_iter().for_each(|change| apply(&mut router, change));
        let scopes = [
            (Scope::Rules { link: 0, vrf: None }, &TABLES[..3]),
            (Scope::Rules { link: 0, vrf: Some(100) }, &[255, 100, 254, 253][..]),
            (Scope::Table(254), &[254][..]),
        ];
        for (scope, order) in scopes {
            let lookup = lookup_id(&mut router, scope);
            let guard = reader.enter();
            let lookup = tables.lookup(lookup, &guard).unwrap();
            for &address in &wanted {
                let family = Family::of(address);
                let order: Vec<u32> =
                    order.iter().copied().filter(|&table| table != 253 || family == Family::V4).collect();
                let expected = naive(&router, family, &order, address);
                prop_assert_eq!(published(&tables, &guard, lookup, address), expected, "{} in {:?}", address, scope);
            }
        }
    }
}
