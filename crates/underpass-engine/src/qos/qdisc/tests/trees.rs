//! Any tree of queueing disciplines: nothing is lost, and nothing leaves before its time.

use proptest::prelude::*;

use super::*;

fn fifo() -> impl Strategy<Value = Qdisc> {
    prop_oneof![
        (0u32..20).prop_map(|limit| pfifo(0, limit)),
        (0u32..20_000).prop_map(|limit| bfifo(0, limit)),
        Just(Qdisc::new(QueueId(0), 0, QdiscKind::PfifoFast(tables::PfifoFast { limit: 7 }))),
        (0u32..30, any::<bool>()).prop_map(|(limit, ecn)| super::sfq::codel(limit, ecn)),
        (2u32..30, 1u32..9, 1u32..9, 0u64..9_000_000, any::<[bool; 2]>()).prop_map(
            |(limit, depth, flows, perturb, [head_drop, filtered])| {
                super::sfq::sfq(tables::Sfq {
                    filters: filtered.then_some(HookId(0)),
                    limit,
                    depth,
                    flows,
                    divisor: 8,
                    quantum: 600,
                    perturb,
                    head_drop,
                    seed: limit,
                })
            }
        ),
        (0u32..30, 1u32..9, 0u32..20, prop::option::of(0u32..2_000_000)).prop_map(
            |(limit, flow_limit, orphan_mask, max_rate)| {
                let fq = super::fq::params(orphan_mask);
                super::fq::fq(tables::Fq { limit, flow_limit, max_rate, ..fq })
            }
        ),
        (0u64..2_000_000, 0usize..5, 0u8..8, 0u32..60, any::<[bool; 4]>()).prop_map(
            |(rate, tins, flows, slots, [ingress, filtered, wash, unlimited])| {
                use tables::CakeTins::{Besteffort, Diffserv3, Diffserv4, Diffserv8, Precedence};
                super::cake::cake(tables::Cake {
                    rate: if unlimited { 0 } else { rate + 10_000 },
                    diffserv: [Besteffort, Diffserv3, Diffserv4, Diffserv8, Precedence][tins],
                    flow_mode: tables::CakeFlows(flows),
                    memory: slots * 2048,
                    target: 1000,
                    interval: 5000,
                    filters: filtered.then_some(HookId(0)),
                    ingress,
                    wash,
                    ..tables::cake_params()
                })
            }
        ),
        (1u32..30, 1u32..5, any::<bool>()).prop_map(|(limit, flows, ecn)| {
            let kind = QdiscKind::FqCodel(tables::FqCodel {
                filters: None,
                limit,
                flows,
                quantum: 600,
                target: 1000,
                interval: 5000,
                ecn,
                ce_threshold: Some(700),
                ce_threshold_selector: (0, 0),
                memory_limit: 100_000,
                drop_batch: 3,
                mtu: 1000,
            });
            Qdisc::new(QueueId(0), 0x8_0000, kind)
        }),
    ]
}

fn tree() -> impl Strategy<Value = Qdisc> {
    fifo().prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            (prop::collection::vec(inner.clone(), 2..4)).prop_map(|bands| {
                let (priomap, filters) = (tables::PRIOMAP, Some(HookId(0)));
                let kind = QdiscKind::Prio(tables::Prio { priomap, filters, bands });
                Qdisc::new(QueueId(0), 0x2_0000, kind)
            }),
            (prop::array::uniform6(any::<u32>()), prop::option::of(inner.clone()), any::<[bool; 4]>())
                .prop_map(|(numbers, child, flags)| super::netem::any_netem(numbers, child, flags)),
            (inner.clone(), 0u32..3000, any::<[bool; 3]>()).prop_map(
                |(child, most, [ecn, hard_drop, no_drop])| {
                    let params = super::red::params();
                    let least = params.least.min(most);
                    let params = tables::RedParams {
                        least,
                        most,
                        ecn,
                        hard_drop,
                        no_drop,
                        change: most.into(),
                        ..params
                    };
                    super::red::red(params, child)
                }
            ),
            (10_000u64..1_000_000, 1500u32..9000, inner.clone())
                .prop_map(|(speed, burst, child)| tbf(0, speed, burst, child)),
            prop::collection::vec((0u32..6, 10_000u64..500_000, 1u64..4, 0u8..8, inner), 1..6).prop_map(
                |classes| {
                    let class = |(at, (parent, speed, more, prio, leaf))| HtbClass {
                        prio,
                        ..class(
                            0,
                            at as u32 + 1,
                            if parent > at as u32 { 0 } else { parent },
                            speed,
                            speed * more,
                            leaf,
                        )
                    };
                    htb(0, 1, classes.into_iter().enumerate().map(class).collect())
                }
            ),
        ]
    })
}

