//! Qdiscs as the packet path has them, and what it has counted.

use std::sync::Arc;

use underpass_engine::counters::{QueueCount, QueueId};
use underpass_engine::tables::{
    self, FqCodel, HookId, HtbClass, NetemLoss, PfifoFast, Prio, QdiscKind, RedParams, Tbf,
};
use underpass_netlink::tc::codel::CodelCounts;
use underpass_netlink::tc::fq::{Fq, FqCounts};
use underpass_netlink::tc::fq_codel::FqCodelCounts;
use underpass_netlink::tc::htb::HtbCounts;
use underpass_netlink::tc::netem::{Loss, Netem, NetemRate};
use underpass_netlink::tc::red;
use underpass_netlink::tc::stab::SizeTable;
use underpass_netlink::tc::{Own, Statistics};

use super::cake;
use super::filter::Filters;
use super::filter::hook::hook_count;
use super::htb::Class;
use super::kind::{config, frame};
use super::leaf::Leaf;
use super::parent::{Block, Point};
use super::{Kind, LinkControl, Qdisc};
use crate::Router;
use crate::link::Link;
use crate::link::publish::publish_link;

/// What is counted of a qdisc or class, and what its kind counts besides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub common: Statistics,
    pub own: Option<Own>,
    /// Packets that an `htb` sent unshaped.
    pub direct: u32,
}

/// Publishes to the packet path the qdiscs of a link, after they have changed.
pub(super) fn publish_qdiscs(router: &mut Router, index: u32) {
    let Some(link) = router.links.get(index).cloned() else { return };
    let Some(control) = router.tc.links.get_mut(&index) else { return };
    let qdiscs = control.qdiscs.values_mut().chain(&mut control.hook);
    for queue in qdiscs.flat_map(unnumbered) {
        *queue = Some(router.engine.add_queue());
    }
    let filters = &router.filters;
    let compile = Compile { control, filters, link: &link };
    let shaper = control.hook().and_then(|hook| hook.ingress.as_ref());
    let trees =
        [control.root().and_then(|root| compile.qdisc(root)), shaper.and_then(|shaper| compile.leaf(shaper))];
    let old = control.published;
    let freed = std::mem::take(&mut control.freed);
    for (published, tree) in control.published.iter_mut().zip(trees) {
        *published = match (tree, *published) {
            (Some(tree), Some(old)) => {
                router.engine.set_qdisc(old, tree);
                Some(old)
            }
            (Some(tree), None) => Some(router.engine.add_qdisc(tree)),
            (None, _) => None,
        };
    }
    let published = control.published;
    if published != old {
        publish_link(router, index);
    }
    for (old, new) in old.into_iter().zip(published) {
        old.filter(|_| new.is_none()).into_iter().for_each(|old| router.engine.remove_qdisc(old));
    }
    freed.into_iter().for_each(|queue| router.engine.remove_queue(queue));
}

/// What a qdisc has counted.
pub(crate) fn count_qdisc(router: &Router, link: u32, qdisc: &Qdisc) -> Counted {
    if qdisc.kind.is_hook() {
        // Its filters count for it.
        let count = hook_count(router, link, qdisc.handle);
        let common = Statistics {
            bytes: count.bytes,
            packets: count.packets,
            drops: count.drops as u32,
            overlimits: count.overlimits as u32,
            ..Statistics::default()
        };
        return Counted { common, ..Counted::default() };
    }
    let Some(queue) = qdisc.queue else { return Counted::default() };
    // Their longest packet is that of all workers.
    let longest = matches!(qdisc.kind, Kind::FqCodel(_) | Kind::Codel(_));
    let count = if longest { router.engine.fq_codel_count(queue) } else { router.engine.queue_count(queue) };
    let direct = if matches!(qdisc.kind, Kind::Htb(_)) { count.direct_packets() as u32 } else { 0 };
    let own = match &qdisc.kind {
        Kind::FqCodel(_) => Some(fq_codel_counts(&count)),
        Kind::Codel(_) => Some(codel_counts(&count, router.packet_time())),
        Kind::Cake { .. } => {
            let own = Some(Own::Attributes(cake::counts(router, link, queue, &qdisc.kind)));
            return Counted { common: common(&count), own, direct };
        }
        Kind::Fq { settings, more } => {
            let more = more.map(|more| router.engine.fq_codel_count(more)).unwrap_or_default();
            Some(fq_counts(&count, &more, settings.timer_slack, router.packet_time()))
        }
        Kind::Red { .. } => Some(red_counts(&count)),
        _ => None,
    };
    Counted { common: common(&count), own: own.map(Own::Structure), direct }
}

