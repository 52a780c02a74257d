//! `RTM_NEWADDR` and `RTM_DELADDR`.

use std::net::{IpAddr, Ipv4Addr};

use libc::{
    AF_INET, AF_INET6, EADDRNOTAVAIL, EEXIST, EINVAL, ENODEV, ENXIO, EOPNOTSUPP, IFA_F_HOMEADDRESS,
    IFA_F_MANAGETEMPADDR, IFA_F_MCAUTOJOIN, IFA_F_NODAD, IFA_F_NOPREFIXROUTE, IFA_F_OPTIMISTIC,
    IFA_F_PERMANENT, IFA_F_SECONDARY, RTM_DELADDR, RTM_NEWADDR,
};
use underpass_netlink::{Attributes, RequestError, Type, Validate, policy};

use super::kernel_routes::refresh_routes;
use super::publish::{address_gone, insert4, insert6};
use super::query::{IFA_PROTO, IFA_RT_PRIORITY, notify_address};
use super::{Address, scope_of};
use crate::dump::Outcome;
use crate::events::Cause;
use crate::link::{Link, LinkKind};
use crate::updates::last_ipv4_gone;
use crate::{Request, Router};

const POLICY: [Type; 12] = policy(&[
    (libc::IFA_ADDRESS, Type::AtLeast(4)),
    (libc::IFA_LOCAL, Type::AtLeast(4)),
    (libc::IFA_LABEL, Type::String(15)),
    (libc::IFA_BROADCAST, Type::AtLeast(4)),
    (libc::IFA_ANYCAST, Type::Any), // Linux does not look at it
    (libc::IFA_CACHEINFO, Type::AtLeast(16)),
    (libc::IFA_FLAGS, Type::U32),
    (IFA_RT_PRIORITY, Type::U32),
    (10, Type::Unsupported), // IFA_TARGET_NETNSID
    (IFA_PROTO, Type::U8),
]);

/// A request's `struct ifaddrmsg` and attributes.
pub(super) struct Wanted<'a> {
    v6: bool,
    prefix_len: u8,
    scope: u8,
    flags: u32,
    pub link: u32,
    pub attributes: Attributes<'a, 12>,
}

