//! The Internet checksum: RFC 1071 in full, RFC 1624 by difference.
//!
//! The sum is kept in 64 bits and in the machine's byte order, which RFC 1071 section 2 (B) allows;
//! only folding it turns it into the number that the header field holds.

/// A ones' complement sum over 16-bit words.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sum(u64);

impl Sum {
    /// The sum over nothing.
    #[inline]
    pub const fn new() -> Self {
        Self(0)
    }

    /// The pseudo header of TCP and UDP over IPv4 (RFC 9293 section 3.1); `len` is that of the TCP or
    /// UDP header and what follows it, in bytes.
    #[inline]
    pub fn pseudo_ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8, len: u16) -> Self {
        Self::new().add_bytes(&source).add_bytes(&destination).add_u16(u16::from(protocol)).add_u16(len)
    }

    /// The pseudo header of TCP, UDP and ICMPv6 over IPv6 (RFC 8200 section 8.1); `len` is that of the
    /// upper-layer header and what follows it, in bytes.
    #[inline]
    pub fn pseudo_ipv6(source: [u8; 16], destination: [u8; 16], next_header: u8, len: u32) -> Self {
        Self::new().add_bytes(&source).add_bytes(&destination).add_u32(len).add_u16(u16::from(next_header))
    }

    /// Adds `bytes`, an odd last byte as if a zero came after it: of several pieces, only the last may
    /// be of odd length.
    #[inline]
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Self {
        let (eights, rest) = bytes.as_chunks::<8>();
        // An add and an add-with-carry a word; 2⁶⁴ words would have to come before it overflows.
        let mut wide = u128::from(self.0);
        for word in eights {
            wide += u128::from(u64::from_ne_bytes(*word));
        }
        let (fours, rest) = rest.as_chunks::<4>();
        for word in fours {
            wide += u128::from(u32::from_ne_bytes(*word));
        }
        let (twos, rest) = rest.as_chunks::<2>();
        for word in twos {
            wide += u128::from(u16::from_ne_bytes(*word));
        }
        if let [last] = *rest {
            wide += u128::from(u16::from_ne_bytes([last, 0]));
        }
        Self(carry(wide as u64, (wide >> 64) as u64))
    }

    /// Adds one word.
    #[inline]
    #[must_use]
    pub const fn add_u16(self, word: u16) -> Self {
        Self(carry(self.0, word.to_be() as u64))
    }

    /// Adds two words.
    #[inline]
    #[must_use]
    pub const fn add_u32(self, words: u32) -> Self {
        Self(carry(self.0, words.to_be() as u64))
    }

    /// The sum in 16 bits. Over bytes that hold their own checksum it is `0xFFFF` if they are whole.
    #[inline]
    pub const fn fold(self) -> u16 {
        // The upper half of a word plus itself rotated is the ones' complement sum of its halves: the
        // carry of the lower halves comes in where it is due.
        let sum = (self.0.wrapping_add(self.0.rotate_left(32)) >> 32) as u32;
        u16::from_be(fold(sum))
    }

    /// What a header's checksum field holds: the complement of the sum.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }
}

/// `a + b` in ones' complement.
#[inline]
const fn carry(a: u64, b: u64) -> u64 {
    let (sum, carried) = a.overflowing_add(b);
    sum + carried as u64
}

/// The ones' complement sum of the two halves of `sum`.
#[inline]
const fn fold(sum: u32) -> u16 {
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// The checksum of `bytes`, their checksum field being zero.
#[inline]
pub fn of(bytes: &[u8]) -> u16 {
    Sum::new().add_bytes(bytes).checksum()
}

/// `checksum` after a 16-bit word under it went from `old` to `new`: RFC 1624 section 3, equation 3.
#[inline]
#[must_use]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    // HC' = ~(~HC + ~m + m')
    !fold(!checksum as u32 + !old as u32 + new as u32)
}

/// [`update`] for the first byte of a word.
#[inline(always)]
#[must_use]
pub const fn update_first(checksum: u16, old: u8, new: u8) -> u16 {
    // The second byte is the same in ~m and m', which leaves 0xffff of it and of the first.
    !fold(!checksum as u32 + 0xffff + ((new as u32) << 8) - ((old as u32) << 8))
}

/// [`update`] for a field of several words, which begins at an even offset.
#[inline]
#[must_use]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    update(checksum, Sum::new().add_bytes(old).fold(), Sum::new().add_bytes(new).fold())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 section 3: the sum of these bytes is ddf2.
    #[test]
    fn rfc_1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::new().add_bytes(&bytes).fold(), 0xddf2);
        assert_eq!(of(&bytes), 0x220d);
    }

    /// RFC 1624 section 4: the header checksum 0xDD2F, a field that goes from 0x5555 to 0x3285, and the
    /// result 0x0000, which the equation of RFC 1141 misses.
    #[test]
    fn rfc_1624_example() {
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    /// The definition, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for word in bytes.chunks(2) {
            sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        sum as u16
    }

    proptest! {
        #[test]
        fn the_first_byte_of_a_word(checksum: u16, old: u8, new: u8, second: u8) {
            let word = |first| u16::from_be_bytes([first, second]);
            prop_assert_eq!(update_first(checksum, old, new), update(checksum, word(old), word(new)));
        }

        #[test]
        fn agrees_with_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(Sum::new().add_bytes(&bytes).fold(), slow(&bytes));
        }

        #[test]
        fn carries_are_kept(value in prop_oneof![Just(0xFF_u8), Just(0), any::<u8>()], len in 0..9000_usize) {
            let bytes = vec![value; len];
            prop_assert_eq!(Sum::new().add_bytes(&bytes).fold(), slow(&bytes));
        }

        #[test]
        fn pieces_sum_to_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0..100_usize) {
            let (front, back) = bytes.split_at((cut * 2).min(bytes.len() / 2 * 2));
            prop_assert_eq!(Sum::new().add_bytes(front).add_bytes(back).fold(), slow(&bytes));
        }

        #[test]
        fn words_sum_like_their_bytes(word in any::<u16>(), words in any::<u32>()) {
            let bytes = [word.to_be_bytes().as_slice(), &words.to_be_bytes()].concat();
            prop_assert_eq!(Sum::new().add_u16(word).add_u32(words).fold(), slow(&bytes));
        }

        /// An update gives what summing anew gives.
        #[test]
        fn update_is_a_recount(mut bytes in proptest::collection::vec(any::<u8>(), 8..64), new in any::<[u8; 6]>()) {
            let before = of(&bytes);
            let old = [bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]];
            bytes[2..8].copy_from_slice(&new);
            // All-zero bytes are the one case in which a recount differs: no real header is all zero.
            prop_assume!(bytes.iter().any(|b| *b != 0));
            prop_assert_eq!(update_bytes(before, &old, &new), of(&bytes));
        }
    }
}
