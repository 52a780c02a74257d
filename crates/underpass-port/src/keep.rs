//! Which frames the kernel keeps, of those that come in by a device that is attached. The control thread
//! says it here, by device, routing domain and address; XDP and its twins act on it.
//!
//! The kernel keeps what is neither IPv4 nor IPv6 nor, where labels are taken, MPLS behind an Ethernet header with no
//! tag but for a priority; group addresses of either layer, router and neighbour discovery, and local addresses of the
//! device's domain, but for what a tunnel or a port of foo-over-UDP claims there ([`Claim`]). All else is for a
//! worker. A frame of a VLAN that the kernel has no device for is for both: the worker counts it, and the kernel hands
//! it to whoever it knows behind the device, in another namespace too.
//!
//! Where filters look at what comes in, a worker gets all frames of the device. Those that pass the filters and are the
//! kernel's come back to it by [`crate::back`].

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use underpass_engine::worker::{Keeper, Kept};
use underpass_packet::{FromBytes, ethernet, ipv4, ipv6, protocol};

use crate::xdp::bpf::{Map, MapKind};

/// ICMPv6 types of router and neighbour discovery, RFC 4861.
pub(crate) const ND: RangeInclusive<u8> = 133..=137;

/// IPv4 addresses whose first byte is at least this are multicast, reserved or broadcast.
pub(crate) const NEVER_FORWARDED: u8 = 224;

/// Most devices, and most addresses of each family. Entries take memory as they come, the table for them, of
/// 16 bytes each, at once.
const DEVICES: u32 = 1 << 12;
const ADDRESSES: u32 = 1 << 16;
/// Most claims: protocols of tunnels, and UDP ports.
const CLAIMS: u32 = 1 << 12;
/// Most VLANs that the kernel has devices for.
const VLANS: u32 = 1 << 16;

/// The identifier in a tag's control information; 0 names no VLAN (IEEE 802.1Q).
pub(crate) const VLAN_ID: u16 = 0x0fff;

/// ICMP errors about a packet that was sent: unreachable, time exceeded, parameter problem.
pub(crate) const ERRORS4: [u8; 3] = [3, 11, 12];
/// ICMPv6 types below this are errors.
pub(crate) const INFORMATION6: u8 = 128;
/// Of a claim's key, added to the family: it is about what is quoted in an ICMP error.
pub(crate) const QUOTED: u8 = 0x80;

/// What is for a worker although its destination is one of the kernel's own addresses.
///
/// UDP behind IPv4 options is the kernel's. Behind hop-by-hop options nothing is looked at: the claim is on these
/// ([`protocol::HOP_BY_HOP`]), but for addresses of the link. A destination options header of 8 bytes, as Linux puts before a tunnel's
/// packets, is looked behind, and a fragment header behind or without it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Claim {
    /// Over IPv6, else over IPv4.
    pub ipv6: bool,
    /// IP protocol. That of a fragment header ([`protocol::FRAGMENT`]), over IPv4 too: fragments of UDP, of which only
    /// the first says a port.
    pub protocol: u8,
    /// UDP destination port; 0 for other protocols.
    pub port: u16,
    /// ICMP errors that quote such a packet, instead of the packet itself.
    pub quoted: bool,
}

impl Claim {
    /// {family and whether it is quoted, protocol, port in network byte order}.
    fn key(self) -> [u8; 4] {
        let family = if self.ipv6 { 6 } else { 4 } | if self.quoted { QUOTED } else { 0 };
        let [high, low] = self.port.to_be_bytes();
        [family, self.protocol, high, low]
    }

    /// The claim that there must be for a worker to get this IPv4 packet.
    fn on_ipv4(packet: &[u8]) -> Option<Self> {
        let of = |packet: &[u8], at: usize| match packet.get(at + 9)? {
            &protocol::UDP => {
                let plain = packet.get(at) == Some(&0x45);
                let port = u16::from_be_bytes([*packet.get(at + 22)?, *packet.get(at + 23)?]);
                plain.then_some((protocol::UDP, port))
            }
            other => Some((*other, 0)),
        };
        let quoted = packet.get(9) == Some(&protocol::ICMP);
        let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff != 0;
        let (protocol, port) = if quoted {
            let plain = packet.first() == Some(&0x45) && !fragment;
            of(packet, 28).filter(|_| plain && ERRORS4.contains(&packet[20]))?
        } else {
            match of(packet, 0)? {
                (protocol::UDP, _) if fragment => (protocol::FRAGMENT, 0),
                found => found,
            }
        };
        Some(Self { ipv6: false, protocol, port, quoted })
    }

