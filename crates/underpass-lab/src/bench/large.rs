//! Large TCP segments through foo-over-UDP: cut at the port that they leave by, and put together again where they
//! have come in one by one.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, ensure};
use underpass_engine::buffer::{
    HEADROOM, LARGE_SLOT, MARGIN, Offload, Packet, Pool, SLOT, Segment, SegmentKind,
};
use underpass_engine::coalesce::Coalescer;
use underpass_engine::memory;
use underpass_engine::offload::Cut;
use underpass_engine::worker::{Burst, Worker};
use underpass_packet::checksum::Sum;

use super::measure::{self, Cost, IN, OUT, Rounds, difference, undisturbed};
use super::scenario::{BASE, HOPS, incoming, outgoing};
use super::wire::{self, Ip4};
use super::{clock, configure_lines};

/// What is measured.
pub const NAMES: [&str; 2] = ["fou-gso", "fou-gro"];

/// Payload of a part, and parts of a segment: with all headers as long as IPv4 allows, about.
const SIZE: usize = 1432;
const PARTS: usize = 45;
/// TCP without options.
const TCP: usize = 20;
/// Ethernet, IPv4.
const IP: usize = 14 + 20;
const PORT: u16 = 5555;
/// Rounds, and segments in each.
const ROUNDS: usize = 301;
const SEGMENTS: u64 = 64;

/// The configuration of one of [`NAMES`].
pub fn config(name: &str) -> String {
    if name == "fou-gso" {
        format!(
            "{BASE}ip link add t1 type ipip local 10.1.0.1 remote 10.1.0.2 ttl 64 encap fou encap-sport 40000 encap-dport {PORT}\n\
             ip link set t1 up\nip route add 198.18.0.0/16 dev t1\n"
        )
    } else {
        format!(
            "{BASE}ip link add t1 type ipip local 10.0.0.1 remote 10.0.0.2 ttl 64\nip link set t1 up\n\
             ip fou add port {PORT} ipproto 4\nip route add 198.18.0.0/16 via 10.1.0.2 dev p1\n"
        )
    }
}

/// Payload bytes of a large segment.
pub const PAYLOAD: usize = SIZE * PARTS;

/// One of [`NAMES`], checked and timed: ticks for each large segment.
///
/// # Errors
/// What comes out is not what must.
pub fn measure(name: &str) -> anyhow::Result<Cost> {
    let mut configured = configure_lines(name, &config(name), 1)?;
    let reader = configured.readers.pop().context("no reader")?;
    let region = |slot: usize, count: usize| memory::leak((slot + MARGIN) * count);
    let pool = Pool::over(region(SLOT, measure::BUFFERS)?, region(LARGE_SLOT, 4)?);
    let worker = Worker::new(Arc::clone(&configured.tables), reader, pool);
    let line = Line { worker, coalescer: Coalescer::new(true), burst: Burst::new(), now: 0 };
    if name == "fou-gso" { line.cutting() } else { line.gathering() }
}

struct Line {
    worker: Worker<true>,
    coalescer: Coalescer,
    burst: Burst,
    now: u64,
}

impl Line {
    fn process(&mut self) {
        self.now += 10_000;
        self.worker.process(IN, &mut self.burst, self.now, None);
    }

