//! Any bytes into tunnels and out of them.

use super::lab;
use super::passage;
use proptest::prelude::*;

/// GRE and GUE headers, IP headers, and what is neither.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(vec![0, 0, 8, 0]),
        Just(vec![0, 0, 0x65, 0x58, 2, 0, 0, 0, 9, 9, 2, 0, 0, 0, 0, 1, 8, 0]),
        Just(vec![0xa0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        Just(vec![0, 4, 0, 0]),
        Just(vec![0, 47, 0, 0]),
        Just(vec![0x11, 0x5c, 0x15, 0xb3, 0, 60, 0, 0]),
        Just(lab::ip4([10, 1, 0, 7], [10, 50, 0, 7], 17, &lab::udp(12))),
        Just(lab::ip6("fd00:1::7", "fd50::7", 17, &lab::udp(12))),
        proptest::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes(
        which in any::<u8>(), what in any::<u8>(), next in prop_oneof![0..9_u8, any::<u8>()],
        pieces in proptest::collection::vec(piece(), 0..6),
    ) {
        passage::send(&[&[which, what, next][..], &pieces.concat()].concat());
    }
}

/// Every file that the fuzz target begins with.
#[test]
fn seeds() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/tunnel");
    let seeds =
        std::fs::read_dir(directory).unwrap().map(|seed| std::fs::read(seed.unwrap().path()).unwrap());
    let left = seeds.filter(|seed| passage::send(seed)).count();
    assert!(left > 50, "only {left} of the seeds leave a router");
}
