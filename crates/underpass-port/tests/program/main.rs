//! The program that carries packets in the kernel, over packets of any kind with tables of any kind: what it does by itself
//! is what a worker would do, in every byte and every counter; what it does not do by itself it leaves alone.
//!
//! `UNDERPASS_PROGRAM_PACKETS` says how many packets there are, `UNDERPASS_PROGRAM_SEED` the first configuration.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod bridges;
mod changes;
mod filters;
#[path = "../lab/mod.rs"]
mod lab;
mod labels;
mod packets;
#[path = "../../../underpass-lab/src/random.rs"]
mod random;
mod router;
mod runner;
mod traced;
mod tunnels;
mod vlans;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use changes::Addresses;
use lab::Namespace;
use random::Random;
use runner::{Came, Runner};
use underpass_port::fast::{Hook, Verdict};

/// A number from the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect(name))
}

/// Does `test` in a namespace with devices, if programs can be loaded here.
fn with_runner(name: &'static str, hook: Hook, test: fn(Runner)) {
    if !lab::may(name) {
        return;
    }
    let namespace = Namespace::new();
    namespace.ip("link add d0 type veth peer name d1
         link add d2 type veth peer name d3
         link add stand-in type veth peer name other
         link set d0 mtu 9000
         link set d1 mtu 9000
         link set d2 mtu 9000
         link set d3 mtu 9000");
    namespace.run(move || match Runner::new(hook) {
        Ok(runner) => test(runner),
        Err(why) => eprintln!("SKIPPED {name}: {why}"),
    });
}

/// What became of packets.
#[derive(Default, Debug)]
struct Became {
    forwarded: u64,
    dropped: u64,
    missed: u64,
    lost: u64,
    kept: u64,
}

impl Became {
    fn add(&mut self, came: Came) {
        *match came {
            Came::Forwarded => &mut self.forwarded,
            Came::Dropped => &mut self.dropped,
            Came::Missed => &mut self.missed,
            Came::Lost => &mut self.lost,
            Came::Kept => &mut self.kept,
        } += 1;
    }
}

/// What the program is to have carried by itself, among else.
const CARRIES: &[&str] = &[
    "IPv4 forward",
    "IPv6 forward",
    "IPv4 multipath",
    "IPv6 multipath",
    "IPv4 into Ipip",
    "IPv4 into Gre",
    "IPv6 into Sit over FOU",
    "IPv6 into Gre over GUE",
    "IPv4 into Ip6tnl",
    "IPv6 into Ip6tnl",
    "IPv6 into Ip6tnl over FOU",
    "IPv4 into Ip6tnl over FOU, sum",
    "IPv6 into Sit over FOU, sum",
    "IPv4 into Gre over GUE, sum",
    "IPv4 into Ip6gre",
    "IPv6 into Ip6gre",
    "IPv4 into Ip6gre over GUE",
    "UDP out of IPv4",
    "UDP out of IPv4, sum",
    "GRE out of IPv4",
    "IPv4 out of IPv4",
    "IPv6 out of IPv4",
    "UDP out of IPv6",
    "UDP out of IPv6, sum",
    "GRE out of IPv6",
    "GRE out of IPv6, limit",
    "IPv4 out of IPv6",
    "IPv6 out of IPv6",
    "IPv6 out of IPv6, limit",
    "police",
    "gact",
    "through filters",
    "IPv4 drop",
    "IPv6 drop",
    "IPv4 encapsulated, 40 bytes",
    "IPv6 encapsulated, 40 bytes",
    "IPv4 encapsulated, 64 bytes",
    "IPv6 encapsulated, 64 bytes",
    "IPv4 encapsulated, 128 bytes",
    "IPv6 encapsulated, 128 bytes",
    "End",
    "End PSP",
    "End NEXT-CSID",
    "End.X",
    "End.X PSP",
    "End.X NEXT-CSID, no SRH",
    "End.T",
    "End.T PSP",
    "End.T NEXT-CSID",
    "End USD, no SRH",
    "End.X USD, no SRH",
    "End.T USD, no SRH",
    "End.DX2",
    "End.DX2, no SRH",
    "End.DX4",
    "End.DX4, no SRH",
    "End.DX6",
    "End.DX6, no SRH",
    "End.DT4",
    "End.DT4, no SRH",
    "End.DT6",
    "End.DT6, no SRH",
    "End.DT46",
    "End.DT46, no SRH",
];

/// And this at tcx, where labels are only swapped.
const CARRIES_AT_TCX: &[&str] =
    &["label swapped", "into a VLAN", "into a VLAN of 802.1ad", "out of a VLAN", "from VLAN to VLAN"];

/// And this in a driver.
const CARRIES_IN_DRIVER: &[&str] =
    &["label swapped", "label swapped for two", "label popped", "IPv4 labelled", "IPv6 labelled"];

/// Prints what became of packets. Enough of them were the program's, and of every kind.
fn check(became: &Became, runner: &Runner, kinds: &[&str]) {
    println!("{became:?}\nmisses: {}\n{:#?}", runner.misses(), runner.hits);
    let hits = became.forwarded + became.dropped;
    assert!(
        hits > became.missed / 8,
        "the program carries only {hits} packets, and misses {}",
        became.missed
    );
    for kind in kinds {
        assert!(became.missed < 10_000 || runner.hits.contains_key(*kind), "no hit: {kind}");
    }
}

/// How many packets there are for each configuration.
const PACKETS: u64 = 500;

#[test]
fn any_packet_with_any_tables() {
    with_runner("any_packet_with_any_tables", Hook::Tcx, any_packet);
}

#[test]
fn any_packet_in_a_driver() {
    with_runner("any_packet_in_a_driver", Hook::Xdp, any_packet);
}

fn any_packet(mut runner: Runner) {
    let (count, first) = (number("UNDERPASS_PROGRAM_PACKETS", 20_000), number("UNDERPASS_PROGRAM_SEED", 1));
    let mut became = Became::default();
    let more = match runner.hook {
        Hook::Tcx => CARRIES_AT_TCX,
        Hook::Xdp => CARRIES_IN_DRIVER,
    };
    let (kinds, configurations) = ([CARRIES, more].concat(), count.div_ceil(PACKETS));
    for seed in first..first + 5 * configurations {
        // What is rare may need some more.
        if seed >= first + configurations && kinds.iter().all(|kind| runner.hits.contains_key(*kind)) {
            break;
        }
        let mut random = Random(seed);
        runner.router.configure(&mut random);
        for _ in 0..PACKETS {
            let (link, frame) = packets::frame(&runner.router, &mut random);
            became.add(runner.compare(link, &frame, &format!("seed {seed}")));
        }
    }
    check(&became, &runner, &kinds);
}

#[test]
fn any_frame_through_a_bridge() {
    for hook in [Hook::Tcx, Hook::Xdp] {
        with_runner("any_frame_through_a_bridge", hook, |runner| {
            let count = number("UNDERPASS_PROGRAM_PACKETS", 20_000);
            let forwarded = bridges::any_frame(runner, count, number("UNDERPASS_PROGRAM_SEED", 1));
            assert!(forwarded > count / 16, "{forwarded} of {count}");
        });
    }
}

/// What passes a policer is the same in sum, whoever takes from its bucket.
#[test]
fn a_bucket_is_shared() {
    with_runner("a_bucket_is_shared", Hook::Tcx, |mut runner| {
        let mut random = Random(1);
        let device = 0;
        let frame = loop {
            runner.router.configure(&mut random);
            let frames = (0..200).map(|_| packets::frame(&runner.router, &mut random)).collect::<Vec<_>>();
            let sent = frames.into_iter().find(|(of, frame)| {
                *of == device
                    && vlans::tag(frame).is_none()
                    && runner.sends(device, frame).is_some()
                    && runner.work(device, frame).len() == 1
            });
            if let Some((_, frame)) = sent {
                break frame;
            }
        };
        let wire = frame.len() as u32 - 14;
        // Of bytes that take a second each thousand, and half a packet more.
        let hook = filters::bucket(&mut runner.router.writer, 40 * wire + wire / 2);
        let link =
            underpass_engine::tables::Link { ingress: Some(hook), ..runner.router.now_links[device].clone() };
        runner.router.writer.set_link(runner.router.links[device], link);
        let mut passed = [0; 2];
        for n in 0..100 {
            if n % 3 == 0 {
                passed[0] += runner.work(device, &frame).len();
            } else {
                let before = runner.router.writer.totals_of_programs();
                let mut left = Vec::new();
                let verdict =
                    runner.fast.run(Hook::Tcx, &frame, runner.router.ifindexes[device], &mut left).unwrap();
                let after = runner.router.writer.totals_of_programs();
                assert_eq!(after.received - before.received, 1, "{verdict:?}");
                passed[1] += usize::from(verdict == Verdict::Redirected);
            }
        }
        assert_eq!(passed, [14, 26]);
    });
}

/// Of packets that somebody traces, those that a filter matches are workers', and all others as if nobody traced any.
#[test]
fn traced_packets_are_for_workers() {
    with_runner("traced_packets_are_for_workers", Hook::Tcx, |mut runner| {
        let (count, first) =
            (number("UNDERPASS_PROGRAM_PACKETS", 20_000), number("UNDERPASS_PROGRAM_SEED", 1));
        let mut became = Became::default();
        let mut random = Random(first);
        for filter in 0..count.div_ceil(PACKETS) {
            runner.router.configure(&mut random);
            let device = (random.below(4) == 0).then(|| random.below(router::DEVICES as u64) as usize);
            runner.trace(traced::filter(&mut random), device);
            for _ in 0..PACKETS {
                let (link, frame) = packets::frame(&runner.router, &mut random);
                became.add(runner.compare(link, &frame, &format!("seed {first}, filter {filter}")));
            }
        }
        check(&became, &runner, &[]);
        let traced = runner.router.writer.misses(underpass_engine::in_kernel::records::MissCause::Traced);
        assert!(traced > count / 10, "{traced} packets");
    });
}

/// Routes, next hops, SIDs, links and whole VRFs change while the program reads: between any two packets may lie some
/// changes. One VRF's tables are large.
#[test]
fn any_history_of_tables() {
    with_runner("any_history_of_tables", Hook::Tcx, |mut runner| {
        let (count, seed) =
            (number("UNDERPASS_PROGRAM_PACKETS", 20_000), number("UNDERPASS_PROGRAM_SEED", 1));
        let mut became = Became::default();
        let mut random = Random(seed << 32);
        runner.router.configure(&mut random);
        for packet in 0..count {
            if packet % 10_000 == 0 {
                runner.router.enlarge(0, &mut random);
            }
            while random.below(3) == 0 {
                runner.router.change(&mut random);
            }
            let (link, frame) = packets::frame(&runner.router, &mut random);
            became.add(runner.compare(link, &frame, &format!("seed {seed}, packet {packet}")));
        }
        check(&became, &runner, &[]);
    });
}

/// Records are replaced by equal ones, and routes come and go beside those that packets take, while the program runs on
/// another processor: what it makes of those packets stays the same. One VRF's tables are large.
#[test]
fn tables_change_under_the_program() {
    with_runner("tables_change_under_the_program", Hook::Tcx, |mut runner| {
        let changes = number("UNDERPASS_PROGRAM_PACKETS", 20_000);
        let mut random = Random(number("UNDERPASS_PROGRAM_SEED", 1) << 48);
        runner.router.configure(&mut random);
        runner.router.enlarge(0, &mut random);
        let mut kept = Vec::new();
        for _ in 0..2_000 {
            let (device, frame) = packets::frame(&runner.router, &mut random);
            if let Some(made) = runner.sends(device, &frame) {
                kept.push((runner.router.ifindexes[device], frame, made));
            }
        }
        assert!(kept.len() > 100, "{} packets", kept.len());
        let addresses = Addresses::in_frames(kept.iter().map(|(_, frame, _)| &**frame));
        let Runner { router, fast, .. } = &mut runner;
        let done = AtomicBool::new(false);
        let rounds = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut left, mut rounds) = (Vec::new(), 0);
                while !done.load(Relaxed) {
                    for (ifindex, frame, made) in &kept {
                        let verdict = fast.run(Hook::Tcx, frame, *ifindex, &mut left).expect("a run");
                        let what = (verdict, &left) == (Verdict::Redirected, made);
                        assert!(what, "round {rounds}: {verdict:?}\n{frame:x?}\n{left:x?}\n{made:x?}");
                    }
                    rounds += 1;
                }
                rounds
            });
            for _ in 0..changes {
                router.stir(&mut random, &addresses);
                if reader.is_finished() {
                    break;
                }
            }
            done.store(true, Relaxed);
            reader.join().unwrap()
        });
        println!("{} packets, {rounds} times while tables changed {changes} times", kept.len());
        assert!(rounds > 0);
    });
}
