//! Packet metadata: what the slow path remembers of a packet.

use std::net::{Ipv4Addr, Ipv6Addr};

use underpass_packet::ethernet;

use crate::buffer::Packet;
use crate::counters::CounterId;
use crate::drops::DropReason;
use crate::tables::{ActionId, Excluded, LinkId, LookupId, TunnelId};
use crate::worker::error::PacketError;

/// What the slow look-up is to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slow {
    /// Look [`PacketMeta::target4`] up.
    Target4,
    /// Look [`PacketMeta::target6`] up.
    Target6,
}

/// A packet on the slow path, from its layer-3 header on.
pub(crate) struct PacketMeta {
    pub(crate) packet: Packet,
    /// The address that is looked up next, if the step says an IPv6 look-up.
    pub(crate) target6: Ipv6Addr,
    /// The same for IPv4.
    pub(crate) target4: Ipv4Addr,
    /// Where its Ethernet header lies in the slot.
    pub(crate) frame: u32,
    /// The link that it came in by.
    pub(crate) ingress: LinkId,
    pub(crate) extra: ExtraMeta,
}

/// What is remembered of few packets.
#[derive(Clone, Copy)]
pub(crate) struct ExtraMeta {
    /// What is unusual about the packet: 0 for nearly every one, which is one comparison then.
    pub(crate) flags: u16,
    /// Look-ups so far, beyond the first.
    pub(crate) lookups_done: u8,
    /// Encapsulations so far, and the action of the last one.
    pub(crate) encapsulations: u8,
    encapsulated: Option<ActionId>,
    /// Bytes of headers that a headend of this router has put in front, which an ICMP error does not
    /// quote.
    pub(crate) wrapping: u16,
    /// Bytes of SRHs that this router has inserted behind the packet's own IPv6 header.
    pub(crate) inserted: u16,
    /// Bytes by which this router has made it longer, which it says in a Packet Too Big.
    pub(crate) growth: u16,
    /// Bytes of the packet that a SID has put headers of its own before, until it is encapsulated once more; 0: none has. A
    /// tunnel over IPv4 inherits from it.
    pub(crate) inside: u32,
    /// Where in its slot the label stack lies that it came in with, as long as nothing is written there; 0: nowhere.
    pub(crate) labels: u32,
    /// What [`crate::worker::verdict::Verdict::LookSlow`] looks up.
    pub(crate) slow: Slow,
    /// What the ICMP error says: an MTU, or where the fault lies.
    pub(crate) argument: u32,
    /// `skb->mark`: what rules with `fwmark` look at.
    pub(crate) mark: u32,
    /// The routing instance that it is in: the tables of its last look-up. An ICMP error is looked up
    /// there. Stays as it is once the packet is inside one of the router's own tunnels.
    pub(crate) instance: LookupId,
    /// Where it was looked up last.
    pub(crate) looked_in: LookupId,
    /// The tables of the VRF that a SID has taken it into: it goes on as if it had come in by the device of that VRF.
    pub(crate) taken_into: Option<LookupId>,
    /// The counters of the local SIDs that it went through, or of its label, and the bytes that were counted there: taken
    /// back should the packet turn out to be an error of those behaviours.
    pub(crate) counted: Counted,
    /// The tunnel that it is in, if it is in one of this router's.
    pub(crate) tunnel: Option<TunnelId>,
    /// Bytes that this tunnel has put before it.
    pub(crate) outer: u16,
    /// The device that it has gone into last, a tunnel or a VRF.
    pub(crate) entered: Option<Entered>,
    /// The sequence number that this tunnel has given it.
    pub(crate) sequence: Option<u32>,
    /// A filter has sent it into its tunnel before a route could.
    pub(crate) unrouted: bool,
    /// It goes to all ports of the bridge that it comes to, but these.
    pub(crate) all_but: Option<Excluded>,
    /// Forwarded before a trace and its header were put before it: each header that comes to stand inside another has its
    /// hop limit lowered.
    pub(crate) traced: bool,
}

