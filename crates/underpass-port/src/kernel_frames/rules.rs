//! Whose a frame is, decided without BPF.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use underpass_engine::worker::Kept;
use underpass_packet::{FromBytes, ethernet, ipv4, ipv6, protocol};

use super::{Claim, OfDevice, Vlan};

/// ICMPv6 types of router and neighbour discovery, RFC 4861.
pub(crate) const ND: RangeInclusive<u8> = 133..=137;

/// The first bytes of groups of IPv4; addresses behind these are reserved, or the broadcast address.
pub(crate) const GROUPS4: RangeInclusive<u8> = 224..=239;
/// The first byte of groups of IPv6.
pub(crate) const GROUPS6: u8 = 0xff;

/// The identifier in a tag's control information; 0 names no VLAN (IEEE 802.1Q).
pub(crate) const VLAN_ID: u16 = 0x0fff;

/// What the maps hold, without BPF.
#[derive(Clone, Default)]
pub(super) struct Rules {
    pub(super) devices: HashMap<u32, OfDevice, Quick>,
    pub(super) local: HashSet<(u32, IpAddr), Quick>,
    pub(super) claims: HashSet<Claim, Quick>,
    pub(super) vlans: HashSet<Vlan, Quick>,
}

pub(super) type Quick = BuildHasherDefault<Multiply>;

/// Who sends packets chooses what is looked up, but not what is there: chains are as short as for any others.
#[derive(Default)]
pub(super) struct Multiply(u64);

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

impl Rules {
    /// See [`KernelFrames::kept`]; of frames that filters have passed.
    pub(super) fn kept(&self, ifindex: u32, frame: &[u8]) -> Kept {
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
        let to_stations = station[0] & 1 != 0;
        let (destination, claim): (IpAddr, _) = match ethertype {
            ethernet::IPV4 => match ipv4::Header::ref_from_prefix(packet) {
                Ok((header, _)) if header.destination[0] <= *GROUPS4.end() => {
                    (header.destination().into(), Claim::on_ipv4(packet))
                }
                _ => return true,
            },
            ethernet::IPV6 => match ipv6::Header::ref_from_prefix(packet) {
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
            ethernet::MPLS => return to_stations || !device.labels,
            _ => return true,
        };
        let local = self.local.contains(&(device.domain, destination));
        let claimed = claim.is_some_and(|claim| self.claims.contains(&claim));
        match destination.is_multicast() {
            true => !(local && claimed),
            false => to_stations || local && !claimed,
        }
    }
}
