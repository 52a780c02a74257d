//! A device that is down for a while.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod lab;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use lab::{Namespace, Raw, port, segment_behind, veth};
use underpass_engine::buffer::{HEADROOM, Pool};
use underpass_engine::worker::Burst;
use underpass_port::kernel_frames::KernelFrames;
use underpass_port::live::Driver;

const FRAMES: usize = 3;

/// Frames of IPv4 for the other end, of different lengths.
fn frame(number: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 0xa, 2, 0, 0, 0, 0, 0xb, 8, 0, 0x45];
    frame.resize(100 + 400 * number, number as u8);
    frame
}

/// What a device that is down does not take is given up: it is counted once, its slots come back, and it does not leave when the
/// device is up again. What comes then leaves and comes in as before.
#[test]
fn what_is_not_taken_is_given_up() {
    if !lab::may("what_is_not_taken_is_given_up") {
        return;
    }
    for driver in [Driver::Packet, Driver::Xdp, Driver::XdpGeneric] {
        let (a, router) = (Namespace::new(), Namespace::new());
        veth((&a, "a0", "02:00:00:00:00:0a"), (&router, "r0", "02:00:00:00:00:0b"));
        let peer = Arc::new(a.run(|| Raw::open("a0")));
        router.run(move || {
            let (memory, mut pool) = underpass_port::xdp::Memory::new(4096, 4).unwrap();
            let before = pool.available();
            let mut port = port("r0", driver, &KernelFrames::new(), &memory, &mut pool);
            let free = pool.available();
            assert!(!port.unsent(), "{driver:?}");
            let packets = |pool: &mut Pool, numbers: Range<usize>| -> Vec<_> {
                let packet = |number| {
                    let mut packet = pool.take().unwrap();
                    packet.set(HEADROOM, &frame(number)).unwrap();
                    packet
                };
                numbers.map(packet).collect()
            };
            lab::ip("link set r0 down");
            for round in 1..=3 {
                let lost = packets(&mut pool, 0..FRAMES);
                port.send(&mut pool, lost.into_iter());
                let deadline = Instant::now() + Duration::from_secs(5);
                while port.unsent() || pool.available() < free {
                    assert!(Instant::now() < deadline, "{driver:?}: {} slots of {free}", pool.available());
                    port.send(&mut pool, std::iter::empty());
                    std::thread::sleep(Duration::from_millis(10));
                }
                (0..100).for_each(|_| port.send(&mut pool, std::iter::empty()));
                assert_eq!(port.tally().send_errors, (round * FRAMES) as u64, "{driver:?}");
            }
            lab::ip("link set r0 up");
            let errors = port.tally().send_errors;
            std::thread::sleep(Duration::from_millis(100));
            (0..10).for_each(|_| port.send(&mut pool, std::iter::empty()));
            let last = packets(&mut pool, FRAMES..FRAMES + 1);
            port.send(&mut pool, last.into_iter());
            let ours = |frame: &Vec<u8>| frame[12..14] == [8, 0];
            let came: Vec<_> = std::iter::from_fn(|| peer.receive()).filter(ours).collect();
            assert!(came == [frame(FRAMES)], "{driver:?}: {} frames", came.len());
            assert_eq!(port.tally().send_errors, errors, "{driver:?}");
            let mut burst = Burst::new();
            let deadline = Instant::now() + Duration::from_secs(5);
            while burst.is_empty() {
                assert!(Instant::now() < deadline, "{driver:?}: nothing comes: {:?}", port.tally());
                peer.send(&[&[2, 0, 0, 0, 0, 0xb], &frame(0)[6..]].concat());
                std::thread::sleep(Duration::from_millis(10));
                port.receive(&mut pool, &mut burst);
            }
            burst.drain(..).for_each(|packet| pool.give(packet));
            port.close(&mut pool);
            assert_eq!(pool.available(), before, "{driver:?}");
        });
    }
}

