//! A tunnel as workers read it: outer headers that are ready to copy, and what of them depends on the packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use underpass_packet::{IntoBytes, ethernet, geneve, gre, ipv4, ipv6, protocol, udp, vxlan};

use crate::limiter::Nanos;

use super::tunnel_match::{Class, TunnelMatch, found_by};
use super::{
    DEFAULT_TTL, Link, LinkId, LookupId, NextHopId, PrecomputedDecap, PrecomputedEncap, SourcePort, Tunnel,
    TunnelKind, TunnelMode, TunnelTos, TunnelUdp,
};

/// Longest outer header: IPv6, an encapsulation limit, UDP, GUE, GRE.
const LONGEST: usize = 40 + 8 + 8 + 4 + 16;
/// Room for it, in words of 16 bytes.
pub(crate) const TEMPLATE: usize = LONGEST.next_multiple_of(16);

/// Bytes that remote checksum offload adds to a GUE header: private flags, positions.
pub(crate) const REMOTE_CHECKSUM: usize = 8;

/// What is inside a tunnel, as far as the outer header says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InnerProtocol {
    Ip4,
    Ip6,
    Mpls,
    Frame,
}

// What the bytes of a template lack, or what is special about it: bits of [`EncapTemplate::open`].

/// The TTL of the outer header is that of the packet inside.
pub(crate) const TTL: u16 = 1;
/// The TOS of the outer header is that of the packet inside.
pub(crate) const TOS: u16 = 2;
/// Don't Fragment of the outer header is that of the packet inside.
pub(crate) const FRAGMENT: u16 = 4;
/// The flow label of the outer header is that of the packet inside.
pub(crate) const LABEL: u16 = 8;
/// The UDP source port is that of the flow.
pub(crate) const PORT: u16 = 16;
/// The flow label is that of the flow's hash.
pub(crate) const HASH_LABEL: u16 = 32;
/// There is a checksum of UDP.
pub(crate) const UDP_SUM: u16 = 64;
/// There is a checksum of GRE.
pub(crate) const GRE_SUM: u16 = 128;
/// There is a sequence number.
pub(crate) const SEQUENCE: u16 = 256;
/// The outer header does not take over the ECN of the packet inside.
pub(crate) const NO_ECN: u16 = 512;
/// An address of the outer header depends on the packet inside.
pub(crate) const ADDRESS: u16 = 1024;
/// An unfinished checksum inside is left to the receiver: remote checksum offload of GUE.
pub(crate) const REMOTE_SUM: u16 = 2048;
/// Nothing of this kind may be inside, or the device is down.
pub(crate) const CLOSED: u16 = 4096;
/// The outer header is IPv6. It leaves nothing open, and is a bit here so that one test reads it with the others.
pub(crate) const OVER_IPV6: u16 = 8192;
/// Packets take the slow path: what goes in is classified or waits in a qdisc, or the MTU of the outer route is locked.
pub(crate) const SLOW_ONLY: u16 = 16384;
/// The checksum of GRE is left to the receiver, unless one inside is.
pub(crate) const REMOTE_GRE_SUM: u16 = 32768;

/// An outer header for packets of one kind inside.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct EncapTemplate {
    /// What is not in the header yet: the bits above.
    pub(crate) open: u16,
    /// Length of the headers in bytes; they are the end of `bytes`.
    pub(crate) len: u8,
    /// Offsets of the headers of UDP, GUE and GRE from the start of the outer header, in bytes; 0: there is none.
    pub(crate) udp: u8,
    pub(crate) gue: u8,
    pub(crate) gre: u8,
    /// The TOS, or traffic class, that is not in `bytes`.
    pub(crate) tos: u8,
    /// The lowest and the highest of the UDP source ports by which flows are distinguished.
    pub(crate) ports: (u16, u16),
    /// Where outer packets go, if that is known.
    pub(crate) next_hop: Option<NextHopId>,
    /// The longest packet inside, in bytes: the MTU of the device.
    pub(crate) mtu: u32,
    /// The sum over the words of an IPv4 header, as they lie in little-endian memory.
    pub(crate) sum: u16,
    /// The device.
    pub(crate) link: LinkId,
    /// As on the wire; lengths, checksums, and what the packet inside says, are 0.
    pub(crate) bytes: [u8; TEMPLATE],
}

