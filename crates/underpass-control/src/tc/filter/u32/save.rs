//! Tables of `u32` as lines.

use underpass_netlink::tc::SKIP_HW;
use underpass_netlink::tc::u32::{self, Key, Selector};

use super::{Node, Root, Table};
use crate::save::{Save, Words};
use crate::tc::action::save::Made;
use crate::tc::filter::common::PriorityName;
use crate::tc::filter::save::save_filter;

/// `TC_U32_*`: the flags of a selector.
const TERMINAL: u8 = 1;
const OFFSET: u8 = 2;
const VARIABLE: u8 = 4;
const EAT: u8 = 8;

/// Tables, then what is in them: a filter may lead to any of them.
pub(in crate::tc::filter) fn save(
    save: &mut Save<'_>,
    made: &mut Made,
    name: PriorityName,
    root: &Root,
    begin: &Words,
) {
    let Root { table: own, qdisc, used: _ } = *root;
    let Some(tables) = save.router.filters.tables(name, root) else { return };
    // The last that was made stands first.
    // Priorities of one number at several places of a qdisc have the same tables, and each a root of its own.
    let mut fresh = |table: &Table| match table.root {
        true => table.handle == own,
        false => made.table((name.block.link, qdisc, table.handle)),
    };
    let all = tables.tables.iter().rev().filter(|table| table.priority == name.number);
    let own_tables: Vec<&Table> = all.filter(|table| fresh(table)).collect();
    for table in own_tables.iter().filter(|table| !table.root) {
        let (number, divisor) = (table.handle >> 20, table.divisor);
        save.line(Words::new(&format!("tc filter add {begin} handle {number:x}: u32 divisor {divisor}")));
    }
    for table in own_tables {
        for (handle, node) in &table.nodes {
            let mut words = Words::default();
            let (number, bucket, place) = (handle >> 20, u32::bucket(*handle), u32::node(*handle));
            if table.handle == own {
                words.add(format_args!("handle ::{place:x} u32"));
            } else {
                words.add(format_args!(
                    "handle {number:x}:{bucket:x}:{place:x} u32 ht {number:x}:{bucket:x}:"
                ));
            }
            match node_words(save, node) {
                Ok(rest) => {
                    words.add_all(&rest);
                    save_filter(save, made, begin, &words, &node.common);
                }
                Err(why) => save.left_out(format!("the u32 filter {words} of {begin}: {why}")),
            }
        }
    }
}

fn node_words(save: &Save<'_>, node: &Node) -> Result<Words, String> {
    let Node { selector, link, input, mark, mark_counter: _, key_counters: _, common } = node;
    let Selector { flags, shift, offset_mask, offset, offset_at, hash_at, hash_mask, keys } = selector;
    let ends = common.class != 0 || !common.exts.names().is_empty();
    if (flags & TERMINAL != 0) != ends {
        return Err("whether it is terminal does not follow from what it does".to_owned());
    }
    let mut words = Words::default();
    for Key { mask, value, offset, offset_mask } in keys {
        let [mask, value] = [*mask, *value].map(u32::from_be_bytes);
        let next = match offset_mask {
            0 => "",
            -1 => "nexthdr+",
            _ => return Err("the offset of a key has a mask".to_owned()),
        };
        words.add(format_args!("match u32 {value:#010x} {mask:#010x} at {next}{offset}"));
    }
    if let Some((value, mask)) = mark {
        words.add(format_args!("match mark {value:#x} {mask:#x}"));
    }
    if flags & (OFFSET | VARIABLE | EAT) != 0 {
        words.add("offset");
        words.some("plus", (flags & OFFSET != 0).then_some(offset));
        if flags & VARIABLE != 0 {
            words.pair("at", offset_at).pair("mask", format_args!("{offset_mask:#06x}")).pair("shift", shift);
        }
        words.when(flags & EAT != 0, "eat");
    }
    words.some("link", link.map(|table| format!("{:x}:", table >> 20)));
    if *hash_mask != [0; 4] || *hash_at != 0 {
        let mask = u32::from_be_bytes(*hash_mask);
        words.add(format_args!("hashkey mask {mask:#010x} at {hash_at}"));
    }
    words.some("indev", input.map(|link| save.name(link)));
    words.when(common.flags & SKIP_HW != 0, "skip_hw");
    Ok(words)
}
