//! The program and a worker, over the same tables.

use std::collections::BTreeMap;
use std::fmt::Write;

use nix::time::{ClockId, clock_gettime};
use underpass_engine::bpf::classic::Filter;
use underpass_engine::buffer::{HEADROOM, Pool, PortId};
use underpass_engine::counters::{Count, Direction, TcCount};
use underpass_engine::drops::DropReason;
use underpass_engine::in_kernel::records::MissCause;
use underpass_engine::tables::Writer;
use underpass_engine::worker::{Burst, Kept, Worker};
use underpass_packet::{ethernet, protocol};
use underpass_port::fast::{Fast, Hook, Matching, Verdict, arena::Arena};
use underpass_port::kernel_frames::{KernelFrames, OfDevice};

use crate::labels::{self, LABELS};
use crate::router::{DEVICES, FIRST_VLAN, LOCAL, Router};
use crate::tunnels::without_identification;
use crate::vlans::{tag, untagged};

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// The program forwarded it.
    Forwarded,
    /// The program dropped it.
    Dropped,
    /// It is for a worker.
    Missed,
    /// It would be for a worker.
    Lost,
    /// It is for the kernel.
    Kept,
}

pub struct Runner {
    pub router: Router,
    worker: Worker,
    pub fast: Fast,
    /// Where the program is that is looked at.
    pub hook: Hook,
    kernel_frames: KernelFrames,
    now: u64,
    left: Vec<u8>,
    /// Which packets are traced, and by which device they come in then.
    traced: Option<(Filter, Option<usize>, Matching)>,
    /// What the program did by itself, and how often.
    pub hits: BTreeMap<String, u64>,
}

impl Runner {
    /// In the namespace of this thread, which has the devices. `Err`: why there can be none.
    pub fn new(hook: Hook) -> Result<Self, String> {
        let kernel_frames = KernelFrames::new();
        if let Some(why) = kernel_frames.without_bpf() {
            return Err(why.to_owned());
        }
        let arena = Arena::new().map_err(|error| format!("no arena: {error}"))?;
        let (writer, tables, mut readers, _) = Writer::watched(1, 0, Some(arena.programs()));
        let places = writer.places().expect("room for the tables");
        let fast = Fast::load(arena, places, &kernel_frames).expect("the program");
        let worker = Worker::new(tables, readers.remove(0), Pool::with_slot_size(64, HEADROOM + 4096));
        let router = Router::new(writer);
        for ifindex in router.ifindexes {
            kernel_frames.set_device(ifindex, OfDevice::default()).expect("a device");
        }
        let (hits, traced) = (BTreeMap::new(), None);
        Ok(Self { router, worker, fast, hook, kernel_frames, now: 0, left: Vec::new(), traced, hits })
    }

    /// Has workers get all frames that the program does not carry, as of the ports of a bridge.
    pub fn give_all(&self) {
        for ifindex in self.router.ifindexes {
            self.kernel_frames
                .set_device(ifindex, OfDevice { all: true, ..OfDevice::default() })
                .expect("a device");
        }
    }

    /// Has packets traced that a filter matches and that come in by a device.
    pub fn trace(&mut self, filter: Filter, device: Option<usize>) {
        self.traced = None;
        let ifindex = device.map(|device| self.router.ifindexes[device]);
        let matching = self.fast.trace(Some(&filter), ifindex, [].into_iter()).expect("a filter");
        self.router.writer.set_aside(true);
        self.traced = Some((filter, device, matching));
    }

    fn is_traced(&self, device: usize, frame: &[u8]) -> bool {
        self.traced
            .as_ref()
            .is_some_and(|(filter, only, _)| only.is_none_or(|only| only == device) && filter.matches(frame))
    }

    /// What the program makes of a frame, if it sends it and what it makes of it is always the same.
    pub fn sends(&mut self, device: usize, frame: &[u8]) -> Option<Vec<u8>> {
        let before = self.router.writer.totals_of_programs().sent;
        self.fast.run(self.hook, frame, self.router.ifindexes[device], &mut self.left).expect("a run");
        let (link, bare) = self.router.enters(device, frame);
        let filtered = self.router.now_links[link].ingress.is_some();
        if self.router.writer.totals_of_programs().sent == before || filtered {
            return None;
        }
        let kind = self.router.leads(link, &bare);
        // Identifications differ; addresses that are made of others are not in the packet.
        let steady = !kind.contains(" into ") && !kind.contains("CSID");
        steady.then(|| self.left.clone())
    }