impl EncapTemplate {
    /// The header.
    #[inline(always)]
    pub(crate) fn header(&self) -> &[u8] {
        self.bytes.get(TEMPLATE - usize::from(self.len)..).unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn has(&self, open: u16) -> bool {
        self.open & open != 0
    }
}

/// How long errors about a tunnel's packets count, in nanoseconds: Linux's `IPTUNNEL_ERR_TIMEO`.
const ERRORS_COUNT: Nanos = 30_000_000_000;

/// Sequence numbers of a tunnel, and errors about its packets, which all workers share.
#[derive(Default, Debug)]
pub(crate) struct Sequence {
    /// The next that is sent.
    pub(crate) next: AtomicU32,
    /// The least that is taken; 0: none has come.
    pub(crate) expected: AtomicU32,
    /// Errors that no sender has been told of.
    pub(crate) errors: AtomicU32,
    /// When the last of them came.
    failed: AtomicU64,
}

impl Sequence {
    /// Whether a packet of this sequence number is not older than one that came before, and takes note of it.
    pub(crate) fn admits(&self, number: u32) -> bool {
        let expected = self.expected.load(Relaxed);
        if expected != 0 && (number.wrapping_sub(expected) as i32) < 0 {
            return false;
        }
        self.expected.store(number.wrapping_add(1), Relaxed);
        true
    }

    /// Takes note that a packet has not arrived.
    #[cold]
    pub(crate) fn fail(&self, now: Nanos) {
        let errors = if self.is_recent(now) { self.errors.load(Relaxed) } else { 0 };
        self.failed.store(now, Relaxed);
        self.errors.store(errors.saturating_add(1), Relaxed);
    }

    /// Whether it has been told that a packet has not arrived.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.errors.load(Relaxed) != 0
    }

    /// Whether the sender of a packet is to be told that one has not arrived; then another need not.
    #[inline]
    pub(crate) fn notifies(&self, now: Nanos) -> bool {
        let errors = self.errors.load(Relaxed);
        if errors == 0 {
            return false;
        }
        let recent = self.is_recent(now);
        self.errors.store(if recent { errors - 1 } else { 0 }, Relaxed);
        recent
    }

    fn is_recent(&self, now: Nanos) -> bool {
        now.saturating_sub(self.failed.load(Relaxed)) < ERRORS_COUNT
    }
}

/// A tunnel in the tables.
#[derive(Debug)]
pub(crate) struct StoredTunnel {
    /// What it is found by.
    pub(super) found: Option<(Class, TunnelMatch)>,
    pub(crate) link: LinkId,
    /// Where what comes out is looked up.
    pub(crate) lookup: LookupId,
    pub(crate) kind: TunnelKind,
    pub(crate) mode: TunnelMode,
    /// Whether the device is up.
    pub(crate) up: bool,
    pub(crate) forward4: bool,
    pub(crate) forward6: bool,
    /// Whether packets are classified when they come out and before they go in, or wait there.
    pub(crate) classifies_ingress: bool,
    pub(crate) classifies_egress: bool,
    /// Where packets come out, if that is soon done.
    pub(crate) end: Option<PrecomputedDecap>,
    /// By what is inside: IPv4, IPv6, MPLS; of a tunnel of frames the first.
    templates: [EncapTemplate; 3],
    /// Whether the MTU of the way of outer packets is locked.
    pub(super) locked: bool,
    pub(crate) config: Tunnel,
    pub(crate) sequence: Arc<Sequence>,
}

impl StoredTunnel {
    /// `locked`: whether the MTU of its way is.
    pub(super) fn new(
        tunnel: Tunnel,
        (link, locked): (Option<&Link>, bool),
        sequence: Arc<Sequence>,
    ) -> Self {
        let templates = if tunnel.kind.carries_frames() {
            [InnerProtocol::Frame; 3]
        } else {
            [InnerProtocol::Ip4, InnerProtocol::Ip6, InnerProtocol::Mpls]
        };
        Self {
            found: found_by(&tunnel),
            link: tunnel.link,
            lookup: link.map_or(tunnel.underlay, |link| link.lookup),
            kind: tunnel.kind,
            mode: tunnel.mode,
            up: link.is_some_and(|link| link.up),
            forward4: link.is_some_and(|link| link.forward4),
            forward6: link.is_some_and(|link| link.forward6),
            classifies_ingress: link.is_some_and(Link::classifies_ingress),
            classifies_egress: link.is_some_and(Link::classifies_egress),
            end: link.and_then(|link| PrecomputedDecap::new(&tunnel, link)),
            templates: templates.map(|inside| template(&tunnel, inside, (link, locked))),
            locked,
            config: tunnel,
            sequence,
        }
    }

