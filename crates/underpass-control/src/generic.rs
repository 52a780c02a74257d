//! Generic netlink: `nlctrl`, which knows the families, `SEG6`, `IOAM6` and `fou`. Linux: `net/netlink/genetlink.c`,
//! `net/ipv6/seg6.c`.

use std::net::Ipv6Addr;

use libc::{EINVAL, ENOENT, EOPNOTSUPP};
use netlink_packet_core::NLM_F_DUMP;
use underpass_netlink::genetlink::{self, control, ioam6, seg6};
use underpass_netlink::{Message, Replies, Reply, RequestError, Type, Validate, fou, policy};

use crate::dump::{Chunk, Dump, More, Outcome};
use crate::link::tunnel::publish::publish_tunnels_from_any;
use crate::route::recompile::tunnel_source_changed;
use crate::{Request, Router, hmac, psample};

/// A command needs `CAP_NET_ADMIN`.
const ADMIN: u32 = 1;
/// A command does one thing.
const DO: u32 = 2;
/// A command dumps.
const DUMP: u32 = 4;
/// A command's attributes have a policy.
const POLICY: u32 = 8;

struct Family {
    id: u16,
    /// Its id beside a kernel, whose own families have low ones. `None`: the kernel's own family is the one.
    beside_kernel: Option<u16>,
    name: &'static str,
    version: u32,
    max_attribute: u16,
    /// Commands and what they can do.
    operations: &'static [(u8, u32)],
    /// Names and numbers of its multicast groups.
    groups: &'static [(&'static str, u32)],
    /// Answers a command.
    answer: fn(&mut Router, &Request<'_>, u8, bool, &mut Replies) -> Result<Outcome, RequestError>,
}

const FAMILIES: &[Family] = &[
    Family {
        id: control::ID,
        beside_kernel: None,
        name: "nlctrl",
        version: 2,
        max_attribute: 0,
        operations: &[(control::GETFAMILY, DO | DUMP | POLICY)],
        groups: &[],
        answer: control,
    },
    Family {
        id: 0x18,
        beside_kernel: Some(0x3f6),
        name: "SEG6",
        version: 1,
        max_attribute: seg6::ATTR_MAX,
        operations: &[
            (seg6::CMD_SETHMAC, ADMIN | DO | POLICY),
            (seg6::CMD_DUMPHMAC, ADMIN | DUMP),
            (seg6::CMD_SET_TUNSRC, ADMIN | DO | POLICY),
            (seg6::CMD_GET_TUNSRC, ADMIN | DO | POLICY),
        ],
        groups: &[],
        answer: answer_seg6,
    },
    Family {
        id: 0x19,
        beside_kernel: Some(0x3f7),
        name: "IOAM6",
        version: ioam6::VERSION as u32,
        max_attribute: 0,
        operations: &[
            (ioam6::CMD_ADD_NAMESPACE, ADMIN | DO | POLICY),
            (ioam6::CMD_DEL_NAMESPACE, ADMIN | DO | POLICY),
            (ioam6::CMD_DUMP_NAMESPACES, ADMIN | DUMP),
            (ioam6::CMD_ADD_SCHEMA, ADMIN | DO | POLICY),
            (ioam6::CMD_DEL_SCHEMA, ADMIN | DO | POLICY),
            (ioam6::CMD_DUMP_SCHEMAS, ADMIN | DUMP),
            (ioam6::CMD_NS_SET_SCHEMA, ADMIN | DO | POLICY),
        ],
        groups: &[],
        answer: crate::ioam::request::answer,
    },
    Family {
        id: 0x1a,
        beside_kernel: Some(0x3f8),
        name: "fou",
        version: fou::VERSION as u32,
        max_attribute: fou::ATTR_MAX,
        operations: &[
            (fou::CMD_ADD, ADMIN | DO | POLICY),
            (fou::CMD_DEL, ADMIN | DO | POLICY),
            (fou::CMD_GET, DO | DUMP | POLICY),
        ],
        groups: &[],
        answer: crate::fou::request::answer,
    },
    Family {
        id: 0x1b,
        beside_kernel: Some(0x3f9),
        name: psample::NAME,
        version: genetlink::psample::VERSION as u32,
        max_attribute: genetlink::psample::ATTR_MAX,
        operations: &[(genetlink::psample::CMD_GET_GROUP, DUMP)],
        groups: psample::MULTICAST,
        answer: psample::answer,
    },
];

const CONTROL: [Type; 11] =
    policy(&[(control::ATTR_FAMILY_ID, Type::U16), (control::ATTR_FAMILY_NAME, Type::String(15))]);
const SEG6: [Type; 8] = policy(&[
    (seg6::ATTR_DST, Type::AtMost(16)),
    (2, Type::U32), // SEG6_ATTR_DSTLEN
    (seg6::ATTR_HMACKEYID, Type::U32),
    (seg6::ATTR_SECRET, Type::Any),
    (seg6::ATTR_SECRETLEN, Type::U8),
    (seg6::ATTR_ALGID, Type::U8),
    (7, Type::Nested),
]);

/// Answers a generic netlink request. Linux: `genl_rcv_msg`.
pub(crate) fn answer(
    router: &mut Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let kind = request.message.kind;
    let live = router.live.is_some();
    let family =
        FAMILIES.iter().find(|family| family.id_where(live) == kind).ok_or(RequestError::errno(ENOENT))?;
    let header = request.message.body().first_chunk::<{ genetlink::HEADER }>();
    let command = header.ok_or(RequestError::errno(EINVAL))?[0];
    let dump = request.message.flags & NLM_F_DUMP == NLM_F_DUMP;
    let wanted = if dump { DUMP } else { DO };
    if !family.operations.iter().any(|&(known, can)| known == command && can & wanted != 0) {
        return Err(RequestError::errno(EOPNOTSUPP));
    }
    (family.answer)(router, request, command, dump, replies)
}

