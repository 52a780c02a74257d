//! `RTM_NEWLINK` and `RTM_DELLINK`, as Linux's `rtnl_fill_ifinfo` writes them.

use underpass_engine::counters::Direction;
use underpass_netlink::bridge::{PortInTree, Shown};
use underpass_netlink::{Reply, tunnel};

use super::bridge::trees::{port_shown, shown};
use super::{Link, LinkKind};
use crate::tc::default_qdisc;
use crate::{Device, Router};

pub(super) const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
pub(super) const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;
pub(super) const IFLA_PERM_ADDRESS: u16 = 54;
const IFLA_INET6_FLAGS: u16 = 1;
pub(super) const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
pub(super) const IFLA_VRF_TABLE: u16 = 1;
pub(super) const IFLA_VRF_PORT_TABLE: u16 = 1;
/// `IF_READY`: IPv6 is working on the link.
const IF_READY: u32 = 0x8000_0000;

/// Packets and bytes of a link, for `IFLA_STATS64`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LinkCount {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub rx_dropped: u64,
    pub tx_errors: u64,
    pub tx_dropped: u64,
}

impl LinkCount {
    /// `struct rtnl_link_stats64`: 25 counters.
    pub fn stats64(&self) -> [u64; 25] {
        let mut stats = [0; 25];
        stats[..8].copy_from_slice(&[
            self.rx_packets,
            self.tx_packets,
            self.rx_bytes,
            self.tx_bytes,
            self.rx_errors,
            self.tx_errors,
            self.rx_dropped,
            self.tx_dropped,
        ]);
        stats
    }
}

/// `IFLA_STATS64` and `IFLA_STATS`.
pub(super) fn write_stats(reply: &mut Reply<'_>, count: LinkCount) {
    let stats = count.stats64();
    reply.align_64(libc::IFLA_PAD);
    let wide: Vec<u8> = stats.iter().flat_map(|n| n.to_ne_bytes()).collect();
    reply.attribute(libc::IFLA_STATS64, &wide);
    // struct rtnl_link_stats: the first 24 of them, cut to 32 bits.
    let narrow: Vec<u8> = stats[..24].iter().flat_map(|&n| (n as u32).to_ne_bytes()).collect();
    reply.attribute(libc::IFLA_STATS, &narrow);
}

