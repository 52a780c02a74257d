//! Any packets through any hooks: none is lost, and nothing panics.

use super::traffic;
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn any_hooks() {
    let input = proptest::collection::vec(any::<u8>(), 0..2500);
    let run = TestRunner::new(Config::with_cases(4_000)).run(&input, |bytes| {
        traffic::any(&bytes);
        Ok(())
    });
    run.unwrap();
    let drops = traffic::drops();
    for reason in ["police", "tc-action", "tc-stolen", "tc-loop", "tc-edit", "mirred-link", "mirred-loop"] {
        assert!(drops.contains(&reason), "{reason} is not among {drops:?}");
    }
}
