//! `RTM_NEWQDISC`, `RTM_DELQDISC`, `RTM_GETQDISC`. Linux: `tc_modify_qdisc`, `tc_get_qdisc`, `tc_dump_qdisc`.

use libc::{EBUSY, EEXIST, EINVAL, ENODEV, ENOENT, ENOSPC, EOPNOTSUPP, RTM_DELQDISC, RTM_NEWQDISC};
use netlink_packet_core::NLM_F_REPLACE;
use underpass_netlink::tc::stab::SizeTable;
use underpass_netlink::tc::{
    self, GROUP, HEADER, Header, POLICY, TCA_DUMP_INVISIBLE, TCA_EGRESS_BLOCK, TCA_HW_OFFLOAD,
    TCA_INGRESS_BLOCK, TCA_KIND, TCA_OPTIONS, TCA_RATE, TCA_STAB,
};
use underpass_netlink::{Attribute, Attributes, Replies, Reply, RequestError, Validate};

use super::filter::hook::{forget_filters_of_hook, forget_link_of_filters, forget_lost_filters, join_shared};
use super::kind::limited;
use super::parent::{Block, EGRESS_OF_VRF, Point};
use super::publish::{Counted, count_qdisc, own_qdisc, publish_qdiscs};
use super::{Kind, Leaf, Qdisc, default_qdisc};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::link::{Link, LinkKind};
use crate::{Request, Router};

/// `tcm_info` of the root: references, one of the link and one of its queue.
const ROOT_REFERENCES: u32 = 2;

/// What a request names by its parent.
enum Named<'a> {
    /// A qdisc that a request has made.
    Own(&'a Qdisc),
    /// One of handle 0, which the link or a class has by itself.
    Default,
    /// Nothing: a class that has none, or a hook that no request has named yet.
    Nothing,
}

/// A request's header and attributes, and its link.
struct Wanted<'a> {
    header: Header,
    attributes: Attributes<'a, 17>,
    link: Link,
}

impl<'a> Wanted<'a> {
    fn parse(router: &Router, request: &Request<'a>) -> Result<Self, RequestError> {
        let (header, attributes) = request.parse::<HEADER, 17>(&POLICY, Validate::Liberal)?;
        let header = Header::read(&header);
        let link = router.links.get(header.link).ok_or(RequestError::errno(ENODEV))?.clone();
        Ok(Self { header, attributes, link })
    }

    /// Whether it names a kind other than that of the qdisc that is there.
    fn other_kind(&self, kind: &str) -> bool {
        self.attributes.get(TCA_KIND).is_some_and(|wanted| wanted.text() != kind)
    }

    /// Refuses that.
    fn same_kind(&self, kind: &str) -> Result<(), RequestError> {
        if self.other_kind(kind) { Err(RequestError::new(EINVAL, "Invalid qdisc name")) } else { Ok(()) }
    }
}

/// What is in a class. Linux: `qdisc_leaf`.
fn named_leaf<'a>(
    router: &'a Router,
    link: u32,
    parent: &Qdisc,
    class: u32,
) -> Result<Named<'a>, RequestError> {
    if !parent.kind.classful() {
        return Err(RequestError::new(EOPNOTSUPP, "Parent qdisc is not classful"));
    }
    if !parent.has_class(class) {
        return Err(RequestError::new(ENOENT, "Specified class not found"));
    }
    Ok(match parent.leaf(class) {
        None => Named::Nothing,
        Some(Leaf::Qdisc(handle)) => own_qdisc(router, link, *handle).map_or(Named::Default, Named::Own),
        Some(_) => Named::Default,
    })
}

/// What is at the root, or at the hook.
fn named_top(router: &Router, link: u32, parent: u32) -> Named<'_> {
    let control = router.tc.get(link);
    if parent == tc::ROOT {
        return control.and_then(|control| control.root()).map_or(Named::Default, Named::Own);
    }
    match control {
        Some(control) if control.hooked => control.hook().map_or(Named::Default, Named::Own),
        _ => Named::Nothing,
    }
}