/// What a class of a qdisc has counted; `None` if its kind counts nothing of classes.
pub(crate) fn count_class(router: &Router, link: u32, qdisc: &Qdisc, class: u32) -> Option<Counted> {
    let count =
        |queue: Option<QueueId>| queue.map(|queue| router.engine.queue_count(queue)).unwrap_or_default();
    match &qdisc.kind {
        Kind::Htb(htb) => {
            let class = htb.get(class)?;
            let mut count = count(class.queue);
            if let Some(leaf) = &class.leaf {
                let inside = count_leaf(router, link, leaf);
                (count.queued, count.backlog) = (inside.queued, inside.backlog);
            }
            let own = count.htb();
            // As made until a worker has the class.
            let fresh = own.tokens == 0 && own.ctokens == 0 && count.packets == 0;
            let full = class.tokens.map(|tokens| tokens as i64);
            let [tokens, ceil_tokens] = if fresh { full } else { [own.tokens, own.ctokens] };
            let counts =
                HtbCounts { lends: own.lends as u32, borrows: own.borrows as u32, tokens, ceil_tokens };
            Some(Counted { common: common(&count), own: Some(Own::Structure(counts.bytes())), direct: 0 })
        }
        Kind::Prio { .. } => {
            let count = count_leaf(router, link, qdisc.leaf(class)?);
            Some(Counted { common: common(&count), ..Counted::default() })
        }
        _ => None,
    }
}

/// What the queue in a class has counted.
fn count_leaf(router: &Router, link: u32, leaf: &Leaf) -> QueueCount {
    let queue = match leaf {
        Leaf::Queue { queue, .. } => *queue,
        Leaf::Qdisc(handle) => own_qdisc(router, link, *handle).and_then(|qdisc| qdisc.queue),
    };
    queue.map(|queue| router.engine.queue_count(queue)).unwrap_or_default()
}

/// The qdisc of a handle on a link.
pub(super) fn own_qdisc(router: &Router, link: u32, handle: u32) -> Option<&Qdisc> {
    router.tc.get(link)?.lookup(handle)
}

fn common(count: &QueueCount) -> Statistics {
    Statistics {
        bytes: count.bytes,
        packets: count.packets,
        drops: count.drops as u32,
        overlimits: count.overlimits as u32,
        requeues: count.requeues as u32,
        queued: count.queued as u32,
        backlog: count.backlog as u32,
        rate: None,
    }
}

fn fq_codel_counts(count: &QueueCount) -> Vec<u8> {
    let count = count.fq_codel();
    let counts = FqCodelCounts {
        max_packet: count.max_packet as u32,
        drop_overlimit: count.drop_overlimit as u32,
        ecn_mark: count.ecn_mark as u32,
        new_flow_count: count.new_flow_count as u32,
        new_flows: count.new_flows_len as u32,
        old_flows: count.old_flows_len as u32,
        ce_mark: count.ce_mark as u32,
        memory_usage: count.memory_usage as u32,
        drop_overmemory: count.drop_overmemory as u32,
    };
    counts.bytes()
}

fn red_counts(count: &QueueCount) -> Vec<u8> {
    let [early, full, marked] = count.red().map(|count| count as u32);
    red::RedCounts { early, full, marked }.bytes()
}

