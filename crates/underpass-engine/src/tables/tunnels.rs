//! Tunnels as workers read them: outer headers that are ready to copy, and what a received packet is found by.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use underpass_packet::{IntoBytes, ethernet, gre, ipv4, ipv6, protocol, udp};
use zerocopy::FromZeros;

use super::{
    DEFAULT_TTL, Exceptions, FouPayload, FouPort, Guard, Link, LinkId, LookupId, NextHopId, Tunnel,
    TunnelBound, TunnelId, TunnelKind, TunnelMode, TunnelRole, TunnelTos,
};
use crate::counters::{Counters, Direction};
use crate::publish::{Retirer, Slab, prefetch};

/// Longest outer header: IPv6, an encapsulation limit, UDP, GUE, GRE.
const LONGEST: usize = 40 + 8 + 8 + 4 + 16;
/// Room for it, in words of 16 bytes.
pub(crate) const TEMPLATE: usize = LONGEST.next_multiple_of(16);

/// Bytes that remote checksum offload adds to a GUE header: private flags, positions.
pub(crate) const REMOTE_CHECKSUM: usize = 8;

/// What is inside a tunnel, as far as the outer header says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inside {
    Ip4,
    Ip6,
    Mpls,
    Frame,
}

/// The TTL of the outer header is that of the packet inside.
pub(crate) const TTL: u16 = 1;
/// The TOS is.
pub(crate) const TOS: u16 = 2;
/// Don't fragment is.
pub(crate) const FRAGMENT: u16 = 4;
/// The flow label is.
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
/// The ECN of the packet inside is not seen.
pub(crate) const NO_ECN: u16 = 512;
/// An address is.
pub(crate) const ADDRESS: u16 = 1024;
/// A checksum inside that is not finished is left to the receiver.
pub(crate) const REMOTE_SUM: u16 = 2048;
/// Nothing of this kind may be inside, or the device is down.
pub(crate) const CLOSED: u16 = 4096;
/// The outer header is IPv6: nothing open, but read with what is.
pub(crate) const OVER_IPV6: u16 = 8192;

/// An outer header for packets of one kind inside.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Form {
    /// What is not in the header yet.
    pub(crate) open: u16,
    /// How much of the template counts: its end.
    pub(crate) len: u8,
    /// Where the headers of UDP, GUE and GRE are; 0: there is none.
    pub(crate) udp: u8,
    pub(crate) gue: u8,
    pub(crate) gre: u8,
    /// The TOS, or traffic class, that is not in the template.
    pub(crate) tos: u8,
    /// Where outer packets go, if that is known.
    pub(crate) next_hop: Option<NextHopId>,
    /// Longest packet inside: the MTU of the device.
    pub(crate) mtu: u32,
    /// The sum over the words of an IPv4 header, as they lie in little-endian memory, in 16 bits.
    pub(crate) sum: u32,
    /// The device.
    pub(crate) link: LinkId,
    /// As on the wire; lengths, checksums, and what the packet inside says, are 0.
    pub(crate) template: [u8; TEMPLATE],
}

impl Form {
    /// The header.
    #[inline(always)]
    pub(crate) fn header(&self) -> &[u8] {
        self.template.get(TEMPLATE - usize::from(self.len)..).unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn has(&self, open: u16) -> bool {
        self.open & open != 0
    }
}

/// Sequence numbers of a tunnel, which all workers share.
#[derive(Default, Debug)]
pub(crate) struct Sequence {
    /// The next that is sent.
    pub(crate) next: AtomicU32,
    /// The least that is taken; 0: none has come.
    pub(crate) expected: AtomicU32,
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
}

/// A tunnel in the tables: first what is read of it when something comes in.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct StoredTunnel {
    /// What it is found by.
    found: Option<(Class, Arrival)>,
    pub(crate) link: LinkId,
    /// Where what comes out is looked up.
    pub(crate) lookup: LookupId,
    pub(crate) kind: TunnelKind,
    pub(crate) mode: TunnelMode,
    /// Whether the device is up.
    pub(crate) up: bool,
    pub(crate) forward4: bool,
    pub(crate) forward6: bool,
    /// Whether what comes in must have a GRE checksum.
    pub(crate) checked: bool,
    /// Whether it is bound to where packets come in.
    bound: bool,
    /// Whether there is more to be looked at when something comes in, or to be done to it.
    pub(crate) particular: bool,
    /// By what is inside: IPv4, IPv6, MPLS; of a tunnel of frames the first.
    forms: [Form; 3],
    pub(crate) config: Tunnel,
    pub(crate) sequence: Arc<Sequence>,
}

