//! `RTM_GETADDR` for one address.

use libc::{AF_INET6, EADDRNOTAVAIL, EINVAL, EOPNOTSUPP, RTM_NEWADDR};
use underpass_netlink::{Replies, RequestError};

use super::Address;
use super::change::Wanted;
use super::query::write_address;
use crate::dump::Outcome;
use crate::{Request, Router};

/// Answers a question about one IPv6 address; Linux has none about one of IPv4. Linux: `inet6_rtm_getaddr`.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    if i32::from(request.family()) != AF_INET6 {
        return Err(RequestError::errno(EOPNOTSUPP));
    }
    let invalid = |text| RequestError::new(EINVAL, text);
    let header = request.fixed::<8>();
    let header = header.map_err(|_| invalid("ipv6: Invalid header for get address request"))?;
    if request.strict && header[1..4] != [0; 3] {
        return Err(invalid("ipv6: Invalid values in header for get address request"));
    }
    let wanted = Wanted::parse(request, request.validate())?;
    let known = [libc::IFA_ADDRESS, libc::IFA_LOCAL];
    if request.strict && wanted.attributes.iter().any(|attribute| !known.contains(&attribute.kind)) {
        return Err(invalid("ipv6: Unsupported attribute in get address request"));
    }
    let (local, _) = wanted.addresses()?;
    // Of any link, also where the one that is named is not there.
    let link = router.links.get(wanted.link).map(|link| link.index);
    let is_meant = |own: &&Address| own.local == local && link.is_none_or(|link| own.link == link);
    let address = router.addresses.iter().find(is_meant).ok_or(RequestError::errno(EADDRNOTAVAIL))?;
    replies.message(RTM_NEWADDR, 0, request.reply_to(), |reply| write_address(reply, address))?;
    Ok(Outcome::Done)
}
