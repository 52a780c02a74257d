//! Any packets in any qdisc that looks into them: none is lost, and nothing panics.

use super::queues;
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn any_queues() {
    let input = proptest::collection::vec(any::<u8>(), 0..1500);
    let run = TestRunner::new(Config::with_cases(4_000)).run(&input, |bytes| {
        queues::wait(&bytes);
        Ok(())
    });
    run.unwrap();
    let drops = queues::drops();
    for reason in ["ack-filtered", "qdisc-full", "qdisc-purged", "codel"] {
        assert!(drops.contains(&reason), "{reason} is not among {drops:?}");
    }
}
