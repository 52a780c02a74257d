//! Qdiscs and classes as lines.

mod cake;
mod netem;
mod numbers;
mod red;
mod stab;

use underpass_engine::qos::Rate;
use underpass_engine::tables::FifoLimit;
use underpass_netlink::tc::{
    self, codel::Codel, fq::Fq, fq_codel::FqCodel, htb::HtbClass, queue::Prio, rate, sfq::Sfq, tbf::Tbf,
};

use super::kind::config;
use super::{Kind, LinkControl, Qdisc};
use crate::save::{Save, Words};

pub(super) use super::filter::save::save as save_all_filters;
pub(super) use numbers::{burst_of, bytes_of, handle, rate_word};

/// The qdiscs and classes of all links.
pub(crate) fn save_qdiscs(save: &mut Save<'_>) {
    for (&link, control) in &save.router.tc.links {
        if save.router.links.get(link).is_some() {
            save_link(save, link, control);
        }
    }
}

/// Actions, filters and chains.
pub(crate) fn save_filters(save: &mut Save<'_>) {
    save_all_filters(save);
}

fn save_link(save: &mut Save<'_>, link: u32, control: &LinkControl) {
    // A qdisc was made behind the one that it is in.
    let mut qdiscs: Vec<&Qdisc> = control.hook.iter().chain(control.qdiscs.values()).collect();
    qdiscs.sort_by_key(|qdisc| qdisc.serial);
    for qdisc in qdiscs {
        let Qdisc { handle: own, parent, kind, ingress: _, size_table, blocks, queue: _, serial: _ } = qdisc;
        let mut line = Words::new("tc qdisc add");
        line.pair("dev", save.name(link));
        line.some("ingress_block", blocks[0]).some("egress_block", blocks[1]);
        match *parent {
            // Their place follows from their kind.
            tc::INGRESS => &mut line,
            tc::ROOT => line.add("root"),
            parent => line.pair("parent", handle(parent)),
        };
        if *parent != tc::INGRESS {
            line.pair("handle", handle(*own));
        }
        let inside = !matches!(*parent, tc::ROOT | tc::INGRESS) && tc::major(*parent) != tc::HOOK;
        if let Some(table) = size_table.as_deref().filter(|_| !inside) {
            stab::words(save, &mut line, table, &handle(*own));
        }
        line.add(kind.name());
        options(save, &mut line, kind, &handle(*own));
        save.line(line);
        if let Some(table) = size_table.as_deref().filter(|_| inside) {
            // Only a change gives one to what is in a class.
            let mut line = Words::new("tc qdisc change");
            line.pair("dev", save.name(link)).pair("parent", handle(*parent)).pair("handle", handle(*own));
            stab::words(save, &mut line, table, &handle(*own));
            save.line(line);
        }
        save_classes(save, link, qdisc);
    }
}

fn options(save: &mut Save<'_>, line: &mut Words, kind: &Kind, name: &str) {
    match kind {
        Kind::Ingress | Kind::Clsact | Kind::Noqueue | Kind::PfifoFast => {}
        Kind::Fifo(FifoLimit::Packets(limit) | FifoLimit::Bytes(limit)) => {
            line.pair("limit", limit);
        }
        Kind::Prio { settings: Prio { bands, map }, bands: _ } => {
            let map = map.map(|band| band.to_string()).join(" ");
            line.pair("bands", bands).pair("priomap", map);
        }
        Kind::Tbf { settings, child: _ } => tbf(save, line, settings, name),
        Kind::Htb(htb) => {
            let tc::htb::Htb { rate_to_quantum, default, direct_limit: _ } = htb.settings;
            line.pair("default", format_args!("{default:#x}")).pair("r2q", rate_to_quantum);
            line.pair("direct_qlen", htb.direct_limit);
        }
        Kind::FqCodel(settings) => fq_codel(line, settings),
        Kind::Codel(settings) => codel(line, settings),
        Kind::Fq { settings, more: _ } => fq(save, line, settings, name),
        Kind::Cake { settings, tins: _, capacity: _, change: _, seed: _ } => {
            cake::words(save, line, settings, name);
        }
        Kind::Red { settings, child: _, change: _, seed: _ } => red::words(save, line, settings, name),
        Kind::Sfq { settings, seed: _ } => sfq(line, settings),
        Kind::Netem { settings, child: _, change: _ } => netem::words(save, line, settings, name),
    }
}

/// The words of a rate that are not the rate itself.
fn link_layer(line: &mut Words, rate: &tc::Rate) {
    line.some("mpu", (rate.mpu != 0).then_some(rate.mpu));
    line.some("overhead", (rate.overhead != 0).then_some(rate.overhead));
    line.when(rate.link_layer == rate::ATM, "linklayer atm");
}

fn tbf(save: &mut Save<'_>, line: &mut Words, settings: &Tbf, name: &str) {
    let Tbf { rate, peak, limit, buffer, mtu, max_size } = settings;
    let mut bytes = |rate: &tc::Rate, nanos: u64, what: &str| {
        let compiled = Rate::new(config(rate));
        bytes_of(nanos, |bytes| compiled.nanos(bytes)).unwrap_or_else(|nearest| {
            save.left_out(format!("the exact {what} of the tbf {name}: {nearest} bytes are near"));
            nearest
        })
    };
    line.pair("rate", rate_word(rate.bytes));
    // Without a peak rate the longest packet is the burst.
    let burst = match peak {
        None => u32::try_from(*max_size).unwrap_or(u32::MAX),
        Some(_) => bytes(rate, *buffer, "burst"),
    };
    line.pair("burst", burst);
    if let Some(peak) = peak {
        line.pair("peakrate", rate_word(peak.bytes)).pair("minburst", bytes(peak, *mtu, "minburst"));
    }
    line.pair("limit", limit);
    link_layer(line, rate);
}

