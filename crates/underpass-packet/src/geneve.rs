//! Geneve: RFC 8926 section 3.4.
//!
//! ```text
//! |Ver|  Opt Len  |O|C|    Rsvd.  |          Protocol Type        |
//! |        Virtual Network Identifier (VNI)       |    Reserved   |
//! |                    options, to Opt Len                        |
//! |            an Ethernet frame, or what Protocol Type says      |
//! ```

/// Length of the header without options, in bytes.
pub const LEN: usize = 8;

/// Length of the longest header, with options, in bytes.
pub const MAX_LEN: usize = LEN + OPTIONS as usize * 4;

/// The length of the options in words, among the bits of the first byte; the others are the version.
const OPTIONS: u8 = 0x3f;
/// The C bit: there are options that a receiver must not pass over.
const CRITICAL: u8 = 0x40;

/// Why the bytes are not taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the header without options.
    Truncated,
    /// Of a version that is not 0.
    Version,
}

/// What a header says. Linux looks at nothing else of it (`geneve_rx`): a control message is taken as data, and what is
/// reserved is passed over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Header {
    /// The network identifier, of 24 bits.
    pub vni: u32,
    /// The EtherType of what is inside.
    pub protocol: u16,
    /// Whether there are options that a receiver must not pass over: RFC 8926 section 3.5.
    pub critical: bool,
    /// Length of the header with its options, in bytes; the packet may be shorter.
    pub len: usize,
}

/// The header of a network, whose identifier has 24 bits, without options, before something of this EtherType.
pub const fn header(vni: u32, protocol: u16) -> [u8; LEN] {
    let ([high, low], [_, a, b, c]) = (protocol.to_be_bytes(), vni.to_be_bytes());
    [0, 0, high, low, a, b, c, 0]
}

/// Reads the header at the start of `bytes`.
///
/// # Errors
/// [`Malformed`] says why these are none.
pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
    let [first, flags, high, low, a, b, c, _] = *bytes.first_chunk::<LEN>().ok_or(Malformed::Truncated)?;
    if first & !OPTIONS != 0 {
        return Err(Malformed::Version);
    }
    Ok(Header {
        vni: u32::from_be_bytes([0, a, b, c]),
        protocol: u16::from_be_bytes([high, low]),
        critical: flags & CRITICAL != 0,
        len: LEN + 4 * usize::from(first & OPTIONS),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(vni in 0_u32..1 << 24, protocol: u16, behind: Vec<u8>) {
            let bytes = [&header(vni, protocol)[..], &behind].concat();
            let read = Header { vni, protocol, critical: false, len: LEN };
            prop_assert_eq!(parse(&bytes), Ok(read));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok(read) = parse(&bytes) {
                prop_assert!((LEN..=MAX_LEN).contains(&read.len));
                let plain = header(read.vni, read.protocol);
                prop_assert_eq!((&plain[2..7], bytes[0] >> 6), (&bytes[2..7], 0));
            }
        }
    }

    /// scapy: `bytes(GENEVE(vni=0x123456))`, `bytes(GENEVE(vni=1,critical=1,options=[GeneveOptions(classid=0x102,type=0x80)]))`.
    #[test]
    fn as_scapy_writes_it() {
        assert_eq!(header(0x0012_3456, 0x6558), [0, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0]);
        let critical = [1, 0x40, 0x65, 0x58, 0, 0, 1, 0, 1, 2, 0x80, 0];
        let read = Header { vni: 1, protocol: 0x6558, critical: true, len: 12 };
        assert_eq!(parse(&critical), Ok(read));
        assert_eq!(parse(&[0x40, 0, 0x65, 0x58, 0, 0, 1, 0]), Err(Malformed::Version));
        assert_eq!(parse(&critical[..7]), Err(Malformed::Truncated));
    }
}
