//! What `tunnel_key` says to each tunnel that takes parameters: compiled as a route by the tunnel with `encap ip` is, and
//! anew with the routes.

use underpass_engine::tables::{LinkId, TunnelKey};
use underpass_netlink::iptunnel::IpTunnel;
use underpass_netlink::tc::action::Config;
use underpass_netlink::tunnel::{Kind, Tunnel as Parameters};

use super::compile::publish_action;
use crate::Router;
use crate::route::Scope;
use crate::route::compile::{acquire_keyed, action_of, release_keyed};

use super::{Action, Name, TunnelEntry};

/// The parameters that an action gives to packets; `None`: none, or another action.
fn given(config: &Config) -> Option<&IpTunnel> {
    match config {
        Config::TunnelKey(key) => key.check().ok()?,
        _ => None,
    }
}

/// The same as the packet path has them.
pub(super) fn compile(tunnel: &IpTunnel, ways: &[TunnelEntry]) -> TunnelKey {
    TunnelKey {
        source: tunnel.source,
        destination: tunnel.destination,
        id: tunnel.id as u32,
        tos: tunnel.tos,
        ttl: tunnel.ttl,
        port: tunnel.port,
        ways: ways.iter().map(|way| (way.link, way.action)).collect(),
    }
}

/// Compiles again what an action says to tunnels, and gives it to the packet path.
pub(super) fn publish_keyed(router: &mut Router, name: Name) {
    let key = router.actions.by_name.get(&name).and_then(|action| given(&action.config)).cloned();
    let mut ways = Vec::new();
    if let Some(tunnel) = key {
        let takers: Vec<_> = takers(router, &tunnel).collect();
        for (index, link) in takers {
            let info = acquire_keyed(router, index, &tunnel);
            let scope = Scope::Rules { link: 0, vrf: None };
            let action = action_of(router, &[info].into_iter().collect(), scope);
            ways.push(TunnelEntry { link, info, action });
        }
    }
    let Some(action) = router.actions.by_name.get_mut(&name) else { return };
    let old = std::mem::replace(&mut action.ways, ways);
    publish_action(router, name);
    release_ways(router, old);
}

/// Gives back what an action says to tunnels, which nobody reads any more.
pub(super) fn release_ways(router: &mut Router, ways: Vec<TunnelEntry>) {
    ways.into_iter().for_each(|way| release_keyed(router, way.info));
}

/// Compiles all of it again: a tunnel has come or gone.
pub(crate) fn publish_keys(router: &mut Router) {
    let keyed = |(name, action): (Name, &Action)| given(&action.config).map(|_| name);
    let names: Vec<Name> = router.actions.of_kind("tunnel_key").filter_map(keyed).collect();
    names.into_iter().for_each(|name| publish_keyed(router, name));
}

/// The tunnels that take such parameters. Linux: besides `external` ones, which look at what they are, `ip_tunnel_xmit` of
/// those without a remote address.
fn takers<'a>(router: &'a Router, given: &'a IpTunnel) -> impl Iterator<Item = (u32, LinkId)> + 'a {
    let takes = |tunnel: &Parameters| {
        let many_ends = matches!(tunnel.kind, Kind::Ipip | Kind::Sit) && tunnel.remote.is_unspecified();
        tunnel.external || many_ends && given.destination.is_ipv4()
    };
    let links = router.tunnels.links().filter_map(|index| router.links.get(index));
    let links = links.filter(move |link| link.tunnel.as_ref().is_some_and(|own| takes(&own.parameters)));
    links.map(|link| (link.index, link.id))
}
