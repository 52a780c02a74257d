//! Policy rules as lines: what differs from those that a router has by itself.

use super::{
    FR_ACT_BLACKHOLE, FR_ACT_GOTO, FR_ACT_NOP, FR_ACT_PROHIBIT, FR_ACT_TO_TBL, FR_ACT_UNREACHABLE, Ports,
    Rule, Rules,
};
use crate::route::table::{Family, Prefix};
use crate::save::{Save, Words, quoted};

pub(crate) fn save(save: &mut Save<'_>) {
    let router = save.router;
    let live = router.live.is_some();
    // They come with the first VRF.
    let vrfs = router.routes.rules.vrfs && router.links.iter().any(|link| link.vrf_table().is_some());
    for family in [Family::V4, Family::V6] {
        let own: Vec<&Rule> =
            router.routes.rules.of(family).iter().filter(|rule| rule.reported.is_none()).collect();
        let mut first = Rules::default();
        if live {
            first.clear();
        }
        if vrfs {
            first.add(family, super::request::of_vrfs());
        }
        // Rules stand in the order of their priorities, and those of one in the order in which they came.
        let mut expected: Vec<&Rule> = first.of(family).iter().collect();
        let kept = longest_common(&own, &expected);
        expected.retain(|rule| !kept.contains(rule));
        for rule in expected {
            let words = rule_words(save, family, rule);
            save.line(Words::new(&format!("{} rule del {words}", tool(family))));
        }
        for rule in own.into_iter().filter(|rule| !kept.contains(rule)) {
            let words = rule_words(save, family, rule);
            save.line(Words::new(&format!("{} rule add {words}", tool(family))));
        }
    }
}

const fn tool(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip -6",
    }
}

/// The rules of a router's own that may stay where they are: no rule of a request stands before one of its priority.
fn longest_common<'a>(own: &[&'a Rule], expected: &[&Rule]) -> Vec<&'a Rule> {
    let may_stay = |(at, rule): (usize, &&'a Rule)| {
        let before = own.get(..at).unwrap_or_default().iter();
        let first = before.clone().all(|other| other.priority != rule.priority);
        (expected.contains(rule) && first).then_some(*rule)
    };
    own.iter().enumerate().filter_map(may_stay).collect()
}

fn rule_words(save: &mut Save<'_>, family: Family, rule: &Rule) -> Words {
    let Rule {
        priority,
        action,
        table,
        target,
        l3mdev,
        protocol,
        invert,
        source,
        destination,
        iif,
        oif,
        tos,
        dscp,
        flow_label,
        mark,
        mask,
        ip_protocol,
        source_port,
        destination_port,
        suppress_prefix,
        reported: _,
    } = rule;
    let mut words = Words::default();
    words.when(*invert, "not");
    let prefix = |prefix: Prefix| format!("{}/{}", family.address(prefix.bits), prefix.len);
    // Without any selector `ip` wants to see that it is meant.
    words.pair("from", source.map_or_else(|| "all".to_owned(), prefix));
    words.some("to", destination.map(prefix));
    words.some("tos", (*tos != 0).then_some(format_args!("{tos:#x}")));
    if let Some((dscp, mask)) = dscp {
        match mask {
            0xfc => words.pair("dscp", dscp >> 2),
            mask => words.pair("dscp", format_args!("{:#x}/{:#x}", dscp >> 2, mask >> 2)),
        };
    }
    if let Some((label, mask)) = flow_label {
        match mask {
            0xf_ffff => words.pair("flowlabel", format_args!("{label:#x}")),
            mask => words.pair("flowlabel", format_args!("{label:#x}/{mask:#x}")),
        };
    }
    match (*mark, *mask) {
        (0, 0) => {}
        (mark, u32::MAX) => {
            words.pair("fwmark", format_args!("{mark:#x}"));
        }
        (mark, mask) => {
            words.pair("fwmark", format_args!("{mark:#x}/{mask:#x}"));
        }
    }
    words
        .some("iif", (!iif.is_empty()).then(|| quoted(iif)))
        .some("oif", (!oif.is_empty()).then(|| quoted(oif)));
    words.some("ipproto", (*ip_protocol != 0).then_some(ip_protocol));
    words.some("sport", source_port.map(ports)).some("dport", destination_port.map(ports));
    words.pair("pref", priority);
    words.some("protocol", (*protocol != libc::RTPROT_BOOT).then_some(protocol));
    match *action {
        FR_ACT_TO_TBL if *l3mdev => words.add("l3mdev"),
        FR_ACT_TO_TBL => words.pair("table", table),
        FR_ACT_GOTO => words.pair("goto", target),
        FR_ACT_NOP => words.add("nop"),
        FR_ACT_BLACKHOLE => words.add("blackhole"),
        FR_ACT_UNREACHABLE => words.add("unreachable"),
        FR_ACT_PROHIBIT => words.add("prohibit"),
        other => {
            save.left_out(format!("the action {other} of the rule of priority {priority}"));
            &mut words
        }
    };
    words.some("suppress_prefixlength", *suppress_prefix);
    words
}

fn ports(ports: Ports) -> String {
    let Ports { first, last, mask } = ports;
    match mask {
        0 | u16::MAX if first == last => first.to_string(),
        0 | u16::MAX => format!("{first}-{last}"),
        mask => format!("{first:#x}/{mask:#x}"),
    }
}
