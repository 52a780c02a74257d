//! Outer headers: what is written before a packet on its way into a tunnel.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use underpass_packet::checksum::Sum;
use underpass_packet::{FromBytes, ethernet, gre, ipv4, ipv6, protocol};

use crate::buffer::{Offload, Packet};
use crate::drops::DropReason;
use crate::tables::{
    DEFAULT_TTL, EncapTemplate, FRAGMENT, HASH_LABEL, InnerProtocol, LABEL, NO_ECN, PORT, REMOTE_CHECKSUM,
    REMOTE_GRE_SUM, REMOTE_SUM, StoredTunnel, TEMPLATE, TOS, TTL, UDP_SUM,
};
use crate::tunnel::behind::type_of;
use crate::tunnel::{dont_fragment, ecn_outside, entropy};

/// Length of an IPv4 header.
pub(crate) const FIXED4: usize = underpass_packet::ipv4::Header::LEN;
pub(crate) const FIXED6: usize = underpass_packet::ipv6::Header::LEN;

/// Length of a UDP header, of GUE's and GRE's without fields.
pub(crate) const UDP: usize = 8;
pub(crate) const GUE: usize = 4;
pub(crate) const GRE: usize = 4;

/// Writes the first three words of an outer IPv4 header: those of its template, and what is said of its packet, as it lies
/// in little-endian memory; `sum` is that of the whole template.
#[inline(always)]
pub(crate) fn write_ipv4(outer: &mut [u8; 12], template: [u8; 12], sum: u32, [a, b, c]: [u32; 3]) {
    let [t0, t1, t2, t3, t4, t5, t6, t7, third @ ..] = template;
    let first = u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]) | u64::from(a) | u64::from(b) << 32;
    // Words in either byte order have the same sum: RFC 1071 section 2 (B).
    let sum = u64::from(sum) + u64::from(a) + u64::from(b) + u64::from(c);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = sum as u32 + (sum >> 32) as u32;
    // In the upper half: both halves, and what is carried from the lower one.
    let sum = sum.wrapping_add(sum.rotate_left(16));
    outer[..8].copy_from_slice(&first.to_le_bytes());
    outer[8..].copy_from_slice(&(u32::from_le_bytes(third) | c | !sum & 0xffff_0000).to_le_bytes());
}

/// Copies the header of a form so that it ends at `end`, and bytes before it that are written later: in pieces of a
/// fixed length, as a call of memcpy would take longer.
#[inline(always)]
pub(crate) fn copy_template(template: &EncapTemplate, bytes: &mut [u8], end: usize) -> Option<()> {
    match template.len {
        0..=32 => copy_end::<32>(template, bytes, end),
        33..=48 => copy_end::<48>(template, bytes, end),
        49..=64 => copy_end::<64>(template, bytes, end),
        _ => copy_end::<TEMPLATE>(template, bytes, end),
    }
}

#[inline(always)]
fn copy_end<const N: usize>(template: &EncapTemplate, bytes: &mut [u8], end: usize) -> Option<()> {
    let from: &[u8; N] = template.bytes.last_chunk()?;
    let to: &mut [u8; N] = bytes.get_mut(..end)?.last_chunk_mut()?;
    *to = *from;
    Some(())
}

