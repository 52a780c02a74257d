//! `tc filter`: Linux's `tc_new_tfilter`, `tc_del_tfilter`, `tc_get_tfilter`, `tc_dump_tfilter`.

use libc::{EEXIST, EINVAL, ENOENT};
use netlink_packet_core::NLM_F_CREATE;
use underpass_engine::tables::EstimatorConfig;
use underpass_netlink::tc::{self, Bits, Header, TCA_CHAIN, TCA_DUMP_FLAGS, TCA_KIND, TCA_OPTIONS, TCA_RATE};
use underpass_netlink::{Attributes, Replies, RequestError, Type, Validate};

use super::common::PriorityName;
use super::encode::{self, filter_message, notify_chain, notify_filter, send_prepared, write_filter};
use super::flower::change::change_flower;
use super::hook::{drop_common, remove_priority};
use super::hook::{find_block, find_block_to_show};
use super::publish::{publish_added, publish_filters};
use super::simple::{change_basic, change_fw, change_matchall};
use super::u32::change::{change_u32, delete_node};
use super::{Change, Classifier, Context, Priority};
use crate::dump::{Chunk, Dump, Empty, More, Outcome};
use crate::events::Cause;
use crate::tc::action::change::small_burst;
use crate::tc::parent::{Block, Found};
use crate::{Request, Router};

/// `RTM_NEWTFILTER`.
const RTM_NEWTFILTER: u16 = libc::RTM_NEWTFILTER;
/// `RTM_DELTFILTER`.
const RTM_DELTFILTER: u16 = libc::RTM_DELTFILTER;
/// Attributes of a request.
pub(super) const MAX: usize = tc::TCA_MAX as usize + 1;

/// A request that names a filter.
struct Named<'a> {
    header: Header,
    attributes: Attributes<'a, MAX>,
    found: Found,
    chain: u32,
    number: u16,
    protocol: u16,
    kind: Option<String>,
}

impl<'a> Named<'a> {
    fn name(&self) -> PriorityName {
        PriorityName { block: self.found.block, chain: self.chain, number: self.number }
    }

    /// Whether a kind that the request names is that of the priority.
    fn check_kind(&self, priority: &Priority) -> Result<(), RequestError> {
        if self.kind.as_deref().is_some_and(|kind| kind != priority.classifier.kind()) {
            return Err(RequestError::new(EINVAL, "Specified filter kind does not match existing one"));
        }
        Ok(())
    }

    fn new(router: &Router, header: Header, attributes: Attributes<'a, MAX>) -> Result<Self, RequestError> {
        let found = find_block(router, &header)?;
        let kind = attributes.get(TCA_KIND).map(|kind| kind.text());
        if kind.as_ref().is_some_and(|kind| kind.len() >= libc::IFNAMSIZ) {
            return Err(RequestError::new(EINVAL, "Specified TC filter name too long"));
        }
        let chain = chain_index(&attributes)?;
        let number = (header.info >> 16) as u16;
        Ok(Self { header, attributes, found, chain, number, protocol: protocol(&header), kind })
    }
}

/// The protocol of a request, in host byte order; 0 for any.
const fn protocol(header: &Header) -> u16 {
    u16::from_be(header.info as u16)
}

/// The chain that a request names.
pub(super) fn chain_index(attributes: &Attributes<'_, MAX>) -> Result<u32, RequestError> {
    let chain = attributes.get(TCA_CHAIN).map_or(0, |chain| chain.u32());
    if chain > underpass_netlink::tc::action::VALUE {
        return Err(RequestError::new(EINVAL, "Specified chain index exceeds upper limit"));
    }
    Ok(chain)
}

/// Header and attributes of a request.
pub(super) fn parse<'a>(request: &Request<'a>) -> Result<(Header, Attributes<'a, MAX>), RequestError> {
    let (header, attributes) = request.parse::<{ tc::HEADER }, MAX>(&tc::POLICY, Validate::Liberal)?;
    Ok((Header::read(&header), attributes))
}

const ZERO: &str = "Invalid filter command with priority of zero";
const NOT_FOUND: &str = "Filter with specified priority/protocol not found";
const NEED_CREATE: &str = "Need both RTM_NEWTFILTER and NLM_F_CREATE to create a new filter";

