//! The requests that the stock tools sent to Linux 6.12 (`tests/linux-reference`), sent to a router:
//! answered the same, and harmless when their bytes are changed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use underpass_control::write_sysctl;

use super::common::Lab;
use super::common::recorded::{Exchange, exchanges};
use libc::{NLMSG_DONE, NLMSG_ERROR};
use proptest::prelude::*;
use underpass_control::{Address, Client, Link, Neighbour, Protocol};

/// Command lines whose requests are about what this router does.
fn concerns(exchange: &Exchange) -> bool {
    let command = exchange.command.as_str();
    let all = ["ip sr ", "ip link show master", "ip vrf show", "ip link show type ifb"];
    // Every tool asks for links by name or index, whatever else it does.
    let kind = u16::from_ne_bytes([exchange.request[4], exchange.request[5]]);
    let about = |name: &str| command.contains(name);
    let tunnel = ["ti", "tg", "ts", "t6", "tt0", "text", "ifb"].iter().any(|name| about(&format!(" {name}")));
    // Linux refuses it, this router does not: docs/differences.md.
    if about("flavors psp,usd") {
        return false;
    }
    let routes = about("seg6") || ["fc00:1::", "fd50::", "10.50."].iter().any(|route| about(route));
    all.iter().any(|start| command.starts_with(start))
        || routes && !about("nexthop") && exchange.protocol == Protocol::Route
        || command == "ip -6 route show"
        || exchange.protocol == Protocol::Route && kind == libc::RTM_GETLINK && !tunnel && !about("tc ")
}

/// Links of the recording that the router of the test has too.
const LINKS: [&str; 6] = [" lo ", " v0p ", " v0 ", " v1p ", " v1 ", " vrf100 "];

/// What an answer says: its type, and of an acknowledgement the errno and the text; of a link its index,
/// name, MTU, master and kind.
fn gist(answer: &[u8]) -> Vec<String> {
    underpass_netlink::messages(answer)
        .map(|message| {
            let body = message.body();
            let kind = i32::from(message.kind);
            if kind == NLMSG_ERROR {
                let code = i32::from_ne_bytes(body[..4].try_into().unwrap());
                return format!("ack {code} flags {:x} length {}", message.flags, message.bytes.len());
            }
            if kind == NLMSG_DONE {
                return format!("done {:?} flags {:x}", body, message.flags & 2);
            }
            if message.kind == libc::RTM_NEWROUTE && body.len() >= 12 && body[0] != 3 {
                let policy = [underpass_netlink::Type::Any; 40];
                let validate = underpass_netlink::Validate::Liberal;
                let all = underpass_netlink::Attributes::parse(&policy, &body[12..], 0, validate).unwrap();
                let all = all.iter().filter(|attribute| attribute.kind != libc::RTA_CACHEINFO);
                let all: Vec<_> = all.map(route_attribute).collect();
                return format!("route {:?} flags {:x} {}", &body[..12], message.flags, all.join(" "));
            }
            if message.kind != libc::RTM_NEWLINK || body.len() < 16 {
                // A family is told of at the end of genetlink's own numbers; compared whole.
                return format!("{kind} {:?}", &message.bytes[16..]);
            }
            let base = 16;
            let policy = [underpass_netlink::Type::Any; 70];
            let all = underpass_netlink::Attributes::parse(
                &policy,
                &body[base..],
                0,
                underpass_netlink::Validate::Liberal,
            );
            let all = all.unwrap();
            let name = all.get(libc::IFLA_IFNAME).unwrap().text();
            let master = all.get(libc::IFLA_MASTER).map(|master| master.u32());
            format!("link {:?} {name} master {master:?} flags {:x}", &body[4..8], message.flags)
        })
        .collect()
}

/// An attribute of a route; of an encapsulation each attribute, counters without what aligns them.
fn route_attribute(attribute: underpass_netlink::Attribute<'_>) -> String {
    let (kind, value) = (attribute.kind, attribute.value);
    if kind == libc::RTA_OIF {
        return format!("oif={}", attribute.u32());
    }
    if kind != libc::RTA_ENCAP {
        return format!("{kind}={value:?}");
    }
    const COUNTERS: u16 = 10;
    let inside = attribute.nested().map(|inner| {
        let counters = inner.nested().filter(|counter| counter.kind != 1).map(|c| (c.kind, c.value));
        match inner.kind {
            COUNTERS => format!("counters={:?}", counters.collect::<Vec<_>>()),
            kind => format!("{kind}={:?}", inner.value),
        }
    });
    format!("encap={:?}", inside.collect::<Vec<_>>())
}