fn codel(line: &mut Words, settings: &Codel) {
    let Codel { target, limit, interval, ecn, ce_threshold } = settings;
    line.pair("limit", limit).pair("target", codel_time(*target)).pair("interval", codel_time(*interval));
    line.some("ce_threshold", ce_threshold.map(codel_time)).add(if *ecn { "ecn" } else { "noecn" });
}

fn fq(save: &mut Save<'_>, line: &mut Words, settings: &Fq, name: &str) {
    let usual = Fq::new(0);
    let Fq { limit, flow_limit, quantum, initial_quantum, pacing, max_rate, buckets_log, .. } = settings;
    let Fq { orphan_mask, low_rate_threshold, ce_threshold, timer_slack, horizon, horizon_drop, .. } =
        settings;
    line.pair("limit", limit).pair("flow_limit", flow_limit).pair("buckets", 1_u32 << buckets_log.min(&18));
    line.pair("orphan_mask", orphan_mask).pair("quantum", quantum);
    line.pair("initial_quantum", initial_quantum).add(if *pacing { "pacing" } else { "nopacing" });
    line.some("maxrate", (*max_rate != u32::MAX).then(|| rate_word((*max_rate).into())));
    line.pair("low_rate_threshold", rate_word((*low_rate_threshold).into()));
    line.some("ce_threshold", (*ce_threshold != u32::MAX).then_some(format_args!("{ce_threshold}us")));
    line.pair("refill_delay", format_args!("{}us", settings.refill_delay_us()));
    line.pair("timer_slack", format_args!("{timer_slack}ns")).pair("horizon", format_args!("{horizon}us"));
    line.add(if *horizon_drop != 0 { "horizon_drop" } else { "horizon_cap" });
    if (settings.priomap, settings.weights) != (usual.priomap, usual.weights) {
        save.left_out(format!("the bands of {name}, for which tc has words from 6.7 on"));
    }
}

fn sfq(line: &mut Words, settings: &Sfq) {
    let Sfq { quantum, perturb, limit, divisor, flows, depth, head_drop } = settings;
    // There are no more queues than a limit that is given; the usual one is less than the usual queues.
    line.some("limit", (flows <= limit).then_some(limit));
    line.pair("flows", flows).pair("divisor", divisor).pair("depth", depth);
    line.pair("quantum", quantum).some("perturb", (*perturb != 0).then_some(perturb));
    line.when(*head_drop, "headdrop");
}

/// A time in units of 1,024 ns, which the tool has in microseconds, rounded down both ways.
fn codel_time(units: u32) -> String {
    format!("{}us", (u64::from(units) * 1024).div_ceil(1000))
}

fn fq_codel(line: &mut Words, settings: &FqCodel) {
    let FqCodel {
        target,
        limit,
        interval,
        ecn,
        flows,
        quantum,
        ce_threshold,
        drop_batch,
        memory_limit,
        ce_selector,
        ce_mask,
    } = settings;
    let time = codel_time;
    line.pair("limit", limit).pair("flows", flows).pair("quantum", quantum);
    line.pair("target", time(*target)).pair("interval", time(*interval));
    line.some("ce_threshold", ce_threshold.map(time));
    line.some(
        "ce_threshold_selector",
        (*ce_mask != 0).then_some(format_args!("{ce_selector:#x}/{ce_mask:#x}")),
    );
    line.pair("memory_limit", memory_limit).pair("drop_batch", drop_batch);
    line.add(if *ecn { "ecn" } else { "noecn" });
}

fn save_classes(save: &mut Save<'_>, link: u32, qdisc: &Qdisc) {
    let Kind::Htb(htb) = &qdisc.kind else { return };
    // Linux shows those first that were made last; a class is made behind the one above it.
    let mut ids: Vec<u32> = htb.order().collect();
    ids.reverse();
    let depth = |mut id: u32| {
        let mut depth = 0;
        while let Some(parent) = htb.get(id).and_then(|class| class.parent) {
            (id, depth) = (parent, depth + 1);
        }
        depth
    };
    ids.sort_by_key(|id| depth(*id));
    for id in ids {
        let Some(class) = htb.get(id) else { continue };
        let HtbClass { rate, ceil, buffer, ceil_buffer, quantum, priority } = &class.settings;
        let mut line = Words::new("tc class add");
        line.pair("dev", save.name(link)).pair("parent", handle(class.parent.unwrap_or(qdisc.handle)));
        line.pair("classid", handle(id)).add("htb");
        let mut burst = |rate: &tc::Rate, nanos: u64, what: &str| {
            burst_of(nanos / 64, rate.bytes).unwrap_or_else(|nearest| {
                save.left_out(format!(
                    "the exact {what} of the class {}: {nearest} bytes are near",
                    handle(id)
                ));
                nearest
            })
        };
        line.pair("rate", rate_word(rate.bytes)).pair("burst", burst(rate, *buffer, "burst"));
        line.pair("ceil", rate_word(ceil.bytes)).pair("cburst", burst(ceil, *ceil_buffer, "cburst"));
        line.pair("prio", priority).pair("quantum", quantum);
        link_layer(&mut line, rate);
        save.line(line);
    }
}
