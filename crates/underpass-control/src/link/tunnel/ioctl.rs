//! `ip tunnel` and `ip -6 tunnel`: ioctls of tunnel devices, carried out as requests of rtnetlink. Linux:
//! `include/uapi/linux/{if_tunnel,ip6_tunnel}.h`, `ip_tunnel_ctl`, `ipip6_tunnel_siocdevprivate`,
//! `ip6_tnl_siocdevprivate`, `ip6gre_tunnel_siocdevprivate`.
//!
//! ```text
//! struct ip_tunnel_parm  name[16], link, i_flags, o_flags (network byte order), i_key, o_key, IPv4 header
//! struct ip6_tnl_parm2   name[16], link, proto, encap_limit, hop_limit, -, flowinfo, flags, laddr, raddr,
//!                        i_flags, o_flags, i_key, o_key
//! struct ip_tunnel_6rd   prefix, relay_prefix, prefixlen, relay_prefixlen
//! ```
//!
//! Requests to make a tunnel name the fallback device of the kind, which makes it ([`super::fallback`]). Where there are
//! none (`net.core.fb_tunnels_only_for_init_net`), the name alone does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{EEXIST, EINVAL, ENOBUFS, ENODEV, ENOENT, EOPNOTSUPP, EPERM, RTM_DELLINK, RTM_NEWLINK};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST};
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::tunnel::{self, GRE_KEY, Kind, SixRd};
use underpass_netlink::{Reply, messages};

use super::underlay::same_tunnel;
use super::{Tunnel, fallback};
use crate::events::Cause;
use crate::link::change::change_link;
use crate::link::proxied::change_own_tunnel;
use crate::{Link, Request, Router};

const GET: u32 = 0x89f0;
const ADD: u32 = 0x89f1;
const DELETE: u32 = 0x89f2;
const CHANGE: u32 = 0x89f3;
const GET_6RD: u32 = 0x89f8;
const ADD_6RD: u32 = 0x89f9;
const DELETE_6RD: u32 = 0x89fa;
const CHANGE_6RD: u32 = 0x89fb;

/// Length of a `struct ip_tunnel_parm`.
const PARAMETERS4: usize = 52;
/// Length of a `struct ip6_tnl_parm2`.
const PARAMETERS6: usize = 76;
/// Length of a `struct ip6_tnl_parm`, which devices without GRE have.
const PARAMETERS6_PLAIN: usize = 64;
/// Length of a `struct ip_tunnel_6rd`.
const PREFIX: usize = 24;
/// Length of an interface name with its NUL.
const NAME: usize = 16;
/// `IP_DF`.
const DONT_FRAGMENT: u16 = 0x4000;

fn bytes<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    data.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
}

/// A tunnel in a program's memory, and the name in it.
fn read(kind: Kind, data: &[u8]) -> Result<(String, tunnel::Tunnel), i32> {
    let name = bytes::<NAME>(data, 0);
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).into_owned();
    let mut tunnel =
        tunnel::Tunnel { link: u32::from_ne_bytes(bytes(data, 16)), ..tunnel::Tunnel::new(kind) };
    let keyed = |flags: u16, key: [u8; 4]| if flags & GRE_KEY == 0 { 0 } else { u32::from_be_bytes(key) };
    let keys_at = if kind.ipv6() { 64 } else { 20 };
    if kind.gre() {
        tunnel.input_flags = u16::from_be_bytes(bytes(data, keys_at));
        tunnel.output_flags = u16::from_be_bytes(bytes(data, keys_at + 2));
        tunnel.input_key = keyed(tunnel.input_flags, bytes(data, keys_at + 4));
        tunnel.output_key = keyed(tunnel.output_flags, bytes(data, keys_at + 8));
    }
    if kind.ipv6() {
        let [protocol, encap_limit, hop_limit] = bytes(data, 20);
        tunnel.protocol = if kind.gre() { 0 } else { protocol };
        tunnel.encap_limit = encap_limit;
        tunnel.ttl = hop_limit;
        tunnel.flow_info = u32::from_be_bytes(bytes(data, 24));
        tunnel.flags = u32::from_ne_bytes(bytes(data, 28));
        tunnel.local = Ipv6Addr::from(bytes::<16>(data, 32)).into();
        tunnel.remote = Ipv6Addr::from(bytes::<16>(data, 48)).into();
        return Ok((name, tunnel));
    }
    let [version, tos] = bytes(data, 32);
    let fragment = u16::from_be_bytes(bytes(data, 38));
    let [ttl, protocol] = bytes(data, 40);
    let gre = kind.gre() && protocol != libc::IPPROTO_GRE as u8;
    if version != 0x45 || fragment & !DONT_FRAGMENT != 0 || gre {
        return Err(EINVAL);
    }
    tunnel.tos = tos;
    tunnel.ttl = ttl;
    tunnel.pmtudisc = ttl != 0 || fragment != 0;
    tunnel.protocol = protocol;
    tunnel.local = Ipv4Addr::from(bytes::<4>(data, 44)).into();
    tunnel.remote = Ipv4Addr::from(bytes::<4>(data, 48)).into();
    Ok((name, tunnel))
}