/// Puts the outer header before a packet, and fills in all that depends on it: its IP header is at `at`, that from which it
/// inherits at `heir`, with this EtherType. How long it is, and its sequence number.
pub(crate) fn push_outer(
    packet: &mut Packet,
    tunnel: &StoredTunnel,
    (inside, at, heir): (InnerProtocol, usize, (usize, u16)),
    (source, remote): (IpAddr, IpAddr),
    identification: u16,
) -> Result<(usize, Option<u32>), DropReason> {
    let template = tunnel.template(inside);
    let inner = match inside {
        InnerProtocol::Frame => Inner::of_frame(packet.bytes(), tunnel, heir),
        _ => Inner::read(packet.bytes(), heir),
    };
    let labelled = match inside {
        InnerProtocol::Frame => type_of(packet.bytes()) == ethernet::MPLS,
        inside => inside == InnerProtocol::Mpls,
    };
    let own = packet.bytes().get(at..).unwrap_or_default();
    let port = template.has(PORT).then(|| entropy::source_port(own, labelled, template.ports));
    let label = template
        .has(HASH_LABEL)
        .then(|| entropy::flow_label(own, labelled))
        .or(template.has(LABEL).then_some(inner.label));
    let remote_checksum = remote_checksum(packet, template);
    let gap = if remote_checksum.is_some() { REMOTE_CHECKSUM } else { 0 };
    let len = template.header().len() + gap;
    let total = packet.len() + len;
    let bytes = packet.push(len).map_err(|_| DropReason::NoHeadroom)?;
    // The option stands behind the first four bytes of GUE.
    let split = if gap > 0 { usize::from(template.gue) + 4 } else { template.header().len() };
    let (front, back) = template.header().split_at_checked(split).ok_or(DropReason::NoHeadroom)?;
    bytes.get_mut(..split).ok_or(DropReason::NoHeadroom)?.copy_from_slice(front);
    bytes.get_mut(split + gap..len).ok_or(DropReason::NoHeadroom)?.copy_from_slice(back);
    if let (Some(option), Some(first)) = (remote_checksum, bytes.get_mut(split - 4..split)) {
        first[0] = (REMOTE_CHECKSUM / 4) as u8;
        first[3] = 1;
        bytes.get_mut(split..split + gap).ok_or(DropReason::NoHeadroom)?.copy_from_slice(&option);
    }
    let ttl =
        if template.has(TTL) { Some(inner.ttl.unwrap_or(DEFAULT_TTL)) } else { to_group(tunnel, remote) };
    match (source, remote) {
        (IpAddr::V4(source), IpAddr::V4(remote)) => {
            let (header, _) = ipv4::Header::mut_from_prefix(bytes).map_err(|_| DropReason::NoHeadroom)?;
            (header.source, header.destination) = (source.octets(), remote.octets());
            header.total_length = u16::try_from(total).map_err(|_| DropReason::LengthOverflow)?.into();
            header.identification = identification.into();
            header.tos = ecn_outside(if template.has(TOS) { inner.tos } else { template.tos }, inner.tos);
            header.ttl = ttl.unwrap_or(header.ttl);
            if template.has(FRAGMENT) && inner.dont_fragment {
                header.flags_offset = ipv4::DONT_FRAGMENT.into();
            }
            header.fill_checksum(&[]);
        }
        (IpAddr::V6(source), IpAddr::V6(remote)) => {
            let (header, _) = ipv6::Header::mut_from_prefix(bytes).map_err(|_| DropReason::NoHeadroom)?;
            (header.source, header.destination) = (source.octets(), remote.octets());
            let payload = u16::try_from(total - ipv6::Header::LEN).map_err(|_| DropReason::LengthOverflow)?;
            header.payload_length = payload.into();
            let class = if template.has(TOS) { inner.tos } else { template.tos };
            let class = if template.has(NO_ECN) { class } else { ecn_outside(class, inner.tos) };
            header.set_class_flow(class, label.unwrap_or_else(|| header.flow_label()));
            header.hop_limit = ttl.unwrap_or(header.hop_limit);
        }
        _ => return Err(DropReason::TunnelRemote),
    }
    // From the inside out, as checksums outside cover those inside.
    let (unfinished, parts) = (packet.offload(), packet.parts());
    let mut sequence = None;
    if template.gre > 0 {
        let at = usize::from(template.gre) + gap;
        sequence = if gap > 0 && unfinished.is_none() {
            fill_sequence(packet.bytes_mut(), tunnel, at, parts)
        } else {
            fill_gre(packet.bytes_mut(), tunnel, (at, parts), unfinished)
        };
    }
    if template.udp > 0 {
        fill_udp(
            packet.bytes_mut(),
            template,
            Some((source, remote)).filter(|_| template.has(UDP_SUM)),
            port,
            unfinished.filter(|_| gap == 0),
        );
    }
    if gap > 0 {
        packet.clear_offload();
    }
    Ok((len, sequence))
}

