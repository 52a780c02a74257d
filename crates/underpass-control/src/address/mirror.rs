//! The kernel's addresses.

use std::net::IpAddr;

use libc::{AF_INET, AF_INET6};
use underpass_netlink::{RequestError, Type, Validate, policy};

use super::query::{IFA_PROTO, IFA_RT_PRIORITY};
use super::{Address, scope_of};
use crate::events::Cause;
use crate::{Request, Router};

const ALL: [Type; 12] = policy(&[]);

impl Router {
    /// `RTM_NEWADDR` and `RTM_DELADDR` of the kernel.
    pub(crate) fn mirror_address(&mut self, request: &Request<'_>) -> Result<(), RequestError> {
        let family = request.family();
        if !matches!(i32::from(family), AF_INET | AF_INET6) {
            return Ok(());
        }
        let (header, attributes) = request.parse::<8, 12>(&ALL, Validate::Liberal)?;
        let [_, prefix_len, flags, scope, a, b, c, d] = header;
        let link = u32::from_ne_bytes([a, b, c, d]);
        let address = |kind| attributes.get(kind).and_then(|address| address.address(family));
        let (first, local) = (address(libc::IFA_ADDRESS), address(libc::IFA_LOCAL));
        let Some(local_address) = local.or(first) else { return Ok(()) };
        if self.is_host_address(link, local_address) {
            return Ok(());
        }
        if request.message.kind == libc::RTM_DELADDR {
            self.unmirror_address(link, local_address, prefix_len);
            return Ok(());
        }
        if self.links.get(link).is_none() {
            return Ok(()); // gone already
        }
        if let Some(unseen) = self.unseen() {
            unseen.addresses.remove(&(link, local_address, prefix_len));
        }
        let now = self.ticks();
        self.put_mirrored_address(Address {
            link,
            local: local_address,
            peer: first.filter(|&peer| peer != local_address),
            prefix_len,
            broadcast: attributes.get(libc::IFA_BROADCAST).map(|broadcast| broadcast.ipv4()),
            label: attributes.get(libc::IFA_LABEL).map(|label| label.text()).unwrap_or_default(),
            scope: match local_address {
                IpAddr::V4(_) => scope,
                IpAddr::V6(address) => scope_of(address),
            },
            flags: attributes.get(libc::IFA_FLAGS).map_or(u32::from(flags), |flags| flags.u32()),
            metric: attributes.get(IFA_RT_PRIORITY).map_or(0, |metric| metric.u32()),
            protocol: attributes.get(IFA_PROTO).map_or(0, |protocol| protocol.u8()),
            stamps: [now; 2],
        });
        Ok(())
    }

    fn put_mirrored_address(&mut self, address: Address) {
        let same = |own: &Address| (own.local, own.prefix_len) == (address.local, address.prefix_len);
        let list = self.addresses.of_mut(address.link, address.local.is_ipv6());
        match list.iter_mut().find(|own| same(own)) {
            Some(own) => {
                if *own == (Address { stamps: own.stamps, ..address.clone() }) {
                    return;
                }
                *own = address.clone();
                self.refresh_routes(Cause::default(), address.link);
            }
            None if address.local.is_ipv4() => self.insert4(Cause::default(), address.clone()),
            None => self.insert6(Cause::default(), address.clone()),
        }
        self.addresses.locals += 1;
        self.publish_sources(address.link);
        self.vrf_addresses_changed();
        if address.local.is_ipv6() {
            self.update_sources();
        }
    }

    /// The kernel has this address no more.
    pub(crate) fn unmirror_address(&mut self, link: u32, local: IpAddr, prefix_len: u8) {
        let list = self.addresses.of_mut(link, local.is_ipv6());
        let same = |own: &Address| (own.local, own.prefix_len) == (local, prefix_len);
        let Some(position) = list.iter().position(same) else { return };
        let gone = list.remove(position);
        self.addresses.locals += 1;
        self.address_gone(Cause::default(), &gone);
        self.vrf_addresses_changed();
        if local.is_ipv4() && self.addresses.v4(link).is_empty() {
            self.last_ipv4_gone(link);
        }
        if local.is_ipv6() {
            self.update_sources();
        }
    }
}