#[test]
fn answers_as_linux_does() {
    let mut lab = Lab::recorded();
    let mut generic = Client::new(Protocol::Generic, 0);
    generic.extended_ack = true;
    let mut compared = 0;
    for exchange in exchanges().iter().filter(|exchange| concerns(exchange)) {
        let name = &exchange.command;
        let answers = match exchange.protocol {
            Protocol::Route => lab.raw(&exchange.request),
            Protocol::Generic => {
                std::mem::swap(&mut lab.client, &mut generic);
                let answers = lab.raw(&exchange.request);
                std::mem::swap(&mut lab.client, &mut generic);
                answers
            }
        };
        let ours: Vec<_> = answers.iter().flat_map(|answer| gist(answer)).collect();
        let mut linux: Vec<_> = exchange.answers.iter().flat_map(|answer| gist(answer)).collect();
        linux.retain(|line| !line.contains(" oif=3 ")); // ifb0
        let dump = exchange.request[7] & 3 != 0;
        if dump && linux.iter().any(|line| line.starts_with("link")) {
            // Linux had links that this router has not.
            let linux: BTreeSet<_> = linux.into_iter().collect();
            let odd: Vec<_> = ours.iter().filter(|line| !linux.contains(*line)).collect();
            assert!(odd.is_empty(), "{name}: {odd:?} not in {linux:#?}");
        } else {
            if linux
                .iter()
                .any(|line| line.starts_with("link") && !LINKS.iter().any(|link| line.contains(link)))
            {
                continue; // about a link that this router has not
            }
            assert_eq!(ours, linux, "{name}");
        }
        compared += 1;
    }
    assert!(compared > 80, "only {compared} exchanges");
}

/// All that requests can change.
#[derive(Debug, PartialEq)]
struct State {
    links: Vec<Link>,
    addresses: Vec<Address>,
    neighbours: Vec<(u32, IpAddr, Neighbour)>,
    dumps: Vec<Vec<Vec<u8>>>,
}

fn state(lab: &mut Lab) -> State {
    let mut watcher = Client::new(Protocol::Route, 1);
    std::mem::swap(&mut watcher, &mut lab.client);
    let dumps = [libc::RTM_GETROUTE, libc::RTM_GETRULE, 106].map(|kind: u16| {
        let mut request = vec![32, 0, 0, 0, 0, 0, 1, 3];
        request.resize(32, 0);
        request[4..6].copy_from_slice(&kind.to_ne_bytes());
        lab.raw(&request)
    });
    std::mem::swap(&mut watcher, &mut lab.client);
    State {
        links: lab.router.links().cloned().collect(),
        addresses: lab.router.addresses().cloned().collect(),
        neighbours: lab.router.neighbours().map(|(link, at, neighbour)| (link, at, *neighbour)).collect(),
        dumps: dumps.into(),
    }
}

/// A recorded request with some bytes changed, cut or grown.
fn mutated(requests: &'static [Exchange]) -> impl Strategy<Value = (Protocol, Vec<u8>)> {
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let which = any::<prop::sample::Index>();
    (which, changes, 0usize..3, any::<prop::sample::Index>()).prop_map(|(which, changes, cut, end)| {
        let exchange = which.get(requests);
        let mut request = exchange.request.clone();
        for (at, byte) in changes {
            let at = at.index(request.len());
            request[at] = byte;
        }
        if cut == 0 {
            request.truncate(end.index(request.len() + 1));
        }
        (exchange.protocol, request)
    })
}

fn requests() -> &'static [Exchange] {
    static REQUESTS: std::sync::OnceLock<Vec<Exchange>> = std::sync::OnceLock::new();
    REQUESTS.get_or_init(exchanges)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_refused_request_changes_nothing(all in proptest::collection::vec(mutated(requests()), 1..12)) {
        let mut lab = Lab::recorded();
        // The first request for a kind of tunnel makes its fallback devices, refused or not.
        write_sysctl(&mut lab.router, "core/fb_tunnels_only_for_init_net", b"2").unwrap();
        for (protocol, request) in all {
            let before = state(&mut lab);
            let mut client = Client::new(protocol, 9);
            client.strict_check = request.len() % 2 == 0;
            client.extended_ack = true;
            std::mem::swap(&mut client, &mut lab.client);
            let answers = lab.raw(&request);
            std::mem::swap(&mut client, &mut lab.client);
            let codes: Vec<i32> = answers.iter().flat_map(|answer| codes(answer)).collect();
            let refused = !codes.is_empty() && codes.iter().all(|&code| code != 0);
            prop_assert!(!refused || state(&mut lab) == before, "{request:?} was refused and changed something");
        }
    }
}

/// The codes of the acknowledgements in a datagram.
fn codes(answer: &[u8]) -> Vec<i32> {
    underpass_netlink::messages(answer)
        .filter(|message| i32::from(message.kind) == NLMSG_ERROR)
        .map(|message| i32::from_ne_bytes(message.body()[..4].try_into().unwrap()))
        .collect()
}
