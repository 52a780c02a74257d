//! What is looked at of all frames of a burst at once, side by side: lengths and EtherTypes.

#![allow(unsafe_code)]

use underpass_packet::ethernet;

use super::{BURST, MARGINAL, Packet};

/// Where the EtherType lies in a frame.
const ETHERTYPE: usize = ethernet::Header::LEN - 2;

/// The frames of a burst, each at least [`Frames::SHORTEST`] bytes long.
pub(crate) struct Frames {
    lengths: [u32; BURST],
    count: usize,
    /// Bytes of all of them, and of the longest.
    pub(crate) bytes: u64,
    pub(crate) longest: u32,
}

impl Frames {
    /// An Ethernet header, and the words behind it that `u32` compares first.
    pub(crate) const SHORTEST: u32 = 22;

    /// No frames.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { lengths: [0; BURST], count: 0, bytes: 0, longest: 0 }
    }

    /// Looks at the frames of a burst, where none have been looked at; it stays here, as it is too large to be moved about.
    /// `false`: one of them is too short or has a strange EtherType, one is more than its bytes (something is left to be
    /// done, or goes along with it), or there are more than a burst holds.
    #[inline(always)]
    pub(crate) fn look(&mut self, burst: &[Packet], is_strange: impl Fn(u16) -> bool) -> bool {
        let (mut places, mut bytes, mut longest, mut shortest) = (0, 0, 0, u32::MAX);
        for (packet, length) in burst.iter().zip(&mut self.lengths) {
            places |= packet.place;
            *length = packet.len() as u32;
            bytes += u64::from(*length);
            longest = longest.max(*length);
            shortest = shortest.min(*length);
        }
        if shortest < Self::SHORTEST || burst.len() > BURST || places & MARGINAL != 0 {
            return false;
        }
        let mut strange = false;
        for packet in burst {
            // SAFETY: the packet's bytes are its own, initialised, and at least as many as the shortest of all has, which
            // was seen above to be more than a header. A check for each would be a third of this loop.
            let ethertype = unsafe { packet.bytes().as_ptr().add(ETHERTYPE).cast::<u16>().read_unaligned() };
            // All are looked at, side by side, which is faster than to stop at the first.
            strange |= is_strange(u16::from_be(ethertype));
        }
        (self.count, self.bytes, self.longest) = (burst.len(), bytes, longest);
        !strange
    }

    /// Frames that are not there.
    #[cfg(test)]
    pub(crate) fn pretended(of: &[u32]) -> Self {
        let mut frames = Self::new();
        frames.lengths[..of.len()].copy_from_slice(of);
        frames.count = of.len();
        frames.bytes = of.iter().map(|length| u64::from(*length)).sum();
        frames.longest = of.iter().copied().max().unwrap_or_default();
        frames
    }

    /// How many they are.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The length of each.
    #[inline(always)]
    pub(crate) fn lengths(&self) -> &[u32] {
        self.lengths.get(..self.count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{HEADROOM, Offload, Pool, Tag};

    #[test]
    fn each_as_it_is() {
        let mut pool = Pool::new(BURST);
        let mut burst: Vec<Packet> = (0..BURST)
            .map(|n| {
                let mut bytes = vec![0; 22 + n * 7];
                bytes[12..14].copy_from_slice(&(0x0800 + n as u16).to_be_bytes());
                let mut packet = pool.take().unwrap();
                packet.set(HEADROOM - n, &bytes).unwrap();
                packet
            })
            .collect();
        for count in [1, 3, 8, 9, 63, 64] {
            let burst = &burst[..count];
            let mut frames = Frames::new();
            assert!(frames.look(burst, |_| false));
            let lengths: Vec<u32> = burst.iter().map(|packet| packet.len() as u32).collect();
            assert_eq!((frames.count(), frames.lengths()), (count, &lengths[..]));
            assert_eq!(frames.bytes, lengths.iter().map(|length| u64::from(*length)).sum());
            assert_eq!(frames.longest, *lengths.last().unwrap());
            for ethertype in 0x0800..0x0840 {
                let seen = !Frames::new().look(burst, |found| found == ethertype);
                assert_eq!(seen, usize::from(ethertype) < 0x0800 + count);
            }
        }
        let goes = |burst: &[Packet]| Frames::new().look(burst, |_| false);
        burst[62].set_tag(Tag { mark: 1, ..Tag::default() });
        assert!(!goes(&burst));
        burst[62].set_tag(Tag::default());
        assert!(goes(&burst));
        burst[3].set_offload(Offload { start: 14, field: 6, segment: None });
        assert!(!goes(&burst));
        burst[3].clear_offload();
        burst[63].set(HEADROOM, &[0; 21]).unwrap();
        assert!(!goes(&burst));
    }
}