/// `RTM_NEWQDISC`.
pub(crate) fn new(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(router, request)?;
    // Also by a request that is refused then. Linux: `dev_ingress_queue_create`.
    if wanted.header.parent == tc::INGRESS {
        router.tc.links.entry(wanted.header.link).or_default().hooked = true;
    }
    match operation(router, request, &wanted)? {
        Operation::Change(handle) => change(router, request, &wanted, handle),
        Operation::Create => create(router, request, &wanted),
    }
}

/// What becomes of a request.
enum Operation {
    /// The qdisc of this handle is changed.
    Change(u32),
    /// One is made.
    Create,
}

fn operation(router: &Router, request: &Request<'_>, wanted: &Wanted<'_>) -> Result<Operation, RequestError> {
    let Header { link, handle, parent, .. } = wanted.header;
    if parent == 0 {
        if handle == 0 {
            return Err(RequestError::new(EINVAL, "Handle cannot be zero"));
        }
        return changeable(request, wanted, own_qdisc(router, link, handle));
    }
    let there = match parent {
        tc::ROOT | tc::INGRESS => named_top(router, link, parent),
        _ => {
            let qdisc = own_qdisc(router, link, tc::major(parent));
            let qdisc = qdisc.ok_or(RequestError::new(ENOENT, "Failed to find specified qdisc"))?;
            named_leaf(router, link, qdisc, parent)?
        }
    };
    let there = if let Named::Own(qdisc) = there { Some(qdisc) } else { None };
    if let Some(qdisc) = there.filter(|qdisc| handle == 0 || qdisc.handle == handle) {
        // Without a handle, what is there is changed, unless another kind is to take its place: also by a request without
        // any flags.
        let create = request.create() && (request.replace() || request.exclusive());
        let none = !request.create() && !request.replace() && !request.exclusive();
        let replaced = handle == 0 && wanted.other_kind(qdisc.kind.name()) && (create || none);
        return if replaced { Ok(Operation::Create) } else { changeable(request, wanted, Some(qdisc)) };
    }
    if handle == 0 {
        return may_create(request);
    }
    if there.is_some() && !request.replace() {
        return Err(RequestError::new(EEXIST, "NLM_F_REPLACE needed to override"));
    }
    if tc::minor(handle) != 0 {
        return Err(RequestError::new(EINVAL, "Invalid minor handle"));
    }
    let Some(elsewhere) = own_qdisc(router, link, handle) else { return may_create(request) };
    if elsewhere.parent != parent {
        return Err(RequestError::new(EINVAL, "Cannot move an existing qdisc to a different parent"));
    }
    if request.exclusive() {
        return Err(RequestError::new(EEXIST, "Exclusivity flag on, cannot override"));
    }
    wanted.same_kind(elsewhere.kind.name())?;
    if elsewhere.kind.is_hook() {
        return Err(RequestError::new(EINVAL, "Cannot regraft ingress or clsact Qdiscs"));
    }
    // It would be where it is already.
    Ok(Operation::Change(handle))
}

fn changeable(
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    qdisc: Option<&Qdisc>,
) -> Result<Operation, RequestError> {
    let qdisc = qdisc.ok_or(RequestError::new(ENOENT, "Specified qdisc not found"))?;
    if request.exclusive() {
        return Err(RequestError::new(EEXIST, "Exclusivity flag on, cannot modify"));
    }
    wanted.same_kind(qdisc.kind.name())?;
    Ok(Operation::Change(qdisc.handle))
}

fn may_create(request: &Request<'_>) -> Result<Operation, RequestError> {
    let text = "Qdisc not found. To create specify NLM_F_CREATE flag";
    if request.create() { Ok(Operation::Create) } else { Err(RequestError::new(ENOENT, text)) }
}

/// Refuses what this router does not do with any qdisc.
fn unsupported(wanted: &Wanted<'_>) -> Result<(), RequestError> {
    let text = "Rate estimators of qdiscs are not supported by this router";
    match wanted.attributes.get(TCA_RATE) {
        Some(rate) => Err(RequestError::new(EOPNOTSUPP, text).at(rate.offset)),
        None => Ok(()),
    }
}