fn fq_counts(count: &QueueCount, more: &QueueCount, slack: u32, now: u64) -> Vec<u8> {
    let count = count.fq(more);
    let due = count.next_delayed.unwrap_or(u64::MAX);
    let counts = FqCounts {
        gc_flows: count.forgotten,
        throttled: count.throttled,
        flows_plimit: count.flow_limit,
        pkts_too_long: count.too_long,
        allocation_errors: count.no_flow,
        time_next_delayed_flow: due.wrapping_add(slack.into()).wrapping_sub(now).cast_signed(),
        flows: count.flows as u32,
        inactive_flows: count.inactive as u32,
        throttled_flows: count.throttled_flows as u32,
        unthrottle_latency_ns: u32::try_from(count.latency).unwrap_or(u32::MAX),
        ce_mark: count.marked,
        fastpath_packets: count.fastpath,
        band_drops: count.band_drops,
        band_packets: count.band_packets.map(|packets| packets as u32),
    };
    counts.bytes()
}

fn codel_counts(count: &QueueCount, now: u64) -> Vec<u8> {
    let count = count.codel();
    // In units of 1,024 ns that wrap.
    let left = count.drop_next.map_or(0, |next| next.wrapping_sub((now >> 10) as u32).cast_signed());
    let counts = CodelCounts {
        max_packet: count.max_packet as u32,
        count: count.count as u32,
        last_count: count.last_count as u32,
        delay: count.delay as u32,
        drop_next: ((i64::from(left) << 10) / 1000) as i32,
        drop_overlimit: count.drop_overlimit as u32,
        ecn_mark: count.ecn_mark as u32,
        dropping: count.drop_next.is_some(),
        ce_mark: count.ce_mark as u32,
    };
    counts.bytes()
}

/// The numbers by which the packet path counts a qdisc, its classes and what they queue in, where they have none yet.
fn unnumbered(qdisc: &mut Qdisc) -> Vec<&mut Option<QueueId>> {
    let mut all = Vec::new();
    if !qdisc.kind.is_hook() {
        all.push(&mut qdisc.queue);
    }
    fn inside(leaf: &mut Leaf) -> Option<&mut Option<QueueId>> {
        match leaf {
            Leaf::Queue { queue, .. } => Some(queue),
            Leaf::Qdisc(_) => None,
        }
    }
    match &mut qdisc.kind {
        Kind::Prio { bands, .. } => all.extend(bands.iter_mut().filter_map(inside)),
        Kind::Tbf { child, .. } | Kind::Red { child, .. } => all.extend(inside(child)),
        Kind::Fq { more, .. } => all.push(more),
        Kind::Cake { tins, .. } => all.extend(tins),
        Kind::Htb(htb) => {
            for class in htb.classes_mut() {
                all.push(&mut class.queue);
                all.extend(class.leaf.as_mut().and_then(inside));
            }
        }
        _ => {}
    }
    all.retain(|queue| queue.is_none());
    all
}

/// Makes of the qdiscs of a link what the packet path takes.
struct Compile<'a> {
    control: &'a LinkControl,
    filters: &'a Filters,
    link: &'a Link,
}

