//! The messages of a datagram. Linux: `netlink_rcv_skb`.
//!
//! ```text
//! |                length (with this header)                      |
//! |            type               |            flags              |
//! |                      sequence number                          |
//! |                          port id                              |
//! ```
//!
//! All in host byte order.

use netlink_packet_core::NetlinkBuffer;

use crate::attribute::{Attribute, iterate};

/// Length of the netlink header, in bytes.
pub const HEADER: usize = 16;

/// One request, in place.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// `nlmsg_seq`, to be repeated in each answer.
    pub sequence: u32,
    /// All of it, from the netlink header on; never shorter than [`HEADER`].
    pub bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// What follows the netlink header.
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(HEADER..).unwrap_or_default()
    }

    /// `nlmsg_pid`: the port id of the socket that the message answers, or 0.
    pub fn port(&self) -> u32 {
        let port = self.bytes.get(12..16).and_then(|bytes| bytes.first_chunk());
        port.map_or(0, |port| u32::from_ne_bytes(*port))
    }

    /// The attributes behind a family's header of so many bytes, with no policy.
    pub fn attributes(&self, header: usize) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        let base = HEADER + header.next_multiple_of(4);
        iterate(self.bytes.get(base..).unwrap_or_default(), base)
    }
}

/// The messages of a datagram; ends at the first whose length is impossible.
pub fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        // Not `NetlinkBuffer::new_checked`: it writes an error text for every datagram's end.
        if rest.len() < HEADER {
            return None;
        }
        let header = NetlinkBuffer::new(rest);
        let bytes = rest.get(..header.length() as usize).filter(|bytes| bytes.len() >= HEADER)?;
        let message = Message {
            kind: header.message_type(),
            flags: header.flags(),
            sequence: header.sequence_number(),
            bytes,
        };
        rest = rest.get(bytes.len().next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn splits_a_batch() {
        let mut one = vec![18, 0, 0, 0, 16, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0];
        one.extend_from_within(..);
        let all: Vec<_> = messages(&one).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[1].kind, all[1].flags, all[1].sequence), (16, 5, 7));
        assert_eq!(all[1].body(), [1, 2]);
    }

    proptest! {
        #[test]
        fn never_panics_and_ends(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(messages(&bytes).count() <= bytes.len() / HEADER);
        }
    }
}
