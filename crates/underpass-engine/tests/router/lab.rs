//! A router of two ports with tables filled by hand, and packets for it.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::buffer::{HEADROOM, Packet, Pool, PortId};
use underpass_engine::counters::CounterId;
use underpass_engine::tables::{
    Action, ActionId, Behaviour, BridgePort, Endpoint, Fib4Id, Fib6Id, Flavours, Headend, HeadendMode, Link,
    LinkId, Lookup, LookupId, NextHop, NextHopId, PortState, Rewrite, Suppresses, Via, Writer,
};
use underpass_engine::trace::{Event, Watch};
use underpass_engine::worker::{Burst, Worker};
use underpass_packet::{IntoBytes, ethernet, ipv4, ipv6, protocol, srh};

pub const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
pub const PEERS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];

pub struct Lab {
    pub writer: Writer,
    pub worker: Worker,
    pub fib4: Fib4Id,
    pub fib6: Fib6Id,
    pub lookup: LookupId,
    pub links: [LinkId; 2],
    /// The neighbour on each port.
    pub next_hops: [NextHopId; 2],
    pub forward: [ActionId; 2],
    /// The time at which packets come.
    pub now: u64,
    /// Workers beside `worker`, over the same tables.
    pub others: Vec<Worker>,
    slots: usize,
}

/// The link of a port, with these tables.
fn link(i: u16, lookup: LookupId) -> Link {
    Link {
        ifindex: u32::from(i) + 2,
        port: Some(PortId(i)),
        up: true,
        mac: MACS[usize::from(i)],
        mtu: 1500,
        lookup,
        forward4: true,
        forward6: true,
        source4: Some(Ipv4Addr::new(10, 0, i as u8, 1)),
        source6: Some(v6(&format!("fd00:{i}::1"))),
        own6: [v6(&format!("fd00:{i}::1"))].into(),
        rpl: true,
        seg6: true,
        ..Link::default()
    }
}

/// A port of a bridge that does all that it can.
pub fn bridge_port(bridge: LinkId) -> BridgePort {
    BridgePort {
        bridge,
        number: 1,
        state: PortState::Forwarding,
        learns: true,
        locked: false,
        floods: [true; 3],
        hairpin: false,
        isolated: false,
        group_forward: 0,
        vlans: None,
        suppresses: Suppresses::None,
        proxy_arp: false,
        proxy_arp_wifi: false,
        networks: None,
    }
}

pub fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

impl Lab {
    pub fn new() -> Self {
        Self::with_pool(Pool::new(512))
    }

    pub fn with_pool(pool: Pool) -> Self {
        Self::with_pools(vec![pool])
    }

    /// With a worker for each pool, all of which are alike.
    pub fn with_pools(mut pools: Vec<Pool>) -> Self {
        let pool = pools.remove(0);
        let slots = pool.available();
        let (mut writer, tables, mut readers) = Writer::new(1 + pools.len());
        let (fib4, fib6) = (writer.add_fib4(), writer.add_fib6());
        let lookup = writer.add_lookup(Lookup {
            fibs4: [fib4].into(),
            fibs6: [fib6].into(),
            rules4: [].into(),
            rules6: [].into(),
            own: None,
        });
        let links = [0, 1].map(|i: u16| writer.add_link(link(i, lookup)));
        let next_hops = [0, 1].map(|i: usize| {
            let mut bytes = [0; 20];
            bytes[..6].copy_from_slice(&PEERS[i]);
            bytes[6..12].copy_from_slice(&MACS[i]);
            writer.add_next_hop(NextHop {
                link: links[i],
                port: PortId(i as u16),
                mtu: 1500,
                locked: false,
                hop_limit: 0,
                rewrite: Some(Rewrite { bytes, len: 12 }),
                address: Ipv4Addr::new(10, i as u8, 0, 2).into(),
            })
        });
        let forward = next_hops.map(|next_hop| writer.add_action(Action::Forward(next_hop)));
        for (i, action) in forward.into_iter().enumerate() {
            writer.insert4(fib4, Ipv4Addr::new(10, i as u8, 0, 0), 16, action);
            writer.insert6(fib6, v6(&format!("fd00:{i}::")), 32, action);
            writer.insert6(fib6, v6(&format!("2001:db8:{i}::")), 48, action);
        }
        let local = writer.add_action(Action::Local);
        writer.insert6(fib6, v6("fd00:0::1"), 128, local);
        writer.insert4(fib4, Ipv4Addr::new(10, 0, 0, 1), 32, local);
        let worker = Worker::new(tables.clone(), readers.remove(0), pool);
        let others = readers.into_iter().zip(pools);
        let others = others.map(|(reader, pool)| Worker::new(tables.clone(), reader, pool)).collect();
        Self { writer, worker, fib4, fib6, lookup, links, next_hops, forward, now: 0, others, slots }
    }

