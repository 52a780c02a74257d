//! A bridge of all devices, and frames of stations that it knows or does not.

use std::sync::Arc;

use nix::time::{ClockId, clock_gettime};
use underpass_engine::buffer::PortId;
use underpass_engine::l2::fdb::{EXTERNAL, Entry, Fdb, LOCAL, STATIC, STICKY, Station};
use underpass_engine::tables::{Bridge, BridgePort, Link, LinkId, Membership, PortState, Suppresses};
use underpass_packet::ethernet;

use crate::random::Random;
use crate::router::{DEVICES, Router};
use crate::runner::Runner;

/// How many stations there are: those of one table, and some that it does not have.
const STATIONS: u64 = 40;
const KNOWN: u64 = 32;

/// The bridge, among the links of the router.
pub struct Bridged {
    id: LinkId,
    fdb: Arc<Fdb>,
}

fn station(n: u64) -> [u8; 6] {
    [2, 0xb, 0, 0, 0, n as u8]
}

/// Milliseconds of the clock by which workers hear stations.
fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000
}

fn rarely(random: &mut Random) -> bool {
    random.below(12) == 0
}

/// The link of a bridge.
fn link(router: &Router, random: &mut Random, bridge: Bridge) -> Link {
    Link {
        ifindex: 3000,
        port: Some(PortId(200)),
        up: true,
        programs: None,
        ingress: None,
        bridge: Some(Box::new(bridge)),
        ..router.link(0, random)
    }
}

impl Bridged {
    /// A bridge without ports.
    pub fn new(router: &mut Router) -> Self {
        let fdb = Arc::new(Fdb::within(router.writer.region(), 0));
        let link = link(router, &mut Random(0), Bridge { fdb: Arc::clone(&fdb), ..Bridge::default() });
        Self { id: router.writer.add_link(link), fdb }
    }

    /// All devices become ports of any kind, and stations are behind any of them.
    pub fn configure(&self, router: &mut Router, random: &mut Random) {
        for device in 0..DEVICES {
            let [closed, deaf, isolated, locked] = std::array::from_fn(|_| rarely(random));
            let port = BridgePort {
                bridge: self.id,
                number: device as u16 + 1,
                state: if closed { PortState::Learning } else { PortState::Forwarding },
                learns: !deaf,
                locked,
                floods: [true; 3],
                hairpin: random.below(4) == 0,
                isolated,
                group_forward: 0,
                vlans: None,
                suppresses: Suppresses::None,
                proxy_arp: false,
                proxy_arp_wifi: false,
                networks: None,
            };
            let link = Link { bridge_port: Some(Box::new(port)), vlans: None, ..router.link(device, random) };
            router.writer.set_link(router.links[device], link.clone());
            router.has_programs[device] = link.programs.is_some();
            router.now_links[device] = link;
        }
        // Of these bridges programs know nothing.
        let (filters, answers, forgets) = (rarely(random), rarely(random), rarely(random));
        let members = || Membership::new(1, [(1, true)]);
        let bridge = Bridge {
            ports: router.links[..DEVICES].into(),
            fdb: Arc::clone(&self.fdb),
            ageing: if forgets { 2000 } else { 300_000 },
            filters: filters.then(|| (ethernet::VLAN, members())),
            answering: answers.then(Box::default),
            ..Bridge::default()
        };
        let bridge = link(router, random, bridge);
        router.writer.set_link(self.id, bridge);
        for n in 0..KNOWN {
            let flags = match random.below(20) {
                0 => LOCAL | STATIC,
                1 => STATIC,
                2 => STATIC | STICKY,
                3 => EXTERNAL,
                _ => 0,
            };
            let link = if random.below(30) == 0 {
                self.id
            } else {
                router.links[random.below(DEVICES as u64) as usize]
            };
            assert!(self.fdb.set(Station::new(station(n), 0), Entry { link, flags, heard: now() }));
        }
    }

    /// A frame of any station for any other; mostly it comes in where its source is. It has a type that nobody knows.
    fn frame(&self, router: &Router, random: &mut Random) -> (usize, Vec<u8>) {
        let source = random.below(STATIONS);
        let at = self.fdb.find(Station::new(station(source), 0)).map(|entry| entry.link);
        let there = router.links[..DEVICES].iter().position(|link| Some(*link) == at);
        let device = there.filter(|_| random.below(8) > 0).unwrap_or(random.below(DEVICES as u64) as usize);
        let mut destination = station(random.below(STATIONS));
        match random.below(40) {
            0 | 1 => destination[0] |= 1,
            2 => destination = [1, 0x80, 0xc2, 0, 0, 0xe],
            _ => {}
        }
        let mut from = station(source);
        match random.below(60) {
            0 => from[0] |= 1,
            1 => from = [0; 6],
            _ => {}
        }
        // Of a VLAN that no device is above for.
        let tag: &[u8] = if rarely(random) { &[0x88, 0xa8, 0x60, 77] } else { &[] };
        let len = [60, 60, 218, 219, 1298, 1299, 1518, 1519][random.below(8) as usize];
        let mut frame = [&destination[..], &from, tag, &[0x88, 0xb5]].concat();
        frame.resize_with(len, || random.next() as u8);
        (device, frame)
    }
}

/// What the program takes through a bridge, a worker would take through it likewise, and count.
pub fn any_frame(mut runner: Runner, count: u64, seed: u64) -> u64 {
    const FRAMES: u64 = 500;
    let mut forwarded = 0;
    runner.give_all();
    let bridged = Bridged::new(&mut runner.router);
    for seed in seed..seed + count.div_ceil(FRAMES) {
        let mut random = Random(seed);
        runner.router.configure(&mut random);
        bridged.configure(&mut runner.router, &mut random);
        for _ in 0..FRAMES {
            let (device, frame) = bridged.frame(&runner.router, &mut random);
            let came = runner.compare(device, &frame, &format!("seed {seed}"));
            forwarded += u64::from(came == crate::runner::Came::Forwarded);
        }
    }
    println!("{forwarded} of {count} frames; misses: {}", runner.misses());
    heard_by_the_program(&bridged, &mut runner);
    forwarded
}

/// Of a station whose frames the program alone has seen the control thread learns that it was heard.
fn heard_by_the_program(bridged: &Bridged, runner: &mut Runner) {
    let mut random = Random(7);
    let entry = |bridged: &Bridged, n| bridged.fdb.find(Station::new(station(n), 0)).unwrap();
    for _ in 0..1000 {
        bridged.configure(&mut runner.router, &mut random);
        bridged.fdb.follow_programs(0);
        let long_ago = now() - 10_000;
        let links = &runner.router.links[..2];
        for (n, link) in (0..).zip(links) {
            let entry = Entry { link: *link, flags: 0, heard: long_ago };
            assert!(bridged.fdb.set(Station::new(station(n), 0), entry));
        }
        let frame = [&station(1)[..], &station(0), &[0x88, 0xb5], &[0; 46]].concat();
        let sent = runner.router.writer.totals_of_programs().sent;
        runner.fast.run(runner.hook, &frame, runner.router.ifindexes[0], &mut Vec::new()).expect("a run");
        if runner.router.writer.totals_of_programs().sent == sent {
            continue;
        }
        let time = now();
        bridged.fdb.follow_programs(time);
        assert_eq!(entry(bridged, 0).heard, time);
        assert_eq!(entry(bridged, 1).heard, long_ago);
        return;
    }
    panic!("the program carries nothing");
}
