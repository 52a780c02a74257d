//! Actions in words.

mod pedit;

use std::collections::BTreeSet;

use underpass_netlink::iptunnel;
use underpass_netlink::tc::action::gact::Probability;
use underpass_netlink::tc::action::mpls::Verb as MplsVerb;
use underpass_netlink::tc::action::vlan::{Tag, Verb as VlanVerb};
use underpass_netlink::tc::action::{
    self, Config, Csum, Gact, Generic, Mirred, Mpls, Police, Sample, Skbedit, TunnelKey, goto_chain,
};
use underpass_netlink::tc::rate::ATM;

use self::pedit::pedit_words;
use super::{Action, Exts, Name};
use crate::save::{Save, Words, mac, protocol};
use crate::tc::save::{burst_of, rate_word};

/// `TCA_ACT_FLAGS_NO_PERCPU_STATS`.
const NO_PERCPU: u32 = 1;

/// The actions that lines have made so far: who names one of them has the same.
#[derive(Debug, Default)]
pub(in crate::tc) struct Made {
    actions: BTreeSet<Name>,
    /// Tables of `u32`: link, qdisc and number.
    tables: BTreeSet<(u32, u32, u32)>,
}

impl Made {
    /// Whether a line is needed that makes a table: the first time only.
    pub fn table(&mut self, table: (u32, u32, u32)) -> bool {
        self.tables.insert(table)
    }
}

/// The actions that were made without a filter, as lines.
pub(in crate::tc) fn save_alone(save: &mut Save<'_>, made: &mut Made) {
    let actions = &save.router.actions;
    for (&name, action) in actions.by_name.iter().filter(|(_, action)| action.refs > action.binds) {
        let mut line = Words::new("tc actions add");
        line.some("estimator", estimator(action)).pair("action", words(save, made, name, action));
        line.add_all(&common(action));
        save.line(line);
    }
}

/// `estimator` of a filter's line, and the words behind the rest of the filter.
pub(in crate::tc) fn exts_words(
    save: &mut Save<'_>,
    made: &mut Made,
    exts: &Exts,
) -> (Option<String>, Words) {
    let (mut all, mut first) = (Words::default(), None);
    let prefix = if let Exts::Police(_) = exts { "" } else { "action" };
    for name in exts.names() {
        let Some(action) = save.router.actions.by_name.get(name) else { continue };
        first = first.or_else(|| estimator(action).filter(|_| !made.actions.contains(name)));
        all.when(!prefix.is_empty(), prefix).add(words(save, made, *name, action));
        if !prefix.is_empty() {
            all.add_all(&common(action));
        }
    }
    (first, all)
}

/// The time between two samples, and one after which the average has followed. iproute2: `tc_setup_estimator`.
fn estimator(action: &Action) -> Option<String> {
    let estimator = action.estimator?;
    let interval = 250_000_u64 << (estimator.interval + 2).clamp(0, 5);
    Some(format!("{interval}us {}us", interval << estimator.ewma_log.min(31)))
}

/// A control action; `None` for one that has no word.
fn control(action: i32) -> Option<String> {
    if let Some(chain) = goto_chain(action) {
        return Some(format!("goto chain {chain}"));
    }
    if action as u32 & !action::VALUE == action::JUMP as u32 {
        return Some(format!("jump {}", action as u32 & action::VALUE));
    }
    let word = match action {
        action::UNSPEC => "continue",
        action::OK => "pass",
        action::RECLASSIFY => "reclassify",
        action::SHOT => "drop",
        action::PIPE => "pipe",
        action::TRAP => "trap",
        _ => return None,
    };
    Some(word.to_owned())
}

