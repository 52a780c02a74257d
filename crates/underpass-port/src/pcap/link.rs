//! What stands before the packets of a capture, and the Ethernet header that replaces it: link types of
//! <https://www.tcpdump.org/linktypes.html>.
//!
//! ```text
//! LINUX_SLL:  | packet type 2 | ARPHRD_ 2 | address length 2 | address 8 | protocol 2 |
//! LINUX_SLL2: | protocol 2 | 0 2 | interface index 4 | ARPHRD_ 2 | packet type 1 | address length 1 | address 8 |
//! ```
//! Fields of several bytes are in network byte order. The address is that of the sender.

use super::Problem;

/// Length of an Ethernet header.
pub(super) const ETHERNET: usize = 14;

/// The link types that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkType {
    Ethernet,
    /// Cooked: of the devices of `tcpdump -i any`.
    Sll,
    Sll2,
    /// IPv4 or IPv6, as of TUN devices.
    Ip,
    /// The same behind four bytes that name the address family, as of the loopback devices of the BSDs and macOS.
    Family,
}

impl LinkType {
    /// # Errors
    /// [`Problem::LinkType`]. The upper bits of the field of a pcap file say that each frame ends with a check
    /// sequence, which is no part of the packet: no such field is known.
    pub(super) fn new(number: u32) -> Result<Self, Problem> {
        match number {
            1 => Ok(Self::Ethernet),
            0 | 108 => Ok(Self::Family),
            101 | 228 | 229 => Ok(Self::Ip),
            113 => Ok(Self::Sll),
            276 => Ok(Self::Sll2),
            other => Err(Problem::LinkType(other)),
        }
    }
}

/// What a captured packet is as a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// Bytes of the capture that are no part of the frame.
    pub(super) strip: usize,
    /// Put before the rest.
    pub(super) header: Option<[u8; ETHERNET]>,
    /// Whether the captured machine sent it.
    pub(super) sent: bool,
}

/// Source of frames whose sender the capture does not name: locally administered, unicast.
const UNKNOWN: [u8; 6] = [2, 0, 0, 0, 0, 0];

/// `PACKET_*` of if_packet.h.
const BROADCAST: u8 = 1;
const MULTICAST: u8 = 2;
const OTHER_HOST: u8 = 3;
const OUTGOING: u8 = 4;

/// How a packet with these first bytes becomes a frame for the port with the address `station`; `None` if there
/// is no Ethernet frame of such a packet.
///
/// # Errors
/// [`Problem::Damaged`]: it is shorter than its link layer.
pub(super) fn layer(link: LinkType, data: &[u8], station: [u8; 6]) -> Result<Option<Layer>, Problem> {
    let short = || Problem::Damaged("a packet is shorter than its link layer".to_owned());
    match link {
        LinkType::Ethernet => Ok(Some(Layer { strip: 0, header: None, sent: false })),
        LinkType::Ip => Ok(ip(data, 0, station)),
        LinkType::Family => Ok(ip(data.get(4..).ok_or_else(short)?, 4, station)),
        LinkType::Sll => {
            let cooked = data.first_chunk::<16>().ok_or_else(short)?;
            let [_, kind, a0, a1, _, length, address @ .., p0, p1] = *cooked;
            let cooked = Cooked {
                kind,
                hardware: u16::from_be_bytes([a0, a1]),
                sender: (length == 6).then_some(address),
                protocol: u16::from_be_bytes([p0, p1]),
            };
            Ok(cooked.layer(data.get(16..).unwrap_or_default(), 16, station))
        }
        LinkType::Sll2 => {
            let cooked = data.first_chunk::<20>().ok_or_else(short)?;
            let [p0, p1, _, _, _, _, _, _, a0, a1, kind, length, address @ ..] = *cooked;
            let cooked = Cooked {
                kind,
                hardware: u16::from_be_bytes([a0, a1]),
                sender: (length == 6).then_some(address),
                protocol: u16::from_be_bytes([p0, p1]),
            };
            Ok(cooked.layer(data.get(20..).unwrap_or_default(), 20, station))
        }
    }
}

