//! Bridges: a frame that comes in by a port leaves by the port of its station, or by all others. Linux: `net/bridge/br_input.c`,
//! `br_forward.c`.
//!
//! ```text
//! port → state, VLAN → source learned → for the bridge itself: in by the bridge's device
//!                                       for a known station:   out by its port
//!                                       for others:            out by all ports, and in by the device where for a group
//! ```

pub(super) mod device;
pub(crate) mod networks;

use underpass_packet::ethernet;

use crate::buffer::{Packet, PortId};
use crate::counters::{Count, Direction};
use crate::drops::DropReason;
use crate::l2::answer::{answer, is_arp_or_nd};
use crate::l2::fdb::{Entry, Fresh, Hearing, LOCAL, Station};
use crate::l2::vlan::readdress;
use crate::l2::{Out, come_in_above, out_by, send_by, send_out};
use crate::path::kept::give_to_kernel;
use crate::qos::edit::{insert, remove, tag_of};
use crate::tables::{Bridge, BridgePort, Excluded, Link, LinkId, Membership, PortState};
use crate::trace::Trace;
use crate::worker::path::{Burst, Path};
use crate::worker::view::View;

/// Where the tag of a frame is: behind its addresses.
pub(super) const ADDRESSES: usize = 12;

/// Length of a tag.
const TAG: usize = 4;

/// Length of the shortest frame with a tag: Linux's `skb_vlan_untag` wants an EtherType behind it, and two bytes more.
const LEAST_TAGGED: usize = ethernet::Header::LEN + TAG + 2;

/// Nanoseconds of a tick of the stations' clock.
const TICK: u64 = 1_000_000;

/// The link-local groups: IEEE 802.1Q table 8-1.
const LINK_LOCAL: [u8; 5] = [0x01, 0x80, 0xc2, 0x00, 0x00];
const SPANNING_TREE: u8 = 0x00;
const OF_PROVIDERS: u8 = 0x08;
const PAUSE: u8 = 0x01;

/// No port of a bridge: a link has a number of fewer bits there.
const NO_LINK: LinkId = LinkId(u32::MAX);

/// The station that no frame may come from.
const NOBODY: Station = Station::new([0; 6], 0);

/// Whom a frame is for that no entry leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flood {
    Unknown,
    Group,
    All,
}

/// Where a frame is on its way through a bridge.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    /// The bridge's link, and the bridge.
    pub(super) id: LinkId,
    pub(super) link: &'a Link,
    pub(super) bridge: &'a Bridge,
    /// The port by which it has come in; `None`: the bridge's device sends it.
    pub(super) from: Option<(LinkId, &'a Link, &'a BridgePort)>,
    now: u64,
    /// It goes to all ports but these, whatever its destination is.
    all_but: Option<Excluded>,
    /// Whether it is not flooded to ports that suppress requests for known neighbours.
    suppressed: bool,
}

/// The VLAN of a frame in a bridge that filters by them.
#[derive(Clone, Copy)]
pub(super) struct Tagged {
    pub(super) id: u16,
    /// Its tag, where the frame has it: it may have to be put on.
    pub(super) tag: [u8; TAG],
    pub(super) inside: bool,
}

/// What becomes of a frame that came in by a port.
enum Step {
    /// It is for the port's link itself.
    Keep(Packet),
    /// It comes in by the bridge's device. So many bytes of it are not counted there: its header, and a tag that it had when it
    /// came in, which in Linux is not in it any more.
    Up(Packet, usize),
    /// It has its verdict.
    Done,
}

/// Takes a burst that has come in by a port of a bridge through it. What is left in it is for the port's link itself.
#[inline(never)]
pub(super) fn receive<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    ((ingress, link, port), all_but): ((LinkId, &Link, &BridgePort), Option<Excluded>),
    burst: &mut Burst,
    trace: &mut T,
) {
    let found = view.link(port.bridge).and_then(|link| Some((link, link.bridge.as_deref()?)));
    let Some((above, bridge)) = found else {
        burst.drain(..).for_each(|packet| path.drop(packet, DropReason::BridgePort, trace));
        return;
    };
    let from = Some((ingress, link, port));
    let now = view.now / TICK;
    let way = Way { id: port.bridge, link: above, bridge, from, now, all_but, suppressed: false };
    if bridge.filters.is_none() && bridge.fdb.is_cold() {
        for [destination, source] in burst.iter().filter_map(|packet| Station::of_frame(packet.bytes())) {
            bridge.fdb.prefetch(destination);
            bridge.fdb.prefetch(source);
        }
    }
    let mut others = Others::default();
    if bridge.answering.is_some() && burst.iter().any(|packet| is_arp_or_nd(packet.bytes())) {
        pass_arp_nd(path, view, &way, port, (burst, &mut others), trace);
    }
    let mut known = Known::new(&way, port).filter(|_| !T::WATCHES);
    for packet in burst.drain(..) {
        if let Some(out) = known.as_mut().and_then(|known| known.pass_fast(view, &way, &packet)) {
            send_out(path, view, out, (packet, true), trace);
            continue;
        }
        others.take(pass(path, view, &way, port, packet, trace));
    }
    let Others { mut up, kept, uncounted } = others;
    burst.extend(kept);
    if !up.is_empty() {
        // Linux: `br_pass_frame_up`.
        come_in_above(path, view, (way.id, way.link), uncounted, &mut up, trace);
    }
}