impl StoredTunnel {
    fn new(tunnel: Tunnel, link: Option<&Link>, sequence: Arc<Sequence>) -> Self {
        let forms = if tunnel.kind.carries_frames() {
            [Inside::Frame; 3]
        } else {
            [Inside::Ip4, Inside::Ip6, Inside::Mpls]
        };
        let sixrd =
            tunnel.kind == TunnelKind::Sit && tunnel.sixrd.is_some() && tunnel.remote.is_unspecified();
        Self {
            found: found_by(&tunnel),
            link: tunnel.link,
            lookup: link.map_or(tunnel.via.lookup, |link| link.lookup),
            kind: tunnel.kind,
            mode: tunnel.mode,
            up: link.is_some_and(|link| link.up),
            forward4: link.is_some_and(|link| link.forward4),
            forward6: link.is_some_and(|link| link.forward6),
            checked: tunnel.receive.checksum,
            bound: tunnel.bound.is_some(),
            particular: tunnel.receive.sequence || tunnel.copies_dscp || sixrd,
            forms: forms.map(|inside| form(&tunnel, inside, link)),
            config: tunnel,
            sequence,
        }
    }

    /// The outer header of a packet with this inside.
    #[inline(always)]
    pub(crate) fn form(&self, inside: Inside) -> &Form {
        match inside {
            Inside::Ip4 | Inside::Frame => &self.forms[0],
            Inside::Ip6 => &self.forms[1],
            Inside::Mpls => &self.forms[2],
        }
    }

    /// Whether it may have this inside.
    #[inline(always)]
    pub(crate) fn takes(&self, inside: Inside) -> bool {
        !self.form(inside).has(CLOSED) && self.kind.carries_frames() == (inside == Inside::Frame)
    }

    /// What it puts before packets at the most, in bytes, as Linux counts it.
    pub(crate) fn overhead(&self) -> usize {
        let remote = self.config.udp.is_some_and(|udp| udp.gue && udp.remote_checksum);
        usize::from(self.forms[0].len) + if remote { REMOTE_CHECKSUM } else { 0 }
    }
}

/// Whether a tunnel takes such packets.
fn takes(tunnel: &Tunnel, inside: Inside) -> bool {
    if tunnel.kind.has_gre() {
        return tunnel.kind.carries_frames() == (inside == Inside::Frame);
    }
    match (tunnel.mode, inside) {
        // Linux's `ipip` has no IPv6 inside, whatever its mode is.
        (_, Inside::Ip6) if tunnel.kind == TunnelKind::Ipip => false,
        // And `sit` sends all, whatever it takes.
        (_, Inside::Ip4 | Inside::Ip6 | Inside::Mpls) if tunnel.kind == TunnelKind::Sit => true,
        (TunnelMode::Any, Inside::Ip4 | Inside::Ip6 | Inside::Mpls)
        | (TunnelMode::Ip4, Inside::Ip4)
        | (TunnelMode::Ip6, Inside::Ip6)
        | (TunnelMode::Mpls, Inside::Mpls) => true,
        _ => false,
    }
}

