//! Devices of the kernel as ports: which driver a device is attached with, and a worker's share of it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use underpass_engine::buffer::{Packet, Pool};
use underpass_engine::in_kernel::records::{Leaving, OfDevice};
use underpass_engine::worker::Burst;

use crate::clsact::{Filter, Hook};
use crate::fast::{self, Fast, Hook as At, Misses, Taps};
use crate::kernel_frames::KernelFrames;
use crate::packet::{Fanout, PacketPort};
use crate::return_path::ReturnPort;
use crate::sys;
use crate::tun::TunPort;
use crate::xdp::bpf::{self, Attach, Map, MapKind, ProgramKind};
use crate::xdp::program::{self, Sockets, XDP_PASS};
use crate::xdp::socket::XdpPort;
use crate::xdp::tunnel;
use crate::xdp::{self, Memory};

/// How a device is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driver {
    /// AF_PACKET on veth; else AF_XDP in native mode where the driver has it, or else AF_PACKET.
    Auto,
    /// AF_XDP, in native mode or else in generic mode.
    Xdp,
    /// AF_XDP in generic mode.
    XdpGeneric,
    /// AF_PACKET.
    Packet,
}

/// Where the programs of the fast path in the kernel are attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hooks {
    /// At tcx, and in the driver where that is faster.
    Auto,
    /// At tcx.
    Tcx,
    /// At tcx, and in the driver where it runs programs.
    Xdp,
}

/// A device that cannot be attached.
#[derive(Debug, thiserror::Error)]
#[error("{device}: {what}: {source}")]
pub struct AttachError {
    /// The device.
    pub device: String,
    /// What failed.
    pub what: &'static str,
    /// Why.
    pub source: io::Error,
}

/// What a port itself has dropped or done to packets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Received, and there was no slot for it.
    pub no_buffer: u64,
    /// Received with lengths or offloads that contradict the packet, or as a segment that nobody can cut.
    pub malformed: u64,
    /// Not sent, as the device's queue was full.
    pub queue_full: u64,
    /// Not sent, as it was longer than the device sends.
    pub too_long: u64,
    /// Not sent, for another error of the kernel.
    pub send_errors: u64,
    /// Segments cut here, not by the kernel: no drop.
    pub cut: u64,
    /// TCP segments and UDP datagrams that were joined to others, so that the host takes them as one: no drop.
    pub coalesced: u64,
    /// Dropped by the kernel before the port received it.
    pub kernel_drops: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        let Self { no_buffer, malformed, queue_full, too_long, send_errors, cut, coalesced, kernel_drops } =
            other;
        self.no_buffer += no_buffer;
        self.malformed += malformed;
        self.queue_full += queue_full;
        self.too_long += too_long;
        self.send_errors += send_errors;
        self.cut += cut;
        self.coalesced += coalesced;
        self.kernel_drops += kernel_drops;
    }
}

/// A device of the kernel whose frames go to workers. Dropping it gives them back to the kernel; so does the
/// death of the process.
pub struct Device {
    name: String,
    ifindex: u32,
    driver: &'static str,
    why: String,
    queues: u32,
    virtual_peer: bool,
    kernel_frames: KernelFrames,
    attached: Attached,
    /// Whether several ports share the device.
    shared: bool,
    /// The group that the sockets of AF_PACKET are then in.
    group: Mutex<Option<u16>>,
}

enum Attached {
    Xdp {
        sockets: Arc<Map>,
        _link: OwnedFd,
    },
    Packet {
        /// The socket filter: which frames workers get.
        filter: Option<OwnedFd>,
        /// The program that keeps these frames from the kernel.
        _taken: Option<Hooked>,
        /// The program that lets segments inside tunnels leave whole, and tags be beside frames.
        tunnels: Option<Hooked>,
    },
    /// Programs carry packets in the kernel. Those that they miss go to a TAP device, where AF_PACKET sockets listen.
    Fast {
        misses: Misses,
        leaving: Leaving,
        /// Whether sockets listen to what leaves by the device, which a peer redirect passes by.
        tapped: AtomicBool,
        _program: OwnedFd,
        in_driver: Option<InDriver>,
        tunnels: Option<Hooked>,
    },
}

