//! What programs read of links, how they find the VLAN device of a tag, and the stations of a bridge.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::counters::{MOST_LINKS, link_at};
use super::records::{
    BRIDGE, BRIDGE_OUT, FORWARD4, FORWARD6, IN, IN_VRF, LABELS, Leaving, OUT, PEER, Records, VLAN, XDP_OUT,
    pair,
};
use crate::counters::Direction;
use crate::hmac::Require;
use crate::l2::fdb::InKernel;
use crate::lpm::{Arena, Words};
use crate::publish::Retirer;
use crate::tables::{Bridge, BridgePort, HookId, IDS, Link, LinkId, PortState, Vlan, Vlans};

/// Identifiers of VLANs whose devices are in one record, as a power of two.
pub const GROUP: u32 = 6;
/// Such records of one protocol: 802.1Q, and behind it 802.1ad.
pub const GROUPS: u32 = IDS as u32 >> GROUP;
/// Those of a link, as a power of two.
pub(super) const GROUP_BITS: u32 = GROUPS.trailing_zeros() + 1;

/// What the record of a VLAN device says of the link below it: the index of the interface, and how packets leave by that.
type Below = (u32, u16);

/// In bridges that forget stations after fewer milliseconds workers alone hear them: it is looked once a second which ones programs
/// have heard.
const LEAST_AGEING: u64 = 3000;

/// What a link's record says besides of others.
pub(crate) struct Beside<'a> {
    /// The link below a VLAN device.
    pub lower: Option<&'a Link>,
    /// The bridge that it is a port of.
    pub bridge: Option<&'a Bridge>,
}

