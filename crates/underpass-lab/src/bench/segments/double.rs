//! The order of checks that moved a packet twice: what Linux did in `seg6_iptunnel.c`, `ioam6_iptunnel.c` and
//! `rpl_iptunnel.c` before 6.14.
//!
//! ```text
//! err = skb_cow_head(skb, hdrlen + skb->mac_len);          first check: before the way out is known
//! …                                                        the header is put in front
//! err = skb_cow_head(skb, LL_RESERVED_SPACE(dst->dev));    second check: what is left may be too little
//! ```
//!
//! A check that fails moves the packet to a new buffer with as many cache lines more as are missing.

use underpass_engine::buffer::{Packet, Pool};

/// Bytes of Ethernet's header.
const ETHERNET: usize = 14;

/// A kernel's buffers, and what puts headers into them.
#[derive(Clone, Copy, Debug)]
pub struct Double {
    /// Bytes in front of a received frame: what the i40e driver leaves of half a page behind 1,536 bytes and a
    /// `skb_shared_info` (`I40E_SKB_PAD`). With them the steps are where they were measured with it.
    pub headroom: usize,
    /// Bytes of a cache line, which headroom grows by: `NET_SKB_PAD`.
    pub line: usize,
    /// `LL_RESERVED_SPACE` of an Ethernet device: its 14 bytes, rounded up to a multiple of 16.
    pub link_layer: usize,
}

/// The machine that the steps were measured on: x86-64, Intel XL710.
pub const XL710: Double = Double { headroom: 192, line: 64, link_layer: 16 };

impl Double {
    /// The first check of a received frame, for a header of so many bytes and a frame that goes inside. Whether the
    /// packet was moved; `None` if there is no buffer for it.
    #[inline]
    pub fn first(&self, packet: &mut Packet, pool: &mut Pool, header: usize, framed: usize) -> Option<bool> {
        // The frame's own header, which is in front of the packet, is overwritten or goes inside.
        self.check(packet, pool, packet.headroom() + ETHERNET, framed + header + ETHERNET)
    }

    /// The second check, of a frame that is ready to be sent.
    #[inline]
    pub fn second(&self, packet: &mut Packet, pool: &mut Pool) -> Option<bool> {
        self.check(packet, pool, packet.headroom() + ETHERNET, self.link_layer)
    }

    /// `skb_cow_head` of a packet that has `headroom` bytes in front.
    #[inline]
    fn check(&self, packet: &mut Packet, pool: &mut Pool, headroom: usize, needed: usize) -> Option<bool> {
        let Some(missing) = needed.checked_sub(headroom).filter(|missing| *missing > 0) else {
            return Some(false);
        };
        let more = missing.next_multiple_of(self.line);
        let mut other = pool.take()?;
        // `pskb_expand_head` copies what is in front of the packet too.
        let (start, end) = (packet.headroom(), packet.headroom() + packet.len());
        let copied = other
            .slot_mut()
            .get_mut(more..more + end)
            .zip(packet.slot().get(..end))
            .map(|(to, from)| to.copy_from_slice(from));
        if copied.is_none() || other.place(start + more, packet.len()).is_err() {
            pool.give(other);
            return None;
        }
        pool.give(std::mem::replace(packet, other));
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a packet with `headroom` bytes in front of its frame is moved for `header` bytes.
    fn moves(double: Double, header: usize, framed: usize) -> usize {
        let mut pool = Pool::with_slot_size(2, 2048);
        let mut packet = pool.take().unwrap();
        let bytes: Vec<u8> = (0..100).map(|n| n as u8).collect();
        packet.set(double.headroom, &bytes).unwrap();
        let first = double.first(&mut packet, &mut pool, header, framed).unwrap();
        assert_eq!(packet.bytes(), bytes);
        packet.push(header + framed).unwrap();
        let second = double.second(&mut packet, &mut pool).unwrap();
        assert_eq!(packet.bytes()[header + framed..], bytes);
        pool.give(packet);
        assert_eq!(pool.available(), 2);
        usize::from(first) + usize::from(second)
    }

    /// The published example: 22 bytes of headroom, 14 of them the frame's own header; a header of 40 bytes; a
    /// cache line of 32; 16 bytes of link layer. The first check makes 22 + 32 = 54 bytes of room, of which 14
    /// are left: two moves. What the router does with this packet is `the_known_example_moves_once` of
    /// underpass-engine.
    #[test]
    fn the_known_example_moves_twice() {
        let double = Double { headroom: 22 - ETHERNET, line: 32, link_layer: 16 };
        assert_eq!(moves(double, 40, 0), 2);
        // One byte of room more, and the first check makes a line more of it.
        assert_eq!(moves(double, 41, 0), 1);
        // The header fits, and leaves too little for the link layer.
        assert_eq!(moves(double, 8, 0), 1);
        assert_eq!(moves(XL710, 40, 0), 0);
    }

    /// Published for SRv6: 13, 17, 21 and so on segments, and 14, 18, 22 with the reduced list.
    #[test]
    fn the_steps_are_where_they_were_measured() {
        let twice = |header: fn(usize) -> usize| -> Vec<usize> {
            (1..=30).filter(|count| moves(XL710, header(*count), 0) == 2).collect()
        };
        assert_eq!(twice(|count| 48 + 16 * count), [13, 17, 21, 25, 29]);
        assert_eq!(twice(|count| if count == 1 { 40 } else { 32 + 16 * count }), [14, 18, 22, 26, 30]);
    }
}
