//! Policy rules: `RTM_NEWRULE`, `RTM_DELRULE`, `RTM_GETRULE`. Linux: `net/core/fib_rules.c`.

pub(crate) mod mirror;
pub(crate) mod request;
pub(crate) mod save;

use std::net::IpAddr;

use underpass_engine::tables::{PortMatch, RuleAction};

use super::config::{RT_TABLE_DEFAULT, RT_TABLE_LOCAL, RT_TABLE_MAIN};
use super::table::{Family, Prefix};

pub(crate) use mirror::{is_of, is_own};
pub(crate) use request::{delete, dump, new};

pub(crate) const FR_ACT_TO_TBL: u8 = 1;
pub(crate) const FR_ACT_GOTO: u8 = 2;
const FR_ACT_NOP: u8 = 3;
pub(crate) const FR_ACT_BLACKHOLE: u8 = 6;
pub(crate) const FR_ACT_UNREACHABLE: u8 = 7;
pub(crate) const FR_ACT_PROHIBIT: u8 = 8;
/// Of a rule of the kernel's that says more than this router knows: packets that may match it are the kernel's. Linux
/// has no action of this number.
pub(crate) const HAND_OVER: u8 = 255;

/// What a rule by `tos` compares: the DSCP in IPv6, the lower three bits of it in IPv4 (`INET_DSCP_LEGACY_TOS_MASK`).
const fn tos_mask(family: Family) -> u8 {
    match family {
        Family::V4 => 0x1c,
        Family::V6 => 0xfc,
    }
}

/// `sport` or `dport`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ports {
    pub first: u16,
    pub last: u16,
    /// Which bits are compared, of one port; 0 for several.
    pub mask: u16,
}

impl Ports {
    pub fn compile(self) -> PortMatch {
        match self.mask {
            0 | u16::MAX => PortMatch::Range(self.first, self.last),
            mask => PortMatch::Masked(self.first, mask),
        }
    }
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    pub priority: u32,
    /// `FR_ACT_*`.
    pub action: u8,
    /// The table that is looked up; 0 for a rule that looks up none, or by VRF.
    pub table: u32,
    /// Priority of the rule that `goto` leads to.
    pub target: u32,
    /// Looks up in the table of the VRF that the packet is of.
    pub l3mdev: bool,
    /// `RTPROT_*`.
    pub protocol: u8,
    pub invert: bool,
    /// As the request had it: bits behind the prefix may be set.
    pub source: Option<Prefix>,
    pub destination: Option<Prefix>,
    /// Name of the incoming link; empty for any.
    pub iif: String,
    /// Name of the outgoing link; empty for any.
    pub oif: String,
    pub tos: u8,
    /// `dscp` and its mask, as they stand in the octet of the header.
    pub dscp: Option<(u8, u8)>,
    /// `flowlabel` and its mask.
    pub flow_label: Option<(u32, u32)>,
    pub mark: u32,
    pub mask: u32,
    pub ip_protocol: u8,
    pub source_port: Option<Ports>,
    pub destination_port: Option<Ports>,
    /// Routes of at most this prefix length are passed over.
    pub suppress_prefix: Option<u32>,
    /// The body of the kernel's message, of a rule that is the kernel's.
    pub reported: Option<Box<[u8]>>,
}

impl Rule {
    pub fn plain(priority: u32, table: u32) -> Self {
        Self {
            priority,
            action: FR_ACT_TO_TBL,
            table,
            target: 0,
            l3mdev: false,
            protocol: libc::RTPROT_KERNEL,
            invert: false,
            source: None,
            destination: None,
            iif: String::new(),
            oif: String::new(),
            tos: 0,
            dscp: None,
            flow_label: None,
            mark: 0,
            mask: 0,
            ip_protocol: 0,
            source_port: None,
            destination_port: None,
            suppress_prefix: None,
            reported: None,
        }
    }

    /// The rule that matches whatever its selectors say.
    pub fn without_selectors(&self) -> Self {
        let Self { priority, action, table, target, l3mdev, protocol, suppress_prefix, .. } = *self;
        Self { action, target, l3mdev, protocol, suppress_prefix, ..Self::plain(priority, table) }
    }

