//! What a step of a path is about, for programs: what [`line`](super::line) says in words, in fields.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use underpass_engine::tables::{Action, Discard, Endpoint, LabelAction, LinkId, NextHopId, SwitchTo};
use underpass_engine::trace::Event;
use underpass_packet::FromBytes;
use underpass_packet::mpls::Entry;

use super::{Names, link_name, port_name, segments};

/// The facts of a step. A field that does not apply is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The port by which the packet came in or left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The link that it went to or was delivered by, or whose qdisc had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// The link-layer address of the next hop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lladdr: Option<String>,
    /// The address that was looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The preference of the policy rule that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<u32>,
    /// The table of the route that was found, if there is no doubt which it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Its prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The label that was looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<u32>,
    /// What a look-up found: `none`, `forward`, `multipath`, `local`, `sid`, `policy`, `labels`, `tunnel`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// The SRv6 behaviour, or the action of traffic control.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behaviour: Option<String>,
    /// The segments of a policy, in the order in which they are visited. `None`: the packet's own destination.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Option<IpAddr>>,
    /// The labels that are put on, from the top.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<u32>,
    /// Why it was dropped, or answered by an ICMP error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Type and code of the ICMP or ICMPv6 error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmp: Option<[u8; 2]>,
    /// Bytes of headers, or fragments, or bytes of room: how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
}

impl Facts {
    /// Those of a step.
    pub fn of(event: &Event, names: &Names<'_>) -> Self {
        let mut facts = Self::default();
        match event {
            Event::Received(port) | Event::Sent(port) => {
                facts.port = Some(port_name(names.names, *port).to_owned());
            }
            Event::Queued(link) | Event::Dequeued(link) | Event::Delivered(link) | Event::Kept(link) => {
                facts.link(names, *link);
            }
            Event::Lookup(address, action) => {
                facts.address = Some(*address);
                match action.map(|id| names.tables.action(id, names.guard)) {
                    Some(Some(action)) => facts.action(names, action),
                    Some(None) => facts.found("gone"),
                    None => facts.found("none"),
                }
                if let Some([route]) = action.map(|id| (names.routes)(*address, id)).as_deref() {
                    (facts.table, facts.prefix) = (Some(route.table), Some(route.prefix.to_string()));
                }
            }
            Event::Rule(priority) => facts.rule = Some(*priority),
            Event::Label(label, action) => {
                facts.label = Some(*label);
                facts.label_action(names, *action);
            }
            Event::Behaviour(name) | Event::Action(name) => facts.behaviour = Some((*name).to_owned()),
            Event::Headend(mode, length) | Event::IoamInserted(mode, length) => {
                facts.behaviour = Some((*mode).to_owned());
                facts.count = Some(*length);
            }
            Event::Moved(count) | Event::Fragmented(count) | Event::Reassembled(count) => {
                facts.count = Some(*count);
            }
            Event::Icmp(kind, code, reason) => {
                facts.icmp = Some([*kind, *code]);
                facts.reason = Some(reason.name().to_owned());
            }
            Event::NextHop(id) => facts.next_hop(names, *id),
            Event::Dropped(reason) => facts.reason = Some(reason.name().to_owned()),
            Event::IoamFilled
            | Event::EchoReply
            | Event::Reset
            | Event::Neighbour
            | Event::Held
            | Event::Gathered
            | Event::Datagrams => {}
        }
        facts
    }

    fn found(&mut self, what: &str) {
        self.found = Some(what.to_owned());
    }

    fn link(&mut self, names: &Names<'_>, link: LinkId) {
        self.link = Some(link_name(names.names, link).to_owned());
    }

    fn next_hop(&mut self, names: &Names<'_>, id: NextHopId) {
        let Some(next_hop) = names.tables.next_hop(id, names.guard) else { return };
        self.link(names, next_hop.link);
        self.lladdr = next_hop.rewrite.as_ref().and_then(|rewrite| {
            let mac = rewrite.bytes.get(..6)?.iter().map(|byte| format!("{byte:02x}"));
            Some(mac.collect::<Vec<_>>().join(":"))
        });
    }