    /// The outer header of a packet with this inside.
    #[inline(always)]
    pub(crate) fn template(&self, inside: InnerProtocol) -> &EncapTemplate {
        match inside {
            InnerProtocol::Ip4 | InnerProtocol::Frame => &self.templates[0],
            InnerProtocol::Ip6 => &self.templates[1],
            InnerProtocol::Mpls => &self.templates[2],
        }
    }

    /// The same if it is precomputed.
    pub(super) fn precomputed(&self, inside: InnerProtocol) -> Option<PrecomputedEncap> {
        if self.kind.carries_frames() { None } else { PrecomputedEncap::new(self.template(inside)) }
    }

    /// Whether it may have this inside.
    #[inline(always)]
    pub(crate) fn takes(&self, inside: InnerProtocol) -> bool {
        !self.template(inside).has(CLOSED) && self.kind.carries_frames() == (inside == InnerProtocol::Frame)
    }

    /// In which tables outer packets with this inside are looked up.
    pub(crate) fn outer_lookup(&self, inside: InnerProtocol) -> LookupId {
        if goes_apart(&self.config, inside) { self.config.underlay } else { self.config.via.lookup }
    }

    /// Bytes of the fields of its GRE header that not all have.
    pub(crate) fn gre_fields(&self) -> u32 {
        let fields = self.config.transmit;
        [fields.checksum, fields.key.is_some(), fields.sequence]
            .into_iter()
            .map(|there| 4 * u32::from(there))
            .sum()
    }

    /// What it puts before packets at the most, in bytes, as Linux counts it.
    pub(crate) fn overhead(&self) -> usize {
        let remote = self.config.udp.is_some_and(|udp| udp.gue && udp.remote_checksum);
        usize::from(self.templates[0].len) + if remote { REMOTE_CHECKSUM } else { 0 }
    }
}

/// Whether a tunnel takes such packets.
fn takes(tunnel: &Tunnel, inside: InnerProtocol) -> bool {
    if tunnel.kind.has_gre() || tunnel.kind.carries_frames() {
        return tunnel.kind.carries_frames() == (inside == InnerProtocol::Frame);
    }
    match (tunnel.mode, inside) {
        // Linux's `ipip` has no IPv6 inside, whatever its mode is.
        (_, InnerProtocol::Ip6) if tunnel.kind == TunnelKind::Ipip => false,
        // And `sit` sends all, whatever it takes.
        (_, InnerProtocol::Ip4 | InnerProtocol::Ip6 | InnerProtocol::Mpls)
            if tunnel.kind == TunnelKind::Sit =>
        {
            true
        }
        (TunnelMode::Any, InnerProtocol::Ip4 | InnerProtocol::Ip6 | InnerProtocol::Mpls)
        | (TunnelMode::Ip4 | TunnelMode::Ip, InnerProtocol::Ip4)
        | (TunnelMode::Ip6 | TunnelMode::Ip, InnerProtocol::Ip6)
        | (TunnelMode::Mpls, InnerProtocol::Mpls) => true,
        _ => false,
    }
}

/// Whether outer packets with this inside go another way than those with IPv6. Linux: `sit_tunnel_xmit__`, which leaves them to
/// `ip_tunnel_xmit`.
fn goes_apart(tunnel: &Tunnel, inside: InnerProtocol) -> bool {
    tunnel.by_any_link && inside != InnerProtocol::Ip6
}