impl Compile<'_> {
    /// A qdisc and all that is in it; `None` where packets do not wait.
    fn qdisc(&self, qdisc: &Qdisc) -> Option<tables::Qdisc> {
        let filters = self.filters(Point::Qdisc(qdisc.handle));
        let kind = match &qdisc.kind {
            Kind::Ingress | Kind::Clsact | Kind::Noqueue => return None,
            Kind::Fifo(limit) => QdiscKind::Fifo(*limit),
            Kind::PfifoFast => QdiscKind::PfifoFast(PfifoFast { limit: self.link.tx_queue_len }),
            Kind::Prio { settings, bands } => QdiscKind::Prio(Prio {
                priomap: settings.map,
                filters,
                bands: bands.iter().map(|band| self.leaf(band)).collect::<Option<_>>()?,
            }),
            Kind::Tbf { settings, child } => QdiscKind::Tbf(Box::new(Tbf {
                rate: config(&settings.rate),
                buffer: settings.buffer,
                peak: settings.peak.map(|peak| (config(&peak), settings.mtu)),
                max_size: u32::try_from(settings.max_size).unwrap_or(u32::MAX),
                child: self.leaf(child)?,
            })),
            Kind::Htb(htb) => QdiscKind::Htb(Box::new(tables::Htb {
                default: htb.settings.default,
                direct: htb.direct_limit,
                filters,
                classes: htb.classes().map(|(id, class)| self.class(id, class)).collect::<Option<_>>()?,
            })),
            Kind::FqCodel(settings) => QdiscKind::FqCodel(FqCodel {
                filters,
                limit: settings.limit,
                flows: settings.flows,
                quantum: settings.quantum,
                target: settings.target_us(),
                interval: settings.interval_us(),
                ecn: settings.ecn,
                ce_threshold: settings.ce_threshold_us(),
                ce_threshold_selector: (settings.ce_selector, settings.ce_mask),
                memory_limit: settings.memory_limit,
                drop_batch: settings.drop_batch,
                mtu: frame(self.link),
            }),
            Kind::Codel(settings) => QdiscKind::Codel(tables::Codel {
                limit: settings.limit,
                target: settings.target_us(),
                interval: settings.interval_us(),
                ecn: settings.ecn,
                ce_threshold: settings.ce_threshold_us(),
                mtu: frame(self.link),
            }),
            Kind::Fq { settings, more } => QdiscKind::Fq(Box::new(compile_fq(settings, (*more)?))),
            Kind::Cake { .. } => QdiscKind::Cake(Box::new(cake::compile(&qdisc.kind, filters, self.link)?)),
            Kind::Red { settings, child, change, seed } => QdiscKind::Red(Box::new(tables::Red {
                params: compile_red(settings, *change, *seed),
                child: self.leaf(child)?,
            })),
            Kind::Sfq { settings, seed } => QdiscKind::Sfq(tables::Sfq {
                filters,
                limit: settings.limit,
                depth: settings.depth,
                flows: settings.flows,
                divisor: settings.divisor,
                quantum: settings.quantum,
                perturb: u64::from(settings.perturb) * 1_000_000_000,
                head_drop: settings.head_drop,
                seed: *seed,
            }),
            Kind::Netem { settings, child, change } => QdiscKind::Netem(Box::new(tables::Netem {
                child: match child {
                    Some(child) => Some(self.leaf(child)?),
                    None => None,
                },
                ..compile_netem(settings, *change)
            })),
        };
        Some(tables::Qdisc {
            queue: qdisc.queue?,
            handle: qdisc.handle,
            size_table: qdisc.size_table.as_deref().map(compile_size_table),
            kind,
        })
    }

    fn class(&self, classid: u32, class: &Class) -> Option<HtbClass> {
        let settings = &class.settings;
        // The packet path does not look at what is in a class with others below it.
        let none = Leaf::Queue { limit: Leaf::NOTHING, queue: class.queue };
        Some(HtbClass {
            queue: class.queue?,
            classid,
            parent: class.parent,
            rate: config(&settings.rate),
            ceil: config(&settings.ceil),
            buffer: settings.buffer,
            cbuffer: settings.ceil_buffer,
            prio: settings.priority as u8,
            quantum: settings.quantum,
            filters: self.filters(Point::Class(classid)),
            leaf: self.leaf(class.leaf.as_ref().unwrap_or(&none))?,
        })
    }

    fn leaf(&self, leaf: &Leaf) -> Option<tables::Qdisc> {
        match leaf {
            Leaf::Queue { limit, queue } => Some(tables::Qdisc::new((*queue)?, 0, QdiscKind::Fifo(*limit))),
            Leaf::Qdisc(handle) => self.qdisc(self.control.lookup(*handle)?),
        }
    }

    fn filters(&self, point: Point) -> Option<HookId> {
        self.filters.hook_of(Block { link: self.link.index, point })
    }
}

