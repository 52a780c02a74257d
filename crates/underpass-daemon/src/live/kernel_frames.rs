//! Keeps the set of frames that the kernel keeps ([`KernelFrames`]) up to date with the router: its addresses, its tunnels and
//! ports of foo-over-UDP, and the kernel's VLAN devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    io,
    net::IpAddr,
};

use underpass_control::{Link, Router, Tunnel};
use underpass_netlink::{fou, tunnel};
use underpass_packet::protocol;
use underpass_port::kernel_frames::{Claim, KernelFrames, OfDevice, Vlan};

/// The set that the ports act on, and what has been put into it so far.
#[derive(Default)]
pub struct KernelFramesUpdater {
    frames: KernelFrames,
    /// Addresses of the kernel's, with their domains.
    addresses: BTreeSet<(u32, IpAddr)>,
    /// What of that tunnels and ports of foo-over-UDP claim.
    claims: BTreeSet<Claim>,
    /// The VLANs of the kernel's devices.
    vlans: BTreeSet<Vlan>,
    /// The devices whose frames workers get, by interface index.
    devices: BTreeMap<u32, OfDevice>,
}

impl KernelFramesUpdater {
    /// The set of frames itself.
    pub fn frames(&self) -> &KernelFrames {
        &self.frames
    }

    /// Which domain a link belongs to, that of its VRF, whether it takes labels, and whether workers get `all` of its
    /// frames.
    pub fn follow_device(&mut self, router: &Router, index: u32, all: bool) {
        let now = OfDevice { domain: router.domain_of(index), labels: router.takes_labels(index), all };
        if self.devices.insert(index, now) != Some(now)
            && let Err(error) = self.frames.set_device(index, now)
        {
            tracing::error!("interface {index}: {error}");
        }
    }

    /// The kernel keeps all frames of a device.
    pub fn forget_device(&mut self, index: u32) {
        let _ = self.frames.remove_device(index);
        self.devices.remove(&index);
    }

    /// The same of a VLAN device of the router's: of what comes in by it, which workers find behind a tag, the kernel gets what
    /// it keeps.
    pub fn follow_inside(&mut self, router: &Router, index: u32) {
        let (domain, labels) = (router.domain_of(index), router.takes_labels(index));
        let now = OfDevice { domain, labels, all: false };
        if self.devices.insert(index, now) != Some(now) {
            self.frames.set_inside(index, now);
        }
    }

    /// There is no such VLAN device any more.
    pub fn forget_inside(&mut self, index: u32) {
        self.frames.remove_inside(index);
        self.devices.remove(&index);
    }

    /// The kernel keeps what is for its addresses.
    pub fn follow_addresses(&mut self, router: &Router) {
        let Self { frames, addresses, .. } = self;
        let add = |(domain, address)| frames.add_local(domain, address);
        let remove = |(domain, address)| frames.remove_local(domain, address);
        change(addresses, router.local_addresses(), add, remove);
    }

    /// The kernel keeps the frames of VLANs that it has devices for.
    pub fn follow_vlans(&mut self, router: &Router) {
        let devices = router.vlan_devices();
        let now = devices.map(|of| Vlan { ifindex: of.lower, protocol: of.protocol, id: of.id }).collect();
        let Self { frames, vlans, .. } = self;
        change(vlans, now, |vlan| frames.add_vlan(vlan), |vlan| frames.remove_vlan(vlan));
    }

    /// Workers get what tunnels and ports of foo-over-UDP take, although it is for an address of the kernel's.
    pub fn follow_claims(&mut self, router: &Router) {
        let of_tunnels = router.links().filter_map(|link| link.tunnel.as_deref()).flat_map(claims_of);
        let of_fou = router
            .fou_ports()
            .map(|port| (matches!(port.socket.addresses, fou::Addresses::V6 { .. }), port.socket.port));
        let opened = router.links().filter_map(Link::opened);
        let of_ports = of_fou.chain(opened.flat_map(|socket| {
            [false, true]
                .into_iter()
                .filter(move |six| socket.six.is_none_or(|only| only == *six))
                .map(move |six| (six, socket.port))
        }));
        let of_ports = of_ports.flat_map(|(ipv6, port)| {
            let claim = move |protocol, port| Claim { ipv6, protocol, port, quoted: false };
            // And all fragments, as only the first says which port it is for.
            [claim(protocol::UDP, port), claim(protocol::FRAGMENT, 0)]
        });
        let mut now: BTreeSet<Claim> = of_tunnels.chain(of_ports).collect();
        // Behind hop-by-hop options there may be what a tunnel takes, and among them traces to be filled in.
        if router.reads_options() || now.iter().any(|claim| claim.ipv6 && !claim.quoted) {
            now.insert(Claim { ipv6: true, protocol: protocol::HOP_BY_HOP, port: 0, quoted: false });
        }
        let Self { frames, claims, .. } = self;
        change(claims, now, |claim| frames.add_claim(claim), |claim| frames.remove_claim(claim));
    }
}

/// Adds what is new in a set, and then removes what is no longer in it.
fn change<T: Ord + Copy + Debug>(
    set: &mut BTreeSet<T>,
    now: BTreeSet<T>,
    add: impl Fn(T) -> io::Result<()>,
    remove: impl Fn(T) -> io::Result<()>,
) {
    for &new in now.difference(set) {
        if let Err(error) = add(new) {
            tracing::error!("{new:?}: {error}");
        }
    }
    for &old in set.difference(&now) {
        let _ = remove(old);
    }
    *set = now;
}

/// The protocols of what is inside tunnels of a kind: those that Linux's module for it takes.
pub(super) const fn protocols_of(kind: tunnel::Kind) -> &'static [u8] {
    use tunnel::Kind;
    match kind {
        Kind::Ipip => &[protocol::IPV4, protocol::MPLS],
        Kind::Sit => &[protocol::IPV6, protocol::IPV4, protocol::MPLS],
        Kind::Ip6Tnl => &[protocol::IPV4, protocol::IPV6, protocol::MPLS],
        Kind::Gre | Kind::GreTap | Kind::Ip6Gre | Kind::Ip6GreTap => &[protocol::GRE],
        Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp | Kind::Srv6L2 => &[],
    }
}

/// What a tunnel receives, and hears of what it has sent.
fn claims_of(tunnel: &Tunnel) -> impl Iterator<Item = Claim> {
    let kind = tunnel.parameters.kind;
    let protocols = protocols_of(kind);
    let claim = move |protocol, port, quoted| Claim { ipv6: kind.ipv6(), protocol, port, quoted };
    let datagrams = tunnel.encap.udp().map(|_| claim(protocol::UDP, tunnel.encap.destination_port, true));
    let parameters = &tunnel.parameters;
    let of_bare = parameters.bare.map(|bare| bare.port);
    let of_vxlan = parameters.vxlan.map(|vxlan| vxlan.port);
    let over_udp = of_bare.or(of_vxlan).or(parameters.geneve.map(|geneve| geneve.port));
    let (external, six) = (parameters.external, parameters.remote.is_ipv6());
    let own = over_udp.into_iter().flat_map(move |port| {
        let families = [false, true].into_iter().filter(move |ipv6| external || *ipv6 == six);
        families.map(move |ipv6| Claim { ipv6, protocol: protocol::UDP, port, quoted: true })
    });
    let plain =
        protocols.iter().flat_map(move |protocol| [false, true].map(|quoted| claim(*protocol, 0, quoted)));
    plain.chain(datagrams).chain(own)
}
