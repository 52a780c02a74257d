//! `sfq` against what left Linux 6.12, and `codel` against the one flow of an `fq_codel`.

use proptest::prelude::*;

use super::*;

fn plain() -> tables::Sfq {
    tables::Sfq {
        filters: Some(HookId(0)),
        limit: 127,
        depth: 127,
        flows: 128,
        divisor: 1024,
        quantum: 1000,
        perturb: 0,
        head_drop: false,
        seed: 0,
    }
}

pub(super) fn sfq(config: tables::Sfq) -> Qdisc {
    Qdisc::new(QueueId(2), 0x10_0000, QdiscKind::Sfq(config))
}

pub(super) fn codel(limit: u32, ecn: bool) -> Qdisc {
    let config = tables::Codel { limit, target: 1000, interval: 5000, ecn, ce_threshold: None, mtu: 1000 };
    Qdisc::new(QueueId(2), 0x10_0000, QdiscKind::Codel(config))
}

/// Linux 6.12: `tbf rate 400kbit burst 1514` with `sfq OPTIONS` in it, whose filters lead frames to hashes by their first
/// byte. A frame of 1,514 bytes empties the bucket; the others, each of a flow and a length, are sent at once.
#[test]
fn turns_and_drops_as_in_linux() {
    type Case = (tables::Sfq, &'static [(u32, usize)], &'static [u32]);
    let cases: [Case; 7] = [
        (
            plain(),
            &[
                (1, 100),
                (2, 100),
                (2, 1200),
                (2, 1200),
                (1, 100),
                (2, 100),
                (2, 1200),
                (3, 100),
                (3, 1200),
                (2, 300),
                (3, 100),
                (2, 100),
                (1, 100),
                (3, 100),
                (2, 300),
                (2, 100),
                (3, 300),
                (2, 1200),
                (3, 300),
                (2, 300),
                (3, 300),
                (2, 700),
                (1, 1200),
                (3, 100),
            ],
            &[0, 1, 2, 4, 12, 22, 7, 8, 3, 10, 13, 16, 18, 5, 6, 20, 23, 9, 11, 14, 15, 17, 19, 21],
        ),
        (
            tables::Sfq { quantum: 300, ..plain() },
            &[
                (1, 100),
                (1, 700),
                (1, 700),
                (2, 300),
                (3, 100),
                (3, 300),
                (2, 1200),
                (3, 700),
                (3, 1200),
                (3, 700),
                (1, 100),
                (2, 1200),
                (2, 1200),
                (2, 300),
                (3, 300),
                (1, 300),
                (1, 300),
                (2, 300),
                (1, 700),
                (3, 300),
                (2, 1200),
                (3, 700),
                (3, 700),
                (2, 1200),
            ],
            &[0, 1, 3, 4, 5, 6, 7, 2, 8, 10, 15, 11, 16, 18, 9, 12, 14, 19, 21, 13, 17, 22, 20, 23],
        ),
        (
            tables::Sfq { limit: 8, flows: 8, ..plain() },
            &[
                (1, 300),
                (2, 1200),
                (3, 100),
                (3, 100),
                (2, 700),
                (3, 300),
                (1, 1200),
                (3, 1200),
                (2, 300),
                (1, 300),
                (3, 1200),
                (3, 100),
                (3, 100),
                (1, 100),
                (2, 100),
                (2, 1200),
                (3, 1200),
                (3, 1200),
                (2, 1200),
                (1, 700),
                (1, 100),
                (1, 1200),
                (1, 700),
                (3, 1200),
            ],
            &[0, 1, 2, 3, 6, 4, 8, 9],
        ),
        (
            tables::Sfq { limit: 8, flows: 8, head_drop: true, ..plain() },
            &[
                (1, 700),
                (1, 1200),
                (2, 300),
                (1, 100),
                (1, 1200),
                (3, 700),
                (1, 300),
                (3, 700),
                (2, 300),
                (1, 700),
                (1, 100),
                (3, 700),
                (2, 300),
                (1, 700),
                (2, 700),
                (1, 700),
                (3, 1200),
                (3, 300),
                (1, 300),
                (2, 700),
                (1, 700),
                (1, 700),
                (3, 700),
                (3, 300),
            ],
            &[0, 18, 20, 14, 19, 22, 23, 21],
        ),
        (
            tables::Sfq { depth: 3, ..plain() },
            &[
                (3, 700),
                (3, 700),
                (3, 100),
                (2, 300),
                (3, 100),
                (1, 100),
                (2, 1200),
                (1, 1200),
                (3, 100),
                (3, 300),
                (1, 300),
                (2, 700),
                (1, 1200),
                (1, 100),
                (1, 1200),
                (1, 300),
                (1, 100),
                (1, 300),
                (1, 300),
                (2, 700),
                (1, 300),
                (1, 300),
                (2, 700),
                (1, 700),
            ],
            &[0, 1, 2, 4, 3, 6, 5, 7, 11, 10],
        ),
        (
            tables::Sfq { depth: 3, head_drop: true, ..plain() },
            &[
                (2, 1200),
                (2, 300),
                (1, 1200),
                (3, 300),
                (1, 1200),
                (2, 300),
                (1, 100),
                (3, 1200),
                (2, 300),
                (3, 100),
                (3, 100),
                (1, 100),
                (1, 300),
                (3, 100),
                (2, 700),
                (2, 300),
                (3, 300),
                (3, 700),
                (2, 100),
                (3, 100),
                (2, 700),
                (2, 100),
                (3, 700),
                (2, 300),
            ],
            &[0, 20, 21, 23, 6, 11, 12, 17, 19, 22],
        ),
        (
            tables::Sfq { limit: 2, flows: 2, ..plain() },
            &[
                (2, 1200),
                (2, 700),
                (2, 100),
                (2, 100),
                (1, 300),
                (2, 100),
                (3, 700),
                (3, 100),
                (1, 300),
                (2, 300),
                (2, 100),
                (1, 300),
                (1, 1200),
                (2, 700),
                (2, 300),
                (1, 100),
                (1, 700),
                (3, 700),
                (1, 100),
                (3, 300),
                (3, 100),
                (2, 1200),
                (1, 700),
                (1, 700),
            ],
            &[0, 22],
        ),
    ];
    for (config, packets, wanted) in cases {
        let mut bed = Bed::new(&tbf(1, 50_000, 1514, sfq(config)));
        bed.enqueue(1514, 4);
        assert_eq!(bed.dequeue(), Some((1514, 4)));
        for ((flow, len), number) in packets.iter().zip(0..) {
            bed.enqueue(*len, number << 16 | flow);
            // TBF looks at what would be next, and SFQ gives it away.
            assert_eq!(bed.dequeue(), None);
        }
        let order: Vec<_> = bed.run().iter().map(|(_, _, mark)| mark >> 16).collect();
        assert_eq!(order, wanted, "{config:?}");
        let dropped = packets.len() - wanted.len();
        assert_eq!(
            (bed.drops(), bed.count(1).drops, bed.count(2).drops),
            (dropped, dropped as u64, dropped as u64)
        );
    }
}

