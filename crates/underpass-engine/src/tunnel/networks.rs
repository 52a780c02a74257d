//! Frames that come out of VXLANs and Geneve devices in rows, to the bridges of which these are ports: what of `vxlan.rs` and
//! `geneve.rs` is simple.

use underpass_packet::{ethernet, geneve, gre, protocol, vxlan};

use crate::buffer::Packet;
use crate::l2::bridge::networks::{put_on, tag_in};
use crate::tables::{
    Behind, FouPayload, Ingress, Link, LinkId, StoredTunnel, TunnelId, TunnelKind, of_geneve, of_vxlan,
};
use crate::trace::Trace;
use crate::tunnel::come_out::{come_out_together, count_received, go_on_together};
use crate::tunnel::find::is_own4;
use crate::tunnel::outer::UDP;
use crate::tunnel::outer_fast::OuterFast;
use crate::tunnel::stations::hears;
use crate::tunnel::{ECN, ecn_inside};
use crate::worker::env::{BurstContext, Packets};
use crate::worker::family::Family;
use crate::worker::fibs::Fibs;
use crate::worker::lookup::{BurstLookup, Looked};
use crate::worker::path::{Burst, Path};
use crate::worker::rewrite::ETHERNET;
use crate::worker::view::View;

/// What a device is found by among those of a port: the network. Geneve has one for each other end, too, and VXLAN none.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Network<A> {
    vni: u32,
    remote: Option<A>,
}

/// The device of a network, a port of a bridge.
#[derive(Clone, Copy)]
struct Device<'a> {
    tunnel: &'a StoredTunnel,
    link: &'a Link,
    takes_unsummed: bool,
    /// Its link and what frames without a tag get, in one number: [`place_of`].
    place: u64,
    /// Where stations are learned, if they are.
    learns: Option<&'a Behind>,
}

/// No device.
const NOWHERE: u64 = u64::MAX;

/// A device and the tag that frames without one get: that of the VLAN that the network is, of a device that is external.
fn place_of(link: LinkId, tag: Option<[u8; 4]>) -> u64 {
    u64::from(tag.map_or(0, u32::from_be_bytes)) << 32 | u64::from(link.0)
}

/// The tag in such a place.
fn tag_of(place: u64) -> Option<[u8; 4]> {
    Some(((place >> 32) as u32).to_be_bytes()).filter(|tag| *tag != [0; 4])
}

/// The other end that the last datagram of a run came from: its number is known where stations are learned.
#[derive(Clone, Copy)]
struct Sender<A> {
    address: A,
    number: Option<u32>,
}

/// Datagrams in a row for the same address of the router's.
struct DecapRun<'a, A> {
    ingress: Ingress,
    /// The last port, and what is in its datagrams; the device is one of those.
    port: Option<(u16, FouPayload)>,
    device: Option<(Network<A>, Device<'a>)>,
    sender: Option<Sender<A>>,
}