/// Builds the outer header for such packets.
fn form(tunnel: &Tunnel, inside: Inside, link: Option<&Link>) -> Form {
    let mut header = Vec::with_capacity(LONGEST);
    let up = link.is_some_and(|link| link.up);
    let mut open = if takes(tunnel, inside) && up { 0 } else { CLOSED };
    let (inner, ethertype) = match inside {
        Inside::Ip4 => (protocol::IPV4, ethernet::IPV4),
        Inside::Ip6 => (protocol::IPV6, ethernet::IPV6),
        Inside::Mpls => (protocol::MPLS, ethernet::MPLS),
        Inside::Frame => (protocol::GRE, gre::TRANSPARENT_ETHERNET),
    };
    let inner = if tunnel.kind.has_gre() { protocol::GRE } else { inner };
    let outer = if tunnel.udp.is_some() { protocol::UDP } else { inner };
    let is_ip = matches!(inside, Inside::Ip4 | Inside::Ip6 | Inside::Frame);
    let ttl = match tunnel.ttl {
        Some(ttl) => ttl,
        None if is_ip => {
            open |= TTL;
            0
        }
        None => DEFAULT_TTL,
    };
    let tos = match tunnel.tos {
        TunnelTos::Fixed(tos) => tos & !3,
        TunnelTos::Inherit(_) if is_ip => {
            open |= TOS;
            0
        }
        TunnelTos::Inherit(tos) => tos & !3,
    };
    let source = if tunnel.local.is_unspecified() { tunnel.source } else { tunnel.local };
    if source.is_unspecified() || tunnel.remote.is_unspecified() {
        open |= ADDRESS;
    }
    if tunnel.kind.is_over_ipv6() {
        open |= OVER_IPV6;
        if tunnel.kind.has_gre() {
            // Linux's `ip6gre` has the whole octet copied, or nothing: either is RFC 6040's.
            open |= NO_ECN;
        }
        let mut outer_header = ipv6::Header::new(v6(source), v6(tunnel.remote), outer, ttl, 0);
        outer_header.set_class_flow(0, tunnel.flow_label.unwrap_or(0));
        open |= match tunnel.flow_label {
            None if inside == Inside::Ip6 => LABEL,
            None | Some(0) => HASH_LABEL,
            Some(_) => 0,
        };
        if let Some(limit) = tunnel.encapsulation_limit {
            outer_header.next_header = protocol::DESTINATION_OPTIONS;
            header.extend(outer_header.as_bytes());
            // RFC 2473 section 4.1.1, and a PadN of 3 bytes.
            header.extend([outer, 0, 4, 1, limit, 1, 1, 0]);
        } else {
            header.extend(outer_header.as_bytes());
        }
    } else {
        let mut outer_header = ipv4::Header::new(v4(source), v4(tunnel.remote), outer, ttl, 0);
        outer_header.flags_offset = if tunnel.dont_fragment { ipv4::DONT_FRAGMENT } else { 0 }.into();
        header.extend(outer_header.as_bytes());
        if !tunnel.dont_fragment && !tunnel.ignore_df && matches!(inside, Inside::Ip4 | Inside::Frame) {
            open |= FRAGMENT;
        }
    }
    let (mut udp_at, mut gue_at, mut gre_at) = (0, 0, 0);
    if let Some(outer) = tunnel.udp {
        udp_at = header.len() as u8;
        let port = outer.source_port.unwrap_or(0);
        header.extend(udp::Header::new(port, outer.destination_port, 0).as_bytes());
        if outer.source_port.is_none() {
            open |= PORT;
        }
        if outer.gue {
            gue_at = header.len() as u8;
            header.extend([0, inner, 0, 0]);
        }
        if outer.checksum {
            open |= UDP_SUM;
        }
        if outer.gue && outer.remote_checksum {
            open |= REMOTE_SUM;
        }
    }
    if tunnel.kind.has_gre() {
        gre_at = header.len() as u8;
        let fields = tunnel.transmit;
        // The checksum covers the payload: it is filled in for each packet.
        let builder = gre::Builder {
            protocol: ethertype,
            checksum: fields.checksum,
            key: fields.key,
            sequence: fields.sequence.then_some(0),
        };
        let mut bytes = [0; gre::MAX_LEN];
        let len = builder.write(&mut bytes).unwrap_or(0);
        if fields.checksum
            && let Some(checksum) = bytes.get_mut(4..6)
        {
            checksum.fill(0);
            open |= GRE_SUM;
        }
        header.extend(bytes.iter().take(len));
        if fields.sequence {
            open |= SEQUENCE;
        }
    }
    let mut template = [0; TEMPLATE];
    let len = header.len().min(TEMPLATE);
    template.iter_mut().skip(TEMPLATE - len).zip(&header).for_each(|(to, from)| *to = *from);
    let words = header.as_chunks::<4>().0.iter().take(5).map(|word| u64::from(u32::from_le_bytes(*word)));
    let sum: u64 = if tunnel.kind.is_over_ipv6() { 0 } else { words.sum() };
    Form {
        open,
        len: len as u8,
        udp: udp_at,
        gue: gue_at,
        gre: gre_at,
        tos,
        next_hop: tunnel.via.resolved,
        mtu: link.map_or(0, |link| link.mtu),
        // RFC 1071: the sum over 32-bit words, folded, is that over 16-bit words.
        sum: (1..=4).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16)) as u32,
        link: tunnel.link,
        template,
    }
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

