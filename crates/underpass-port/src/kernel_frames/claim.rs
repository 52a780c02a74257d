//! What a worker gets although it is for one of the kernel's own addresses.

use underpass_packet::protocol;

use super::rules::GROUPS6;

/// ICMP errors about a packet that was sent: unreachable, time exceeded, parameter problem.
pub(crate) const ERRORS4: [u8; 3] = [3, 11, 12];
/// ICMPv6 types below this are errors.
pub(crate) const INFORMATION6: u8 = 128;
/// Of a claim's key, added to the family: it is about what is quoted in an ICMP error.
pub(crate) const QUOTED: u8 = 0x80;

/// What is for a worker although its destination is one of the kernel's own addresses.
///
/// UDP behind IPv4 options is the kernel's. Behind hop-by-hop options nothing is looked at: the claim is on these
/// ([`protocol::HOP_BY_HOP`]), but for addresses of the link and groups. A destination options header of 8 bytes, as Linux puts before a tunnel's
/// packets, is looked behind, and a fragment header behind or without it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Claim {
    /// Over IPv6, else over IPv4.
    pub ipv6: bool,
    /// IP protocol. That of a fragment header ([`protocol::FRAGMENT`]), over IPv4 too: fragments of UDP, of which only
    /// the first says a port.
    pub protocol: u8,
    /// UDP destination port; 0 for other protocols.
    pub port: u16,
    /// ICMP errors that quote such a packet, instead of the packet itself.
    pub quoted: bool,
}

impl Claim {
    /// {family and whether it is quoted, protocol, port in network byte order}.
    pub(super) fn key(self) -> [u8; 4] {
        let family = if self.ipv6 { 6 } else { 4 } | if self.quoted { QUOTED } else { 0 };
        let [high, low] = self.port.to_be_bytes();
        [family, self.protocol, high, low]
    }

    /// The claim that there must be for a worker to get this IPv4 packet.
    pub(super) fn on_ipv4(packet: &[u8]) -> Option<Self> {
        let of = |packet: &[u8], at: usize| match packet.get(at + 9)? {
            &protocol::UDP => {
                let plain = packet.get(at) == Some(&0x45);
                let port = u16::from_be_bytes([*packet.get(at + 22)?, *packet.get(at + 23)?]);
                plain.then_some((protocol::UDP, port))
            }
            other => Some((*other, 0)),
        };
        let quoted = packet.get(9) == Some(&protocol::ICMP);
        let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff != 0;
        let (protocol, port) = if quoted {
            let plain = packet.first() == Some(&0x45) && !fragment;
            of(packet, 28).filter(|_| plain && ERRORS4.contains(&packet[20]))?
        } else {
            match of(packet, 0)? {
                (protocol::UDP, _) if fragment => (protocol::FRAGMENT, 0),
                found => found,
            }
        };
        Some(Self { ipv6: false, protocol, port, quoted })
    }

    /// The claim that there must be for a worker to get this IPv6 packet.
    pub(super) fn on_ipv6(packet: &[u8]) -> Option<Self> {
        if packet.get(6) == Some(&protocol::HOP_BY_HOP) && is_of_link(packet) {
            return None;
        }
        let of = |at: usize| {
            let (mut protocol, mut next) = (*packet.get(at + 6)?, at + 40);
            if protocol == protocol::DESTINATION_OPTIONS {
                if *packet.get(next + 7).and(packet.get(next + 1))? != 0 {
                    return None;
                }
                protocol = *packet.get(next)?;
                next += 8;
            }
            if protocol == protocol::FRAGMENT {
                let inside = *packet.get(next + 7).and(packet.get(next))?;
                return Some((if inside == protocol::UDP { protocol } else { inside }, 0));
            }
            let port = match protocol {
                protocol::UDP => u16::from_be_bytes([*packet.get(next + 2)?, *packet.get(next + 3)?]),
                _ => 0,
            };
            Some((protocol, port))
        };
        let quoted = packet.get(6) == Some(&protocol::ICMPV6);
        let (protocol, port) = if quoted { of(48).filter(|_| packet[40] < INFORMATION6)? } else { of(0)? };
        Some(Self { ipv6: true, protocol, port, quoted })
    }
}

/// Whether an IPv6 packet is for an address of the link, to which nobody but the kernel can hand it over, or for a group, as the
/// queries of MLD are.
fn is_of_link(packet: &[u8]) -> bool {
    matches!(packet.get(24..26), Some([0xfe, 0x80..=0xbf] | [GROUPS6, _]))
}
