//! Which frames the kernel keeps, of those that come in by a device that is attached. The control thread
//! says it here, by device, routing domain and address; XDP and its twins act on it.
//!
//! The kernel keeps what is neither IPv4 nor IPv6 nor, where labels are taken, MPLS behind an Ethernet header with no
//! tag but for a priority; group addresses of either layer, router and neighbour discovery, and local addresses of the
//! device's domain, but for what a tunnel or a port of foo-over-UDP claims there ([`Claim`]), and in groups that a tunnel is in. All
//! else is for a worker. A frame of a VLAN that the kernel has no device for is for both: the worker counts it, and the kernel hands
//! it to whoever it knows behind the device, in another namespace too.
//!
//! Where filters look at what comes in, a worker gets all frames of the device. Those that pass the filters and are the
//! kernel's come back to it by [`crate::return_path`].

mod claim;
mod maps;
mod rules;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use underpass_engine::worker::{Keeper, Kept};

pub use claim::Claim;
pub(crate) use claim::{ERRORS4, INFORMATION6, QUOTED};
pub(crate) use maps::{ALL, LABELS, Maps};
use rules::Rules;
pub(crate) use rules::{GROUPS4, GROUPS6, ND, VLAN_ID};

/// What is known of a device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OfDevice {
    /// The routing domain of the frames that come in by it, 0 being the default one.
    pub domain: u32,
    /// Whether a worker gets those with an MPLS label.
    pub labels: bool,
    /// Whether a worker gets all of them, as filters are to see them.
    pub all: bool,
}

/// A VLAN that the kernel has a device for, on a device that is attached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Vlan {
    /// Index of the device that tagged frames come in by.
    pub ifindex: u32,
    /// EtherType of the tag.
    pub protocol: u16,
    /// VLAN identifier.
    pub id: u16,
}

impl Vlan {
    /// {index, identifier, EtherType in network byte order}.
    fn key(self) -> [u8; 8] {
        let mut key = [0; 8];
        key[..4].copy_from_slice(&self.ifindex.to_ne_bytes());
        key[4..6].copy_from_slice(&self.id.to_ne_bytes());
        key[6..].copy_from_slice(&self.protocol.to_be_bytes());
        key
    }
}

/// The frames that the kernel keeps. Clones are the same set.
#[derive(Clone)]
pub struct KernelFrames(Arc<Inner>);

struct Inner {
    rules: RwLock<Arc<Rules>>,
    /// Changes with the rules.
    generation: AtomicU64,
    maps: Result<Maps, String>,
    mark: u32,
}

impl Default for KernelFrames {
    fn default() -> Self {
        Self::new()
    }
}

impl KernelFrames {
    /// An empty set: every frame is kept, as no device has a domain. Without the right to use BPF it works
    /// for AF_PACKET ports alone: [`KernelFrames::without_bpf`].
    pub fn new() -> Self {
        Self::with(Maps::new().map_err(|error| format!("no BPF maps: {error}")))
    }

    /// An empty set that does not use BPF.
    pub fn in_user_space(why: &str) -> Self {
        Self::with(Err(why.to_owned()))
    }

    fn with(maps: Result<Maps, String>) -> Self {
        // Neither 0 nor negative: programs compare it with a signed number.
        let mark = RandomState::new().hash_one(0) as u32 & 0x7fff_ffff | 1;
        Self(Arc::new(Inner { rules: RwLock::default(), generation: AtomicU64::new(1), maps, mark }))
    }

    /// The mark of frames that come back to the kernel, which it keeps.
    pub(crate) fn mark(&self) -> u32 {
        self.0.mark
    }

    /// Who says the same to a worker.
    pub fn keeper(&self) -> impl Keeper + use<> {
        Snapshot { frames: self.clone(), generation: 0, rules: Arc::default() }
    }

    /// Why there is no BPF. `None`: there is.
    pub fn without_bpf(&self) -> Option<&str> {
        self.0.maps.as_ref().err().map(String::as_str)
    }

    pub(crate) fn maps(&self) -> Result<&Maps, &str> {
        self.0.maps.as_ref().map_err(String::as_str)
    }

