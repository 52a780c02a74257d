//! What a worker does for those who follow packets: it picks those that a filter of one of them takes as they come in, and notes
//! the steps of their paths until they have left, been delivered or been dropped.
//!
//! A packet that is followed has a number in its [`Tag`](underpass_engine::buffer::Tag), and so has what is made of it:
//! fragments, copies, errors. While one is on its way, the packets of its worker go step by step, as the fast path
//! tells of no steps. A worker that follows nothing asks once a burst whether it is to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::SyncSender,
    },
    time::{SystemTime, UNIX_EPOCH},
};

use underpass_engine::{
    bpf::classic::Filter,
    buffer::{Packet, PortId, Tag},
    limiter::Limiter,
    trace::{Event, Watch},
    worker::Burst,
};

use crate::packet_path;

/// Packets of a worker that are followed, at a time; and those that wait to be shown to one who follows.
pub const FOLLOWED: usize = 256;
/// How many may follow packets of a router at a time.
pub const WATCHERS: usize = 8;
/// Steps that are kept of a path, and frames: what goes round in circles has many.
const STEPS: usize = 128;
const FRAMES: usize = 64;
/// A path of which nothing was heard for so long is taken to have ended: nanoseconds.
const FORGOTTEN: u64 = 10_000_000_000;
/// Bits of a packet's number that say its place; the others tell it from those that were there before.
const PLACE: u32 = FOLLOWED.trailing_zeros();

/// Which packets somebody follows, for all workers; and what became of those that should have been.
#[derive(Debug)]
pub struct Spec {
    /// All packets, if there is none.
    pub filter: Option<Filter>,
    /// The port that they come in by; any, if it is none.
    pub port: Option<PortId>,
    /// Whether the frames are wanted too.
    pub frames: bool,
    /// Only paths that end in a drop are reported.
    pub drops: bool,
    /// Packets that a worker follows in a second at most.
    pub rate: u32,
    /// Paths of each worker that have not been shown yet.
    pub waiting: Vec<AtomicUsize>,
    /// Packets that matched and were not followed.
    pub missed: AtomicU64,
}

/// A step of a path.
#[derive(Debug, Clone)]
pub struct Step {
    /// Nanoseconds since the packet came in.
    pub after: u64,
    /// What happened.
    pub event: Event,
    /// What it says of the packet.
    pub shown: String,
}

/// A frame as it came in or left.
#[derive(Debug, Clone)]
pub struct Frame {
    /// Nanoseconds since the packet came in.
    pub after: u64,
    /// Whether it left.
    pub left: bool,
    /// The port.
    pub port: PortId,
    /// The frame.
    pub bytes: Box<[u8]>,
}

/// A packet's path, as far as it went.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The worker.
    pub worker: usize,
    /// The port that it came in by.
    pub port: PortId,
    /// When, in nanoseconds since 1970.
    pub time: u64,
    /// In order.
    pub steps: Vec<Step>,
    /// The frame that came in, and those that left.
    pub frames: Vec<Frame>,
    /// Whether it came to its end; or nothing more was heard of it.
    pub ended: bool,
}

/// Somebody who follows packets.
struct Watcher {
    spec: Arc<Spec>,
    sink: SyncSender<Arc<Seen>>,
    limiter: Limiter,
}

/// Those who follow a packet, by their places: a bit each.
type Watchers = u8;

const _: () = assert!(WATCHERS <= Watchers::BITS as usize);

/// A path that goes on.
struct Followed {
    number: u32,
    /// Who follows it.
    by: Watchers,
    /// Whether one of them wants the frames.
    frames: bool,
    /// When the packet came in, and its last step was, by the worker's clock.
    began: u64,
    last: u64,
    seen: Seen,
    /// Parts of it that are in queues.
    queued: usize,
    /// The turn in which it began to wait for a neighbour.
    held: Option<u64>,
}