/// Those of a burst that have no verdict yet.
#[derive(Default)]
struct Others {
    /// They come in by the bridge's device, which does not count so many bytes of them.
    up: Burst,
    uncounted: u64,
    /// They are for the port's link itself.
    kept: Burst,
}

impl Others {
    #[inline(always)]
    fn take(&mut self, step: Step) {
        match step {
            Step::Done => {}
            Step::Up(packet, beside) => {
                self.up.push(packet);
                self.uncounted += beside as u64;
            }
            Step::Keep(packet) => self.kept.push(packet),
        }
    }
}

/// Takes a burst through a bridge that answers for others, in which there are requests.
#[cold]
#[inline(never)]
fn pass_arp_nd<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    way: &Way<'_>,
    port: &BridgePort,
    (burst, others): (&mut Burst, &mut Others),
    trace: &mut T,
) {
    for packet in burst.drain(..) {
        let step = if is_arp_or_nd(packet.bytes()) {
            match enter(path, way, port, packet, trace) {
                Ok((packet, to, tagged)) => {
                    let suppressed = answer(path, view, way, (&packet, tagged), trace);
                    pass_on(path, view, &Way { suppressed, ..*way }, packet, (to, tagged), trace)
                }
                Err(step) => step,
            }
        } else {
            pass(path, view, way, port, packet, trace)
        };
        others.take(step);
    }
}

/// The addresses that a frame begins with: destination and source.
#[inline(always)]
fn addresses(frame: &[u8]) -> Option<[[u8; 6]; 2]> {
    let [a, b, c, d, e, f, g, h, i, j, k, l, _, _] = *frame.first_chunk::<{ ethernet::Header::LEN }>()?;
    Some([[a, b, c, d, e, f], [g, h, i, j, k, l]])
}

/// What frames of a burst are compared with that come in by a port of a bridge without VLANs, and where the last one went.
struct Known {
    /// Of a station that is heard here; `None` where none is learned.
    hearing: Option<Hearing>,
    fresh: Fresh,
    /// The port's link, how frames leave by it, and how long these may be.
    last: (LinkId, Out, usize),
}

impl Known {
    /// `None`: frames of this port need more than [`Known::pass_fast`] does.
    fn new(way: &Way<'_>, port: &BridgePort) -> Option<Self> {
        let (ingress, ..) = way.from?;
        let plain = way.bridge.filters.is_none()
            && !way.bridge.promiscuous
            && port.state == PortState::Forwarding
            && way.all_but.is_none();
        let learns = port.learns && way.bridge.ageing != 0;
        // Who is not learned is not looked up.
        let plain = plain && (learns || !port.locked);
        let hearing = learns.then(|| Hearing::new(ingress, way.now));
        let last = (NO_LINK, Out::Port(PortId::default()), 0);
        plain.then_some(Self { hearing, fresh: Fresh::new(way.now, way.bridge.ageing), last })
    }

    /// How a frame leaves, if its source was heard just now and its destination is a station at another port. `None`: [`pass`]
    /// decides.
    #[inline(always)]
    fn pass_fast(&mut self, view: &View<'_>, way: &Way<'_>, packet: &Packet) -> Option<Out> {
        let [destination, source] = Station::of_frame(packet.bytes().first_chunk::<LEAST_TAGGED>()?)?;
        if source.is_group() | destination.is_group() {
            return None;
        }
        let heard = match self.hearing {
            Some(hearing) => way.bridge.fdb.was_heard(source, hearing),
            None => source != NOBODY,
        };
        if !heard {
            return None;
        }
        let port = way.bridge.fdb.port_of(destination, self.fresh)?;
        if self.last.0 != port {
            self.find_out(view, way, port)?;
        }
        packet.fits(self.last.2).then_some(self.last.1)
    }