/// The size table of a request.
fn size_table(wanted: &Wanted<'_>) -> Result<Option<Box<SizeTable>>, RequestError> {
    wanted.attributes.get(TCA_STAB).map(|table| SizeTable::parse(&table).map(Box::new)).transpose()
}

fn change(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    handle: u32,
) -> Result<Outcome, RequestError> {
    unsupported(wanted)?;
    let Header { link: index, parent, .. } = wanted.header;
    let link = &wanted.link;
    // As in Linux, what the options change stays though the table is refused.
    let mut changed = false;
    if let Some(options) = wanted.attributes.get(TCA_OPTIONS) {
        change_options(router, wanted, handle, options)?;
        changed = true;
    }
    let table = size_table(wanted);
    let control = router.tc.links.entry(index).or_default();
    if let (Ok(table), Some(qdisc)) = (&table, control.lookup_mut(handle))
        && qdisc.size_table != *table
    {
        qdisc.size_table.clone_from(table);
        changed = true;
    }
    if changed {
        router.tc.generation += 1;
        publish_qdiscs(router, index);
    }
    table?;
    let qdisc = own_qdisc(router, index, handle).cloned();
    notify_qdisc(router, Cause::from(request), link, parent, None, qdisc.as_ref());
    Ok(Outcome::Done)
}

fn change_options(
    router: &mut Router,
    wanted: &Wanted<'_>,
    handle: u32,
    options: Attribute<'_>,
) -> Result<(), RequestError> {
    let control = router.tc.links.entry(wanted.header.link).or_default();
    let qdisc = control.lookup_mut(handle).ok_or(RequestError::errno(ENOENT))?;
    let changed = qdisc.kind.change(options, &wanted.link)?;
    for leaf in changed.removed {
        control.free_leaf(Some(leaf));
    }
    if let Some((child, limit)) = changed.limit_of
        && let Some(Qdisc { kind: Kind::Fifo(queue), .. }) = control.lookup_mut(child)
    {
        *queue = limited(*queue, limit);
    }
    Ok(())
}