/// An address as a number; 0: unspecified.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// What a tunnel is found by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// The address that the outer packet is for, as a number.
    pub(crate) local: u128,
    /// Where it comes from.
    pub(crate) remote: u128,
    /// The key of its GRE header.
    pub(crate) key: Option<u32>,
}

/// Which addresses a tunnel has, in the order of Linux's look-up over IPv4 (`ip_tunnel_lookup`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Both,
    Remote,
    Local,
    Neither,
    External,
    Fallback,
}

impl Class {
    /// The order over IPv4, and over IPv6 (`ip6_tnl_lookup`; `ip6gre_tunnel_lookup` has that of IPv4).
    const ORDER: [Self; 6] =
        [Self::Both, Self::Remote, Self::Local, Self::Neither, Self::External, Self::Fallback];
    const ORDER6: [Self; 6] =
        [Self::Both, Self::Local, Self::Remote, Self::Neither, Self::External, Self::Fallback];

    fn of(tunnel: &Tunnel) -> Option<Self> {
        match (tunnel.role, tunnel.local.is_unspecified(), tunnel.remote.is_unspecified()) {
            (TunnelRole::Route, ..) => None,
            (TunnelRole::External, ..) => Some(Self::External),
            (TunnelRole::Fallback, ..) => Some(Self::Fallback),
            (TunnelRole::Device, false, false) => Some(Self::Both),
            (TunnelRole::Device, true, false) => Some(Self::Remote),
            (TunnelRole::Device, false, true) => Some(Self::Local),
            (TunnelRole::Device, true, true) => Some(Self::Neither),
        }
    }

    /// What of an arrival such tunnels are found by.
    #[inline(always)]
    fn seen(self, arrival: Arrival) -> Arrival {
        match self {
            Self::Both => arrival,
            Self::Remote => Arrival { local: 0, ..arrival },
            Self::Local => Arrival { remote: 0, ..arrival },
            Self::Neither => Arrival { local: 0, remote: 0, ..arrival },
            Self::External | Self::Fallback => Arrival { local: 0, remote: 0, key: None },
        }
    }
}

/// What a tunnel is found by, and the place of its chain.
fn found_by(tunnel: &Tunnel) -> Option<(Class, Arrival)> {
    let class = Class::of(tunnel)?;
    let key = tunnel.receive.key.filter(|_| tunnel.kind.has_gre());
    let arrival = Arrival { local: bits(tunnel.local), remote: bits(tunnel.remote), key };
    Some((class, class.seen(normal(tunnel.kind, arrival))))
}

/// Over IPv6 no key is key 0, as in Linux.
#[inline(always)]
fn normal(kind: TunnelKind, arrival: Arrival) -> Arrival {
    match kind {
        TunnelKind::Ip6gre | TunnelKind::Ip6gretap => {
            Arrival { key: Some(arrival.key.unwrap_or(0)), ..arrival }
        }
        _ => arrival,
    }
}

/// More tunnels than these are asked for before they are read.
const MANY: u32 = 128;
/// Bits of a [`TunnelId`].
const TUNNEL_BITS: u32 = 20;
/// Bits of a [`super::FouPortId`].
const FOU_BITS: u32 = 17;
/// Chains that tunnels are found in.
const CHAINS: usize = 1 << 16;
/// Kinds of tunnels, and classes of each.
const KINDS: usize = 7;
const CLASSES: usize = 6;

/// Which chain a tunnel is in.
#[inline(always)]
fn chain(kind: TunnelKind, class: Class, Arrival { local, remote, key }: Arrival) -> usize {
    let fold = |address: u128| (address as u64) ^ ((address >> 64) as u64).rotate_left(23);
    let addresses = fold(remote) ^ fold(local).rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15;
    let other =
        u64::from(key.map_or(0, |key| key ^ 0x5bd1_e995)) ^ (kind as u64) << 40 ^ (class as u64) << 48;
    let product = u128::from(addresses) * u128::from(other ^ 0xd6e8_feb8_6659_fd93);
    ((product >> 64) as u64 ^ product as u64) as usize >> 7 & (CHAINS - 1)
}

/// Which chain a tunnel is in by where it goes.
fn end_of(remote: IpAddr) -> usize {
    chain(TunnelKind::Ipip, Class::Remote, Arrival { local: 0, remote: bits(remote), key: None })
}

