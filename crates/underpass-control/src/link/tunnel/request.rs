//! `RTM_NEWLINK` of tunnels: what a request makes of one. Linux: the `newlink` and `changelink` of the kinds.

use std::net::IpAddr;

use libc::{EBUSY, EEXIST, EINVAL, ENODEV, EOPNOTSUPP, IFF_BROADCAST, IFF_POINTOPOINT};
use underpass_netlink::tunnel::{self, BareUdp, Described, Kind};
use underpass_netlink::{Attribute, RequestError};

use super::measure::{adjust, measured};
use super::underlay::same_tunnel;
use super::{Tunnel, geneve, srv6l2, vxlan};
use crate::Router;
use crate::link::proxied::is_making;
use crate::link::{Link, LinkKind};

/// What Linux does and the router does not.
fn check(router: &Router, parameters: &tunnel::Tunnel) -> Result<(), RequestError> {
    if parameters.link != 0 && router.links.get(parameters.link).is_none() {
        return Err(RequestError::errno(ENODEV));
    }
    if parameters.mark != 0 {
        return Err(RequestError::new(EOPNOTSUPP, "fwmark of a tunnel is not supported by this router"));
    }
    Ok(())
}

/// The tunnel that a request asks for, as a link that is not there yet: down, with the MTU of `mtu` or else of its way.
///
/// # Errors
/// `EEXIST`: there is one with the same ends. `EBUSY`: one with the same port. `EINVAL` for what does not go together.
pub(crate) fn create(
    router: &Router,
    mut link: Link,
    kind: Kind,
    data: Option<&Attribute<'_>>,
    mtu: Option<u32>,
) -> Result<Link, RequestError> {
    let described = tunnel::parse(kind, data)?;
    let made = build(router, &described)?;
    link.kind = LinkKind::Tunnel(made.parameters.kind);
    link = measured(router, link, &made);
    if kind == Kind::BareUdp {
        link.mtu = mtu.unwrap_or(link.mtu);
        return Ok(link);
    }
    if kind == Kind::Vxlan {
        link.mtu = vxlan::mtu(router, &made, mtu);
        return Ok(link);
    }
    if kind == Kind::Srv6L2 {
        if let Some(mtu) = mtu {
            made.check_mtu(mtu)?;
            link.mtu = mtu;
        }
        return Ok(link);
    }
    if made.parameters.geneve.is_some() {
        link.mtu = geneve::mtu(router, &made, mtu, link.mtu);
        return Ok(link);
    }
    if let Some(mtu) = mtu {
        link.mtu = match kind {
            Kind::Ipip | Kind::Gre | Kind::GreTap => mtu.clamp(super::LEAST, super::MOST - made.overhead()),
            Kind::Sit => mtu,
            // Linux ignores one that does not fit.
            _ if made.check_mtu(mtu).is_ok() => mtu,
            _ => link.mtu,
        };
    }
    Ok(link)
}

fn build(router: &Router, described: &Described) -> Result<Tunnel, RequestError> {
    let parameters = described.tunnel;
    let encap = described.encap.unwrap_or_default();
    let length = encap.length()?;
    if parameters.vxlan.is_some() {
        return vxlan::build(router, parameters);
    }
    if parameters.geneve.is_some() {
        return geneve::build(router, parameters);
    }
    if parameters.kind == Kind::Srv6L2 {
        return Ok(srv6l2::build(parameters));
    }
    check(router, &parameters)?;
    if let Some(bare) = &parameters.bare {
        return build_bare(router, described, bare);
    }
    let IpAddr::V4(_) = parameters.remote else { return build6(router, described, length) };
    exclusive(router, &parameters)?;
    if parameters.kind == Kind::Gre
        && !parameters.external
        && parameters.remote.is_multicast()
        && parameters.local.is_unspecified()
    {
        return Err(RequestError::errno(EINVAL));
    }
    let six_rd = described.six_rd.unwrap_or_default();
    let max_mtu = if parameters.kind == Kind::Sit { super::MOST6 - 20 } else { 0 };
    Ok(Tunnel { parameters, encap, six_rd, max_mtu, fallback: false, link_layer: None })
}

/// Linux: `bareudp_configure`.
fn build_bare(router: &Router, described: &Described, bare: &BareUdp) -> Result<Tunnel, RequestError> {
    let mut others = router.links.iter().filter_map(|link| link.tunnel.as_ref()?.parameters.bare);
    if others.any(|other| other.port == bare.port) {
        return Err(RequestError::new(EBUSY, "Another bareudp device using the same port already exists"));
    }
    bare.check()?;
    Ok(Tunnel {
        parameters: described.tunnel,
        encap: tunnel::Encap::default(),
        six_rd: tunnel::SixRd::default(),
        max_mtu: super::MOST - super::UDP,
        fallback: false,
        link_layer: None,
    })
}