/// `RTM_NEWTFILTER`.
pub(crate) fn change(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (header, attributes) = parse(request)?;
    let automatic = header.info >> 16 == 0;
    if automatic && !request.create() {
        return Err(RequestError::new(ENOENT, ZERO));
    }
    let mut named = Named::new(router, header, attributes)?;
    if automatic {
        named.number = 0x8000;
    }
    let block = named.found.block;
    if let Some(place) = router.filters.places.get_mut(&block) {
        // Linux: `tc_new_tfilter`, before it looks at the filter.
        place.parent = named.found.parent;
    }
    let chain = router.filters.chain(block, named.chain);
    let new_chain = chain.is_none_or(|chain| !chain.shown());
    let template = chain.is_some_and(|chain| chain.template.is_some());
    let made = !has_priority(router, request, &mut named, automatic)?;
    let name = named.name();
    if made {
        make_priority(router, &named)?;
    }
    // Of a filter of u32 that is replaced, Linux tells what it was.
    let classifier = router.filters.classifier(name);
    let old = classifier.filter(|classifier| matches!(classifier, Classifier::U32(_)));
    let old = old.and_then(|classifier| classifier.find(&router.filters, name, header.handle));
    let replaced = old.and_then(|handle| filter_message(router, request, name, Some(handle), RTM_NEWTFILTER));
    // What is replaced may be used again for something else: that is in force at once.
    let added = router.filters.classifier(name).is_some_and(|classifier| match classifier {
        Classifier::Matchall(_) => false,
        classifier => classifier.find(&router.filters, name, header.handle).is_none(),
    });
    let changed = change_in(router, request, &named, template);
    let handle = match changed {
        Ok(handle) => handle,
        Err(error) => {
            if made {
                remove_priority(router, name);
            }
            return Err(error);
        }
    };
    if let Some(place) = router.filters.places.get_mut(&block) {
        place.parent = named.found.parent;
        place.qdisc = named.found.qdisc;
    }
    router.filters.generation += 1;
    match added {
        true => publish_added(router, block, named.found.qdisc),
        false => publish_filters(router, block, named.found.qdisc),
    }
    if new_chain {
        notify_chain(router, Cause::default(), block, name.chain, encode::RTM_NEWCHAIN, encode::NEW);
    }
    // Of one of matchall, that there is one.
    let unnamed = handle == 0 || matches!(router.filters.classifier(name), Some(Classifier::Matchall(_)));
    match replaced {
        Some(_) => send_prepared(router, request, replaced),
        None => notify_filter(router, request, name, Some(handle).filter(|_| !unnamed), RTM_NEWTFILTER),
    }
    let small = router.filters.exts_of(name, handle).map(|exts| exts.names().to_vec()).unwrap_or_default();
    let small = small.into_iter().find_map(|name| small_burst(router, name));
    Ok(small.map_or(Outcome::Done, crate::tc::action::warning))
}

/// Whether there is the priority of a filter that is added or changed. If not, it can be made; its number is chosen if the
/// request leaves that to be done.
fn has_priority(
    router: &Router,
    request: &Request<'_>,
    named: &mut Named<'_>,
    automatic: bool,
) -> Result<bool, RequestError> {
    let protocol = named.protocol;
    let chain = router.filters.chain(named.found.block, named.chain);
    let priorities = chain.map(|chain| &chain.priorities[..]).unwrap_or_default();
    let at = priorities.partition_point(|priority| priority.number < named.number);
    if let Some(existing) = priorities.get(at).filter(|priority| priority.number == named.number) {
        if automatic || protocol != 0 && existing.protocol != protocol {
            return Err(RequestError::new(EINVAL, NOT_FOUND));
        }
        named.check_kind(existing)?;
        return Ok(true);
    }
    if named.kind.is_none() || protocol == 0 {
        return Err(RequestError::new(EINVAL, "Filter kind and protocol must be specified"));
    }
    if !request.create() {
        return Err(RequestError::new(ENOENT, NEED_CREATE));
    }
    if automatic {
        // Below the one that would come after the middle: from 49152 down.
        named.number = priorities.get(at).map_or(0xc000, |next| next.number.wrapping_sub(1));
    }
    Ok(false)
}

/// Makes the priority of a filter that is added, without filters.
fn make_priority(router: &mut Router, named: &Named<'_>) -> Result<(), RequestError> {
    let (block, name, protocol) = (named.found.block, named.name(), named.protocol);
    router.filters.ensure_chain(block, named.chain);
    let kind = named.kind.clone().unwrap_or_default();
    let classifier = Classifier::new(&kind, &mut router.filters, name, named.found.qdisc)
        .inspect_err(|_| router.filters.tidy(block, named.chain))?;
    let chain = router.filters.ensure_chain(block, named.chain);
    let at = chain.priorities.partition_point(|priority| priority.number < name.number);
    chain.priorities.insert(at, Priority { number: name.number, protocol, classifier });
    Ok(())
}

