//! Geneve devices: what a request makes of one, and what the packet path has of it. Linux: `drivers/net/geneve.c`.

use libc::{EBUSY, EPERM};
use underpass_netlink::tunnel::geneve::DontFragment;
use underpass_netlink::tunnel::{self, Geneve, Kind};
use underpass_netlink::{Attribute, RequestError};

use super::underlay::underlay_link;
use super::words::{tos, ttl};
use super::{ETHERNET, IPV6, LEAST, LEAST6, MOST, OVERLAY, Tunnel};
use crate::Router;
use crate::link::{LOOPBACK, Link};
use crate::save::Words;

/// Bytes before the packet inside as Linux counts them, an Ethernet header among them whether there is one or not.
const fn overhead(parameters: &tunnel::Tunnel) -> u32 {
    parameters.ip_length() + OVERLAY + ETHERNET
}

/// The highest MTU of a device. Linux: `geneve_configure`, for which what an external one sends may be IPv6.
const fn max_mtu(parameters: &tunnel::Tunnel) -> u32 {
    let ip = if parameters.external { IPV6 } else { parameters.ip_length() };
    MOST - OVERLAY - ETHERNET - ip
}

/// The highest MTU that a device may be made with; one that is higher than that of the device is lowered.
pub(crate) fn first_max_mtu(link: &Link) -> Option<u32> {
    let tunnel = link.tunnel.as_ref()?;
    tunnel.parameters.geneve.map(|_| MOST - OVERLAY - ETHERNET)
}

/// A device that a request describes. Linux: `geneve_configure`.
///
/// # Errors
/// `EBUSY`: another one has this network, this port and this remote address. `EPERM`: one of the two has the port alone, as
/// it is external.
pub(super) fn build(router: &Router, parameters: tunnel::Tunnel) -> Result<Tunnel, RequestError> {
    let place = |tunnel: &tunnel::Tunnel| {
        let geneve = tunnel.geneve?;
        Some((geneve.vni, geneve.port, tunnel.remote))
    };
    let others =
        || router.links.iter().filter_map(|link| link.tunnel.as_ref()).map(|other| &other.parameters);
    if others().any(|other| place(other) == place(&parameters)) {
        return Err(RequestError::errno(EBUSY));
    }
    let port = |tunnel: &tunnel::Tunnel| tunnel.geneve.map(|geneve| geneve.port);
    let mut beside = others().filter(|other| port(other) == port(&parameters));
    if parameters.external && beside.next().is_some() {
        let text = "There can be only one externally controlled device on a destination port";
        return Err(RequestError::new(EPERM, text));
    }
    if beside.any(|other| other.external) {
        let text = "There already exists an externally controlled device on this destination port";
        return Err(RequestError::new(EPERM, text));
    }
    Ok(Tunnel {
        parameters,
        encap: tunnel::Encap::default(),
        six_rd: tunnel::SixRd::default(),
        max_mtu: max_mtu(&parameters),
        fallback: false,
        link_layer: None,
    })
}

/// The MTU of a device that is made, or gets another remote address while it has this one. Linux: `geneve_link_config`,
/// `geneve_change_mtu`.
pub(super) fn mtu(router: &Router, tunnel: &Tunnel, given: Option<u32>, now: u32) -> u32 {
    let parameters = &tunnel.parameters;
    // A device without IPv6 is not asked for a way over it.
    let asks = parameters.remote.is_ipv4() || now >= LEAST6;
    let lower = match parameters.external {
        // What is for no address goes by the loopback device.
        true => router.links.get(LOOPBACK),
        false => underlay_link(router, parameters).filter(|_| asks),
    };
    let room = lower.map(|link| link.mtu.saturating_sub(overhead(parameters))).filter(|room| *room > 0);
    match given.or(room) {
        Some(mtu) => mtu.clamp(LEAST, tunnel.max_mtu),
        None => now,
    }
}

/// What a device becomes; `mtu`: the request gives it an MTU. Linux: `geneve_changelink`.
pub(super) fn change(
    router: &Router,
    (link, old): (&Link, &Tunnel),
    data: &Attribute<'_>,
    mtu_given: bool,
) -> Result<Link, RequestError> {
    let parameters = tunnel::geneve::change(&old.parameters, data)?;
    let new = Tunnel { parameters, ..old.clone() };
    let moves = parameters.remote != old.parameters.remote && !mtu_given;
    let mtu = if moves { mtu(router, &new, None, link.mtu) } else { link.mtu };
    Ok(Link { mtu, tunnel: Some(Box::new(new)), ..link.clone() })
}

/// The words of a device.
pub(super) fn words(words: &mut Words, parameters: &tunnel::Tunnel, geneve: &Geneve) {
    let Geneve { vni, port, label, ttl_inherit, dont_fragment, checksum, takes_unsummed6 } = geneve;
    let tunnel::Tunnel { kind, remote, external, .. } = parameters;
    if *external {
        words.add("external").pair("dstport", port).when(*ttl_inherit, "ttl inherit");
    } else {
        words.pair("id", vni).pair("remote", remote).pair("dstport", port);
        ttl(words, *ttl_inherit, parameters.ttl);
        tos(words, parameters.tos);
    }
    let dont_fragment = match dont_fragment {
        DontFragment::Unset => "unset",
        DontFragment::Set => "set",
        DontFragment::Inherit => "inherit",
    };
    words.pair("df", dont_fragment);
    if *external {
        // It has no words about checksums and labels.
    } else if remote.is_ipv6() {
        words.some("flowlabel", (*label != 0).then_some(format_args!("{label:#x}")));
        words.add(if *checksum { "noudp6zerocsumtx" } else { "udp6zerocsumtx" });
        words.add(if *takes_unsummed6 { "udp6zerocsumrx" } else { "noudp6zerocsumrx" });
    } else {
        words.add(if *checksum { "udpcsum" } else { "noudpcsum" });
    }
    words.when(*kind == Kind::GeneveIp, "innerprotoinherit");
}