    /// Runs the program over a frame that comes in by a device; if it did what is to be done, has the worker do it too, and
    /// compares. `place` says where that is, if they differ.
    pub fn compare(&mut self, device: usize, frame: &[u8], place: &str) -> Came {
        let ifindex = self.router.ifindexes[device];
        let (link, bare) = self.router.enters(device, frame);
        self.fill_buckets(link);
        let before = self.counted();
        let misses = self.missed();
        let traced_before = self.router.writer.misses(MissCause::Traced);
        let ran = match &self.traced {
            Some((.., matching)) => self.fast.run_behind(matching, frame, ifindex, &mut self.left),
            None => self.fast.run(self.hook, frame, ifindex, &mut self.left),
        };
        let verdict =
            ran.unwrap_or_else(|error| panic!("{place}: {error}: {} bytes {}", frame.len(), hex(frame)));
        let after = self.counted();
        let missed = self.missed() - misses;
        let counted = difference(&before, &after);
        let received = counted[RECEIVED];
        let fail = |what: &str, more: String| -> ! {
            panic!(
                "{place}: {what}\n  in by {device}: {}\n  {verdict:?}, {missed} missed\n{more}",
                hex(frame)
            )
        };
        if self.traced.is_some() {
            let traced = self.is_traced(device, frame);
            let by_program = self.router.writer.misses(MissCause::Traced) != traced_before;
            if traced && received != 0 || !traced && by_program && tag(frame).is_none() {
                fail("is it traced?", format!("  {traced}"));
            }
        }
        if received == 0 {
            if counted.iter().any(|count| *count != 0) {
                fail("a packet that the program does not carry is counted", self.named(&counted));
            }
            // What the program may do is cut off what is behind the packet.
            if !frame.starts_with(&self.left) || self.left.len() < end(&bare) + frame.len() - bare.len() {
                fail("a packet that the program does not carry is changed", format!("  {}", hex(&self.left)));
            }
            if self.hook == Hook::Xdp {
                // The program at tcx sees it then.
                return match (verdict, missed) {
                    (Verdict::Kept, 0) => Came::Missed,
                    _ => fail("it does not go on", String::new()),
                };
            }
            let kept = self.kernel_frames.kept(ifindex, frame);
            return match (verdict, missed, kept) {
                (Verdict::Redirected, 1, Kept::No) if self.router.has_programs[device] => Came::Missed,
                // Of a VLAN that the kernel has no device for.
                (Verdict::Redirected, 1, Kept::Copy)
                    if self.router.has_programs[device] && tag(frame).is_some() =>
                {
                    Came::Missed
                }
                // No program could have carried it.
                (Verdict::Redirected, 0, Kept::No | Kept::Copy)
                    if self.router.leads(link, &bare) == LOCAL =>
                {
                    Came::Missed
                }
                // It ends in its tag: the kernel does not give it to programs.
                (Verdict::Kept, 0, _) if frame[12..14] == [0x81, 0x00] && tag(frame).is_none() => Came::Kept,
                // A worker's, and there is no device by which it gets it.
                (Verdict::Dropped, 0, Kept::No | Kept::Copy) if !self.router.has_programs[device] => {
                    Came::Lost
                }
                // Of a frame for both the kernel has it, and a copy goes to the worker.
                (Verdict::Kept, 0, Kept::Yes) | (Verdict::Kept, _, Kept::Copy) => Came::Kept,
                _ => fail("whose is it?", format!("  {kept:?}")),
            };
        }
        if missed != 0 {
            fail("missed and carried", String::new());
        }
        self.fill_buckets(link);
        let sent = self.work(device, frame);
        let by_worker = difference(&after, &self.counted());
        if counted != by_worker {
            let both = format!("program:\n{}worker:\n{}", self.named(&counted), self.named(&by_worker));
            fail("other counters", both);
        }
        let kind = self.router.leads(link, &bare);
        match (verdict, &sent[..]) {
            (Verdict::Redirected, [(port, bytes)]) => {
                let same = if kind.contains(" into ") {
                    let program = without_identification(&untagged(&self.left));
                    program.is_some()
                        && program == without_identification(&untagged(bytes))
                        && tag(&self.left) == tag(bytes)
                } else {
                    *bytes == self.left
                };
                if !same {
                    fail("other bytes", format!("  program {}\n  worker  {}", hex(&self.left), hex(bytes)));
                }
                let sends = |device: usize| counted[SENT_BY + COUNTS * device] == 1;
                if !sends(usize::from(*port)) {
                    fail("by another device", format!("worker by {port}\n{}", self.named(&counted)));
                }
                *self.hits.entry(self.out_of(kind, &bare)).or_default() += 1;
                let mut hit = |what: &str| *self.hits.entry(what.to_owned()).or_default() += 1;
                if self.router.now_links[link].ingress.is_some() {
                    hit("through filters");
                }
                match (link >= FIRST_VLAN, tag(&self.left)) {
                    (true, Some(_)) => hit("from VLAN to VLAN"),
                    (true, None) => hit("out of a VLAN"),
                    (false, Some((ethernet::SERVICE_VLAN, _))) => hit("into a VLAN of 802.1ad"),
                    (false, Some(_)) => hit("into a VLAN"),
                    (false, None) => {}
                }
                Came::Forwarded
            }
            (Verdict::Dropped, []) => {
                let name =
                    |reason: DropReason| counted[counted.len() - DropReason::ALL.len() + reason as usize];
                let kind = match (name(DropReason::Police), name(DropReason::TcAction)) {
                    (1, _) => "police".to_owned(),
                    (_, 1) => "gact".to_owned(),
                    _ => kind,
                };
                *self.hits.entry(kind).or_default() += 1;
                Came::Dropped
            }
            _ => fail("another verdict", format!("worker: {sent:?}\n{}", self.named(&counted))),
        }
    }

