//! UDP, RFC 768.
//!
//! ```text
//! |          Source Port          |       Destination Port        |
//! |            Length             |           Checksum            |
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use crate::checksum::Sum;

/// Which rule of RFC 768 the bytes break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the header.
    Truncated,
    /// The length is below that of the header.
    Length,
    /// Shorter than the length.
    PayloadTruncated,
}

/// The header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Source port.
    pub source_port: U16,
    /// Destination port.
    pub destination_port: U16,
    /// Length of header and payload, in bytes.
    pub length: U16,
    /// Checksum of pseudo header, header and payload. 0: none.
    pub checksum: U16,
}

impl Header {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// A header without a checksum; `length` is that of header and payload.
    #[inline]
    pub const fn new(source_port: u16, destination_port: u16, length: u16) -> Self {
        Self {
            source_port: U16::new(source_port),
            destination_port: U16::new(destination_port),
            length: U16::new(length),
            checksum: U16::ZERO,
        }
    }

    /// Whether the sender computed a checksum: over IPv4 it need not, over IPv6 it must but for some
    /// tunnels (RFC 6935).
    #[inline]
    pub const fn has_checksum(&self) -> bool {
        self.checksum.get() != 0
    }

    /// Whether the checksum is right; `pseudo` is the sum of the pseudo header.
    #[inline]
    pub fn checksum_valid(&self, pseudo: Sum, payload: &[u8]) -> bool {
        pseudo.add_bytes(self.as_bytes()).add_bytes(payload).fold() == 0xFFFF
    }

    /// Makes the checksum right; `pseudo` is the sum of the pseudo header. One that is 0 is sent as
    /// `0xFFFF`, as 0 means none.
    #[inline]
    pub fn fill_checksum(&mut self, pseudo: Sum, payload: &[u8]) {
        self.checksum = U16::ZERO;
        let checksum = pseudo.add_bytes(self.as_bytes()).add_bytes(payload).checksum();
        self.checksum.set(if checksum == 0 { 0xFFFF } else { checksum });
    }

    #[inline]
    fn payload_len(&self, available: usize) -> Result<usize, Malformed> {
        let len = (self.length.get() as usize).checked_sub(Self::LEN).ok_or(Malformed::Length)?;
        if len > available { Err(Malformed::PayloadTruncated) } else { Ok(len) }
    }
}

/// A datagram that is as long as it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View<'a> {
    /// The header.
    pub header: &'a Header,
    /// What follows it, to the length.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the datagram at the start of `bytes`. The checksum is not looked at.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = Header::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let len = header.payload_len(rest.len())?;
        let payload = rest.get(..len).ok_or(Malformed::PayloadTruncated)?;
        Ok(Self { header, payload })
    }
}

/// [`View`], to be changed.
#[derive(PartialEq, Eq, Debug)]
pub struct ViewMut<'a> {
    /// The header.
    pub header: &'a mut Header,
    /// What follows it, to the length.
    pub payload: &'a mut [u8],
}

impl<'a> ViewMut<'a> {
    /// Reads the datagram at the start of `bytes`. The checksum is not looked at.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, Malformed> {
        let (header, rest) = Header::mut_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let len = header.payload_len(rest.len())?;
        let payload = rest.get_mut(..len).ok_or(Malformed::PayloadTruncated)?;
        Ok(Self { header, payload })
    }
}