impl<'a, A: Family> DecapRun<'a, A> {
    /// Takes the frame out of a packet of `len` bytes in a frame: the place of its device, which is the last. `None`: it is not so
    /// simple, and as it was.
    #[inline(always)]
    fn take(
        &mut self,
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        (packet, len): (&mut Packet, usize),
    ) -> Option<u64> {
        if packet.has_offload() {
            return None;
        }
        let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
        let outer = OuterFast::<A>::read(bytes)?;
        if outer.protocol != protocol::UDP {
            return None;
        }
        let port = outer.port(bytes)?;
        let payload = match self.port {
            Some((known, payload)) if known == port => payload,
            _ => self.find_port(view, &outer, port)?,
        };
        let has_checksum = outer.has_checksum(bytes)?;
        let inside = bytes.get(outer.at + UDP..)?;
        let (vni, header, remote) = match payload {
            // An external one: `find_port`.
            FouPayload::Vxlan | FouPayload::Device(_) => (vxlan::parse(inside).ok()?.0, vxlan::LEN, None),
            FouPayload::Geneve => {
                let header = geneve::parse(inside).ok()?;
                if header.critical || header.protocol != gre::TRANSPARENT_ETHERNET {
                    return None;
                }
                (header.vni, header.len, Some(outer.remote))
            }
            _ => return None,
        };
        let network = Network { vni, remote };
        if self.device.as_ref().is_none_or(|(found, _)| *found != network) {
            self.find(view, (port, payload), network)?;
        }
        let device = &self.device.as_ref()?.1;
        let sender = match self.sender {
            Some(sender) if sender.address == outer.remote => sender,
            _ => Self::sender(view, fibs, (outer.remote, self.ingress), (device, &mut self.sender))?,
        };
        let frame = inside.get(header..)?;
        let [_, _, _, _, _, _, source @ .., high, low] = *frame.first_chunk::<ETHERNET>()?;
        if device.link.mac == source || !has_checksum && A::IPV6 && !device.takes_unsummed {
            return None;
        }
        if outer.tos & ECN != 0 {
            let own = match (u16::from_be_bytes([high, low]), frame.get(ETHERNET..)?) {
                (ethernet::IPV4, [_, tos, ..]) => *tos,
                (ethernet::IPV6, [_, second, ..]) => second >> 4,
                _ => return None,
            };
            if ecn_inside(outer.tos, own)? != own & ECN {
                return None;
            }
        }
        if let Some(behind) = device.learns {
            hears(behind, sender.number, source, view.now).ok()?;
        }
        packet.narrow(ETHERNET + outer.at + UDP + header, frame.len());
        Some(device.place)
    }

    /// What is in the datagrams of a port of the router's.
    #[inline(never)]
    fn find_port(&mut self, view: &View<'a>, outer: &OuterFast<A>, port: u16) -> Option<FouPayload> {
        let payload = outer.payload(view, port)?;
        if let FouPayload::Device(id) = payload {
            external(view, id)?;
        }
        (self.port, self.device) = (Some((port, payload)), None);
        Some(payload)
    }

    /// The device of a network, if its frames go on by a bridge.
    #[inline(never)]
    fn find(
        &mut self,
        view: &View<'a>,
        (port, payload): (u16, FouPayload),
        network: Network<A>,
    ) -> Option<()> {
        let Network { vni, remote } = network;
        let (kinds, found) = match remote {
            None => ([TunnelKind::Vxlan, TunnelKind::Vxlan6], of_vxlan(vni, port)),
            Some(remote) => {
                ([TunnelKind::Geneve, TunnelKind::Geneve6], of_geneve(vni, port, remote.address()))
            }
        };
        let kind = kinds[usize::from(A::IPV6)];
        let tunnel = match payload {
            FouPayload::Device(id) => external(view, id)?,
            _ => view.tables.tunnels().find(kind, found, self.ingress, view.guard)?.1,
        };
        let link = view.link(tunnel.link)?;
        let plain = tunnel.up
            && !tunnel.classifies_ingress
            && link.bridge_port.is_some()
            && link.to_bridge.is_none()
            && view.own_lookup(self.ingress.instance) == view.own_lookup(tunnel.config.underlay);
        plain.then_some(())?;
        let takes_unsummed = tunnel.config.vxlan.is_some_and(|vxlan| vxlan.takes_unsummed)
            || tunnel.config.geneve.is_some_and(|geneve| geneve.takes_unsummed);
        let learns = tunnel.config.behind.as_ref().filter(|behind| behind.learns);
        let tag = match payload {
            FouPayload::Device(_) => tag_in(view, link, vni),
            _ => None,
        };
        let device = Device { tunnel, link, takes_unsummed, place: place_of(tunnel.link, tag), learns };
        // Whether a sender has a number depends on the device.
        (self.device, self.sender) = (Some((network, device)), None);
        Some(())
    }