    /// Into the tunnel whole, then cut.
    fn cutting(mut self) -> anyhow::Result<Cost> {
        let large = incoming(&segment(0, PAYLOAD, HOPS, Checksum::Unfinished));
        let mut parts = Vec::new();
        self.cut(&large, |part| parts.push(part.bytes().to_vec()))?;
        ensure!(parts.len() == PARTS, "{} parts", parts.len());
        for (index, part) in parts.iter().enumerate() {
            let inner = segment(index, SIZE, HOPS - 1, Checksum::Finished);
            // The outer identification is the router's to choose for the first.
            let of = |part: &[u8]| {
                part.get(18..20).map(|id| u16::from_be_bytes([id[0], id[1]])).unwrap_or_default()
            };
            let identification = of(&parts[0]).wrapping_add(index as u16);
            let (source, destination) = (Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 2));
            let outer = Ip4 { source, destination, identification, ttl: 64 };
            equal(&outgoing(&wire::ipv4(outer, wire::UDP, &datagram(&inner))), part)?;
        }
        self.time(
            |line| {
                line.cut(&large, |part| {
                    black_box(part.bytes());
                })
            },
            |line| {
                let packet = line.large(&large)?;
                line.worker.pool().give(black_box(packet));
                Ok(())
            },
        )
    }

    /// A large segment, as a port hands it over.
    fn large(&mut self, frame: &[u8]) -> anyhow::Result<Packet> {
        let mut packet = self.worker.pool().take_large().context("no large slot")?;
        packet.set(HEADROOM, frame).map_err(|_| anyhow::anyhow!("no room"))?;
        let segment = Some(Segment { size: SIZE as u16, kind: SegmentKind::Tcp4 });
        packet.set_offload(Offload { start: IP, field: 16, segment });
        Ok(packet)
    }

    fn cut(&mut self, frame: &[u8], mut each: impl FnMut(&Packet)) -> anyhow::Result<()> {
        let packet = self.large(frame)?;
        self.burst.push(packet);
        self.process();
        let (pool, mut sent) = self.worker.pool_and_sent(OUT);
        let packet = sent.next().context("no packet came out")?;
        let mut cut = Cut::new(&packet).context("it is no segment any more")?;
        while let Some(part) = cut.next(&packet, pool) {
            let part = part.map_err(|_| anyhow::anyhow!("no slot"))?;
            each(&part);
            pool.give(part);
        }
        pool.give(packet);
        Ok(())
    }

    /// Out of the tunnel one by one, then put together.
    fn gathering(mut self) -> anyhow::Result<Cost> {
        let (source, destination) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
        let part = |index| {
            let outer = Ip4 { source, destination, identification: index as u16, ttl: 64 };
            let inner = segment(index, SIZE, HOPS, Checksum::Finished);
            incoming(&wire::ipv4(outer, wire::UDP, &datagram(&inner)))
        };
        let parts: Vec<Vec<u8>> = (0..PARTS).map(part).collect();
        let mut came = Vec::new();
        self.gather(&parts, |packet| came.push((packet.bytes().to_vec(), packet.offload())))?;
        let [(bytes, offload)] = came.as_slice() else { anyhow::bail!("{} packets came out", came.len()) };
        equal(&outgoing(&segment(0, PAYLOAD, HOPS - 1, Checksum::Unfinished)), bytes)?;
        let size = offload.and_then(|offload| offload.segment).map(|segment| usize::from(segment.size));
        ensure!(size == Some(SIZE), "a segment of {size:?}");
        self.time(
            |line| {
                line.gather(&parts, |packet| {
                    black_box(packet.bytes());
                })
            },
            |line| {
                line.receive(&parts)?;
                black_box(&mut line.burst);
                line.burst.drain(..).for_each(|packet| line.worker.pool().give(packet));
                Ok(())
            },
        )
    }

    fn receive(&mut self, parts: &[Vec<u8>]) -> anyhow::Result<()> {
        for part in parts {
            let mut packet = self.worker.pool().take().context("no slot")?;
            packet.set(HEADROOM, part).map_err(|_| anyhow::anyhow!("no room"))?;
            self.burst.push(packet);
        }
        Ok(())
    }

    fn gather(&mut self, parts: &[Vec<u8>], mut each: impl FnMut(&Packet)) -> anyhow::Result<()> {
        self.receive(parts)?;
        self.process();
        let (pool, sent) = self.worker.pool_and_sent(OUT);
        let put = self.coalescer.put(pool, sent);
        ensure!(put == PARTS as u64 - 1, "{put} packets were put to others");
        while let Some(packet) = self.coalescer.next() {
            each(&packet);
            pool.give(packet);
        }
        Ok(())
    }

    /// Rounds of the path, each beside one of what brings its packets and takes them.
    fn time(
        mut self,
        path: impl Fn(&mut Self) -> anyhow::Result<()>,
        floor: impl Fn(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<Cost> {
        let mut round = |what: &dyn Fn(&mut Self) -> anyhow::Result<()>| {
            undisturbed(|| {
                let start = clock::ticks();
                (0..SEGMENTS).try_for_each(|_| what(&mut self))?;
                Ok(clock::ticks() - start)
            })
        };
        let mut rounds = Rounds::default();
        for _ in 0..ROUNDS {
            let floor = round(&floor)?;
            let path = round(&path)?;
            rounds.push(floor, path);
        }
        Ok(rounds.cost(SEGMENTS))
    }
}

fn equal(expected: &[u8], found: &[u8]) -> anyhow::Result<()> {
    ensure!(expected == found, "a packet is wrong {}", difference(expected, found));
    Ok(())
}

/// A UDP datagram without a checksum.
fn datagram(inside: &[u8]) -> Vec<u8> {
    let length = 8 + inside.len() as u16;
    [&40_000_u16.to_be_bytes()[..], &PORT.to_be_bytes(), &length.to_be_bytes(), &[0, 0], inside].concat()
}

enum Checksum {
    Finished,
    /// The sum of the pseudo header.
    Unfinished,
}

/// An IPv4 packet of the stream, `size` bytes of it from those of part `index` on.
fn segment(index: usize, size: usize, ttl: u8, checksum: Checksum) -> Vec<u8> {
    let (source, destination) = (Ipv4Addr::new(198, 19, 0, 1), Ipv4Addr::new(198, 18, 0, 1));
    let at = index * SIZE;
    let sequence = (at as u32).to_be_bytes();
    let mut tcp = [&[0x30, 0x39, 0, 80][..], &sequence, &[0, 0, 0, 9, 0x50, 0x10, 1, 0, 0, 0, 0, 0]].concat();
    tcp.extend((at..at + size).map(|n| (n % 251) as u8));
    let pseudo = Sum::pseudo_ipv4(source.octets(), destination.octets(), 6, (TCP + size) as u16);
    let sum = match checksum {
        Checksum::Finished => pseudo.add_bytes(&tcp).checksum(),
        Checksum::Unfinished => pseudo.fold(),
    };
    tcp.splice(16..18, sum.to_be_bytes());
    wire::ipv4(Ip4 { source, destination, identification: index as u16, ttl }, 6, &tcp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_come_out_as_they_must() {
        for name in NAMES {
            let cost = measure(name).unwrap();
            assert!(cost.path > 0.0, "{name}");
        }
    }
}
