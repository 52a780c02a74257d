//! Receive ports as lines.

use std::net::IpAddr;

use underpass_netlink::fou::{Config, Kind, Socket};

use super::ends;
use crate::save::{Save, Words};

pub(crate) fn save(save: &mut Save<'_>) {
    for config in save.router.fou.iter() {
        let Config { socket, encap, protocol, no_partial } = config;
        let Socket { port, peer_port, addresses: _, ifindex } = *socket;
        let (local, peer): (IpAddr, IpAddr) = ends(socket);
        if *no_partial {
            save.left_out(format!("remcsum-nopartial of the foo-over-UDP port {port}"));
        }
        let mut line = Words::new(if local.is_ipv6() { "ip -6 fou add" } else { "ip fou add" });
        line.pair("port", port);
        match *encap {
            kind if kind == Kind::Gue as u8 => line.add("gue"),
            _ => line.pair("ipproto", protocol),
        };
        line.some("local", Some(local).filter(|local| !local.is_unspecified()));
        line.some("peer", Some(peer).filter(|peer| !peer.is_unspecified()));
        line.some("peer_port", Some(peer_port).filter(|port| *port != 0));
        line.some("dev", (ifindex != 0).then(|| save.name(ifindex as u32)));
        save.line(line);
    }
}