fn create(router: &mut Router, request: &Request<'_>, wanted: &Wanted<'_>) -> Result<Outcome, RequestError> {
    let Header { link: index, handle: wish, parent, .. } = wanted.header;
    unsupported(wanted)?;
    let supported = match wanted.link.kind {
        LinkKind::Port(_)
        | LinkKind::Kernel
        | LinkKind::Dummy
        | LinkKind::Ifb
        | LinkKind::Tunnel(_)
        | LinkKind::Vlan
        | LinkKind::Bridge => true,
        LinkKind::Vrf { .. } => parent == tc::INGRESS,
        LinkKind::Loopback => false,
    };
    if !supported {
        // Packets would pass by it: it would do nothing.
        let text = match wanted.link.kind {
            LinkKind::Loopback => "Traffic control at lo is not supported by this router",
            _ => "A root qdisc at a VRF is not supported by this router",
        };
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    let options = wanted.attributes.get(TCA_OPTIONS);
    let name = wanted.attributes.get(TCA_KIND);
    let name = name.map(|name| name.text()).unwrap_or_default();
    Kind::check(&name, parent)?;
    let blocks = shared_blocks(&name, wanted)?;
    let size_table = size_table(wanted)?;
    let kind = Kind::parse(&name, options, &wanted.link)?;
    if blocks[1].is_some() && wanted.link.vrf_table().is_some() {
        return Err(RequestError::new(EOPNOTSUPP, EGRESS_OF_VRF));
    }
    if blocks[0].is_some() && blocks[0] == blocks[1] {
        return Err(RequestError::new(EBUSY, "block dev insert failed"));
    }
    let handle = match wish {
        _ if kind.is_hook() => tc::HOOK,
        0 => {
            let text = "Maximum number of qdisc handles was exceeded";
            router.tc.free_handle(index).ok_or(RequestError::new(ENOSPC, text))?
        }
        wish => wish,
    };
    let serial = router.tc.next_serial();
    let qdisc = Qdisc { handle, parent, kind, ingress: None, size_table, blocks, queue: None, serial };
    graft(router, Cause::from(request), &wanted.link, parent, Some(qdisc))?;
    for (block, point) in blocks.into_iter().zip([Point::Ingress, Point::Egress]) {
        if let Some(block) = block {
            join_shared(router, Block { link: index, point }, block);
        }
    }
    Ok(Outcome::Done)
}

/// The blocks that a new hook shares. Linux: `qdisc_block_indexes_set`.
fn shared_blocks(kind: &str, wanted: &Wanted<'_>) -> Result<[Option<u32>; 2], RequestError> {
    let mut blocks = [None; 2];
    for (block, (attribute, kinds, zero, unshared)) in blocks.iter_mut().zip([
        (
            TCA_INGRESS_BLOCK,
            &["ingress", "clsact"][..],
            "Ingress block index cannot be 0",
            "Ingress block sharing is not supported",
        ),
        (
            TCA_EGRESS_BLOCK,
            &["clsact"],
            "Egress block index cannot be 0",
            "Egress block sharing is not supported",
        ),
    ]) {
        *block = wanted.attributes.get(attribute).map(|block| block.u32());
        match block {
            Some(0) => return Err(RequestError::new(EINVAL, zero)),
            Some(_) if !kinds.contains(&kind) => return Err(RequestError::new(EOPNOTSUPP, unshared)),
            _ => {}
        }
    }
    Ok(blocks)
}

/// `RTM_DELQDISC`.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(router, request)?;
    let (named, parent) = (named_by(router, &wanted)?, wanted.header.parent);
    if parent == 0 {
        return Err(RequestError::new(EINVAL, "Classid cannot be zero"));
    }
    if matches!(named, Named::Default) {
        return Err(RequestError::new(ENOENT, "Cannot delete qdisc with handle of zero"));
    }
    // At `ffff:` with nothing in it, Linux deletes the hook itself.
    let hook = matches!(&named, Named::Own(qdisc) if qdisc.kind.is_hook());
    let place = if hook { tc::INGRESS } else { parent };
    graft(router, Cause::from(request), &wanted.link, place, None)?;
    Ok(Outcome::Done)
}

/// `RTM_GETQDISC` for one.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(router, request)?;
    let (named, parent, link) = (named_by(router, &wanted)?, wanted.header.parent, &wanted.link);
    let default = default_qdisc(link).filter(|_| parent == tc::ROOT);
    replies.message(RTM_NEWQDISC, 0, request.reply_to(), |reply| match (named, default) {
        (Named::Own(qdisc), _) => write_qdisc(router, reply, link, parent, qdisc),
        (_, Some(kind)) => write_default(reply, link, &kind),
        _ => {}
    })?;
    Ok(Outcome::Done)
}

/// The qdisc that a request to show or delete one names.
fn named_by<'r>(router: &'r Router, wanted: &Wanted<'_>) -> Result<Named<'r>, RequestError> {
    let Header { link, handle, parent, .. } = wanted.header;
    let named = match parent {
        0 => match own_qdisc(router, link, handle) {
            Some(qdisc) => Named::Own(qdisc),
            None => return Err(RequestError::new(ENOENT, "Failed to find qdisc with specified handle")),
        },
        tc::ROOT => named_top(router, link, parent),
        _ if tc::major(parent) == tc::HOOK => {
            let hook = router.tc.get(link).and_then(|control| control.hook());
            match hook.and_then(|hook| hook.leaf(parent)) {
                Some(Leaf::Qdisc(shaper)) => {
                    own_qdisc(router, link, *shaper).map_or(Named::Default, Named::Own)
                }
                _ => named_top(router, link, tc::INGRESS),
            }
        }
        _ => match own_qdisc(router, link, tc::major(parent)) {
            Some(qdisc) => named_leaf(router, link, qdisc, parent)?,
            None => {
                return Err(RequestError::new(ENOENT, "Failed to find qdisc with specified classid"));
            }
        },
    };
    let (its_handle, kind) = match &named {
        Named::Nothing => {
            return Err(RequestError::new(ENOENT, "Cannot find specified qdisc on specified device"));
        }
        Named::Default => (0, default_qdisc(&wanted.link).map_or("noop", |kind| kind.name())),
        Named::Own(qdisc) => (qdisc.handle, qdisc.kind.name()),
    };
    if handle != 0 && handle != its_handle {
        return Err(RequestError::new(EINVAL, "Invalid handle"));
    }
    wanted.same_kind(kind)?;
    Ok(named)
}

