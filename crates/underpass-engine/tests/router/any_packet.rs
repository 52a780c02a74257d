//! Packets made of any bytes through a router that has every behaviour.

use super::packets;
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn any_bytes() {
    let input = proptest::collection::vec(any::<u8>(), 0..300);
    let run = TestRunner::new(Config::with_cases(20_000)).run(&input, |bytes| {
        packets::send(&bytes);
        Ok(())
    });
    run.unwrap();
}

/// Every file that the fuzz target begins with.
#[test]
fn seeds() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/packet");
    let mut left = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        left += u32::from(packets::send(&std::fs::read(entry.unwrap().path()).unwrap()));
    }
    assert!(left > 20, "only {left} of the seeds leave the router");
}
