//! The BPF maps that say to the programs what [`Rules`](super::Rules) say to a worker.

use std::io;

use crate::xdp::bpf::{Map, MapKind};

/// Most devices, and most addresses of each family. Entries take memory as they come, the table for them, of
/// 16 bytes each, at once.
const DEVICES: u32 = 1 << 12;
const ADDRESSES: u32 = 1 << 16;
/// Most claims: protocols of tunnels, and UDP ports.
const CLAIMS: u32 = 1 << 12;
/// Most VLANs that the kernel has devices for.
const VLANS: u32 = 1 << 16;

/// Bits of what the maps say of a device.
pub(crate) const LABELS: u32 = 1;
pub(crate) const ALL: u32 = 2;

/// The maps that the programs read. Keys are in the machine's byte order but for addresses and EtherTypes.
pub(crate) struct Maps {
    /// Index of a device → {domain, [`LABELS`] and [`ALL`]}, 4 bytes each.
    pub(crate) devices: Map,
    /// {domain, IPv4 address} → 1.
    pub(crate) local4: Map,
    /// {domain, IPv6 address} → 1.
    pub(crate) local6: Map,
    /// A claim → 1.
    pub(crate) claims: Map,
    /// A [`Vlan`] → 1.
    pub(crate) vlans: Map,
}

impl Maps {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            devices: Map::new(MapKind::Hash, "underpass_dev", 4, 8, DEVICES)?,
            local4: Map::new(MapKind::Hash, "underpass_ip4", 8, 1, ADDRESSES)?,
            local6: Map::new(MapKind::Hash, "underpass_ip6", 20, 1, ADDRESSES)?,
            claims: Map::new(MapKind::Hash, "underpass_claim", 4, 1, CLAIMS)?,
            vlans: Map::new(MapKind::Hash, "underpass_vlan", 8, 1, VLANS)?,
        })
    }
}
