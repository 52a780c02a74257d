//! What goes into a tunnel, as its outer header looks at it.

use underpass_packet::{ethernet, ipv4, ipv6};

use crate::tables::{InnerProtocol, StoredTunnel};
use crate::tunnel::behind::type_of;
use crate::worker::metadata::{LABELLED, PacketMeta};

/// What goes into a tunnel.
#[derive(Clone, Copy)]
pub(crate) struct Inside {
    /// As the tunnel sees it.
    pub(super) protocol: InnerProtocol,
    /// Where the packet in a frame is.
    pub(super) at: usize,
    /// Where the packet is that the outer header inherits from, and its EtherType.
    pub(super) heir: (usize, u16),
}

impl Inside {
    /// A frame; with an EtherType of its own one whose Ethernet header is the beginning of a packet.
    pub(crate) fn frame(meta: &PacketMeta, tunnel: &StoredTunnel, frameless: u16) -> Self {
        let (at, ethertype) = Self::of_frame(meta.packet.bytes(), tunnel);
        let heir = if frameless == 0 { (at, ethertype) } else { (0, frameless) };
        Self { protocol: InnerProtocol::Frame, at, heir }
    }

    /// Where the packet in a frame is, and its EtherType, as the outer header of a tunnel looks at it.
    #[inline(always)]
    pub(super) fn of_frame(bytes: &[u8], tunnel: &StoredTunnel) -> (usize, u16) {
        let is_tag = |ethertype| matches!(ethertype, ethernet::VLAN | ethernet::SERVICE_VLAN);
        let (mut at, mut ethertype) = (ethernet::Header::LEN, type_of(bytes));
        if is_tag(ethertype) {
            // Linux: the network header is behind the first tag, whatever is there. `skb_protocol` is behind all, but over IPv4
            // it is looked for too late, when GRE's header is before them. Of what goes into UDP the network header is behind all
            // tags too (`skb_vlan_inet_prepare`).
            at += 4;
            let overlay = tunnel.kind.is_overlay();
            let mut behind = at;
            while (overlay || tunnel.kind.is_over_ipv6())
                && is_tag(ethertype)
                && let Some(next) = bytes.get(behind - 2..).and_then(|rest| rest.first_chunk())
            {
                (behind, ethertype) = (behind + 4, u16::from_be_bytes(*next));
            }
            if overlay {
                at = at.max(behind - 4);
            }
        }
        (at, ethertype)
    }

    /// A packet without an Ethernet header.
    pub(crate) fn packet(protocol: InnerProtocol) -> Self {
        let ethertype = match protocol {
            InnerProtocol::Ip4 => ethernet::IPV4,
            InnerProtocol::Ip6 => ethernet::IPV6,
            InnerProtocol::Mpls => ethernet::MPLS,
            InnerProtocol::Frame => 0,
        };
        Self { protocol, at: 0, heir: (0, ethertype) }
    }

    /// What a route has led into the tunnel.
    pub(crate) fn routed(meta: &PacketMeta, tunnel: &StoredTunnel) -> Self {
        if tunnel.kind.carries_frames() {
            return Self::frame(meta, tunnel, 0);
        }
        if meta.is(LABELLED) {
            return Self::packet(InnerProtocol::Mpls);
        }
        match meta.packet.bytes().first().map(|first| first >> 4) {
            Some(6) => Self::packet(InnerProtocol::Ip6),
            _ => Self::packet(InnerProtocol::Ip4),
        }
    }
}

/// Whether bytes are missing of the IP header that is to be at this place, by its EtherType.
pub(super) fn lacks_header(bytes: &[u8], (at, ethertype): (usize, u16)) -> bool {
    let least = match ethertype {
        ethernet::IPV4 => ipv4::Header::LEN,
        ethernet::IPV6 => ipv6::Header::LEN,
        _ => 0,
    };
    bytes.len() < at + least
}
