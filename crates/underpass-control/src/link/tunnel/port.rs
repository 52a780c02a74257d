//! The UDP ports that devices open while they are up. Linux: `udp_sock_create`, `vxlan_sock_add`, `geneve_sock_add`,
//! `bareudp_socket_create`.

use libc::EADDRINUSE;
use underpass_netlink::RequestError;

use super::Tunnel;
use crate::link::Link;
use crate::{Router, fou};

/// The UDP port of a device. Devices of which all is alike have it together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Socket {
    /// The port.
    pub port: u16,
    /// Whether it is one of IPv6; `None`: of both.
    pub six: Option<bool>,
    /// Of which kind of devices.
    kind: &'static str,
    /// Of VXLANs: whether datagrams of IPv6 without a checksum are taken there.
    takes_unsummed: bool,
    /// Whether it is that of a device with external metadata.
    external: bool,
}

impl Socket {
    /// That of a device, of a kind that has one.
    pub(super) fn of(tunnel: &Tunnel) -> Option<Self> {
        let parameters = &tunnel.parameters;
        // Linux: `vxlan_open`, `geneve_open`.
        let six = (!parameters.external).then_some(parameters.remote.is_ipv6());
        let (port, six, takes_unsummed) = match (parameters.bare, parameters.vxlan, parameters.geneve) {
            (Some(bare), ..) => (bare.port, None, false),
            (_, Some(vxlan), _) => (vxlan.port, six, vxlan.takes_unsummed6),
            (.., Some(geneve)) => (geneve.port, six, false),
            _ => return None,
        };
        Some(Self { port, six, kind: parameters.kind.name(), takes_unsummed, external: parameters.external })
    }

    /// Whether both cannot be open.
    fn excludes(&self, other: &Self) -> bool {
        let meet = self.six.is_none() || other.six.is_none() || self.six == other.six;
        self.port == other.port && meet && self != other
    }
}

impl Link {
    /// The UDP port that it has open: a `bareudp`, a VXLAN or a Geneve device that is up.
    pub fn opened(&self) -> Option<Socket> {
        self.tunnel.as_ref().filter(|_| self.up()).and_then(|tunnel| Socket::of(tunnel))
    }
}

/// Whether a link that comes up has a UDP port to open.
pub(crate) fn opens_port(link: &Link) -> bool {
    link.tunnel.as_ref().is_some_and(|tunnel| Socket::of(tunnel).is_some())
}

/// Whether it can open it.
///
/// # Errors
/// `EADDRINUSE`: the port is that of others.
pub(crate) fn check_port(router: &Router, link: &Link) -> Result<(), RequestError> {
    let Some(own) = link.tunnel.as_ref().and_then(|tunnel| Socket::of(tunnel)) else { return Ok(()) };
    let mut others = router.links.iter().filter(|other| other.index != link.index);
    let excluded = others.any(|other| other.opened().is_some_and(|other| own.excludes(&other)));
    if excluded || fou::request::is_taken(router, own.port, own.six) {
        return Err(RequestError::errno(EADDRINUSE));
    }
    Ok(())
}