/// Puts a qdisc into a place, or leaves the place to what it has by itself; what was there is no more. Linux:
/// `qdisc_graft`.
fn graft(
    router: &mut Router,
    cause: Cause,
    link: &Link,
    parent: u32,
    new: Option<Qdisc>,
) -> Result<(), RequestError> {
    let control = router.tc.links.entry(link.index).or_default();
    let handle = new.as_ref().map(|new| new.handle);
    let old = match parent {
        tc::ROOT => std::mem::replace(&mut control.root, handle).map(Leaf::Qdisc),
        tc::INGRESS => None,
        _ => {
            let under = control.lookup_mut(tc::major(parent)).ok_or(RequestError::errno(ENOENT))?;
            if !under.has_class(parent) {
                return Err(RequestError::new(ENOENT, "Specified class not found"));
            }
            if new.as_ref().is_some_and(|new| new.kind == Kind::Noqueue) {
                return Err(RequestError::new(EINVAL, "Cannot assign noqueue to a class"));
            }
            if new.as_ref().is_some_and(|new| new.size_table.is_some()) && !under.kind.is_hook() {
                return Err(RequestError::new(EINVAL, "STAB not supported on a non root"));
            }
            under.graft(parent, link, handle)?
        }
    };
    let mut old = control.free_leaf(old);
    if parent == tc::INGRESS {
        old = control.hook.take();
        if let Some(hook) = &old {
            control.remove_inside(hook);
        }
    }
    match &new {
        Some(hook) if parent == tc::INGRESS => control.hook = Some(hook.clone()),
        Some(new) => {
            control.qdiscs.insert(new.handle, new.clone());
        }
        None => {}
    }
    if parent == tc::ROOT {
        router.links.set_qdisc(link.index, new.as_ref().map(|root| root.kind.name()));
    }
    router.tc.generation += 1;
    publish_qdiscs(router, link.index);
    notify_qdisc(router, cause, link, parent, old.as_ref(), new.as_ref());
    if parent == tc::INGRESS && old.is_some() {
        forget_filters_of_hook(router, link.index);
    }
    forget_lost_filters(router, link.index);
    Ok(())
}

/// Notifies listeners of a qdisc that is there, or no more, or in the place of another.
fn notify_qdisc(
    router: &mut Router,
    cause: Cause,
    link: &Link,
    parent: u32,
    old: Option<&Qdisc>,
    new: Option<&Qdisc>,
) {
    if !router.events.heard(cause, GROUP) {
        return;
    }
    let flags = if old.is_some() && new.is_some() { NLM_F_REPLACE } else { 0 };
    for (kind, flags, qdisc) in [(RTM_DELQDISC, 0, old), (RTM_NEWQDISC, flags, new)] {
        let Some(qdisc) = qdisc else { continue };
        let counted = count_qdisc(router, link.index, qdisc);
        let references = match kind {
            // The link has let go of it by then.
            RTM_DELQDISC => u32::from(!qdisc.kind.is_hook()),
            _ => references(parent),
        };
        router.events.notify(cause, GROUP, kind, flags, |reply| {
            write(reply, link, (parent, references), Shown::of(qdisc), &counted);
        });
    }
}

fn write_qdisc(router: &Router, reply: &mut Reply<'_>, link: &Link, parent: u32, qdisc: &Qdisc) {
    let counted = count_qdisc(router, link.index, qdisc);
    write(reply, link, (parent, references(parent)), Shown::of(qdisc), &counted);
}