/// One action: the first time all of it, then its number.
fn words(save: &mut Save<'_>, made: &mut Made, name: Name, action: &Action) -> Words {
    let mut words = Words::new(name.kind);
    let Action {
        config,
        refs: _,
        binds: _,
        cookie: _,
        flags: _,
        estimator: _,
        hw_stats: _,
        asked_hw: _,
        goto: _,
        by_filter: _,
        installed: _,
        id: _,
        counter: _,
        ways: _,
    } = action;
    if !made.actions.insert(name) {
        words.pair("index", name.index);
        return words;
    }
    let what = format!("the {} {}", name.kind, name.index);
    match config {
        Config::Police(police) => police_words(save, &mut words, police, &what),
        Config::Gact(Gact { generic, probability }) => {
            then(save, &mut words, generic, &what);
            if let Some(Probability { kind, value, action }) = probability {
                let kind = match kind {
                    2 => "determ",
                    1 => "netrand",
                    _ => "none",
                };
                match control(*action) {
                    Some(control) if kind != "none" => {
                        words.pair("random", kind).add(control).add(value);
                    }
                    _ => save.left_out(format!("the probability of {what}")),
                }
            }
        }
        Config::Mirred(mirred) => mirred_words(save, &mut words, mirred, &what),
        Config::Mpls(mpls) => mpls_words(save, &mut words, mpls, &what),
        Config::Vlan(vlan) => {
            match vlan.check() {
                Ok(verb) => vlan_words(&mut words, verb),
                Err(_) => save.left_out(what.clone()),
            }
            then(save, &mut words, &vlan.generic, &what);
        }
        Config::Skbedit(Skbedit { generic, priority, mark, mask, inherit_ds }) => {
            words.some("priority", priority.map(|priority| format!("{priority:#x}")));
            let masked = |mark: u32| match mask {
                None => format!("{mark:#x}"),
                Some(mask) => format!("{mark:#x}/{mask:#x}"),
            };
            words.some("mark", mark.map(masked)).when(*inherit_ds, "inheritdsfield");
            then(save, &mut words, generic, &what);
        }
        Config::TunnelKey(key) => key_words(save, &mut words, key, &what),
        Config::Sample(Sample { generic, rate, truncate, group }) => {
            words.some("rate", *rate).some("group", *group).some("trunc", *truncate);
            then(save, &mut words, generic, &what);
        }
        Config::Csum(Csum { generic, flags }) => {
            csum_words(save, &mut words, *flags, &what);
            then(save, &mut words, generic, &what);
        }
        Config::Pedit(pedit) => {
            pedit_words(save, &mut words, pedit, &what);
            then(save, &mut words, &pedit.generic, &what);
        }
    }
    words.pair("index", name.index);
    words
}