/// A device that a packet has gone into, which counts it should it not go on from there.
#[derive(Clone, Copy)]
pub(crate) struct Entered {
    pub(crate) link: LinkId,
    /// The bytes that it was counted with there; 0: it was not counted.
    pub(crate) bytes: u32,
    /// Whether that is the device of a VRF.
    pub(crate) vrf: bool,
    /// Whether the packet is dropped there, and is no error, should it not go on.
    pub(crate) drops: bool,
}

/// What has counted a packet, and how many bytes: the last behaviours that it went through, of which some do not count.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counted {
    behaviours: [Option<(CounterId, u32)>; Self::MOST],
    /// How many there were.
    number: u8,
}

impl Counted {
    /// How many are remembered. Those before them keep what they have counted.
    const MOST: usize = 8;

    #[inline(always)]
    fn push(&mut self, counted: Option<(CounterId, u32)>) {
        self.behaviours[usize::from(self.number) % Self::MOST] = counted;
        self.number = self.number.wrapping_add(1);
    }

    /// Remembers this one alone.
    pub(crate) fn set(&mut self, counted: Option<(CounterId, u32)>) {
        *self = Self::default();
        self.push(counted);
    }

    /// The last one, if it counts.
    pub(crate) fn last(&self) -> Option<(CounterId, u32)> {
        self.behaviours[usize::from(self.number.wrapping_sub(1)) % Self::MOST]
    }

    /// Forgets all.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (CounterId, u32)> + use<> {
        std::mem::take(self).behaviours.into_iter().flatten()
    }
}

impl ExtraMeta {
    /// How often the packet has been encapsulated.
    pub(crate) const fn encapsulations(&self) -> u8 {
        self.encapsulations
    }

    /// Says that it was so before it waited.
    pub(crate) const fn encapsulated_before(&mut self, encapsulations: u8) {
        self.encapsulations = encapsulations;
    }

    /// What is remembered of a packet that has just come in and is in this routing instance.
    pub(crate) fn new(instance: LookupId) -> Self {
        Self {
            flags: 0,
            lookups_done: 0,
            encapsulations: 0,
            encapsulated: None,
            wrapping: 0,
            inserted: 0,
            growth: 0,
            inside: 0,
            labels: 0,
            slow: Slow::Target6,
            argument: 0,
            mark: 0,
            instance,
            looked_in: instance,
            taken_into: None,
            counted: Counted::default(),
            tunnel: None,
            outer: 0,
            entered: None,
            sequence: None,
            unrouted: false,
            all_but: None,
            traced: false,
        }
    }
}

/// One of its addresses forbids that it is forwarded, or forwarding is off where it came in: it may
/// only be for the router itself or a local SID.
pub(crate) const NOT_FORWARDED: u16 = 1;

/// Made by this router: its hop limit is not lowered.
pub(crate) const GENERATED: u16 = 2;

/// Made by this router, its source address and checksum still open.
pub(crate) const UNFINISHED: u16 = 4;

/// Came in a frame for a group of stations, or to a broadcast address: no error is sent.
pub(crate) const GROUP: u16 = 8;

/// Its destination is a broadcast address of a link.
pub(crate) const BROADCAST: u16 = 16;

/// Has an MPLS label on top.
pub(crate) const LABELLED: u16 = 32;

/// Goes where its label led, or with a new one: its hop limit is done with.
pub(crate) const SWITCHED: u16 = 64;

/// Its hop-by-hop options were put in by this router.
pub(crate) const INSERTED_TRACE: u16 = 128;

/// In a tunnel of this router's: the outer header's hop limit is not lowered, and what of it is too long is told to the
/// sender of the packet inside.
pub(crate) const TUNNELLED: u16 = 256;

/// In a tunnel of this router's, and no IP packet itself: no error is sent about it.
pub(crate) const OPAQUE: u16 = 512;

/// A route by the device of a VRF led it where it is: no error says that there is no route there.
pub(crate) const LED_INTO_VRF: u16 = 1024;

/// The kernel beside the router is to forward it.
pub(crate) const HANDED_OVER: u16 = 2048;

/// Looked up behind a SID: of IPv6 rules see the next header of the IPv6 header for the protocol, and no ports; the options of
/// IPv4 are not looked at, nor echoed by errors.
pub(crate) const BEHIND_SID: u16 = 4096;

