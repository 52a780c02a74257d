//! Which devices are attached, and what their frames go by: driver and queues.

mod made_devices;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

use underpass_control::{Link, LinkKind, Router};
use underpass_engine::{buffer::PortId, in_kernel::records::Leaving};
use underpass_port::{
    fast::Taps,
    kernel_frames::KernelFrames,
    live::{AttachError, Device, LONGEST},
};

use super::{
    Options,
    device::{self, Sysctls},
    fast::FastPrograms,
    filters::Watch,
    kernel_frames::KernelFramesUpdater,
    reception::Receptions,
    return_paths::ReturnPaths,
    variables,
    worker::{Handle, Order},
};
use crate::kernel::Made;

/// How devices are attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Driver {
    /// What does best with each device, of those that work.
    #[default]
    Auto,
    /// AF_XDP.
    Xdp,
    /// AF_PACKET.
    Packet,
}

/// The device that stands for the host.
pub const HOST: &str = "underpass0";
/// Bytes of an Ethernet header with two VLAN tags.
const FRAMING: usize = 22;
/// How long workers may take to open their ports of a device: the kernel waits for all processors several times.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest packet that it takes; routes say what they take.
const HOST_MTU: u32 = 65535;
/// How old what is known of drivers may be.
const AGE: Duration = Duration::from_secs(1);
/// How soon a device that could not be attached is tried again by itself, and how often that is doubled: each try takes workers
/// from their packets.
const AGAIN: Duration = Duration::from_secs(10);
const DOUBLED: u32 = 5;

/// A device that could not be attached. It is tried again when it changes, and after a while.
struct Failure {
    /// The flags that it had.
    flags: u32,
    /// Why, and what to do.
    why: String,
    tried: Instant,
    /// How often in a row it was tried before.
    before: u32,
}

/// Generations: of links, of local addresses, of ports of foo-over-UDP, of what looks at packets.
type Seen = (u64, u64, u64, u64);

/// A device that is attached.
struct Attached {
    device: Arc<Device>,
    port: PortId,
    mtu: u32,
}

/// The devices that are attached, and those that stand for the host.
pub struct Attachments {
    /// Names that were given; none for every Ethernet device.
    wanted: Vec<String>,
    driver: Driver,
    /// The frames that the kernel keeps.
    kernel_frames: KernelFramesUpdater,
    attached: BTreeMap<u32, Attached>,
    /// Interface indexes of the host's devices, by VRF.
    hosts: BTreeMap<u32, (u32, PortId)>,
    /// Ports of the devices of tunnels, by interface index.
    tunnels: BTreeMap<u32, PortId>,
    /// Ports of VLAN devices and bridges, by interface index: that by which the host sends and receives by it, and that by which
    /// what leaves goes to the links below.
    above: BTreeMap<u32, [PortId; 2]>,
    /// Ports of dummies, by interface index: nobody takes what leaves by them.
    dummies: BTreeMap<u32, PortId>,
    /// Interface indexes of the devices that are in VRFs of the router's.
    slaves: BTreeSet<u32>,
    /// Devices that workers are opening ports of, by interface index: each drops its end when it has, or says why it cannot.
    opening: BTreeMap<u32, Receiver<AttachError>>,
    /// Ports in use.
    ports: BTreeSet<u16>,
    /// Ports of devices that were attached and may be again, by interface index: what they have counted goes on.
    resting: BTreeMap<u32, PortId>,
    /// Devices that could not be attached, by interface index.
    failed: BTreeMap<u32, Failure>,
    /// What the devices take for what is above them.
    receptions: Receptions,
    /// The return paths of frames to the kernel, of devices of which workers get all frames.
    return_paths: ReturnPaths,
    /// The program that carries packets in the kernel, or why there is none.
    fast: FastPrograms,
    /// When drivers were last looked at.
    looked: Instant,
    /// What of the router has been seen.
    seen: Option<Seen>,
    /// Devices wait to be attached, as others took long.
    unfinished: bool,
    sysctls: Sysctls,
}