    /// A packet for the router has come out of a tunnel.
    fn out_of(&self, kind: String, frame: &[u8]) -> String {
        if kind != LOCAL {
            return kind;
        }
        let over6 = frame.get(12..14) == Some(&ethernet::IPV6.to_be_bytes());
        let at = |at: usize| frame.get(at).copied().unwrap_or_default();
        let (protocol, limit) = match at(if over6 { 20 } else { 23 }) {
            protocol::DESTINATION_OPTIONS if over6 => (at(54), ", limit"),
            protocol => (protocol, ""),
        };
        let what = match protocol {
            protocol::UDP => "UDP",
            protocol::GRE => "GRE",
            protocol::IPV4 => "IPv4",
            _ => "IPv6",
        };
        let udp = if over6 { 54 } else { 34 } + if limit.is_empty() { 0 } else { 8 };
        let sum = if what == "UDP" && (at(udp + 6), at(udp + 7)) != (0, 0) { ", sum" } else { "" };
        format!("{what} out of {}{limit}{sum}", if over6 { "IPv6" } else { "IPv4" })
    }

    /// Fills the buckets that the filters of a link take from.
    fn fill_buckets(&mut self, link: usize) {
        let router = &mut self.router;
        if let Some(hook) = router.now_links[link].ingress {
            router.filters.fill(hook, &mut router.writer);
        }
    }

    /// What leaves of a frame by a worker.
    pub fn work(&mut self, device: usize, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let mut burst = Burst::new();
        let mut packet = self.worker.pool().take().unwrap();
        packet.set(HEADROOM, frame).unwrap();
        burst.push(packet);
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
        self.now = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
        self.worker.process(PortId(device as u16), &mut burst, self.now, None);
        let mut out = Vec::new();
        for port in 0..DEVICES as u16 {
            for packet in self.worker.sent(PortId(port)).collect::<Vec<_>>() {
                out.push((port, packet.bytes().to_vec()));
                self.worker.pool().give(packet);
            }
        }
        out
    }

    fn missed(&self) -> u64 {
        MissCause::ALL.iter().map(|cause| self.router.writer.misses(*cause)).sum()
    }

