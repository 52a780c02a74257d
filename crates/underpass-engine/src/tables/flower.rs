//! What `flower` filters look at.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Labels of a stack that can be looked at: `FLOW_DIS_MPLS_MAX`.
pub const FLOWER_LABELS: usize = 7;

/// A VLAN tag, as `flower` sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct FlowerVlan {
    /// The EtherType that says that there is a tag (802.1Q, 802.1ad).
    pub tpid: u16,
    /// The identifier in the lower 12 bits, the priority in the upper 3.
    pub tci: u16,
}

/// The fields of a packet that `flower` compares, all in host byte order; as a mask, the bits of them that count.
///
/// A field of which no bit counts is not asked for. What a packet does not have is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct FlowerKey {
    /// Source address: IPv6, or IPv4 in the lower 32 bits.
    pub source: u128,
    /// Destination address.
    pub destination: u128,
    /// `enc_src_ip`: that of the outer packet that this one came in.
    pub tunnel_source: u128,
    /// `enc_dst_ip`.
    pub tunnel_destination: u128,
    /// `enc_key_id`.
    pub tunnel_key: u32,
    /// Label stack entries, the outermost first: label, traffic class, bottom, TTL as on the wire.
    pub labels: [u32; FLOWER_LABELS],
    /// `arp_sip`.
    pub arp_source: u32,
    /// `arp_tip`.
    pub arp_target: u32,
    /// `indev`: the Linux index of the link that the packet came in by.
    pub ingress: u32,
    /// The outermost VLAN tag.
    pub vlan: FlowerVlan,
    /// The one behind it.
    pub inner_vlan: FlowerVlan,
    /// The EtherType behind all tags that are known.
    pub ethertype: u16,
    /// Source port of TCP, UDP or SCTP.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// TCP flags, the lower 12 bits.
    pub tcp_flags: u16,
    /// `enc_src_port`.
    pub tunnel_source_port: u16,
    /// `enc_dst_port`.
    pub tunnel_destination_port: u16,
    /// Source MAC address.
    pub mac_source: [u8; 6],
    /// Destination MAC address.
    pub mac_destination: [u8; 6],
    /// `arp_sha`.
    pub arp_source_mac: [u8; 6],
    /// `arp_tha`.
    pub arp_target_mac: [u8; 6],
    /// `arp_op`.
    pub arp_operation: u8,
    /// 4 or 6, as `source` and `destination` are; its mask has to be `0xff` where one of them counts.
    pub family: u8,
    /// The same for `tunnel_source` and `tunnel_destination`.
    pub tunnel_family: u8,
    /// IP protocol.
    pub protocol: u8,
    /// `ip_tos`: the whole octet.
    pub tos: u8,
    /// `ip_ttl`.
    pub ttl: u8,
    /// `enc_tos`.
    pub tunnel_tos: u8,
    /// `enc_ttl`.
    pub tunnel_ttl: u8,
    /// ICMP or ICMPv6 type.
    pub icmp_type: u8,
    /// ICMP or ICMPv6 code.
    pub icmp_code: u8,
    /// `ip_flags`: [`FLOWER_FRAGMENT`], [`FLOWER_FIRST_FRAGMENT`].
    pub fragment: u8,
    /// `num_of_vlans`.
    pub vlans: u8,
    /// Always 0.
    pub reserved: [u8; 12],
}

impl FlowerKey {
    /// The fields as far as a mask has bits.
    #[must_use]
    pub fn masked(mut self, mask: &Self) -> Self {
        self.as_mut_bytes().iter_mut().zip(mask.as_bytes()).for_each(|(byte, mask)| *byte &= mask);
        self
    }
}

/// In [`FlowerKey::fragment`]: a fragment.
pub const FLOWER_FRAGMENT: u8 = 1;
/// In [`FlowerKey::fragment`]: the first fragment.
pub const FLOWER_FIRST_FRAGMENT: u8 = 2;
