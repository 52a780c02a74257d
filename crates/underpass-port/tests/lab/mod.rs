//! Network namespaces for tests: each is a thread's own and ends with it. Devices in it are made by `ip`.

#![allow(unsafe_code)]
#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use underpass_engine::buffer::{HEADROOM, Offload, Packet, Pool, Segment, SegmentKind};
use underpass_engine::worker::Burst;
use underpass_packet::checksum::{self, Sum};
use underpass_port::index_of;
use underpass_port::kernel_frames::{KernelFrames, OfDevice};
use underpass_port::live::{Device, Driver, LivePort};
use underpass_port::xdp::Memory;

/// Whether there may be namespaces. Where not, says that `test` is skipped.
pub fn may(test: &str) -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    // SAFETY: no memory is passed; only this thread, which ends, changes its namespace.
    let may = || thread::spawn(|| unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }).join().unwrap_or(false);
    let may = *MAY.get_or_init(may);
    if !may {
        eprintln!("SKIPPED {test}: needs the right to make network namespaces");
    }
    may
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace, with a thread in it.
pub struct Namespace {
    pub thread: i32,
    jobs: Option<Sender<Job>>,
    handle: Option<JoinHandle<()>>,
}

impl Namespace {
    pub fn new() -> Self {
        let (jobs, todo) = channel::<Job>();
        let (report, id) = channel();
        let handle = thread::spawn(move || {
            // SAFETY: no memory is passed.
            let made = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(made, 0, "unshare");
            // SAFETY: no memory is passed.
            report.send(unsafe { libc::gettid() }).unwrap();
            todo.into_iter().for_each(|job| job());
        });
        Self { thread: id.recv().unwrap(), jobs: Some(jobs), handle: Some(handle) }
    }

    /// A further thread in the namespace.
    pub fn beside(&self) -> Self {
        let (jobs, todo) = channel::<Job>();
        let (report, id) = channel();
        let path = format!("/proc/self/task/{}/ns/net", self.thread);
        let handle = thread::spawn(move || {
            let namespace = std::fs::File::open(path).unwrap();
            // SAFETY: no memory is passed.
            let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(entered, 0, "setns");
            // SAFETY: no memory is passed.
            report.send(unsafe { libc::gettid() }).unwrap();
            todo.into_iter().for_each(|job| job());
        });
        Self { thread: id.recv().unwrap(), jobs: Some(jobs), handle: Some(handle) }
    }

    /// Does `job` in the namespace and returns what it returns.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(job).recv().expect("the job failed")
    }

    /// Starts `job` in the namespace; its result comes by the channel.
    pub fn start<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> std::sync::mpsc::Receiver<T> {
        let (result, answer) = channel();
        let jobs = self.jobs.as_ref().unwrap();
        jobs.send(Box::new(move || drop(result.send(job())))).unwrap();
        answer
    }

    /// Runs `ip` with these words, a line each.
    pub fn ip(&self, lines: &str) {
        let lines = lines.to_owned();
        self.run(move || lines.lines().map(str::trim).filter(|line| !line.is_empty()).for_each(ip));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.jobs.take());
        let _ = self.handle.take().unwrap().join();
    }
}

