//! `RTM_NEWADDR` as Linux writes it, and dumps of addresses.

use libc::{AF_INET, AF_INET6, EINVAL, ENODEV, RTM_NEWADDR};
use underpass_netlink::{Attributes, Reply, RequestError, Type, Validate, policy};

use super::Address;
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::{Request, Router};

pub(super) const IFA_RT_PRIORITY: u16 = 9;
const IFA_TARGET_NETNSID: u16 = 10;
pub(super) const IFA_PROTO: u16 = 11;
const GROUP_IPV4: u32 = libc::RTNLGRP_IPV4_IFADDR;
const GROUP_IPV6: u32 = libc::RTNLGRP_IPV6_IFADDR;

const POLICY: [Type; 12] = policy(&[(IFA_TARGET_NETNSID, Type::Unsupported)]);

pub(super) fn write_address(reply: &mut Reply<'_>, address: &Address) {
    let family = if address.local.is_ipv6() { AF_INET6 } else { AF_INET };
    let [a, b, c, d] = address.link.to_ne_bytes();
    reply.fixed(&[family as u8, address.prefix_len, address.flags as u8, address.scope, a, b, c, d]);
    if address.local.is_ipv4() || address.peer.is_some() {
        reply.address(libc::IFA_ADDRESS, address.peer.unwrap_or(address.local));
        reply.address(libc::IFA_LOCAL, address.local);
    } else {
        reply.address(libc::IFA_ADDRESS, address.local);
    }
    if let Some(broadcast) = address.broadcast {
        reply.address(libc::IFA_BROADCAST, broadcast.into());
    }
    if address.local.is_ipv4() && !address.label.is_empty() {
        reply.text(libc::IFA_LABEL, &address.label);
    }
    if address.protocol != 0 {
        reply.u8(IFA_PROTO, address.protocol);
    }
    reply.u32(libc::IFA_FLAGS, address.flags);
    if address.metric != 0 {
        reply.u32(IFA_RT_PRIORITY, address.metric);
    }
    // struct ifa_cacheinfo: preferred and valid lifetimes, for ever; stamps of creation and change.
    let [created, changed] = address.stamps;
    let info: Vec<u8> =
        [u32::MAX, u32::MAX, created, changed].into_iter().flat_map(u32::to_ne_bytes).collect();
    reply.attribute(libc::IFA_CACHEINFO, &info);
}

pub(super) fn notify_address(router: &mut Router, cause: Cause, kind: u16, address: &Address) {
    let group = if address.local.is_ipv6() { GROUP_IPV6 } else { GROUP_IPV4 };
    router.events.notify(cause, group, kind, 0, |reply| write_address(reply, address));
}

/// A dump of addresses: the place is a family, a link and a position in its list.
struct AddressDump {
    families: std::vec::IntoIter<bool>,
    v6: Option<bool>,
    link: u32,
    position: usize,
    /// Only those of this link.
    only: Option<u32>,
}

/// Starts a dump of addresses: of one family, or of all.
pub(crate) fn dump(router: &Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let families = match i32::from(request.family()) {
        AF_INET => vec![false],
        AF_INET6 => vec![true],
        _ => vec![false, true],
    };
    let mut only = None;
    if request.strict {
        let texts = match families.contains(&false) {
            true => [
                "ipv4: Invalid header for address dump request",
                "ipv4: Invalid values in header for address dump request",
                "ipv4: Unsupported attribute in dump request",
            ],
            false => [
                "ipv6: Invalid header for address dump request",
                "ipv6: Invalid values in header for address dump request",
                "ipv6: Unsupported attribute in dump request",
            ],
        };
        let header = request.fixed::<8>().map_err(|_| RequestError::new(EINVAL, texts[0]))?;
        if header[1..4] != [0; 3] {
            return Err(RequestError::new(EINVAL, texts[1]));
        }
        let (_, attributes): (_, Attributes<'_, 12>) = request.parse::<8, 12>(&POLICY, Validate::Strict)?;
        if let Some(odd) = attributes.iter().next() {
            return Err(odd.invalid(texts[2]));
        }
        let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
        only = (index != 0).then_some(index);
        if only.is_some_and(|index| router.links.get(index).is_none()) {
            return Err(RequestError::errno(ENODEV));
        }
    }
    let mut families = families.into_iter();
    let v6 = families.next();
    let link = only.unwrap_or(0);
    Ok(Outcome::Dump(Box::new(AddressDump { families, v6, link, position: 0, only })))
}

impl Dump for AddressDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some(v6) = self.v6 else { return Ok(More::No) };
        if let Some(address) = router.addresses.of(self.link, v6).get(self.position) {
            self.position += 1;
            out.message(RTM_NEWADDR, |reply| write_address(reply, address))?;
            return Ok(More::Yes);
        }
        self.position = 0;
        match router.links.after(self.link).filter(|_| self.only.is_none()) {
            Some(link) => self.link = link.index,
            None => {
                self.v6 = self.families.next();
                self.link = self.only.unwrap_or(0);
            }
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.addresses.generation
    }

    fn filtered(&self) -> bool {
        self.only.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_ip_reads() {
        use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
        use netlink_packet_route::RouteNetlinkMessage;
        use netlink_packet_route::address::AddressAttribute;
        let address = Address {
            link: 3,
            local: [10, 0, 0, 1].into(),
            peer: None,
            prefix_len: 24,
            broadcast: Some([10, 0, 0, 255].into()),
            label: "v0".into(),
            scope: 0,
            flags: libc::IFA_F_PERMANENT,
            metric: 7,
            protocol: 0,
            stamps: [1, 2],
        };
        let mut bytes = Vec::new();
        underpass_netlink::reply::write_message(&mut bytes, RTM_NEWADDR, 0, Default::default(), |reply| {
            write_address(reply, &address);
        })
        .unwrap();
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes).unwrap();
        let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(message)) = message.payload else {
            panic!("not an address");
        };
        assert_eq!((message.header.index, message.header.prefix_len), (3, 24));
        assert!(message.attributes.contains(&AddressAttribute::Local([10, 0, 0, 1].into())));
        assert!(message.attributes.contains(&AddressAttribute::Label("v0".into())));
    }
}
