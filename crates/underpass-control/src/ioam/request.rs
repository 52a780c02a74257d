//! Requests for namespaces and schemas of IOAM.

use libc::EOPNOTSUPP;
use underpass_netlink::genetlink::{self, ioam6};
use underpass_netlink::{Replies, RequestError};

use super::{BOTH, Change, Ioam, NAMESPACE, SCHEMA, write_namespace};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::link::publish::publish_link;
use crate::route::ioam::ioam_node;
use crate::route::recompile::recompile_ioam;
use crate::sysctl::Instance;
use crate::{Request, Router};

/// Answers a request to `IOAM6`.
pub(crate) fn answer(
    router: &mut Router,
    request: &Request<'_>,
    command: u8,
    _: bool,
    _: &mut Replies,
) -> Result<Outcome, RequestError> {
    let kind = request.message.kind;
    let (policy, change): (_, Change) = match command {
        ioam6::CMD_DUMP_NAMESPACES => {
            return Ok(Outcome::Dump(Box::new(Namespaces { kind, next: Some(0) })));
        }
        ioam6::CMD_DUMP_SCHEMAS => return Ok(Outcome::Dump(Box::new(Schemas { kind, next: Some(0) }))),
        ioam6::CMD_ADD_NAMESPACE => (&NAMESPACE, Ioam::add_namespace),
        ioam6::CMD_DEL_NAMESPACE => (&NAMESPACE, Ioam::delete_namespace),
        ioam6::CMD_ADD_SCHEMA => (&SCHEMA, Ioam::add_schema),
        ioam6::CMD_DEL_SCHEMA => (&SCHEMA, Ioam::delete_schema),
        ioam6::CMD_NS_SET_SCHEMA => (&BOTH, Ioam::set_schema),
        _ => return Err(RequestError::errno(EOPNOTSUPP)),
    };
    let (_, attributes) = request.parse::<4, 8>(policy, underpass_netlink::Validate::Liberal)?;
    change(&mut router.ioam, &attributes)?;
    router.ioam.generation += 1;
    publish_ioam(router);
    Ok(Outcome::Done)
}

/// The namespaces from `next` on; `None` once the last was told.
struct Namespaces {
    kind: u16,
    next: Option<u16>,
}

impl Dump for Namespaces {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let rest = self.next.map(|next| router.ioam.namespaces.range(next..));
        let Some((&id, namespace)) = rest.and_then(|mut rest| rest.next()) else { return Ok(More::No) };
        self.next = id.checked_add(1);
        out.message(self.kind, |reply| write_namespace(reply, id, namespace))?;
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.ioam.generation
    }
}

/// The schemas from `next` on; `None` once the last was told.
struct Schemas {
    kind: u16,
    next: Option<u32>,
}

impl Dump for Schemas {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let rest = self.next.map(|next| router.ioam.schemas.range(next..));
        let Some((&id, schema)) = rest.and_then(|mut rest| rest.next()) else { return Ok(More::No) };
        self.next = id.checked_add(1);
        out.message(self.kind, |reply| {
            reply.fixed(&genetlink::header(ioam6::CMD_DUMP_SCHEMAS, ioam6::VERSION));
            reply.u32(ioam6::ATTR_SC_ID, id);
            reply.attribute(ioam6::ATTR_SC_DATA, &schema.data);
            if let Some(namespace) = schema.namespace {
                reply.u16(ioam6::ATTR_NS_ID, namespace);
            }
        })?;
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.ioam.generation
    }
}

/// Publishes what has changed of the node or of the namespaces.
pub(crate) fn publish_ioam(router: &mut Router) {
    let node = ioam_node(router);
    router.engine.set_ioam(node);
    recompile_ioam(router);
}

/// A variable of the node or of its links has changed.
pub(crate) fn ioam_changed(router: &mut Router, instance: Instance) {
    match instance {
        Instance::Link(link) => {
            publish_link(router, link);
            // Whose the packets with options are follows from it.
            router.links.generation += 1;
        }
        // Links have their own values, which `default` gives to those to come alone.
        Instance::All | Instance::Default => return,
        Instance::One => {}
    }
    publish_ioam(router);
}
