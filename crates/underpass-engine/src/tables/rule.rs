//! Which tables a packet is looked up in: the compiled policy rules.

use std::net::IpAddr;

use super::{ActionId, Discard, Fib4Id, Fib6Id, LookupId};

/// Which tables a packet is looked up in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lookup {
    /// For IPv4, in this order, until one has a route that is not `throw`.
    pub fibs4: Box<[Fib4Id]>,
    /// For IPv6.
    pub fibs6: Box<[Fib6Id]>,
    /// Policy rules that look at more than the destination, for IPv4; they come before `fibs4`.
    pub rules4: Box<[Rule]>,
    /// The same for IPv6; they come before `fibs6`.
    pub rules6: Box<[Rule]>,
    /// Where the router looks up what it sends itself in the same routing instance: by the rules for packets from the
    /// host. `None`: these tables are no routing instance, they are those that a SID names.
    pub own: Option<LookupId>,
}

/// A policy rule with a selector (`ip rule`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Its preference (`ip rule add pref`), by which those who follow packets know it.
    pub priority: u32,
    /// Source prefix: address and length. Length 0 matches all.
    pub source: (IpAddr, u8),
    /// Destination prefix.
    pub destination: (IpAddr, u8),
    /// `ipproto`.
    pub protocol: Option<u8>,
    /// `sport`.
    pub source_port: Option<PortMatch>,
    /// `dport`.
    pub destination_port: Option<PortMatch>,
    /// `tos` or `dscp`: bits of the octet that holds the DSCP, and which of them are compared.
    pub tos: Option<(u8, u8)>,
    /// `flowlabel` and its mask. Matches no IPv4 packet.
    pub flow_label: Option<(u32, u32)>,
    /// `fwmark` and its mask.
    pub mark: Option<(u32, u32)>,
    /// `not`: matches what the selector does not.
    pub invert: bool,
    /// What a match leads to.
    pub then: RuleAction,
}

impl Rule {
    /// Whether it matches every packet.
    pub(crate) const fn takes_all(&self) -> bool {
        matches!(
            self,
            Self {
                source: (_, 0),
                destination: (_, 0),
                protocol: None,
                source_port: None,
                destination_port: None,
                tos: None,
                flow_label: None,
                mark: None,
                invert: false,
                ..
            }
        )
    }
}

/// The ports that a policy rule takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortMatch {
    /// From the first to the last, both included.
    Range(u16, u16),
    /// Those whose bits under the mask are these: value and mask.
    Masked(u16, u16),
}

impl PortMatch {
    /// Whether a port is one of them.
    pub const fn takes(self, port: u16) -> bool {
        match self {
            Self::Range(first, last) => first <= port && port <= last,
            Self::Masked(value, mask) => (value ^ port) & mask == 0,
        }
    }
}

/// What a policy rule leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RuleAction {
    /// Look up in this table; if it has no route, go on. For a rule with `suppress_prefixlength` that is
    /// a table of the longer prefixes alone.
    Fib4(Fib4Id),
    /// The same for IPv6.
    Fib6(Fib6Id),
    /// End here.
    Discard(Discard),
    /// End here, with this action.
    Act(ActionId),
    /// Go on with the rule at this place, or behind the last rule: `goto`. Always forwards.
    Goto(usize),
    /// Do nothing: `nop`.
    Nop,
}