/// Builds the outer header for such packets.
fn template(tunnel: &Tunnel, inside: InnerProtocol, (link, locked): (Option<&Link>, bool)) -> EncapTemplate {
    let mut header = OuterHeader::default();
    if !takes(tunnel, inside) || link.is_none_or(|link| !link.up) {
        header.open |= CLOSED;
    }
    if locked || link.is_some_and(Link::classifies_egress) {
        header.open |= SLOW_ONLY;
    }
    let (inner, ethertype) = numbers(tunnel, inside);
    let ttl = header.take_ttl(tunnel, inside);
    header.take_tos(tunnel, inside);
    if tunnel.sends_from().is_unspecified() || tunnel.remote.is_unspecified() {
        header.open |= ADDRESS;
    }
    let outer = if tunnel.udp.is_some() { protocol::UDP } else { inner };
    if tunnel.kind.is_over_ipv6() {
        header.put_ipv6(tunnel, inside, (outer, ttl));
    } else {
        header.put_ipv4(tunnel, inside, (outer, ttl));
    }
    if let Some(udp) = &tunnel.udp {
        header.put_udp(tunnel, udp, (inner, ethertype));
    }
    if tunnel.kind.has_gre() {
        header.put_gre(tunnel, ethertype);
    }
    let OuterHeader { bytes: header, open, udp, gue, gre, ports, tos } = header;
    let mut bytes = [0; TEMPLATE];
    let len = header.len().min(TEMPLATE);
    bytes.iter_mut().skip(TEMPLATE - len).zip(&header).for_each(|(to, from)| *to = *from);
    let words = header.as_chunks::<4>().0.iter().take(5).map(|word| u64::from(u32::from_le_bytes(*word)));
    let sum: u64 = if tunnel.kind.is_over_ipv6() { 0 } else { words.sum() };
    EncapTemplate {
        open,
        len: len as u8,
        udp,
        gue,
        gre,
        tos,
        ports,
        next_hop: tunnel.via.resolved.filter(|_| !goes_apart(tunnel, inside)),
        mtu: link.map_or(0, |link| link.mtu),
        // RFC 1071: the sum over 32-bit words, folded, is that over 16-bit words.
        sum: (1..=4).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16)) as u16,
        link: tunnel.link,
        bytes,
    }
}

/// The protocol number and the EtherType of what is behind the outer header.
fn numbers(tunnel: &Tunnel, inside: InnerProtocol) -> (u8, u16) {
    let (inner, ethertype) = match inside {
        InnerProtocol::Ip4 => (protocol::IPV4, ethernet::IPV4),
        InnerProtocol::Ip6 => (protocol::IPV6, ethernet::IPV6),
        InnerProtocol::Mpls => (protocol::MPLS, ethernet::MPLS),
        InnerProtocol::Frame => (protocol::GRE, gre::TRANSPARENT_ETHERNET),
    };
    match tunnel.kind {
        TunnelKind::Srv6L2 => (protocol::ETHERNET, ethertype),
        kind if kind.has_gre() => (protocol::GRE, ethertype),
        _ => (inner, ethertype),
    }
}

/// An outer header as it is put together, from its first byte on, and what of it depends on the packet inside.
#[derive(Default)]
struct OuterHeader {
    bytes: Vec<u8>,
    open: u16,
    /// Where the headers are that not all have; 0: nowhere.
    udp: u8,
    gue: u8,
    gre: u8,
    ports: (u16, u16),
    tos: u8,
}

impl OuterHeader {
    /// The TTL or hop limit, 0 if it is that of the packet.
    fn take_ttl(&mut self, tunnel: &Tunnel, inside: InnerProtocol) -> u8 {
        match tunnel.ttl {
            Some(ttl) => ttl,
            None if inside == InnerProtocol::Mpls => DEFAULT_TTL,
            None => {
                self.open |= TTL;
                0
            }
        }
    }

    fn take_tos(&mut self, tunnel: &Tunnel, inside: InnerProtocol) {
        let ecn = if leaves_ecn(tunnel) { 0 } else { 3 };
        self.tos = match tunnel.tos {
            TunnelTos::Inherit(_) if inside != InnerProtocol::Mpls => {
                self.open |= TOS;
                0
            }
            TunnelTos::Fixed(tos) | TunnelTos::Inherit(tos) => tos & !ecn,
        };
    }