    #[inline(never)]
    fn find_out(&mut self, view: &View<'_>, way: &Way<'_>, id: LinkId) -> Option<()> {
        let link = takes(view, way, id, None)?;
        self.last = (id, out_by(view, id, link)?, longest(link));
        Some(())
    }
}

/// How long a frame may be that leaves by a port. Linux: `is_skb_forwardable`.
const fn longest(link: &Link) -> usize {
    link.mtu as usize + ethernet::Header::LEN + TAG
}

/// Takes a frame from a port through the bridge. Linux: `br_handle_frame`, `br_handle_frame_finish`.
#[inline(never)]
fn pass<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    way: &Way<'_>,
    port: &BridgePort,
    packet: Packet,
    trace: &mut T,
) -> Step {
    match enter(path, way, port, packet, trace) {
        Ok((packet, destination, tagged)) => pass_on(path, view, way, packet, (destination, tagged), trace),
        Err(step) => step,
    }
}

/// Lets a frame into the bridge, which learns its source: with its destination, and the VLAN that it is in.
#[inline(always)]
fn enter<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    way: &Way<'_>,
    port: &BridgePort,
    mut packet: Packet,
    trace: &mut T,
) -> Result<(Packet, [u8; 6], Option<Tagged>), Step> {
    let dropped =
        |path: &mut Path<COUNT>, packet, reason, trace: &mut T| Err(dropped(path, packet, reason, trace));
    let Some([destination, source]) = addresses(packet.bytes()) else {
        return dropped(path, packet, DropReason::EthernetTruncated, trace);
    };
    if ends_in_tag(packet.bytes()) {
        return dropped(path, packet, DropReason::EthernetTruncated, trace);
    }
    if source[0] & 1 != 0 || source == [0; 6] {
        return dropped(path, packet, DropReason::BridgeSource, trace);
    }
    if let [a, b, c, d, e, group @ 0..=15] = destination
        && [a, b, c, d, e] == LINK_LOCAL
        && !forwards(way, port, group)
    {
        return Err(stop(path, way, port, (group, source), packet, trace));
    }
    if port.state == PortState::Closed {
        return dropped(path, packet, DropReason::BridgePort, trace);
    }
    let mut tagged = None;
    if let Some((protocol, _)) = &way.bridge.filters {
        match enter_vlan(&mut packet, *protocol, port.vlans.as_deref()) {
            Some(found) => tagged = Some(found),
            None => return dropped(path, packet, DropReason::BridgeVlan, trace),
        }
    }
    let vlan = tagged.map_or(0, |tagged| tagged.id);
    if port.locked && !is_let_in(way, Station::new(source, vlan)) {
        return dropped(path, packet, DropReason::BridgeLocked, trace);
    }
    if let Some((ingress, ..)) = way.from.filter(|_| port.learns && way.bridge.ageing != 0) {
        way.bridge.fdb.hear(Station::new(source, vlan), ingress, way.now);
    }
    if port.state == PortState::Learning {
        return dropped(path, packet, DropReason::BridgePort, trace);
    }
    Ok((packet, destination, tagged))
}

/// Passes a frame that was let in to the ports that it is for, or to the bridge itself.
#[inline(always)]
fn pass_on<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    way: &Way<'_>,
    packet: Packet,
    (destination, tagged): ([u8; 6], Option<Tagged>),
    trace: &mut T,
) -> Step {
    let vlan = tagged.map_or(0, |tagged| tagged.id);
    if destination[0] & 1 == 0 {
        let entry = find(way, Station::new(destination, vlan));
        if way.bridge.promiscuous && entry.is_none_or(|entry| !entry.is(LOCAL)) {
            return pass_on_and_up(path, view, way, packet, (entry, tagged), trace);
        }
        match entry {
            Some(entry) if entry.is(LOCAL) => return take_up(path, way, packet, tagged, trace),
            Some(_) if way.all_but.is_some() => {
                flood(path, view, way, packet, (tagged, Flood::Unknown), trace)
            }
            Some(entry) => match takes(view, way, entry.link, tagged) {
                Some(to) => leave(path, view, (entry.link, to), packet, tagged, trace),
                None => path.drop(packet, DropReason::BridgeNowhere, trace),
            },
            None => flood(path, view, way, packet, (tagged, Flood::Unknown), trace),
        }
        return Step::Done;
    }
    // It is for the router as well, whose copy is the frame itself.
    let whom = if destination == ethernet::BROADCAST { Flood::All } else { Flood::Group };
    flood_copies(path, view, way, &packet, (tagged, whom), trace);
    take_up(path, way, packet, tagged, trace)
}