/// The address by which it leaves is to be written into its IPv4 options, into those that record a route.
pub(crate) const RECORDS_ROUTE: u16 = 8192;

/// The same for those that record times.
pub(crate) const RECORDS_TIMES: u16 = 16384;

/// A label has led it to the router itself, or into a VRF: it comes from `lo`, or from the device of the VRF.
pub(crate) const BEHIND_LABEL: u16 = 32768;

impl PacketMeta {
    /// The path of a packet that came in by a link at offset `at` of its slot, its Ethernet header before
    /// it.
    #[inline(always)]
    pub(crate) fn new(packet: Packet, at: usize, ingress: LinkId, extra: ExtraMeta) -> Self {
        Self {
            frame: at.saturating_sub(ethernet::Header::LEN) as u32,
            packet,
            target4: Ipv4Addr::UNSPECIFIED,
            target6: Ipv6Addr::UNSPECIFIED,
            ingress,
            extra,
        }
    }

    /// Whether one of these flags is set.
    #[inline(always)]
    pub(crate) fn is(&self, flags: u16) -> bool {
        self.extra.flags & flags != 0
    }

    /// Takes note of a behaviour that counted the packet with so many bytes, and whether what it left is
    /// unusual.
    #[inline(always)]
    pub(crate) fn behaved(&mut self, counter: Option<CounterId>, bytes: usize) {
        self.extra.counted.push(counter.map(|counter| (counter, bytes as u32)));
    }

    /// Takes note of another look-up, in `lookup`. `false`: it is one too many.
    #[inline(always)]
    pub(crate) fn look_up_again(&mut self, lookup: LookupId) -> bool {
        self.extra.lookups_done += 1;
        self.extra.looked_in = lookup;
        if self.extra.wrapping == 0 {
            self.extra.instance = lookup;
        }
        self.extra.lookups_done < MAX_LOOKUPS
    }

    /// Takes note that the packet is about to be encapsulated by this action. Refused if that is the action
    /// that encapsulated it last, which then leads back to itself, or if it is one too many.
    #[inline(always)]
    pub(crate) fn encapsulate(&mut self, action: ActionId) -> Result<(), PacketError> {
        if self.extra.encapsulated == Some(action) {
            return Err(PacketError::silent(DropReason::EncapsulationLoop));
        }
        self.extra.encapsulated = Some(action);
        self.encapsulate_again()
    }

    /// The same for an encapsulation that may follow itself once: into a tunnel whose end it also leads to.
    #[inline(always)]
    pub(crate) fn encapsulate_again(&mut self) -> Result<(), PacketError> {
        if self.extra.encapsulations == MAX_ENCAPSULATIONS {
            return Err(PacketError::silent(DropReason::EncapsulationLoop));
        }
        self.extra.encapsulations += 1;
        self.extra.flags &= !BEHIND_SID;
        Ok(())
    }

    /// Whether this action was the last to encapsulate the packet.
    #[inline(always)]
    pub(crate) fn encapsulated_by(&self, action: ActionId) -> bool {
        self.extra.encapsulated == Some(action)
    }

    /// Begins anew: another packet has taken this one's place.
    pub(crate) fn start_again(&mut self) {
        let ExtraMeta {
            lookups_done,
            encapsulations,
            encapsulated,
            growth,
            inside,
            wrapping,
            labels,
            tunnel,
            ..
        } = &mut self.extra;
        (*lookups_done, *encapsulations, *encapsulated, *growth, *wrapping, *labels) = (0, 0, None, 0, 0, 0);
        (*inside, *tunnel) = (0, None);
        (self.extra.entered, self.extra.sequence, self.extra.traced) = (None, None, false);
    }

    /// Takes note that the packet has come out of a tunnel, by this link. What was before it is forgotten, but not how
    /// often it has been looked up and encapsulated.
    pub(crate) fn arrived(&mut self, link: LinkId) {
        self.ingress = link;
        self.extra = ExtraMeta {
            lookups_done: self.extra.lookups_done,
            encapsulations: self.extra.encapsulations,
            ..ExtraMeta::new(self.extra.instance)
        };
    }