/// The TTL of what goes to a group, if it is another than to a single end.
fn to_group(tunnel: &StoredTunnel, remote: IpAddr) -> Option<u8> {
    tunnel.config.vxlan.filter(|_| remote.is_multicast())?.ttl_to_groups
}

/// Whether Geneve takes Don't Fragment over from a frame: as that of IPv4 has it, and of all IPv6. Linux: `geneve_xmit_skb`,
/// which looks at no frame with a tag.
fn keeps_whole(frame: &[u8]) -> bool {
    match type_of(frame) {
        ethernet::IPV4 => frame.get(ethernet::Header::LEN..).is_some_and(dont_fragment),
        ethertype => ethertype == ethernet::IPV6,
    }
}

/// Private flags and positions of a GUE header that leaves a checksum behind it to the receiver: one of the packet inside
/// that is unfinished, or else that of GRE (Linux: `gre_build_header`). `None`: there is nothing left to be done, or the
/// packet stands for several.
fn remote_checksum(packet: &Packet, template: &EncapTemplate) -> Option<[u8; REMOTE_CHECKSUM]> {
    template.has(REMOTE_SUM).then_some(())?;
    let header = template.header().len();
    // Of what the outer header is still to be put before, and behind it.
    let (start, field) = match packet.offload() {
        Some(Offload { start, field, segment: None }) => (header + start, field),
        None if template.has(REMOTE_GRE_SUM) => (template.gre.into(), gre::CHECKSUM_OFFSET),
        _ => return None,
    };
    // From behind the GUE header on: that of GRE is behind it.
    let start = u16::try_from(start.checked_sub(usize::from(template.gue) + 4)?).ok()?;
    let [a, b] = start.to_be_bytes();
    let [c, d] = start.checked_add(field)?.to_be_bytes();
    Some([0x80, 0, 0, 0, a, b, c, d])
}

/// The sum over bytes whose end, behind `at`, has a checksum yet to be finished: that end then adds up to the
/// complement of the pseudo header's sum, which stands in the field.
fn sum_of(bytes: &[u8], at: usize, unfinished: Option<Offload>) -> Sum {
    let own = bytes.get(at..).unwrap_or_default();
    let Some(Offload { start, field, .. }) = unfinished else { return Sum::new().add_bytes(own) };
    let (Some(before), Some(pseudo)) =
        (bytes.get(at..start), bytes.get(start + usize::from(field)..).and_then(|rest| rest.first_chunk()))
    else {
        return Sum::new().add_bytes(own);
    };
    Sum::new().add_bytes(before).add_u16(!u16::from_be_bytes(*pseudo))
}

/// Fills in sequence number and checksum of the GRE header at `at` of a packet that is cut into so many `parts`. The number, if it
/// has one.
#[inline(always)]
pub(crate) fn fill_gre(
    bytes: &mut [u8],
    tunnel: &StoredTunnel,
    (at, parts): (usize, u16),
    unfinished: Option<Offload>,
) -> Option<u32> {
    let sequence = fill_sequence(bytes, tunnel, at, parts);
    if tunnel.config.transmit.checksum {
        let checksum = sum_of(bytes, at, unfinished).checksum();
        let at = at + usize::from(gre::CHECKSUM_OFFSET);
        if let Some(place) = bytes.get_mut(at..at + 2) {
            place.copy_from_slice(&checksum.to_be_bytes());
        }
    }
    sequence
}

/// Fills in the sequence number alone, which is that of the first part.
#[inline(always)]
fn fill_sequence(bytes: &mut [u8], tunnel: &StoredTunnel, at: usize, parts: u16) -> Option<u32> {
    let fields = tunnel.config.transmit;
    let sequence = fields.sequence.then(|| tunnel.sequence.next.fetch_add(parts.into(), Relaxed));
    if let Some(sequence) = sequence {
        let place = at + 4 + 4 * (usize::from(fields.checksum) + usize::from(fields.key.is_some()));
        if let Some(place) = bytes.get_mut(place..place + 4) {
            place.copy_from_slice(&sequence.to_be_bytes());
        }
    }
    sequence
}

