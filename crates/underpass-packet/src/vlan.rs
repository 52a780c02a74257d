//! VLAN tags, IEEE 802.1Q clause 9, and stacks of them (802.1ad).
//!
//! A tag lies between the source address and the EtherType of the frame, which so becomes the
//! EtherType after the last tag.
//!
//! ```text
//! | Destination (6) | Source (6) | TPID (2) | PCP (3 bits) DEI (1) VID (12) | … | EtherType (2) |
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use crate::ethernet;

/// Most tags that are read: Linux's `VLAN_MAX_DEPTH`.
pub const MAX_TAGS: usize = 8;

/// What is wrong with a frame and its tags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the Ethernet header, or ends within a tag.
    Truncated,
    /// More than [`MAX_TAGS`] tags.
    TooManyTags,
}

/// One tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Tag {
    /// Tag protocol identifier: [`ethernet::VLAN`] or [`ethernet::SERVICE_VLAN`].
    pub protocol: U16,
    /// Tag control information: priority, drop eligibility, VLAN identifier.
    pub control: U16,
}

impl Tag {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// A tag of this VLAN, of priority 0, not drop eligible. Bits above the 12 of a VID are ignored.
    #[inline]
    pub const fn new(protocol: u16, id: u16) -> Self {
        Self { protocol: U16::new(protocol), control: U16::new(id & 0x0FFF) }
    }

    /// VLAN identifier, 0 to 4095. 0: the tag carries a priority only.
    #[inline]
    pub const fn id(&self) -> u16 {
        self.control.get() & 0x0FFF
    }

    /// Priority code point, 0 to 7.
    #[inline]
    pub const fn priority(&self) -> u8 {
        (self.control.get() >> 13) as u8
    }

    /// Drop eligible indicator.
    #[inline]
    pub const fn drop_eligible(&self) -> bool {
        self.control.get() & 0x1000 != 0
    }

    /// The tag with this VLAN identifier; bits above the 12 of a VID are ignored.
    #[inline]
    #[must_use]
    pub const fn with_id(self, id: u16) -> Self {
        Self { control: U16::new(self.control.get() & 0xF000 | id & 0x0FFF), ..self }
    }

    /// The tag with this priority; bits above the 3 of a PCP are ignored.
    #[inline]
    #[must_use]
    pub const fn with_priority(self, priority: u8) -> Self {
        Self { control: U16::new(self.control.get() & 0x1FFF | (priority as u16) << 13), ..self }
    }

    /// The tag with this drop eligible indicator.
    #[inline]
    #[must_use]
    pub const fn with_drop_eligible(self, eligible: bool) -> Self {
        Self { control: U16::new(self.control.get() & 0xEFFF | (eligible as u16) << 12), ..self }
    }
}

/// A frame with its tags taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The addresses; its EtherType is the TPID of the first tag, if there is one.
    pub header: &'a ethernet::Header,
    /// The tags, the outermost first.
    pub tags: &'a [Tag],
    /// What the payload is.
    pub ethertype: u16,
    /// What follows the last tag.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads the Ethernet header and the tags of `frame`.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = ethernet::Header::parse(frame).map_err(|_| Malformed::Truncated)?;
        let ethertype = header.ethertype.get();
        if !is_tag(ethertype) {
            return Ok(Self { header, tags: &[], ethertype, payload });
        }
        Self::parse_tagged(frame, header)
    }

    fn parse_tagged(frame: &'a [u8], header: &'a ethernet::Header) -> Result<Self, Malformed> {
        let tagged = frame.get(ethernet::Header::LEN - 2..).ok_or(Malformed::Truncated)?;
        let mut count = 0;
        let mut rest = tagged;
        loop {
            let (ethertype, payload) = U16::ref_from_prefix(rest).map_err(|_| Malformed::Truncated)?;
            if !is_tag(ethertype.get()) {
                let (tags, _) =
                    <[Tag]>::ref_from_prefix_with_elems(tagged, count).map_err(|_| Malformed::Truncated)?;
                return Ok(Self { header, tags, ethertype: ethertype.get(), payload });
            }
            if count == MAX_TAGS {
                return Err(Malformed::TooManyTags);
            }
            count += 1;
            rest = rest.get(Tag::LEN..).ok_or(Malformed::Truncated)?;
        }
    }
}

/// Whether `ethertype` says that a tag follows.
#[inline]
pub const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, ethernet::VLAN | ethernet::SERVICE_VLAN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;

    /// scapy 2.5.0: `Ether(dst='02:00:00:00:00:01',src='02:00:00:00:00:02')/Dot1AD(vlan=100,prio=5)/
    /// Dot1Q(vlan=4094,id=1)/IP()`
    #[test]
    fn two_tags_of_scapy() {
        let bytes = hex("020000000001 020000000002 88a8 a064 8100 1ffe 0800
            450000140001000040007ce77f0000017f000001");
        let frame = Frame::parse(&bytes).unwrap();
        let outer = Tag::new(ethernet::SERVICE_VLAN, 100).with_priority(5);
        let inner = Tag::new(ethernet::VLAN, 4094).with_drop_eligible(true);
        assert_eq!(frame.tags, [outer, inner]);
        assert_eq!((frame.ethertype, frame.payload.len()), (ethernet::IPV4, 20));
        assert_eq!(frame.header.destination, [2, 0, 0, 0, 0, 1]);
        for len in 0..22 {
            assert_eq!(Frame::parse(&bytes[..len]), Err(Malformed::Truncated), "{len}");
        }
    }

    #[test]
    fn untagged() {
        let bytes = hex("020000000001 020000000002 86dd 60");
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.tags, frame.ethertype, frame.payload), (&[][..], ethernet::IPV6, &[0x60][..]));
    }

    fn frame(tags: &[Tag], ethertype: u16, payload: &[u8]) -> Vec<u8> {
        [&[0; 12], tags.as_bytes(), &ethertype.to_be_bytes(), payload].concat()
    }

    #[test]
    fn more_tags_than_are_read() {
        let tags = [Tag::new(ethernet::VLAN, 1); MAX_TAGS + 1];
        let bytes = frame(&tags[1..], ethernet::IPV4, &[]);
        assert_eq!(Frame::parse(&bytes).map(|f| f.tags.len()), Ok(MAX_TAGS));
        let bytes = frame(&tags, ethernet::IPV4, &[]);
        assert_eq!(Frame::parse(&bytes), Err(Malformed::TooManyTags));
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(
            stack in proptest::collection::vec((any::<bool>(), 0..4096_u16, 0..8_u8, any::<bool>()), 0..=MAX_TAGS),
            payload: Vec<u8>,
        ) {
            let tags: Vec<Tag> = stack.iter().map(|&(service, id, priority, eligible)| {
                let protocol = if service { ethernet::SERVICE_VLAN } else { ethernet::VLAN };
                Tag::new(protocol, 0).with_drop_eligible(eligible).with_priority(priority).with_id(id)
            }).collect();
            for (tag, &(_, id, priority, eligible)) in tags.iter().zip(&stack) {
                prop_assert_eq!((tag.id(), tag.priority(), tag.drop_eligible()), (id, priority, eligible));
            }
            let bytes = frame(&tags, ethernet::IPV6, &payload);
            let read = Frame::parse(&bytes).unwrap();
            prop_assert_eq!((read.tags, read.ethertype, read.payload), (&tags[..], ethernet::IPV6, &payload[..]));
        }
    }
}