fn zeroed(len: usize) -> Box<[AtomicU32]> {
    <[AtomicU32]>::new_box_zeroed_with_elems(len).unwrap_or_default()
}

/// Where an outer packet has come in.
#[derive(Clone, Copy)]
pub(crate) struct Ingress {
    pub(crate) link: LinkId,
    pub(crate) instance: LookupId,
}

impl Ingress {
    /// Whether something bound there is meant.
    #[inline(always)]
    fn is(self, bound: Option<TunnelBound>) -> bool {
        match bound {
            None => true,
            Some(TunnelBound::Link(link)) => link == self.link,
            Some(TunnelBound::Instance(instance)) => instance == self.instance,
        }
    }
}

/// All tunnels and ports of foo-over-UDP.
pub(crate) struct TunnelTable {
    pub(super) tunnels: Slab<StoredTunnel>,
    pub(super) ports: Slab<FouPort>,
    /// The tunnel of a link, its id + 1.
    of_link: Box<[AtomicU32]>,
    /// The first tunnel of each chain, its id + 1, and the next of each.
    heads: Box<[AtomicU32]>,
    nexts: Box<[AtomicU32]>,
    /// How many tunnels each class of each kind has.
    counts: [[AtomicU32; CLASSES]; KINDS],
    /// The first port of FOU of each UDP port, its id + 1, and the next of each.
    port_heads: Box<[AtomicU32]>,
    port_nexts: Box<[AtomicU32]>,
    /// How many tunnels and ports there are that something may come in for.
    receivers: AtomicU32,
    /// The first tunnel of each chain by where it goes, its id + 1, and the next of each.
    ends: Box<[AtomicU32]>,
    end_nexts: Box<[AtomicU32]>,
    pub(crate) exceptions: Exceptions,
}

impl TunnelTable {
    pub(super) fn new(links: usize, retirer: &Retirer) -> Self {
        Self {
            tunnels: Slab::new(TUNNEL_BITS, retirer),
            ports: Slab::new(FOU_BITS, retirer),
            of_link: zeroed(links),
            heads: zeroed(CHAINS),
            nexts: zeroed(1 << TUNNEL_BITS),
            counts: Default::default(),
            port_heads: zeroed(1 << 16),
            port_nexts: zeroed(1 << FOU_BITS),
            receivers: AtomicU32::new(0),
            ends: zeroed(CHAINS),
            end_nexts: zeroed(1 << TUNNEL_BITS),
            exceptions: Exceptions::default(),
        }
    }

    /// Whether packets for the router itself may be for a tunnel.
    #[inline(always)]
    pub(crate) fn receives(&self) -> bool {
        self.receivers.load(Relaxed) != 0
    }

    /// Whether there are so many tunnels that they are not all in the cache.
    #[inline(always)]
    pub(crate) fn are_many(&self) -> bool {
        self.receivers.load(Relaxed) > MANY
    }

