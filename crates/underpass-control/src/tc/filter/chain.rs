//! `tc chain`: Linux's `tc_ctl_chain`, `tc_dump_chain`.

use libc::{EEXIST, EINVAL, ENOENT, EOPNOTSUPP};
use underpass_netlink::tc::{self, TCA_CHAIN, TCA_KIND, TCA_OPTIONS};
use underpass_netlink::{Replies, RequestError};

use super::encode::{NEW, RTM_DELCHAIN, RTM_NEWCHAIN, notify_chain, write_chain};
use super::hook::{find_block, find_block_to_show};
use super::publish::publish_place;
use super::request::{chain_index, flush_chain, parse};
use super::{Chain, flower};
use crate::dump::{Chunk, Dump, Empty, More, Outcome};
use crate::events::Cause;
use crate::tc::parent::Block;
use crate::{Request, Router};

/// `RTM_NEWCHAIN`.
pub(crate) fn change(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (header, attributes) = parse(request)?;
    let found = find_block(router, &header)?;
    let index = chain_index(&attributes)?;
    let chain = router.filters.chain(found.block, index);
    if chain.is_some_and(Chain::shown) {
        return Err(RequestError::new(EEXIST, "Filter chain already exists"));
    }
    if chain.is_none() && !request.create() {
        let message = "Need both RTM_NEWCHAIN and NLM_F_CREATE to create a new chain";
        return Err(RequestError::new(ENOENT, message));
    }
    let template = match attributes.get(TCA_KIND).map(|kind| kind.text()).as_deref() {
        None => None,
        Some("flower") => {
            Some(Box::new(flower::Template::parse(&router.links, attributes.get(TCA_OPTIONS))?))
        }
        Some(kind) if kind.len() >= libc::IFNAMSIZ => {
            return Err(RequestError::new(EINVAL, "Specified TC chain template name too long"));
        }
        Some("u32" | "basic" | "matchall" | "fw" | "bpf" | "cgroup" | "flow" | "route" | "tcindex") => {
            let message = "Chain templates are not supported with specified classifier";
            return Err(RequestError::new(EOPNOTSUPP, message));
        }
        Some(_) => return Err(RequestError::new(ENOENT, "TC classifier not found")),
    };
    let chain = router.filters.ensure_chain(found.block, index);
    chain.explicit = true;
    chain.template = template;
    if let Some(place) = router.filters.places.get_mut(&found.block) {
        place.qdisc = found.qdisc;
    }
    router.filters.generation += 1;
    notify_chain(router, request.into(), found.block, index, RTM_NEWCHAIN, NEW);
    Ok(Outcome::Done)
}

/// `RTM_DELCHAIN`.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (header, attributes) = parse(request)?;
    let found = find_block(router, &header)?;
    let index = chain_index(&attributes)?;
    let chain = router.filters.chain(found.block, index).filter(|chain| chain.shown());
    chain.ok_or(RequestError::new(EINVAL, "Cannot find specified filter chain"))?;
    flush_chain(router, request, found.block, index);
    notify_chain(router, Cause::default(), found.block, index, RTM_DELCHAIN, 0);
    if let Some(chain) = router.filters.chain_mut(found.block, index) {
        chain.explicit = false;
        chain.template = None;
    }
    router.filters.tidy(found.block, index);
    router.filters.generation += 1;
    publish_place(router, found.block);
    Ok(Outcome::Done)
}

/// `RTM_GETCHAIN`.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let (header, attributes) = parse(request)?;
    let found = find_block(router, &header)?;
    let index = chain_index(&attributes)?;
    let chain = router.filters.chain(found.block, index).filter(|chain| chain.shown());
    let chain = chain.ok_or(RequestError::new(EINVAL, "Cannot find specified filter chain"))?;
    let (kind, flags) = (request.message.kind, request.message.flags);
    replies.message(kind, flags, request.reply_to(), |reply| {
        write_chain(router, reply, found.block, found.qdisc, chain);
    })?;
    Ok(Outcome::Done)
}

struct ChainDump {
    block: Block,
    qdisc: u32,
    chain: Option<u32>,
    at: usize,
}

/// `RTM_GETCHAIN` for all of a place.
pub(crate) fn dump(router: &Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let empty = || Ok(Outcome::Dump(Box::new(Empty)));
    let Ok(_) = request.fixed::<{ tc::HEADER }>() else { return empty() };
    let (header, attributes) = parse(request)?;
    let Ok(found) = find_block_to_show(router, &header) else { return empty() };
    let chain = attributes.get(TCA_CHAIN).map(|chain| chain.u32());
    Ok(Outcome::Dump(Box::new(ChainDump { block: found.block, qdisc: found.qdisc, chain, at: 0 })))
}

impl Dump for ChainDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let place = router.filters.places.get(&self.block);
        let Some(chain) = place.and_then(|place| place.chains.get(self.at)) else { return Ok(More::No) };
        self.at += 1;
        if chain.shown() && self.chain.is_none_or(|wanted| wanted == chain.index) {
            out.message(RTM_NEWCHAIN, |reply| write_chain(router, reply, self.block, self.qdisc, chain))?;
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.filters.generation
    }
}
