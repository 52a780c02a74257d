//! Requests for filters and tables of `u32`.

use std::collections::BTreeMap;

use libc::{EBUSY, EINVAL, ENOMEM, ENOSPC};
use underpass_engine::counters::CounterId;
use underpass_netlink::tc::u32::{self, Request, Shown};
use underpass_netlink::tc::{NOT_IN_HW, SKIP_HW, SKIP_SW};
use underpass_netlink::{Reply, RequestError};

use super::{Node, Root, Table, place};
use crate::Router;
use crate::tc::action::Context;
use crate::tc::action::change::{init_exts, release_exts, write_exts};
use crate::tc::filter::common::{Common, PriorityName};
use crate::tc::filter::hook::drop_common;
use crate::tc::filter::{Change, Classifier, refuse_skip_sw};

/// Takes a root table out; with the last one all tables of the qdisc go.
pub(in crate::tc::filter) fn remove_root(
    router: &mut Router,
    name: PriorityName,
    root: &Root,
) -> Vec<Common> {
    let place = place(name, root.qdisc);
    let Some(tables) = router.filters.tables.get_mut(&place) else { return Vec::new() };
    tables.roots -= 1;
    let gone = if tables.roots == 0 {
        router.filters.tables.remove(&place).map(|tables| tables.tables).unwrap_or_default()
    } else {
        let at = tables.tables.iter().position(|table| table.handle == root.table);
        at.map(|at| tables.tables.remove(at)).into_iter().collect()
    };
    let nodes = gone.into_iter().flat_map(|table| table.nodes.into_values());
    nodes.map(|node| close_node(router, place, node)).collect::<Vec<_>>()
}

/// What a filter held besides what all have.
fn close_node(router: &mut Router, place: (u32, u32), node: Node) -> Common {
    node.mark_counter.into_iter().chain(node.key_counters).for_each(|id| router.engine.remove_counter(id));
    unlink(router, place, node.link);
    node.common
}

fn unlink(router: &mut Router, place: (u32, u32), link: Option<u32>) {
    let tables = router.filters.tables.get_mut(&place);
    if let Some(table) = link.zip(tables).and_then(|(link, tables)| tables.get_mut(link)) {
        table.links -= 1;
    }
}

pub(in crate::tc::filter) fn change_u32(
    router: &mut Router,
    change: &Change<'_>,
    old: Option<u32>,
) -> Result<u32, RequestError> {
    let invalid = |message| Err(RequestError::new(EINVAL, message));
    let Some(options) = change.options else {
        if change.handle != 0 {
            return invalid("cls_u32: Filter handle requires options");
        }
        return Ok(0);
    };
    let request = Request::parse(&options)?;
    let Some(Classifier::U32(root)) = router.filters.classifier(change.place) else {
        return Err(RequestError::errno(EINVAL));
    };
    let root = *root;
    let key = place(change.place, root.qdisc);
    if let Some(handle) = old {
        return replace_node(router, change, &request, key, handle);
    }
    if let Some(divisor) = request.divisor {
        return new_table(router, change, &request, key, divisor);
    }
    let Some(tables) = router.filters.tables.get(&key) else { return Err(RequestError::errno(EINVAL)) };
    let (table, bucket) = match request.table {
        Some(wanted) if u32::table(wanted) != u32::ROOT => {
            let table = tables.get(u32::table(wanted));
            let missing = RequestError::new(EINVAL, "cls_u32: Specified hash table not found");
            (table.ok_or(missing)?, wanted)
        }
        _ => (tables.get(root.table).ok_or(RequestError::errno(EINVAL))?, root.table),
    };
    if table.divisor <= u32::bucket(bucket) {
        return invalid("cls_u32: Specified hash table buckets exceed configured value");
    }
    let asked = change.handle;
    if u32::table(asked) != 0 && u32::table(asked ^ bucket) != 0 {
        return invalid("cls_u32: Handle specified hash table address mismatch");
    }
    let bucket = bucket & 0xffff_f000;
    let handle = match u32::node(asked) {
        0 => table
            .free(bucket)
            .ok_or(RequestError::new(ENOSPC, "cls_u32: Hash table node ID pool exhausted"))?,
        node if table.nodes.contains_key(&(bucket | node)) => return Err(RequestError::errno(ENOSPC)),
        node => bucket | node,
    };
    let table = table.handle;
    let selector = request.selector()?;
    let (exts, input, link) = set_node(router, change, &request, key)?;
    if let Err(error) = refuse_skip_sw(request.flags) {
        release_exts(router, &exts);
        return Err(error);
    }
    let link = link.flatten();
    add_link_to(router, key, link);
    let common = Common {
        class: request.class.unwrap_or(0),
        flags: request.flags | NOT_IN_HW,
        exts,
        counter: Some(router.engine.add_counter()),
    };
    let mark = request.mark.filter(|mark| *mark != (0, 0));
    let node = Node {
        link,
        input: input.flatten(),
        mark,
        mark_counter: mark.map(|_| router.engine.add_counter()),
        key_counters: selector.keys.iter().map(|_| router.engine.add_counter()).collect(),
        selector,
        common,
    };
    if let Some(table) = router.filters.tables.get_mut(&key).and_then(|tables| tables.get_mut(table)) {
        table.nodes.insert(handle, node);
    }
    if let Some(Classifier::U32(root)) = router.filters.classifier_mut(change.place) {
        root.used = true;
    }
    Ok(handle)
}