impl Attachments {
    /// Nothing yet.
    pub fn new(options: &Options, sysctls: Sysctls) -> Self {
        Self {
            wanted: options.attach.clone(),
            driver: options.driver,
            kernel_frames: KernelFramesUpdater::default(),
            attached: BTreeMap::new(),
            hosts: BTreeMap::new(),
            tunnels: BTreeMap::new(),
            above: BTreeMap::new(),
            dummies: BTreeMap::new(),
            slaves: BTreeSet::new(),
            opening: BTreeMap::new(),
            ports: BTreeSet::new(),
            resting: BTreeMap::new(),
            failed: BTreeMap::new(),
            receptions: Receptions::default(),
            return_paths: ReturnPaths::default(),
            fast: FastPrograms::default(),
            looked: Instant::now(),
            seen: None,
            unfinished: false,
            sysctls,
        }
    }

    /// The frames that the kernel keeps.
    pub fn kernel_frames(&self) -> &KernelFrames {
        self.kernel_frames.frames()
    }

    /// Whether a link is one of those that the router has made.
    fn is_own(&self, router: &Router, index: u32) -> bool {
        let host = self.hosts.values().any(|(own, _)| *own == index);
        let inside = self.tunnels.contains_key(&index) || self.above.contains_key(&index);
        host || inside || router.stands_in(index)
    }

    /// Why no program carries packets, if none does.
    pub fn no_fast_path(&self) -> Option<&str> {
        self.fast.why_not()
    }

    /// The programs that carry packets in the kernel.
    pub fn fast(&mut self) -> &mut FastPrograms {
        &mut self.fast
    }