/// The same of a frame for another station, in a bridge whose device gets such frames as well.
#[cold]
fn pass_on_and_up<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    way: &Way<'_>,
    packet: Packet,
    (entry, tagged): (Option<Entry>, Option<Tagged>),
    trace: &mut T,
) -> Step {
    match entry.filter(|_| way.all_but.is_none()) {
        Some(entry) => {
            if let Some(to) = takes(view, way, entry.link, tagged) {
                leave_copy(path, view, (entry.link, to), &packet, tagged, trace);
            }
        }
        None => flood_copies(path, view, way, &packet, (tagged, Flood::Unknown), trace),
    }
    take_up(path, way, packet, tagged, trace)
}

/// Whether a frame ends in its tag, so that it is dropped where it comes in.
pub(crate) fn ends_in_tag(frame: &[u8]) -> bool {
    frame.len() < LEAST_TAGGED && is_tag(frame)
}

/// Whether a frame begins with a tag.
#[cold]
fn is_tag(frame: &[u8]) -> bool {
    let ethertype = frame.get(ADDRESSES..).and_then(|rest| rest.first_chunk());
    let ethertype = ethertype.map(|ethertype| u16::from_be_bytes(*ethertype));
    matches!(ethertype, Some(ethernet::VLAN | ethernet::SERVICE_VLAN))
}

fn dropped<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    packet: Packet,
    reason: DropReason,
    trace: &mut T,
) -> Step {
    path.drop(packet, reason, trace);
    Step::Done
}

/// Whether frames of a link-local group are forwarded like any others.
#[cold]
fn forwards(way: &Way<'_>, port: &BridgePort, group: u8) -> bool {
    let mask = match group {
        // Without a spanning tree of its own the bridge is none to others.
        SPANNING_TREE if !way.bridge.spanning_tree => return true,
        PAUSE => return false,
        _ => port.group_forward | way.bridge.group_forward,
    };
    mask >> group & 1 != 0
}

/// A frame of a link-local group ends at the port. Linux: `br_handle_local_finish`.
#[cold]
fn stop<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    way: &Way<'_>,
    port: &BridgePort,
    (group, source): (u8, [u8; 6]),
    packet: Packet,
    trace: &mut T,
) -> Step {
    if group == PAUSE {
        return dropped(path, packet, DropReason::BridgePause, trace);
    }
    let vlan = match &way.bridge.filters {
        // Linux: `br_should_learn`.
        Some((protocol, _)) => {
            vlan_of(packet.bytes(), *protocol, port.vlans.as_deref()).map(|tagged| tagged.id)
        }
        None => Some(0),
    };
    let learns = port.learns && port.state != PortState::Closed && way.bridge.ageing != 0;
    if let Some((vlan, (ingress, ..))) = vlan.zip(way.from).filter(|_| learns) {
        way.bridge.fdb.hear(Station::new(source, vlan), ingress, way.now);
    }
    // Whoever keeps the spanning tree hears it at the device. Of one that the kernel attaches, the kernel keeps such frames.
    let link = way.from.map(|(_, link, _)| link).filter(|link| link.kernel.is_none());
    match link.and_then(|link| link.host).filter(|_| group == SPANNING_TREE || group == OF_PROVIDERS) {
        Some(host) if way.bridge.spanning_tree => {
            give_to_kernel(path, host, packet, trace);
            Step::Done
        }
        _ => Step::Keep(packet),
    }
}

/// Whether a locked port takes frames of a station. One that was not heard for long is there until it is removed.
#[cold]
fn is_let_in(way: &Way<'_>, station: Station) -> bool {
    let entry = way.bridge.fdb.find(station);
    entry.zip(way.from).is_some_and(|(entry, (ingress, ..))| entry.link == ingress && !entry.is(LOCAL))
}

#[inline(always)]
pub(super) fn find(way: &Way<'_>, station: Station) -> Option<Entry> {
    way.bridge.fdb.find(station).filter(|entry| !entry.has_expired(way.now, way.bridge.ageing))
}

