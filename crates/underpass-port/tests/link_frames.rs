//! Frames without an EtherType, at all devices.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod lab;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::{Namespace, Raw, veth};
use underpass_port::link_frames::LinkFrames;

/// What is for a bridge of a VLAN is not for one without: the kernel takes the tag off before a socket sees the frame.
#[test]
fn a_frame_of_another_vlan_is_nobodys() {
    if !lab::may("a_frame_of_another_vlan_is_nobodys") {
        return;
    }
    let (a, router) = (Namespace::new(), Namespace::new());
    veth((&a, "a0", "02:00:00:00:00:0a"), (&router, "r0", "02:00:00:00:00:0b"));
    let peer = Arc::new(a.run(|| Raw::open("a0")));
    router.run(move || {
        let frames = LinkFrames::without_ethertype().unwrap();
        let index = underpass_port::index_of("r0").unwrap();
        let addresses = [1, 0x80, 0xc2, 0, 0, 0, 2, 0, 0, 0, 0, 0xa];
        let behind = [&[0, 7, 0x42, 0x42, 3, 0, 0, 0, 0x80][..], &[0; 39]].concat();
        let plain = [&addresses[..], &behind].concat();
        let tagged = [&addresses[..], &[0x81, 0, 0, 5], &behind].concat();
        let other = [&addresses[..], &[0x88, 0xb5], &behind].concat();
        for frame in [&tagged, &other, &plain, &tagged, &plain] {
            peer.send(frame);
        }
        let mut heard = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(5);
        while heard.len() < 2 {
            assert!(Instant::now() < deadline, "{heard:?}");
            let mut frame = [0; 128];
            match frames.receive(&mut frame).unwrap() {
                Some((from, length)) => heard.push((from, frame[..length].to_vec())),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        assert_eq!(heard, [(index, plain.clone()), (index, plain.clone())]);
        assert!(frames.receive(&mut [0; 128]).unwrap().is_none());
        frames.send(index, &plain).unwrap();
        let came = std::iter::from_fn(|| peer.receive()).find(|frame| *frame == plain);
        assert!(came.is_some(), "nothing is sent");
    });
}