fn add_link_to(router: &mut Router, place: (u32, u32), link: Option<u32>) {
    let tables = router.filters.tables.get_mut(&place);
    if let Some(table) = link.zip(tables).and_then(|(link, tables)| tables.get_mut(link)) {
        table.links += 1;
    }
}

/// What a new filter and a change of one have in common: actions, the link of the packet, the table it leads to.
#[allow(clippy::type_complexity, reason = "three results of one check")]
fn set_node(
    router: &mut Router,
    change: &Change<'_>,
    request: &Request<'_>,
    place: (u32, u32),
) -> Result<(crate::tc::action::Exts, Option<Option<u32>>, Option<Option<u32>>), RequestError> {
    let context = Context { flags: request.flags, ..change.context };
    let exts = init_exts(router, request.actions, request.police, &context)?;
    let checked = (|| {
        let input = match request.indev.as_deref() {
            None => None,
            Some(name) => Some(
                router
                    .links
                    .input_link(Some(name))
                    .map_err(|error| RequestError { errno: EINVAL, ..error })?,
            ),
        };
        let link = match request.link {
            None => None,
            Some(0) => Some(None),
            Some(link) if link & 0xf_ffff != 0 => {
                return Err(RequestError::new(EINVAL, "cls_u32: u32 Link handle must be a hash table"));
            }
            Some(link) => {
                let table = router.filters.tables.get(&place).and_then(|tables| tables.get(link));
                let missing = RequestError::new(EINVAL, "cls_u32: Link hash table not found");
                if table.ok_or(missing)?.root {
                    return Err(RequestError::new(EINVAL, "cls_u32: Not linking to root node"));
                }
                Some(Some(link))
            }
        };
        Ok((input, link))
    })();
    match checked {
        Ok((input, link)) => Ok((exts, input, link)),
        Err(error) => {
            release_exts(router, &exts);
            Err(error)
        }
    }
}

fn replace_node(
    router: &mut Router,
    change: &Change<'_>,
    request: &Request<'_>,
    place: (u32, u32),
    handle: u32,
) -> Result<u32, RequestError> {
    if handle & 0xf_ffff == 0 {
        return Err(RequestError::new(EINVAL, "cls_u32: Key node id cannot be zero"));
    }
    let node = |router: &Router| {
        let table = router.filters.tables.get(&place)?.get(u32::table(handle))?;
        table.nodes.get(&handle).map(|node| node.common.flags)
    };
    let flags = node(router).ok_or(RequestError::errno(EINVAL))?;
    if (flags ^ request.flags) & (SKIP_HW | SKIP_SW | 16) != 0 {
        return Err(RequestError::new(EINVAL, "cls_u32: Key node flags do not match passed flags"));
    }
    let (exts, input, link) = set_node(router, change, request, place)?;
    if let Some(link) = link {
        add_link_to(router, place, link);
    }
    let tables = router.filters.tables.get_mut(&place);
    let node = tables
        .and_then(|tables| tables.get_mut(u32::table(handle)))
        .and_then(|table| table.nodes.get_mut(&handle));
    let Some(node) = node else { return Err(RequestError::errno(EINVAL)) };
    // Of a node all is kept but what the request says; the class goes if it is not said again.
    let old_exts = std::mem::replace(&mut node.common.exts, exts);
    node.common.class = request.class.unwrap_or(0);
    node.input = input.unwrap_or(node.input);
    let old_link = link.and_then(|link| std::mem::replace(&mut node.link, link));
    unlink(router, place, old_link);
    release_exts(router, &old_exts);
    Ok(handle)
}