/// A worker's part of following.
pub struct Tracer {
    watchers: [Option<Watcher>; WATCHERS],
    worker: usize,
    places: Vec<Option<Followed>>,
    /// Places that are taken.
    taken: Vec<usize>,
    /// Places that are free.
    free: Vec<usize>,
    /// The number of the packet that was followed last, without its place.
    last: u32,
    /// By the worker's clock.
    now: u64,
    /// Counts bursts and what else may move packets on.
    turns: u64,
}

impl Tracer {
    /// For this worker. `last` is what the tracer before this one gave as [`Tracer::last`].
    pub fn new(worker: usize, last: u32) -> Self {
        Self {
            watchers: Default::default(),
            worker,
            places: (0..FOLLOWED).map(|_| None).collect(),
            taken: Vec::new(),
            free: (0..FOLLOWED).rev().collect(),
            last,
            now: 0,
            turns: 0,
        }
    }

    /// Somebody follows packets from now on; nobody does for whom there is no place, as the end of `sink` says.
    pub fn add(&mut self, spec: Arc<Spec>, sink: SyncSender<Arc<Seen>>) {
        if let Some(free) = self.watchers.iter_mut().find(|watcher| watcher.is_none()) {
            let limiter = Limiter::new(spec.rate.into(), spec.rate.min(FOLLOWED as u32).into());
            *free = Some(Watcher { spec, sink, limiter });
        }
    }

    /// Somebody follows no more: what is still on its way is reported as far as it got. Whether others follow.
    pub fn remove(&mut self, spec: &Arc<Spec>) -> bool {
        let is_it = |watcher: &Option<Watcher>| {
            watcher.as_ref().is_some_and(|watcher| Arc::ptr_eq(&watcher.spec, spec))
        };
        if let Some(place) = self.watchers.iter().position(is_it) {
            self.leave(1 << place);
            self.watchers[place] = None;
        }
        self.watchers.iter().any(Option::is_some)
    }

    /// Reports to these what is on its way, as far as it got.
    fn leave(&mut self, these: Watchers) {
        for place in std::mem::take(&mut self.taken) {
            let Some(mut packet_path) = self.places.get_mut(place).and_then(Option::take) else { continue };
            let leaving = packet_path.by & these;
            packet_path.by &= !these;
            if leaving != 0 {
                packet_path.seen.ended = false;
                self.tell(leaving, Arc::new(packet_path.seen.clone()));
                packet_path.seen.ended = true;
            }
            if packet_path.by == 0 {
                self.free.push(place);
            } else if let Some(empty) = self.places.get_mut(place) {
                *empty = Some(packet_path);
                self.taken.push(place);
            }
        }
    }