/// A program in the driver of a device.
struct InDriver {
    _program: OwnedFd,
    /// Whether the device sends what such programs redirect to it.
    sends: AtomicBool,
}

impl Device {
    /// Attaches the device `name` of the current namespace. Frames go where `keep` says once a worker has a
    /// port of it; before, they stay with the kernel.
    ///
    /// # Errors
    /// The device or the driver is not there; with [`Driver::Auto`], what the last driver tried said.
    pub fn attach(name: &str, driver: Driver, kernel_frames: &KernelFrames) -> Result<Self, AttachError> {
        let fail = |what| move |source| AttachError { device: name.to_owned(), what, source };
        let ifindex = sys::index_of(name).map_err(fail("no such device"))?;
        let virtual_peer = sys::driver_of(name) == "veth";
        let plain = |driver, why: String, attached| Self {
            name: name.to_owned(),
            ifindex,
            driver,
            why,
            queues: sys::receive_queues(name),
            virtual_peer,
            kernel_frames: kernel_frames.clone(),
            attached,
            shared: true,
            group: Mutex::default(),
        };
        let packet = |why: &str| {
            let attached = attach_packet(ifindex, kernel_frames).map_err(fail("AF_PACKET"))?;
            Ok(plain("packet", why.to_owned(), attached))
        };
        match driver {
            Driver::Packet => packet("as requested"),
            Driver::Xdp => match attach_xdp(ifindex, kernel_frames, Mode::Native) {
                Ok(attached) => Ok(plain("xdp-native", "as requested".to_owned(), attached)),
                Err(error) => {
                    let attached = attach_xdp(ifindex, kernel_frames, Mode::Generic).map_err(fail("XDP"))?;
                    Ok(plain("xdp-generic", format!("no native mode: {error}"), attached))
                }
            },
            Driver::XdpGeneric => {
                let attached =
                    attach_xdp(ifindex, kernel_frames, Mode::Generic).map_err(fail("generic XDP"))?;
                Ok(plain("xdp-generic", "as requested".to_owned(), attached))
            }
            Driver::Auto if virtual_peer => packet("only AF_PACKET passes unsegmented TSO frames over veth"),
            // Not generic mode: it saves nothing, and hands up large segments without the size of their parts.
            Driver::Auto => match attach_xdp(ifindex, kernel_frames, Mode::Native) {
                Ok(attached) => Ok(plain("xdp-native", "the driver has native XDP".to_owned(), attached)),
                Err(error) => packet(&format!("no native XDP: {error}")),
            },
        }
    }

    /// The same with a program that carries packets in the kernel. What it does not carry comes by the device `misses`,
    /// which is made, and is down.
    ///
    /// # Errors
    /// As [`Self::attach`]; EINVAL: the kernel has no such hooks.
    pub fn attach_fast(
        name: &str,
        kernel_frames: &KernelFrames,
        (fast, hooks): (&Fast, Hooks),
        misses: &str,
    ) -> Result<Self, AttachError> {
        let fail = |what| move |source| AttachError { device: name.to_owned(), what, source };
        let ifindex = sys::index_of(name).map_err(fail("no such device"))?;
        let misses = Misses::make(misses).map_err(fail("the device for what workers get"))?;
        let program = fast.attach(At::Tcx, ifindex).map_err(fail("tcx"))?;
        let in_driver = match hooks {
            Hooks::Tcx => Err("it was not asked for in the driver".to_owned()),
            Hooks::Auto => fast::not_in_driver(name).map_or(Ok(()), |why| Err(why.to_owned())),
            Hooks::Xdp => Ok(()),
        };
        let in_driver = in_driver.and_then(|()| {
            let program = fast.attach(At::Xdp, ifindex).map_err(|error| format!("no native XDP: {error}"))?;
            let sends = fast::sends_for_drivers(ifindex).unwrap_or(false).into();
            Ok(InDriver { _program: program, sends })
        });
        let by = match &in_driver {
            Ok(_) => "in the driver and at tcx".to_owned(),
            Err(why) => format!("at tcx ({why})"),
        };
        let tunnels = tunnel::load().and_then(|program| hook(&program, ifindex, Hook::Egress)).ok();
        Ok(Self {
            name: name.to_owned(),
            ifindex,
            driver: "packet",
            why: format!(
                "the kernel carries what it can by itself {by}, the rest comes by {}",
                misses.name()
            ),
            queues: sys::receive_queues(name),
            virtual_peer: sys::driver_of(name) == "veth",
            kernel_frames: kernel_frames.clone(),
            attached: Attached::Fast {
                misses,
                leaving: fast::leaving(name, ifindex),
                tapped: false.into(),
                _program: program,
                in_driver: in_driver.ok(),
                tunnels,
            },
            shared: true,
            group: Mutex::default(),
        })
    }

