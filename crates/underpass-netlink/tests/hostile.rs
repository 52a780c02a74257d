//! Arbitrary bytes, and recorded ones with some changed, for every codec.

mod exercise;

use proptest::prelude::*;

/// Bodies that the codecs take: one of FRR's next-hop objects with a headend and with a SID, and a frame.
fn seeds() -> Vec<Vec<u8>> {
    let recorded = include_str!("frr/srv6.txt");
    let frames: Vec<Vec<u8>> = recorded
        .lines()
        .filter(|line| !line.starts_with(['#', '$']))
        .map(|line| {
            let digits = line.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or("0"));
            digits.map(|pair| u8::from_str_radix(pair, 16).unwrap_or(0)).collect()
        })
        .collect();
    // The attributes of `NHA_ENCAP`, behind the last `NHA_ENCAP_TYPE`.
    let inside = |frame: &Vec<u8>, from: usize| frame[from..].to_vec();
    let mut seeds: Vec<Vec<u8>> = frames.iter().map(|frame| [&[5], &frame[..]].concat()).collect();
    seeds.extend(frames.iter().map(|frame| frame[4..].to_vec()));
    seeds.extend(
        frames.iter().filter(|frame| frame[8] == 104 && frame.len() == 72).map(|frame| inside(frame, 56)),
    );
    seeds.extend(
        frames.iter().filter(|frame| frame[8] == 104 && frame.len() == 128).map(|frame| inside(frame, 96)),
    );
    // Linux 6.12: `ip -6 route add fd80::1/128 encap rpl segs fd00::2,fd80::1 dev v0`, the nest of its `RTA_ENCAP`.
    let mut rpl = vec![44, 0, 1, 0, 0, 4, 3, 2, 0, 0, 0, 0];
    for head in [0x80, 0] {
        rpl.extend([0xfd, head, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, if head == 0 { 2 } else { 1 }]);
    }
    seeds.push(rpl);
    // `encap mpls 100/200 ttl 9`.
    seeds.push(vec![12, 0, 1, 0, 0, 6, 0x40, 0, 0, 12, 0x81, 0, 5, 0, 2, 0, 9, 0, 0, 0]);
    // What `ip fou add port 5558 ipproto 4 local 10.0.0.1 peer 10.0.0.2 peer_port 777` sends.
    seeds.push(
        [&[1, 1, 0, 0, 6, 0, 1, 0, 0x15, 0xb6, 0, 0, 5, 0, 4, 0, 1, 0, 0, 0, 5, 0, 2, 0, 2, 0, 0, 0][..]]
            .into_iter()
            .chain([&[5, 0, 3, 0, 4, 0, 0, 0, 8, 0, 6, 0, 10, 0, 0, 1, 8, 0, 8, 0, 10, 0, 0, 2][..]])
            .chain([&[6, 0, 10, 0, 3, 9, 0, 0][..]])
            .flatten()
            .copied()
            .collect(),
    );
    // What `ip` sends for `encap ioam6 freq 1/2 mode auto tundst fd00::2 trace prealloc type 0xc00000 ns 123
    // size 12`.
    seeds.push(
        [&[8, 0, 4, 0, 1, 0, 0, 0, 8, 0, 5, 0, 2, 0, 0, 0, 5, 0, 1, 0, 3, 0, 0, 0, 20, 0, 2, 0][..]]
            .into_iter()
            .chain([&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2][..]])
            .chain([&[12, 0, 3, 0, 0, 123, 0, 3, 0xc0, 0, 0, 0][..]])
            .flatten()
            .copied()
            .collect(),
    );
    // Linux 6.12 of `htb default 20`, of a class `htb rate 6mbit ceil 10mbit`, of `tbf rate 5mbit burst 10k latency 50ms`;
    // `fq_codel target 10ms limit 100 ecn flows 16`.
    let options = [
        "18000200030000000a000000200000000000000000000000",
        "300001000001000000000000b0710b000001000000000000d012130030820000204e0000f82401000000000000000000",
        "2800010000010000000000006889090000000000000000000000000012a2000000e8030000000000",
        "0800010010270000080002006400000008000400010000000800050010000000",
    ];
    seeds.extend(options.map(|digits| {
        let digits = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or("0"));
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap_or(0)).collect()
    }));
    // `matchall` with a class, `gact drop`, and `u32` that compares nothing: kinds 3, 6 and 0.
    seeds.push(vec![3, 8, 0, 1, 0, 1, 0, 1, 0]);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    seeds.push([&[5, 24, 0, 2, 0][..], &words(&[0, 0, 2, 0, 0])].concat());
    seeds.push([&[0, 36, 0, 5, 0, 1, 0, 1, 0][..], &words(&[0; 7])].concat());
    // `tunnel_key set` of two addresses with an id: kind 11.
    let ends = [[8, 0, 7, 0, 0, 0, 0, 7], [8, 0, 3, 0, 10, 0, 0, 1], [8, 0, 4, 0, 10, 0, 0, 2]].concat();
    seeds.push([&[11][..], &ends, &[28, 0, 2, 0], &words(&[0, 0, 3, 0, 0, 1])].concat());
    // `flower` of an address, and `basic` with one ematch `u32`.
    seeds.push(vec![2, 6, 0, 8, 0, 8, 0, 0, 0, 8, 0, 12, 0, 10, 0, 0, 1, 8, 0, 13, 0, 255, 255, 255, 0]);
    let ematch = [&[28, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0][..], &words(&[0xff, 10, 12, 0])].concat();
    seeds.push([&[1, 44, 0, 2, 0, 8, 0, 1, 0, 1, 0, 0, 0, 32, 0, 2, 0][..], &ematch].concat());
    seeds
}

/// What the fuzz targets begin with.
#[test]
fn fuzz_seeds() {
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for target in std::fs::read_dir(seeds).unwrap().map(Result::unwrap) {
        let run = exercise::ALL.iter().find(|(name, _)| *name == target.file_name());
        let (_, run) = run.unwrap_or_else(|| panic!("{:?} is no target", target.file_name()));
        for file in std::fs::read_dir(target.path()).unwrap().map(Result::unwrap) {
            run(&std::fs::read(file.path()).unwrap());
        }
    }
}

/// Every codec takes one of the seeds: the changed ones below are near to what it takes.
#[test]
fn seeds_are_taken() {
    for (name, exercise) in exercise::ALL {
        let taken = seeds().iter().filter(|seed| exercise(seed)).count();
        assert!(taken > 0 || matches!(name, "genetlink"), "{name} takes no seed");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for (_, exercise) in exercise::ALL {
            exercise(&bytes);
        }
    }

    #[test]
    fn changed_seeds(
        seed in proptest::sample::select(seeds()),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<proptest::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut bytes = seed;
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        for (_, exercise) in exercise::ALL {
            exercise(&bytes);
        }
    }
}
