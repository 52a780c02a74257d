//! Fallback devices: `tunl0` and its like, which are there as soon as a kind of tunnel is used, and take what comes in for
//! no other tunnel of their kind. In Linux the module of a kind makes them when it is loaded: `ip_tunnel_init_net`,
//! `sit_init_net`, `ip6_tnl_init_net`, `ip6gre_init_net`.

use underpass_netlink::RequestError;
use underpass_netlink::tunnel::{self, Encap, Kind, SixRd};

use super::{Tunnel, first_flags};
use crate::Router;
use crate::events::Cause;
use crate::link::change::add_link;
use crate::link::proxied::make_fallback_device;
use crate::link::publish::own_mac;
use crate::link::{Link, LinkKind};
use crate::sysctl::{FALLBACK_TUNNELS, Instance};

/// The devices of each module of Linux. ip_gre also makes `erspan0`, of a kind that the router does not have.
const MODULES: [&[(Kind, &str)]; 5] = [
    &[(Kind::Ipip, "tunl0")],
    &[(Kind::Gre, "gre0"), (Kind::GreTap, "gretap0")],
    &[(Kind::Sit, "sit0")],
    &[(Kind::Ip6Tnl, "ip6tnl0")],
    &[(Kind::Ip6Gre, "ip6gre0")],
];

/// The modules that a kind needs, in the order in which they are loaded: ip6_gre needs ip6_tunnel.
const fn modules(kind: Kind) -> &'static [usize] {
    match kind {
        Kind::Ipip => &[0],
        Kind::Gre | Kind::GreTap => &[1],
        Kind::Sit => &[2],
        Kind::Ip6Tnl => &[3],
        Kind::Ip6Gre | Kind::Ip6GreTap => &[3, 4],
        Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp | Kind::Srv6L2 => &[],
    }
}

/// The kind of the fallback device of this name: in Linux the name loads the module (`MODULE_ALIAS_NETDEV`).
pub(crate) fn named(name: &str) -> Option<Kind> {
    MODULES.into_iter().flatten().find(|(_, device)| *device == name).map(|(kind, _)| *kind)
}

/// What a fallback device is. Linux: `ipip_tunnel_setup` and the like, `ipip6_fb_tunnel_init`,
/// `ip6_fb_tnl_dev_init`.
fn device(kind: Kind) -> Tunnel {
    let protocol = match kind {
        Kind::Ipip => 0,
        Kind::Ip6Tnl => 41,
        _ => tunnel::Tunnel::new(kind).protocol,
    };
    let max_mtu = match kind {
        Kind::Sit => super::MOST6 - 20,
        Kind::Ip6Tnl => super::MOST,
        _ => 0,
    };
    Tunnel {
        parameters: tunnel::Tunnel { protocol, ..tunnel::Tunnel::new(kind) },
        encap: Encap::default(),
        six_rd: SixRd::default(),
        max_mtu,
        fallback: true,
        link_layer: None,
    }
}

impl Link {
    /// What the fallback device that it is was called at first.
    pub(crate) fn fallback_name(&self) -> Option<&'static str> {
        let kind = self.tunnel.as_ref().filter(|tunnel| tunnel.fallback)?.parameters.kind;
        MODULES.into_iter().flatten().find(|(of, _)| *of == kind).map(|(_, name)| *name)
    }

    /// Whether it is the fallback device of its kind.
    pub(crate) fn is_fallback(&self) -> bool {
        self.tunnel.as_ref().is_some_and(|tunnel| tunnel.fallback)
    }
}

/// Makes the fallback devices that come with a kind of tunnel, if it is used for the first time. A device whose name
/// another link has is not made.
pub(crate) fn use_kind(router: &mut Router, kind: Kind) {
    for &module in modules(kind) {
        let Some(loaded) = router.tunnels.loaded.get_mut(module) else { continue };
        if std::mem::replace(loaded, true) || router.sysctls.value(&FALLBACK_TUNNELS, Instance::One) != 0 {
            continue;
        }
        for &(kind, name) in MODULES.get(module).copied().unwrap_or_default() {
            if router.links.named(name).is_some() {
                tracing::info!("there is a link {name} already: it is not made as a fallback device");
            } else if let Err(error) = make_fallback(router, kind, name) {
                tracing::warn!("the fallback device {name} is not made: {error}");
            }
        }
    }
}

fn make_fallback(router: &mut Router, kind: Kind, name: &str) -> Result<(), RequestError> {
    let tunnel = device(kind);
    let mac = |index: u32| if kind.ethernet() { [0; 6] } else { own_mac(index) };
    let index = if router.live.is_some() { 0 } else { router.links.index_for(name) };
    let link = Link {
        flags: first_flags(&tunnel.parameters) as u32,
        mtu: if kind == Kind::Sit { 1480 } else { tunnel.default_mtu() },
        tunnel: Some(Box::new(tunnel)),
        ..Link::new(index, name.into(), LinkKind::Tunnel(kind), mac(index))
    };
    if router.live.is_some() {
        return make_fallback_device(router, &link, kind);
    }
    add_link(router, Cause::default(), link);
    Ok(())
}
