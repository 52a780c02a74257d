//! VLAN devices above the others, and tags of any kind.

use underpass_engine::buffer::PortId;
use underpass_engine::tables::{LinkId, Vlan, Vlans};
use underpass_packet::ethernet;

use crate::random::Random;
use crate::router::{DEVICES, FIRST_VLAN, LINKS, Router};

/// How many there are.
pub const VLANS: usize = 8;
/// Their identifiers: in one record of the program's, and in others.
const IDS: [u16; 4] = [1, 63, 64, 4095];

/// The port inside the router by which packets leave by one.
pub fn port(link: usize) -> PortId {
    PortId(64 + link as u16)
}

/// One above any device.
pub fn vlan(devices: &[LinkId], random: &mut Random) -> Vlan {
    let mut rarely = |most: u64| random.below(most) == 0;
    let (keeps_tags, sets, reads) = (rarely(20), rarely(20), rarely(40));
    let mut ingress = [0; 8];
    if sets {
        ingress[random.below(8) as usize] = 1 + random.below(7) as u32;
    }
    Vlan {
        lower: devices[random.below(DEVICES as u64) as usize],
        protocol: any_protocol(random),
        id: IDS[random.below(IDS.len() as u64) as usize],
        keeps_tags,
        ingress,
        egress: if reads { [(0, 1 + random.below(7) as u8)].into() } else { [].into() },
    }
}

fn any_protocol(random: &mut Random) -> u16 {
    if random.below(3) == 0 { ethernet::SERVICE_VLAN } else { ethernet::VLAN }
}

impl Router {
    fn vlan_of(&self, link: usize) -> Option<&Vlan> {
        self.now_links.get(link)?.vlan.as_deref()
    }

    /// Those above a device.
    pub fn vlans_above(&self, device: usize) -> Option<Box<Vlans>> {
        let lower = self.links.get(device);
        let all = (FIRST_VLAN..LINKS).filter_map(|link| {
            let vlan = self.vlan_of(link).filter(|vlan| Some(&vlan.lower) == lower)?;
            Some((vlan.protocol, vlan.id, self.links[link]))
        });
        Vlans::new(all)
    }

    /// Which link a frame comes in by, and the frame without the tag of that.
    pub fn enters(&self, device: usize, frame: &[u8]) -> (usize, Vec<u8>) {
        let Some((protocol, control)) = tag(frame).filter(|_| frame.len() >= 20) else {
            return (device, frame.to_vec());
        };
        let is = |link: usize| {
            self.vlan_of(link).is_some_and(|vlan| {
                (vlan.lower, vlan.protocol, vlan.id) == (self.links[device], protocol, control & 0xfff)
            })
        };
        match (FIRST_VLAN..LINKS).rev().find(|link| is(*link)) {
            Some(link) => (link, untagged(frame)),
            None => (device, frame.to_vec()),
        }
    }

    /// A link by which frames come in by a device, and the tag that they have then.
    pub fn any_above(&self, device: usize, random: &mut Random) -> (usize, Option<[u8; 4]>) {
        let bytes = |protocol: u16, control: u16| {
            let ([a, b], [c, d]) = (protocol.to_be_bytes(), control.to_be_bytes());
            Some([a, b, c, d])
        };
        let control = random.next() as u16;
        match random.below(50) {
            0 => (device, bytes(any_protocol(random), control)),
            1 => (device, bytes(any_protocol(random), control & 0xf000)),
            2..8 => {
                let lower = self.links[device];
                let above: Vec<(usize, &Vlan)> = (FIRST_VLAN..LINKS)
                    .filter_map(|link| Some((link, self.vlan_of(link).filter(|vlan| vlan.lower == lower)?)))
                    .collect();
                match above.get((random.next() as usize).checked_rem(above.len()).unwrap_or(0)) {
                    Some((link, vlan)) => (*link, bytes(vlan.protocol, control & 0xf000 | vlan.id)),
                    None => (device, None),
                }
            }
            _ => (device, None),
        }
    }
}

/// Protocol and control information of the tag that a frame begins with. `None`: it has none, or ends in it.
pub fn tag(frame: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = frame.get(12..18)?.first_chunk().copied()?;
    let protocol = u16::from_be_bytes([a, b]);
    matches!(protocol, ethernet::VLAN | ethernet::SERVICE_VLAN)
        .then_some((protocol, u16::from_be_bytes([c, d])))
}

/// A frame without the tag that it begins with.
pub fn untagged(frame: &[u8]) -> Vec<u8> {
    match tag(frame) {
        Some(_) => [&frame[..12], &frame[16..]].concat(),
        None => frame.to_vec(),
    }
}
