//! Stations of a bridge as `bridge fdb` shows them while packets flow.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::time::{Duration, Instant};

use underpass_daemon::offline::Offline;
use underpass_engine::buffer::{HEADROOM, Pool, PortId};
use underpass_engine::worker::{Burst, Worker};

struct Bridged {
    router: Offline,
    worker: Worker,
}

impl Bridged {
    fn new(options: &str) -> Self {
        let ports = ["p0,mac=02:00:00:00:00:01", "p1,mac=02:00:00:00:00:02"];
        let (router, tables, mut readers) =
            Offline::new(&ports.map(|port| port.parse().unwrap()), 1).unwrap();
        let worker = Worker::new(tables, readers.remove(0), Pool::with_slot_size(64, HEADROOM + 2048));
        let bridged = Self { router, worker };
        bridged.run(&format!("ip link add br0 type bridge {options}"));
        for line in ["p0 up master br0", "p1 up master br0", "br0 up"] {
            bridged.run(&format!("ip link set {line}"));
        }
        bridged
    }

    fn run(&self, line: &str) -> String {
        let output = self.router.run_line(line).unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A frame from a station to nobody comes by a port.
    fn hears(&mut self, port: u16, station: u8) {
        let mut frame = [2, 0xff, 0, 0, 0, 0, 2, 0xaa, 0, 0, 0, station].to_vec();
        frame.resize(60, 0);
        let mut packet = self.worker.pool().take().unwrap();
        packet.set(HEADROOM, &frame).unwrap();
        let mut burst: Burst = [packet].into_iter().collect();
        self.worker.process(PortId(port), &mut burst, 0, None);
        let (pool, sent) = self.worker.pool_and_sent(PortId(1 - port));
        let sent: Vec<_> = sent.collect();
        assert_eq!(sent.len(), 1);
        sent.into_iter().for_each(|packet| pool.give(packet));
    }

    fn shown(&self, station: u8) -> String {
        let all = self.run("bridge fdb show br br0");
        let of = all.lines().find(|line| line.starts_with(&format!("02:aa:00:00:00:{station:02x} ")));
        of.unwrap_or_default().trim_end().to_owned()
    }
}

#[test]
fn stations_are_learned_and_move() {
    let mut bridged = Bridged::new("");
    bridged.hears(0, 1);
    bridged.hears(1, 2);
    assert_eq!(bridged.shown(1), "02:aa:00:00:00:01 dev p0 master br0");
    assert_eq!(bridged.shown(2), "02:aa:00:00:00:02 dev p1 master br0");
    bridged.hears(1, 1);
    assert_eq!(bridged.shown(1), "02:aa:00:00:00:01 dev p1 master br0");
    bridged.run("bridge fdb replace 02:aa:00:00:00:02 dev p0 master static");
    assert_eq!(bridged.shown(2), "02:aa:00:00:00:02 dev p0 vlan 1 master br0 static");
    bridged.run("bridge fdb flush dev br0 nostatic");
    assert_eq!((bridged.shown(1).as_str(), bridged.shown(2).is_empty()), ("", false));
    // A port that goes down forgets whom it has heard.
    bridged.hears(0, 3);
    assert_ne!(bridged.shown(3), "");
    bridged.run("ip link set p0 down");
    assert_eq!(bridged.shown(3), "");
}

#[test]
fn stations_that_are_not_heard_are_forgotten() {
    let mut bridged = Bridged::new("ageing_time 100");
    bridged.hears(0, 1);
    assert_ne!(bridged.shown(1), "");
    let start = Instant::now();
    while !bridged.shown(1).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "it is not forgotten");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(start.elapsed() > Duration::from_millis(500));
}
