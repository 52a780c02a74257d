//! Label routes as lines.

use underpass_netlink::mpls::Via;

use super::{FIRST_UNRESERVED, LabelNextHop, Spec};
use crate::route::save::{label_stack, protocol_name};
use crate::save::{Save, Words, mac};

pub(crate) fn save(save: &mut Save<'_>) {
    let labels = &save.router.routes.labels;
    for label in labels.all().filter(|label| *label >= FIRST_UNRESERVED) {
        if save.elsewhere.label(label) {
            continue;
        }
        let Some((route, Spec { protocol, propagate, ways, object })) = labels.get(label) else { continue };
        let mut line = Words::new("ip -f mpls route add");
        line.add(label).some("proto", protocol_name(*protocol));
        line.some("ttl-propagate", propagate.map(|on| if on { "enabled" } else { "disabled" }));
        if let Some(object) = object {
            line.pair("nhid", object);
            save.line(line);
            continue;
        }
        let stacks = labels.stacks(route);
        for (index, way) in ways.iter().enumerate() {
            let stack = match stacks.get(index) {
                Some(stack) if way.labels.is_empty() => &stack[..],
                _ => &way.labels,
            };
            line.when(ways.len() > 1, "nexthop").add_all(&way_words(save, way, stack));
            line.some("weight", (way.weight != 1).then_some(way.weight));
        }
        save.line(line);
    }
}

fn way_words(save: &Save<'_>, way: &LabelNextHop, stack: &[u32]) -> Words {
    let LabelNextHop { oif, via, weight: _, labels: _ } = way;
    let mut words = Words::default();
    words.some("as", (!stack.is_empty()).then(|| label_stack(stack)));
    match via {
        Some(Via::Ip(address)) if address.is_ipv4() => words.pair("via inet", address),
        Some(Via::Ip(address)) => words.pair("via inet6", address),
        Some(Via::Link(address)) => words.pair("via link", mac(*address)),
        None => &mut words,
    };
    words.some("dev", (*oif != 0).then(|| save.name(*oif)));
    words
}
