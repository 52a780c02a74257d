//! The requests about routes, rules and next hops that the stock `ip` sent to Linux 6.12
//! (`tests/linux-reference`), sent to a router: answered the same, byte for byte.

use super::common::Lab;
use super::common::recorded::{Exchange, exchanges};
use underpass_control::Protocol;

const ROUTES: [u16; 9] = [24, 25, 26, 32, 33, 34, 104, 105, 106];

/// Command lines about encapsulations and links that this router has not.
const OTHERS: [&str; 11] =
    ["mpls", "ioam", "rpl", "fou", "gue", "tunnel", "encap ip ", "text", "10.6", "fd8", REFUSED_BY_LINUX];
/// docs/differences.md
const REFUSED_BY_LINUX: &str = "flavors psp,usd";

fn concerns(exchange: &Exchange) -> bool {
    let kind = u16::from_ne_bytes([exchange.request[4], exchange.request[5]]);
    let other = OTHERS.iter().any(|other| exchange.command.contains(other));
    exchange.protocol == Protocol::Route && ROUTES.contains(&kind) && !other
}

/// The messages of the answers without sequence number and port. Of a dump those about links that the
/// router has, and about encapsulations that it knows.
fn gist(answers: &[Vec<u8>], links: &[u32]) -> Vec<Vec<u8>> {
    let messages = answers.iter().flat_map(|answer| underpass_netlink::messages(answer));
    let about = |message: &underpass_netlink::Message<'_>| {
        let fixed = match message.kind {
            24 => 12,
            104 => 8,
            _ => return true,
        };
        let policy = [underpass_netlink::Type::Any; 40];
        let validate = underpass_netlink::Validate::Liberal;
        let bytes = &message.body()[fixed..];
        let all = underpass_netlink::Attributes::parse(&policy, bytes, 0, validate).unwrap();
        let (oif, encap) = if message.kind == 24 { (4, 21) } else { (5, 7) };
        let known = all.get(encap).is_none_or(|kind| [5, 7].contains(&kind.u16()));
        known && all.get(oif).is_none_or(|oif| links.contains(&oif.u32()))
    };
    messages
        .filter(about)
        .map(|message| {
            let mut bytes = message.bytes.to_vec();
            bytes[8..16].fill(0);
            if message.kind == 2 {
                bytes[28..36].fill(0); // sequence number and port of the request that is repeated
            }
            if message.kind == 24
                && let Some(at) = bytes.windows(4).rposition(|header| header == [36, 0, 12, 0])
            {
                bytes[at + 4..at + 36].fill(0); // RTA_CACHEINFO: how often and when Linux used the entry
            }
            bytes
        })
        .collect()
}

#[test]
fn answers_as_linux_does() {
    let mut lab = Lab::recorded();
    let mut compared = 0;
    for exchange in exchanges() {
        if exchange.protocol == Protocol::Generic || !concerns(&exchange) {
            continue;
        }
        let links: Vec<u32> =
            lab.router.links().filter(|link| !link.name.contains("filler")).map(|link| link.index).collect();
        let ours = gist(&lab.raw(&exchange.request), &links);
        let linux = gist(&exchange.answers, &links);
        assert_eq!(ours, linux, "{}", exchange.command);
        compared += 1;
    }
    assert!(compared > 40, "only {compared} exchanges");
}