/// Runs `ip` in the namespace of this thread.
pub fn ip(line: &str) {
    let output = Command::new("ip").args(line.split_whitespace()).output().expect("ip");
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a veth pair between two namespaces, with these link-layer addresses, up and without IPv6 of its own.
pub fn veth(a: (&Namespace, &str, &str), b: (&Namespace, &str, &str)) {
    let (of_a, of_b) = (a.0.thread, b.0.thread);
    a.0.ip(&format!(
        "link add {} address {} netns {of_a} type veth peer name {} address {} netns {of_b}",
        a.1, a.2, b.1, b.2
    ));
    for (namespace, name, _) in [a, b] {
        namespace.ip(&format!("link set {name} addrgenmode none up"));
    }
    // The carrier follows.
    thread::sleep(Duration::from_millis(50));
}

/// What a forwarder saw.
#[derive(Default, Debug, Clone, Copy)]
pub struct Seen {
    pub packets: u64,
    /// The longest packet.
    pub longest: usize,
    /// Packets whose checksum was not finished.
    pub unfinished: u64,
    /// What both ports dropped and cut.
    pub cut: u64,
    /// What they put to others.
    pub coalesced: u64,
    pub dropped: u64,
    /// Slots that did not come back.
    pub lost: usize,
}

/// A forwarder between two ports that runs until it is told to stop.
pub struct Forwarder {
    stop: Arc<AtomicBool>,
    seen: std::sync::mpsc::Receiver<Seen>,
}

impl Forwarder {
    /// Starts it in the namespace of `router`; `open` makes its ports there.
    pub fn start(
        router: &Namespace,
        open: impl FnOnce(&Memory, &mut Pool) -> [LivePort; 2] + Send + 'static,
    ) -> Self {
        Self::start_changing(router, open, |_, _| ())
    }

    /// As [`Forwarder::start`]; `change` changes each packet, which came in by the port of this number.
    pub fn start_changing(
        router: &Namespace,
        open: impl FnOnce(&Memory, &mut Pool) -> [LivePort; 2] + Send + 'static,
        change: impl Fn(usize, &mut Packet) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, started) = channel();
        let stopped = Arc::clone(&stop);
        let seen = router.start(move || {
            let (memory, mut pool) = Memory::new(8192, 256).unwrap();
            let slots = pool.available() + pool.available_large();
            let mut ports = open(&memory, &mut pool);
            ready.send(()).unwrap();
            let (mut seen, mut burst) = (Seen::default(), Burst::new());
            while !stopped.load(Ordering::Relaxed) {
                let before = seen.packets;
                for from in 0..2 {
                    ports[from].receive(&mut pool, &mut burst);
                    for packet in &mut burst {
                        seen.packets += 1;
                        seen.longest = seen.longest.max(packet.len());
                        seen.unfinished += u64::from(packet.has_offload());
                        change(from, packet);
                    }
                    ports[1 - from].send(&mut pool, burst.drain(..));
                }
                if seen.packets == before {
                    wait(&ports);
                }
            }
            for mut port in ports {
                let tally = port.tally();
                seen.cut += tally.cut;
                seen.coalesced += tally.coalesced;
                seen.dropped += tally.no_buffer + tally.malformed + tally.queue_full + tally.too_long;
                seen.dropped += tally.send_errors + tally.kernel_drops;
                port.close(&mut pool);
            }
            seen.lost = slots - pool.available() - pool.available_large();
            seen
        });
        started.recv().expect("the ports did not open");
        Self { stop, seen }
    }

    pub fn stop(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.seen.recv().expect("the forwarder failed")
    }
}

/// A test that fails ends: nobody waits for a forwarder that goes on.
impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Sleeps until a port has packets, for 20 ms at most.
pub fn wait(ports: &[LivePort]) {
    let descriptors = ports.iter().flat_map(LivePort::descriptors);
    let mut polled: Vec<_> =
        descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the array is ours and of this length.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 20) };
}

/// A device of the current namespace with one port. The device is attached for as long as the test lives.
pub fn port(
    name: &str,
    driver: Driver,
    kernel_frames: &KernelFrames,
    memory: &Memory,
    pool: &mut Pool,
) -> LivePort {
    kernel_frames.set_device(index_of(name).unwrap(), OfDevice::default()).unwrap();
    let mut device = Device::attach(name, driver, kernel_frames).unwrap();
    device.share_among(1);
    let queues: Vec<_> = (0..device.queues()).collect();
    let port = device.port(&queues, 1500, memory, pool).unwrap();
    std::mem::forget(device);
    port
}

/// A raw socket on a device.
pub struct Raw(i32);

impl Raw {
    pub fn open(device: &str) -> Self {
        // SAFETY: the address is ours and of the length that is said.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0);
            let size = 64_i32 << 20;
            for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
                libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const size).cast(), 4);
            }
            let ignore = 1_i32;
            assert_eq!(libc::setsockopt(fd, libc::SOL_PACKET, 23, (&raw const ignore).cast(), 4), 0);
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            address.sll_ifindex = index_of(device).unwrap() as i32;
            let bound = libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32);
            assert_eq!(bound, 0);
            Self(fd)
        }
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: the frame is ours and of this length.
        let sent = unsafe { libc::send(self.0, frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// The next frame, if one comes within a second.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut polled = libc::pollfd { fd: self.0, events: libc::POLLIN, revents: 0 };
        let mut frame = vec![0; 70_000];
        // SAFETY: both are ours and of the lengths that are said.
        unsafe {
            if libc::poll(&raw mut polled, 1, 1000) != 1 {
                return None;
            }
            let len = libc::recv(self.0, frame.as_mut_ptr().cast(), frame.len(), 0);
            frame.truncate(usize::try_from(len).ok()?);
        }
        Some(frame)
    }
}