    /// What the next tracer is to begin with: what is in a queue keeps its number.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// Whether a packet is on its way that is followed.
    pub fn follows(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Begins a burst that came in by `port`: picks what is to be followed. Whether its packets are to go step by step.
    pub fn begin(&mut self, port: PortId, burst: &mut Burst, now: u64) -> bool {
        self.turn(now);
        for packet in burst.iter_mut() {
            let by = self.who_follows(port, packet);
            if by != 0 {
                self.follow(port, packet, by);
            }
        }
        self.follows()
    }

    /// Those who follow a packet that comes in by a port, and for whom there is room.
    fn who_follows(&mut self, port: PortId, packet: &Packet) -> Watchers {
        let mut by = 0;
        for (place, watcher) in self.watchers.iter_mut().enumerate() {
            let Some(Watcher { spec, limiter, .. }) = watcher else { continue };
            let matches = spec.port.is_none_or(|only| only == port)
                && spec.filter.as_ref().is_none_or(|filter| filter.matches(packet.bytes()));
            let Some(waiting) = spec.waiting.get(self.worker).filter(|_| matches) else { continue };
            if waiting.load(Relaxed) < FOLLOWED && !self.free.is_empty() && limiter.allow(self.now) {
                waiting.fetch_add(1, Relaxed);
                by |= 1 << place;
            } else {
                spec.missed.fetch_add(1, Relaxed);
            }
        }
        by
    }

    /// Begins what may move packets on that came in before.
    pub fn turn(&mut self, now: u64) -> &mut Self {
        self.now = now;
        self.turns += 1;
        self
    }

    fn follow(&mut self, port: PortId, packet: &mut Packet, by: Watchers) {
        let Some(place) = self.free.pop() else { return };
        // Not 0, whatever the place is.
        self.last = if self.last >= u32::MAX >> PLACE { 1 } else { self.last + 1 };
        let number = self.last << PLACE | place as u32;
        packet.set_tag(Tag { trace: number, ..packet.tag() });
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let mut seen =
            Seen { worker: self.worker, port, time, steps: Vec::new(), frames: Vec::new(), ended: true };
        let frames = members(&self.watchers, by).any(|watcher| watcher.spec.frames);
        if frames {
            seen.frames.push(Frame { after: 0, left: false, port, bytes: packet.bytes().into() });
        }
        let (began, last) = (self.now, self.now);
        if let Some(free) = self.places.get_mut(place) {
            *free = Some(Followed { number, by, frames, began, last, seen, queued: 0, held: None });
            self.taken.push(place);
        }
    }

    /// Ends a burst, or what moved packets on: paths that have ended are reported.
    pub fn end(&mut self) {
        let (now, mut at) = (self.now, 0);
        while let Some(&place) = self.taken.get(at) {
            let packet_path = self.places.get(place).and_then(Option::as_ref);
            let ended =
                packet_path.is_none_or(|packet_path| packet_path.queued == 0 && packet_path.held.is_none());
            if ended
                || packet_path.is_some_and(|packet_path| now.saturating_sub(packet_path.last) > FORGOTTEN)
            {
                self.taken.swap_remove(at);
                self.report(place, ended);
            } else {
                at += 1;
            }
        }
    }

    fn report(&mut self, place: usize, ended: bool) {
        self.free.push(place);
        let Some(mut packet_path) = self.places.get_mut(place).and_then(Option::take) else { return };
        packet_path.seen.ended = ended;
        self.tell(packet_path.by, Arc::new(packet_path.seen));
    }

    /// Reports a path to these.
    fn tell(&self, by: Watchers, seen: Arc<Seen>) {
        let dropped = |step: &Step| matches!(step.event, Event::Dropped(_) | Event::Icmp(..));
        for Watcher { spec, sink, .. } in members(&self.watchers, by) {
            let wanted = !spec.drops || seen.steps.iter().any(dropped);
            // Nobody listens any more, or there is no room: never a reason to wait.
            if !wanted || sink.try_send(Arc::clone(&seen)).is_err() {
                if let Some(waiting) = spec.waiting.get(self.worker) {
                    waiting.fetch_sub(1, Relaxed);
                }
                spec.missed.fetch_add(u64::from(wanted), Relaxed);
            }
        }
    }
}

/// Those of the watchers that bits say.
fn members(watchers: &[Option<Watcher>; WATCHERS], by: Watchers) -> impl Iterator<Item = &Watcher> {
    watchers
        .iter()
        .enumerate()
        .filter(move |(place, _)| by >> place & 1 != 0)
        .filter_map(|(_, watcher)| watcher.as_ref())
}

/// What is still on its way is reported as far as it got.
impl Drop for Tracer {
    fn drop(&mut self) {
        self.leave(Watchers::MAX);
    }
}

impl Watch for Tracer {
    fn step(&mut self, event: Event, packet: &Packet) {
        let number = packet.tag().trace;
        let place = (number & (FOLLOWED as u32 - 1)) as usize;
        let Some(Some(packet_path)) = self.places.get_mut(place).filter(|_| number != 0) else { return };
        // Another packet's, of long ago.
        if packet_path.number != number {
            return;
        }
        let after = self.now.saturating_sub(packet_path.began);
        packet_path.last = self.now;
        if packet_path.held.is_some_and(|since| since != self.turns) {
            packet_path.held = None;
        }
        match event {
            Event::Queued(_) => packet_path.queued += 1,
            Event::Dequeued(_) => packet_path.queued = packet_path.queued.saturating_sub(1),
            // One of its parts that waited does so no more.
            Event::Dropped(_) => packet_path.queued = packet_path.queued.saturating_sub(1),
            Event::Held => packet_path.held = Some(self.turns),
            _ => {}
        }
        let wants_frames = packet_path.frames;
        let Seen { steps, frames, .. } = &mut packet_path.seen;
        if let Event::Sent(port) = event
            && wants_frames
            && frames.len() < FRAMES
        {
            frames.push(Frame { after, left: true, port, bytes: packet.bytes().into() });
        }
        if steps.len() < STEPS {
            let shown = packet_path::packet(&event, packet);
            steps.push(Step { after, event, shown });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use underpass_engine::{bpf::classic::Instruction, buffer::Pool, drops::DropReason, tables::LinkId};

    use super::*;

    fn tracer(rate: u32, drops: bool, room: usize) -> (Tracer, Receiver<Arc<Seen>>, Arc<Spec>) {
        let mut tracer = Tracer::new(0, 0);
        let (seen, spec) = add(&mut tracer, 7, (rate, drops, room));
        (tracer, seen, spec)
    }

    /// Somebody follows frames whose first byte is this.
    fn add(
        tracer: &mut Tracer,
        first: u32,
        (rate, drops, room): (u32, bool, usize),
    ) -> (Receiver<Arc<Seen>>, Arc<Spec>) {
        let number = |code, jt, jf, k| Instruction { code, jt, jf, k };
        let program =
            [number(0x30, 0, 0, 0), number(0x15, 0, 1, first), number(6, 0, 0, 1), number(6, 0, 0, 0)];
        let spec = Arc::new(Spec {
            filter: Some(Filter::new(&program).unwrap()),
            port: Some(PortId(1)),
            frames: true,
            drops,
            rate,
            waiting: vec![AtomicUsize::new(0)],
            missed: AtomicU64::new(0),
        });
        let (sink, seen) = sync_channel(room);
        tracer.add(Arc::clone(&spec), sink);
        (seen, spec)
    }

    fn packet(pool: &mut Pool, first: u8) -> Packet {
        let mut packet = pool.take().unwrap();
        packet.set(200, &[first; 60]).unwrap();
        packet
    }

    #[test]
    fn only_what_matches_is_followed_until_it_leaves_its_queue() {
        let (mut tracer, seen, spec) = tracer(1000, false, 8);
        let mut pool = Pool::new(8);
        let mut burst: Burst = [7, 8, 7].map(|first| packet(&mut pool, first)).into_iter().collect();
        assert!(!tracer.begin(PortId(0), &mut burst, 1_000_000_000), "another port");
        assert!(tracer.begin(PortId(1), &mut burst, 1_000_000_000));
        assert!(burst[1].tag().trace == 0 && burst[0].tag().trace != burst[2].tag().trace);
        for packet in &burst {
            tracer.step(Event::Sent(PortId(2)), packet);
        }
        tracer.step(Event::Queued(LinkId(3)), &burst[2]);
        tracer.end();
        let first = seen.try_recv().unwrap();
        assert_eq!((first.steps.len(), first.frames.len(), first.ended), (1, 2, true));
        assert!(seen.try_recv().is_err() && tracer.follows());

        tracer.turn(1_005_000_000);
        tracer.step(Event::Dequeued(LinkId(3)), &burst[2]);
        tracer.end();
        let second = seen.try_recv().unwrap();
        let steps: Vec<_> = second.steps.iter().map(|step| (step.after, step.event.clone())).collect();
        assert_eq!(steps[2], (5_000_000, Event::Dequeued(LinkId(3))));
        // Its number is nobody's any more.
        tracer.step(Event::Sent(PortId(2)), &burst[2]);
        tracer.end();
        assert!(seen.try_recv().is_err() && !tracer.follows());
        assert_eq!((spec.waiting[0].load(Relaxed), spec.missed.load(Relaxed)), (2, 0));
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let (mut tracer, seen, spec) = tracer(2, false, 1);
        let mut pool = Pool::new(8);
        let mut burst: Burst = [7, 7, 7].map(|first| packet(&mut pool, first)).into_iter().collect();
        tracer.begin(PortId(1), &mut burst, 1);
        tracer.end();
        // One beyond the rate, one beyond the channel.
        assert_eq!((seen.try_iter().count(), spec.missed.load(Relaxed)), (1, 2));
        assert_eq!(spec.waiting[0].load(Relaxed), 1);
    }

    #[test]
    fn only_drops() {
        let (mut tracer, seen, spec) = tracer(100, true, 8);
        let mut pool = Pool::new(8);
        let mut burst: Burst = [7, 7].map(|first| packet(&mut pool, first)).into_iter().collect();
        tracer.begin(PortId(1), &mut burst, 1);
        tracer.step(Event::Dropped(DropReason::NoRoute), &burst[1]);
        tracer.end();
        assert_eq!((seen.try_iter().count(), spec.missed.load(Relaxed)), (1, 0));
        assert_eq!(spec.waiting[0].load(Relaxed), 1);
    }

    /// A packet that waits for a neighbour is followed when that is known; one that is forgotten is told of as it is.
    #[test]
    fn held_and_forgotten() {
        let (mut tracer, seen, _spec) = tracer(100, false, 8);
        let mut pool = Pool::new(8);
        let mut burst: Burst = [7, 7].map(|first| packet(&mut pool, first)).into_iter().collect();
        tracer.begin(PortId(1), &mut burst, 1);
        burst.iter().for_each(|packet| tracer.step(Event::Held, packet));
        tracer.end();
        assert!(seen.try_recv().is_err());
        tracer.turn(2_000_000_000);
        tracer.step(Event::Sent(PortId(0)), &burst[0]);
        tracer.end();
        assert!(seen.try_recv().unwrap().ended);
        tracer.turn(2_000_000_001 + FORGOTTEN);
        tracer.end();
        assert!(!seen.try_recv().unwrap().ended && !tracer.follows());
    }

    /// Each is told of its own packets alone, and of one that several follow each is; who goes is told of what is under way.
    #[test]
    fn several_follow() {
        let (mut tracer, sevens, spec) = tracer(100, false, 8);
        let (again, other) = add(&mut tracer, 7, (100, true, 8));
        let (eights, third) = add(&mut tracer, 8, (100, false, 8));
        let mut pool = Pool::new(8);
        let mut burst: Burst = [7, 8, 9].map(|first| packet(&mut pool, first)).into_iter().collect();
        assert!(tracer.begin(PortId(1), &mut burst, 1));
        assert_eq!(burst[2].tag().trace, 0);
        for packet in &burst {
            tracer.step(Event::Sent(PortId(2)), packet);
        }
        tracer.step(Event::Queued(LinkId(3)), &burst[0]);
        tracer.end();
        assert_eq!((eights.try_iter().count(), sevens.try_iter().count()), (1, 0));

        assert!(tracer.remove(&spec) && tracer.follows());
        let told: Vec<_> = sevens.try_iter().map(|seen| (seen.steps.len(), seen.ended)).collect();
        assert_eq!(told, [(2, false)]);
        tracer.step(Event::Dropped(DropReason::NoRoute), &burst[0]);
        tracer.end();
        let told: Vec<_> = again.try_iter().map(|seen| (seen.steps.len(), seen.ended)).collect();
        assert_eq!(told, [(3, true)]);
        assert!(tracer.remove(&other) && !tracer.follows() && sevens.try_recv().is_err());
        assert!(!tracer.remove(&third));
    }

    /// There is room for so many, and no more.
    #[test]
    fn who_has_no_place_hears_it() {
        let (mut tracer, ..) = tracer(100, false, 8);
        let kept: Vec<_> = (1..WATCHERS).map(|_| add(&mut tracer, 7, (100, false, 8))).collect();
        let (one_more, _) = add(&mut tracer, 7, (100, false, 8));
        assert!(one_more.try_recv().is_err_and(|error| error == std::sync::mpsc::TryRecvError::Disconnected));
        assert_eq!(kept.len(), WATCHERS - 1);
    }
}