    fn put_ipv6(&mut self, tunnel: &Tunnel, inside: InnerProtocol, (outer, hop_limit): (u8, u8)) {
        self.open |= OVER_IPV6;
        if leaves_ecn(tunnel) {
            self.open |= NO_ECN;
        }
        self.open |= match tunnel.flow_label {
            None if inside == InnerProtocol::Ip6 => LABEL,
            // Linux's `udp_tunnel6_xmit_skb` writes the label that it is given.
            _ if tunnel.kind.is_over_udp() => 0,
            None | Some(0) => HASH_LABEL,
            Some(_) => 0,
        };
        let mut header = ipv6::Header::new(v6(tunnel.sends_from()), v6(tunnel.remote), outer, hop_limit, 0);
        header.set_class_flow(0, tunnel.flow_label.unwrap_or(0));
        if tunnel.encapsulation_limit.is_some() {
            header.next_header = protocol::DESTINATION_OPTIONS;
        }
        self.bytes.extend(header.as_bytes());
        if let Some(limit) = tunnel.encapsulation_limit {
            // RFC 2473 section 4.1.1, and a PadN of 3 bytes.
            self.bytes.extend([outer, 0, 4, 1, limit, 1, 1, 0]);
        }
    }

    fn put_ipv4(&mut self, tunnel: &Tunnel, inside: InnerProtocol, (outer, ttl): (u8, u8)) {
        let mut header = ipv4::Header::new(v4(tunnel.sends_from()), v4(tunnel.remote), outer, ttl, 0);
        header.flags_offset = if tunnel.dont_fragment { ipv4::DONT_FRAGMENT } else { 0 }.into();
        self.bytes.extend(header.as_bytes());
        let inherits = matches!(inside, InnerProtocol::Ip4 | InnerProtocol::Frame);
        if inherits && !tunnel.dont_fragment && !tunnel.ignore_df {
            self.open |= FRAGMENT;
        }
    }

    /// UDP, and what only tunnels over UDP have behind it.
    fn put_udp(&mut self, tunnel: &Tunnel, outer: &TunnelUdp, (inner, ethertype): (u8, u16)) {
        self.udp = self.bytes.len() as u8;
        let port = match outer.source_port {
            SourcePort::Fixed(port) => port,
            SourcePort::Flow { first, last } => {
                self.open |= PORT;
                self.ports = (first, last);
                0
            }
        };
        self.bytes.extend(udp::Header::new(port, outer.destination_port, 0).as_bytes());
        if outer.gue {
            self.gue = self.bytes.len() as u8;
            self.bytes.extend([0, inner, 0, 0]);
        }
        if let Some(vxlan) = &tunnel.vxlan {
            self.bytes.extend(vxlan::header(vxlan.vni));
        }
        if let Some(geneve) = &tunnel.geneve {
            self.bytes.extend(geneve::header(geneve.vni, ethertype));
        }
        if outer.checksum {
            self.open |= UDP_SUM;
        }
        if outer.gue && outer.remote_checksum {
            self.open |= REMOTE_SUM;
        }
    }

    fn put_gre(&mut self, tunnel: &Tunnel, ethertype: u16) {
        self.gre = self.bytes.len() as u8;
        let fields = tunnel.transmit;
        let builder = gre::Builder {
            protocol: ethertype,
            checksum: fields.checksum,
            key: fields.key,
            sequence: fields.sequence.then_some(0),
        };
        let mut bytes = [0; gre::MAX_LEN];
        let len = builder.write(&mut bytes).unwrap_or(0);
        // The checksum covers the payload: it is filled in for each packet.
        if fields.checksum
            && let Some(checksum) = bytes.get_mut(4..6)
        {
            checksum.fill(0);
            self.open |= if self.open & REMOTE_SUM > 0 { GRE_SUM | REMOTE_GRE_SUM } else { GRE_SUM };
        }
        self.bytes.extend(bytes.iter().take(len));
        if fields.sequence {
            self.open |= SEQUENCE;
        }
    }
}

/// Whether the ECN of the outer header is no matter of the tunnel. Linux's `ip6gre` has the whole octet copied, or nothing: either
/// is RFC 6040's. What comes out of a SID is as it went in.
fn leaves_ecn(tunnel: &Tunnel) -> bool {
    tunnel.kind.is_over_ipv6() && (tunnel.kind.has_gre() || tunnel.kind == TunnelKind::Srv6L2)
}

fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V6(address) => address,
        IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
    }
}