/// `struct ifinfomsg`.
pub(super) fn header(link: &Link, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[2..4].copy_from_slice(&link.hardware().to_ne_bytes());
    header[4..8].copy_from_slice(&link.index.to_ne_bytes());
    header[8..12].copy_from_slice(&link.all_flags().to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// RFC 2863 `ifOperStatus`, as `IF_OPER_*`.
pub(super) fn operational_state(link: &Link, above: &Above) -> u8 {
    match link.kind {
        _ if !link.up() => 2,
        LinkKind::Loopback | LinkKind::Dummy | LinkKind::Ifb | LinkKind::Tunnel(_) => 0,
        // Linux: `default_operstate`.
        LinkKind::Vlan if !link.carrier && above.lower_is_down => 3,
        LinkKind::Vlan | LinkKind::Bridge if !link.carrier => 2,
        // Nobody has said anything of it yet.
        LinkKind::Bridge if link.carrier_changes == [0; 2] => 0,
        LinkKind::Vlan | LinkKind::Bridge | LinkKind::Port(_) | LinkKind::Kernel | LinkKind::Vrf { .. } => 6,
    }
}

/// What Linux queues packets of a link with.
fn queue(link: &Link) -> &'static str {
    let default = default_qdisc(link);
    link.qdisc.unwrap_or_else(|| default.map_or("noop", |default| default.name()))
}

/// Highest MTU, lowest first. 0 is no bound.
pub(super) fn mtu_bounds(link: &Link) -> (u32, u32) {
    match link.kind {
        LinkKind::Loopback | LinkKind::Dummy | LinkKind::Ifb => (0, 0),
        LinkKind::Tunnel(_) => link.tunnel.as_ref().map_or((0, 0), |tunnel| tunnel.mtu_bounds()),
        LinkKind::Port(_) | LinkKind::Kernel | LinkKind::Bridge => (68, 65535),
        LinkKind::Vlan => (0, 65535),
        LinkKind::Vrf { .. } => (1280, 65575),
    }
}

/// What is shown of a link that is known elsewhere: of what it is enslaved to, and of the stations of a bridge.
#[derive(Default)]
pub(crate) struct Above {
    /// The table of the VRF that it is enslaved to.
    vrf: Option<u32>,
    /// Where it is in the spanning tree of the bridge that it is a port of.
    port: Option<PortInTree>,
    /// What is shown of the bridge that it is.
    bridge: Option<Shown>,
    /// Whether the link below has no carrier.
    lower_is_down: bool,
}

impl Above {
    pub fn of(router: &Router, link: &Link) -> Self {
        Self {
            vrf: vrf_table_over(router, link),
            port: port_shown(router, link),
            bridge: link.bridge.as_ref().map(|bridge| shown(router, link.index, bridge)),
            lower_is_down: link
                .vlan
                .as_ref()
                .is_some_and(|vlan| router.links.get(vlan.lower).is_some_and(|lower| !lower.carrier)),
        }
    }

    /// What makes a link a port of a bridge: `IFLA_INFO_SLAVE_DATA` or `IFLA_PROTINFO`.
    pub(super) fn write_port(&self, reply: &mut Reply<'_>, link: &Link) {
        if let (Some(port), Some(tree)) = (&link.bridge_port, &self.port) {
            port.settings.write(reply, tree);
        }
    }
}

/// Writes all that is known of a link. `count`: its statistics, unless the client asked to skip them.
pub(crate) fn write_link(
    reply: &mut Reply<'_>,
    link: &Link,
    change: u32,
    count: Option<LinkCount>,
    above: &Above,
) {
    let (min_mtu, max_mtu) = mtu_bounds(link);
    let tso = if link.kind == LinkKind::Loopback { 524_280 } else { 65536 };
    reply.fixed(&header(link, change));
    reply.text(libc::IFLA_IFNAME, &link.name);
    reply.u32(libc::IFLA_TXQLEN, link.tx_queue_len);
    reply.u8(libc::IFLA_OPERSTATE, operational_state(link, above));
    reply.u8(libc::IFLA_LINKMODE, 0);
    reply.u32(libc::IFLA_MTU, link.mtu);
    reply.u32(libc::IFLA_MIN_MTU, min_mtu);
    reply.u32(libc::IFLA_MAX_MTU, max_mtu);
    reply.u32(libc::IFLA_GROUP, link.group);
    // Linux: `br_add_if`. A port of a bridge takes all frames, without a flag that says so.
    let of_bridge = u32::from(link.bridge_port.is_some());
    let flag = |flag: i32| u32::from(link.flags & flag as u32 != 0) + of_bridge;
    reply.u32(libc::IFLA_PROMISCUITY, flag(libc::IFF_PROMISC));
    reply.u32(libc::IFLA_ALLMULTI, flag(libc::IFF_ALLMULTI));
    reply.u32(libc::IFLA_NUM_TX_QUEUES, 1);
    reply.u32(libc::IFLA_GSO_MAX_SEGS, 65535);
    reply.u32(libc::IFLA_GSO_MAX_SIZE, 65536);
    reply.u32(libc::IFLA_GRO_MAX_SIZE, 65536);
    reply.u32(IFLA_GSO_IPV4_MAX_SIZE, 65536);
    reply.u32(IFLA_GRO_IPV4_MAX_SIZE, 65536);
    reply.u32(libc::IFLA_TSO_MAX_SIZE, tso);
    reply.u32(libc::IFLA_TSO_MAX_SEGS, 65535);
    if let Some(master) = link.master {
        reply.u32(libc::IFLA_MASTER, master);
    }
    if let Some(lower) = link.lower() {
        reply.u32(libc::IFLA_LINK, lower);
    }
    reply.u8(libc::IFLA_CARRIER, link.carrier.into());
    reply.text(libc::IFLA_QDISC, queue(link));
    if !link.alias.is_empty() {
        let mut alias = link.alias.clone();
        alias.push(0);
        reply.attribute(libc::IFLA_IFALIAS, &alias);
    }
    reply.u32(libc::IFLA_CARRIER_CHANGES, link.carrier_changes.iter().sum());
    reply.u32(libc::IFLA_CARRIER_UP_COUNT, link.carrier_changes[0]);
    reply.u32(libc::IFLA_CARRIER_DOWN_COUNT, link.carrier_changes[1]);
    reply.u8(libc::IFLA_PROTO_DOWN, 0);
    reply.attribute(libc::IFLA_MAP, &[0; 32]);
    write_addresses(reply, &link.hardware_addresses());
    if let Some(count) = count {
        write_stats(reply, count);
    }
    write_kind(reply, link, above);
    if let Some(address) = link.permanent_address() {
        reply.attribute(IFLA_PERM_ADDRESS, &address);
    }
    if !link.ipv6() {
        return;
    }
    let families = reply.nest_unflagged(libc::IFLA_AF_SPEC);
    let inet6 = reply.nest_unflagged(libc::AF_INET6 as u16);
    reply.u32(IFLA_INET6_FLAGS, if link.up() { IF_READY } else { 0 });
    reply.u8(IFLA_INET6_ADDR_GEN_MODE, mode_of(link));
    reply.end(inet6);
    reply.end(families);
}

/// `addrgenmode`. Linux: `addrconf_init_auto_addrs`, by which a device without a hardware type has random identifiers from when it
/// first comes up.
fn mode_of(link: &Link) -> u8 {
    const EUI64: u8 = 0;
    const NONE: u8 = 1;
    const RANDOM: u8 = 3;
    match link.kind {
        _ if !link.eui64 => NONE,
        LinkKind::Tunnel(tunnel::Kind::BareUdp | tunnel::Kind::GeneveIp) if link.activated => RANDOM,
        _ => EUI64,
    }
}

/// `IFLA_ADDRESS` and `IFLA_BROADCAST`, of a link that has such addresses.
pub(super) fn write_addresses(reply: &mut Reply<'_>, [address, broadcast]: &[Vec<u8>; 2]) {
    if !address.is_empty() {
        reply.attribute(libc::IFLA_ADDRESS, address);
        reply.attribute(libc::IFLA_BROADCAST, broadcast);
    }
}

fn write_kind(reply: &mut Reply<'_>, link: &Link, above: &Above) {
    if link.kind.name().is_none() && above.vrf.is_none() && link.bridge_port.is_none() {
        return;
    }
    let info = reply.nest_unflagged(libc::IFLA_LINKINFO);
    if let Some(kind) = link.kind.name() {
        reply.text(libc::IFLA_INFO_KIND, kind);
    }
    if let LinkKind::Vrf { table } = link.kind {
        let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
        reply.u32(IFLA_VRF_TABLE, table);
        reply.end(data);
    }
    if let Some(tunnel) = &link.tunnel {
        let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
        tunnel::write(reply, &tunnel.shown(), &tunnel.encap, &tunnel.six_rd);
        reply.end(data);
    }
    if let Some(vlan) = &link.vlan {
        let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
        vlan.tag.write(reply);
        reply.end(data);
    }
    if let (Some(bridge), Some(shown)) = (&link.bridge, above.bridge) {
        let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
        bridge.settings.write(reply, shown);
        reply.end(data);
    }
    if link.bridge_port.is_some() {
        reply.text(libc::IFLA_INFO_SLAVE_KIND, "bridge");
        let data = reply.nest_unflagged(libc::IFLA_INFO_SLAVE_DATA);
        above.write_port(reply, link);
        reply.end(data);
    }
    if let Some(table) = above.vrf {
        reply.text(libc::IFLA_INFO_SLAVE_KIND, "vrf");
        let data = reply.nest_unflagged(libc::IFLA_INFO_SLAVE_DATA);
        reply.u32(IFLA_VRF_PORT_TABLE, table);
        reply.end(data);
    }
    reply.end(info);
}

/// Whether a link is enslaved to a VRF that this router has made, or is one: the kernel knows nothing of
/// its routing.
pub(crate) fn in_own_vrf(router: &Router, index: u32) -> bool {
    let Some(live) = &router.live else { return false };
    live.devices.vrf(index).is_some() || matches!(live.devices.get(index), Some(Device::Vrf { .. }))
}

/// What went through a link.
pub(crate) fn count_link(router: &Router, link: &Link) -> LinkCount {
    let received = router.engine.link_count(link.id, Direction::Receive);
    let sent = router.engine.link_count(link.id, Direction::Transmit);
    // Linux: `ip6gre_tunnel_xmit`, `ip6_tnl_start_xmit` and `vrf_xmit` count what they refuse as dropped, too.
    let ipv6 = link.tunnel.as_ref().is_some_and(|tunnel| tunnel.parameters.kind.ipv6());
    let refused = if ipv6 || link.vrf_table().is_some() { sent.errors } else { 0 };
    LinkCount {
        rx_packets: received.packets,
        rx_bytes: received.bytes,
        rx_errors: received.errors,
        rx_dropped: router.engine.link_drops(link.id, Direction::Receive),
        tx_packets: sent.packets,
        tx_bytes: sent.bytes,
        tx_errors: sent.errors,
        tx_dropped: refused + router.engine.link_drops(link.id, Direction::Transmit),
    }
}

/// The table of the VRF that a link is enslaved to.
pub(super) fn vrf_table_over(router: &Router, link: &Link) -> Option<u32> {
    router.links.get(link.master?)?.vrf_table()
}