    /// What carries packets of an attached device in the kernel: `tcx`; `tcx-peer` where what leaves by it is given to the
    /// other end of the veth pair at once; `xdp`, in its driver, and at tcx what that does not carry.
    pub fn fast_path(&self, index: u32) -> Option<&'static str> {
        let device = &self.attached.get(&index)?.device;
        let (_, of) = device.programs()?;
        Some(match of.leaving {
            _ if device.has_program_in_driver() => "xdp",
            Leaving::Peer => "tcx-peer",
            Leaving::Not | Leaving::Redirect => "tcx",
        })
    }

    /// Looks, once a second, which devices sockets listen to, and which send what programs in drivers redirect to them.
    pub fn follow_devices(&mut self, router: &mut Router) {
        if self.looked.elapsed() < AGE {
            return;
        }
        self.looked = Instant::now();
        // Without procfs nothing is known of sockets.
        let taps = Taps::read().unwrap_or_default();
        for (index, Attached { device, .. }) in &self.attached {
            if device.look(&taps) {
                if device.is_tapped() {
                    tracing::info!(
                        "{}: packets leave by the device itself while sockets listen there",
                        device.name()
                    );
                }
                router.set_programs(*index, device.programs().map(|(_, programs)| programs));
            }
        }
    }

    /// Name and driver of what is attached.
    pub fn drivers(&self) -> impl Iterator<Item = (u32, PortId, &str)> {
        let attached =
            self.attached.iter().map(|(index, attached)| (*index, attached.port, attached.device.driver()));
        let hosts =
            self.hosts.values().copied().chain(self.tunnels.iter().map(|(index, port)| (*index, *port)));
        let hosts = hosts.chain(self.above.iter().map(|(index, [host, _])| (*index, *host)));
        attached.chain(hosts.map(|(index, port)| (index, port, "tun")))
    }

    /// Follows the links and addresses of the router: attaches what has come, detaches what has gone. What takes longer than
    /// `patience` is left for the next call, which is due at once.
    pub fn follow(
        &mut self,
        router: &mut Router,
        workers: &[Handle],
        (made, watch): (&Made, &Watch),
        patience: Duration,
    ) {
        let state = |router: &Router| {
            let (links, locals) = (router.link_generation(), router.local_generation());
            (links, locals, router.fou_generation(), router.hooked_generation())
        };
        let seen = state(router);
        for port in self.return_paths.idle(router) {
            self.close(port, workers);
        }
        if self.seen == Some(seen) && !self.due().is_zero() {
            return;
        }
        if self.due().is_zero() {
            self.look_again();
        }
        let links = self.seen.is_none_or(|(links, ..)| links != seen.0);
        if links || self.seen.is_none_or(|(_, _, ports, _)| ports != seen.2) {
            self.kernel_frames.follow_claims(router);
        }
        if links {
            self.kernel_frames.follow_vlans(router);
        }
        self.update_hooks(router, workers);
        // First what the kernel keeps: an address that is new is the kernel's before packets for it come.
        self.kernel_frames.follow_addresses(router);
        for index in self.attached.keys() {
            self.kernel_frames.follow_device(router, *index, self.return_paths.gives_all(*index));
        }
        for index in self.above.keys() {
            self.kernel_frames.follow_inside(router, *index);
        }
        if links {
            self.update_hosts(router, workers, made);
            self.update_tunnels(router, workers, made);
            self.update_above(router, workers, made);
            self.follow_dummies(router, workers);
            self.update_links(router, workers, watch, patience);
            self.update_slaves(router);
        }
        self.receptions.follow(router, self.attached.keys().copied());
        // Attaching changes links.
        self.seen = Some(state(router));
    }

    /// How long it is until a device is attached that waits, or is tried again that could not be attached.
    pub fn due(&self) -> Duration {
        if self.unfinished {
            return Duration::ZERO;
        }
        let failed = self.failed.values();
        failed
            .map(|failure| failure.patience().saturating_sub(failure.tried.elapsed()))
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// The devices that are to be attached and cannot be, with the reason.
    pub fn warnings(&self, router: &Router) -> Vec<String> {
        let failed = self.failed.iter().filter_map(|(index, failure)| Some((router.link(*index)?, failure)));
        failed
            .map(|(link, failure)| format!("{} is left to the kernel: {}", link.name, failure.why))
            .collect()
    }

    /// Other devices than before are to be left to the kernel.
    pub fn look_again(&mut self) {
        self.seen = None;
    }

    fn update_links(&mut self, router: &mut Router, workers: &[Handle], watch: &Watch, patience: Duration) {
        let start = Instant::now();
        self.unfinished = false;
        let gone: Vec<u32> =
            self.attached.keys().copied().filter(|index| router.link(*index).is_none()).collect();
        gone.into_iter().for_each(|index| self.detach(index, router, workers));
        let gone = self.resting.extract_if(.., |index, _| router.link(*index).is_none());
        gone.map(|(_, port)| port)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|port| self.release(port, workers));
        let candidates: Vec<(u32, String, u32, u32)> = router
            .links()
            .filter(|link| link.kind == LinkKind::Kernel && !self.is_own(router, link.index))
            .map(|link| (link.index, link.name.clone(), link.mtu, link.flags))
            .collect();
        self.failed.retain(|index, _| candidates.iter().any(|(candidate, ..)| candidate == index));
        for (index, name, mtu, flags) in candidates {
            if watch.leaves(index) || !self.is_wanted(router, index, &name) {
                self.detach(index, router, workers);
                self.failed.remove(&index);
                continue;
            }
            match self.attached.get_mut(&index) {
                Some(attached) if attached.mtu == mtu => continue,
                // Large segments are told by the MTU, and AF_XDP has room for some only.
                Some(attached) if has_room(attached.mtu) == has_room(mtu) => {
                    attached.mtu = mtu;
                    let port = attached.port;
                    workers.iter().for_each(|worker| worker.order(Order::Mtu(port, mtu as usize)));
                    continue;
                }
                Some(_) => self.detach(index, router, workers),
                None if self.failed.get(&index).is_some_and(|failure| failure.still(flags)) => continue,
                None => {}
            }
            if start.elapsed() >= patience {
                self.unfinished = true;
                break;
            }
            if let Err(error) = self.attach(index, &name, mtu, router, workers) {
                self.leave(index, &name, router, &error);
            }
        }
        self.take_frames(router, workers);
    }

    /// Leaves a device to the kernel that cannot be attached.
    fn leave(&mut self, index: u32, name: &str, router: &Router, error: &anyhow::Error) {
        if device::is_gone(index, name) {
            // The kernel's message about that is still to be read.
            tracing::debug!("gone meanwhile: {error}");
            self.failed.remove(&index);
            return;
        }
        let text = error.to_string();
        let mut why = text.strip_prefix(&format!("{name}: ")).unwrap_or(&text).trim_end().to_owned();
        if let Some(advice) = advice(error) {
            why = format!("{why}: {advice}");
        }
        let line = format!("{name}: left to the kernel: {why}");
        if self.failed.get(&index).is_some_and(|before| before.why == why) {
            tracing::debug!("{line}");
        } else {
            tracing::error!("{line}; it is tried again when the device changes, and from time to time");
        }
        let flags = router.link(index).map_or(0, |link| link.flags);
        let earlier = self.failed.get(&index).filter(|failure| failure.flags == flags);
        let before = earlier.map_or(0, |failure| failure.before + 1);
        self.failed.insert(index, Failure { flags, why, tried: Instant::now(), before });
    }

    /// Whether a link is a device of the kernel's that is to be attached, or would be without filters.
    pub fn may_attach(&self, router: &Router, link: &Link) -> bool {
        link.kind == LinkKind::Kernel
            && !self.is_own(router, link.index)
            && self.is_wanted(router, link.index, &link.name)
    }

    fn is_wanted(&self, router: &Router, index: u32, name: &str) -> bool {
        let master = router.link(index).and_then(|link| link.master).and_then(|master| router.link(master));
        if master.is_some_and(|master| master.kind == LinkKind::Bridge) {
            // Of a bridge of the router's, whatever devices were named.
            return device::is_ethernet(name);
        }
        if !self.wanted.is_empty() {
            return self.wanted.iter().any(|wanted| wanted == name);
        }
        // The ports of a bridge of the kernel's or a bond pass on what is not for this host; their master is attached.
        master.is_none_or(|master| master.vrf_table().is_some()) && device::is_ethernet(name)
    }

    fn attach(
        &mut self,
        index: u32,
        name: &str,
        mtu: u32,
        router: &mut Router,
        workers: &[Handle],
    ) -> anyhow::Result<()> {
        use underpass_port::live::Driver as By;
        let driver = match self.driver {
            Driver::Auto => By::Auto,
            Driver::Xdp => By::Xdp,
            Driver::Packet => By::Packet,
        };
        let mut device = match self.fast.attach(
            (index, name),
            self.driver,
            router,
            (self.kernel_frames.frames(), &self.sysctls),
        ) {
            Some(device) => device,
            None => Device::attach(name, driver, self.kernel_frames.frames())?,
        };
        if device.driver() != "packet"
            && let Some(why) = why_not_xdp(&device, mtu, workers.len()).or(wants_packet(&device, router))
        {
            tracing::warn!("{name} {why}: it is attached with AF_PACKET");
            drop(device);
            device = Device::attach(name, By::Packet, self.kernel_frames.frames())?;
            device.set_why(format!("not with AF_XDP, as the device {why}"));
        }
        device.share_among(workers.len());
        if device.ifindex() != index {
            anyhow::bail!("{name} is another device by now");
        }
        tracing::info!("{name}: attached with {}: {}", device.driver(), device.why());
        let shared = device.kernel_gets_all();
        if shared {
            self.sysctls.stop_forwarding(index);
        }
        let port = self.resting.remove(&index).unwrap_or_else(|| self.free_port());
        let device = Arc::new(device);
        // Before the device's first frame.
        if router.hooked(index).ingress {
            self.give_all(router, index, &device, workers);
        }
        let (opened, opening) = channel();
        for (number, worker) in workers.iter().enumerate() {
            let queues: Vec<u32> = (0..device.queues()).skip(number).step_by(workers.len()).collect();
            worker.order(Order::Open(port, Arc::clone(&device), queues, mtu as usize, opened.clone()));
        }
        self.opening.insert(index, opening);
        self.attached.insert(index, Attached { device, port, mtu });
        router.set_shared(index, shared);
        variables::read(router, index, name);
        Ok(())
    }

    /// Sends by the devices that were just attached, and takes their frames from the kernel, once the workers have ports of
    /// them: what came before would be nobody's. A device that a worker cannot open is left to the kernel.
    fn take_frames(&mut self, router: &mut Router, workers: &[Handle]) {
        for (index, opening) in std::mem::take(&mut self.opening) {
            match opening.recv_timeout(PATIENCE) {
                Ok(error) => {
                    let name = error.device.clone();
                    self.detach(index, router, workers);
                    self.leave(index, &name, router, &error.into());
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!("interface {index}: a worker has not opened it yet, frames may be lost");
                }
                Err(RecvTimeoutError::Disconnected) => {}
            }
            let Some(Attached { device, port, .. }) = self.attached.get(&index) else { continue };
            if let Err(error) = router.attach(index, Some(*port)) {
                let name = device.name().to_owned();
                self.detach(index, router, workers);
                self.leave(index, &name, router, &anyhow::anyhow!("{error}"));
                continue;
            }
            self.failed.remove(&index);
            self.kernel_frames.follow_device(router, index, self.return_paths.gives_all(index));
        }
    }

    fn detach(&mut self, index: u32, router: &mut Router, workers: &[Handle]) {
        let Some(Attached { device, port, .. }) = self.attached.remove(&index) else { return };
        tracing::info!("{}: detached", name_of(router, index, &device));
        self.kernel_frames.forget_device(index);
        router.set_programs(index, None);
        if let Some(port) = self.return_paths.remove(router, index) {
            self.close(port, workers);
        }
        let _ = router.attach(index, None);
        router.ignore_advertised(index, false);
        workers.iter().for_each(|worker| worker.order(Order::Detach(port)));
        self.sysctls.restore(index);
        self.resting.insert(index, port);
    }

    /// Detaches everything.
    pub fn give_back(&mut self, router: &mut Router, workers: &[Handle]) {
        let all: Vec<u32> = self.attached.keys().copied().collect();
        all.into_iter().for_each(|index| self.detach(index, router, workers));
        let hosts = std::mem::take(&mut self.hosts).into_values().map(|(_, port)| port);
        let above = std::mem::take(&mut self.above).into_values().map(|[host, _]| host);
        for port in hosts.chain(std::mem::take(&mut self.tunnels).into_values()).chain(above) {
            workers.iter().for_each(|worker| worker.order(Order::Detach(port)));
        }
        self.sysctls.restore_all();
    }

    /// Gives workers all frames of the devices at which filters or a bridge look at what comes in, and of no others.
    fn update_hooks(&mut self, router: &mut Router, workers: &[Handle]) {
        let attached: Vec<(u32, Arc<Device>)> =
            self.attached.iter().map(|(index, attached)| (*index, Arc::clone(&attached.device))).collect();
        for (index, device) in attached {
            if wants_packet(&device, router).is_some()
                && let Some(Attached { mtu, .. }) = self.attached.get(&index)
            {
                let (mtu, name) = (*mtu, name_of(router, index, &device).to_owned());
                self.detach(index, router, workers);
                // Its program goes with it, before another takes its place.
                drop(device);
                if let Err(error) = self.attach(index, &name, mtu, router, workers) {
                    self.leave(index, &name, router, &error);
                }
                self.take_frames(router, workers);
                continue;
            }
            let hooked = router.hooked(index);
            if hooked.ingress && !self.return_paths.gives_all(index) {
                self.give_all(router, index, &device, workers);
            } else if !hooked.ingress {
                self.return_paths.stop(index);
            }
            self.return_paths.warn(name_of(router, index, &device), index, hooked.egress);
            self.kernel_frames.follow_device(router, index, self.return_paths.gives_all(index));
        }
        for index in self.dummies.keys() {
            let name = router.link(*index).map_or("", |link| &link.name);
            self.return_paths.warn(name, *index, router.hooked(*index).egress);
        }
    }

    /// Makes the return path for the frames of a device, all of which go to workers then.
    fn give_all(&mut self, router: &mut Router, index: u32, device: &Device, workers: &[Handle]) {
        if self.return_paths.again(index) {
            return;
        }
        let port = self.free_port();
        match self.return_paths.make(
            (index, name_of(router, index, device)),
            port,
            self.kernel_frames.frames(),
            &self.sysctls,
            workers,
        ) {
            Ok(path) => {
                router.note_return_path(path);
                router.set_kernel_port(index, Some(port));
            }
            Err(why) => {
                self.ports.remove(&port.0);
                self.return_paths.cannot(name_of(router, index, device), index, &why);
            }
        }
    }

    fn close(&mut self, port: PortId, workers: &[Handle]) {
        workers.iter().for_each(|worker| worker.order(Order::Detach(port)));
        self.release(port, workers);
    }

    /// The port may be another one's.
    fn release(&mut self, port: PortId, workers: &[Handle]) {
        workers.iter().for_each(|worker| worker.order(Order::Forget(port)));
        self.ports.remove(&port.0);
    }

    fn free_port(&mut self) -> PortId {
        let free = (0..u16::MAX).find(|port| !self.ports.contains(port)).unwrap_or(u16::MAX);
        self.ports.insert(free);
        PortId(free)
    }
}

