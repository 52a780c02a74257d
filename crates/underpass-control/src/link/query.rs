//! `RTM_GETLINK`: one link, or all that pass a filter.

use libc::{EINVAL, ENODEV, RTM_NEWLINK};
use underpass_netlink::{Attributes, Replies, Reply, RequestError, Type, Validate, policy};

use super::Link;
use super::bridge::query::PortDump;
use super::encode::{Above, count_link, write_link};
use super::rewrite::write_reported;
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::{Request, Router};

const POLICY: [Type; 66] = policy(&[
    (libc::IFLA_IFNAME, Type::String(15)),
    (libc::IFLA_MASTER, Type::U32),
    (libc::IFLA_LINKINFO, Type::Nested),
    (libc::IFLA_EXT_MASK, Type::U32),
    (libc::IFLA_ALT_IFNAME, Type::String(127)),
    (libc::IFLA_TARGET_NETNSID, Type::Unsupported),
]);
const KIND: [Type; 6] = policy(&[(libc::IFLA_INFO_KIND, Type::String(55))]);
/// `RTEXT_FILTER_SKIP_STATS`.
const SKIP_STATS: u32 = 1 << 3;

/// Whether the fields of a `struct ifinfomsg` that mean nothing in a question are 0.
fn quiet(header: &[u8; 16]) -> bool {
    header[1..4].iter().chain(&header[8..]).all(|&byte| byte == 0)
}

fn parse<'a>(
    request: &Request<'a>,
    texts: [&'static str; 3],
    known: &[u16],
) -> Result<([u8; 16], Attributes<'a, 66>), RequestError> {
    let header = request.fixed::<16>().map_err(|_| RequestError::new(EINVAL, texts[0]))?;
    if request.strict && !quiet(&header) {
        return Err(RequestError::new(EINVAL, texts[1]));
    }
    let (_, attributes) = request.parse::<16, 66>(&POLICY, request.validate())?;
    if request.strict
        && let Some(odd) = attributes.iter().find(|attribute| !known.contains(&attribute.kind))
    {
        return Err(odd.invalid(texts[2]));
    }
    Ok((header, attributes))
}

fn index_of(header: &[u8; 16]) -> i32 {
    i32::from_ne_bytes([header[4], header[5], header[6], header[7]])
}

/// Answers a question about one link.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let texts = [
        "Invalid header for get link",
        "Invalid values in header for get link request",
        "Unsupported attribute in get link request",
    ];
    let known = [libc::IFLA_IFNAME, libc::IFLA_ALT_IFNAME, libc::IFLA_EXT_MASK];
    let (header, attributes) = parse(request, texts, &known)?;
    let name = attributes.get(libc::IFLA_IFNAME).or(attributes.get(libc::IFLA_ALT_IFNAME));
    let link = match (index_of(&header), name) {
        (index @ 1.., _) => router.links.get(index as u32),
        (_, Some(name)) => router.links.named(&name.text()),
        _ => return Err(RequestError::errno(EINVAL)),
    };
    let link = link.ok_or(RequestError::errno(ENODEV))?;
    let mask = attributes.get(libc::IFLA_EXT_MASK).map_or(0, |mask| mask.u32());
    replies.message(RTM_NEWLINK, 0, request.reply_to(), |reply| write_shown(router, reply, link, mask))?;
    Ok(Outcome::Done)
}

fn write_shown(router: &Router, reply: &mut Reply<'_>, link: &Link, mask: u32) {
    let count = (mask & SKIP_STATS == 0).then(|| count_link(router, link));
    write_link(reply, link, 0, count, &Above::of(router, link));
}

/// A dump of links, after the last one written.
struct LinkDump {
    last: u32,
    mask: u32,
    /// Only those enslaved to this link.
    master: Option<u32>,
    /// Only those of this kind.
    kind: Option<String>,
}

/// Starts a dump of links.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let texts = [
        "Invalid header for link dump",
        "Invalid values in header for link dump request",
        "Unsupported attribute in link dump request",
    ];
    let known = [libc::IFLA_MASTER, libc::IFLA_LINKINFO, libc::IFLA_EXT_MASK];
    let (header, attributes) = match parse(request, texts, &known) {
        // Some clients send no more than a `struct rtgenmsg`.
        Err(_) if !request.strict && request.message.body().len() < 16 => {
            ([0; 16], Attributes::parse(&POLICY, &[], 0, Validate::Liberal)?)
        }
        parsed => parsed?,
    };
    if request.strict && index_of(&header) != 0 {
        return Err(RequestError::new(EINVAL, "Filter by device index not supported for link dumps"));
    }
    let kind = match attributes.get(libc::IFLA_LINKINFO) {
        Some(info) => info.parse_nested(&KIND, Validate::Liberal)?.get(libc::IFLA_INFO_KIND),
        None => None,
    };
    let mask = attributes.get(libc::IFLA_EXT_MASK).map_or(0, |mask| mask.u32());
    if i32::from(request.family()) == libc::AF_BRIDGE {
        return Ok(Outcome::Dump(Box::new(PortDump { last: 0, mask })));
    }
    Ok(Outcome::Dump(Box::new(LinkDump {
        last: 0,
        mask,
        master: attributes.get(libc::IFLA_MASTER).map(|master| master.u32()).filter(|&master| master != 0),
        kind: kind.map(|kind| kind.text()),
    })))
}

impl Dump for LinkDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some(link) = router.links.after(self.last) else { return Ok(More::No) };
        self.last = link.index;
        let of_master = match self.master {
            Some(u32::MAX) => link.master.is_none(),
            Some(master) => link.master == Some(master),
            None => true,
        };
        if of_master && (self.kind.is_none() || self.kind.as_deref() == link.kind.name()) {
            out.message(RTM_NEWLINK, |reply| {
                if !write_reported(router, reply, link.index) {
                    write_shown(router, reply, link, self.mask);
                }
            })?;
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.links.generation
    }

    fn filtered(&self) -> bool {
        self.master.is_some() || self.kind.is_some()
    }
}