    /// Says that the Ethernet header of the packet lies right before it.
    pub(crate) fn framed(&mut self) {
        self.frame = self.packet.headroom().saturating_sub(ethernet::Header::LEN) as u32;
    }

    /// The Ethernet header that the packet came in with.
    pub(crate) fn link_layer(&self) -> Option<[u8; ethernet::Header::LEN]> {
        let at = self.frame as usize;
        self.packet.slot().get(at..at + ethernet::Header::LEN)?.try_into().ok()
    }

    /// Whether that is still there: headers that were put before the packet may lie over it.
    pub(crate) fn has_link_layer(&self) -> bool {
        self.frame as usize + ethernet::Header::LEN <= self.packet.headroom()
    }

    /// Puts another Ethernet header before the packet.
    pub(crate) fn put_link_layer(&mut self, frame: [u8; ethernet::Header::LEN]) {
        if let Some(at) = self.packet.headroom().checked_sub(frame.len())
            && let Some(room) = self.packet.slot_mut().get_mut(at..at + frame.len())
        {
            room.copy_from_slice(&frame);
            self.frame = at as u32;
        }
    }

    /// Puts the Ethernet header that a packet came with, of this EtherType now, before what was inside it: a policy may carry the
    /// frame.
    pub(crate) fn put_link_layer_of(&mut self, frame: Option<[u8; ethernet::Header::LEN]>, ethertype: u16) {
        if let Some(mut frame) = frame {
            frame[12..].copy_from_slice(&ethertype.to_be_bytes());
            self.put_link_layer(frame);
        }
    }

    /// Takes note that `len` bytes of headers were put before the packet. They may have overwritten the
    /// Ethernet header: `frame`, if given, is put where it is found again.
    #[inline(always)]
    pub(crate) fn wrapped(&mut self, len: usize, frame: Option<[u8; ethernet::Header::LEN]>) {
        self.extra.wrapping = self.extra.wrapping.saturating_add(len as u16);
        self.grown(len);
        if let Some(frame) = frame {
            self.put_link_layer(frame);
        }
    }

    /// Takes note that a header of `len` bytes was inserted. The headers before it moved over the Ethernet header: `frame`,
    /// as it was before, is put where it is found again, because where the packet goes may be a headend of frames.
    pub(crate) fn inserted(&mut self, len: usize, frame: Option<[u8; ethernet::Header::LEN]>) {
        // Into headers of this router's own it goes with them.
        let place = if self.extra.wrapping > 0 { &mut self.extra.wrapping } else { &mut self.extra.inserted };
        *place = place.saturating_add(len as u16);
        self.grown(len);
        if let Some(frame) = frame {
            self.put_link_layer(frame);
        }
    }

    /// Takes note that the packet became `len` bytes longer.
    #[inline(always)]
    fn grown(&mut self, len: usize) {
        self.extra.growth = self.extra.growth.saturating_add(len as u16);
        self.extra.labels = 0;
    }

    /// Takes note that a behaviour took `len` bytes of headers off a packet that this router had made
    /// longer.
    #[cold]
    pub(crate) fn shortened(&mut self, len: usize) {
        // An SRH less does not change what is inside. Linux: `iptunnel_pull_offloads`, where that is taken out.
        if self.packet.len() <= self.extra.inside as usize {
            self.extra.inside = 0;
        }
        let ExtraMeta { wrapping, inserted, growth, .. } = &mut self.extra;
        let place = if *wrapping > 0 { wrapping } else { inserted };
        *place = place.saturating_sub(len as u16);
        *growth = growth.saturating_sub(len as u16);
    }
}

/// Look-ups that one packet may ask for: more is a loop through the router's own tunnels.
pub(crate) const MAX_LOOKUPS: u8 = 16;

/// Encapsulations that one packet may get: `XMIT_RECURSION_LIMIT` in Linux, whose `lwtunnel_input` drops the packet
/// that is to get one more.
pub(crate) const MAX_ENCAPSULATIONS: u8 = 8;
