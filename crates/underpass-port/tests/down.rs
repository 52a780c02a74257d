//! A device that is down for a while.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod lab;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::{Namespace, Raw, port, segment_behind, veth};
use underpass_engine::buffer::HEADROOM;
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

/// What a device that is down does not take leaves when it is up again, without a further packet, and every slot comes
/// back.
#[test]
fn what_was_not_taken_leaves_later() {
    if !lab::may("what_was_not_taken_leaves_later") {
        return;
    }
    for driver in [Driver::Packet, Driver::XdpGeneric] {
        let (a, router) = (Namespace::new(), Namespace::new());
        veth((&a, "a0", "02:00:00:00:00:0a"), (&router, "r0", "02:00:00:00:00:0b"));
        let peer = Arc::new(a.run(|| Raw::open("a0")));
        router.run(move || {
            let (memory, mut pool) = underpass_port::xdp::Memory::new(4096, 4).unwrap();
            let mut port = port("r0", driver, &KernelFrames::new(), &memory, &mut pool);
            let free = pool.available();
            assert!(!port.unsent(), "{driver:?}");
            lab::ip("link set r0 down");
            let packets: Vec<_> = (0..FRAMES)
                .map(|number| {
                    let mut packet = pool.take().unwrap();
                    packet.set(HEADROOM, &frame(number)).unwrap();
                    packet
                })
                .collect();
            port.send(&mut pool, packets.into_iter());
            assert!(port.unsent(), "{driver:?}: the device was down");
            lab::ip("link set r0 up");
            let deadline = Instant::now() + Duration::from_secs(5);
            while port.unsent() || pool.available() < free {
                assert!(Instant::now() < deadline, "{driver:?}: {} slots of {free}", pool.available());
                port.send(&mut pool, std::iter::empty());
                std::thread::sleep(Duration::from_millis(10));
            }
            let ours = |frame: &Vec<u8>| frame[12..14] == [8, 0];
            let came: Vec<_> = std::iter::from_fn(|| peer.receive()).filter(ours).take(FRAMES).collect();
            assert!(came == (0..FRAMES).map(frame).collect::<Vec<_>>(), "{driver:?}: {} frames", came.len());
            port.close(&mut pool);
        });
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