/// Forgets all of a link that is no more.
pub(crate) fn forget_traffic_control(router: &mut Router, link: u32) {
    forget_link_of_filters(router, link);
    let Some(control) = router.tc.links.remove(&link) else { return };
    router.tc.generation += 1;
    control.published.into_iter().flatten().for_each(|qdisc| router.engine.remove_qdisc(qdisc));
    let mut freed = control.freed;
    control.qdiscs.into_values().chain(control.hook).for_each(|qdisc| qdisc.free(&mut freed));
    freed.into_iter().for_each(|queue| router.engine.remove_queue(queue));
}

/// Writes the qdisc that a link has by itself. It counts nothing.
fn write_default(reply: &mut Reply<'_>, link: &Link, kind: &Kind) {
    write(
        reply,
        link,
        (tc::ROOT, ROOT_REFERENCES),
        Shown { handle: 0, kind, size_table: None, blocks: [None; 2] },
        &Counted::default(),
    );
}

/// A qdisc as it is shown.
struct Shown<'a> {
    handle: u32,
    kind: &'a Kind,
    size_table: Option<&'a SizeTable>,
    blocks: [Option<u32>; 2],
}

impl<'a> Shown<'a> {
    fn of(Qdisc { handle, kind, size_table, blocks, .. }: &'a Qdisc) -> Self {
        Self { handle: *handle, kind, size_table: size_table.as_deref(), blocks: *blocks }
    }
}

/// How often a qdisc is referred to that is there.
const fn references(parent: u32) -> u32 {
    if parent == tc::ROOT { ROOT_REFERENCES } else { 1 }
}

/// Linux: `tc_fill_qdisc`.
fn write(
    reply: &mut Reply<'_>,
    link: &Link,
    (parent, info): (u32, u32),
    shown: Shown<'_>,
    counted: &Counted,
) {
    let Shown { handle, kind, size_table, blocks } = shown;
    Header { family: 0, link: link.index, handle, parent, info }.write(reply);
    reply.text(TCA_KIND, kind.name());
    for (attribute, block) in [TCA_INGRESS_BLOCK, TCA_EGRESS_BLOCK].into_iter().zip(blocks) {
        block.into_iter().for_each(|block| reply.u32(attribute, block));
    }
    kind.write(reply, counted.direct);
    reply.u8(TCA_HW_OFFLOAD, 0);
    size_table.into_iter().for_each(|table| table.write(reply));
    counted.common.write(reply, counted.own.as_ref(), true);
}

/// A dump of qdiscs: of one link, or of all.
struct Qdiscs {
    link: u32,
    /// The link whose turn it is, and how many of its qdiscs are written.
    place: (u32, usize),
}

/// `RTM_GETQDISC` for many.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (header, attributes) = request.parse::<HEADER, 17>(&POLICY, Validate::Liberal)?;
    if let Some(invisible) = attributes.get(TCA_DUMP_INVISIBLE) {
        let text = "Queues of classes without a qdisc are not shown by this router";
        return Err(RequestError::new(EOPNOTSUPP, text).at(invisible.offset));
    }
    let link = Header::read(&header).link;
    Ok(Outcome::Dump(Box::new(Qdiscs { link, place: (0, 0) })))
}

impl Dump for Qdiscs {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let (before, written) = self.place;
        let Some(link) = router.links.after(before) else { return Ok(More::No) };
        let index = link.index;
        let control = router.tc.get(index);
        let root = control.and_then(|control| control.root());
        let default = default_qdisc(link).filter(|_| root.is_none());
        let own = root
            .into_iter()
            .chain(control.into_iter().flat_map(|control| control.inner().into_iter().chain(control.hook())));
        let all: Vec<_> = default.iter().map(|_| None).chain(own.map(Some)).collect();
        match all.get(written).filter(|_| self.link == 0 || self.link == index) {
            None => self.place = (index, 0),
            Some(qdisc) => {
                out.message(RTM_NEWQDISC, |reply| match (qdisc, &default) {
                    (Some(qdisc), _) => write_qdisc(router, reply, link, qdisc.parent, qdisc),
                    (None, Some(kind)) => write_default(reply, link, kind),
                    (None, None) => {}
                })?;
                self.place = (before, written + 1);
            }
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.tc.generation
    }
}