/// The texts of the two families: Linux's differ.
fn text(v6: bool, [of_v4, of_v6]: [&'static str; 2]) -> &'static str {
    if v6 { of_v6 } else { of_v4 }
}

impl<'a> Wanted<'a> {
    pub fn parse(request: &Request<'a>, validate: Validate) -> Result<Self, RequestError> {
        // Of another family there is nobody who would look at the attributes.
        let v6 = match i32::from(request.family()) {
            AF_INET => false,
            AF_INET6 => true,
            _ => return Err(RequestError::errno(EOPNOTSUPP)),
        };
        let (header, attributes) = request.parse::<8, 12>(&POLICY, validate)?;
        for kind in [libc::IFA_ADDRESS, libc::IFA_LOCAL] {
            if attributes.get(kind).is_some_and(|address| address.address(header[0]).is_none()) {
                return Err(RequestError::new(libc::ERANGE, "Attribute failed policy validation"));
            }
        }
        let [a, b, c, d] = [header[4], header[5], header[6], header[7]];
        Ok(Self {
            v6,
            prefix_len: header[1],
            scope: header[3],
            flags: attributes.get(libc::IFA_FLAGS).map_or(u32::from(header[2]), |flags| flags.u32()),
            link: u32::from_ne_bytes([a, b, c, d]),
            attributes,
        })
    }

    fn address(&self, kind: u16) -> Option<IpAddr> {
        self.attributes.get(kind)?.address(if self.v6 { AF_INET6 } else { AF_INET } as u8)
    }

    /// The address, and its peer where it has one.
    pub fn addresses(&self) -> Result<(IpAddr, Option<IpAddr>), RequestError> {
        let (local, address) = (self.address(libc::IFA_LOCAL), self.address(libc::IFA_ADDRESS));
        match (local, address) {
            (Some(local), Some(peer)) if peer != local => Ok((local, Some(peer))),
            (Some(local), _) => Ok((local, None)),
            (None, Some(address)) if self.v6 => Ok((address, None)),
            (None, _) if self.v6 => Err(RequestError::errno(EINVAL)),
            (None, _) => Err(RequestError::new(EINVAL, "ipv4: Local address is not supplied")),
        }
    }

    fn check_length(&self) -> Result<(), RequestError> {
        if self.prefix_len > if self.v6 { 128 } else { 32 } {
            let texts = ["ipv4: Invalid prefix length", "ipv6: Invalid prefix length"];
            return Err(RequestError::new(EINVAL, text(self.v6, texts)));
        }
        Ok(())
    }

    fn link<'r>(&self, router: &'r Router) -> Result<&'r Link, RequestError> {
        let text = text(self.v6, ["ipv4: Device not found", "ipv6: Unable to find the interface"]);
        router.links.get(self.link).ok_or(RequestError::new(ENODEV, text))
    }

    /// An address lives for ever, or not at all.
    fn check_lifetime(&self) -> Result<(), RequestError> {
        let Some(info) = self.attributes.get(libc::IFA_CACHEINFO) else { return Ok(()) };
        let word = |at: usize| {
            info.value.get(at..at + 4).map(|bytes| <[u8; 4]>::try_from(bytes).map(u32::from_ne_bytes))
        };
        let (Some(Ok(preferred)), Some(Ok(valid))) = (word(0), word(4)) else {
            return Err(info.invalid("Attribute failed policy validation"));
        };
        if valid == 0 || preferred > valid {
            let texts = ["ipv4: address lifetime invalid", "ipv6: address lifetime invalid"];
            return Err(info.invalid(text(self.v6, texts)));
        }
        if (preferred, valid) != (u32::MAX, u32::MAX) {
            let text = "finite lifetimes are not supported by this router";
            return Err(RequestError::new(EOPNOTSUPP, text).at(info.offset));
        }
        Ok(())
    }

    fn build(&self, router: &Router, link: &Link) -> Result<Address, RequestError> {
        let (local, peer) = self.addresses()?;
        let broadcast = self.attributes.get(libc::IFA_BROADCAST).filter(|_| !self.v6);
        let label = self.attributes.get(libc::IFA_LABEL).map(|label| label.text());
        let refused = IFA_F_HOMEADDRESS | IFA_F_MANAGETEMPADDR | IFA_F_MCAUTOJOIN | IFA_F_OPTIMISTIC;
        if self.flags & refused != 0 {
            return Err(RequestError::new(EOPNOTSUPP, "address flag is not supported by this router"));
        }
        let now = router.ticks();
        Ok(Address {
            link: link.index,
            local,
            peer,
            prefix_len: self.prefix_len,
            broadcast: broadcast
                .map(|address| address.ipv4())
                .filter(|&address| address != Ipv4Addr::UNSPECIFIED),
            label: if self.v6 { String::new() } else { label.unwrap_or_else(|| link.name.clone()) },
            scope: match local {
                IpAddr::V4(_) => self.scope,
                IpAddr::V6(local) => scope_of(local),
            },
            flags: self.flags & if self.v6 { IFA_F_NODAD | IFA_F_NOPREFIXROUTE } else { IFA_F_NOPREFIXROUTE }
                | IFA_F_PERMANENT,
            metric: self.attributes.get(IFA_RT_PRIORITY).map_or(0, |metric| metric.u32()),
            protocol: self.attributes.get(IFA_PROTO).map_or(0, |protocol| protocol.u8()),
            stamps: [now; 2],
        })
    }
}

/// `RTM_NEWADDR`. Linux: `inet_rtm_newaddr`, `inet6_rtm_newaddr`.
pub(crate) fn new(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(request, Validate::Liberal)?;
    wanted.addresses()?;
    wanted.check_length()?;
    let link = wanted.link(router)?;
    wanted.check_lifetime()?;
    let mut address = wanted.build(router, link)?;
    if address.local.is_ipv6() {
        check6(link, address.local)?;
    }
    let own = router.addresses.of(link.index, wanted.v6);
    let same = |own: &Address| {
        let prefix = wanted.v6 || own.prefix() == address.prefix();
        own.local == address.local && prefix
    };
    if let Some(position) = own.iter().position(same) {
        if request.exclusive() || !request.replace() {
            let texts = ["ipv4: Address already assigned", "ipv6: address already assigned"];
            return Err(RequestError::new(EEXIST, text(wanted.v6, texts)));
        }
        modify(router, Cause::from(request), position, address);
        return Ok(Outcome::Done);
    }
    if wanted.v6 {
        insert6(router, Cause::from(request), address);
        return Ok(Outcome::Done);
    }
    if address.local.is_unspecified() {
        return Ok(Outcome::Done); // Linux takes it and does nothing
    }
    let mut siblings = own.iter().filter(|other| other.prefix() == address.prefix());
    if let Some(first) = siblings.next() {
        if first.scope != address.scope || siblings.any(|other| other.scope != address.scope) {
            return Err(RequestError::new(EINVAL, "ipv4: Invalid scope value"));
        }
        address.flags |= IFA_F_SECONDARY;
    }
    insert4(router, Cause::from(request), address);
    Ok(Outcome::Done)
}

