//! The bare forwarder: what comes in by one port leaves by the other, untouched. What a router costs besides,
//! on these devices, nobody can save.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use underpass::testbed::Namespace;
use underpass_engine::worker::Burst;
use underpass_port::{
    keep::Keep,
    live::{Device, Driver, LivePort},
    xdp::Memory,
};

use super::{cases, pin};

/// Packets that it has room for, and how often it looks for some before it sleeps.
const SLOTS: usize = 8192;
const SPINS: u32 = 1000;
const MTU: usize = 1500;

pub struct Bare {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Bare {
    pub fn start(namespace: &Namespace, driver: Driver, core: usize) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, namespace) = (Arc::clone(&stop), namespace.clone());
        let (tell, ready) = mpsc::channel();
        let thread = thread::Builder::new().name("bare".to_owned()).spawn(move || {
            namespace.enter(|| {
                pin(core)?;
                let mut forwarder = Forwarder::new(driver)?;
                let _ = tell.send(());
                while !stopped.load(Relaxed) {
                    forwarder.turn()?;
                }
                Ok(())
            })?
        })?;
        let started = Self { stop, thread };
        // The sender is dropped where the ports cannot be made.
        if ready.recv().is_err() {
            started.stop()?;
            bail!("it ended");
        }
        Ok(started)
    }

    pub fn stop(self) -> anyhow::Result<()> {
        self.stop.store(true, Relaxed);
        match self.thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

struct Forwarder {
    pool: underpass_engine::buffer::Pool,
    burst: Burst,
    ports: [LivePort; 2],
    idle: u32,
    /// As long as they live, the devices are attached.
    _devices: [Device; 2],
}

impl Forwarder {
    fn new(driver: Driver) -> anyhow::Result<Self> {
        let keep = Keep::new();
        let (memory, mut pool) = Memory::new(SLOTS, 0)?;
        let devices = [Device::attach(cases::IN, driver, &keep)?, Device::attach(cases::OUT, driver, &keep)?];
        let mut ports = Vec::new();
        for device in &devices {
            keep.set_domain(device.ifindex(), 0)?;
            let queues: Vec<u32> = (0..device.queues()).collect();
            ports.push(device.port(&queues, MTU, &memory, &mut pool)?);
        }
        let ports = <[LivePort; 2]>::try_from(ports).ok().context("there are two ports")?;
        Ok(Self { pool, burst: Burst::new(), ports, idle: 0, _devices: devices })
    }

    /// Moves a burst; sleeps a while where none has come for long.
    fn turn(&mut self) -> anyhow::Result<()> {
        let [from, to] = &mut self.ports;
        from.receive(&mut self.pool, &mut self.burst);
        self.idle = if self.burst.is_empty() { self.idle + 1 } else { 0 };
        // Also without packets: what has been sent is given back.
        to.send(&mut self.pool, self.burst.drain(..));
        if self.idle > SPINS {
            self.idle = 0;
            let descriptors = from.descriptors();
            wait(&descriptors)?;
        }
        Ok(())
    }
}

/// Sleeps until one of the ports' descriptors is readable, a twentieth of a second at most.
#[allow(unsafe_code)]
fn wait(descriptors: &[i32]) -> nix::Result<()> {
    let mut waiting: Vec<PollFd> = descriptors
        .iter()
        // SAFETY: the port that owns the descriptor is not closed as long as this function runs.
        .map(|fd| PollFd::new(unsafe { BorrowedFd::borrow_raw(*fd) }, PollFlags::POLLIN))
        .collect();
    poll(&mut waiting, PollTimeout::from(50_u8)).map(drop)
}