    /// Asks for the memory of the tunnels that packets go into, with this inside, and of those that others come out of:
    /// each by the place of its chain.
    #[inline(never)]
    pub(crate) fn prefetch(
        &self,
        into: impl Iterator<Item = TunnelId> + Clone,
        inside: Inside,
        out_of: impl Iterator<Item = usize> + Clone,
        (counters, guard): (&Counters, &Guard<'_>),
    ) {
        for place in out_of.clone() {
            prefetch(self.heads.as_ptr().wrapping_add(place & (CHAINS - 1)));
        }
        self.tunnels.prefetch_slots(into.clone().map(|id| id.0));
        let first = |place: usize| self.heads.get(place)?.load(Relaxed).checked_sub(1);
        self.tunnels.prefetch_slots(out_of.clone().filter_map(first));
        for id in out_of.clone().filter_map(first) {
            prefetch(self.nexts.as_ptr().wrapping_add(id as usize));
            if let Some(tunnel) = self.tunnels.get(id, guard) {
                prefetch(&raw const tunnel.found);
                prefetch(&raw const tunnel.link);
            }
        }
        for id in into.clone() {
            if let Some(tunnel) = self.tunnels.get(id.0, guard) {
                let form = tunnel.form(inside);
                prefetch(&raw const form.open);
                prefetch(form.template.as_ptr().wrapping_add(TEMPLATE - 1));
            }
        }
        for tunnel in out_of.filter_map(first).filter_map(|id| self.tunnels.get(id, guard)) {
            counters.prefetch_link(tunnel.link, Direction::Receive);
        }
        for tunnel in into.filter_map(|id| self.tunnels.get(id.0, guard)) {
            counters.prefetch_link(tunnel.form(inside).link, Direction::Transmit);
        }
    }

    /// The place of the chain in which the tunnel is that has the addresses of an IPv4 packet, which it is for and from.
    #[inline(always)]
    pub(crate) fn place4(kind: TunnelKind, local: u32, remote: u32) -> usize {
        chain(kind, Class::Both, Arrival { local: local.into(), remote: remote.into(), key: None })
    }

    #[inline(always)]
    pub(crate) fn tunnel<'g>(&'g self, id: TunnelId, guard: &'g Guard<'_>) -> Option<&'g StoredTunnel> {
        self.tunnels.get(id.0, guard)
    }

    /// The tunnel that a link is.
    #[inline]
    pub(crate) fn of_link(&self, link: LinkId) -> Option<TunnelId> {
        Some(TunnelId(self.of_link.get(link.0 as usize)?.load(Relaxed).checked_sub(1)?))
    }

    /// The tunnel of this kind that has both addresses of an outer packet, if it is alone in its chain; `None`: see
    /// [`Self::find`].
    #[inline(always)]
    pub(crate) fn find_plain<'g>(
        &'g self,
        kind: TunnelKind,
        arrival: Arrival,
        ingress: Ingress,
        guard: &'g Guard<'_>,
    ) -> Option<&'g StoredTunnel> {
        let arrival = normal(kind, arrival);
        let id = self.heads.get(chain(kind, Class::Both, arrival))?.load(Relaxed).checked_sub(1)?;
        if self.nexts.get(id as usize)?.load(Relaxed) != 0 {
            return None;
        }
        let tunnel = self.tunnels.get(id, guard)?;
        let (class, found) = tunnel.found?;
        let is = tunnel.kind == kind && class == Class::Both && found == arrival && tunnel.up;
        (is && (!tunnel.bound || ingress.is(tunnel.config.bound))).then_some(tunnel)
    }

    /// The tunnel of this kind that an outer packet is for.
    #[inline(never)]
    pub(crate) fn find<'g>(
        &'g self,
        kind: TunnelKind,
        arrival: Arrival,
        ingress: Ingress,
        guard: &'g Guard<'_>,
    ) -> Option<(TunnelId, &'g StoredTunnel)> {
        let arrival = normal(kind, arrival);
        let order = if kind == TunnelKind::Ip6tnl { Class::ORDER6 } else { Class::ORDER };
        let mut candidate = None;
        for class in order {
            if self.counts[kind as usize][class as usize].load(Relaxed) == 0 {
                continue;
            }
            if matches!(class, Class::External | Class::Fallback) && candidate.is_some() {
                break;
            }
            let seen = class.seen(arrival);
            let mut next = self.heads.get(chain(kind, class, seen)).map_or(0, |head| head.load(Relaxed));
            while let Some(id) = next.checked_sub(1) {
                next = self.nexts.get(id as usize).map_or(0, |next| next.load(Relaxed));
                let Some(tunnel) = self.tunnels.get(id, guard) else { continue };
                let is = tunnel.up && tunnel.kind == kind && tunnel.found == Some((class, seen));
                if !is {
                    continue;
                }
                let here = ingress.is(tunnel.config.bound);
                if here {
                    return Some((TunnelId(id), tunnel));
                }
                // `ip_tunnel_lookup` and `ip6_tnl_lookup` take one that is bound elsewhere if there is no better one,
                // `ipip6_tunnel_lookup` does not.
                if kind != TunnelKind::Sit && candidate.is_none() {
                    candidate = Some((TunnelId(id), tunnel));
                }
            }
        }
        candidate
    }

    /// What is in a datagram for a port of foo-over-UDP that takes all of them; `None`: see [`Self::find_port`].
    #[inline(always)]
    pub(crate) fn plain_port(
        &self,
        port: u16,
        ipv6: bool,
        destination: u128,
        guard: &Guard<'_>,
    ) -> Option<FouPayload> {
        let id = self.port_heads.get(usize::from(port))?.load(Relaxed).checked_sub(1)?;
        if self.port_nexts.get(id as usize)?.load(Relaxed) != 0 {
            return None;
        }
        let fou = self.ports.get(id, guard)?;
        let local = bits(fou.local);
        let all = (local == 0 || local == destination) && fou.peer.is_none() && fou.bound.is_none();
        (all && fou.port == port && fou.ipv6 == ipv6).then_some(fou.payload)
    }

    /// The port of foo-over-UDP that a datagram from `source` to `destination` is for: of several the one that says
    /// most (`compute_score`).
    pub(crate) fn find_port(
        &self,
        (source, source_port): (IpAddr, u16),
        (destination, port): (IpAddr, u16),
        ingress: Ingress,
        guard: &Guard<'_>,
    ) -> Option<FouPayload> {
        let mut best = None;
        let mut next = self.port_heads.get(usize::from(port))?.load(Relaxed);
        while let Some(id) = next.checked_sub(1) {
            next = self.port_nexts.get(id as usize).map_or(0, |next| next.load(Relaxed));
            let Some(fou) = self.ports.get(id, guard) else { continue };
            let is = fou.port == port
                && fou.ipv6 == source.is_ipv6()
                && (fou.local.is_unspecified() || fou.local == destination)
                && fou.peer.is_none_or(|peer| peer == (source, source_port))
                && ingress.is(fou.bound);
            let score = u32::from(!fou.local.is_unspecified())
                + 2 * u32::from(fou.peer.is_some())
                + u32::from(fou.bound.is_some());
            if is && best.is_none_or(|(other, _)| score > other) {
                best = Some((score, fou.payload));
            }
        }
        best.map(|(_, payload)| payload)
    }

    /// A tunnel that sends from `local` to `remote` by this IP protocol, over UDP to this port.
    pub(crate) fn find_end<'g>(
        &'g self,
        (local, remote): (IpAddr, IpAddr),
        protocol: u8,
        port: u16,
        guard: &'g Guard<'_>,
    ) -> Option<&'g StoredTunnel> {
        let mut next = self.ends.get(end_of(remote)).map_or(0, |end| end.load(Relaxed));
        while let Some(id) = next.checked_sub(1) {
            next = self.end_nexts.get(id as usize).map_or(0, |next| next.load(Relaxed));
            let Some(tunnel) = self.tunnels.get(id, guard) else { continue };
            let config = &tunnel.config;
            let sends = match (config.udp, config.kind.has_gre()) {
                (Some(udp), _) => protocol == protocol::UDP && port == udp.destination_port,
                (None, true) => protocol == protocol::GRE,
                (None, false) => matches!(protocol, protocol::IPV4 | protocol::IPV6 | protocol::MPLS),
            };
            if sends && config.remote == remote && (config.local.is_unspecified() || config.local == local) {
                return Some(tunnel);
            }
        }
        None
    }

    /// Puts a tunnel where what comes in for it finds it, and what is told of its way.
    fn link_in(&self, id: u32, tunnel: &Tunnel) {
        if let (Some(end), Some(next)) =
            (self.ends.get(end_of(tunnel.remote)), self.end_nexts.get(id as usize))
        {
            next.store(end.load(Relaxed), Relaxed);
            end.store(id + 1, std::sync::atomic::Ordering::Release);
        }
        if tunnel.role != TunnelRole::Route
            && let Some(slot) = self.of_link.get(tunnel.link.0 as usize)
        {
            slot.store(id + 1, Relaxed);
        }
        let Some((class, seen)) = found_by(tunnel) else { return };
        let (Some(head), Some(next)) =
            (self.heads.get(chain(tunnel.kind, class, seen)), self.nexts.get(id as usize))
        else {
            return;
        };
        next.store(head.load(Relaxed), Relaxed);
        head.store(id + 1, std::sync::atomic::Ordering::Release);
        self.counts[tunnel.kind as usize][class as usize].fetch_add(1, Relaxed);
        self.receivers.fetch_add(1, Relaxed);
    }

    /// Takes it out again. Its own `next` stays, for those who are there.
    fn link_out(&self, id: u32, tunnel: &Tunnel) {
        if let Some(end) = self.ends.get(end_of(tunnel.remote)) {
            take_out(end, &self.end_nexts, id);
        }
        if let Some(slot) = self.of_link.get(tunnel.link.0 as usize)
            && slot.load(Relaxed) == id + 1
        {
            slot.store(0, Relaxed);
        }
        let Some((class, seen)) = found_by(tunnel) else { return };
        let Some(head) = self.heads.get(chain(tunnel.kind, class, seen)) else { return };
        if take_out(head, &self.nexts, id) {
            self.counts[tunnel.kind as usize][class as usize].fetch_sub(1, Relaxed);
            self.receivers.fetch_sub(1, Relaxed);
        }
    }

    fn link_port_in(&self, id: u32, port: &FouPort) {
        let heads = self.port_heads.get(usize::from(port.port));
        let (Some(head), Some(next)) = (heads, self.port_nexts.get(id as usize)) else { return };
        next.store(head.load(Relaxed), Relaxed);
        head.store(id + 1, std::sync::atomic::Ordering::Release);
        self.receivers.fetch_add(1, Relaxed);
    }

    fn link_port_out(&self, id: u32, port: &FouPort) {
        if let Some(head) = self.port_heads.get(usize::from(port.port))
            && take_out(head, &self.port_nexts, id)
        {
            self.receivers.fetch_sub(1, Relaxed);
        }
    }
}

