//! What the fast path reads of a tunnel, in one cache line each way: the outer header, if it is precomputed, with what
//! of it depends on the packet; and the end where packets come out, if little is looked at there.

use super::tunnel_match::{Ingress, TunnelMatch, found_by};
use super::{
    ADDRESS, CLOSED, EncapTemplate, FRAGMENT, GRE_SUM, HASH_LABEL, LABEL, Link, LinkId, LookupId, NextHopId,
    OVER_IPV6, PORT, REMOTE_SUM, SEQUENCE, SLOW_ONLY, TOS, TTL, Tunnel, TunnelBound, TunnelKind, TunnelMode,
    UDP_SUM,
};

/// Outer headers that are written without a look at anything but the IP header of the packet inside, or its flow: over
/// IPv4, of a frequent length, without checksums and numbers. Each with what stands behind IPv4's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PrecomputedKind {
    Nothing,
    /// GRE without fields.
    Gre,
    /// UDP.
    Udp,
    /// UDP, GUE, GRE without fields.
    UdpGueGre,
}

/// What is open in headers that need more.
const NEEDS_MORE: u16 =
    CLOSED | SLOW_ONLY | ADDRESS | OVER_IPV6 | LABEL | HASH_LABEL | UDP_SUM | GRE_SUM | REMOTE_SUM | SEQUENCE;

/// [`SourcePort::LOCAL`](super::SourcePort::LOCAL), which writers of these headers count on.
pub(crate) const LOCAL_PORTS: (u16, u16) = match super::SourcePort::LOCAL {
    super::SourcePort::Flow { first, last } => (first, last),
    super::SourcePort::Fixed(port) => (port, port),
};

impl PrecomputedKind {
    fn of(template: &EncapTemplate) -> Option<Self> {
        match (template.len, template.udp, template.gue, template.gre) {
            _ if template.has(NEEDS_MORE) => None,
            // There is no room for others.
            _ if template.has(PORT) && template.ports != LOCAL_PORTS => None,
            (20, 0, 0, 0) => Some(Self::Nothing),
            (24, 0, 0, 20) => Some(Self::Gre),
            (28, 20, 0, 0) => Some(Self::Udp),
            (36, 20, 28, 32) => Some(Self::UdpGueGre),
            _ => None,
        }
    }
}

/// The longest of them: IPv4, UDP, GUE, GRE.
const LONGEST: usize = 20 + 8 + 4 + 4;

/// An outer header that is precomputed, for packets of one kind inside.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PrecomputedEncap {
    pub(crate) kind: PrecomputedKind,
    /// Whether the UDP source port is that of the flow.
    pub(crate) by_flow: bool,
    /// The TOS, which is not in the header yet.
    pub(crate) tos: u8,
    /// Longest packet inside: the MTU of the device, as far as the length of the outer packet takes 16 bits.
    pub(crate) longest: u16,
    /// The sum over the words of the IPv4 header, as they lie in little-endian memory.
    pub(crate) sum: u16,
    /// Where outer packets go.
    pub(crate) next_hop: NextHopId,
    /// The device.
    pub(crate) link: LinkId,
    /// Which bits of the first three words of an IPv4 header, as they lie in little-endian memory, are those of the packet
    /// inside: of TOS, "don't fragment" and TTL.
    pub(crate) taken: [u32; 3],
    /// As on the wire, right-aligned; lengths, the checksum, and what the packet inside says, are 0.
    pub(crate) header: [u8; LONGEST],
}

const _: () = assert!(size_of::<PrecomputedEncap>() == 64);

impl PrecomputedEncap {
    /// `None`: the header needs more, or its next hop is not known.
    pub(super) fn new(template: &EncapTemplate) -> Option<Self> {
        let taken = |bit, all| if template.has(bit) { all } else { 0 };
        Some(Self {
            kind: PrecomputedKind::of(template)?,
            by_flow: template.has(PORT),
            tos: template.tos,
            longest: u16::try_from(template.mtu).unwrap_or(u16::MAX).min(u16::MAX - u16::from(template.len)),
            sum: template.sum,
            next_hop: template.next_hop?,
            link: template.link,
            taken: [taken(TOS, 0xfc << 8), taken(FRAGMENT, 0x40 << 16), taken(TTL, 0xff)],
            header: *template.bytes.last_chunk()?,
        })
    }
}

/// The end of a tunnel where packets come out that are just looked up then.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct PrecomputedDecap {
    /// What it is found by: an [`TunnelMatch`] without its gaps.
    local: u128,
    remote: u128,
    key: u32,
    kind: TunnelKind,
    has_key: bool,
    /// Whether what comes in must have a GRE checksum.
    pub(crate) checked: bool,
    /// Whether the router's own addresses may be its other end.
    allows_local_remote: bool,
    /// Whether IPv4 and IPv6 that come out are forwarded.
    pub(crate) forward4: bool,
    pub(crate) forward6: bool,
    bound: Option<TunnelBound>,
    /// The device.
    pub(crate) link: LinkId,
    /// Where what comes out is looked up.
    pub(crate) lookup: LookupId,
    /// Where outer packets are looked up.
    pub(crate) underlay: LookupId,
}

const _: () = assert!(size_of::<PrecomputedDecap>() == 64);

impl PrecomputedDecap {
    /// `None`: more is looked at when something comes in, or done to it; or nothing may come in.
    pub(super) fn new(tunnel: &Tunnel, link: &Link) -> Option<Self> {
        let (_, TunnelMatch { local, remote, key }) = found_by(tunnel)?;
        let sixrd =
            tunnel.kind == TunnelKind::Sit && tunnel.sixrd.is_some() && tunnel.remote.is_unspecified();
        let particular = tunnel.receive.sequence || tunnel.copies_dscp || sixrd || tunnel.has_foreign_local();
        if !link.up || particular || link.classifies_ingress() {
            return None;
        }
        let takes = |mode| tunnel.mode == TunnelMode::Any || tunnel.mode == mode && !tunnel.kind.has_gre();
        Some(Self {
            local,
            remote,
            key: key.unwrap_or(0),
            has_key: key.is_some(),
            kind: tunnel.kind,
            checked: tunnel.receive.checksum,
            allows_local_remote: tunnel.allows_local_remote,
            bound: tunnel.bound,
            link: tunnel.link,
            lookup: link.lookup,
            underlay: tunnel.underlay,
            forward4: link.forward4 && takes(TunnelMode::Ip4),
            forward6: link.forward6 && takes(TunnelMode::Ip6),
        })
    }

    /// Whether an outer packet that has come in there is for it.
    #[inline(always)]
    pub(super) fn is_for(&self, kind: TunnelKind, tunnel_match: TunnelMatch, ingress: Ingress) -> bool {
        let key = if self.has_key { Some(self.key) } else { None };
        let found = TunnelMatch { local: self.local, remote: self.remote, key };
        let meant =
            if kind == TunnelKind::Sit { ingress.is(self.bound) } else { ingress.is_device(self.bound) };
        self.kind == kind && found == tunnel_match && meant
    }

    /// What kind of tunnel it is of.
    pub(crate) fn kind(&self) -> TunnelKind {
        self.kind
    }

    /// Whether outer packets must have come in somewhere.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// The router's address, that of the other end, and the key.
    pub(crate) fn found_by(&self) -> (u128, u128, Option<u32>) {
        (self.local, self.remote, self.has_key.then_some(self.key))
    }

    /// Where the other end must not be one of the router's own addresses, if it must not.
    #[inline(always)]
    pub(crate) fn own(&self) -> Option<LookupId> {
        if self.allows_local_remote { None } else { Some(self.underlay) }
    }
}