/// The VLAN of a frame at a port with these. `None`: it is none of these. Linux: `__allowed_ingress`.
fn vlan_of(frame: &[u8], protocol: u16, vlans: Option<&Membership>) -> Option<Tagged> {
    let vlans = vlans?;
    let inside = frame.get(ADDRESSES..ADDRESSES + 2) == Some(&protocol.to_be_bytes());
    let control = match frame.first_chunk::<{ ADDRESSES + TAG }>() {
        Some([.., c, d]) if inside => u16::from_be_bytes([*c, *d]),
        None if inside => return None,
        _ => 0,
    };
    let id = match control & 0x0fff {
        0 => vlans.untagged_are,
        id => id,
    };
    if id == 0 || !vlans.has(id) {
        return None;
    }
    let [a, b] = protocol.to_be_bytes();
    let [c, d] = (control & 0xf000 | id).to_be_bytes();
    Some(Tagged { id, tag: [a, b, c, d], inside })
}

/// The same, of a frame of which a tag without a VLAN gets that of the port.
fn enter_vlan(packet: &mut Packet, protocol: u16, vlans: Option<&Membership>) -> Option<Tagged> {
    let tagged = vlan_of(packet.bytes(), protocol, vlans)?;
    if tagged.inside {
        packet.bytes_mut().get_mut(ADDRESSES..ADDRESSES + TAG)?.copy_from_slice(&tagged.tag);
    }
    Some(tagged)
}

/// Gives a frame the form in which it leaves: with its tag or without. `None`: no room. Linux: `br_handle_vlan`.
fn shape(packet: &mut Packet, tagged: Option<Tagged>, vlans: Option<&Membership>) -> Option<()> {
    let (Some(Tagged { id, tag, inside }), Some(vlans)) = (tagged, vlans) else { return Some(()) };
    match (inside, vlans.is_untagged(id)) {
        (true, true) => remove(packet, ADDRESSES),
        (false, false) => insert(packet, ADDRESSES, tag),
        _ => Some(()),
    }
}

/// The link of a port, if that takes a frame. Linux: `should_deliver`.
#[inline(always)]
fn takes<'a>(view: &View<'a>, way: &Way<'_>, id: LinkId, tagged: Option<Tagged>) -> Option<&'a Link> {
    let link = view.link(id)?;
    let port = link.bridge_port.as_deref()?;
    let back = |(ingress, _, by): (LinkId, &Link, &BridgePort)| {
        (ingress != id || port.hairpin) && !(by.isolated && port.isolated)
    };
    let takes = port.state == PortState::Forwarding
        && port.bridge == way.id
        && way.from.is_none_or(back)
        && tagged.is_none_or(|tagged| port.vlans.as_ref().is_some_and(|vlans| vlans.has(tagged.id)));
    takes.then_some(link)
}

/// A frame leaves by a port that takes it. Linux: `__br_forward`, `br_dev_queue_push_xmit`.
#[inline(always)]
fn leave<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, link): (LinkId, &Link),
    mut packet: Packet,
    tagged: Option<Tagged>,
    trace: &mut T,
) {
    if let Some(port) = link.bridge_port.as_deref().filter(|port| port.networks.is_some()) {
        return leave_by_network(path, view, (id, port), packet, tagged, trace);
    }
    if tagged.is_some() {
        let vlans = link.bridge_port.as_ref().and_then(|port| port.vlans.as_deref());
        if shape(&mut packet, tagged, vlans).is_none() {
            return path.drop(packet, DropReason::NoHeadroom, trace);
        }
    }
    // Of a frame with a tag Linux has that beside the frame.
    if !packet.fits(longest(link) + tag_of(packet.bytes())) {
        return path.drop(packet, DropReason::TooBig, trace);
    }
    send_by(path, view, (id, link), (packet, true), trace);
}

/// A frame leaves by the network that its VLAN is behind a port, without its tag. Linux: `br_handle_egress_vlan_tunnel`, behind
/// which a VXLAN drops what has no network.
fn leave_by_network<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, port): (LinkId, &BridgePort),
    mut packet: Packet,
    tagged: Option<Tagged>,
    trace: &mut T,
) {
    let leaves_tagged =
        |tagged: &Tagged| port.vlans.as_ref().is_some_and(|vlans| !vlans.is_untagged(tagged.id));
    let tagged = tagged.filter(leaves_tagged);
    let Some((tagged, tunnel)) = tagged.and_then(|tagged| Some((tagged, port.tunnel_of(tagged.id)?))) else {
        return path.drop(packet, DropReason::TunnelRemote, trace);
    };
    if tagged.inside && remove(&mut packet, ADDRESSES).is_none() {
        return path.drop(packet, DropReason::NoHeadroom, trace);
    }
    match view.link(id) {
        Some(link) if packet.fits(longest(link) + tag_of(packet.bytes())) => {
            send_out(path, view, Out::Tunnel(tunnel), (packet, true), trace);
        }
        _ => path.drop(packet, DropReason::TooBig, trace),
    }
}