fn compile_size_table(table: &SizeTable) -> Arc<tables::SizeTable> {
    let SizeTable { cell_log, size_log, cell_align, overhead, link_layer: _, mpu: _, mtu: _, sizes } = table;
    Arc::new(tables::SizeTable {
        overhead: *overhead,
        cell_align: *cell_align,
        cell_log: *cell_log,
        size_log: *size_log,
        sizes: sizes.clone(),
    })
}

fn compile_red(settings: &red::Red, change: u64, seed: u64) -> RedParams {
    let has = |flag: u32| settings.flags & flag != 0;
    RedParams {
        change,
        least: settings.least,
        most: settings.most,
        window_log: settings.window_log,
        cell_log: settings.cell_log,
        table: settings.table,
        max_p: settings.probability(),
        difference: settings.difference(),
        ecn: has(red::ECN),
        hard_drop: has(red::HARD_DROP),
        no_drop: has(red::NO_DROP),
        seed,
    }
}

fn compile_fq(settings: &Fq, more: QueueId) -> tables::Fq {
    tables::Fq {
        more,
        limit: settings.limit,
        flow_limit: settings.flow_limit,
        quantum: settings.quantum,
        initial_quantum: settings.initial_quantum,
        pacing: settings.pacing,
        max_rate: (settings.max_rate != u32::MAX).then_some(settings.max_rate),
        low_rate_threshold: settings.low_rate_threshold,
        buckets_log: settings.buckets_log as u8,
        orphan_mask: settings.orphan_mask,
        refill_delay: settings.refill_delay_ns(),
        ce_threshold: u64::from(settings.ce_threshold) * 1000,
        priomap: settings.priomap,
        weights: settings.weights,
    }
}

/// A `netem` with nothing in it.
fn compile_netem(settings: &Netem, change: u64) -> tables::Netem {
    let NetemRate { bytes, packet_overhead, cell_size, cell_overhead } = settings.rate;
    let rate = tables::NetemRate { bytes_per_second: bytes, packet_overhead, cell_size, cell_overhead };
    tables::Netem {
        change,
        limit: settings.limit,
        latency: settings.latency,
        jitter: settings.jitter,
        distribution: settings.distribution.as_deref().map(Arc::from),
        loss: match settings.loss_model {
            Loss::Random => NetemLoss::Random(settings.loss),
            Loss::States { p13, p31, p32, p14, p23 } => NetemLoss::States([p13, p31, p32, p14, p23]),
            Loss::GilbertElliot { p, r, h, k1 } => NetemLoss::GilbertElliot([p, r, h, k1]),
        },
        ecn: settings.ecn,
        duplicate: settings.duplicate,
        corrupt: settings.corrupt,
        reorder: settings.reorder,
        gap: settings.gap,
        rate: (bytes != 0).then_some(rate),
        correlations: settings.correlations,
        seed: settings.seed,
        child: None,
    }
}

impl Qdisc {
    /// Adds the numbers by which the packet path counts it and what is its own.
    pub(super) fn free(self, freed: &mut Vec<QueueId>) {
        let free_leaf = |leaf: Leaf, freed: &mut Vec<QueueId>| {
            if let Leaf::Queue { queue, .. } = leaf {
                freed.extend(queue);
            }
        };
        freed.extend(self.queue);
        match self.kind {
            Kind::Prio { bands, .. } => bands.into_iter().for_each(|leaf| free_leaf(leaf, freed)),
            Kind::Tbf { child, .. } | Kind::Red { child, .. } => free_leaf(child, freed),
            Kind::Fq { more, .. } => freed.extend(more),
            Kind::Cake { tins, .. } => freed.extend(tins.into_iter().flatten()),
            Kind::Htb(htb) => {
                for (_, class) in htb.classes() {
                    freed.extend(class.queue);
                    class.leaf.iter().for_each(|leaf| free_leaf(leaf.clone(), freed));
                }
            }
            _ => {}
        }
    }
}
