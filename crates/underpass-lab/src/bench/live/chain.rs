//! Generator, router and sink.

use std::{
    env, fs,
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::{
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
        },
        time::TimeVal,
    },
    unistd::Pid,
};
use underpass_daemon::testbed::{Namespace, Router, join};
use underpass_port::{
    live::Driver,
    xdp::{Flood, receive_by_polling},
};

use super::super::clock::pin_to;
use super::{Cores, bare::Bare, cases};

/// How long packets flow before they are counted, and how long they are counted.
const WARM: Duration = Duration::from_millis(80);
const WINDOW: Duration = Duration::from_millis(400);

/// Frames that a turn has at first: enough for its time on most machines.
const FRAMES: u32 = 1 << 21;

/// Which router a chain has.
#[derive(Clone, Copy)]
pub enum Kind {
    Kernel,
    /// With this driver, as `run --driver` has it.
    Underpass(&'static str),
    Bare(Driver),
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel's router",
            Self::Underpass(_) => "Underpass",
            Self::Bare(_) => "the bare forwarder",
        }
    }
}

/// What forwards; the kernel's own router is nothing besides.
enum Forwarder {
    Kernel,
    Underpass(Router),
    Bare(Bare),
}

pub struct Chain {
    generator: Namespace,
    sink: Namespace,
    /// Where the forwarder is.
    _router: Namespace,
    forwarder: Forwarder,
}

impl Chain {
    pub fn new(kind: Kind, cores: Cores) -> anyhow::Result<Self> {
        let [generator, router, sink] = ["generator", "router", "sink"].map(Namespace::new);
        let (generator, router, sink) = (generator?, router?, sink?);
        join(&router, cases::IN, &generator, cases::GENERATOR)?;
        join(&router, cases::OUT, &sink, cases::SINK)?;
        generator.run(&format!("ip link set {} address 02:00:00:00:00:01 up", cases::GENERATOR))?;
        sink.run(&format!("ip link set {} address 02:00:00:00:00:04 up", cases::SINK))?;
        router.run(&format!(
            "sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.seg6_enabled=1
             ip link set {} address 02:00:00:00:00:02 up
             ip link set {} address 02:00:00:00:00:03",
            cases::IN,
            cases::OUT
        ))?;
        router.enter(|| receive_by_polling(cases::IN))??;
        // The device's polls get a thread of their own, for the router's core.
        router.run(&format!(
            "unshare -m sh -ec 'mount -t sysfs sysfs /sys; echo 1 > /sys/class/net/{}/threaded'",
            cases::IN
        ))?;
        let forwarder = match kind {
            Kind::Kernel => {
                router.run(cases::CONFIGURATION)?;
                Forwarder::Kernel
            }
            Kind::Underpass(driver) => {
                pin_to(cores.router)?;
                let program = env::current_exe()?;
                let started = Router::start(&program, &router, &["--workers", "1", "--driver", driver]);
                pin_to(cores.generator)?;
                let started = started?;
                started.run(cases::CONFIGURATION)?;
                Forwarder::Underpass(started)
            }
            Kind::Bare(driver) => {
                router.run(&format!("ip link set {} up; ip link set {} up", cases::IN, cases::OUT))?;
                Forwarder::Bare(Bare::start(&router, driver, cores.router)?)
            }
        };
        pin_polls(cores.router)?;
        Ok(Self { generator, sink, _router: router, forwarder })
    }

    /// Sends a few frames; what comes out, once the first ones have.
    pub fn sample(&self, frame: &[u8], cores: Cores) -> anyhow::Result<Vec<u8>> {
        let listener = self.sink.enter(|| {
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
        })??;
        setsockopt(&listener, sockopt::ReceiveTimeout, &TimeVal::new(0, 200_000))?;
        let mut buffer = vec![0; 2048];
        for _ in 0..20 {
            self.send(frame, 64, cores)?;
            while let Ok(length) = recv(listener.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                match buffer.get(..length) {
                    Some(found) if found.starts_with(&cases::NEIGHBOUR) => return Ok(found.to_owned()),
                    _ => {}
                }
            }
        }
        bail!("nothing comes out{}", self.log())
    }

    fn send(&self, frame: &[u8], count: u32, cores: Cores) -> anyhow::Result<()> {
        self.generator.enter(|| {
            pin_to(cores.generator)?;
            Flood::new(cases::GENERATOR, frame)?.send(count).context("the kernel's generator")
        })?
    }

    /// How many frames a second come out when more go in than the router can take.
    pub fn rate(&self, frame: &[u8], cores: Cores) -> anyhow::Result<f64> {
        let mut count = FRAMES;
        loop {
            let counted = thread::scope(|scope| {
                let sender = scope.spawn(|| self.send(frame, count, cores));
                thread::sleep(WARM);
                let (start, before) = (Instant::now(), self.sink.received(cases::SINK)?);
                thread::sleep(WINDOW);
                let (end, after) = (Instant::now(), self.sink.received(cases::SINK)?);
                let flowed = !sender.is_finished();
                match sender.join() {
                    Ok(sent) => sent?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
                let rate = (after - before) as f64 / (end - start).as_secs_f64();
                anyhow::Ok(flowed.then_some(rate))
            })?;
            match counted {
                Some(rate) if rate > 0.0 => return Ok(rate),
                Some(_) => bail!("nothing comes out{}", self.log()),
                None => count = count.checked_mul(2).context("the generator is too fast")?,
            }
        }
    }

    fn log(&self) -> String {
        match &self.forwarder {
            Forwarder::Underpass(router) => format!("\n{}", router.log().unwrap_or_default()),
            _ => String::new(),
        }
    }

    /// Ends what forwards.
    pub fn stop(self) -> anyhow::Result<()> {
        match self.forwarder {
            Forwarder::Kernel => Ok(()),
            Forwarder::Underpass(router) => router.stop(),
            Forwarder::Bare(bare) => bare.stop(),
        }
    }
}

/// Keeps the threads that poll the devices called [`cases::IN`] on a core.
fn pin_polls(core: usize) -> anyhow::Result<()> {
    let mut only = CpuSet::new();
    only.set(core)?;
    let mut found = false;
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        // Names of threads are cut at 15 bytes.
        if name.starts_with(&format!("napi/{}", cases::IN)) {
            sched_setaffinity(Pid::from_raw(pid), &only)?;
            found = true;
        }
    }
    if !found {
        bail!("no thread polls {}: this needs a kernel with threaded NAPI", cases::IN);
    }
    Ok(())
}