    /// The device by which workers get what no program carries, by name, and what programs may do with what leaves by
    /// this one, as it was when that was last looked at. `None`: it has no program.
    pub fn programs(&self) -> Option<(&str, OfDevice)> {
        let Attached::Fast { misses, leaving, tapped, in_driver, .. } = &self.attached else { return None };
        let leaving = match leaving {
            Leaving::Peer if tapped.load(Relaxed) => Leaving::Redirect,
            leaving => *leaving,
        };
        let xdp = in_driver.as_ref().is_some_and(|in_driver| in_driver.sends.load(Relaxed));
        Some((misses.name(), OfDevice { misses: misses.index(), leaving, xdp }))
    }

    /// Whether a program in its driver carries packets.
    pub fn has_program_in_driver(&self) -> bool {
        matches!(&self.attached, Attached::Fast { in_driver: Some(_), .. })
    }

    /// Looks whether sockets listen to what leaves by the device, and whether it sends what programs in other drivers
    /// redirect to it: of a veth pair, whether the other end takes that. Whether one of them has changed.
    pub fn look(&self, taps: &Taps) -> bool {
        let Attached::Fast { leaving, tapped, in_driver, .. } = &self.attached else { return false };
        let now = *leaving == Leaving::Peer && taps.are_at(self.ifindex);
        let listened = tapped.swap(now, Relaxed) != now;
        let driver = in_driver.as_ref().is_some_and(|in_driver| {
            let sends = fast::sends_for_drivers(self.ifindex).unwrap_or(false);
            in_driver.sends.swap(sends, Relaxed) != sends
        });
        listened || driver
    }

    /// Whether packets leave by the device that were given to the other end of the pair at once without a socket there.
    pub fn is_tapped(&self) -> bool {
        matches!(&self.attached, Attached::Fast { tapped, .. } if tapped.load(Relaxed))
    }

    /// The device's name when it was attached.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's index.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// `packet`, `xdp-native` or `xdp-generic`.
    pub fn driver(&self) -> &'static str {
        self.driver
    }

    /// Why this driver, for the log.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Says why it is this driver, where the caller has chosen it in place of another.
    pub fn set_why(&mut self, why: String) {
        self.why = why;
    }

    /// Queues that workers can share, each served by one: with AF_XDP those of the device, with AF_PACKET any
    /// number, and 1 is said.
    pub fn queues(&self) -> u32 {
        match self.attached {
            Attached::Xdp { .. } => self.queues,
            Attached::Packet { .. } | Attached::Fast { .. } => 1,
        }
    }

    /// Whether AF_XDP would lose VLAN tags of what comes in: it does not say which ones the driver has taken off.
    pub fn loses_tags(&self) -> bool {
        self.driver.starts_with("xdp") && !sys::tags_are_in_frames(&self.name)
    }

    /// Whether the kernel gets all frames of the device too, as there is no BPF that takes them from it: it must
    /// be kept from forwarding them by other means.
    pub fn kernel_gets_all(&self) -> bool {
        matches!(self.attached, Attached::Packet { filter: None, .. })
    }

    /// Says how many ports there will be: one alone spares AF_PACKET the hash of each packet.
    pub fn share_among(&mut self, ports: usize) {
        self.shared = ports > 1;
    }

    /// A worker's share: with AF_XDP these queues, of which none is in another port; with AF_PACKET the
    /// flows that fall to one of all ports of the device. `mtu` is the device's.
    ///
    /// # Errors
    /// EBUSY: a queue has a socket already. ENETDOWN, ENODEV: the device is gone.
    pub fn port(
        &self,
        queues: &[u32],
        mtu: usize,
        memory: &Memory,
        pool: &mut Pool,
    ) -> Result<LivePort, AttachError> {
        let fail = |what| move |source| AttachError { device: self.name.clone(), what, source };
        match &self.attached {
            Attached::Xdp { sockets, .. } => {
                // In generic mode, the kernel has also joined what came in.
                let unsaid = self.virtual_peer || self.driver == "xdp-generic";
                XdpPort::open(self.ifindex, queues, memory, pool, sockets, unsaid, mtu)
                    .map(LivePort::Xdp)
                    .map_err(fail("AF_XDP socket"))
            }
            Attached::Packet { .. } | Attached::Fast { .. } => {
                let (listened, filter, tunnels) = match &self.attached {
                    Attached::Packet { filter, tunnels, .. } => (self.ifindex, filter.as_ref(), tunnels),
                    Attached::Fast { misses, tunnels, .. } => (misses.index(), Some(&misses.filter), tunnels),
                    Attached::Xdp { .. } => unreachable!("matched above"),
                };
                let filter = filter.map(program::descriptor);
                let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
                let fanout = if self.shared { Fanout::Group(*group) } else { Fanout::Alone };
                let plain =
                    (0..self.queues).find_map(|queue| XdpPort::sender(self.ifindex, queue, memory).ok());
                let port = PacketPort::open(
                    (self.ifindex, listened),
                    filter,
                    &self.kernel_frames,
                    fanout,
                    tunnels.is_some(),
                    plain,
                    mtu,
                )
                .map_err(fail("AF_PACKET socket"))?;
                if self.shared {
                    *group = port.group().ok();
                }
                Ok(LivePort::Packet(port))
            }
        }
    }
}

