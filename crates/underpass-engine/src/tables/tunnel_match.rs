//! What a received packet says of its tunnel, and in which chain the tunnel then is.

use std::net::IpAddr;

use strum::EnumCount as _;

use super::{LinkId, LookupId, Tunnel, TunnelBound, TunnelKind, TunnelRole};

/// An address as a number; 0: unspecified.
pub(super) fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// What a tunnel is found by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TunnelMatch {
    /// The address that the outer packet is for, as a number.
    pub(crate) local: u128,
    /// Where it comes from.
    pub(crate) remote: u128,
    /// The key of its GRE header.
    pub(crate) key: Option<u32>,
}

/// Which addresses a tunnel has, in the order of Linux's look-up over IPv4 (`ip_tunnel_lookup`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::EnumCount)]
pub(super) enum Class {
    Both,
    Remote,
    Local,
    Neither,
    External,
    Fallback,
}

impl Class {
    /// The order over IPv4, and over IPv6 (`ip6_tnl_lookup`; `ip6gre_tunnel_lookup` has that of IPv4).
    pub(super) const ORDER: [Self; Self::COUNT] =
        [Self::Both, Self::Remote, Self::Local, Self::Neither, Self::External, Self::Fallback];
    pub(super) const ORDER6: [Self; Self::COUNT] =
        [Self::Both, Self::Local, Self::Remote, Self::Neither, Self::External, Self::Fallback];

    /// The order over IPv6 for frames without a key: an `external` tunnel is in the list of those that have no addresses, and before
    /// them, as none is added behind it (`tunnels_wc`).
    pub(super) const ORDER6_KEYLESS: [Self; Self::COUNT] =
        [Self::Both, Self::Remote, Self::Local, Self::External, Self::Neither, Self::Fallback];

    pub(super) fn of(tunnel: &Tunnel) -> Option<Self> {
        match (tunnel.role, tunnel.local.is_unspecified(), tunnel.remote.is_unspecified()) {
            (TunnelRole::Route { .. }, ..) => None,
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
    pub(super) fn seen(self, tunnel_match: TunnelMatch) -> TunnelMatch {
        match self {
            Self::Both => tunnel_match,
            Self::Remote => TunnelMatch { local: 0, ..tunnel_match },
            Self::Local => TunnelMatch { remote: 0, ..tunnel_match },
            Self::Neither => TunnelMatch { local: 0, remote: 0, ..tunnel_match },
            Self::External | Self::Fallback => TunnelMatch { local: 0, remote: 0, key: None },
        }
    }
}

/// What a tunnel is found by, and the place of its chain.
pub(super) fn found_by(tunnel: &Tunnel) -> Option<(Class, TunnelMatch)> {
    if tunnel.kind == TunnelKind::Srv6L2 {
        return None;
    }
    // What comes in for an external one the port says: `FouPayload::Device`.
    let external = tunnel.role == TunnelRole::External && tunnel.kind.is_over_udp();
    if external || matches!(tunnel.role, TunnelRole::Route { .. }) {
        return None;
    }
    if let (Some(vxlan), Some(udp)) = (&tunnel.vxlan, tunnel.udp) {
        return Some((Class::Both, of_vxlan(vxlan.vni, udp.destination_port)));
    }
    if let (Some(geneve), Some(udp)) = (&tunnel.geneve, tunnel.udp) {
        return Some((Class::Both, of_geneve(geneve.vni, udp.destination_port, tunnel.remote)));
    }
    let class = Class::of(tunnel)?;
    let key = tunnel.receive.key.filter(|_| tunnel.kind.has_gre());
    if class == Class::Both && tunnel.kind.has_gre() && tunnel.remote.is_multicast() {
        // Of a group each sender is an end. Linux: `ip_tunnel_lookup`, `ip6gre_tunnel_lookup`.
        let group = TunnelMatch { local: bits(tunnel.remote), remote: 0, key };
        return Some((Class::Local, normal(tunnel.kind, group)));
    }
    let tunnel_match = TunnelMatch { local: bits(tunnel.local), remote: bits(tunnel.remote), key };
    Some((class, class.seen(normal(tunnel.kind, tunnel_match))))
}

/// What a VXLAN is found by: its network and its port, whatever addresses a datagram has.
pub(crate) const fn of_vxlan(vni: u32, port: u16) -> TunnelMatch {
    TunnelMatch { local: port as u128, remote: 0, key: Some(vni) }
}

/// What a Geneve device is found by: its network, its port and where a datagram is from. Linux: `geneve_lookup`.
pub(crate) fn of_geneve(vni: u32, port: u16, remote: IpAddr) -> TunnelMatch {
    TunnelMatch { local: port.into(), remote: bits(remote), key: Some(vni) }
}

/// Over IPv6 no key is key 0, as in Linux.
#[inline(always)]
pub(super) fn normal(kind: TunnelKind, tunnel_match: TunnelMatch) -> TunnelMatch {
    match kind {
        TunnelKind::Ip6gre | TunnelKind::Ip6gretap => {
            TunnelMatch { key: Some(tunnel_match.key.unwrap_or(0)), ..tunnel_match }
        }
        _ => tunnel_match,
    }
}

/// Chains that tunnels are found in.
pub(super) const CHAINS: usize = 1 << 16;

/// Which chain a tunnel is in.
#[inline(always)]
pub(super) fn chain(
    kind: TunnelKind,
    class: Class,
    TunnelMatch { local, remote, key }: TunnelMatch,
) -> usize {
    let fold = |address: u128| (address as u64) ^ ((address >> 64) as u64).rotate_left(23);
    let addresses = fold(remote) ^ fold(local).rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15;
    let other =
        u64::from(key.map_or(0, |key| key ^ 0x5bd1_e995)) ^ (kind as u64) << 40 ^ (class as u64) << 48;
    let product = u128::from(addresses) * u128::from(other ^ 0xd6e8_feb8_6659_fd93);
    ((product >> 64) as u64 ^ product as u64) as usize >> 7 & (CHAINS - 1)
}

/// Which chain a tunnel is in by where it goes.
pub(super) fn end_of(remote: IpAddr) -> usize {
    chain(TunnelKind::Ipip, Class::Remote, TunnelMatch { local: 0, remote: bits(remote), key: None })
}

/// Where an outer packet has come in.
#[derive(Clone, Copy)]
pub(crate) struct Ingress {
    pub(crate) link: LinkId,
    pub(crate) instance: LookupId,
    /// Whether the link is in a VRF.
    pub(crate) in_vrf: bool,
}

impl Ingress {
    /// Whether something bound there is meant.
    #[inline(always)]
    pub(super) fn is(self, bound: Option<TunnelBound>) -> bool {
        match bound {
            None => true,
            Some(TunnelBound::Link(link)) => link == self.link,
            Some(TunnelBound::Instance(instance)) => instance == self.instance,
        }
    }

    /// The same of what looks at the device alone, which is the VRF's where the link is in one: Linux's `vrf_ip_rcv`.
    #[inline(always)]
    pub(super) fn is_device(self, bound: Option<TunnelBound>) -> bool {
        self.is(bound) && !(matches!(bound, Some(TunnelBound::Link(_))) && self.in_vrf)
    }
}