/// What actions of all kinds have; an old-style policer has none of it.
fn common(action: &Action) -> Words {
    let mut words = Words::default();
    let set = action.flags & if action.by_filter { NO_PERCPU } else { u32::MAX };
    if let Some(cookie) = &action.cookie {
        words.pair("cookie", cookie.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    }
    words.when(set & NO_PERCPU != 0, "no_percpu");
    words.when(set & action::SKIP_HW != 0, "skip_hw").when(set & action::SKIP_SW != 0, "skip_sw");
    match action.hw_stats {
        action::HW_STATS_ANY => &mut words,
        0 => words.pair("hw_stats", "disabled"),
        1 => words.pair("hw_stats", "immediate"),
        _ => words.pair("hw_stats", "delayed"),
    };
    words
}

/// What comes after an action.
fn then(save: &mut Save<'_>, words: &mut Words, generic: &Generic, what: &str) {
    match control(generic.action) {
        Some(control) => {
            words.add(control);
        }
        None => save.left_out(format!("what comes after {what}: {}", generic.action)),
    }
}

fn csum_words(save: &mut Save<'_>, words: &mut Words, flags: u32, what: &str) {
    let names = ["ip4h", "icmp", "igmp", "tcp", "udp", "udplite", "sctp"];
    for (name, bit) in names.into_iter().zip(0..) {
        words.when(flags & 1 << bit != 0, name);
    }
    if flags == 0 || flags >> names.len() != 0 {
        save.left_out(format!("the checksums of {what}: {flags:#x}"));
    }
}

fn police_words(save: &mut Save<'_>, words: &mut Words, police: &Police, what: &str) {
    let mut burst = |ticks: u64, rate: u64| {
        burst_of(ticks, rate).unwrap_or_else(|nearest| {
            save.left_out(format!("the exact burst of {what}: {nearest} is near"));
            nearest
        })
    };
    if let Some(rate) = police.rate {
        words.pair("rate", rate_word(rate.bytes)).pair("burst", burst(police.burst.into(), rate.bytes));
        words.some("overhead", (rate.spec.overhead != 0).then_some(rate.spec.overhead));
        words.some("mpu", (rate.spec.mpu != 0).then_some(rate.spec.mpu));
        words.when(rate.spec.linklayer & 0xf == ATM, "linklayer atm");
    }
    words.some("peakrate", police.peak.map(|peak| rate_word(peak.bytes)));
    if let Some((rate, ticks)) = police.packets() {
        words.pair("pkts_rate", rate).pair("pkts_burst", burst(ticks, rate));
    }
    words.some("mtu", (police.mtu != u32::MAX).then_some(police.mtu));
    words.some("avrate", (police.average != 0).then(|| rate_word(police.average.into())));
    match (control(police.action), control(police.result)) {
        (Some(beyond), Some(below)) => {
            words.pair("conform-exceed", format_args!("{beyond}/{below}"));
        }
        _ => save.left_out(format!("what comes after {what}")),
    }
}

fn mirred_words(save: &mut Save<'_>, words: &mut Words, mirred: &Mirred, what: &str) {
    let Mirred { generic, eaction, link } = mirred;
    let way = match eaction {
        1 => "egress redirect",
        2 => "egress mirror",
        3 => "ingress redirect",
        _ => "ingress mirror",
    };
    words.add(way);
    match save.router.links.get(*link) {
        Some(_) => {
            words.pair("dev", save.name(*link));
        }
        None => save.left_out(format!("{what}: its device is gone")),
    }
    // It goes without saying of a redirect.
    if !(matches!(eaction, 1 | 3) && generic.action == action::STOLEN) {
        then(save, words, generic, what);
    }
}

fn mpls_words(save: &mut Save<'_>, words: &mut Words, mpls: &Mpls, what: &str) {
    let Mpls { generic, m_action: _, protocol: kind, label, tc, ttl, bos } = mpls;
    match mpls.verb() {
        Some(verb) => {
            words.add(match verb {
                MplsVerb::Pop => "pop",
                MplsVerb::Push => "push",
                MplsVerb::Modify => "modify",
                MplsVerb::DecTtl => "dec_ttl",
                MplsVerb::MacPush => "mac_push",
            });
            let has_protocol = matches!(verb, MplsVerb::Pop | MplsVerb::Push | MplsVerb::MacPush);
            words.some("protocol", kind.filter(|_| has_protocol).map(protocol));
        }
        None => save.left_out(what),
    }
    words.some("label", *label).some("tc", *tc).some("ttl", *ttl).some("bos", *bos);
    then(save, words, generic, what);
}

fn vlan_words(words: &mut Words, verb: VlanVerb) {
    let tag = |words: &mut Words, name: &str, tag: Tag| {
        let Tag { id, protocol, priority } = tag;
        let protocol = if protocol == 0x88a8 { "802.1ad" } else { "802.1Q" };
        words.add(name).pair("id", id).pair("protocol", protocol).some("priority", priority);
    };
    match verb {
        VlanVerb::Pop => {
            words.add("pop");
        }
        VlanVerb::Push(of) => tag(words, "push", of),
        VlanVerb::Modify(of) => tag(words, "modify", of),
        VlanVerb::PopEthernet => {
            words.add("pop_eth");
        }
        VlanVerb::PushEthernet { destination, source } => {
            words.add("push_eth").pair("dst_mac", mac(destination)).pair("src_mac", mac(source));
        }
    }
}

fn key_words(save: &mut Save<'_>, words: &mut Words, key: &TunnelKey, what: &str) {
    match key.check() {
        Ok(Some(tunnel)) => {
            words.add("set").pair("src_ip", tunnel.source).pair("dst_ip", tunnel.destination);
            words.some("id", (tunnel.flags & iptunnel::KEY != 0).then_some(tunnel.id));
            words.some("dst_port", (tunnel.port != 0).then_some(tunnel.port));
            words.some("tos", (tunnel.tos != 0).then(|| format!("{:#x}", tunnel.tos)));
            words.some("ttl", (tunnel.ttl != 0).then_some(tunnel.ttl));
            words.add(if tunnel.flags & iptunnel::CSUM != 0 { "csum" } else { "nocsum" });
            words.when(tunnel.flags & iptunnel::DONT_FRAGMENT != 0, "nofrag");
        }
        Ok(None) => {
            words.add("unset");
        }
        Err(_) => save.left_out(what),
    }
    then(save, words, &key.generic, what);
}
