//! The devices that the router makes in its network namespace, and its other requests there.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use libc::{IFF_MULTICAST, IFF_NOARP, RTM_DELLINK, RTM_NEWLINK};
use underpass_control::{Device, Namespace, RequestError};
use underpass_port::tun::{TunKind, TunPort};

use super::{Requester, spanning_tree};

/// `txqlen` of the devices.
const QUEUE_LENGTH: u32 = 1000;
/// The longest that a TAP device has: with the Ethernet header 65,535.
const VRF_MTU: u32 = 65521;

/// The first queues of devices that were made, until somebody takes them: a device is there as long as one
/// of its queues is open.
#[derive(Clone, Default)]
pub struct Made(Arc<Mutex<BTreeMap<u32, TunPort>>>);

impl Made {
    /// The first queue of a device, for whoever serves it. Others can be opened under its name.
    pub fn take(&self, index: u32) -> Option<TunPort> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&index)
    }

    fn keep(&self, index: u32, queue: TunPort) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(index, queue);
    }
}

/// The network namespace of the thread that opened it.
pub struct Own {
    requester: Requester,
    made: Made,
    /// Interface indices that devices had when a router before this one made them, by name.
    indices: BTreeMap<String, u32>,
}

impl Own {
    /// Connects to the kernel; `made` is where the queues of devices are found. A device that is named in `indices` is made
    /// with that index, if it is free.
    ///
    /// # Errors
    /// What socket(2) and bind(2) say.
    pub fn open(made: Made, indices: BTreeMap<String, u32>) -> io::Result<Self> {
        Ok(Self { requester: Requester::open()?, made, indices })
    }

    fn settle(&mut self, index: u32, device: Device) -> Result<(), RequestError> {
        self.requester.request(RTM_NEWLINK, 0, |message| {
            let mut header = [0; 16];
            header[4..8].copy_from_slice(&index.to_ne_bytes());
            let (set, changed) = match device {
                Device::Dummy => (IFF_NOARP, IFF_NOARP),
                // Without neighbours, as in Linux: all that the host sends by it has the device's own MAC address.
                Device::Vrf { .. } => (IFF_NOARP, IFF_NOARP | IFF_MULTICAST),
                Device::Tunnel(_) | Device::Vlan | Device::Bridge => (0, 0),
            };
            header[8..12].copy_from_slice(&(set as u32).to_ne_bytes());
            header[12..16].copy_from_slice(&(changed as u32).to_ne_bytes());
            message.fixed(&header);
            message.u32(libc::IFLA_TXQLEN, QUEUE_LENGTH);
            if let Device::Vrf { .. } = device {
                message.u32(libc::IFLA_MTU, VRF_MTU);
            }
        })
    }
}

impl Namespace for Own {
    fn request(&mut self, message: &mut [u8]) -> Result<(), RequestError> {
        self.requester.send(message)
    }

    fn make(&mut self, name: &str, device: Device) -> Result<u32, RequestError> {
        let refused = |error: io::Error| match error.raw_os_error() {
            // What a device of another's says to one that wants a queue of it.
            Some(libc::EBUSY | libc::EINVAL) => RequestError::errno(libc::EEXIST),
            Some(errno) => RequestError::errno(errno),
            None => RequestError::errno(libc::EIO),
        };
        let kind = match device {
            // Programs look for VRFs among devices of Ethernet, as Linux has them.
            Device::Vrf { .. } | Device::Dummy | Device::Vlan | Device::Bridge => TunKind::Tap,
            Device::Tunnel(kind) if kind.ethernet() => TunKind::Tap,
            Device::Tunnel(_) => TunKind::Tun,
        };
        let open = |index| TunPort::open_at(name, kind, device != Device::Dummy, index);
        // Programs that have not ended with the router before know it by this index.
        let again = self.indices.remove(name).and_then(|index| open(index).ok());
        let queue = again.map_or_else(|| open(0), Ok).map_err(refused)?;
        let index = underpass_port::index_of(name).map_err(refused)?;
        self.settle(index, device)?;
        self.made.keep(index, queue);
        Ok(index)
    }

    fn speed(&self, name: &str) -> Option<u32> {
        underpass_port::speed_of(name)
    }

    fn keep_spanning_tree(&mut self, bridge: &str, starts: bool) -> bool {
        spanning_tree::keep(Path::new(spanning_tree::PROGRAM), bridge, starts)
    }

    fn remove(&mut self, index: u32) {
        drop(self.made.take(index));
        let removed = self.requester.request(RTM_DELLINK, 0, |message| {
            let mut header = [0; 16];
            header[4..8].copy_from_slice(&index.to_ne_bytes());
            message.fixed(&header);
        });
        // It goes by itself with its last queue.
        if let Err(error) = removed
            && error.errno != libc::ENODEV
        {
            tracing::warn!("a device of the router's stays: {error}");
        }
    }
}