    /// Who has sent a datagram, if that is not the router itself.
    #[inline(never)]
    fn sender(
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        (address, ingress): (A, Ingress),
        (device, known): (&Device<'_>, &mut Option<Sender<A>>),
    ) -> Option<Sender<A>> {
        let bits: u128 = address.into();
        if !A::IPV6 && is_own4(view, fibs, ingress, bits as u32) {
            return None;
        }
        let number = device.learns.and_then(|behind| behind.ends.number(address.address()));
        *known = Some(Sender { address, number });
        *known
    }
}

/// The external VXLAN of this name, if it is one.
#[inline]
fn external<'a>(view: &View<'a>, id: TunnelId) -> Option<&'a StoredTunnel> {
    view.tables.tunnels().tunnel(id, view.guard).filter(|tunnel| tunnel.kind.is_vxlan())
}

/// Whether a packet of `len` bytes in a frame is a VXLAN's or a Geneve device's, but for one of Geneve that is external.
#[cold]
#[inline(never)]
pub(super) fn is_one<A: Family>(view: &View<'_>, packet: &Packet, len: usize) -> bool {
    let Some(bytes) = packet.bytes().get(ETHERNET..ETHERNET + len) else { return false };
    OuterFast::<A>::read(bytes).is_some_and(|outer| {
        outer.protocol == protocol::UDP
            && outer.port(bytes).is_some_and(|port| match outer.payload(view, port) {
                Some(FouPayload::Vxlan | FouPayload::Geneve) => true,
                Some(FouPayload::Device(id)) => external(view, id).is_some(),
                _ => false,
            })
    })
}

/// Takes the frames out of datagrams in a row, from the first on, to the bridges of their devices; those that are not so simple
/// take the slow path in between. The packet that follows the run; `Err`: the first is no network's.
#[inline(never)]
pub(super) fn decap_run<const COUNT: bool, T: Trace, A: Family, S: BurstLookup>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    (mut packet, look): (Packet, Looked<A>),
) -> Result<Option<Packet>, Packet> {
    let env = context.env;
    let Link { lookup: instance, in_vrf, .. } = *env.link;
    let ingress = Ingress { link: env.ingress, instance, in_vrf };
    let mut run = DecapRun::<A> { ingress, port: None, device: None, sender: None };
    let mut frames = Burst::new();
    let (mut last, mut device) = (NOWHERE, None);
    let (mut len, mut first) = (look.len, true);
    let following = loop {
        let found = run.take(env.view, context.fibs, (&mut packet, len));
        if found.unwrap_or(NOWHERE) != last {
            if let Some(device) = device {
                come_out(path, env.view, device, &mut frames, context.trace);
            }
            last = found.unwrap_or(NOWHERE);
            device = found.and(run.device).map(|(_, device)| device);
        }
        match found {
            Some(_) => frames.push(packet),
            None if is_one::<A>(env.view, &packet, len) => path.enter_slow_path(context, packet),
            None if first => return Err(packet),
            None => break Some(packet),
        }
        first = false;
        packet = match packets.next() {
            Some(packet) => packet,
            None => break None,
        };
        len = match lookups.again(env, &packet, packets, look) {
            Some(len) => len,
            None => break Some(packet),
        };
    };
    if let Some(device) = device {
        come_out(path, env.view, device, &mut frames, context.trace);
    }
    Ok(following)
}

/// Frames in a row have come out of a device, of one network where it has several.
fn come_out<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    Device { tunnel, link, place, .. }: Device<'_>,
    frames: &mut Burst,
    trace: &mut T,
) {
    let Some(tag) = tag_of(place) else {
        return come_out_together(path, view, ((tunnel, link), None), frames, trace);
    };
    // The device has counted them without it.
    count_received(path, tunnel.link, frames);
    frames.iter_mut().for_each(|frame| put_on(frame, tag));
    go_on_together(path, view, ((tunnel, link), None), frames, trace);
}
