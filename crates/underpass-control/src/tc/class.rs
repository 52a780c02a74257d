//! `RTM_NEWTCLASS`, `RTM_DELTCLASS`, `RTM_GETTCLASS`. Linux: `tc_ctl_tclass`, `tc_dump_tclass`.

use libc::{EEXIST, EINVAL, ENODEV, ENOENT, EOPNOTSUPP, RTM_DELTCLASS, RTM_NEWTCLASS};
use underpass_netlink::tc::{
    self, GROUP, HEADER, Header, POLICY, Statistics, TCA_EGRESS_BLOCK, TCA_EXT_WARN_MSG, TCA_INGRESS_BLOCK,
    TCA_KIND, TCA_OPTIONS, TCA_RATE,
};
use underpass_netlink::{Attributes, Replies, Reply, RequestError, Validate};

use super::filter::hook::forget_place;
use super::parent::{Block, Point};
use super::publish::{count_class, own_qdisc, publish_qdiscs};
use super::{Kind, Qdisc};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::link::Link;
use crate::{Request, Router};

/// A class that a request names.
struct Named<'a> {
    attributes: Attributes<'a, 17>,
    link: Link,
    /// Handle of its qdisc.
    qdisc: u32,
    /// Its number; 0 if the request leaves it open.
    class: u32,
    /// The class above it.
    parent: u32,
    /// Whether there is such a class.
    found: bool,
}

fn named<'a>(router: &Router, request: &Request<'a>) -> Result<Named<'a>, RequestError> {
    let (header, attributes) = request.parse::<HEADER, 17>(&POLICY, Validate::Liberal)?;
    let header = Header::read(&header);
    let link = router.links.get(header.link).ok_or(RequestError::errno(ENODEV))?.clone();
    let (mut parent, mut class) = (header.parent, header.handle);
    let mut handle = tc::major(class);
    let root = || {
        let root = router.tc.get(link.index).and_then(|control| control.root());
        root.map_or(0, |root| root.handle)
    };
    if parent == tc::ROOT {
        handle = if handle == 0 { root() } else { handle };
    } else {
        let above = tc::major(parent);
        match (handle, above) {
            (0, 0) => handle = root(),
            (0, above) => handle = above,
            (handle, above) if above != 0 && handle != above => return Err(RequestError::errno(EINVAL)),
            _ => {}
        }
        if parent != 0 {
            parent = handle | tc::minor(parent);
        }
    }
    let qdisc = own_qdisc(router, link.index, handle).ok_or(RequestError::errno(ENOENT))?;
    if !qdisc.kind.classful() {
        return Err(RequestError::errno(EINVAL));
    }
    if class != 0 {
        class = handle | tc::minor(class);
    } else if parent == tc::ROOT {
        class = handle;
    }
    let found = class != 0 && qdisc.has_class(class);
    let handle = qdisc.handle;
    Ok(Named { attributes, link, qdisc: handle, class, parent, found })
}

impl Named<'_> {
    fn must_be(&self) -> Result<(), RequestError> {
        if self.found { Ok(()) } else { Err(RequestError::errno(ENOENT)) }
    }
}

/// `RTM_NEWTCLASS`.
pub(crate) fn new(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let named = named(router, request)?;
    if !request.create() {
        named.must_be()?;
    }
    if named.found && request.exclusive() {
        return Err(RequestError::errno(EEXIST));
    }
    let block = [TCA_INGRESS_BLOCK, TCA_EGRESS_BLOCK];
    if block.into_iter().any(|kind| named.attributes.get(kind).is_some()) {
        return Err(RequestError::new(EOPNOTSUPP, "Shared blocks are not supported for classes"));
    }
    if named.class == tc::ROOT {
        let text = "Cannot create traffic class with classid TC_H_ROOT";
        return Err(RequestError::new(EINVAL, text));
    }
    let link = &named.link;
    let control = router.tc.links.entry(link.index).or_default();
    let qdisc = control.lookup_mut(named.qdisc).ok_or(RequestError::errno(ENOENT))?;
    let Kind::Htb(htb) = &mut qdisc.kind else { return Err(RequestError::errno(EOPNOTSUPP)) };
    if let Some(estimator) = named.attributes.get(TCA_RATE) {
        let text = "Rate estimators of classes are not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text).at(estimator.offset));
    }
    let options = named.attributes.get(TCA_OPTIONS);
    let changed = htb.change(named.qdisc, named.class, named.parent, options, link)?;
    control.free_leaf(changed.removed);
    router.tc.generation += 1;
    publish_qdiscs(router, link.index);
    let warning = changed.warning;
    notify_class(router, Cause::from(request), &named, RTM_NEWTCLASS, warning.as_deref());
    Ok(warning.map_or(Outcome::Done, |text| Outcome::Warning(text.into())))
}