/// Gives each its number, and the root a size table where there is a number for one.
fn numbered(mut root: Qdisc, table: Option<u8>) -> Qdisc {
    root.size_table = table.map(super::size_table);
    fn number(qdisc: &mut Qdisc, next: &mut u32) {
        *next += 1;
        qdisc.queue = QueueId(*next);
        match &mut qdisc.kind {
            QdiscKind::Prio(prio) => prio.bands.iter_mut().for_each(|band| number(band, next)),
            QdiscKind::Tbf(tbf) => number(&mut tbf.child, next),
            QdiscKind::Red(red) => number(&mut red.child, next),
            QdiscKind::Netem(netem) => netem.child.iter_mut().for_each(|child| number(child, next)),
            QdiscKind::Htb(htb) => {
                for class in &mut htb.classes {
                    *next += 1;
                    class.queue = QueueId(*next);
                    number(&mut class.leaf, next);
                }
            }
            _ => {}
        }
    }
    number(&mut root, &mut 0);
    root
}

#[derive(Clone, Debug)]
enum Step {
    Enqueue(usize, u32),
    Dequeue,
    Pass(u64),
    Change(Box<Qdisc>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => (60usize..1600, prop_oneof![Just(0u32), 0x1_0000u32..0x1_0007, 0x2_0000u32..0x2_0005, Just(u32::MAX)])
            .prop_map(|(len, mark)| Step::Enqueue(len, mark)),
        10 => Just(Step::Dequeue),
        5 => (0u64..20_000_000).prop_map(Step::Pass),
        1 => (tree(), any::<Option<u8>>()).prop_map(|(tree, table)| Step::Change(Box::new(numbered(tree, table)))),
    ];
    prop::collection::vec(step, 0..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever the tree: each packet leaves or is dropped, and what waits is what has not.
    #[test]
    fn nothing_is_lost(root in tree(), table: Option<u8>, steps in steps()) {
        let mut bed = Bed::of_slots(&numbered(root, table), 160);
        let (mut received_by, mut left, mut dropped) = (0, 0, 0);
        let all = bed.pool.available();
        for step in steps {
            match step {
                Step::Enqueue(len, mark) => {
                    bed.enqueue(len, mark);
                    received_by += 1;
                }
                Step::Dequeue => left += u64::from(bed.dequeue().is_some()),
                Step::Pass(nanos) => bed.now += nanos,
                Step::Change(root) => bed.change(&root),
            }
            dropped += bed.drops() as u64;
            let came = received_by + bed.generated;
            prop_assert_eq!(came, left + dropped + bed.items.count() as u64);
            prop_assert_eq!(bed.node.len(), bed.items.count() as u64);
        }
        left += bed.run().len() as u64;
        dropped += bed.drops() as u64;
        prop_assert_eq!((received_by + bed.generated, bed.items.count()), (left + dropped, 0));
        prop_assert_eq!(bed.pool.available(), all);
        let backlog = bed.node.count.backlog;
        prop_assert_eq!(backlog, 0);
    }

    /// Packets that pass a tree at once leave everything as if each had been queued.
    #[test]
    fn passing_comes_to_the_same(
        speeds in prop::collection::vec((10_000u64..500_000, 1u64..4), 1..4),
        burst in 1600u32..20_000,
        rounds in prop::collection::vec((0u64..30_000_000, prop::collection::vec(60u32..1500, 0..10)), 1..8),
        bucket in any::<bool>(),
    ) {
        let root = if bucket {
            tbf(1, speeds[0].0, burst, bfifo(2, 20_000))
        } else {
            let classes = speeds.iter().zip(1u32..).map(|(&(speed, more), at)| {
                let class = class(2 * at, at, at - 1, speed, speed * more, pfifo(2 * at + 1, 20));
                HtbClass { quantum: 1000, ..class }
            });
            let htb = tables::Htb { default: speeds.len() as u32, direct: 10, filters: None, classes: classes.collect() };
            Qdisc::new(QueueId(1), 0x1_0000, QdiscKind::Htb(Box::new(htb)))
        };
        let (mut passing, mut queueing) = (Bed::of_slots(&root, 160), Bed::of_slots(&root, 160));
        for (pause, lens) in rounds {
            passing.now += pause;
            queueing.now = passing.now;
            let charges: Vec<_> = lens.iter().map(|len| (*len, 1)).collect();
            let now = passing.now;
            let passed = match passing.node.pass_all(Lengths::pretended(&Frames::pretended(&lens)), now) {
                true => lens.len(),
                false => passing.node.pass(&charges, now),
            };
            for (at, len) in lens.into_iter().enumerate() {
                let enqueued = queueing.enqueue(len as usize, 0);
                if at < passed {
                    prop_assert_eq!(queueing.dequeue(), Some((len, 0)));
                } else {
                    prop_assert_eq!(passing.enqueue(len as usize, 0), enqueued);
                    prop_assert_eq!(passing.dequeue(), queueing.dequeue());
                }
            }
            for queue in 1..9 {
                prop_assert_eq!(passing.count(queue), queueing.count(queue));
            }
        }
        prop_assert_eq!(passing.run(), queueing.run());
    }

    /// In no time does more leave than the rate has for it, and the burst.
    #[test]
    fn the_rate_is_not_exceeded(
        speed in 10_000u64..2_000_000,
        burst in 1600u32..20_000,
        packets in prop::collection::vec((60usize..1600, 0u64..20_000_000), 1..100),
        htb_instead in any::<bool>(),
    ) {
        let root = if htb_instead {
            let parent = class(2, 1, 0, speed, speed, pfifo(3, 0));
            let leaf = |queue, at| class(queue, at, 1, speed / 3, speed, pfifo(queue + 1, 1000));
            htb(1, 2, vec![parent, leaf(4, 2), leaf(6, 3)])
        } else {
            tbf(1, speed, burst, bfifo(2, 1 << 20))
        };
        // A leaf of HTB sends what it has tokens for the first byte of, whatever the class above it owes.
        let burst = if htb_instead { 2 * (1600 + 1600) } else { burst };
        let mut bed = Bed::of_slots(&root, 160);
        let mut left = Vec::new();
        for (len, pass) in packets {
            bed.now += pass;
            bed.enqueue(len, 0x1_0000 | (len as u32 % 2 + 2));
            while let Some((len, mark)) = bed.dequeue() {
                left.push((bed.now, len, mark));
            }
        }
        left.extend(bed.run());
        for (first, &(from, ..)) in left.iter().enumerate() {
            let mut sum = 0;
            for &(to, len, _) in &left[first..] {
                sum += u64::from(len);
                let allowed = u128::from(speed) * u128::from(to - from) / 1_000_000_000 + u128::from(burst);
                prop_assert!(u128::from(sum) <= allowed + 1, "{} of {} in {}", sum, allowed, to - from);
            }
        }
    }
}