    /// What comes in by the device `ifindex` is this.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn set_device(&self, ifindex: u32, device: OfDevice) -> io::Result<()> {
        self.write(|rules| rules.devices.insert(ifindex, device));
        let OfDevice { domain, labels, all } = device;
        let flags = if labels { LABELS } else { 0 } | if all { ALL } else { 0 };
        let value = [domain.to_ne_bytes(), flags.to_ne_bytes()].concat();
        self.on_maps(|maps| maps.devices.insert(&ifindex.to_ne_bytes(), &value))
    }

    /// The same of a device that has no frames of its own on a wire: those that workers find behind tags of another's.
    pub fn set_inside(&self, ifindex: u32, device: OfDevice) {
        self.write(|rules| rules.devices.insert(ifindex, device));
    }

    /// There is no such device any more.
    pub fn remove_inside(&self, ifindex: u32) {
        self.write(|rules| rules.devices.remove(&ifindex));
    }

    /// The kernel keeps all that comes in by this device.
    ///
    /// # Errors
    /// The kernel's, which there is none for.
    pub fn remove_device(&self, ifindex: u32) -> io::Result<()> {
        self.write(|rules| rules.devices.remove(&ifindex));
        self.on_maps(|maps| maps.devices.remove(&ifindex.to_ne_bytes()))
    }

    /// The kernel keeps what is for this address of the domain, but for claims: one of its own, the broadcast address of
    /// one of its subnets, or a group that a tunnel is in.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn add_local(&self, domain: u32, address: IpAddr) -> io::Result<()> {
        self.write(|rules| rules.local.insert((domain, address)));
        self.on_maps(|maps| match address {
            IpAddr::V4(ip) => maps.local4.insert(&key(domain, &ip.octets()), &[1]),
            IpAddr::V6(ip) => maps.local6.insert(&key(domain, &ip.octets()), &[1]),
        })
    }

    /// A worker gets what is for this address of the domain.
    ///
    /// # Errors
    /// The kernel's, which there is none for.
    pub fn remove_local(&self, domain: u32, address: IpAddr) -> io::Result<()> {
        self.write(|rules| rules.local.remove(&(domain, address)));
        self.on_maps(|maps| match address {
            IpAddr::V4(ip) => maps.local4.remove(&key(domain, &ip.octets())),
            IpAddr::V6(ip) => maps.local6.remove(&key(domain, &ip.octets())),
        })
    }

    /// A worker gets this although it is for an address of the kernel's.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn add_claim(&self, claim: Claim) -> io::Result<()> {
        self.write(|rules| rules.claims.insert(claim));
        self.on_maps(|maps| maps.claims.insert(&claim.key(), &[1]))
    }

    /// The kernel keeps this again.
    ///
    /// # Errors
    /// The kernel's, which there is none for.
    pub fn remove_claim(&self, claim: Claim) -> io::Result<()> {
        self.write(|rules| rules.claims.remove(&claim));
        self.on_maps(|maps| maps.claims.remove(&claim.key()))
    }

    /// The kernel keeps the frames of this VLAN.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn add_vlan(&self, vlan: Vlan) -> io::Result<()> {
        self.write(|rules| rules.vlans.insert(vlan));
        self.on_maps(|maps| maps.vlans.insert(&vlan.key(), &[1]))
    }

    /// A worker counts the frames of this VLAN as of one that is not known.
    ///
    /// # Errors
    /// The kernel's, which there is none for.
    pub fn remove_vlan(&self, vlan: Vlan) -> io::Result<()> {
        self.write(|rules| rules.vlans.remove(&vlan));
        self.on_maps(|maps| maps.vlans.remove(&vlan.key()))
    }

    /// Whose this frame of the device is, which is as it came in: its first tag is in it.
    pub fn kept(&self, ifindex: u32, frame: &[u8]) -> Kept {
        let rules = self.0.rules.read().unwrap_or_else(PoisonError::into_inner);
        match rules.devices.get(&ifindex) {
            Some(OfDevice { all: true, .. }) => Kept::No,
            _ => rules.kept(ifindex, frame),
        }
    }

    fn write<T>(&self, change: impl FnOnce(&mut Rules) -> T) {
        change(Arc::make_mut(&mut self.0.rules.write().unwrap_or_else(PoisonError::into_inner)));
        self.0.generation.fetch_add(1, Ordering::Release);
    }

    fn on_maps(&self, change: impl FnOnce(&Maps) -> io::Result<()>) -> io::Result<()> {
        self.0.maps.as_ref().map_or(Ok(()), change)
    }
}

fn key(domain: u32, address: &[u8]) -> Vec<u8> {
    [&domain.to_ne_bytes(), address].concat()
}

/// The rules as a worker last saw them: it takes no lock before they change.
struct Snapshot {
    frames: KernelFrames,
    generation: u64,
    rules: Arc<Rules>,
}

impl Keeper for Snapshot {
    fn kept(&mut self, ifindex: u32, frame: &[u8]) -> Kept {
        let now = self.frames.0.generation.load(Ordering::Acquire);
        if now != self.generation {
            self.follow(now);
        }
        self.rules.kept(ifindex, frame)
    }
}

impl Snapshot {
    #[cold]
    fn follow(&mut self, now: u64) {
        // While they change, those before them hold.
        if let Ok(rules) = self.frames.0.rules.try_read() {
            (self.rules, self.generation) = (Arc::clone(&rules), now);
        }
    }
}