/// The index that the captured machine gave the interface of a packet, where the packet says so.
pub(super) fn index(link: LinkType, data: &[u8]) -> Option<u32> {
    let index = if link == LinkType::Sll2 { data.get(4..8)? } else { return None };
    index.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn header(destination: [u8; 6], source: [u8; 6], protocol: u16) -> [u8; ETHERNET] {
    let mut header = [0; ETHERNET];
    header[..6].copy_from_slice(&destination);
    header[6..12].copy_from_slice(&source);
    header[12..].copy_from_slice(&protocol.to_be_bytes());
    header
}

/// A packet that begins with its IP header.
fn ip(packet: &[u8], strip: usize, station: [u8; 6]) -> Option<Layer> {
    let protocol = match packet.first()? >> 4 {
        4 => 0x0800,
        6 => 0x86dd,
        _ => return None,
    };
    let destination = group(protocol, packet).unwrap_or(station);
    Some(Layer { strip, header: Some(header(destination, UNKNOWN, protocol)), sent: false })
}

/// The group address of Ethernet that a packet to a group is sent to: RFC 1112 section 6.4, RFC 2464 section 7.
fn group(protocol: u16, packet: &[u8]) -> Option<[u8; 6]> {
    match protocol {
        0x0800 => match *packet.get(16..20)? {
            [255, 255, 255, 255] => Some([0xff; 6]),
            [224..=239, b, c, d] => Some([0x01, 0x00, 0x5e, b & 0x7f, c, d]),
            _ => None,
        },
        0x86dd => match *packet.get(24..40)? {
            [0xff, .., a, b, c, d] => Some([0x33, 0x33, a, b, c, d]),
            _ => None,
        },
        _ => None,
    }
}

/// What a cooked header says.
struct Cooked {
    /// `PACKET_*`.
    kind: u8,
    /// `ARPHRD_*`.
    hardware: u16,
    sender: Option<[u8; 8]>,
    /// An EtherType, or `ETH_P_802_3` or `ETH_P_802_2`.
    protocol: u16,
}

/// `ARPHRD_*` of which the protocol is none of Ethernet: IEEE 802.11 with and without its monitor headers, netlink.
const NO_ETHERNET: [u16; 4] = [801, 802, 803, 824];

impl Cooked {
    fn layer(&self, packet: &[u8], strip: usize, station: [u8; 6]) -> Option<Layer> {
        if NO_ETHERNET.contains(&self.hardware) || self.protocol < 0x0600 {
            return None;
        }
        let destination = match self.kind {
            BROADCAST => [0xff; 6],
            MULTICAST => group(self.protocol, packet).unwrap_or([0xff; 6]),
            // Whose, the capture does not say; not the port's.
            OTHER_HOST => {
                let [rest @ .., last] = station;
                let [a, b, c, d, e] = rest;
                [a, b, c, d, e, last ^ 1]
            }
            // Of a device without addresses, such as a tunnel, also packets to a group are for the machine itself.
            _ => group(self.protocol, packet).unwrap_or(station),
        };
        let source = self.sender.map_or(UNKNOWN, |[a, b, c, d, e, f, ..]| [a, b, c, d, e, f]);
        Some(Layer {
            strip,
            header: Some(header(destination, source, self.protocol)),
            sent: self.kind == OUTGOING,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: [u8; 6] = [2, 0, 0, 0, 0x0a, 1];
    const SENDER: [u8; 6] = [2, 0, 0, 0, 0x0a, 2];

    fn sll(kind: u8, hardware: u16, length: u8, protocol: u16, packet: &[u8]) -> Vec<u8> {
        let mut data = vec![0, kind];
        data.extend(hardware.to_be_bytes());
        data.extend([0, length]);
        data.extend(SENDER);
        data.extend([0, 0]);
        data.extend(protocol.to_be_bytes());
        data.extend(packet);
        data
    }

    /// The header of a frame, and whether it was sent.
    fn frame(link: LinkType, data: &[u8]) -> Option<([u8; ETHERNET], bool)> {
        layer(link, data, STATION).unwrap().map(|layer| (layer.header.unwrap(), layer.sent))
    }

    #[test]
    fn the_type_of_a_cooked_packet_gives_the_destination() {
        let mut to_group = [0x60; 40];
        to_group[24..].copy_from_slice(&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 1]);
        let cases = [
            (0, 0x86dd, STATION),
            (1, 0x0806, [0xff; 6]),
            (2, 0x86dd, [0x33, 0x33, 0xff, 0, 0, 1]),
            (2, 0x88cc, [0xff; 6]),
            (3, 0x0800, [2, 0, 0, 0, 0x0a, 0]),
            (4, 0x0800, STATION),
        ];
        for (kind, protocol, destination) in cases {
            let packet: &[u8] = if kind == 2 { &to_group } else { &[0x45; 40] };
            let (header, sent) = frame(LinkType::Sll, &sll(kind, 1, 6, protocol, packet)).unwrap();
            assert_eq!(header[..6], destination, "type {kind}");
            assert_eq!(header[6..12], SENDER);
            assert_eq!(header[12..], protocol.to_be_bytes());
            assert_eq!(sent, kind == 4);
        }
        // A tunnel's address is none of Ethernet.
        let (header, _) = frame(LinkType::Sll, &sll(0, 768, 4, 0x0800, &[0x45; 20])).unwrap();
        assert_eq!(header[6..12], UNKNOWN);
    }

    #[test]
    fn what_is_no_frame_of_ethernet() {
        assert_eq!(frame(LinkType::Sll, &sll(0, 824, 0, 0x0010, &[])), None, "netlink");
        assert_eq!(frame(LinkType::Sll, &sll(0, 1, 6, 0x0004, &[])), None, "802.2");
        assert_eq!(frame(LinkType::Ip, &[0x15, 0, 0]), None);
        assert_eq!(frame(LinkType::Ip, &[]), None);
        assert_eq!(frame(LinkType::Family, &[2, 0, 0, 0]), None);
        for (link, length) in [(LinkType::Sll, 15), (LinkType::Sll2, 19), (LinkType::Family, 3)] {
            assert!(layer(link, &vec![0; length], STATION).is_err());
        }
    }

    #[test]
    fn the_version_of_a_bare_packet_gives_its_type() {
        let mut packet = [0x45; 20];
        packet[16..].copy_from_slice(&[239, 129, 2, 3]);
        let (header, _) = frame(LinkType::Ip, &packet).unwrap();
        assert_eq!(header, [0x01, 0, 0x5e, 1, 2, 3, 2, 0, 0, 0, 0, 0, 8, 0]);
        let bsd = [&[30, 0, 0, 0][..], &[0x60; 40]].concat();
        let (header, _) = frame(LinkType::Family, &bsd).unwrap();
        assert_eq!((&header[..6], &header[12..]), (&STATION[..], &[0x86, 0xdd][..]));
    }
}