impl Family {
    /// Its id, beside a kernel or not.
    fn id_where(&self, live: bool) -> u16 {
        self.beside_kernel.filter(|_| live).unwrap_or(self.id)
    }
}

/// Whether a request is for the router's own families, or asks for one.
pub(crate) fn is_own(message: &Message<'_>) -> bool {
    let mut attributes = message.attributes(genetlink::HEADER);
    let own = |id: u16| FAMILIES.iter().any(|family| family.beside_kernel == Some(id));
    let named =
        |name: &str| FAMILIES.iter().any(|family| family.beside_kernel.is_some() && family.name == name);
    match message.kind {
        control::ID => attributes.any(|attribute| match attribute.kind {
            control::ATTR_FAMILY_NAME => named(&attribute.text()),
            control::ATTR_FAMILY_ID => own(attribute.u16()),
            _ => false,
        }),
        kind => own(kind),
    }
}

fn write_family(reply: &mut Reply<'_>, family: &Family, beside_kernel: bool) {
    reply.fixed(&genetlink::header(control::NEWFAMILY, 2));
    reply.text(control::ATTR_FAMILY_NAME, family.name);
    reply.u16(control::ATTR_FAMILY_ID, family.id_where(beside_kernel));
    reply.u32(control::ATTR_VERSION, family.version);
    reply.u32(control::ATTR_HDRSIZE, 0);
    reply.u32(control::ATTR_MAXATTR, u32::from(family.max_attribute));
    let operations = reply.nest_unflagged(control::ATTR_OPS);
    for (number, &(command, flags)) in (1..).zip(family.operations) {
        let operation = reply.nest_unflagged(number);
        reply.u32(control::ATTR_OP_ID, u32::from(command));
        reply.u32(control::ATTR_OP_FLAGS, flags);
        reply.end(operation);
    }
    reply.end(operations);
    if family.groups.is_empty() {
        return;
    }
    let groups = reply.nest_unflagged(control::ATTR_MCAST_GROUPS);
    for (number, &(name, id)) in (1..).zip(family.groups) {
        let group = reply.nest_unflagged(number);
        reply.u32(control::ATTR_MCAST_GRP_ID, id);
        reply.text(control::ATTR_MCAST_GRP_NAME, name);
        reply.end(group);
    }
    reply.end(groups);
}

/// The id of a family of the router's.
pub(crate) fn family_id(router: &Router, name: &str) -> u16 {
    let family = FAMILIES.iter().find(|family| family.name == name);
    family.map_or(0, |family| family.id_where(router.live.is_some()))
}

/// `CTRL_CMD_GETFAMILY`: by id, else by name, or all.
fn control(
    router: &mut Router,
    request: &Request<'_>,
    _: u8,
    dump: bool,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    if dump {
        return Ok(Outcome::Dump(Box::new(FamilyDump { next: 0 })));
    }
    let (_, attributes) = request.parse::<4, 11>(&CONTROL, Validate::Liberal)?;
    let id = attributes.get(control::ATTR_FAMILY_ID).map(|id| id.u16());
    let name = attributes.get(control::ATTR_FAMILY_NAME).map(|name| name.text());
    if id.is_none() && name.is_none() {
        return Err(RequestError::errno(EINVAL));
    }
    // As in Linux, the name decides where both are there.
    let meant = |family: &&Family| match &name {
        Some(name) => family.name == name,
        None => Some(family.id_where(router.live.is_some())) == id,
    };
    let family = FAMILIES.iter().find(meant).ok_or(RequestError::errno(ENOENT))?;
    replies.message(control::ID, 0, request.reply_to(), |reply| {
        write_family(reply, family, router.live.is_some());
    })?;
    Ok(Outcome::Done)
}

struct FamilyDump {
    next: usize,
}

impl Dump for FamilyDump {
    fn next(&mut self, _: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some(family) = FAMILIES.get(self.next) else { return Ok(More::No) };
        self.next += 1;
        out.message(control::ID, |reply| write_family(reply, family, false))?;
        Ok(More::Yes)
    }

    fn generation(&self, _: &Router) -> u64 {
        0 // the families never change
    }
}

fn answer_seg6(
    router: &mut Router,
    request: &Request<'_>,
    command: u8,
    _: bool,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let (_, attributes) = request.parse::<4, 8>(&SEG6, Validate::Liberal)?;
    match command {
        seg6::CMD_DUMPHMAC => Ok(Outcome::Dump(hmac::request::dump(request))),
        seg6::CMD_SETHMAC => hmac::request::set(router, &attributes).map(|()| Outcome::Done),
        seg6::CMD_SET_TUNSRC => {
            let source = attributes.get(seg6::ATTR_DST).ok_or(RequestError::errno(EINVAL))?.ipv6();
            set_tunnel_source(router, source);
            Ok(Outcome::Done)
        }
        seg6::CMD_GET_TUNSRC => {
            replies.message(request.message.kind, 0, request.reply_to(), |reply| {
                reply.fixed(&genetlink::header(seg6::CMD_GET_TUNSRC, 1));
                reply.attribute(seg6::ATTR_DST, &router.tunnel_source.octets());
            })?;
            Ok(Outcome::Done)
        }
        _ => Err(RequestError::errno(EOPNOTSUPP)),
    }
}

fn set_tunnel_source(router: &mut Router, source: Ipv6Addr) {
    router.tunnel_source = source;
    tunnel_source_changed(router);
    publish_tunnels_from_any(router);
}