impl Records {
    /// Puts a link's record into its slot, which is the interface's too. `before` is the index of the interface that it was.
    pub(crate) fn set_link(
        &mut self,
        id: LinkId,
        link: Option<&Link>,
        (Beside { lower, bridge }, before): (Beside<'_>, u32),
        retirer: &Retirer,
    ) {
        let known = link.filter(|_| id.0 < MOST_LINKS);
        self.set_vlans(id, known.and_then(|link| link.vlans.as_deref()), retirer);
        let record = known.and_then(|link| match &link.vlan {
            Some(vlan) => self.vlan_device(id, (link, vlan), lower),
            None => self.link(id, link, bridge),
        });
        self.links.put(&mut self.blocks, id.0, record.clone(), retirer);
        let ifindex = link.map_or(before, |link| link.ifindex);
        if before != ifindex {
            self.interfaces.put(&mut self.blocks, before, None, retirer);
        }
        // No program is at the interface of a VLAN device: its packets come in by the link below.
        let at_interface = record.filter(|_| link.is_some_and(|link| link.vlan.is_none()));
        self.interfaces.put(&mut self.blocks, ifindex, at_interface, retirer);
    }

    /// ```text
    /// 0: interface index; 4: flags; 8: slot of the look-up; 12: counters, relative to a processor's
    /// 16: MAC address; 24: MTU; 28: interface index of the device for misses; 32: slot of the filters of what comes in, or 0
    /// 36: where the slots of its VLANs begin, or 0
    /// ```
    ///
    /// Of a port of a bridge besides
    ///
    /// ```text
    /// 40: where the slots of the bridge's stations begin; 44: how many there are, less 1; 48: the factor of their hash
    /// 56: where it is said which were heard; 60: the number of the link; 64: that of the bridge
    /// ```
    fn link(&self, id: LinkId, link: &Link, bridge: Option<&Bridge>) -> Option<Vec<u64>> {
        let device = link.programs?;
        let mut flags = if self.is_plain(link) && !link.is_inside() { IN } else { 0 };
        if link.up && !link.classifies_egress() {
            flags |= leaving(device.leaving) | if device.xdp { XDP_OUT } else { 0 };
        }
        let port = link.bridge_port.as_deref().filter(|port| passes_frames(port));
        let stations =
            port.zip(bridge).and_then(|(port, bridge)| Some((port, bridge, bridge.fdb.in_kernel()?)));
        if let Some((port, bridge, _)) = stations {
            let takes = port.learns && is_plain_bridge(bridge) && link.vlans.is_none();
            flags |= BRIDGE_OUT | if takes && self.may_look(link) { BRIDGE } else { 0 };
        }
        let vlans = link.vlans.as_ref().and_then(|_| self.vlans.slot(id.0 << GROUP_BITS));
        let mut record =
            self.any_link(id, (link, link.ifindex, flags), (device.misses, vlans.unwrap_or(0)))?;
        if let Some((port, _, InKernel { slots, mask, factor, heard })) = stations {
            record.extend([pair(slots, mask), factor, pair(heard, id.0), pair(port.bridge.0, 0)]);
        }
        Some(record)
    }

    /// The same of a VLAN device, but
    ///
    /// ```text
    /// 0: interface index of the link below; 28, 36: 0
    /// 40: EtherType of the tag, as in a frame; 44: its control information; 48: transmit counters of the link below
    /// ```
    fn vlan_device(
        &self,
        id: LinkId,
        (link, vlan): (&Link, &Vlan),
        lower: Option<&Link>,
    ) -> Option<Vec<u64>> {
        // Which priority a tag stands for, or a packet has, is for workers.
        let sets_priority = vlan.ingress != [0; 8];
        let mut flags = VLAN;
        flags |= if self.is_plain(link) && !sets_priority && link.bridge.is_none() { IN } else { 0 };
        let below = lower.filter(|lower| is_listed(lower, vlan, id)).and_then(below);
        let sends = link.up && !link.classifies_egress() && vlan.egress.is_empty() && !vlan.keeps_tags;
        let (ifindex, sent) = below.filter(|_| sends && vlan.lower.0 < MOST_LINKS).unwrap_or_default();
        let mut record = self.any_link(id, (link, ifindex, flags | sent), (0, 0))?;
        let [_, _, high, low] = vlan.tag(0);
        let control = u16::from_be_bytes([high, low]);
        record.extend([
            pair(vlan.protocol.to_be().into(), control.into()),
            pair(link_at(vlan.lower, Direction::Transmit), 0),
        ]);
        Some(record)
    }

    /// Whether a program may look at the packets that come in by a link.
    fn is_plain(&self, link: &Link) -> bool {
        self.may_look(link) && link.require_hmac != Require::Always && link.bridge_port.is_none()
    }

    /// The same, at frames.
    fn may_look(&self, link: &Link) -> bool {
        link.up
            && link.port.is_some()
            && !link.vrf
            && link.ingress.is_none_or(|HookId(hook)| self.hooks.slot(hook).is_some())
            && link.ingress_qdisc.is_none()
            && !link.ifb
    }

    fn any_link(
        &self,
        id: LinkId,
        (link, ifindex, mut flags): (&Link, u32, u16),
        (misses, vlans): (u32, u32),
    ) -> Option<Vec<u64>> {
        flags |= if link.forward4 { FORWARD4 } else { 0 } | if link.forward6 { FORWARD6 } else { 0 };
        flags |= if link.in_vrf { IN_VRF } else { 0 } | if link.mpls { LABELS } else { 0 };
        let [a, b, c, d, e, f] = link.mac;
        Some(vec![
            pair(ifindex, flags.into()),
            pair(self.lookups.slot(link.lookup.0)?, link_at(id, Direction::Receive)),
            u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
            pair(link.mtu, misses),
            pair(link.ingress.and_then(|HookId(hook)| self.hooks.slot(hook)).unwrap_or(0), vlans),
        ])
    }

    /// Puts the records of the VLANs of a link into their slots.
    ///
    /// ```text
    /// 8: by the lowest bits of the identifier, the slot of the VLAN device, or 0
    /// ```
    fn set_vlans(&mut self, LinkId(id): LinkId, vlans: Option<&Vlans>, retirer: &Retirer) {
        let had = match vlans {
            Some(_) => !self.trunks.insert(id),
            None => self.trunks.remove(&id),
        };
        if !had && vlans.is_none() {
            return;
        }
        for (place, of) in (0..).zip(vlans.map(Vlans::all).unwrap_or_default()) {
            for group in 0..GROUPS {
                let slot = (id << GROUP_BITS) + place * GROUPS + group;
                let devices = of.and_then(|of| of.chunks(1 << GROUP).nth(group as usize));
                let record = devices.and_then(|devices| self.group(devices));
                if !self.vlans.has(&self.blocks, slot, record.as_deref()) {
                    self.vlans.put(&mut self.blocks, slot, record, retirer);
                }
            }
        }
    }

    fn group(&self, devices: &[u32]) -> Option<Vec<u64>> {
        let slot = |id: &u32| id.checked_sub(1).and_then(|id| self.links.slot(id)).unwrap_or(0);
        let pairs = devices.as_chunks::<2>().0.iter().map(|[one, other]| pair(slot(one), slot(other)));
        let record: Vec<u64> = [0].into_iter().chain(pairs).collect();
        record.iter().any(|word| *word != 0).then_some(record)
    }
}

/// Whether a port of a bridge passes frames, to whichever other port.
fn passes_frames(port: &BridgePort) -> bool {
    port.state == PortState::Forwarding && !port.isolated
}

/// Whether a frame goes through a bridge with nothing but its addresses looked at.
fn is_plain_bridge(bridge: &Bridge) -> bool {
    bridge.filters.is_none()
        && bridge.answering.is_none()
        && bridge.ageing >= LEAST_AGEING
        && !bridge.promiscuous
}

/// How packets leave by a device.
const fn leaving(leaving: Leaving) -> u16 {
    match leaving {
        Leaving::Not => 0,
        Leaving::Redirect => OUT,
        Leaving::Peer => OUT | PEER,
    }
}

/// What a VLAN device has of a link, if programs may send what leaves by that: the link is a device itself.
fn below(lower: &Link) -> Option<Below> {
    let sends = lower.up && !lower.classifies_egress() && lower.port.is_some() && !lower.is_inside();
    let device = lower.programs.filter(|_| sends && !lower.ifb)?;
    Some((lower.ifindex, leaving(device.leaving)))
}

/// Whether a link has this VLAN device above it.
fn is_listed(lower: &Link, vlan: &Vlan, id: LinkId) -> bool {
    lower.vlans.as_ref().is_some_and(|vlans| vlans.of_tag(vlan.protocol, vlan.id) == Some(id))
}

/// The ports of a bridge whose records change when it takes the place of another.
fn changed_ports<'a>(old: Option<&'a Link>, new: Option<&'a Link>) -> impl Iterator<Item = u32> + use<'a> {
    let [old, new] = [old, new].map(|link| link.and_then(|link| link.bridge.as_deref()));
    let bridges = [old, new].into_iter().filter(move |_| old != new).flatten();
    bridges.flat_map(|bridge| &bridge.ports).map(|port| port.0)
}

/// The VLAN devices and the ports of bridges whose records change when a link takes the place of another.
pub(crate) fn changed_above(old: Option<&Link>, new: Option<&Link>) -> Vec<LinkId> {
    let ports: BTreeSet<u32> = changed_ports(old, new).collect();
    let same = old.and_then(below) == new.and_then(below);
    let all = |link: Option<&Link>| -> Vec<u32> {
        let of = |protocol: Option<&[u32; IDS]>| protocol.copied().unwrap_or([0; IDS]);
        let vlans = link.and_then(|link| link.vlans.as_deref());
        vlans.map_or(Vec::new(), |vlans| vlans.all().into_iter().flat_map(of).collect())
    };
    let (old, new) = (all(old), all(new));
    let changed = (0..old.len().max(new.len())).flat_map(|at| {
        let [old, new] = [&old, &new].map(|all| all.get(at).copied().unwrap_or(0));
        let changes = old != new || !same;
        [old, new].into_iter().filter(move |_| changes)
    });
    let changed: BTreeSet<u32> = changed.filter_map(|id| id.checked_sub(1)).chain(ports).collect();
    changed.into_iter().map(LinkId).collect()
}

impl Words<AtomicU32> {
    /// Whether a slot has this record, or none.
    fn has(&self, blocks: &Arena, id: u32, record: Option<&[u64]>) -> bool {
        if self.slot(id).is_none() {
            return true;
        }
        let at = self.word(id as usize).load(Relaxed);
        let Some(record) = record else { return at == 0 };
        let words = blocks.words();
        at.checked_sub(words.offset()).is_some_and(|bytes| {
            let at = bytes as usize / size_of::<u64>();
            // The length is in the first.
            (1..).zip(record.iter().skip(1)).all(|(n, word)| words.word(at + n).load(Relaxed) == *word)
        })
    }
}