    /// The claim that there must be for a worker to get this IPv6 packet.
    fn on_ipv6(packet: &[u8]) -> Option<Self> {
        if packet.get(6) == Some(&protocol::HOP_BY_HOP) && is_link_local(packet) {
            return None;
        }
        let of = |at: usize| {
            let (mut protocol, mut next) = (*packet.get(at + 6)?, at + 40);
            if protocol == protocol::DESTINATION_OPTIONS {
                if *packet.get(next + 7).and(packet.get(next + 1))? != 0 {
                    return None;
                }
                protocol = *packet.get(next)?;
                next += 8;
            }
            if protocol == protocol::FRAGMENT {
                let inside = *packet.get(next + 7).and(packet.get(next))?;
                return Some((if inside == protocol::UDP { protocol } else { inside }, 0));
            }
            let port = match protocol {
                protocol::UDP => u16::from_be_bytes([*packet.get(next + 2)?, *packet.get(next + 3)?]),
                _ => 0,
            };
            Some((protocol, port))
        };
        let quoted = packet.get(6) == Some(&protocol::ICMPV6);
        let (protocol, port) = if quoted { of(48).filter(|_| packet[40] < INFORMATION6)? } else { of(0)? };
        Some(Self { ipv6: true, protocol, port, quoted })
    }
}

/// Whether an IPv6 packet is for an address of the link, to which nobody but the kernel can hand it over.
fn is_link_local(packet: &[u8]) -> bool {
    matches!(packet.get(24..26), Some([0xfe, 0x80..=0xbf]))
}

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

/// Bits of what the maps say of a device.
pub(crate) const LABELS: u32 = 1;
pub(crate) const ALL: u32 = 2;

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
pub struct Keep(Arc<Inner>);

struct Inner {
    rules: RwLock<Arc<Rules>>,
    /// Changes with the rules.
    generation: AtomicU64,
    maps: Result<Maps, String>,
    mark: u32,
}

/// The maps that the programs read. Keys are in the machine's byte order but for addresses and EtherTypes.
pub(crate) struct Maps {
    /// Index of a device → {domain, [`LABELS`] and [`ALL`]}, 4 bytes each.
    pub(crate) devices: Map,
    /// {domain, IPv4 address} → 1.
    pub(crate) local4: Map,
    /// {domain, IPv6 address} → 1.
    pub(crate) local6: Map,
    /// A claim → 1.
    pub(crate) claims: Map,
    /// A [`Vlan`] → 1.
    pub(crate) vlans: Map,
}

/// What the maps hold, without BPF.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    devices: HashMap<u32, OfDevice, Quick>,
    local: HashSet<(u32, IpAddr), Quick>,
    claims: HashSet<Claim, Quick>,
    vlans: HashSet<Vlan, Quick>,
}

type Quick = BuildHasherDefault<Multiply>;