fn new_table(
    router: &mut Router,
    change: &Change<'_>,
    request: &Request<'_>,
    place: (u32, u32),
    divisor: u32,
) -> Result<u32, RequestError> {
    let invalid = |message| Err(RequestError::new(EINVAL, message));
    // Linux takes 0 for a power of 2 below 1 and then finds it too large.
    if !divisor.is_power_of_two() {
        return invalid("cls_u32: Divisor is not a power of 2");
    }
    if divisor > 0x100 {
        return invalid("cls_u32: Exceeded maximum 256 hash buckets");
    }
    if change.handle & 0xf_ffff != 0 {
        return invalid("cls_u32: Divisor can only be used on a hash table");
    }
    let Some(tables) = router.filters.tables.get_mut(&place) else {
        return Err(RequestError::errno(EINVAL));
    };
    let handle = match change.handle {
        0 => tables.free().ok_or(RequestError::errno(ENOMEM))?,
        handle if tables.get(handle).is_some() => return Err(RequestError::errno(ENOSPC)),
        handle => handle,
    };
    refuse_skip_sw(request.flags)?;
    let priority = change.place.number;
    let table = Table { handle, priority, divisor, root: false, links: 0, nodes: BTreeMap::new() };
    tables.tables.insert(0, table);
    Ok(handle)
}

/// Deletes a filter or a table; says whether the priority has nothing any more.
pub(in crate::tc::filter) fn delete_node(
    router: &mut Router,
    name: PriorityName,
    root: Root,
    handle: u32,
) -> Result<bool, RequestError> {
    let place = place(name, root.qdisc);
    let Some(tables) = router.filters.tables.get_mut(&place) else {
        return Err(RequestError::errno(EINVAL));
    };
    if handle & 0xf_ffff == 0 {
        let found = tables.tables.iter().enumerate().find(|(_, table)| table.handle == handle);
        let Some((at, found)) = found else { return Err(RequestError::errno(EINVAL)) };
        if found.root {
            return Err(RequestError::new(EINVAL, "cls_u32: Not allowed to delete root node"));
        }
        if found.links > 0 {
            return Err(RequestError::new(EBUSY, "cls_u32: Can not delete in-use filter"));
        }
        let table = tables.tables.remove(at);
        for node in table.nodes.into_values() {
            let common = close_node(router, place, node);
            drop_common(router, common);
        }
    } else if let Some(node) =
        tables.get_mut(u32::table(handle)).and_then(|table| table.nodes.remove(&handle))
    {
        let common = close_node(router, place, node);
        drop_common(router, common);
    }
    let tables = router.filters.tables.get(&place);
    Ok(tables.is_none_or(|tables| tables.roots == 1 && tables.nodes() == 0))
}

pub(in crate::tc::filter) fn write_u32(
    router: &Router,
    reply: &mut Reply<'_>,
    name: PriorityName,
    root: &Root,
    handle: u32,
) {
    let table = router.filters.tables(name, root).and_then(|tables| tables.get(u32::table(handle)));
    let Some(table) = table else { return };
    if handle & 0xf_ffff == 0 {
        u32::write_table(reply, table.divisor);
        return;
    }
    let Some(node) = table.nodes.get(&handle) else { return };
    let count = |counter: CounterId| router.engine.count(counter);
    let hits = node.common.counter.map(count).unwrap_or_default();
    let shown = Shown {
        handle,
        selector: &node.selector,
        class: node.common.class,
        link: node.link,
        flags: node.common.flags,
        mark: node.mark.map(|(value, mask)| {
            (value, mask, node.mark_counter.map_or(0, |counter| count(counter).packets) as u32)
        }),
        indev: router.links.input_name(node.input),
        hits: (
            hits.packets + hits.errors,
            hits.packets,
            node.key_counters.iter().map(|counter| count(*counter).packets).collect(),
        ),
    };
    shown.write(reply, |reply| write_exts(router, reply, &node.common.exts, u32::ACT, u32::POLICE));
}