    /// What the link of a port is, to be changed.
    pub fn link(&self, port: u16) -> Link {
        link(port, self.lookup)
    }

    /// A local SID with a counter.
    pub fn sid(&mut self, address: &str, behaviour: Behaviour) -> CounterId {
        self.flavoured(address, behaviour, None)
    }

    /// The same with flavours.
    pub fn flavoured(
        &mut self,
        address: &str,
        behaviour: Behaviour,
        flavours: Option<Flavours>,
    ) -> CounterId {
        self.flavoured_prefix(address, 128, behaviour, flavours)
    }

    /// The same for all addresses of a prefix.
    pub fn flavoured_prefix(
        &mut self,
        address: &str,
        length: u8,
        behaviour: Behaviour,
        flavours: Option<Flavours>,
    ) -> CounterId {
        let counter = self.writer.add_counter();
        let endpoint = Endpoint { behaviour, flavours, counter: Some(counter), link: self.links[0] };
        let action = self.writer.add_action(Action::Endpoint(endpoint));
        self.writer.insert6(self.fib6, v6(address), length, action);
        counter
    }

    pub fn via(&self, port: usize) -> Via {
        Via { address: IpAddr::V6(v6("::")), lookup: self.lookup, resolved: Some(self.next_hops[port]) }
    }

    /// Every kind of behaviour, at fc00::1 and on, and a headend for 2001:db8:e::/48.
    pub fn all_behaviours(&mut self) -> Vec<CounterId> {
        let lookup = self.lookup;
        let any4 = Via { address: Ipv4Addr::UNSPECIFIED.into(), lookup, resolved: None };
        let any6 = Via { address: Ipv6Addr::UNSPECIFIED.into(), lookup, resolved: None };
        let behaviours = vec![
            Behaviour::End { lookup },
            Behaviour::X(self.via(1)),
            Behaviour::T { lookup },
            Behaviour::DX2 { link: self.links[1] },
            Behaviour::DX4(any4),
            Behaviour::DX6(any6),
            Behaviour::DT4 { lookup },
            Behaviour::DT6 { lookup, vrf: true },
            Behaviour::DT46 { lookup },
            Behaviour::B6(self.policy(HeadendMode::Inline, &["::", "fd00:1::9"]).into()),
            Behaviour::B6Encaps(self.policy(HeadendMode::Encap, &["fd00:1::8", "fd00:1::9"]).into()),
        ];
        let mut counters = Vec::new();
        for (i, mode) in
            [HeadendMode::Encap, HeadendMode::Inline, HeadendMode::L2Encap].into_iter().enumerate()
        {
            let mut policy = self.policy(mode, &["fd00:1::8", "fd00:1::9"]);
            policy.counter = Some(self.writer.add_counter());
            counters.extend(policy.counter);
            let action = self.writer.add_action(Action::Headend(policy));
            self.writer.insert6(self.fib6, v6(&format!("2001:db8:e{i}::")), 48, action);
            self.writer.insert4(self.fib4, Ipv4Addr::new(10, 200 + i as u8, 0, 0), 16, action);
        }
        let sids = behaviours.into_iter().zip(1..).map(|(b, i)| self.sid(&format!("fc00::{i:x}"), b));
        counters.splice(0..0, sids);
        counters
    }

    pub fn policy(&self, mode: HeadendMode, segments: &[&str]) -> Headend {
        let path: Vec<Ipv6Addr> = segments.iter().rev().map(|s| v6(s)).collect();
        let mut bytes = vec![0; 4096];
        let len = srh::Builder::new(0, &path).write(&mut bytes).unwrap();
        bytes.truncate(len);
        if mode != HeadendMode::Inline {
            let outer = ipv6::Header::new(v6("fd00:0::1"), path[0], protocol::ROUTING, 64, 0);
            bytes.splice(0..0, outer.as_bytes().iter().copied());
        }
        let room = (bytes.len() + 14 + if mode == HeadendMode::L2Encap { 14 } else { 0 }) as u16;
        Headend {
            mode,
            header: bytes.into(),
            room,
            hmac_open: false,
            via: self.via(1),
            link: self.links[1],
            counter: None,
            plain: None,
        }
    }