    fn action(&mut self, names: &Names<'_>, action: &Action) {
        let found = match action {
            Action::Local | Action::Anycast => "local",
            Action::Broadcast => "broadcast",
            Action::HandOver => "kernel",
            Action::Discard(Discard::Blackhole) => "blackhole",
            Action::Discard(Discard::Unreachable) => "unreachable",
            Action::Discard(Discard::Prohibit) => "prohibit",
            Action::Discard(Discard::Throw) => "throw",
            Action::OnLink(_) => "on-link",
            Action::Forward(_) => "forward",
            Action::Multipath(_) => "multipath",
            Action::Endpoint(_) => "sid",
            Action::Headend(_) => "policy",
            Action::Push(_) => "labels",
            Action::Switch(_) => "label-switch",
            Action::Vrf(_) => "vrf",
            Action::Rpl(_) => "rpl",
            Action::Ioam(_) => "ioam",
            Action::Tunnel(_) => "tunnel",
        };
        self.found(found);
        match action {
            Action::OnLink(link) => self.link(names, *link),
            Action::Vrf(route) => self.link(names, route.link),
            Action::Forward(id) => self.next_hop(names, *id),
            Action::Endpoint(endpoint) => self.endpoint(endpoint),
            Action::Headend(headend) => self.segments = segments(headend),
            Action::Push(push) => {
                self.labels(&push.labels);
                self.next_hop(names, push.next_hop);
            }
            Action::Switch(switch) => {
                self.labels(&switch.labels);
                if let SwitchTo::NextHop(id) = switch.to {
                    self.next_hop(names, id);
                }
            }
            Action::Tunnel(route) => {
                if let Some(tunnel) = names.tables.tunnel(route.tunnel, names.guard) {
                    self.link(names, tunnel.link);
                }
            }
            _ => {}
        }
    }

    fn endpoint(&mut self, endpoint: &Endpoint) {
        self.behaviour = Some(endpoint.behaviour.name().to_owned());
    }

    fn labels(&mut self, stack: &[u8]) {
        let entries = <[Entry]>::ref_from_bytes(stack).unwrap_or_default();
        self.labels = entries.iter().map(|entry| entry.label()).collect();
    }

    fn label_action(&mut self, names: &Names<'_>, action: Option<LabelAction>) {
        match action {
            None => self.found("none"),
            Some(LabelAction::Swap { label, next_hop }) => {
                self.found("swap");
                self.labels = vec![label];
                self.next_hop(names, next_hop);
            }
            Some(LabelAction::SwapPush { labels, next_hop }) => {
                self.found("swap");
                self.labels = labels.to_vec();
                self.next_hop(names, next_hop);
            }
            Some(LabelAction::NextHops(_)) => self.found("multipath"),
            Some(LabelAction::Pop { next_hop, .. }) => {
                self.found("pop");
                self.next_hop(names, next_hop);
            }
            Some(LabelAction::Act(id)) => match names.tables.action(id, names.guard) {
                Some(action) => self.action(names, action),
                None => self.found("gone"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use underpass_engine::buffer::PortId;
    use underpass_engine::drops::DropReason;
    use underpass_engine::tables::Writer;

    use super::super::LinkName;
    use super::*;

    #[test]
    fn a_step_has_the_fields_that_apply() {
        let (_writer, tables, mut readers) = Writer::new(1);
        let guard = readers[0].enter();
        let links = [LinkName { id: LinkId(4), port: Some(PortId(2)), name: "wan".to_owned() }];
        let names = Names { tables: &tables, guard: &guard, names: &links, routes: &|_, _| Vec::new() };
        let json = |event| serde_json::to_value(Facts::of(&event, &names)).unwrap();
        let cases = [
            (Event::Received(PortId(2)), serde_json::json!({ "port": "wan" })),
            (Event::Queued(LinkId(4)), serde_json::json!({ "link": "wan" })),
            (
                Event::Lookup("2001:db8::1".parse().unwrap(), None),
                serde_json::json!({ "address": "2001:db8::1", "found": "none" }),
            ),
            (Event::Rule(100), serde_json::json!({ "rule": 100 })),
            (Event::Label(100, None), serde_json::json!({ "label": 100, "found": "none" })),
            (Event::Behaviour("End.DX4"), serde_json::json!({ "behaviour": "End.DX4" })),
            (
                Event::Icmp(3, 1, DropReason::Unreachable),
                serde_json::json!({ "icmp": [3, 1], "reason": "unreachable" }),
            ),
            (Event::Held, serde_json::json!({})),
        ];
        for (event, fields) in cases {
            assert_eq!(json(event.clone()), fields, "{event:?}");
        }
    }
}
