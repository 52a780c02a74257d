//! Malformed packets: what flows, changed.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv, send},
};
use underpass_daemon::testbed::Namespace;
use underpass_packet::{ethernet, ipv4};
use underpass_port::{index_of, packet::tap};

use crate::random::Random;

/// The longest frame.
const FRAME: usize = ethernet::Header::LEN + 1500;
/// Frames are changed and sent so often.
const TICK: Duration = Duration::from_millis(20);
/// So many at once.
const TOGETHER: usize = 5;

/// Opens the devices where samples are taken and where they are sent again, changed.
pub fn open(from: &Namespace, out: &str, samples: &Namespace, device: &str) -> anyhow::Result<[OwnedFd; 2]> {
    let open = |namespace: &Namespace, device: &str| -> anyhow::Result<OwnedFd> {
        Ok(namespace.enter(|| -> io::Result<OwnedFd> { tap(index_of(device)?) })??)
    };
    Ok([open(samples, device)?, open(from, out)?])
}

/// Changes samples and sends them until the end.
pub fn run(sockets: &[OwnedFd; 2], seed: u64, flowing: &AtomicBool, over: &AtomicBool, sent: &AtomicU64) {
    let [samples, out] = sockets;
    let (mut random, mut frame) = (Random(seed), vec![0; FRAME + 64]);
    while !over.load(Relaxed) {
        thread::sleep(TICK);
        let mut left = if flowing.load(Relaxed) { TOGETHER } else { 0 };
        // What has come since, of which each has the same chance; the rest makes room for new samples.
        for _ in 0..400 {
            match recv(samples.as_raw_fd(), &mut frame[..FRAME], MsgFlags::empty()) {
                Ok(length) if left > 0 && random.below(20) == 0 => {
                    left -= 1;
                    let length = mutate(&mut frame, length, &mut random);
                    // A link that is down takes none.
                    if send(out.as_raw_fd(), &frame[..length], MsgFlags::empty()).is_ok() {
                        sent.fetch_add(1, Relaxed);
                    }
                }
                Ok(_) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => break,
            }
        }
    }
}

/// Changes a frame of `length` bytes; how long it is then.
fn mutate(frame: &mut [u8], length: usize, random: &mut Random) -> usize {
    let header = ethernet::Header::LEN;
    let mut length = length.clamp(header + 1, FRAME);
    for _ in 0..=random.below(3) {
        // The addresses stay, so that it is taken; headers matter more than what is behind them.
        let reach = if random.below(4) == 0 { length } else { length.min(128) };
        let at = 12 + random.below((reach - 12) as u64) as usize;
        match random.below(6) {
            0 => frame[at] ^= 1 << random.below(8),
            1 => frame[at] = random.next() as u8,
            2 => frame[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
            3 => length = header + 1 + random.below((length - header) as u64) as usize,
            4 => {
                let longer = (length + 1 + random.below(64) as usize).min(FRAME);
                frame[length..longer].fill_with(|| random.next() as u8);
                length = longer;
            }
            // Headers again, a little further back.
            _ => {
                let part = (1 + random.below(40) as usize).min(length - at);
                let to = (at + random.below(48) as usize).min(length - part);
                frame.copy_within(at..at + part, to);
            }
        }
    }
    // What has a wrong header checksum goes no further.
    if random.below(4) != 0
        && frame[12..14] == ethernet::IPV4.to_be_bytes()
        && let Ok(mut packet) = ipv4::ViewMut::parse(&mut frame[header..length])
    {
        packet.fill_checksum();
    }
    // Who has which address is the kernels' affair, and everybody else's if it is told wrong.
    if frame[12..14] == ethernet::ARP.to_be_bytes() {
        frame[12] = 0;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_changed_and_stay_frames() {
        let mut random = Random(1);
        let sample: Vec<u8> = [&[2; 12][..], &[8, 0, 0x45, 0, 0, 40], &[7; 34]].concat();
        let mut changed = 0;
        for _ in 0..20_000 {
            let mut frame = vec![0; FRAME + 64];
            frame[..sample.len()].copy_from_slice(&sample);
            let length = mutate(&mut frame, sample.len(), &mut random);
            assert!((15..=FRAME).contains(&length));
            assert_eq!(frame[..12], sample[..12]);
            changed += usize::from(frame[..length] != sample);
        }
        assert!(changed > 18_000, "{changed}");
    }
}