/// The same for a program's memory.
fn write(name: &str, tunnel: &tunnel::Tunnel) -> Vec<u8> {
    let mut data = vec![0; if tunnel.kind.ipv6() { PARAMETERS6 } else { PARAMETERS4 }];
    if tunnel.kind == Kind::Ip6Tnl {
        data.truncate(PARAMETERS6_PLAIN);
    }
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = data.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, name.as_bytes().get(..NAME - 1).unwrap_or(name.as_bytes()));
    put(16, &tunnel.link.to_ne_bytes());
    let keys_at = if tunnel.kind.ipv6() { 64 } else { 20 };
    put(keys_at, &tunnel.input_flags.to_be_bytes());
    put(keys_at + 2, &tunnel.output_flags.to_be_bytes());
    put(keys_at + 4, &tunnel.input_key.to_be_bytes());
    put(keys_at + 8, &tunnel.output_key.to_be_bytes());
    match (tunnel.local, tunnel.remote) {
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            let protocol = if tunnel.kind.gre() { libc::IPPROTO_GRE as u8 } else { tunnel.protocol };
            put(20, &[protocol, tunnel.encap_limit, tunnel.ttl]);
            put(24, &tunnel.flow_info.to_be_bytes());
            put(28, &tunnel.flags.to_ne_bytes());
            put(32, &local.octets());
            put(48, &remote.octets());
        }
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            put(32, &[0x45, tunnel.tos]);
            let fragment = if tunnel.pmtudisc { DONT_FRAGMENT } else { 0 };
            put(38, &fragment.to_be_bytes());
            put(40, &[tunnel.ttl, tunnel.protocol]);
            put(44, &local.octets());
            put(48, &remote.octets());
        }
        _ => {}
    }
    data
}

fn read_prefix(data: &[u8]) -> SixRd {
    SixRd {
        prefix: Ipv6Addr::from(bytes::<16>(data, 0)),
        relay_prefix: Ipv4Addr::from(bytes::<4>(data, 16)),
        prefix_len: u16::from_ne_bytes(bytes(data, 20)),
        relay_prefix_len: u16::from_ne_bytes(bytes(data, 22)),
    }
}

fn write_prefix(prefix: &SixRd) -> Vec<u8> {
    let mut data = Vec::with_capacity(PREFIX);
    data.extend(prefix.prefix.octets());
    data.extend(prefix.relay_prefix.octets());
    data.extend(prefix.prefix_len.to_ne_bytes());
    data.extend(prefix.relay_prefix_len.to_ne_bytes());
    data
}