/// Makes or changes a filter of a priority that is there; says its handle.
fn change_in(
    router: &mut Router,
    request: &Request<'_>,
    named: &Named<'_>,
    template: bool,
) -> Result<u32, RequestError> {
    let place = named.name();
    let missing = RequestError::new(ENOENT, NOT_FOUND);
    let priority = router.filters.priority(place).ok_or(missing)?;
    let handle = named.header.handle;
    let old = priority.classifier.find(&router.filters, place, handle);
    match old {
        None if !request.create() => return Err(RequestError::new(ENOENT, NEED_CREATE)),
        Some(_) if request.exclusive() => return Err(RequestError::new(EEXIST, "Filter already exists")),
        _ => {}
    }
    if template && !matches!(priority.classifier, Classifier::Flower(_)) {
        return Err(RequestError::new(EINVAL, "Chain template is set to a different filter kind"));
    }
    let change = Change {
        place,
        handle,
        options: named.attributes.get(TCA_OPTIONS),
        context: Context {
            block: Some(place.block),
            replace: request.message.flags & NLM_F_CREATE == 0,
            flags: 0,
            estimator: estimator(&named.attributes)?,
        },
    };
    match &priority.classifier {
        Classifier::U32(_) => change_u32(router, &change, old),
        Classifier::Basic(_) => change_basic(router, &change),
        Classifier::Flower(_) => change_flower(router, &change),
        Classifier::Matchall(_) => change_matchall(router, &change),
        Classifier::Fw(_) => change_fw(router, &change),
    }
}

/// `TCA_RATE`: the estimator of the actions. Linux: `gen_new_estimator`.
fn estimator(attributes: &Attributes<'_, MAX>) -> Result<Option<EstimatorConfig>, RequestError> {
    let Some(rate) = attributes.get(TCA_RATE) else { return Ok(None) };
    let &[interval, ewma_log, ..] = rate.value else { return Err(RequestError::errno(EINVAL)) };
    let interval = interval as i8;
    if !(-2..=3).contains(&interval) || ewma_log == 0 || ewma_log >= 31 {
        return Err(RequestError::errno(EINVAL));
    }
    Ok(Some(EstimatorConfig { interval, ewma_log }))
}

/// `RTM_DELTFILTER`: a filter, all of a priority, or all of a chain.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (header, attributes) = parse(request)?;
    let flush = header.info >> 16 == 0;
    if flush && (protocol(&header) != 0 || header.handle != 0 || attributes.get(TCA_KIND).is_some()) {
        return Err(RequestError::new(ENOENT, "Cannot flush filters with protocol, handle or kind set"));
    }
    let named = Named::new(router, header, attributes)?;
    let block = named.found.block;
    let Some(chain) = router.filters.chain(block, named.chain) else {
        if flush {
            return Ok(Outcome::Done);
        }
        return Err(RequestError::new(ENOENT, "Cannot find specified filter chain"));
    };
    let shown = chain.shown();
    let name = named.name();
    if flush {
        flush_chain(router, request, block, named.chain);
    } else {
        let priority = router.filters.priority(name).ok_or(RequestError::new(ENOENT, NOT_FOUND))?;
        if named.protocol != 0 && priority.protocol != named.protocol {
            return Err(RequestError::new(EINVAL, NOT_FOUND));
        }
        named.check_kind(priority)?;
        if header.handle == 0 {
            notify_filter(router, request, name, None, RTM_DELTFILTER);
            remove_priority(router, name);
        } else {
            let found = priority.classifier.find(&router.filters, name, header.handle);
            let handle = found.ok_or(RequestError::new(ENOENT, "Specified filter handle not found"))?;
            let prepared = filter_message(router, request, name, Some(handle), RTM_DELTFILTER);
            let last = delete_filter(router, name, handle)?;
            send_prepared(router, request, prepared);
            if last {
                remove_priority(router, name);
            }
        }
    }
    router.filters.generation += 1;
    publish_filters(router, block, named.found.qdisc);
    if shown && router.filters.chain(block, named.chain).is_none_or(|chain| !chain.shown()) {
        notify_chain(router, Cause::default(), block, named.chain, encode::RTM_DELCHAIN, 0);
    }
    Ok(Outcome::Done)
}

/// `RTM_GETTFILTER`.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let (header, attributes) = parse(request)?;
    if header.info >> 16 == 0 {
        return Err(RequestError::new(ENOENT, ZERO));
    }
    let named = Named::new(router, header, attributes)?;
    let name = named.name();
    if router.filters.chain(name.block, name.chain).is_none() {
        return Err(RequestError::new(EINVAL, "Cannot find specified filter chain"));
    }
    let priority = router.filters.priority(name).ok_or(RequestError::new(ENOENT, NOT_FOUND))?;
    if named.protocol != 0 && priority.protocol != named.protocol {
        return Err(RequestError::new(EINVAL, NOT_FOUND));
    }
    named.check_kind(priority)?;
    let handle = priority.classifier.find(&router.filters, name, header.handle);
    let handle = handle.ok_or(RequestError::new(ENOENT, "Specified filter handle not found"))?;
    replies.message(RTM_NEWTFILTER, request.message.flags, request.reply_to(), |reply| {
        write_filter(router, reply, name, Some(handle), false);
    })?;
    Ok(Outcome::Done)
}

