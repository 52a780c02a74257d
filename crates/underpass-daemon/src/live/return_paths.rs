//! Devices of which workers get all frames, as filters or a bridge of the router look at what comes in: the return paths of the
//! kernel's frames.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use underpass_control::Router;
use underpass_engine::buffer::PortId;
use underpass_port::{kernel_frames::KernelFrames, live::LivePort, return_path::ReturnPath};

use super::{
    device::{self, Sysctls},
    worker::{Handle, Order, Sent},
};

/// How long a return path stays when no more frames are given to workers for its sake: those that they have are to take it.
const LINGER: Duration = Duration::from_secs(1);

/// The return path to a device.
struct Return {
    _path: ReturnPath,
    port: PortId,
    /// Since when workers get only what is the router's again.
    idle: Option<Instant>,
}

/// The return paths, by the index of the device.
#[derive(Default)]
pub struct ReturnPaths {
    returns: BTreeMap<u32, Return>,
    /// Devices that have none although filters look at what comes in, and devices whose filters do not see what the
    /// host sends: said once.
    without: BTreeSet<u32>,
    passed_by: BTreeSet<u32>,
}

impl ReturnPaths {
    /// Whether workers get all frames of a device.
    pub fn gives_all(&self, index: u32) -> bool {
        self.returns.get(&index).is_some_and(|path| path.idle.is_none())
    }

    /// Takes up a return path that is still there.
    pub fn again(&mut self, index: u32) -> bool {
        let path = self.returns.get_mut(&index);
        path.is_some_and(|path| {
            path.idle = None;
            true
        })
    }

    /// Makes the return path to a device, of which workers get all frames then. They take it by `port`. Its interface index.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn make(
        &mut self,
        (index, device): (u32, &str),
        port: PortId,
        kernel_frames: &KernelFrames,
        sysctls: &Sysctls,
        workers: &[Handle],
    ) -> Result<u32, String> {
        if let Some(why) = kernel_frames.without_bpf() {
            return Err(why.to_owned());
        }
        let name = format!("upk{index}");
        let (path, ports) = ReturnPath::make(&name, index, kernel_frames, workers.len())
            .map_err(|error| format!("{name}: {error}"))?;
        sysctls.return_path(&name);
        device::set_up(&name).map_err(|error| format!("{name}: {error}"))?;
        for (worker, end) in workers.iter().zip(ports) {
            worker.order(Order::Serve(port, Box::new(LivePort::ReturnPath(end)), Sent::Wrapped));
        }
        tracing::info!("{device}: workers get all of its frames; what the kernel keeps comes back by {name}");
        self.without.remove(&index);
        let made = path.index();
        self.returns.insert(index, Return { _path: path, port, idle: None });
        Ok(made)
    }

    /// Says that the filters of a device do not see what the kernel keeps.
    pub fn cannot(&mut self, device: &str, index: u32, why: &str) {
        if self.without.insert(index) {
            tracing::warn!(
                "{device}: filters and a bridge do not see the frames that the kernel keeps: {why}"
            );
        }
    }

    /// Says that what the host itself sends by a device goes past what looks at what leaves, where anything does.
    pub fn warn(&mut self, device: &str, index: u32, looks: bool) {
        if !looks {
            self.passed_by.remove(&index);
        } else if self.passed_by.insert(index) {
            tracing::warn!(
                "{device}: what the host itself sends passes neither the filters nor the qdisc of what leaves there"
            );
        }
    }

    /// Workers get only what is the router's of a device.
    pub fn stop(&mut self, index: u32) {
        self.without.remove(&index);
        if let Some(path) = self.returns.get_mut(&index) {
            path.idle.get_or_insert_with(Instant::now);
        }
    }

    /// Ends the return paths that nobody has taken for a while; the ports that are to be closed.
    pub fn idle(&mut self, router: &mut Router) -> Vec<PortId> {
        let over = |path: &Return| path.idle.is_some_and(|since| since.elapsed() > LINGER);
        let idle: Vec<u32> =
            self.returns.iter().filter(|(_, path)| over(path)).map(|(index, _)| *index).collect();
        idle.into_iter().filter_map(|index| self.remove(router, index)).collect()
    }

    /// Ends the return path to a device; the port that is to be closed.
    pub fn remove(&mut self, router: &mut Router, index: u32) -> Option<PortId> {
        self.without.remove(&index);
        self.passed_by.remove(&index);
        let path = self.returns.remove(&index)?;
        router.set_kernel_port(index, None);
        Some(path.port)
    }
}