/// Fills in source port, length and, between these addresses, the checksum of the UDP header of a form.
#[inline(always)]
pub(crate) fn fill_udp(
    bytes: &mut [u8],
    template: &EncapTemplate,
    ends: Option<(IpAddr, IpAddr)>,
    port: Option<u16>,
    unfinished: Option<Offload>,
) {
    let at = usize::from(template.udp);
    let len = bytes.len() - at;
    let Some([a, b, _, _, c, d, _, _]) = bytes.get_mut(at..).and_then(|udp| udp.first_chunk_mut::<8>())
    else {
        return;
    };
    if let Some(port) = port {
        [*a, *b] = port.to_be_bytes();
    }
    [*c, *d] = (len as u16).to_be_bytes();
    let pseudo = match ends {
        Some((IpAddr::V4(source), IpAddr::V4(remote))) => {
            Sum::pseudo_ipv4(source.octets(), remote.octets(), protocol::UDP, len as u16)
        }
        Some((IpAddr::V6(source), IpAddr::V6(remote))) => {
            Sum::pseudo_ipv6(source.octets(), remote.octets(), protocol::UDP, len as u32)
        }
        _ => return,
    };
    let sum = pseudo.add_u16(sum_of(bytes, at, unfinished).fold()).checksum();
    if let Some(place) = bytes.get_mut(at + 6..at + 8) {
        // RFC 768: 0 is no checksum.
        place.copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    }
}

/// What an outer header takes over from the packet inside.
pub(super) struct Inner {
    pub(super) tos: u8,
    /// `None`: it is not IP.
    pub(super) ttl: Option<u8>,
    pub(super) dont_fragment: bool,
    /// Of IPv6.
    pub(super) label: u32,
}

impl Inner {
    /// Of a frame that goes into this tunnel.
    #[inline(always)]
    pub(super) fn of_frame(bytes: &[u8], tunnel: &StoredTunnel, heir: (usize, u16)) -> Self {
        let mut own = Self::read(bytes, heir);
        // Linux: `vxlan_xmit_one`, `geneve_xmit_skb`, for which a TTL of 0 says nothing.
        own.ttl = own.ttl.filter(|ttl| *ttl != 0 || !tunnel.kind.is_overlay());
        if tunnel.kind.is_geneve() { Self { dont_fragment: keeps_whole(bytes), ..own } } else { own }
    }

    /// Of a packet of this EtherType behind a link layer that ends at `at`.
    #[inline(always)]
    fn read(bytes: &[u8], (at, ethertype): (usize, u16)) -> Self {
        let none = Self { tos: 0, ttl: None, dont_fragment: false, label: 0 };
        let packet = bytes.get(at..).unwrap_or_default();
        match (ethertype, packet) {
            (ethernet::IPV4, [_, tos, _, _, _, _, _, _, ttl, ..]) => {
                Self { tos: *tos, ttl: Some(*ttl), dont_fragment: dont_fragment(packet), label: 0 }
            }
            (ethernet::IPV6, [a, b, c, d, _, _, _, hop_limit, ..]) => {
                let word = u32::from_be_bytes([*a, *b, *c, *d]);
                Self {
                    tos: (word >> 20) as u8,
                    ttl: Some(*hop_limit),
                    dont_fragment: false,
                    label: word & 0xfffff,
                }
            }
            _ => none,
        }
    }
}

/// Whether what goes into a tunnel is an IP packet, or a frame with one.
#[inline(always)]
pub(crate) fn is_ip(bytes: &[u8], inside: InnerProtocol) -> bool {
    match inside {
        InnerProtocol::Ip4 | InnerProtocol::Ip6 => true,
        InnerProtocol::Frame => matches!(type_of(bytes), ethernet::IPV4 | ethernet::IPV6),
        InnerProtocol::Mpls => false,
    }
}

/// Least MTU of an IPv6 link, RFC 8200 section 5.
pub(crate) const LEAST_MTU6: u32 = 1280;