    /// Sends frames in by port 0; what leaves, with its port.
    pub fn send(&mut self, frames: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        self.bring(frames, None)
    }

    /// The same, watched: each packet takes the slow path.
    pub fn send_watched(&mut self, frames: &[Vec<u8>], watch: &mut impl Watch) -> Vec<(u16, Vec<u8>)> {
        self.bring(frames, Some(watch))
    }

    fn bring(&mut self, frames: &[Vec<u8>], watch: Option<&mut dyn Watch>) -> Vec<(u16, Vec<u8>)> {
        let mut burst = Burst::new();
        for frame in frames {
            let mut packet = self.worker.pool().take().unwrap();
            packet.set(HEADROOM, frame).unwrap();
            burst.push(packet);
        }
        self.worker.process(PortId(0), &mut burst, self.now, watch);
        let mut out = Vec::new();
        for port in [0, 1] {
            let sent: Vec<_> = self.worker.sent(PortId(port)).collect();
            for packet in sent {
                out.push((port, packet.bytes().to_vec()));
                self.worker.pool().give(packet);
            }
        }
        out
    }

    /// The same, unwatched, each frame by the next of the workers.
    pub fn send_spread(&mut self, frames: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        let count = 1 + self.others.len();
        let mut out = Vec::new();
        for turn in 0..count {
            let part: Vec<_> = frames.iter().skip(turn).step_by(count).cloned().collect();
            out.extend(self.send(&part));
            // Whose turn it is next is the first one.
            if let Some(next) = self.others.first_mut() {
                std::mem::swap(&mut self.worker, next);
                self.others.rotate_left(1);
            }
        }
        out
    }

    /// Fills the table of IPv6 with so many routes to port 1 that packets are looked up together.
    pub fn spread(&mut self) {
        for i in 0..10_000u128 {
            let prefix = Ipv6Addr::from_bits(0x2001_0db8_ffff << 80 | i << 64);
            self.writer.insert6(self.fib6, prefix, 64, self.forward[1]);
        }
    }

    /// Why packets were dropped, and how many.
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        let all = underpass_engine::drops::DropReason::ALL.iter();
        all.map(|reason| (reason.name(), self.writer.dropped(*reason))).filter(|(_, n)| *n > 0).collect()
    }

    /// That every packet is accounted for, and every buffer is back.
    pub fn assert_accounted(&mut self) {
        let totals = self.writer.totals();
        let dropped: u64 =
            underpass_engine::drops::DropReason::ALL.iter().map(|reason| self.writer.dropped(*reason)).sum();
        assert_eq!(
            totals.received + totals.generated,
            totals.sent + totals.delivered + dropped,
            "{totals:?}"
        );
        for worker in std::iter::once(&mut self.worker).chain(&mut self.others) {
            assert_eq!(worker.pool().available(), self.slots, "buffers lost");
        }
    }
}

/// Looks at every step, and remembers none.
pub struct Watcher;

impl Watch for Watcher {
    fn step(&mut self, _: Event, _: &Packet) {}
}

pub fn frame(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = ethernet::Header::new(MACS[0], PEERS[0], ethertype).as_bytes().to_vec();
    frame.extend(packet);
    frame
}

pub fn ip6(source: &str, destination: &str, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = ipv6::Header::new(v6(source), v6(destination), next_header, 40, payload.len() as u16);
    header.set_class_flow(0xb8, 0x12345);
    [header.as_bytes(), payload].concat()
}

pub fn ip4(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = 20 + payload.len() as u16;
    let mut header = ipv4::Header::new(source.into(), destination.into(), protocol, 40, total);
    header.fill_checksum(&[]);
    [header.as_bytes(), payload].concat()
}

pub fn udp(len: usize) -> Vec<u8> {
    let header = [1234u16, 5678, 8 + len as u16, 0].map(u16::to_be_bytes).concat();
    let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
    [header, payload].concat()
}

/// An SRH over `payload`: `path` in the order of travel, `left` segments left.
pub fn with_srh(path: &[&str], left: u8, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let path: Vec<Ipv6Addr> = path.iter().map(|s| v6(s)).collect();
    let mut bytes = vec![0; 4096];
    let len = srh::Builder::new(next_header, &path).write(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes[3] = left;
    bytes.extend(payload);
    bytes
}
