//! Three devices in a network namespace, and the far ends of their cables in another: what frames of a case come and leave
//! by, as ports of AF_XDP or AF_PACKET.

use std::time::{Duration, Instant};

use underpass_daemon::testbed::{Namespace, join};
use underpass_engine::buffer::{HEADROOM, Packet, Pool};
use underpass_engine::worker::{Burst, Worker};
use underpass_port::index_of;
use underpass_port::kernel_frames::{KernelFrames, OfDevice};
use underpass_port::live::{Device, Driver, LivePort};
use underpass_port::xdp::Memory;

use super::Carrier;

/// The longest frame that the devices take, and the shortest.
const LENGTHS: std::ops::RangeInclusive<usize> = 14..=1514;
/// How long a frame may take by cable.
const PATIENCE: Duration = Duration::from_secs(5);

/// A namespace's ends of the cables, its memory and its frames.
struct End {
    ports: Vec<LivePort>,
    _devices: Vec<Device>,
    _namespace: Namespace,
}

impl End {
    /// Attaches `p0`, `p1` and `p2`, all frames of which come here.
    fn attach(namespace: Namespace, driver: Driver, memory: &Memory, pool: &mut Pool) -> Self {
        let kernel_frames = KernelFrames::new();
        let open = || {
            ["p0", "p1", "p2"].map(|name| {
                let of_device = OfDevice { all: true, ..OfDevice::default() };
                kernel_frames.set_device(index_of(name).unwrap(), of_device).unwrap();
                let mut device = Device::attach(name, driver, &kernel_frames).unwrap();
                device.share_among(1);
                let queues: Vec<u32> = (0..device.queues()).collect();
                let port = device.port(&queues, 1500, memory, pool).unwrap();
                (port, device)
            })
        };
        let (ports, devices) = namespace.enter(open).unwrap().into_iter().unzip();
        Self { ports, _devices: devices, _namespace: namespace }
    }

    /// The next frames of a port, as many as `wanted`.
    fn receive(&mut self, port: usize, wanted: usize, pool: &mut Pool) -> Vec<Packet> {
        let (mut got, mut burst, deadline) = (Vec::new(), Burst::new(), Instant::now() + PATIENCE);
        while got.len() < wanted {
            assert!(Instant::now() < deadline, "p{port}: {} frames of {wanted} came", got.len());
            self.ports[port].receive(pool, &mut burst);
            got.extend(burst.drain(..));
            // What has been sent is finished, its slots come back.
            self.ports[port].send(pool, std::iter::empty());
        }
        got
    }
}

/// Cables between the ports of a router and what sends and receives.
pub struct Wire {
    near: End,
    far: End,
    far_pool: Pool,
    near_pool: Option<Pool>,
    /// Frames that came by cable.
    pub carried: usize,
}

impl Wire {
    /// Lays three cables, whose near ends are attached with `driver`.
    pub fn lay(driver: Driver) -> Self {
        let [near, far] = ["near", "far"].map(|name| Namespace::new(name).unwrap());
        for name in ["p0", "p1", "p2"] {
            join(&near, name, &far, name).unwrap();
        }
        for namespace in [&near, &far] {
            // The kernel sends nothing by itself.
            namespace
                .run(
                    "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
                     for dev in p0 p1 p2; do ip link set $dev arp off up; done",
                )
                .unwrap();
        }
        let (memory, mut near_pool) = Memory::new(4096, 64).unwrap();
        let near = End::attach(near, driver, &memory, &mut near_pool);
        let (memory, mut far_pool) = Memory::new(4096, 64).unwrap();
        let far = End::attach(far, Driver::Packet, &memory, &mut far_pool);
        Self { near, far, far_pool, near_pool: Some(near_pool), carried: 0 }
    }

    /// Takes back the pool of a worker, for the next one.
    pub fn reuse(&mut self, worker: &mut Worker) {
        self.near_pool = Some(std::mem::replace(worker.pool(), Pool::new(0)));
    }
}

impl Carrier for Wire {
    fn pool(&mut self) -> Pool {
        self.near_pool.take().unwrap()
    }

    fn bring(&mut self, port: usize, frame: &[u8], pool: &mut Pool) -> Packet {
        if !LENGTHS.contains(&frame.len()) {
            let mut packet = pool.take_large().unwrap();
            packet.set(HEADROOM, frame).unwrap();
            return packet;
        }
        let mut sent = self.far_pool.take().unwrap();
        sent.set(HEADROOM, frame).unwrap();
        self.far.ports[port].send(&mut self.far_pool, std::iter::once(sent));
        self.carried += 1;
        let mut got = self.near.receive(port, 1, pool);
        assert_eq!(got.len(), 1, "p{port}: more frames than were sent");
        got.remove(0)
    }

    fn take_away(&mut self, port: usize, packets: Vec<Packet>, pool: &mut Pool) -> Vec<Vec<u8>> {
        let lengths: Vec<usize> = packets.iter().map(Packet::len).collect();
        if lengths.iter().any(|length| !LENGTHS.contains(length)) {
            let frames = packets.iter().map(|packet| packet.bytes().to_vec()).collect();
            packets.into_iter().for_each(|packet| pool.give(packet));
            return frames;
        }
        self.near.ports[port].send(pool, packets.into_iter());
        let got = self.far.receive(port, lengths.len(), &mut self.far_pool);
        let frames = got.iter().map(|packet| packet.bytes().to_vec()).collect();
        got.into_iter().for_each(|packet| self.far_pool.give(packet));
        frames
    }
}