/// Who sends packets chooses what is looked up, but not what is there: chains are as short as for any others.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
            self.0 = (self.0.rotate_left(5) ^ u64::from_ne_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

impl Default for Keep {
    fn default() -> Self {
        Self::new()
    }
}

impl Keep {
    /// An empty set: every frame is kept, as no device has a domain. Without the right to use BPF it works
    /// for AF_PACKET ports alone: [`Keep::without_bpf`].
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
        Snapshot { keep: self.clone(), generation: 0, rules: Arc::default() }
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

    /// The kernel keeps all that comes in by this device.
    ///
    /// # Errors
    /// The kernel's, which there is none for.
    pub fn remove_device(&self, ifindex: u32) -> io::Result<()> {
        self.write(|rules| rules.devices.remove(&ifindex));
        self.on_maps(|maps| maps.devices.remove(&ifindex.to_ne_bytes()))
    }

    /// The kernel keeps what is for this address of the domain: one of its own, or the broadcast address of
    /// one of its subnets.
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

impl Maps {
    fn new() -> io::Result<Self> {
        Ok(Self {
            devices: Map::new(MapKind::Hash, "underpass_dev", 4, 8, DEVICES)?,
            local4: Map::new(MapKind::Hash, "underpass_ip4", 8, 1, ADDRESSES)?,
            local6: Map::new(MapKind::Hash, "underpass_ip6", 20, 1, ADDRESSES)?,
            claims: Map::new(MapKind::Hash, "underpass_claim", 4, 1, CLAIMS)?,
            vlans: Map::new(MapKind::Hash, "underpass_vlan", 8, 1, VLANS)?,
        })
    }
}

/// The rules as a worker last saw them: it takes no lock before they change.
struct Snapshot {
    keep: Keep,
    generation: u64,
    rules: Arc<Rules>,
}

impl Keeper for Snapshot {
    fn kept(&mut self, ifindex: u32, frame: &[u8]) -> Kept {
        let now = self.keep.0.generation.load(Ordering::Acquire);
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
        if let Ok(rules) = self.keep.0.rules.try_read() {
            (self.rules, self.generation) = (Arc::clone(&rules), now);
        }
    }
}

impl Rules {
    /// See [`Keep::kept`]; of frames that filters have passed.
    fn kept(&self, ifindex: u32, frame: &[u8]) -> Kept {
        let (Ok((link, packet)), Some(device)) = (ethernet::Header::parse(frame), self.devices.get(&ifindex))
        else {
            return Kept::Yes;
        };
        let protocol = link.ethertype.get();
        let (ethertype, packet) = match (protocol, packet) {
            (ethernet::VLAN | ethernet::SERVICE_VLAN, [high, low, kind, kind1, inside @ ..]) => {
                let id = u16::from_be_bytes([*high, *low]) & VLAN_ID;
                if id != 0 {
                    let known = self.vlans.contains(&Vlan { ifindex, protocol, id });
                    return if known { Kept::Yes } else { Kept::Copy };
                }
                (u16::from_be_bytes([*kind, *kind1]), inside)
            }
            _ => (protocol, packet),
        };
        if self.kernel_keeps(*device, link.destination, ethertype, packet) { Kept::Yes } else { Kept::No }
    }

    /// Whether the kernel keeps a frame with no tag, or with a priority tag that is off.
    fn kernel_keeps(&self, device: OfDevice, station: [u8; 6], ethertype: u16, packet: &[u8]) -> bool {
        if station[0] & 1 != 0 {
            return true;
        }
        let (destination, claim): (IpAddr, _) = match ethertype {
            ethernet::IPV4 => match ipv4::Header::ref_from_prefix(packet) {
                Ok((header, _)) if header.destination().octets()[0] < NEVER_FORWARDED => {
                    (header.destination().into(), Claim::on_ipv4(packet))
                }
                _ => return true,
            },
            ethernet::IPV6 => match ipv6::Header::ref_from_prefix(packet) {
                Ok((header, _)) if header.destination().is_multicast() => return true,
                Ok((header, rest)) => {
                    let discovery = header.next_header == protocol::ICMPV6
                        && rest.first().is_none_or(|kind| ND.contains(kind));
                    if discovery {
                        return true;
                    }
                    (header.destination().into(), Claim::on_ipv6(packet))
                }
                Err(_) => return true,
            },
            ethernet::MPLS => return !device.labels,
            _ => return true,
        };
        self.local.contains(&(device.domain, destination))
            && !claim.is_some_and(|claim| self.claims.contains(&claim))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::xdp::bpf::{self, ProgramKind};
    use crate::xdp::program::{self, Sockets, XDP_PASS};

    /// The device that a test run of a program comes in by, `lo`; and one of another domain.
    const DEVICE: u32 = 1;
    const DOMAIN: u32 = 7;
    const TCX_NEXT: u32 = u32::MAX;
    const XDP_DROP: i32 = 1;

    const LOCAL4: [u8; 4] = [10, 0, 0, 1];
    const LOCAL6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    fn keeps(keep: &Keep, ifindex: u32, frame: &[u8]) -> bool {
        keep.kept(ifindex, frame) == Kept::Yes
    }

    fn device(labels: bool) -> OfDevice {
        OfDevice { domain: DOMAIN, labels, all: false }
    }

    fn keep() -> Keep {
        let keep = Keep::new();
        keep.set_device(DEVICE, device(true)).unwrap();
        keep.add_local(DOMAIN, LOCAL4.into()).unwrap();
        keep.add_local(DOMAIN, LOCAL6.into()).unwrap();
        keep.add_local(DOMAIN, LINK_LOCAL.into()).unwrap();
        keep.add_local(0, [10, 0, 0, 2].into()).unwrap();
        keep.add_vlan(Vlan { ifindex: DEVICE, protocol: ethernet::VLAN, id: 5 }).unwrap();
        for claim in CLAIMS {
            keep.add_claim(claim).unwrap();
        }
        keep
    }

    const PORT: u16 = 0x5555;
    const CLAIMS: [Claim; 9] = [
        Claim { ipv6: true, protocol: protocol::HOP_BY_HOP, port: 0, quoted: false },
        Claim { ipv6: false, protocol: protocol::GRE, port: 0, quoted: false },
        Claim { ipv6: false, protocol: protocol::UDP, port: PORT, quoted: false },
        Claim { ipv6: false, protocol: protocol::UDP, port: PORT, quoted: true },
        Claim { ipv6: true, protocol: protocol::GRE, port: 0, quoted: true },
        Claim { ipv6: true, protocol: protocol::GRE, port: 0, quoted: false },
        Claim { ipv6: true, protocol: protocol::UDP, port: PORT, quoted: false },
        Claim { ipv6: false, protocol: protocol::FRAGMENT, port: 0, quoted: false },
        Claim { ipv6: true, protocol: protocol::FRAGMENT, port: 0, quoted: false },
    ];

    /// A packet of this protocol, with `PORT` where UDP has its destination port.
    fn outer4(protocol: u8) -> Vec<u8> {
        changed([ip4(LOCAL4), vec![0; 66]].concat(), &[(23, protocol), (36, 0x55), (37, 0x55)])
    }

    /// An ICMP error about a packet of this protocol to `PORT`.
    fn error4(kind: u8, protocol: u8) -> Vec<u8> {
        let quoted = [(34, kind), (42, 0x45), (51, protocol), (64, 0x55), (65, 0x55)];
        changed(outer4(protocol::ICMP), &quoted)
    }

    fn outer6(protocol: u8) -> Vec<u8> {
        changed([ip6(LOCAL6, protocol, 0), vec![0; 50]].concat(), &[(56, 0x55), (57, 0x55)])
    }

    /// With a destination options header.
    fn limited6(protocol: u8) -> Vec<u8> {
        changed(outer6(protocol::DESTINATION_OPTIONS), &[(54, protocol), (64, 0x55), (65, 0x55)])
    }

    fn error6(kind: u8, protocol: u8) -> Vec<u8> {
        let quoted = [(54, kind), (68, protocol), (102, protocol::GRE), (104, 0x55), (105, 0x55)];
        changed(outer6(protocol::ICMPV6), &quoted)
    }

    fn ip4(destination: [u8; 4]) -> Vec<u8> {
        let mut frame =
            [vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 40], vec![0; 36]].concat();
        frame[23] = 17;
        frame[30..34].copy_from_slice(&destination);
        frame
    }

    fn ip6(destination: [u8; 16], next: u8, kind: u8) -> Vec<u8> {
        let mut frame = [vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60], vec![0; 55]].concat();
        frame[38..54].copy_from_slice(&destination);
        (frame[19], frame[20], frame[54]) = (16, next, kind);
        frame
    }

    /// A packet behind one label.
    fn labelled() -> Vec<u8> {
        let mut frame = ip4(LOCAL4);
        frame.splice(12..14, [0x88, 0x47, 0, 0x06, 0x41, 64]);
        frame
    }

    fn tagged(mut frame: Vec<u8>, kind: u16, control: u16) -> Vec<u8> {
        frame.splice(12..12, [kind.to_be_bytes(), control.to_be_bytes()].concat());
        frame
    }

    fn changed(mut frame: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(*at) {
                *place = *byte;
            }
        }
        frame
    }

    #[test]
    fn what_the_kernel_keeps() {
        let keep = keep();
        let mut elsewhere = LOCAL6;
        elsewhere[15] = 9;
        let cases = [
            ("local", ip4(LOCAL4), true),
            ("local in another domain", ip4([10, 0, 0, 2]), false),
            ("transit", ip4([10, 9, 9, 9]), false),
            ("multicast", ip4([224, 0, 0, 5]), true),
            ("broadcast", ip4([255; 4]), true),
            ("local", ip6(LOCAL6, 6, 0), true),
            ("transit", ip6(elsewhere, 6, 0), false),
            ("multicast", ip6([0xff; 16], 6, 0), true),
            ("echo request", ip6(elsewhere, 58, 128), false),
            ("router solicitation", ip6(elsewhere, 58, 133), true),
            ("redirect", ip6(elsewhere, 58, 137), true),
            ("behind discovery", ip6(elsewhere, 58, 138), false),
            ("UDP that looks like discovery", ip6(elsewhere, 17, 135), false),
            ("ICMPv6 without a type", ip6(elsewhere, 58, 128)[..54].to_vec(), true),
            ("group frame", changed(ip4([10, 9, 9, 9]), &[(0, 3)]), true),
            ("ARP", changed(ip4([10, 9, 9, 9]), &[(13, 6)]), true),
            ("VLAN of the kernel's", tagged(ip4([10, 9, 9, 9]), 0x8100, 0x3005), true),
            ("VLAN of the kernel's with another kind of tag", tagged(ip4(LOCAL4), 0x88a8, 5), false),
            ("another VLAN", tagged(ip4(LOCAL4), 0x8100, 6), false),
            ("another VLAN in a group frame", tagged(changed(ip4(LOCAL4), &[(0, 3)]), 0x8100, 6), false),
            ("local behind a priority tag", tagged(ip4(LOCAL4), 0x8100, 0xe000), true),
            ("transit behind a priority tag", tagged(ip4([10, 9, 9, 9]), 0x88a8, 0), false),
            ("label behind a priority tag", tagged(labelled(), 0x8100, 0), false),
            ("half a tag", tagged(ip4([10, 9, 9, 9]), 0x8100, 0)[..16].to_vec(), true),
            ("too short", ip4([10, 9, 9, 9])[..33].to_vec(), true),
            ("label", labelled(), false),
            ("label alone", labelled()[..18].to_vec(), false),
            ("half a label", labelled()[..16].to_vec(), false),
            ("label in a group frame", changed(labelled(), &[(0, 3)]), true),
            ("GRE", outer4(protocol::GRE), false),
            ("GRE behind options", changed(outer4(protocol::GRE), &[(14, 0x46)]), false),
            ("a fragment of GRE", changed(outer4(protocol::GRE), &[(21, 9)]), false),
            ("IPv4 in IPv4, which nobody claims", outer4(protocol::IPV4), true),
            ("foo-over-UDP", outer4(protocol::UDP), false),
            ("another UDP port", changed(outer4(protocol::UDP), &[(37, 0x56)]), true),
            ("foo-over-UDP behind options", changed(outer4(protocol::UDP), &[(14, 0x46)]), true),
            ("a fragment of foo-over-UDP", changed(outer4(protocol::UDP), &[(20, 0x20)]), false),
            ("a fragment of TCP", changed(outer4(protocol::TCP), &[(20, 0x20)]), true),
            (
                "a fragment of foo-over-UDP over IPv6",
                changed(outer6(protocol::FRAGMENT), &[(54, protocol::UDP)]),
                false,
            ),
            (
                "a fragment of TCP over IPv6",
                changed(outer6(protocol::FRAGMENT), &[(54, protocol::TCP)]),
                true,
            ),
            (
                "a fragment behind a tunnel limit",
                changed(limited6(protocol::FRAGMENT), &[(62, protocol::GRE)]),
                false,
            ),
            ("not to be fragmented", changed(outer4(protocol::UDP), &[(20, 0x40)]), false),
            ("foo-over-UDP to another", changed(outer4(protocol::UDP), &[(33, 2)]), false),
            ("an error about foo-over-UDP", error4(3, protocol::UDP), false),
            ("an error about GRE, which nobody claims", error4(3, protocol::GRE), true),
            ("an echo request", error4(8, protocol::UDP), true),
            ("GRE", outer6(protocol::GRE), false),
            ("GRE behind a tunnel limit", limited6(protocol::GRE), false),
            ("hop-by-hop options", outer6(protocol::HOP_BY_HOP), false),
            ("hop-by-hop options to the link", ip6(LINK_LOCAL, protocol::HOP_BY_HOP, 0), true),
            ("foo-over-UDP", outer6(protocol::UDP), false),
            ("foo-over-UDP behind a tunnel limit", limited6(protocol::UDP), false),
            ("behind longer options", changed(limited6(protocol::UDP), &[(55, 1)]), true),
            ("IPv6 in IPv6, which nobody claims", limited6(protocol::IPV6), true),
            ("an error about GRE", error6(2, protocol::GRE), false),
            ("an error about GRE with a limit", error6(2, protocol::DESTINATION_OPTIONS), false),
            ("an error about UDP, which nobody claims", error6(2, protocol::UDP), true),
            ("an echo request", error6(128, protocol::GRE), true),
            ("upstream-assigned label", changed(labelled(), &[(13, 0x48)]), true),
        ];
        for (what, frame, kept) in &cases {
            assert_eq!(keeps(&keep, DEVICE, frame), *kept, "{what}");
            assert!(keeps(&keep, 2, frame), "{what}, by a device that is not attached");
        }
        let vlan = Vlan { ifindex: DEVICE, protocol: ethernet::VLAN, id: 5 };
        assert_eq!(keep.kept(DEVICE, &tagged(ip4(LOCAL4), 0x8100, 6)), Kept::Copy);
        keep.remove_vlan(vlan).unwrap();
        assert_eq!(keep.kept(DEVICE, &tagged(ip4(LOCAL4), 0x8100, 5)), Kept::Copy);
        CLAIMS.into_iter().for_each(|claim| keep.remove_claim(claim).unwrap());
        assert!(keeps(&keep, DEVICE, &outer4(protocol::GRE)));
        assert!(keeps(&keep, DEVICE, &outer6(protocol::UDP)));
        keep.remove_local(DOMAIN, LOCAL4.into()).unwrap();
        assert!(!keeps(&keep, DEVICE, &ip4(LOCAL4)));
        keep.set_device(DEVICE, device(false)).unwrap();
        assert!(keeps(&keep, DEVICE, &labelled()), "labels are not taken");
        assert!(!keeps(&keep, DEVICE, &ip4(LOCAL4)));
        keep.remove_device(DEVICE).unwrap();
        assert!(keeps(&keep, DEVICE, &ip4(LOCAL4)));
    }

    /// A worker hears of changes; that it gets all frames does not say whose they are.
    #[test]
    fn a_keeper_follows() {
        let keep = keep();
        let mut keeper = keep.keeper();
        assert_eq!(keeper.kept(DEVICE, &ip4(LOCAL4)), Kept::Yes);
        keep.set_device(DEVICE, OfDevice { all: true, ..device(true) }).unwrap();
        assert_eq!(
            (keep.kept(DEVICE, &ip4(LOCAL4)), keeper.kept(DEVICE, &ip4(LOCAL4))),
            (Kept::No, Kept::Yes)
        );
        keep.remove_local(DOMAIN, LOCAL4.into()).unwrap();
        assert_eq!(keeper.kept(DEVICE, &ip4(LOCAL4)), Kept::No);
    }

    /// Where a worker gets all frames, only those that come back from it are the kernel's.
    #[test]
    fn the_programs_give_all() {
        let keep = keep();
        keep.set_device(DEVICE, OfDevice { all: true, ..device(false) }).unwrap();
        let Ok(_) = keep.maps() else {
            eprintln!("SKIPPED the_programs_give_all: {}", keep.without_bpf().unwrap_or_default());
            return;
        };
        let sockets = Map::new(MapKind::Sockets, "test", 4, 4, 1).unwrap();
        let redirect = Sockets { map: &sockets, missing: XDP_DROP };
        let xdp = program::load(ProgramKind::Xdp, &keep, Some(redirect)).unwrap();
        let classifier = program::load(ProgramKind::Classifier, &keep, None).unwrap();
        // `struct __sk_buff` with a mark.
        let mut back = [0; 192];
        back[8..12].copy_from_slice(&keep.mark().to_ne_bytes());
        for frame in
            [ip4(LOCAL4), changed(ip4(LOCAL4), &[(0, 3)]), changed(ip4(LOCAL4), &[(13, 6)]), labelled()]
        {
            assert_eq!(bpf::test_run(&xdp, &frame, &[]).unwrap(), XDP_DROP as u32);
            assert_ne!(bpf::test_run(&classifier, &frame, &[]).unwrap(), TCX_NEXT);
            assert_eq!(bpf::test_run(&classifier, &frame, &back).unwrap(), TCX_NEXT);
        }
    }

    /// The programs, run by the kernel, decide as [`Keep::kept`] does.
    #[test]
    fn the_programs_agree() {
        let keep = keep();
        agree(&keep);
        keep.set_device(DEVICE, device(false)).unwrap();
        agree(&keep);
    }

    fn agree(keep: &Keep) {
        let Ok(_) = keep.maps() else {
            eprintln!("SKIPPED the_programs_agree: {}", keep.without_bpf().unwrap_or_default());
            return;
        };
        let sockets = Map::new(MapKind::Sockets, "test", 4, 4, 1).unwrap();
        let redirect = Sockets { map: &sockets, missing: XDP_DROP };
        let xdp = program::load(ProgramKind::Xdp, keep, Some(redirect)).unwrap();
        let classifier = program::load(ProgramKind::Classifier, keep, None).unwrap();
        program::load(ProgramKind::Filter, keep, None).unwrap();
        let number = || {
            prop_oneof![
                Just(protocol::GRE),
                Just(protocol::UDP),
                Just(protocol::ICMP),
                Just(protocol::ICMPV6),
                Just(protocol::DESTINATION_OPTIONS),
                Just(protocol::HOP_BY_HOP),
                Just(protocol::FRAGMENT),
                any::<u8>(),
            ]
        };
        let frame = prop_oneof![
            any::<[u8; 4]>().prop_map(ip4),
            Just(ip4(LOCAL4)),
            Just(ip4([10, 0, 0, 2])),
            (any::<[u8; 16]>(), any::<u8>(), any::<u8>()).prop_map(|(to, next, kind)| ip6(to, next, kind)),
            (any::<[u8; 16]>(), 130..140_u8).prop_map(|(to, kind)| ip6(to, 58, kind)),
            any::<u8>().prop_map(|next| ip6(LOCAL6, next, 0)),
            number().prop_map(|next| ip6(LINK_LOCAL, next, 0)),
            Just(labelled()),
        ];
        let outer = prop_oneof![
            number().prop_map(outer4),
            (any::<u8>(), number()).prop_map(|(kind, of)| error4(kind, of)),
            (Just(3_u8), number()).prop_map(|(kind, of)| error4(kind, of)),
            number().prop_map(outer6),
            number().prop_map(limited6),
            (any::<u8>(), number()).prop_map(|(kind, of)| error6(kind, of)),
        ];
        let tag = prop_oneof![Just(0), Just(0xe000), Just(5), any::<u16>()];
        let kind = prop_oneof![Just(0x8100), Just(0x88a8)];
        let behind = (frame.clone(), kind, tag).prop_map(|(frame, kind, tag)| tagged(frame, kind, tag));
        let frame = prop_oneof![2 => frame, 2 => outer, 1 => behind];
        let changes = proptest::collection::vec((0..114_usize, any::<u8>()), 0..2);
        let strategy = (frame, changes, prop_oneof![14..70_usize, 34..120_usize, Just(120)]);
        proptest!(|((frame, changes, len) in strategy)| {
            let mut frame = changed(frame, &changes);
            frame.truncate(len);
            let kept = keep.kept(DEVICE, &frame) != Kept::No;
            let said = bpf::test_run(&xdp, &frame, &[]).unwrap();
            prop_assert_eq!(said == XDP_PASS as u32, kept, "XDP says {}", said);
            // A tag lies elsewhere by then, and the kernel wants the address headers of IP whole.
            let tagged = frame[12..14] == [0x81, 0] || frame[12..14] == [0x88, 0xa8];
            if !tagged && let Ok(said) = bpf::test_run(&classifier, &frame, &[]) {
                prop_assert_eq!(said == TCX_NEXT, kept, "the classifier says {}", said);
            }
        });
    }
}