/// A frame is for the bridge itself, or also.
fn take_up<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    way: &Way<'_>,
    mut packet: Packet,
    tagged: Option<Tagged>,
    trace: &mut T,
) -> Step {
    let length = packet.bytes().len();
    // Linux: `__allowed_ingress` puts a tag of another protocol back into the frame.
    let beside = match &tagged {
        Some(tagged) => usize::from(tagged.inside) * TAG,
        None => tag_of(packet.bytes()),
    };
    let counted = length.saturating_sub(ethernet::Header::LEN + beside);
    if let (Some(tagged), Some((_, vlans))) = (tagged, &way.bridge.filters) {
        // Linux: `br_handle_vlan`, by which a device that takes all frames gets those of other VLANs with their tags.
        if !vlans.has(tagged.id) && !way.bridge.promiscuous {
            // Linux: `br_pass_frame_up` has counted it before it looks.
            let count = Count { packets: 1, bytes: counted as u64, errors: 0 };
            path.counters.add_link(way.id, Direction::Receive, count);
            return dropped(path, packet, DropReason::BridgeVlan, trace);
        }
        if shape(&mut packet, Some(tagged), Some(vlans)).is_none() {
            return dropped(path, packet, DropReason::NoHeadroom, trace);
        }
    }
    // What is for the address of the port itself Linux takes for the router's, but not what is for that of another.
    if let Some((_, port, _)) = way.from.filter(|(_, port, _)| port.mac != way.link.mac) {
        readdress(&mut packet, port.mac, way.link.mac);
    }
    let beside = packet.bytes().len().saturating_sub(counted);
    Step::Up(packet, beside)
}

/// The ports that a frame goes to of which no entry says where. Linux: `br_flood`.
fn flooded<'a>(
    view: &'a View<'_>,
    way: &'a Way<'_>,
    (tagged, whom): (Option<Tagged>, Flood),
) -> impl Iterator<Item = (LinkId, &'a Link)> {
    way.bridge.ports.iter().filter_map(move |id| {
        let link = takes(view, way, *id, tagged)?;
        let port = link.bridge_port.as_ref()?;
        let [unknown, group, all] = port.floods;
        // What the bridge's device sends to a group goes everywhere.
        let own = way.from.is_none();
        let takes = match whom {
            Flood::Unknown => unknown,
            Flood::Group => group || own,
            Flood::All => all || own,
        };
        let suppresses = || port.proxy_arp_wifi || port.suppresses.has(tagged.map_or(0, |tagged| tagged.id));
        let suppressed = port.proxy_arp || way.suppressed && suppresses();
        let excluded = way.all_but.is_some_and(|excluded| excluded.has(port.number));
        (takes && !suppressed && !excluded).then_some((*id, link))
    })
}

/// A frame goes to all ports that take it.
#[inline(never)]
fn flood<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    way: &Way<'_>,
    packet: Packet,
    (tagged, whom): (Option<Tagged>, Flood),
    trace: &mut T,
) {
    let mut ports = flooded(view, way, (tagged, whom));
    let Some(mut last) = ports.next() else {
        return path.drop(packet, DropReason::BridgeNowhere, trace);
    };
    for next in ports {
        leave_copy(path, view, std::mem::replace(&mut last, next), &packet, tagged, trace);
    }
    leave(path, view, last, packet, tagged, trace);
}

/// Copies of a frame go to all ports that take it.
#[inline(never)]
fn flood_copies<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    way: &Way<'_>,
    packet: &Packet,
    (tagged, whom): (Option<Tagged>, Flood),
    trace: &mut T,
) {
    for to in flooded(view, way, (tagged, whom)) {
        leave_copy(path, view, to, packet, tagged, trace);
    }
}

fn leave_copy<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    to: (LinkId, &Link),
    packet: &Packet,
    tagged: Option<Tagged>,
    trace: &mut T,
) {
    path.totals.generated += 1;
    match path.pool.copy(packet) {
        Some(copy) => leave(path, view, to, copy, tagged, trace),
        None => path.counters.add_drop(DropReason::NoBuffer, 1),
    }
}
