//! The tunnels of a router as workers find them: by id, by device, and by what a received packet says.

mod changes;

pub(crate) use changes::Changed;
pub(super) use changes::TunnelsOfLinks;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use strum::EnumCount as _;
use underpass_packet::protocol;
use zerocopy::FromZeros;

use super::tunnel_match::{CHAINS, Class, Ingress, TunnelMatch, bits, chain, end_of, normal};
use super::{
    Exceptions, FouPayload, FouPort, Guard, InnerProtocol, LinkId, PrecomputedDecap, PrecomputedEncap,
    StoredTunnel, TunnelId, TunnelKind,
};
use crate::in_kernel::region::Region;
use crate::publish::{Retirer, Slab, prefetch};

/// More tunnels than these are asked for before they are read. A thousand are not: by their turn, out of them, that takes 91
/// clocks instead of 112 (`ipip-decap-1000`). Where it pays again is not measured.
const MANY: u32 = 2048;
/// Bits of a [`TunnelId`].
const TUNNEL_BITS: u32 = 20;
/// Bits of a [`super::FouPortId`].
const FOU_BITS: u32 = 17;
fn zeroed(len: usize) -> Box<[AtomicU32]> {
    <[AtomicU32]>::new_box_zeroed_with_elems(len).unwrap_or_default()
}

/// The bit of a protocol of packets inside others, over IPv4 or over IPv6; 0 for any other.
pub const fn inside_bit(protocol: u8, ipv6: bool) -> u32 {
    let bit = match protocol {
        protocol::IPV4 => 1,
        protocol::IPV6 => 2,
        protocol::GRE => 4,
        protocol::MPLS => 8,
        _ => 0,
    };
    if ipv6 { bit << 4 } else { bit }
}

/// All tunnels and ports of foo-over-UDP.
pub(crate) struct TunnelTable {
    pub(super) tunnels: Slab<StoredTunnel>,
    /// By tunnel, the outer headers of those that are precomputed: for IPv4 inside, and for IPv6.
    precomputed: [Slab<PrecomputedEncap>; 2],
    pub(super) ports: Slab<FouPort>,
    /// The tunnel of a link, its id + 1.
    of_link: Box<[AtomicU32]>,
    /// By chain, the end of its first tunnel, if that has both addresses and little is looked at.
    precomputed_decaps: Slab<PrecomputedDecap>,
    /// The first tunnel of each chain, its id + 1, and the next of each.
    heads: Box<[AtomicU32]>,
    nexts: Box<[AtomicU32]>,
    /// How many tunnels each class of each kind has.
    counts: [[AtomicU32; Class::COUNT]; TunnelKind::COUNT],
    /// How many of them are bound to where packets come in.
    bounds: [[AtomicU32; Class::COUNT]; TunnelKind::COUNT],
    /// The first port of FOU of each UDP port, its id + 1, and the next of each.
    port_heads: Box<[AtomicU32]>,
    port_nexts: Box<[AtomicU32]>,
    /// By UDP port and family, one that stands for all there, its id + 1: they are alike, and take all datagrams.
    plain_ports: Box<[AtomicU32]>,
    /// How many tunnels and ports there are that something may come in for.
    receivers: AtomicU32,
    /// How many of them are ports.
    listeners: AtomicU32,
    /// Of the protocols of packets inside others those that the host beside the router may take: [`inside_bit`].
    host: AtomicU32,
    /// The first tunnel of each chain by where it goes, its id + 1, and the next of each.
    ends: Box<[AtomicU32]>,
    end_nexts: Box<[AtomicU32]>,
    pub(crate) exceptions: Exceptions,
    /// What is known of ways that no tunnel need use, for the router's own messages. Apart, so that whoever sends such
    /// reports takes no place from those about tunnels.
    pub(crate) own_exceptions: Exceptions,
}

impl TunnelTable {
    pub(super) fn new(links: usize, retirer: &Retirer, region: Option<&Region>) -> Self {
        Self {
            tunnels: Slab::new(TUNNEL_BITS, retirer),
            precomputed: std::array::from_fn(|_| Slab::new(TUNNEL_BITS, retirer)),
            ports: Slab::new(FOU_BITS, retirer),
            of_link: zeroed(links),
            precomputed_decaps: Slab::new(CHAINS.trailing_zeros() + 1, retirer),
            heads: zeroed(CHAINS),
            nexts: zeroed(1 << TUNNEL_BITS),
            counts: Default::default(),
            bounds: Default::default(),
            port_heads: zeroed(1 << 16),
            port_nexts: zeroed(1 << FOU_BITS),
            plain_ports: zeroed(2 << 16),
            receivers: AtomicU32::new(0),
            listeners: AtomicU32::new(0),
            host: AtomicU32::new(u32::MAX),
            ends: zeroed(CHAINS),
            end_nexts: zeroed(1 << TUNNEL_BITS),
            exceptions: Exceptions::new(region),
            own_exceptions: Exceptions::new(None),
        }
    }