/// How many BPF programs of others are at the hooks of traffic control of a device, where it receives and where it sends.
/// None before Linux 6.6, which has filters only.
pub fn programs_of_others(ifindex: u32) -> (usize, usize) {
    let at = |attach| bpf::others_at(ifindex, attach).unwrap_or(0);
    (at(Attach::TcIngress), at(Attach::TcEgress))
}

fn attach_packet(ifindex: u32, kernel_frames: &KernelFrames) -> io::Result<Attached> {
    if kernel_frames.without_bpf().is_some() {
        return Ok(Attached::Packet { filter: None, _taken: None, tunnels: None });
    }
    let filter = program::load(ProgramKind::Filter, kernel_frames, None)?;
    let drop = program::load(ProgramKind::Classifier, kernel_frames, None)?;
    let taken = hook(&drop, ifindex, Hook::Ingress)?;
    // Without it they are cut here.
    let tunnels = tunnel::load().and_then(|program| hook(&program, ifindex, Hook::Egress)).ok();
    Ok(Attached::Packet { filter: Some(filter), _taken: Some(taken), tunnels })
}

/// A program at a hook of traffic control, as long as this lives.
pub(crate) enum Hooked {
    Link { _link: OwnedFd },
    Filter { _filter: Filter },
}

pub(crate) fn hook(program: &OwnedFd, ifindex: u32, hook: Hook) -> io::Result<Hooked> {
    let attach = if hook == Hook::Ingress { Attach::TcIngress } else { Attach::TcEgress };
    match bpf::link(program, ifindex, attach, 0) {
        Ok(link) => Ok(Hooked::Link { _link: link }),
        // Before Linux 6.6, there are no links at these hooks.
        Err(_) => Ok(Hooked::Filter { _filter: Filter::attach(program, ifindex, hook)? }),
    }
}

/// Who runs the XDP program: `XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`, include/uapi/linux/if_link.h.
#[derive(Clone, Copy)]
enum Mode {
    /// The network stack.
    Generic = 1 << 1,
    /// The driver.
    Native = 1 << 2,
}

fn attach_xdp(ifindex: u32, kernel_frames: &KernelFrames, mode: Mode) -> io::Result<Attached> {
    /// Queues that a device may have.
    const QUEUES: u32 = 1024;
    let sockets = Arc::new(Map::new(MapKind::Sockets, "underpass_xsk", 4, 4, QUEUES)?);
    let redirect = Sockets { map: &sockets, missing: XDP_PASS };
    let program = program::load(ProgramKind::Xdp, kernel_frames, Some(redirect))?;
    let link = sys::soon(|| bpf::link(&program, ifindex, Attach::Xdp, mode as u32))?;
    Ok(Attached::Xdp { sockets, _link: link })
}

