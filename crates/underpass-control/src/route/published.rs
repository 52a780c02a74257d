//! What the packet path has of the routes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use underpass_engine::tables::{Fib4Id, Fib6Id, LookupId};

use super::info::InfoId;
use super::table::{Family, bits};
use crate::link::LOOPBACK;
use crate::{Link, Router};

/// A forwarding table of the packet path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum FibId {
    V4(Fib4Id),
    V6(Fib6Id),
}

#[derive(Debug)]
pub(super) struct Fib {
    pub family: Family,
    /// The tables that it merges, in the order of look-up.
    pub tables: Vec<u32>,
    /// Only longer prefixes are there (`suppress_prefixlength`).
    pub suppress: Option<u8>,
    /// Packets leave by this link.
    pub egress: Option<Egress>,
    pub id: FibId,
}

/// By which link packets have to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Egress {
    pub link: u32,
    /// What no route by the link leads to, or one that is an error, is taken to be on it.
    pub on_link: bool,
}

/// Who looks up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Scope {
    /// By the policy rules: for packets from this link if a rule names it (0 otherwise), and for those of
    /// the VRF that has this table.
    Rules { link: u32, vrf: Option<u32> },
    /// The same for what is sent back by this link, which a rule names, in its VRF.
    Back { link: u32 },
    /// The same for outer packets, which have to leave by this link. Over IPv6 they had better.
    Out { link: u32, family: Family },
    /// In one table alone.
    Table(u32),
}

/// The links that rules match: by which packets arrive, and by which they leave, if that is known yet.
pub(crate) type RuleLinks = (u32, Option<u32>);

impl Scope {
    /// What rules match, and the table of the VRF; `None`: no rules apply.
    pub fn of_rules(self, router: &Router) -> Option<(RuleLinks, Option<u32>)> {
        match self {
            Self::Rules { link, vrf } => Some(((link, None), vrf)),
            Self::Back { link } | Self::Out { link, .. } => {
                let vrf = router.links.vrf_of(link).and_then(Link::vrf_table);
                Some(((LOOPBACK, Some(link)), vrf))
            }
            Self::Table(_) => None,
        }
    }
}

/// A link and the MAC address that a neighbour has there.
type Station = (u32, [u8; 6]);

/// What the control thread needs to remember of what it has published.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub fibs: Vec<Fib>,
    pub lookups: BTreeMap<Scope, LookupId>,
    /// The route for what is on a link whatever other routes say.
    pub on_links: BTreeMap<u32, InfoId>,
    /// Link-layer addresses of neighbours: by family and address, on each link.
    pub neighbours: BTreeMap<(Family, u128), Vec<Station>>,
}

impl Published {
    /// The link-layer address of a neighbour.
    pub fn mac(&self, link: u32, address: IpAddr) -> Option<[u8; 6]> {
        let there = self.neighbours.get(&(Family::of(address), bits(address)))?;
        there.iter().find(|(other, _)| *other == link).map(|(_, mac)| *mac)
    }
}
