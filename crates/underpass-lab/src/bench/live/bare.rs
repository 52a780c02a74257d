//! The bare forwarder: what comes in by one port leaves by the other, untouched. What a router costs besides,
//! on these devices, nobody can save.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, bail};
use nix::sys::eventfd::EventFd;
use underpass_daemon::{
    live::{Descriptors, go_first},
    testbed::Namespace,
};
use underpass_engine::worker::Burst;
use underpass_port::{
    keep::{Keep, OfDevice},
    live::{Device, Driver, LivePort},
    xdp::Memory,
};

use super::super::clock::pin_to;
use super::cases;

/// Packets that it has room for.
const SLOTS: usize = 8192;
const MTU: usize = 1500;

pub struct Bare {
    stop: Arc<AtomicBool>,
    waker: Arc<EventFd>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Bare {
    pub fn start(namespace: &Namespace, driver: Driver, core: usize) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let waker = Arc::new(EventFd::new()?);
        let (stopped, woken, namespace) = (Arc::clone(&stop), Arc::clone(&waker), namespace.clone());
        let (tell, ready) = mpsc::channel();
        let thread = thread::Builder::new().name("bare".to_owned()).spawn(move || {
            namespace.enter(|| {
                pin_to(core)?;
                go_first()?;
                let mut forwarder = Forwarder::new(driver, &woken)?;
                let _ = tell.send(());
                while !stopped.load(Relaxed) {
                    forwarder.turn();
                }
                Ok(())
            })?
        })?;
        let started = Self { stop, waker, thread };
        // The sender is dropped where the ports cannot be made.
        if ready.recv().is_err() {
            started.stop()?;
            bail!("it ended");
        }
        Ok(started)
    }

    pub fn stop(self) -> anyhow::Result<()> {
        self.stop.store(true, Relaxed);
        self.waker.write(1)?;
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
    /// Whether the last look found nothing.
    quiet: bool,
    descriptors: Descriptors,
    /// As long as they live, the devices are attached.
    _devices: [Device; 2],
}

impl Forwarder {
    fn new(driver: Driver, waker: &EventFd) -> anyhow::Result<Self> {
        let keep = Keep::new();
        let (memory, mut pool) = Memory::new(SLOTS, 0)?;
        let devices = [Device::attach(cases::IN, driver, &keep)?, Device::attach(cases::OUT, driver, &keep)?];
        let mut ports = Vec::new();
        for device in &devices {
            keep.set_device(device.ifindex(), OfDevice::default())?;
            let queues: Vec<u32> = (0..device.queues()).collect();
            ports.push(device.port(&queues, MTU, &memory, &mut pool)?);
        }
        let ports = <[LivePort; 2]>::try_from(ports).ok().context("there are two ports")?;
        let mut descriptors = Descriptors::new(waker);
        descriptors.set(ports.iter().flat_map(LivePort::descriptors));
        Ok(Self { pool, burst: Burst::new(), ports, quiet: false, descriptors, _devices: devices })
    }

    /// Moves a burst; sleeps where none has come for a while.
    fn turn(&mut self) {
        let [from, to] = &mut self.ports;
        from.receive(&mut self.pool, &mut self.burst);
        let empty = self.burst.is_empty();
        // Also without packets: the slots of those sent come back.
        to.send(&mut self.pool, self.burst.drain(..));
        // It has a worker's priority and sleeps as soon.
        if empty && self.quiet {
            self.descriptors.sleep(Some(Duration::from_millis(50)));
        }
        self.quiet = empty;
    }
}