/// A raw socket on a device that puts tags back into the frames which the kernel has taken them off.
pub struct TaggedRaw(Raw);

impl TaggedRaw {
    const AUXDATA: i32 = 8;

    pub fn open(device: &str) -> Self {
        let raw = Raw::open(device);
        let on = 1_i32;
        // SAFETY: the option is ours and of this length.
        let set =
            unsafe { libc::setsockopt(raw.0, libc::SOL_PACKET, Self::AUXDATA, (&raw const on).cast(), 4) };
        assert_eq!(set, 0);
        Self(raw)
    }

    /// The next frame, if one comes within a second.
    pub fn receive(&self) -> Option<Vec<u8>> {
        /// `struct tpacket_auxdata`, include/uapi/linux/if_packet.h.
        #[repr(C)]
        struct Beside {
            status: u32,
            lengths: [u32; 2],
            offsets: [u16; 2],
            control: u16,
            ethertype: u16,
        }
        const VLAN_VALID: u32 = 1 << 4;
        let mut polled = libc::pollfd { fd: self.0.0, events: libc::POLLIN, revents: 0 };
        let (mut frame, mut control) = (vec![0; 70_000], [0_u64; 16]);
        let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: all is ours and of the lengths that are said; the kernel writes this structure behind a header that
        // says so.
        let (len, beside) = unsafe {
            if libc::poll(&raw mut polled, 1, 1000) != 1 {
                return None;
            }
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            (message.msg_control, message.msg_controllen) =
                (control.as_mut_ptr().cast(), size_of_val(&control) as _);
            let len = usize::try_from(libc::recvmsg(self.0.0, &raw mut message, 0)).ok()?;
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            assert!(!first.is_null() && (*first).cmsg_type == Self::AUXDATA);
            (len, libc::CMSG_DATA(first).cast::<Beside>().read_unaligned())
        };
        frame.truncate(len);
        if beside.status & VLAN_VALID != 0 {
            frame.splice(12..12, [beside.ethertype, beside.control].map(u16::to_be_bytes).concat());
        }
        Some(frame)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: ours, and not used any more.
        unsafe { libc::close(self.0) };
    }
}

/// A TCP segment of 20,000 bytes in IPv4, behind IPv4, this protocol's header (UDP's, which says that there is a
/// checksum or not, or none) and `more`.
pub fn segment_behind(pool: &mut Pool, protocol: u8, udp_sum: bool, more: &[u8]) -> Packet {
    let payload: Vec<u8> = (0..20_000_u32).map(|n| (n % 253) as u8).collect();
    let mut tcp = vec![0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 9, 0x50, 0x10, 1, 0, 0, 0, 0, 0];
    tcp.extend(payload);
    let ip4 = |protocol: u8, inside: &[u8]| {
        let length = (inside.len() + 20) as u16;
        let [high, low] = length.to_be_bytes();
        let mut header =
            vec![0x45, 0, high, low, 0, 7, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
        let checksum = checksum::of(&header).to_be_bytes();
        header[10..12].copy_from_slice(&checksum);
        [&header, inside].concat()
    };
    let pseudo = Sum::pseudo_ipv4([10, 0, 0, 2], [10, 0, 0, 1], 6, tcp.len() as u16).fold();
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    let mut inside = [more, &ip4(6, &tcp)].concat();
    if protocol == 17 {
        let [high, low] = ((inside.len() + 8) as u16).to_be_bytes();
        inside = [&[0x80, 1, 0x15, 0xb3, high, low, 0, udp_sum.into()], &inside[..]].concat();
    }
    // 6: behind nothing.
    let packet = if protocol == 6 { inside } else { ip4(protocol, &inside) };
    let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0], &packet[..]].concat();
    let mut packet = pool.take_large().unwrap();
    packet.set(HEADROOM, &frame).unwrap();
    let segment = Some(Segment { size: 990, kind: SegmentKind::Tcp4 });
    packet.set_offload(Offload { start: frame.len() - tcp.len(), field: 16, segment });
    packet
}