/// Deletes a filter; says whether its priority has none any more.
fn delete_filter(router: &mut Router, name: PriorityName, handle: u32) -> Result<bool, RequestError> {
    let (common, last) = match router.filters.classifier_mut(name) {
        Some(Classifier::U32(root)) => {
            let root = *root;
            return delete_node(router, name, root, handle);
        }
        Some(Classifier::Basic(filters)) => (filters.take(handle), filters.0.is_empty()),
        Some(Classifier::Flower(filters)) => (filters.take(handle), filters.is_empty()),
        Some(Classifier::Fw(filters)) => (filters.take(handle), filters.filters.is_empty()),
        Some(Classifier::Matchall(_)) | None => (None, true),
    };
    if let Some(common) = common {
        drop_common(router, common);
    }
    Ok(last)
}

/// Deletes all filters of a chain.
pub(super) fn flush_chain(router: &mut Router, request: &Request<'_>, block: Block, index: u32) {
    let chain = router.filters.chain(block, index);
    let numbers: Vec<_> =
        chain.iter().flat_map(|chain| &chain.priorities).map(|priority| priority.number).collect();
    let names = numbers.into_iter().map(|number| PriorityName { block, chain: index, number });
    let names: Vec<_> = names.collect();
    for name in &names {
        notify_filter(router, request, *name, None, RTM_DELTFILTER);
    }
    names.into_iter().for_each(|name| remove_priority(router, name));
}

struct FilterDump {
    block: Block,
    /// Only those of this chain.
    chain: Option<u32>,
    /// Only those of this priority and protocol, unless 0.
    number: u16,
    protocol: u16,
    terse: bool,
    /// Where it is: a chain by its place, a priority, and the last handle of it.
    at: (usize, u16),
    within: Option<Option<u32>>,
}

/// `RTM_GETTFILTER` for all of a place.
pub(crate) fn dump(router: &Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    #[expect(
        clippy::indexing_slicing,
        reason = "a constant: an index beyond the end is an error of the compiler"
    )]
    const POLICY: [Type; MAX] = {
        let mut policy = [Type::Unknown; MAX];
        policy[TCA_CHAIN as usize] = Type::U32;
        policy[TCA_DUMP_FLAGS as usize] = Type::Exact(8);
        policy
    };
    let empty = || Ok(Outcome::Dump(Box::new(Empty)));
    let Ok(_) = request.fixed::<{ tc::HEADER }>() else { return empty() };
    let (header, attributes) = request.parse::<{ tc::HEADER }, MAX>(&POLICY, Validate::Liberal)?;
    let header = Header::read(&header);
    let flags = attributes.get(TCA_DUMP_FLAGS).map(|flags| Bits::read(&flags)).unwrap_or_default();
    // Of what has no filters nothing is shown.
    let Ok(found) = find_block_to_show(router, &header) else { return empty() };
    Ok(Outcome::Dump(Box::new(FilterDump {
        block: found.block,
        chain: attributes.get(TCA_CHAIN).map(|chain| chain.u32()),
        number: (header.info >> 16) as u16,
        protocol: protocol(&header),
        terse: flags.value & 1 != 0,
        at: (0, 0),
        within: None,
    })))
}

impl Dump for FilterDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some(place) = router.filters.places.get(&self.block) else { return Ok(More::No) };
        let Some(chain) = place.chains.get(self.at.0) else { return Ok(More::No) };
        let wanted = self.chain.is_none_or(|wanted| wanted == chain.index);
        let from = chain.priorities.partition_point(|priority| priority.number < self.at.1);
        let priority = chain.priorities.get(from).filter(|_| wanted);
        let Some(priority) = priority else {
            self.at = (self.at.0 + 1, 0);
            self.within = None;
            return Ok(More::Yes);
        };
        if priority.number != self.at.1 {
            self.at.1 = priority.number;
            self.within = None;
        }
        let name = PriorityName { block: self.block, chain: chain.index, number: priority.number };
        let chosen = (self.number == 0 || self.number == priority.number)
            && (self.protocol == 0 || self.protocol == priority.protocol);
        let next = match self.within {
            _ if !chosen => None,
            None => Some(None),
            Some(last) => priority.classifier.after(&router.filters, name, last).map(Some),
        };
        match next {
            Some(handle) => {
                out.message(RTM_NEWTFILTER, |reply| {
                    write_filter(router, reply, name, handle, self.terse);
                })?;
                self.within = Some(handle);
            }
            None => match self.at.1.checked_add(1) {
                Some(number) => (self.at.1, self.within) = (number, None),
                None => (self.at, self.within) = ((self.at.0 + 1, 0), None),
            },
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.filters.generation
    }
}