impl Failure {
    /// Whether there is no reason yet to try again a device that has these flags.
    fn still(&self, flags: u32) -> bool {
        self.flags == flags && self.tried.elapsed() < self.patience()
    }

    /// How long it is left alone.
    fn patience(&self) -> Duration {
        AGAIN * 2_u32.pow(self.before.min(DOUBLED))
    }
}

/// What to do about a device that cannot be attached, if that is known.
fn advice(error: &anyhow::Error) -> Option<&'static str> {
    let AttachError { source, .. } = error.downcast_ref()?;
    Some(match source.raw_os_error()? {
        libc::EMFILE => "raise the limit of open files (LimitNOFILE=, ulimit -n)",
        libc::ENFILE => "raise fs.file-max",
        libc::ENOMEM | libc::ENOBUFS => {
            "free memory, or raise the limit of locked memory (LimitMEMLOCK=, ulimit -l)"
        }
        _ => return None,
    })
}

/// Why a device is not attached with AF_XDP as it is now: in generic mode that would take frames that come back to the kernel
/// once more, and it does not say which tags the driver has taken off.
fn wants_packet(device: &Device, router: &Router) -> Option<String> {
    let index = device.ifindex();
    if device.driver() == "xdp-generic" && router.hooked(index).ingress {
        return Some("has no native XDP, and filters or a bridge see what the kernel keeps of it".to_owned());
    }
    let above = match router.link(index).is_some_and(|link| link.bridge_port.is_some()) {
        true => "is a port of a bridge",
        false if router.has_vlans_above(index) => "has VLAN devices",
        false => return None,
    };
    device.loses_tags().then(|| format!("{above}, and gives VLAN tags apart from frames (rxvlan)"))
}

/// Why a device is not attached with AF_XDP although it could be.
fn why_not_xdp(device: &Device, mtu: u32, workers: usize) -> Option<String> {
    // A queue has one worker, and every worker must be able to send; AF_PACKET spreads flows itself.
    if (device.queues() as usize) < workers {
        return Some(format!("has {} queues for {workers} workers", device.queues()));
    }
    // With an Ethernet header and two VLAN tags. A slot of AF_XDP is a page at most.
    (!has_room(mtu)).then(|| format!("has an MTU of {mtu}, for which AF_XDP has no room"))
}

/// The name that a device has now: it may have had another when it was attached.
fn name_of<'a>(router: &'a Router, index: u32, device: &'a Device) -> &'a str {
    router.link(index).map_or(device.name(), |link| &link.name)
}

/// Whether AF_XDP has room for the frames of a device.
const fn has_room(mtu: u32) -> bool {
    mtu as usize + FRAMING <= LONGEST
}