/// A queue that cannot be opened again is told once, with the reason.
#[test]
fn a_queue_that_stays_away_is_told() {
    if !lab::may("a_queue_that_stays_away_is_told") {
        return;
    }
    let (a, router) = (Namespace::new(), Namespace::new());
    veth((&a, "a0", "02:00:00:00:00:0a"), (&router, "r0", "02:00:00:00:00:0b"));
    router.run(|| {
        let (memory, mut pool) = underpass_port::xdp::Memory::new(4096, 4).unwrap();
        let index = underpass_port::index_of("r0").unwrap();
        let mut port = port("r0", Driver::Xdp, &KernelFrames::new(), &memory, &mut pool);
        lab::ip("link set r0 down");
        let mut lost = pool.take().unwrap();
        lost.set(HEADROOM, &frame(0)).unwrap();
        port.send(&mut pool, [lost].into_iter());
        assert!(port.unsent(), "its queue was not closed");
        lab::ip("link del r0");
        let deadline = Instant::now() + Duration::from_secs(5);
        let trouble = loop {
            assert!(Instant::now() < deadline, "nobody is told");
            port.send(&mut pool, std::iter::empty());
            if let Some(trouble) = port.take_trouble() {
                break trouble;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!((trouble.0, trouble.1.raw_os_error()), (index, Some(libc::ENODEV)));
        let quiet = Instant::now() + Duration::from_millis(2500);
        while Instant::now() < quiet {
            port.send(&mut pool, std::iter::empty());
            assert!(port.take_trouble().is_none());
            std::thread::sleep(Duration::from_millis(50));
        }
        port.close(&mut pool);
    });
}

/// What the kernel drops as the other end of the device is down is counted, and nothing waits for that to come back.
#[test]
fn without_a_carrier_nothing_waits() {
    const MANY: u64 = 20;
    if !lab::may("without_a_carrier_nothing_waits") {
        return;
    }
    for driver in [Driver::Packet, Driver::Xdp] {
        let (a, router) = (Namespace::new(), Namespace::new());
        veth((&a, "a0", "02:00:00:00:00:0a"), (&router, "r0", "02:00:00:00:00:0b"));
        a.ip("link set a0 down");
        router.run(move || {
            let (memory, mut pool) = underpass_port::xdp::Memory::new(4096, 4).unwrap();
            let mut port = port("r0", driver, &KernelFrames::new(), &memory, &mut pool);
            for round in 1..=3 {
                let packets: Vec<_> = std::iter::from_fn(|| pool.take()).take(MANY as usize).collect();
                let packets = packets.into_iter().map(|mut packet| {
                    packet.set(HEADROOM, &frame(0)).unwrap();
                    packet
                });
                port.send(&mut pool, packets);
                assert!(!port.unsent(), "{driver:?}");
                assert_eq!(port.tally().send_errors, round * MANY, "{driver:?}");
            }
            port.close(&mut pool);
        });
    }
}

/// The device goes down while packets leave by it without a pause: what it has not taken is given up all the same.
#[test]
fn nothing_stale_leaves_after_a_flood() {
    if !lab::may("nothing_stale_leaves_after_a_flood") {
        return;
    }
    for driver in [Driver::Packet, Driver::Xdp] {
        let (a, router) = (Namespace::new(), Namespace::new());
        veth((&a, "a0", "02:00:00:00:00:0a"), (&router, "r0", "02:00:00:00:00:0b"));
        let beside = router.beside();
        let (stop, flooded) = (Arc::new(AtomicBool::new(false)), channel());
        let (stopped, end) = (Arc::clone(&stop), channel::<()>());
        let port = router.start(move || {
            let (memory, mut pool) = underpass_port::xdp::Memory::new(8192, 4).unwrap();
            let mut port = port("r0", driver, &KernelFrames::new(), &memory, &mut pool);
            let mut sent = 0_u64;
            flooded.0.send(()).unwrap();
            while !stopped.load(Relaxed) {
                let packets: Vec<_> = std::iter::from_fn(|| pool.take()).take(32).collect();
                sent += packets.len() as u64;
                let packets = packets.into_iter().map(|mut packet| {
                    packet.set(HEADROOM, &frame(0)).unwrap();
                    packet
                });
                port.send(&mut pool, packets);
            }
            flooded.0.send(()).unwrap();
            // As a worker does while the device is down, and when it is up again.
            while end.1.try_recv().is_err() {
                port.send(&mut pool, std::iter::empty());
                std::thread::sleep(Duration::from_millis(1));
            }
            let errors = port.tally().send_errors;
            assert!(errors > 0 && errors <= sent, "{driver:?}: {errors} of {sent}");
            assert!(!port.unsent(), "{driver:?}");
            port.close(&mut pool);
        });
        flooded.1.recv().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        beside.ip("link set r0 down");
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Relaxed);
        flooded.1.recv().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let peer = a.run(|| Raw::open("a0"));
        beside.ip("link set r0 up");
        let came = std::iter::from_fn(|| peer.receive()).filter(|frame| frame[12..14] == [8, 0]).count();
        end.0.send(()).unwrap();
        port.recv().expect("the port failed");
        assert_eq!(came, 0, "{driver:?}");
    }
}

/// Segments that come after the device was down are read as they come, and leave nothing behind that would keep a worker
/// from sleeping.
#[test]
fn segments_come_as_before() {
    if !lab::may("segments_come_as_before") {
        return;
    }
    let router = Namespace::new();
    veth((&router, "a0", "02:00:00:00:00:02"), (&router, "r0", "02:00:00:00:00:01"));
    router.run(move || {
        let (memory, mut pool) = underpass_port::xdp::Memory::new(64, 8).unwrap();
        let kernel_frames = KernelFrames::new();
        let mut sender = port("a0", Driver::Packet, &kernel_frames, &memory, &mut pool);
        let mut receiver = port("r0", Driver::Packet, &kernel_frames, &memory, &mut pool);
        for turn in 0..3 {
            lab::ip("link set r0 down");
            lab::ip("link set r0 up");
            let deadline = Instant::now() + Duration::from_secs(5);
            let mut burst = Burst::new();
            while burst.is_empty() {
                assert!(Instant::now() < deadline, "{turn}: nothing came: {:?}", receiver.tally());
                // The other end may not have seen yet that this one is up.
                let segment = segment_behind(&mut pool, 6, false, &[]);
                sender.send(&mut pool, [segment].into_iter());
                std::thread::sleep(Duration::from_millis(20));
                receiver.receive(&mut pool, &mut burst);
            }
            assert_eq!(receiver.tally().malformed, 0, "{turn}");
            for packet in burst.drain(..) {
                assert!(packet.len() > 20_000 && packet.offload().is_some(), "{turn}: {packet:?}");
                pool.give(packet);
            }
            let descriptors = receiver.descriptors().into_iter();
            let mut polled: Vec<_> =
                descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
            // SAFETY: as many entries as the vector has.
            let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) };
            assert_eq!(ready, 0, "{turn}: {}", polled[0].revents);
        }
        sender.close(&mut pool);
        receiver.close(&mut pool);
    });
}
