//! Outer headers of what comes in, as far as fast functions read them.

use underpass_packet::checksum::Sum;
use underpass_packet::protocol;

use crate::tables::FouPayload;
use crate::tunnel::outer::{FIXED4, FIXED6, GUE, UDP};
use crate::worker::family::Family;
use crate::worker::view::View;

/// The outer header of a packet that comes in.
pub(super) struct OuterFast<A> {
    pub(super) tos: u8,
    pub(super) protocol: u8,
    /// Where what follows it begins.
    pub(super) at: usize,
    pub(super) remote: A,
    pub(super) local: A,
}

impl<A: Family> OuterFast<A> {
    #[inline(always)]
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (remote, local) = A::ends(bytes)?;
        if A::IPV6 {
            let header = bytes.first_chunk::<FIXED6>()?;
            let (protocol, at) = match (header[6], bytes.get(FIXED6..)?.first_chunk::<8>()) {
                // An encapsulation limit, as Linux writes it.
                (protocol::DESTINATION_OPTIONS, Some([next, 0, 4, 1, _, 1, 1, 0])) => (*next, FIXED6 + 8),
                (next, _) => (next, FIXED6),
            };
            let tos = header[0] << 4 | header[1] >> 4;
            return Some(Self { tos, protocol, at, remote, local });
        }
        let header = bytes.first_chunk::<FIXED4>()?;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        (!fragment).then_some(Self { tos: header[1], protocol: header[9], at: FIXED4, local, remote })
    }

    /// The port that a datagram is for.
    #[inline(always)]
    pub(super) fn port(&self, bytes: &[u8]) -> Option<u16> {
        let [_, _, high, low, ..] = *bytes.get(self.at..)?.first_chunk::<UDP>()?;
        Some(u16::from_be_bytes([high, low]))
    }

    /// What is in datagrams for a port of the router's.
    #[inline(always)]
    pub(super) fn payload(&self, view: &View<'_>, port: u16) -> Option<FouPayload> {
        view.tables.tunnels().plain_port(port, A::IPV6, self.local.into(), view.guard)
    }

    /// Whether a datagram has a checksum. `None`: it is not sound.
    #[inline(always)]
    pub(super) fn has_checksum(&self, bytes: &[u8]) -> Option<bool> {
        let datagram = bytes.get(self.at..)?;
        let [.., len0, len1, sum0, sum1] = *datagram.first_chunk::<UDP>()?;
        if usize::from(u16::from_be_bytes([len0, len1])) != datagram.len() {
            return None;
        }
        let has_checksum = [sum0, sum1] != [0; 2];
        if has_checksum && self.sum(bytes, datagram.len())?.add_bytes(datagram).fold() != 0xffff {
            return None;
        }
        Some(has_checksum)
    }

    /// Goes past the UDP header, and GUE's, of what is for a port of foo-over-UDP.
    #[inline(always)]
    pub(super) fn pass_udp(&mut self, view: &View<'_>, bytes: &[u8]) -> Option<()> {
        let payload = self.payload(view, self.port(bytes)?)?;
        self.has_checksum(bytes)?;
        self.at += UDP;
        self.protocol = match payload {
            FouPayload::Protocol(protocol) => protocol,
            FouPayload::Device(_) | FouPayload::Vxlan | FouPayload::Geneve => return None,
            FouPayload::Gue => match *bytes.get(self.at..)?.first_chunk::<GUE>()? {
                [0, protocol, 0, 0] => {
                    self.at += GUE;
                    protocol
                }
                [0x40..=0x4f, ..] => protocol::IPV4,
                [0x60..=0x6f, ..] => protocol::IPV6,
                _ => return None,
            },
        };
        Some(())
    }

    /// The sum of the pseudo header of a datagram.
    #[inline(always)]
    fn sum(&self, bytes: &[u8], len: usize) -> Option<Sum> {
        let addresses = if A::IPV6 { bytes.get(8..40)? } else { bytes.get(12..20)? };
        Some(Sum::new().add_bytes(addresses).add_u16(protocol::UDP.into()).add_u32(len as u32))
    }
}
