//! Bridges and their ports as workers find them. Linux: `net/bridge`.

use std::fmt;
use std::sync::Arc;

use super::LinkId;
use crate::l2::fdb::Fdb;

/// What makes a link a bridge: IEEE 802.1Q.
#[derive(Clone, Debug)]
pub struct Bridge {
    /// Its ports.
    pub ports: Box<[LinkId]>,
    /// Its stations.
    pub fdb: Arc<Fdb>,
    /// After how many milliseconds a station is forgotten. 0: none is learned.
    pub ageing: u64,
    /// The link-local groups whose frames it forwards, a bit each: `group_fwd_mask`.
    pub group_forward: u16,
    /// The EtherType of the tags by which it filters, and its own VLANs, where it does.
    pub filters: Option<(u16, Box<Membership>)>,
}

impl PartialEq for Bridge {
    fn eq(&self, other: &Self) -> bool {
        let Self { ports, fdb, ageing, group_forward, filters } = self;
        *ports == other.ports
            && Arc::ptr_eq(fdb, &other.fdb)
            && (*ageing, *group_forward) == (other.ageing, other.group_forward)
            && *filters == other.filters
    }
}

impl Eq for Bridge {}

/// What a port of a bridge does with frames: `BR_STATE_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PortState {
    /// Drops all: down, blocked, or still listening for other bridges.
    #[default]
    Closed,
    /// Learns stations, and drops all.
    Learning,
    /// Learns and forwards.
    Forwarding,
}

/// What makes a link a port of a bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgePort {
    /// The bridge.
    pub bridge: LinkId,
    /// What it does with frames.
    pub state: PortState,
    /// Whether it learns stations.
    pub learns: bool,
    /// Whether it gets frames for unknown stations, for groups, and for all.
    pub floods: [bool; 3],
    /// Whether frames leave by it that have come in by it.
    pub hairpin: bool,
    /// Whether it gets none from others that are so.
    pub isolated: bool,
    /// The link-local groups whose frames it forwards besides those of the bridge.
    pub group_forward: u16,
    /// Its VLANs, where the bridge filters by these.
    pub vlans: Option<Box<Membership>>,
}

/// The VLANs of a port, or of a bridge itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Membership {
    /// The VLAN of frames without a tag; 0: they are dropped.
    pub untagged_are: u16,
    members: [u64; 64],
    untagged: [u64; 64],
}

impl Membership {
    /// Those of the given identifiers, each with whether its frames leave without a tag.
    pub fn new(untagged_are: u16, vlans: impl IntoIterator<Item = (u16, bool)>) -> Box<Self> {
        let mut all = Box::new(Self { untagged_are, members: [0; 64], untagged: [0; 64] });
        for (id, untagged) in vlans {
            let (word, bit) = (usize::from(id >> 6) & 63, 1 << (id & 63));
            all.members[word] |= bit;
            all.untagged[word] |= if untagged { bit } else { 0 };
        }
        all
    }

    #[inline(always)]
    pub(crate) const fn has(&self, id: u16) -> bool {
        self.members[(id >> 6) as usize & 63] >> (id & 63) & 1 != 0
    }

    #[inline(always)]
    pub(crate) const fn is_untagged(&self, id: u16) -> bool {
        self.untagged[(id >> 6) as usize & 63] >> (id & 63) & 1 != 0
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.members.iter().map(|word| word.count_ones()).sum::<u32>();
        write!(f, "Membership({count}, untagged are {})", self.untagged_are)
    }
}