    /// Why packets were missed, and how many.
    pub fn misses(&self) -> String {
        MissCause::ALL
            .iter()
            .map(|cause| format!("{} {}, ", cause.name(), self.router.writer.misses(*cause)))
            .collect()
    }

    /// Every counter, in the order of [`Self::names`].
    fn counted(&self) -> Vec<u64> {
        let writer = &self.router.writer;
        let totals = writer.totals();
        let mut all = vec![totals.received, totals.sent, totals.generated, totals.delivered];
        let mut push = |Count { packets, bytes, errors }: Count| all.extend([packets, bytes, errors]);
        for link in &self.router.links {
            let link = *link;
            push(writer.link_count(link, Direction::Receive));
            push(writer.link_count(link, Direction::Transmit));
        }
        let filters = &self.router.filters;
        self.router.counters.iter().for_each(|counter| push(writer.count(*counter)));
        filters.counters.iter().for_each(|counter| push(writer.count(*counter)));
        for counter in &filters.tc_counters {
            let TcCount { packets, bytes, drops, overlimits, .. } = writer.tc_count(*counter);
            all.extend([packets, bytes, drops, overlimits]);
        }
        for link in &self.router.links {
            all.extend([Direction::Receive, Direction::Transmit].map(|way| writer.link_drops(*link, way)));
        }
        for link in &self.router.links {
            let count = writer.mpls_count(*link);
            all.extend([count.rx_packets, count.rx_bytes, count.tx_packets, count.tx_bytes]);
        }
        for label in 0..LABELS {
            let Count { packets, bytes, errors } = writer.label_count(labels::number(label));
            all.extend([packets, bytes, errors]);
        }
        all.extend(DropReason::ALL.iter().map(|reason| writer.dropped(*reason)));
        all
    }

    /// Those that are not 0, a line each.
    fn named(&self, counted: &[u64]) -> String {
        let mut names: Vec<String> = ["received", "sent", "generated", "delivered"].map(str::to_owned).into();
        let of_count = |name: String| ["packets", "bytes", "errors"].map(|what| format!("{name} {what}"));
        for link in 0..self.router.links.len() {
            names.extend(of_count(format!("device {link} received")));
            names.extend(of_count(format!("device {link} sent")));
        }
        (0..self.router.counters.len()).for_each(|n| names.extend(of_count(format!("SID counter {n}"))));
        let filters = &self.router.filters;
        (0..filters.counters.len()).for_each(|n| names.extend(of_count(format!("counter of filters {n}"))));
        for n in 0..filters.tc_counters.len() {
            let counts = ["packets", "bytes", "drops", "overlimits"];
            names.extend(counts.map(|what| format!("counter of actions {n} {what}")));
        }
        for link in 0..self.router.links.len() {
            names.extend(["received", "sent"].map(|way| format!("device {link} {way} drops")));
        }
        for link in 0..self.router.links.len() {
            let of_link = |what| format!("device {link} labelled {what}");
            names.extend(["packets received", "bytes received", "packets sent", "bytes sent"].map(of_link));
        }
        (0..LABELS).for_each(|label| names.extend(of_count(format!("label {}", labels::number(label)))));
        names.extend(DropReason::ALL.iter().map(|reason| reason.name().to_owned()));
        let mut text = String::new();
        for (name, count) in names.iter().zip(counted).filter(|(_, count)| **count != 0) {
            writeln!(text, "  {name}: {count}").unwrap();
        }
        text
    }
}

/// Where [`Runner::counted`] has what came in, and what the first device has sent; how many counters a device has.
const RECEIVED: usize = 0;
const SENT_BY: usize = 4 + 3;
const COUNTS: usize = 6;

fn difference(before: &[u64], after: &[u64]) -> Vec<u64> {
    before.iter().zip(after).map(|(before, after)| after.wrapping_sub(*before)).collect()
}

/// Where the packet in a frame ends, by its header.
fn end(frame: &[u8]) -> usize {
    let word =
        |at: usize| frame.get(at..at + 2).map_or(0, |word| usize::from(word[0]) << 8 | usize::from(word[1]));
    let len = match word(12) {
        0x0800 => word(16),
        0x86dd => 40 + word(18),
        _ => frame.len(),
    };
    (14 + len).min(frame.len())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