/// A worker's share of a device.
pub enum LivePort {
    /// AF_XDP.
    Xdp(XdpPort),
    /// AF_PACKET.
    Packet(PacketPort),
    /// A TUN or TAP device of ours.
    Tun(TunPort),
    /// The return path of frames to the kernel.
    ReturnPath(ReturnPort),
}

impl LivePort {
    /// The device has another MTU, of a length that this kind of port has room for.
    pub fn set_mtu(&mut self, mtu: usize) {
        match self {
            Self::Xdp(port) => port.set_mtu(mtu),
            Self::Packet(port) => port.set_mtu(mtu),
            Self::Tun(_) | Self::ReturnPath(_) => {}
        }
    }

    /// Puts the packets that have come into `burst`, as many as it has room for.
    #[inline]
    pub fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) {
        match self {
            Self::Xdp(port) => port.receive(pool, burst),
            Self::Packet(port) => port.receive(pool, burst),
            Self::Tun(port) => port.receive(pool, burst),
            Self::ReturnPath(_) => {}
        }
    }

    /// Sends packets. Their slots come back to the pool now or with a later call.
    #[inline]
    pub fn send(&mut self, pool: &mut Pool, packets: impl Iterator<Item = Packet>) {
        match self {
            Self::Xdp(port) => port.send(pool, packets),
            Self::Packet(port) => port.send(pool, packets),
            Self::Tun(port) => port.send(pool, packets),
            Self::ReturnPath(port) => port.send(pool, packets),
        }
    }

    /// Whether packets that were to be sent have not left yet, as the device was busy, or a socket is to be opened again, as
    /// it was down: the next call of [`LivePort::send`] tries, also without packets.
    pub fn unsent(&mut self) -> bool {
        match self {
            Self::Xdp(port) => port.unsent(),
            Self::Packet(port) => port.unsent(),
            Self::Tun(_) | Self::ReturnPath(_) => false,
        }
    }

    /// Whether [`LivePort::descriptors`] are others than when this was last asked: a socket was closed, and maybe opened
    /// again, as the device was down.
    pub fn take_changed(&mut self) -> bool {
        match self {
            Self::Xdp(port) => port.take_changed(),
            Self::Packet(_) | Self::Tun(_) | Self::ReturnPath(_) => false,
        }
    }

    /// The index of the device, and why a queue of it cannot be opened again that was closed as the device was down: said once.
    /// The kernel has what comes by that queue meanwhile.
    pub fn take_trouble(&mut self) -> Option<(u32, io::Error)> {
        match self {
            Self::Xdp(port) => port.take_trouble(),
            Self::Packet(port) => port.take_trouble(),
            Self::Tun(_) | Self::ReturnPath(_) => None,
        }
    }

    /// The descriptors that become readable when packets come, for poll(2).
    pub fn descriptors(&self) -> Vec<RawFd> {
        match self {
            Self::Xdp(port) => port.descriptors().collect(),
            Self::Packet(port) => vec![port.descriptor()],
            Self::Tun(port) => vec![port.descriptor().as_raw_fd()],
            Self::ReturnPath(_) => Vec::new(),
        }
    }

    /// What the port and the kernel before it have dropped since it was opened.
    pub fn tally(&mut self) -> Tally {
        let (tally, kernel_drops) = match self {
            Self::Xdp(port) => (port.tally, port.kernel_drops()),
            Self::Packet(port) => (port.tally(), port.kernel_drops()),
            Self::Tun(port) => (port.tally, 0),
            Self::ReturnPath(port) => (port.tally(), 0),
        };
        Tally { kernel_drops, ..tally }
    }

    /// Closes the port and gives all of its slots back.
    pub fn close(self, pool: &mut Pool) {
        match self {
            Self::Xdp(port) => port.close(pool),
            Self::Packet(port) => port.close(pool),
            Self::Tun(port) => port.close(pool),
            Self::ReturnPath(port) => port.close(pool),
        }
    }
}

/// Longest frame that a port receives into an ordinary slot.
pub const LONGEST: usize = xdp::LONGEST;