/// Linux: `ipv6_add_addr`.
fn check6(link: &Link, address: IpAddr) -> Result<(), RequestError> {
    if !link.ipv6() {
        return Err(RequestError::errno(EINVAL));
    }
    let not_available = |text| Err(RequestError::new(EADDRNOTAVAIL, text));
    if address.is_unspecified() {
        return not_available("ipv6: Invalid address");
    }
    if address.is_multicast() {
        return not_available("ipv6: Cannot assign multicast address without \"IFA_F_MCAUTOJOIN\" flag");
    }
    if address.is_loopback() && !matches!(link.kind, LinkKind::Loopback | LinkKind::Vrf { .. }) {
        return not_available("ipv6: Cannot assign loopback address on this device");
    }
    Ok(())
}

/// `RTM_DELADDR`. Linux: `inet_rtm_deladdr`, `inet6_rtm_deladdr`.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(request, Validate::Liberal)?;
    let local = if wanted.v6 { Some(wanted.addresses()?.0) } else { wanted.address(libc::IFA_LOCAL) };
    if wanted.v6 {
        wanted.check_length()?;
    }
    let link = wanted.link(router)?;
    if wanted.v6 && !link.ipv6() {
        return Err(RequestError::new(ENXIO, "ipv6: IPv6 is disabled on this device"));
    }
    let link = link.index;
    let label = wanted.attributes.get(libc::IFA_LABEL).map(|label| label.text()).filter(|_| !wanted.v6);
    let address = wanted.address(libc::IFA_ADDRESS).filter(|_| !wanted.v6);
    let matches = |own: &Address| {
        local.is_none_or(|local| own.local == local)
            && label.as_ref().is_none_or(|label| own.label == *label)
            && (!wanted.v6 || own.prefix_len == wanted.prefix_len)
            && address.is_none_or(|address| {
                own.prefix_len == wanted.prefix_len
                    && own.prefix().is_some_and(|prefix| prefix.contains(&address))
            })
    };
    let Some(position) = router.addresses.of(link, wanted.v6).iter().position(matches) else {
        let texts = ["ipv4: Address not found", "ipv6: address not found"];
        return Err(RequestError::new(EADDRNOTAVAIL, text(wanted.v6, texts)));
    };
    take_address(router, Cause::from(request), link, wanted.v6, position);
    Ok(Outcome::Done)
}

/// Changes what `replace` can change of an address: not its prefix length.
fn modify(router: &mut Router, cause: Cause, position: usize, new: Address) {
    let Some(own) = router.addresses.of_mut(new.link, new.local.is_ipv6()).get_mut(position) else {
        return;
    };
    // Linux: `inet6_addr_modify`, which takes none for no change.
    if new.metric != 0 || !own.local.is_ipv6() {
        own.metric = new.metric;
    }
    own.protocol = new.protocol;
    own.stamps[1] = new.stamps[1];
    if own.local.is_ipv6() {
        own.flags = new.flags;
        own.peer = new.peer.or(own.peer);
    }
    let changed = own.clone();
    notify_address(router, cause, RTM_NEWADDR, &changed);
    refresh_routes(router, cause, changed.link);
}

/// Takes an address away; with a primary IPv4 address go its secondary ones. Linux: `__inet_del_ifa`.
fn take_address(router: &mut Router, cause: Cause, link: u32, v6: bool, position: usize) {
    let list = router.addresses.of_mut(link, v6);
    if position >= list.len() {
        return;
    }
    let doomed = list.remove(position);
    let mut gone = Vec::new();
    if !v6 && !doomed.secondary() {
        gone.extend(list.extract_if(.., |own| own.secondary() && own.prefix() == doomed.prefix()));
    }
    gone.push(doomed);
    for address in gone {
        notify_address(router, cause, RTM_DELADDR, &address);
        address_gone(router, cause, &address);
    }
    if !v6 && router.addresses.v4(link).is_empty() {
        last_ipv4_gone(router, link);
    }
}