/// A request of rtnetlink about one link.
fn message(kind: u16, flags: u16, index: u32, write: impl FnOnce(&mut Reply<'_>)) -> Result<Vec<u8>, i32> {
    let mut message = Vec::new();
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    let flags = flags | NLM_F_REQUEST | NLM_F_ACK;
    write_message(&mut message, kind, flags, Address::default(), |reply| {
        reply.fixed(&header);
        write(reply);
    })
    .map_err(|error| error.errno)?;
    Ok(message)
}

/// What a request says of a tunnel.
fn described(reply: &mut Reply<'_>, tunnel: &tunnel::Tunnel, six_rd: Option<&SixRd>) {
    let info = reply.nest_unflagged(libc::IFLA_LINKINFO);
    reply.text(libc::IFLA_INFO_KIND, tunnel.kind.name());
    let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
    tunnel::write_parameters(reply, tunnel);
    if let Some(six_rd) = six_rd {
        tunnel::write_six_rd(reply, six_rd);
    }
    reply.end(data);
    reply.end(info);
}

/// Carries out an ioctl of a tunnel device (`SIOCGETTUNNEL` and those behind it): `number` is the request, `device`
/// the name in the `struct ifreq`, `data` what its `ifr_data` points at. Returns what is to be written there.
///
/// # Errors
/// The errno that Linux has for it. `ENODEV`: no such device, `EOPNOTSUPP`: it is no tunnel of the router.
pub fn tunnel_ioctl(router: &mut Router, number: u32, device: &str, data: &[u8]) -> Result<Vec<u8>, i32> {
    router.use_link(device);
    let link = router.links.named(device);
    let own = link.and_then(|link| Some((link.index, link.tunnel.as_ref()?.parameters)));
    let own = own.filter(|(_, parameters)| !matches!(parameters.kind, Kind::BareUdp | Kind::GeneveIp));
    let kind = match (own, fallback::named(device)) {
        (Some((_, parameters)), _) => parameters.kind,
        (None, Some(kind)) if link.is_none() => kind,
        _ if link.is_some() => return Err(EOPNOTSUPP),
        _ => return Err(ENODEV),
    };
    if kind.ethernet() {
        return Err(EOPNOTSUPP);
    }
    if (GET_6RD..=CHANGE_6RD).contains(&number) {
        let (index, parameters) = own.filter(|_| kind == Kind::Sit).ok_or(EINVAL)?;
        return prefix_ioctl(router, number, index, &parameters, data);
    }
    // A device is meant by what it is, where the one that is named is the fallback device.
    let by_name = own.filter(|_| !link.is_some_and(Link::is_fallback));
    match number {
        GET => {
            let found = match by_name {
                Some((index, _)) => Some(index),
                None => like(router, &read_any(kind, data)).or(own.map(|(index, _)| index)),
            };
            shown(router, found.ok_or(ENODEV)?)
        }
        ADD => {
            let (name, parameters) = read(kind, data)?;
            let flags = NLM_F_CREATE | NLM_F_EXCL;
            let request = message(RTM_NEWLINK, flags, 0, |reply| {
                if !name.is_empty() {
                    reply.text(libc::IFLA_IFNAME, &name);
                }
                described(reply, &parameters, None);
            })?;
            carry_out(router, &request).map_err(|errno| match (errno, kind) {
                (EEXIST, Kind::Sit | Kind::Ip6Gre) => ENOBUFS,
                _ => errno,
            })?;
            // Beside a kernel, it has yet to tell of the device.
            match like(router, &parameters) {
                Some(index) => shown(router, index),
                None => Ok(write(&name, &parameters)),
            }
        }
        CHANGE => {
            let (_, mut parameters) = read(kind, data)?;
            if let Some((index, _)) = own.filter(|_| by_name.is_none())
                && let Some(changed) = change_fallback(router, index, &parameters)
            {
                return shown(router, changed?);
            }
            let index =
                by_name.map(|(index, _)| index).or_else(|| like(router, &parameters)).ok_or(ENOENT)?;
            let old = router.links.get(index).and_then(|link| link.tunnel.as_ref());
            parameters.ignore_df = old.is_some_and(|old| old.parameters.ignore_df && !parameters.pmtudisc);
            let request = message(RTM_NEWLINK, 0, index, |reply| described(reply, &parameters, None))?;
            carry_out(router, &request)?;
            shown(router, index)
        }
        DELETE => {
            let found = by_name.map(|(index, _)| index);
            let index = found.or_else(|| like(router, &read_any(kind, data))).ok_or(ENOENT)?;
            if router.links.get(index).is_some_and(Link::is_fallback) {
                return Err(EPERM);
            }
            carry_out(router, &message(RTM_DELLINK, 0, index, |_| {})?)?;
            Ok(Vec::new())
        }
        _ => Err(EOPNOTSUPP),
    }
}

fn prefix_ioctl(
    router: &mut Router,
    number: u32,
    index: u32,
    parameters: &tunnel::Tunnel,
    data: &[u8],
) -> Result<Vec<u8>, i32> {
    let six_rd = match number {
        GET_6RD => {
            let tunnel = router.links.get(index).and_then(|link| link.tunnel.as_ref());
            return Ok(write_prefix(&tunnel.ok_or(ENODEV)?.six_rd));
        }
        ADD_6RD | CHANGE_6RD => read_prefix(data),
        DELETE_6RD => SixRd::default(),
        _ => return Err(EOPNOTSUPP),
    };
    if router.links.get(index).is_some_and(Link::is_fallback) {
        six_rd.check().map_err(|error| error.errno)?;
        put_fallback(router, index, |tunnel| tunnel.six_rd = six_rd);
        return Ok(write_prefix(&six_rd));
    }
    let request = message(RTM_NEWLINK, 0, index, |reply| described(reply, parameters, Some(&six_rd)))?;
    carry_out(router, &request)?;
    Ok(write_prefix(&six_rd))
}

/// A request to change a tunnel that names the fallback device, `index`: the link that it is about, or `None` if that is
/// another one, which changes as a whole. Linux: `ip_tunnel_ctl`, `ip6_tnl0_update`; the others leave all as it is.
fn change_fallback(router: &mut Router, index: u32, wanted: &tunnel::Tunnel) -> Option<Result<u32, i32>> {
    let like = like(router, wanted);
    match wanted.kind {
        Kind::Ip6Tnl if ![0, 4, 41].contains(&wanted.protocol) => Some(Err(EINVAL)),
        Kind::Ip6Tnl if like.is_some_and(|like| like != index) => Some(Err(EEXIST)),
        Kind::Ip6Tnl => {
            put_fallback(router, index, |tunnel| tunnel.parameters.protocol = wanted.protocol);
            Some(Ok(index))
        }
        Kind::Ipip | Kind::Gre if like == Some(index) => {
            put_fallback(router, index, |tunnel| {
                let own = &mut tunnel.parameters;
                (own.ttl, own.tos, own.pmtudisc) = (wanted.ttl, wanted.tos, wanted.pmtudisc);
            });
            Some(Ok(index))
        }
        Kind::Sit | Kind::Ip6Gre => Some(like.ok_or(ENOENT)),
        _ => None,
    }
}

/// Makes a fallback device what `change` makes of it.
fn put_fallback(router: &mut Router, index: u32, change: impl FnOnce(&mut Tunnel)) {
    let Some(mut link) = router.links.get(index).cloned() else { return };
    if let Some(tunnel) = &mut link.tunnel {
        change(tunnel);
    }
    if router.live.is_some() {
        change_own_tunnel(router, link);
    } else {
        change_link(router, Cause::default(), link);
    }
}

/// The link of the tunnel with these ends.
fn like(router: &Router, parameters: &tunnel::Tunnel) -> Option<u32> {
    same_tunnel(router, parameters).map(|link| link.index)
}

fn shown(router: &Router, index: u32) -> Result<Vec<u8>, i32> {
    let link: &Link = router.links.get(index).ok_or(ENODEV)?;
    let tunnel = link.tunnel.as_ref().ok_or(ENODEV)?;
    Ok(write(&link.name, &tunnel.shown()))
}

fn carry_out(router: &mut Router, bytes: &[u8]) -> Result<(), i32> {
    for message in messages(bytes) {
        let request = Request { message, port: 0, strict: false };
        let done = match message.kind {
            RTM_NEWLINK => crate::link::new(router, &request),
            _ => crate::link::delete(router, &request),
        };
        done.map_err(|error| error.errno)?;
    }
    router.engine.reclaim();
    Ok(())
}

/// A tunnel to be looked for: what would not do for one to be made counts as well.
fn read_any(kind: Kind, data: &[u8]) -> tunnel::Tunnel {
    let mut data = data.to_vec();
    if !kind.ipv6()
        && let Some([version, _, _, _, _, _, fragment_high, fragment_low, _, protocol]) = data.get_mut(32..42)
    {
        *version = 0x45;
        (*fragment_high, *fragment_low) = (0, 0);
        *protocol = if kind.gre() { libc::IPPROTO_GRE as u8 } else { *protocol };
    }
    read(kind, &data).map_or(tunnel::Tunnel::new(kind), |(_, parameters)| parameters)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any memory of a program is read or refused, and what is read is written again.
        #[test]
        fn memory_is_read_and_written(kind in prop::sample::select(&Kind::ALL[..]), mut data: Vec<u8>, sound: bool) {
            if sound && !kind.ipv6() {
                data.resize(PARAMETERS4, 0);
                data[32..42].copy_from_slice(&[0x45, 3, 0, 0, 0, 0, 0x40, 0, 9, 47]);
            }
            if let Ok((name, tunnel)) = read(kind, &data) {
                let written = write(&name, &tunnel);
                let again = read(kind, &written).unwrap().1;
                let (protocol, flags) = (again.protocol, again.flags);
                prop_assert_eq!(again, tunnel::Tunnel { protocol, flags, ..tunnel });
            }
            let _ = read_any(kind, &data);
            let prefix = read_prefix(&data);
            prop_assert_eq!(read_prefix(&write_prefix(&prefix)), prefix);
        }
    }
}
