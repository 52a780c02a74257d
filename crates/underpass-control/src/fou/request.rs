//! Requests for receive ports of foo-over-UDP.

use std::net::IpAddr;

use libc::{EADDRINUSE, EADDRNOTAVAIL, EINVAL, ENODEV, EOPNOTSUPP, ESRCH};
use underpass_netlink::fou::{Addresses, CMD_ADD, CMD_DEL, CMD_GET, Config, POLICY, Socket};
use underpass_netlink::{Replies, RequestError, Validate};

use super::{collide, ends};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::link::tunnel::compile::compile_fou;
use crate::route::Flow;
use crate::route::lookup::{l3mdev_table, look_up, source_for};
use crate::{Request, Router};

/// Answers a request to `fou`.
pub(crate) fn answer(
    router: &mut Router,
    request: &Request<'_>,
    command: u8,
    dump: bool,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let kind = request.message.kind;
    if dump {
        return Ok(Outcome::Dump(Box::new(PortDump { kind, before: u64::MAX })));
    }
    let (_, attributes) = request.parse::<4, { POLICY.len() }>(&POLICY, Validate::Liberal)?;
    let config = Config::parse(command, &attributes)?;
    match command {
        CMD_ADD => {
            check_fou(router, &config)?;
            let config = connected(router, config);
            router.fou.count += 1;
            router.fou.all.push((router.fou.count, config));
            let compiled = compile_fou(router, &config);
            let id = compiled.map(|port| router.engine.add_fou_port(port));
            router.fou.ids.push(id);
        }
        CMD_DEL => {
            let position = router.fou.position(&config.socket).ok_or(RequestError::errno(EINVAL))?;
            router.fou.all.remove(position);
            if let Some(id) = router.fou.ids.remove(position) {
                router.engine.remove_fou_port(id);
            }
        }
        CMD_GET => {
            let port = router.fou.iter().find(|port| port.socket == config.socket);
            let port = port.ok_or(RequestError::errno(ESRCH))?;
            replies.message(kind, 0, request.reply_to(), |reply| port.write(reply))?;
            return Ok(Outcome::Done);
        }
        _ => return Err(RequestError::errno(EOPNOTSUPP)),
    }
    router.fou.generation += 1;
    Ok(Outcome::Done)
}

/// The ports, the newest first.
struct PortDump {
    /// The number of the family, under which the client knows it.
    kind: u16,
    /// Of the port that was written last.
    before: u64,
}

impl Dump for PortDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let older = router.fou.all.iter().rev().find(|(number, _)| *number < self.before);
        let Some((number, port)) = older else { return Ok(More::No) };
        self.before = *number;
        out.message(self.kind, |reply| port.write(reply))?;
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.fou.generation
    }
}

/// Whether foo-over-UDP has a port; `six`: of which family, `None` for either.
pub(crate) fn is_taken(router: &Router, port: u16, six: Option<bool>) -> bool {
    let mut own = router.fou.iter().map(|other| &other.socket);
    own.any(|socket| socket.port == port && six.is_none_or(|six| six == ends(socket).0.is_ipv6()))
}

/// A port with a peer and no address of the router's has the one from which that is reached, as a socket that is connected.
fn connected(router: &Router, mut config: Config) -> Config {
    let socket = &mut config.socket;
    let (local, peer) = ends(socket);
    if peer.is_unspecified() || !local.is_unspecified() {
        return config;
    }
    match (source_for(router, &flow_to(router, socket)), &mut socket.addresses) {
        (Some(IpAddr::V4(source)), Addresses::V4 { local, .. }) => *local = source,
        (Some(IpAddr::V6(source)), Addresses::V6 { local, .. }) => *local = source,
        _ => {}
    }
    config
}

/// What a port sends to its peer.
fn flow_to(router: &Router, socket: &Socket) -> Flow {
    let oif = socket.ifindex as u32;
    Flow { oif, l3mdev: l3mdev_table(router, oif), ..Flow::to(ends(socket).1) }
}

/// Whether a port can be opened. Linux: `udp_sock_create`, then `fou_create`.
fn check_fou(router: &Router, config: &Config) -> Result<(), RequestError> {
    let socket = &config.socket;
    if socket.port == 0 {
        return Err(RequestError::new(EOPNOTSUPP, "a port of any number is not supported by this router"));
    }
    if socket.ifindex != 0 && router.links.get(socket.ifindex as u32).is_none() {
        return Err(RequestError::errno(ENODEV));
    }
    let (local, peer) = ends(socket);
    if !local.is_unspecified() && !local.is_multicast() && !router.addresses.is_local(local) {
        return Err(RequestError::errno(EADDRNOTAVAIL));
    }
    let six = local.is_ipv6();
    let opened = |link: &crate::Link| {
        link.opened().is_some_and(|own| own.port == socket.port && own.six.is_none_or(|own| own == six))
    };
    if router.fou.iter().any(|other| collide(socket, &other.socket)) || router.links.iter().any(opened) {
        return Err(RequestError::errno(EADDRINUSE));
    }
    if !peer.is_unspecified() {
        look_up(router, &flow_to(router, socket)).map_err(RequestError::errno)?;
    }
    config.kind().map(drop)
}
