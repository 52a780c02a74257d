//! Flags and MTU of a tunnel's link, as its ends and its way ask for them.

use libc::IFF_POINTOPOINT;
use underpass_netlink::tunnel::{self, Kind};

use super::underlay::{tunnel_mtu, underlay_link};
use super::{Tunnel, first_flags, geneve, vxlan};
use crate::Router;
use crate::link::Link;

/// A link that has just become this tunnel, with the flags that follow from its ends and the MTU of its way.
pub(super) fn measured(router: &Router, link: Link, tunnel: &Tunnel) -> Link {
    let mut made = tunnel.clone();
    let mtu = match made.parameters.kind {
        // Whatever the headers take, and whatever the encapsulation.
        Kind::BareUdp => 1500,
        Kind::Vxlan => vxlan::mtu(router, &made, None),
        Kind::Geneve | Kind::GeneveIp => geneve::mtu(router, &made, None, 1500),
        Kind::Sit => 1480,
        _ => made.default_mtu(),
    };
    let mut link = Link { flags: first_flags(&made.parameters) as u32, mtu, ..link };
    if !matches!(
        made.parameters.kind,
        Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp | Kind::Srv6L2
    ) {
        adjust(router, &mut link, &mut made, true);
    }
    Link { tunnel: Some(Box::new(made)), ..link }
}

/// Makes flags and MTU those that the ends ask for. `mtu`: the MTU too.
pub(super) fn adjust(router: &Router, link: &mut Link, tunnel: &mut Tunnel, mtu: bool) {
    if tunnel.parameters.kind == Kind::Ip6GreTap {
        let able = tunnel.capabilities() & tunnel::IP6_CAP_XMIT != 0;
        tunnel.link_layer = underlay_link(router, &tunnel.parameters).filter(|_| able).map(Link::header);
    }
    let parameters = &tunnel.parameters;
    let to_point = IFF_POINTOPOINT as u32;
    if !parameters.kind.ethernet() {
        if !parameters.kind.ipv6() {
            if !parameters.remote.is_unspecified() {
                link.flags |= to_point;
            }
        } else {
            let both = tunnel::IP6_CAP_XMIT | tunnel::IP6_CAP_RCV;
            let able = tunnel.capabilities() & both == both;
            link.flags = link.flags & !to_point | if able { to_point } else { 0 };
        }
    }
    if mtu {
        link.mtu = tunnel_mtu(router, tunnel, link.mtu);
    }
}