    /// Whether packets for the router itself may be for a tunnel.
    #[inline(always)]
    pub(crate) fn receives(&self) -> bool {
        self.receivers.load(Relaxed) != 0
    }

    /// Whether there are ports of foo-over-UDP.
    pub(crate) fn takes_datagrams(&self) -> bool {
        self.listeners.load(Relaxed) != 0
    }

    /// Whether the host beside the router may take packets inside others of this protocol.
    pub(crate) fn host_takes(&self, protocol: u8, ipv6: bool) -> bool {
        self.host.load(Relaxed) & inside_bit(protocol, ipv6) != 0
    }

    pub(super) fn set_host(&self, protocols: u32) {
        self.host.store(protocols, Relaxed);
    }

    /// Whether there are so many tunnels that they are not all in the cache.
    #[inline(always)]
    pub(crate) fn are_many(&self) -> bool {
        self.receivers.load(Relaxed) > MANY
    }

    /// Prefetches the chain of tunnels at a place.
    #[inline(always)]
    pub(crate) fn prefetch_bucket(&self, place: usize) {
        self.precomputed_decaps.prefetch_slots(std::iter::once(place as u32));
    }

    /// Prefetches the tunnel that a packet is about to come out of, the first of the chain at a place.
    #[inline(always)]
    pub(crate) fn prefetch_decap<'g>(
        &'g self,
        place: usize,
        guard: &'g Guard<'_>,
    ) -> Option<&'g PrecomputedDecap> {
        let end = self.precomputed_decaps.get(place as u32, guard)?;
        prefetch(end);
        Some(end)
    }

    /// The place of the chain in which the tunnel is that has the addresses of an IPv4 packet, which it is for and from.
    #[inline(always)]
    pub(crate) fn place4(kind: TunnelKind, local: u32, remote: u32) -> usize {
        chain(kind, Class::Both, TunnelMatch { local: local.into(), remote: remote.into(), key: None })
    }

    #[inline(always)]
    pub(crate) fn tunnel<'g>(&'g self, id: TunnelId, guard: &'g Guard<'_>) -> Option<&'g StoredTunnel> {
        self.tunnels.get(id.0, guard)
    }

    /// The outer header of a tunnel for what is inside, if it is precomputed.
    #[inline(always)]
    pub(crate) fn precomputed<'g>(
        &'g self,
        id: TunnelId,
        inside: InnerProtocol,
        guard: &'g Guard<'_>,
    ) -> Option<&'g PrecomputedEncap> {
        let [inside4, inside6] = &self.precomputed;
        match inside {
            InnerProtocol::Ip4 => inside4.get(id.0, guard),
            InnerProtocol::Ip6 => inside6.get(id.0, guard),
            InnerProtocol::Mpls | InnerProtocol::Frame => None,
        }
    }

    /// The tunnel that a link is.
    #[inline]
    pub(crate) fn of_link(&self, link: LinkId) -> Option<TunnelId> {
        Some(TunnelId(self.of_link.get(link.0 as usize)?.load(Relaxed).checked_sub(1)?))
    }

    /// The end of the tunnel of this kind that an outer packet is for, if that has both its addresses and is the first of
    /// its chain; `None`: see [`Self::find`].
    #[inline(always)]
    pub(crate) fn precomputed_decap<'g>(
        &'g self,
        kind: TunnelKind,
        tunnel_match: TunnelMatch,
        ingress: Ingress,
        guard: &'g Guard<'_>,
    ) -> Option<&'g PrecomputedDecap> {
        let tunnel_match = normal(kind, tunnel_match);
        let end = self.precomputed_decaps.get(chain(kind, Class::Both, tunnel_match) as u32, guard)?;
        end.is_for(kind, tunnel_match, ingress).then_some(end)
    }

    /// The tunnel of this kind that an outer packet is for.
    #[inline(never)]
    pub(crate) fn find<'g>(
        &'g self,
        kind: TunnelKind,
        tunnel_match: TunnelMatch,
        ingress: Ingress,
        guard: &'g Guard<'_>,
    ) -> Option<(TunnelId, &'g StoredTunnel)> {
        let order = match kind {
            TunnelKind::Ip6tnl => &Class::ORDER6,
            TunnelKind::Ip6gretap if tunnel_match.key.unwrap_or(0) == 0 => &Class::ORDER6_KEYLESS,
            _ => &Class::ORDER,
        };
        self.find_of(order, (kind, tunnel_match), ingress, guard)
    }

    /// The `external` tunnel of this kind, which takes what no other does.
    #[cold]
    pub(crate) fn external<'g>(
        &'g self,
        kind: TunnelKind,
        tunnel_match: TunnelMatch,
        ingress: Ingress,
        guard: &'g Guard<'_>,
    ) -> Option<&'g StoredTunnel> {
        self.find_of(&[Class::External], (kind, tunnel_match), ingress, guard).map(|(_, tunnel)| tunnel)
    }

    #[inline(always)]
    fn find_of<'g>(
        &'g self,
        order: &[Class],
        (kind, tunnel_match): (TunnelKind, TunnelMatch),
        ingress: Ingress,
        guard: &'g Guard<'_>,
    ) -> Option<(TunnelId, &'g StoredTunnel)> {
        let tunnel_match = normal(kind, tunnel_match);
        // Of those with both addresses `ip_tunnel_lookup` and `ip6_tnl_lookup` take the one that was added first,
        // `ip6gre_tunnel_lookup` the one that was added last.
        let first_added = !matches!(kind, TunnelKind::Ip6gre | TunnelKind::Ip6gretap);
        let mut candidate: Option<(TunnelId, &StoredTunnel)> = None;
        for &class in order {
            // One that takes it is there: only one that is bound to where it came in is better, whatever addresses it has.
            let better = if candidate.is_some() { &self.bounds } else { &self.counts };
            if better[kind as usize][class as usize].load(Relaxed) == 0 {
                continue;
            }
            let last = match class {
                Class::External | Class::Fallback => true,
                // Linux: `tnls_wc`, of which it takes the first.
                Class::Neither => kind == TunnelKind::Ip6tnl,
                Class::Both | Class::Local | Class::Remote => false,
            };
            if last && candidate.is_some() {
                break;
            }
            let seen = class.seen(tunnel_match);
            let mut next = self.heads.get(chain(kind, class, seen)).map_or(0, |head| head.load(Relaxed));
            while let Some(id) = next.checked_sub(1) {
                next = self.nexts.get(id as usize).map_or(0, |next| next.load(Relaxed));
                let Some(tunnel) = self.tunnels.get(id, guard) else { continue };
                let is = tunnel.up && tunnel.kind == kind && tunnel.found == Some((class, seen));
                if !is {
                    continue;
                }
                let bound = tunnel.config.bound;
                // One that is bound to the link comes before all others. For sit (`ipip6_tunnel_lookup`) one that is
                // bound to none is as good, and one that is bound elsewhere is none, if it has an address.
                let meant = match kind {
                    TunnelKind::Sit => class == Class::Neither || ingress.is(bound),
                    _ => bound.is_some() && ingress.is_device(bound),
                };
                if meant {
                    return Some((TunnelId(id), tunnel));
                }
                let takes = candidate.is_none() || class == Class::Both && first_added;
                if kind != TunnelKind::Sit && takes {
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
        let place = 2 * usize::from(port) + usize::from(ipv6);
        let id = self.plain_ports.get(place)?.load(Relaxed).checked_sub(1)?;
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
                && ingress.is(fou.bound)
                // Linux: `udp_sk_bound_dev_eq`, by which what comes in by a VRF is for no socket outside of it.
                && (fou.bound.is_some() || !ingress.in_vrf || fou.payload.is_of_device());
            let score = u32::from(!fou.local.is_unspecified())
                + 2 * u32::from(fou.peer.is_some())
                + u32::from(fou.bound.is_some());
            if is && best.is_none_or(|(other, _)| score > other) {
                best = Some((score, fou.payload));
            }
        }
        best.map(|(_, payload)| payload)
    }

    /// A tunnel over IPv4 that is up and sends to `remote`, or to anywhere.
    pub(crate) fn find_remote<'g>(
        &'g self,
        remote: Ipv4Addr,
        guard: &'g Guard<'_>,
    ) -> Option<&'g StoredTunnel> {
        [remote, Ipv4Addr::UNSPECIFIED].into_iter().find_map(|remote| {
            let mut next = self.ends.get(end_of(remote.into())).map_or(0, |end| end.load(Relaxed));
            while let Some(id) = next.checked_sub(1) {
                next = self.end_nexts.get(id as usize).map_or(0, |next| next.load(Relaxed));
                let Some(tunnel) = self.tunnels.get(id, guard) else { continue };
                if tunnel.up && tunnel.config.remote == IpAddr::V4(remote) {
                    return Some(tunnel);
                }
            }
            None
        })
    }

    /// A tunnel that is up and sends from `local` to `remote` over UDP, to this port: one to this address, or else one to
    /// any.
    pub(crate) fn find_end<'g>(
        &'g self,
        (local, remote): (IpAddr, IpAddr),
        port: u16,
        guard: &'g Guard<'_>,
    ) -> Option<&'g StoredTunnel> {
        let any = match remote {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        [remote, any].into_iter().find_map(|remote| {
            let mut next = self.ends.get(end_of(remote)).map_or(0, |end| end.load(Relaxed));
            while let Some(id) = next.checked_sub(1) {
                next = self.end_nexts.get(id as usize).map_or(0, |next| next.load(Relaxed));
                let Some(tunnel) = self.tunnels.get(id, guard) else { continue };
                let config = &tunnel.config;
                let sends = config.udp.is_some_and(|udp| port == udp.destination_port);
                let ends =
                    config.remote == remote && (config.local.is_unspecified() || config.local == local);
                if tunnel.up && sends && ends {
                    return Some(tunnel);
                }
            }
            None
        })
    }
}