/// Packets stay where they are, each once, while hashes change; in their order within a flow.
#[test]
fn hashes_change() {
    let config = tables::Sfq { filters: None, perturb: 1_000_000_000, limit: 1000, ..plain() };
    let mut bed = Bed::new(&sfq(config));
    for number in 0..100 {
        bed.enqueue(100, number);
    }
    let mut order = Vec::new();
    for _ in 0..100 {
        bed.now += 300_000_000;
        order.extend(bed.dequeue().map(|(_, mark)| mark));
    }
    assert_eq!((order, bed.drops()), ((0..100).collect(), 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The same packets are dropped and marked as in the only queue of an `fq_codel`, whose own test has Linux's numbers.
    #[test]
    fn codel_is_fq_codel_with_one_flow(
        packets in prop::collection::vec((60usize..1500, 0u64..1_000_000, 0u64..2_000_000), 1..400), ecn: bool,
    ) {
        let kind = QdiscKind::FqCodel(tables::FqCodel {
                filters: None,
                limit: 10_000,
                flows: 1,
                quantum: 1 << 20,
                target: 1000,
                interval: 5000,
                ecn,
                ce_threshold: None,
                ce_threshold_selector: (0, 0),
                memory_limit: u32::MAX,
                drop_batch: 64,
                mtu: 1000,
            });
        let one = Qdisc::new(QueueId(2), 0x10_0000, kind);
        let (mut codel, mut fq_codel) = (Bed::new(&codel(10_000, ecn)), Bed::new(&one));
        for ((len, before, after), number) in packets.into_iter().zip(0u32..) {
            for bed in [&mut codel, &mut fq_codel] {
                bed.now += before;
                bed.enqueue(len, number);
                bed.now += after;
            }
            // Faster in than out.
            if number % 2 == 0 {
                prop_assert_eq!(codel.dequeue(), fq_codel.dequeue());
            }
            prop_assert_eq!(codel.node.len(), fq_codel.node.len());
        }
        prop_assert_eq!(codel.run(), fq_codel.run());
        prop_assert_eq!(codel.drops(), fq_codel.drops());
        let (one, other) = (codel.count(2), fq_codel.count(2));
        prop_assert_eq!((one.drops, one.packets, one.bytes), (other.drops, other.packets, other.bytes));
    }
}
