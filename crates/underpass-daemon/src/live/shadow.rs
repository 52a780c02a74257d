//! The kernel's part in routes that encapsulate: routes to the device of the host, by which what the host
//! sends comes to the router. They go with the device.

use std::collections::BTreeMap;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use underpass_control::{PROTOCOL, Router, Shadow};
use underpass_netlink::reply::Reply;

use crate::kernel::Kernel;

const RTA_DST: u16 = libc::RTA_DST;
const RTAX_MTU: u16 = 2;

/// The routes that were put into the kernel, each with its device.
#[derive(Debug, Default)]
pub struct Shadows {
    there: BTreeMap<(u32, IpNet, u32), (Shadow, u32)>,
    /// What of the router has been seen: links and addresses.
    seen: (u64, u64),
}

impl Shadows {
    /// Follows the router. `device` tells the device of the host for a table.
    pub fn follow(
        &mut self,
        router: &mut Router,
        kernel: &mut Kernel,
        device: impl Fn(&Router, u32) -> Option<u32>,
    ) {
        let seen = (router.link_generation(), router.local_generation());
        let all = std::mem::replace(&mut self.seen, seen) != seen;
        // An address that has gone took the routes along that sent from it, without a word.
        let changed = if all { router.all_shadows() } else { router.changed_shadows() };
        for (destination, table, wanted) in changed {
            let device = device(router, table);
            let range = (table, destination, 0)..=(table, destination, u32::MAX);
            let old: Vec<_> = self.there.range(range).map(|(key, value)| (*key, *value)).collect();
            for (key, (shadow, through)) in old {
                if wanted.contains(&shadow) && device == Some(through) {
                    continue;
                }
                self.there.remove(&key);
                // It may have gone by itself.
                let _ = kernel
                    .requester()
                    .request(libc::RTM_DELROUTE, 0, |message| write(message, &shadow, through));
            }
            for shadow in wanted {
                let key = (table, destination, shadow.metric);
                let there = self.there.contains_key(&key);
                let Some(device) = device.filter(|_| all || !there) else { continue };
                let flags = NLM_F_CREATE | NLM_F_EXCL;
                let put = kernel
                    .requester()
                    .request(libc::RTM_NEWROUTE, flags, |message| write(message, &shadow, device));
                match put {
                    Err(error) if !(there && error.errno == libc::EEXIST) => {
                        self.there.remove(&key);
                        match shadow.source.filter(|_| error.errno == libc::EINVAL) {
                            // As long as it looks for duplicates of the address, for a second or two.
                            Some(source) => tracing::info!(
                                "what this host sends to {destination} does not take the encapsulation yet: the kernel \
                                 does not take {source} as its source; it is asked again as addresses change"
                            ),
                            None => tracing::warn!(
                                "what this host sends to {destination} does not take the encapsulation: {error}"
                            ),
                        }
                    }
                    _ => {
                        self.there.insert(key, (shadow, device));
                    }
                }
            }
        }
    }
}

fn write(message: &mut Reply<'_>, shadow: &Shadow, device: u32) {
    let family = if shadow.destination.addr().is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let table = u8::try_from(shadow.table).unwrap_or(libc::RT_TABLE_UNSPEC);
    let scope = if family == libc::AF_INET { libc::RT_SCOPE_LINK } else { libc::RT_SCOPE_UNIVERSE };
    message.fixed(&[
        family as u8,
        shadow.destination.prefix_len(),
        0,
        0,
        table,
        PROTOCOL,
        scope,
        libc::RTN_UNICAST,
        0,
        0,
        0,
        0,
    ]);
    message.address(RTA_DST, shadow.destination.network());
    message.u32(libc::RTA_OIF, device);
    message.u32(libc::RTA_TABLE, shadow.table);
    if shadow.metric != 0 {
        message.u32(libc::RTA_PRIORITY, shadow.metric);
    }
    if let Some(source) = shadow.source {
        message.address(libc::RTA_PREFSRC, source);
    }
    if shadow.mtu != 0 {
        let nest = message.nest(libc::RTA_METRICS);
        message.u32(RTAX_MTU, shadow.mtu);
        message.end(nest);
    }
}
