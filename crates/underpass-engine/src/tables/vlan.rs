//! VLAN devices as workers find them. Linux: `net/8021q`.

use std::fmt;
use std::sync::Arc;

use underpass_packet::ethernet;

use super::LinkId;

/// What makes a link a VLAN device: IEEE 802.1Q.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vlan {
    /// The link whose tagged frames are its own.
    pub lower: LinkId,
    /// EtherType of the tag: 802.1Q or 802.1ad.
    pub protocol: u16,
    /// VLAN identifier, below 4,096.
    pub id: u16,
    /// Whether a frame that has a tag of this protocol already goes out with it alone: `reorder_hdr off`.
    pub keeps_tags: bool,
    /// The priority that a packet gets, by the priority code point of its tag: `ingress-qos-map`.
    pub ingress: [u32; 8],
    /// The priority code point of the tag, by the priority of the packet, in its order: `egress-qos-map`. Of all others it is
    /// 0.
    pub egress: Arc<[(u32, u8)]>,
}

impl Vlan {
    /// Whether it looks at the priority of packets, and whether it sets it.
    pub(super) fn priorities(&self) -> (bool, bool) {
        (!self.egress.is_empty(), self.ingress != [0; 8])
    }

    /// The tag of a packet of this priority.
    #[inline]
    pub(crate) fn tag(&self, priority: u32) -> [u8; 4] {
        let found = self.egress.binary_search_by_key(&priority, |(from, _)| *from).ok();
        let code = found.and_then(|at| self.egress.get(at)).map_or(0, |(_, code)| *code);
        let [a, b] = self.protocol.to_be_bytes();
        let [c, d] = (u16::from(code) << 13 | self.id & 0x0fff).to_be_bytes();
        [a, b, c, d]
    }
}

/// The VLAN devices above a link.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Vlans {
    /// By VLAN identifier, of each protocol: the link's id + 1, or 0.
    of: [Option<Box<[u32; IDS]>>; 2],
}

/// Identifiers that there are.
pub(crate) const IDS: usize = 4096;

/// The place of a protocol in [`Vlans`].
const fn place(protocol: u16) -> Option<usize> {
    match protocol {
        ethernet::VLAN => Some(0),
        ethernet::SERVICE_VLAN => Some(1),
        _ => None,
    }
}

impl Vlans {
    /// Those of which protocol, identifier and link are given. `None` if there are none.
    pub fn new(devices: impl IntoIterator<Item = (u16, u16, LinkId)>) -> Option<Box<Self>> {
        let mut all = Self::default();
        for (protocol, id, link) in devices {
            let Some(of) = place(protocol).and_then(|place| all.of.get_mut(place)) else { continue };
            let of = of.get_or_insert_with(|| Box::new([0; IDS]));
            of[usize::from(id) % IDS] = link.0 + 1;
        }
        all.of.iter().any(Option::is_some).then(|| Box::new(all))
    }

    /// The device of a protocol and an identifier.
    pub(crate) fn of_tag(&self, protocol: u16, id: u16) -> Option<LinkId> {
        let of = self.of.get(place(protocol)?)?.as_ref()?;
        of[usize::from(id) % IDS].checked_sub(1).map(LinkId)
    }

    /// Of each protocol, by identifier, the device's id + 1, or 0. `None`: all are 0.
    pub(crate) fn all(&self) -> [Option<&[u32; IDS]>; 2] {
        self.of.each_ref().map(Option::as_deref)
    }

    /// How many tags of no VLAN a frame begins with, if there is one that a device has behind them; else 0.
    pub(crate) fn priorities(&self, frame: &[u8]) -> usize {
        let tag = |n: usize| {
            // As much behind it as `of_frame` wants.
            let [a, b, c, d, _, _, _, _] = *frame.get(12 + 4 * n..)?.first_chunk()?;
            let protocol = u16::from_be_bytes([a, b]);
            place(protocol).map(|_| (protocol, u16::from_be_bytes([c, d]) % IDS as u16))
        };
        let tags = (0..).map_while(tag).take_while(|(_, id)| *id == 0).count();
        if tag(tags).is_some_and(|(protocol, id)| self.of_tag(protocol, id).is_some()) { tags } else { 0 }
    }

    /// The device of the tag that a frame begins with, behind its addresses.
    #[inline(always)]
    pub(crate) fn of_frame(&self, frame: &[u8]) -> Option<LinkId> {
        // Linux: `skb_vlan_untag` wants an EtherType behind the tag.
        let [.., a, b, c, d, _, _, _, _] = frame.first_chunk::<20>()?;
        let of = self.of.get(place(u16::from_be_bytes([*a, *b]))?)?.as_ref()?;
        of[usize::from(u16::from_be_bytes([*c, *d])) % IDS].checked_sub(1).map(LinkId)
    }
}

impl fmt::Debug for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |of: &Option<Box<[u32; IDS]>>| {
            of.as_ref().map_or(0, |of| of.iter().filter(|link| **link != 0).count())
        };
        write!(f, "Vlans({} + {})", count(&self.of[0]), count(&self.of[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tag: [u8; 4]) -> Vec<u8> {
        [&[2; 12][..], &tag, &[8, 0, 0x45, 0]].concat()
    }

    #[test]
    fn a_tag_finds_its_device() {
        assert!(Vlans::new([]).is_none());
        let vlans = Vlans::new([(0x8100, 10, LinkId(3)), (0x88a8, 10, LinkId(4)), (0x8100, 0, LinkId(0))]);
        let vlans = vlans.unwrap();
        for (tag, link) in [
            ([0x81, 0, 0, 10], Some(3)),
            // Priority and drop eligibility make no difference.
            ([0x81, 0, 0xf0, 10], Some(3)),
            ([0x88, 0xa8, 0, 10], Some(4)),
            ([0x81, 0, 0xe0, 0], Some(0)),
            ([0x81, 0, 0, 11], None),
            ([0x88, 0xa8, 0, 0], None),
            ([0x08, 0, 0, 10], None),
        ] {
            assert_eq!(vlans.of_frame(&frame(tag)), link.map(LinkId), "{tag:?}");
        }
        assert_eq!(vlans.of_frame(&frame([0x81, 0, 0, 10])[..19]), None);
    }

    #[test]
    fn a_priority_has_its_code_point() {
        let egress = [(0, 1), (5, 3), (u32::MAX, 7)].into();
        let vlan = Vlan {
            lower: LinkId(0),
            protocol: 0x8100,
            id: 0x123,
            keeps_tags: false,
            ingress: [0; 8],
            egress,
        };
        assert_eq!(vlan.tag(0), [0x81, 0, 0x21, 0x23]);
        assert_eq!(vlan.tag(5), [0x81, 0, 0x61, 0x23]);
        assert_eq!(vlan.tag(6), [0x81, 0, 0x01, 0x23]);
        assert_eq!(vlan.tag(u32::MAX), [0x81, 0, 0xe1, 0x23]);
    }
}