fn build6(router: &Router, described: &Described, encap_length: u32) -> Result<Tunnel, RequestError> {
    let parameters = described.tunnel;
    exclusive(router, &parameters)?;
    let encap = described.encap.unwrap_or_default();
    let max_mtu = if parameters.kind == Kind::Ip6Tnl { super::MOST - encap_length } else { 0 };
    Ok(Tunnel {
        parameters,
        encap,
        six_rd: tunnel::SixRd::default(),
        max_mtu,
        fallback: false,
        link_layer: None,
    })
}

/// There is none with the same ends, or no other with external metadata.
fn exclusive(router: &Router, parameters: &tunnel::Tunnel) -> Result<(), RequestError> {
    let taken = if parameters.external {
        let mut tunnels = router.links.iter().filter_map(|link| link.tunnel.as_ref());
        tunnels.any(|tunnel| tunnel.excludes_external(parameters.kind))
    } else {
        same_tunnel(router, parameters).is_some() || is_making(router, parameters)
    };
    if taken { Err(RequestError::errno(EEXIST)) } else { Ok(()) }
}

/// What a tunnel becomes. `mtu`: the request gives it an MTU.
///
/// # Errors
/// `EEXIST`: another has these ends. `EINVAL`: what cannot be changed. `EOPNOTSUPP`: it is of another kind.
pub(crate) fn change(
    router: &Router,
    link: &Link,
    kind: Option<&str>,
    data: &Attribute<'_>,
    mtu: bool,
) -> Result<Link, RequestError> {
    let Some(old) = link.tunnel.as_ref().filter(|old| kind == Some(old.parameters.kind.name())) else {
        return Err(RequestError::errno(EOPNOTSUPP));
    };
    if old.parameters.bare.is_some() || old.parameters.kind == Kind::Srv6L2 {
        return Err(RequestError::errno(EOPNOTSUPP));
    }
    if old.parameters.vxlan.is_some() {
        return vxlan::change(router, (link, old), data);
    }
    if old.parameters.geneve.is_some() {
        return geneve::change(router, (link, old), data, mtu);
    }
    if old.fallback {
        return Err(RequestError::errno(EINVAL));
    }
    let described = tunnel::parse(old.parameters.kind, Some(data))?;
    let mut new = old.clone();
    if let Some(encap) = described.encap {
        encap.length()?;
        new.encap = encap;
    }
    let parameters = described.tunnel;
    check(router, &parameters)?;
    let six_rd = described.six_rd.unwrap_or(old.six_rd);
    six_rd.check()?;
    check_ends(link, old, &parameters)?;
    if same_tunnel(router, &parameters).is_some_and(|other| other.index != link.index) {
        return Err(RequestError::errno(EEXIST));
    }
    let moved = (old.parameters.link, old.parameters.mark) != (parameters.link, parameters.mark);
    // What a device does not take over from a request.
    new.parameters = tunnel::Tunnel {
        protocol: if old.parameters.kind == Kind::Ip6Tnl {
            parameters.protocol
        } else {
            old.parameters.protocol
        },
        external: old.parameters.external,
        ..parameters
    };
    new.six_rd = six_rd;
    let mut changed = link.clone();
    match parameters.kind {
        Kind::Ipip | Kind::Sit => adjust(router, &mut changed, &mut new, moved && !mtu),
        Kind::Gre | Kind::GreTap => {
            adjust(router, &mut changed, &mut new, moved && !mtu);
            let (before, now) = (old.parameters.gre_length(), new.parameters.gre_length());
            if !mtu && !moved {
                changed.mtu = (changed.mtu + before).saturating_sub(now).max(super::LEAST);
            }
        }
        Kind::Ip6Tnl => adjust(router, &mut changed, &mut new, true),
        Kind::Ip6Gre | Kind::Ip6GreTap => adjust(router, &mut changed, &mut new, !mtu),
        Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp | Kind::Srv6L2 => {}
    }
    changed.tunnel = Some(new);
    Ok(changed)
}

/// Whether a device can get these ends, being to one point, to many or to none.
fn check_ends(link: &Link, old: &Tunnel, parameters: &tunnel::Tunnel) -> Result<(), RequestError> {
    let invalid = RequestError::errno(EINVAL);
    let has = |flag: i32| link.flags & flag as u32 != 0;
    let (to_point, broadcast) = (has(IFF_POINTOPOINT), has(IFF_BROADCAST));
    let named = !parameters.remote.is_unspecified();
    let fits = match parameters.kind {
        Kind::Ipip | Kind::Ip6Tnl if parameters.external => false,
        Kind::Ipip if old.same(parameters) => true,
        Kind::Ipip => to_point == named && !parameters.remote.is_multicast(),
        Kind::Sit => to_point == named,
        Kind::Gre if old.same(parameters) => true,
        Kind::Gre if parameters.remote.is_multicast() => broadcast && !to_point,
        Kind::Gre => to_point == named && !broadcast,
        Kind::GreTap | Kind::Ip6Tnl | Kind::Ip6Gre | Kind::Ip6GreTap => true,
        Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp | Kind::Srv6L2 => true,
    };
    if !fits || parameters.external && !old.parameters.external {
        return Err(invalid);
    }
    Ok(())
}
