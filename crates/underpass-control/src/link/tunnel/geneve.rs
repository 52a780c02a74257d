//! Geneve devices: what a request makes of one, and what the packet path has of it. Linux: `drivers/net/geneve.c`.

use libc::EBUSY;
use underpass_netlink::tunnel::geneve::DontFragment;
use underpass_netlink::tunnel::{self, Geneve, Kind};
use underpass_netlink::{Attribute, RequestError};

use super::underlay::underlay_link;
use super::words::{tos, ttl};
use super::{ETHERNET, LEAST, LEAST6, MOST, OVERLAY, Tunnel};
use crate::Router;
use crate::link::Link;
use crate::save::Words;

/// Bytes before the packet inside as Linux counts them, an Ethernet header among them whether there is one or not.
const fn overhead(parameters: &tunnel::Tunnel) -> u32 {
    parameters.ip_length() + OVERLAY + ETHERNET
}

/// The highest MTU that a device may be made with; one that is higher than that of the device is lowered.
pub(crate) fn first_max_mtu(link: &Link) -> Option<u32> {
    let tunnel = link.tunnel.as_ref()?;
    tunnel.parameters.geneve.map(|_| MOST - OVERLAY - ETHERNET)
}

/// A device that a request describes. Linux: `geneve_configure`.
///
/// # Errors
/// `EBUSY`: another one has this network, this port and this remote address.
pub(super) fn build(router: &Router, parameters: tunnel::Tunnel) -> Result<Tunnel, RequestError> {
    let place = |tunnel: &tunnel::Tunnel| {
        let geneve = tunnel.geneve?;
        Some((geneve.vni, geneve.port, tunnel.remote))
    };
    let mut others = router.links.iter().filter_map(|link| link.tunnel.as_ref());
    if others.any(|other| place(&other.parameters) == place(&parameters)) {
        return Err(RequestError::errno(EBUSY));
    }
    Ok(Tunnel {
        parameters,
        encap: tunnel::Encap::default(),
        six_rd: tunnel::SixRd::default(),
        max_mtu: MOST - overhead(&parameters),
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
    let lower = underlay_link(router, parameters).filter(|_| asks);
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
    let tunnel::Tunnel { kind, remote, .. } = parameters;
    words.pair("id", vni).pair("remote", remote).pair("dstport", port);
    ttl(words, *ttl_inherit, parameters.ttl);
    tos(words, parameters.tos);
    let dont_fragment = match dont_fragment {
        DontFragment::Unset => "unset",
        DontFragment::Set => "set",
        DontFragment::Inherit => "inherit",
    };
    words.pair("df", dont_fragment);
    if remote.is_ipv6() {
        words.some("flowlabel", (*label != 0).then_some(format_args!("{label:#x}")));
        words.add(if *checksum { "noudp6zerocsumtx" } else { "udp6zerocsumtx" });
        words.add(if *takes_unsummed6 { "udp6zerocsumrx" } else { "noudp6zerocsumrx" });
    } else {
        words.add(if *checksum { "udpcsum" } else { "noudpcsum" });
    }
    words.when(*kind == Kind::GeneveIp, "innerprotoinherit");
}
