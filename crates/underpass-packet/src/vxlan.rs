//! VXLAN: RFC 7348 section 5.
//!
//! ```text
//! |R|R|R|R|I|R|R|R|            Reserved                           |
//! |                VXLAN Network Identifier (VNI) |   Reserved    |
//! |            an Ethernet frame                                  |
//! ```

/// Length of the header, in bytes.
pub const LEN: usize = 8;

/// The I bit: there is a network identifier.
const VALID: u8 = 0x08;

/// Why the bytes are not taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the header.
    Truncated,
    /// There is no network identifier, or a bit that has no meaning is set. RFC 7348 would have the latter ignored; Linux drops
    /// such a packet (`vxlan_rcv`), as what follows may be another than it seems.
    Flags,
}

/// The header of a network, whose identifier has 24 bits.
pub const fn header(vni: u32) -> [u8; LEN] {
    let [_, a, b, c] = vni.to_be_bytes();
    [VALID, 0, 0, 0, a, b, c, 0]
}

/// The network identifier, and the frame behind the header.
///
/// # Errors
/// [`Malformed`] says why these are none.
pub fn parse(bytes: &[u8]) -> Result<(u32, &[u8]), Malformed> {
    match bytes.split_first_chunk::<LEN>().ok_or(Malformed::Truncated)? {
        ([VALID, 0, 0, 0, a, b, c, 0], frame) => Ok((u32::from_be_bytes([0, *a, *b, *c]), frame)),
        _ => Err(Malformed::Flags),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(vni in 0_u32..1 << 24, frame: Vec<u8>) {
            let bytes = [&header(vni)[..], &frame].concat();
            prop_assert_eq!(parse(&bytes), Ok((vni, &frame[..])));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok((vni, frame)) = parse(&bytes) {
                prop_assert_eq!([&header(vni)[..], frame].concat(), bytes);
            }
        }
    }

    /// scapy: `bytes(VXLAN(vni=0x123456, flags="I"))`.
    #[test]
    fn as_scapy_writes_it() {
        assert_eq!(header(0x0012_3456), [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!(parse(&[0x88, 0, 0, 0, 0, 0, 1, 0]), Err(Malformed::Flags));
        assert_eq!(parse(&[8, 0, 0, 0, 0, 0, 1]), Err(Malformed::Truncated));
    }
}