/// `RTM_DELTCLASS`.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let named = named(router, request)?;
    named.must_be()?;
    let link = &named.link;
    let used = router.filters.users_of_class(link.index, named.class) > 0;
    // It is told of as it was.
    let mut gone = Vec::new();
    if router.events.heard(Cause::from(request), GROUP) {
        gone = class_message(router, &named);
    }
    let control = router.tc.links.entry(link.index).or_default();
    let qdisc = control.lookup_mut(named.qdisc).ok_or(RequestError::errno(ENOENT))?;
    let Kind::Htb(htb) = &mut qdisc.kind else { return Err(RequestError::errno(EOPNOTSUPP)) };
    let changed = htb.delete(named.class, used, link)?;
    control.freed.extend(changed.queue);
    control.free_leaf(changed.removed);
    router.tc.generation += 1;
    publish_qdiscs(router, link.index);
    forget_place(router, Block { link: link.index, point: Point::Class(named.class) });
    router.events.notify(Cause::from(request), GROUP, RTM_DELTCLASS, 0, |reply| reply.fixed(&gone));
    Ok(Outcome::Done)
}

/// `RTM_GETTCLASS` for one.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let named = named(router, request)?;
    named.must_be()?;
    let qdisc = own_qdisc(router, named.link.index, named.qdisc).ok_or(RequestError::errno(ENOENT))?;
    replies.message(RTM_NEWTCLASS, 0, request.reply_to(), |reply| {
        write_class(router, reply, &named.link, qdisc, named.class);
    })?;
    Ok(Outcome::Done)
}

fn notify_class(router: &mut Router, cause: Cause, named: &Named<'_>, kind: u16, warning: Option<&str>) {
    if !router.events.heard(cause, GROUP) {
        return;
    }
    let message = class_message(router, named);
    router.events.notify(cause, GROUP, kind, 0, |reply| {
        reply.fixed(&message);
        if let Some(warning) = warning {
            reply.text(TCA_EXT_WARN_MSG, warning);
        }
    });
}

/// What a message about a class says, without the netlink header.
fn class_message(router: &Router, named: &Named<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let to = underpass_netlink::reply::Address::default();
    if let Some(qdisc) = own_qdisc(router, named.link.index, named.qdisc) {
        let written = underpass_netlink::reply::write_message(&mut bytes, 0, 0, to, |reply| {
            write_class(router, reply, &named.link, qdisc, named.class);
        });
        debug_assert!(written.is_ok(), "no attribute of a class is long");
    }
    bytes.split_off(underpass_netlink::message::HEADER.min(bytes.len()))
}

/// Linux: `tc_fill_tclass`.
fn write_class(router: &Router, reply: &mut Reply<'_>, link: &Link, qdisc: &Qdisc, class: u32) {
    let leaf = qdisc.leaf(class);
    let (parent, handle) = match &qdisc.kind {
        Kind::Htb(htb) => (htb.get(class).and_then(|class| class.parent).unwrap_or(tc::ROOT), class),
        Kind::Tbf { .. } | Kind::Netem { .. } | Kind::Red { .. } => (qdisc.handle, qdisc.handle | 1),
        _ => (qdisc.handle, qdisc.handle | tc::minor(class)),
    };
    let info = leaf.map_or(0, |leaf| leaf.handle());
    Header { family: 0, link: link.index, handle, parent, info }.write(reply);
    reply.text(TCA_KIND, qdisc.kind.name());
    if let Kind::Htb(htb) = &qdisc.kind
        && let Some(class) = htb.get(class)
    {
        class.settings.write(reply, class.level);
    }
    match count_class(router, link.index, qdisc, class) {
        Some(counted) => counted.common.write(reply, counted.own.as_ref(), false),
        None => Statistics::write_none(reply),
    }
}

impl Qdisc {
    /// The numbers of its classes in the order in which Linux shows them.
    fn shown_classes(&self) -> Vec<u32> {
        match &self.kind {
            Kind::Htb(htb) => htb.order().collect(),
            Kind::Prio { bands, .. } => (1..=bands.len() as u32).map(|band| self.handle | band).collect(),
            Kind::Tbf { .. } | Kind::Red { .. } | Kind::Netem { child: Some(_), .. } => vec![self.handle | 1],
            _ => Vec::new(),
        }
    }
}

/// A dump of the classes of a link.
struct Classes {
    link: u32,
    /// Only those of the qdisc with this major number, unless it is 0.
    parent: u32,
    /// How many are written.
    written: usize,
}

/// `RTM_GETTCLASS` for many.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let Ok(header) = request.fixed::<HEADER>() else {
        return Ok(Outcome::Dump(Box::new(Classes { link: 0, parent: 0, written: 0 })));
    };
    let header = Header::read(&header);
    let parent = tc::major(header.parent);
    Ok(Outcome::Dump(Box::new(Classes { link: header.link, parent, written: 0 })))
}

impl Dump for Classes {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let (Some(link), Some(control)) = (router.links.get(self.link), router.tc.get(self.link)) else {
            return Ok(More::No);
        };
        let qdiscs = control.root().into_iter().chain(control.inner());
        let qdiscs = qdiscs.filter(|qdisc| self.parent == 0 || qdisc.handle == self.parent);
        let mut all =
            qdiscs.flat_map(|qdisc| qdisc.shown_classes().into_iter().map(move |class| (qdisc, class)));
        let Some((qdisc, class)) = all.nth(self.written) else { return Ok(More::No) };
        self.written += 1;
        out.message(RTM_NEWTCLASS, |reply| write_class(router, reply, link, qdisc, class))?;
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.tc.generation
    }
}