/// Takes `id` out of a chain, if it is there.
fn take_out(head: &AtomicU32, nexts: &[AtomicU32], id: u32) -> bool {
    let own = nexts.get(id as usize).map_or(0, |next| next.load(Relaxed));
    let mut place = head;
    loop {
        let at = place.load(Relaxed);
        if at == id + 1 {
            place.store(own, Relaxed);
            return true;
        }
        match at.checked_sub(1).and_then(|at| nexts.get(at as usize)) {
            Some(next) => place = next,
            None => return false,
        }
    }
}

/// Which tunnels each link has: those of its routes too.
#[derive(Default)]
pub(super) struct TunnelsOfLinks(BTreeMap<LinkId, Vec<u32>>);

impl TunnelTable {
    /// Puts a tunnel, or none, in the place of what `id` names. Whether there was one.
    pub(super) fn put(
        &self,
        id: u32,
        tunnel: Option<(Tunnel, Option<&Link>)>,
        links: &mut TunnelsOfLinks,
        retirer: &mut Retirer,
    ) -> bool {
        let old = self.tunnels.peek(id, retirer);
        let before = old.map(|old| (old.config.clone(), Arc::clone(&old.sequence)));
        let sequence = before.as_ref().map_or_else(Arc::default, |(_, sequence)| Arc::clone(sequence));
        let stays = matches!((&before, &tunnel), (Some((old, _)), Some((new, _)))
            if found_by(old) == found_by(new) && old.remote == new.remote && old.kind == new.kind && old.link == new.link && old.role == new.role);
        if let Some((old, _)) = &before
            && !stays
        {
            self.link_out(id, old);
            if let Some(tunnels) = links.0.get_mut(&old.link) {
                tunnels.retain(|other| *other != id);
            }
        }
        let stored = tunnel.map(|(tunnel, link)| StoredTunnel::new(tunnel, link, sequence));
        let linked = stored.as_ref().filter(|_| !stays).map(|stored| stored.config.clone());
        self.tunnels.replace(id, stored, retirer);
        if let Some(tunnel) = linked {
            self.link_in(id, &tunnel);
            links.0.entry(tunnel.link).or_default().push(id);
        }
        before.is_some()
    }

    /// Takes note that a link has changed, or gone.
    pub(super) fn link_changed(
        &self,
        id: LinkId,
        link: Option<&Link>,
        links: &TunnelsOfLinks,
        retirer: &mut Retirer,
    ) {
        for tunnel in links.0.get(&id).into_iter().flatten() {
            let Some(old) = self.tunnels.peek(*tunnel, retirer) else { continue };
            let new = StoredTunnel::new(old.config.clone(), link, Arc::clone(&old.sequence));
            self.tunnels.replace(*tunnel, Some(new), retirer);
        }
    }

    /// Puts a port, or none, in the place of what `id` names. Whether there was one.
    pub(super) fn put_port(&self, id: u32, port: Option<FouPort>, retirer: &mut Retirer) -> bool {
        let before = self.ports.peek(id, retirer).copied();
        if let Some(old) = &before {
            self.link_port_out(id, old);
        }
        self.ports.replace(id, port, retirer);
        if let Some(port) = &port {
            self.link_port_in(id, port);
        }
        before.is_some()
    }
}