    /// Whether it has no selector but the links, which the compilation has looked at.
    pub fn matches_all(&self) -> bool {
        !self.invert
            && self.source.is_none()
            && self.destination.is_none()
            && self.tos == 0
            && self.dscp.is_none()
            && self.flow_label.is_none()
            && (self.mark, self.mask) == (0, 0)
            && self.ip_protocol == 0
            && self.source_port.is_none()
            && self.destination_port.is_none()
    }

    /// The longest prefix that it passes over.
    pub fn suppressed_length(&self) -> Option<u8> {
        self.suppress_prefix.map(|longest| longest.min(128) as u8)
    }

    /// The rule as the packet path has it.
    pub fn compile(&self, family: Family, then: RuleAction) -> underpass_engine::tables::Rule {
        let prefix = |prefix: Option<Prefix>| {
            let prefix = prefix.map_or(Prefix::new(0, 0), |prefix| Prefix::new(prefix.bits, prefix.len));
            (family.address(prefix.bits), prefix.len)
        };
        underpass_engine::tables::Rule {
            priority: self.priority,
            source: prefix(self.source),
            destination: prefix(self.destination),
            protocol: Some(self.ip_protocol).filter(|&protocol| protocol != 0),
            source_port: self.source_port.map(Ports::compile),
            destination_port: self.destination_port.map(Ports::compile),
            tos: self.dscp.or((self.tos != 0).then_some((self.tos, tos_mask(family)))),
            flow_label: self.flow_label,
            mark: Some((self.mark, self.mask)).filter(|&mark| mark != (0, 0)),
            invert: self.invert,
            then,
        }
    }
}

/// The rules of both families, by priority.
#[derive(Debug)]
pub(crate) struct Rules {
    v4: Vec<Rule>,
    v6: Vec<Rule>,
    /// Changes with every change of a rule.
    pub generation: u64,
    /// Whether there has been a VRF.
    vrfs: bool,
    /// Whether an IPv4 rule was ever added or deleted. Linux: `fib_has_custom_rules`.
    pub changed4: bool,
}

impl Default for Rules {
    fn default() -> Self {
        let local = Rule::plain(0, RT_TABLE_LOCAL);
        let main = Rule::plain(32766, RT_TABLE_MAIN);
        let default = Rule::plain(32767, RT_TABLE_DEFAULT);
        Self {
            v4: vec![local.clone(), main.clone(), default],
            v6: vec![local, main],
            generation: 0,
            vrfs: false,
            changed4: false,
        }
    }
}

impl Rules {
    /// None: those of the kernel beside the router are yet to be told.
    pub fn clear(&mut self) {
        self.v4.clear();
        self.v6.clear();
        self.generation += 1;
    }

    pub fn of(&self, family: Family) -> &[Rule] {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    fn of_mut(&mut self, family: Family) -> &mut Vec<Rule> {
        self.generation += 1;
        self.changed4 |= family == Family::V4;
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// Adds a rule behind those of its priority.
    fn add(&mut self, family: Family, rule: Rule) {
        let rules = self.of_mut(family);
        let position = rules.partition_point(|other| other.priority <= rule.priority);
        rules.insert(position, rule);
    }

    /// The priority of a rule that comes without one. Linux: `fib_default_rule_pref`.
    fn default_priority(&self, family: Family) -> u32 {
        self.of(family).get(1).map_or(0, |second| second.priority.saturating_sub(1))
    }
}

/// What a look-up is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub destination: IpAddr,
    pub source: Option<IpAddr>,
    pub iif: u32,
    pub oif: u32,
    pub mark: u32,
    pub tos: u8,
    pub protocol: u8,
    pub source_port: u16,
    pub destination_port: u16,
    /// IPv4: routes of a wider scope are passed over.
    pub scope: u8,
    /// The table of the VRF that the packet is of: where rules with `l3mdev` look up.
    pub l3mdev: Option<u32>,
    /// IPv6: packets may also leave by another link than `oif`, which is preferred among the best routes.
    pub prefers: bool,
    /// Rules do not pass over what they suppress.
    pub unsuppressed: bool,
}

impl Flow {
    pub const fn to(destination: IpAddr) -> Self {
        Self {
            destination,
            source: None,
            iif: 0,
            oif: 0,
            mark: 0,
            tos: 0,
            protocol: 0,
            source_port: 0,
            destination_port: 0,
            scope: 0,
            l3mdev: None,
            prefers: false,
            unsuppressed: false,
        }
    }
}
