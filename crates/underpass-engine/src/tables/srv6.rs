//! SRv6 as workers find it: what a SID does, what a headend puts before a packet, and the routing header of RPL, which is
//! put in alike.

use std::net::Ipv6Addr;
use std::sync::Arc;

use underpass_packet::{ethernet, rpl};

use super::{ActionId, LONGEST_LINK_LAYER, LinkId, LookupId, Via};
use crate::bpf::Program;
use crate::counters::CounterId;

/// An SRv6 local SID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// What the SID does.
    pub behaviour: Behaviour,
    /// What it does besides, if it has any flavour (End, End.X, End.T).
    pub flavours: Option<Flavours>,
    /// Counts packets, bytes and errors if the route asked for it with `count`.
    pub counter: Option<CounterId>,
    /// The link of the route.
    pub link: LinkId,
}

/// Flavours of End, End.X and End.T. They do not depend on one another: each combination is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flavours {
    /// Penultimate segment pop of the SRH, RFC 8986 section 4.16.1.
    pub psp: bool,
    /// Ultimate segment pop of the SRH, RFC 8986 section 4.16.2.
    pub usp: bool,
    /// Ultimate segment decapsulation, RFC 8986 section 4.16.3.
    pub usd: bool,
    /// How its SID is compressed, if it is.
    pub csid: Option<Csid>,
}

/// Compressed SIDs, of either kind: RFC 9800.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Csid {
    /// NEXT-CSID, section 4.1.
    Next(NextCsid),
    /// REPLACE-CSID, section 4.2.
    Replace(ReplaceCsid),
}

/// The structure of a NEXT-CSID SID, RFC 9800 section 4.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextCsid {
    /// Locator-block length, in bits, a multiple of 8.
    pub block: u8,
    /// Locator-node and function length, in bits, a multiple of 8.
    pub node_function: u8,
}

impl NextCsid {
    /// The destination with the first compressed SID of its argument in the place of this SID's. `None`: the
    /// argument is 0. RFC 9800 section 4.1.1, N01, N05 and N06.
    #[inline(always)]
    pub(crate) fn next(self, destination: u128) -> Option<u128> {
        // What is behind the block: the lengths are below 128, as `ip` must give them.
        let behind = u128::MAX >> (self.block & 127);
        let moved = destination << (self.node_function & 127) & behind;
        (moved != 0).then_some(destination & !behind | moved)
    }
}

/// The structure of a REPLACE-CSID SID, RFC 9800 section 4.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplaceCsid {
    /// Locator-block length, in bits, a multiple of 8.
    pub block: u8,
    /// Locator-node and function length, in bits: 8, 16, 32 or 64, so that a container is full of them.
    pub node_function: u8,
}

/// SRv6 endpoint behaviours, as Linux names them (`SEG6_LOCAL_ACTION_*`).
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(u8)] // as `Action`
pub enum Behaviour {
    /// RFC 8986 section 4.1. The next segment is looked up in these tables.
    End {
        /// The tables of the SID's own routing instance.
        lookup: LookupId,
    },
    /// RFC 8986 section 4.2: to this neighbour.
    X(Via),
    /// RFC 8986 section 4.3: the next segment is looked up in these tables.
    T {
        /// The tables named by the SID.
        lookup: LookupId,
    },
    /// RFC 8986 section 4.9: the inner Ethernet frame leaves by this link.
    DX2 {
        /// `oif`.
        link: LinkId,
    },
    /// RFC 8986 section 4.10: the VLANs of the inner Ethernet frame are looked up among the VLAN devices above this link, and
    /// the frame leaves by the one found. Linux has no such behaviour.
    DX2V {
        /// The link of the L2 table: `oif`.
        link: LinkId,
    },
    /// RFC 8986 section 4.11: the inner Ethernet frame comes in by this tunnel's link, to whose bridge it goes on. Linux has no
    /// such behaviour yet.
    DT2U {
        /// The link of an `srv6l2`, the port of the bridge whose stations are the L2 table: `oif`.
        link: LinkId,
    },
    /// RFC 8986 section 4.12: the same of a frame that goes to all ports of the bridge.
    DT2M {
        /// As of End.DT2U.
        link: LinkId,
        /// Where in the SID the ports are that it does not go to. `None`: it has no such argument.
        argument: Option<ArgFe2>,
    },
    /// RFC 8986 section 4.5: the inner IPv4 packet to this neighbour. `0.0.0.0`: by its own destination.
    DX4(Via),
    /// RFC 8986 section 4.4: the inner IPv6 packet to this neighbour. `::`: by its own destination.
    DX6(Via),
    /// RFC 8986 section 4.7.
    DT4 {
        /// The tables of the VRF.
        lookup: LookupId,
    },
    /// RFC 8986 section 4.6.
    DT6 {
        /// The tables of the VRF, or those that the SID names.
        lookup: LookupId,
        /// Whether they are those of a VRF.
        vrf: bool,
    },
    /// RFC 8986 section 4.8.
    DT46 {
        /// The tables of the VRF, for either family.
        lookup: LookupId,
    },
    /// Linux's End.B6 (draft-filsfils-spring-srv6-network-programming): inserts an SRH.
    B6(Box<Headend>),
    /// RFC 8986 section 4.13.
    B6Encaps(Box<Headend>),
    /// Linux's End.BPF: what a program says.
    Bpf(Box<Bpf>),
}

/// Arg.FE2 of End.DT2M, RFC 8986 section 4.12: "These bits represent a list of up to k OIFs, each identified with an x-bit
/// value".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArgFe2 {
    /// Bits of the SID before it.
    pub at: u8,
    /// How many interfaces it has room for: k.
    pub count: u8,
    /// Bits of each: x.
    pub bits: u8,
}

impl ArgFe2 {
    /// What an address says, if the argument is not longer than 64 bits and ends with the address at the latest.
    pub(crate) fn read(self, sid: Ipv6Addr) -> Excluded {
        let (at, bits) = (u32::from(self.at), u32::from(self.bits));
        let behind = 128_u32.saturating_sub(at + u32::from(self.count) * bits);
        let from_start = sid.to_bits().unbounded_shl(at).unbounded_shr(at);
        Excluded { list: from_start.unbounded_shr(behind) as u64, bits }
    }
}

/// The ports of a bridge that a frame does not go to, by their numbers, each of so many bits; 0: an empty place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Excluded {
    list: u64,
    bits: u32,
}

impl Excluded {
    /// Whether a port is one of them.
    pub(crate) fn has(self, number: u16) -> bool {
        let Self { mut list, bits } = self;
        let one = u64::MAX.unbounded_shr(64_u32.saturating_sub(bits));
        while list != 0 {
            if list & one == u64::from(number) && number != 0 {
                return true;
            }
            list = list.unbounded_shr(bits.max(1));
        }
        false
    }
}

/// A program, and what its helpers need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bpf {
    /// The program.
    pub program: Arc<Program>,
    /// The tables of the SID's own routing instance, where a packet is looked up that came in behind a label.
    pub lookup: LookupId,
    /// The tables that a program can name, by their numbers, in rising order.
    pub tables: Box<[(u32, LookupId)]>,
    /// The source of outer headers that the program has put before packets.
    pub source: Ipv6Addr,
    /// Whether it is always this one, and not that of the link that a look-up of the program has led to.
    pub fixed_source: bool,
}

impl Bpf {
    /// The tables of a number; 0 are `own`.
    pub(crate) fn table(&self, number: u32, own: LookupId) -> Option<LookupId> {
        match number {
            0 => Some(own),
            number => {
                let place = self.tables.binary_search_by_key(&number, |(number, _)| *number).ok()?;
                self.tables.get(place).map(|(_, lookup)| *lookup)
            }
        }
    }
}

impl Behaviour {
    /// The name of the behaviour, as `ip` writes it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::End { .. } => "End",
            Self::X(_) => "End.X",
            Self::T { .. } => "End.T",
            Self::DX2 { .. } => "End.DX2",
            Self::DX2V { .. } => "End.DX2V",
            Self::DT2U { .. } => "End.DT2U",
            Self::DT2M { .. } => "End.DT2M",
            Self::DX4(_) => "End.DX4",
            Self::DX6(_) => "End.DX6",
            Self::DT4 { .. } => "End.DT4",
            Self::DT6 { .. } => "End.DT6",
            Self::DT46 { .. } => "End.DT46",
            Self::B6(_) => "End.B6",
            Self::B6Encaps(_) => "End.B6.Encaps",
            Self::Bpf(_) => "End.BPF",
        }
    }

    /// Whether it puts headers before or into a packet.
    #[inline(always)]
    pub(crate) fn inserts(&self) -> bool {
        matches!(self, Self::B6(_) | Self::B6Encaps(_))
    }
}

/// How a headend puts the segment list before a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadendMode {
    /// H.Insert (`mode inline`): an SRH between the IPv6 header and what follows it.
    Inline,
    /// H.Encaps and H.Encaps.Red: an outer IPv6 header and SRH (none, if the reduced list is empty).
    Encap,
    /// H.Encaps.L2 and H.Encaps.L2.Red: the same around the Ethernet frame as received.
    L2Encap,
}

/// An SRv6 policy: the headers to insert, built once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Headend {
    /// How the headers are put before the packet.
    pub mode: HeadendMode,
    /// What is inserted, in wire order. `Encap`, `L2Encap`: an IPv6 header (its payload length 0, its
    /// traffic class and flow label 0, its hop limit that of an IPv4 or Ethernet payload, its next
    /// header that of the SRH, or 0 if there is none) and the SRH, if any. `Inline`: the SRH alone, its
    /// first segment (the last to visit) all zero, to be filled with the packet's destination. The next
    /// header of the SRH is 0, to be filled.
    pub header: Box<[u8]>,
    /// Bytes that a packet must have in front of its layer-3 header: what is put there, and the link layer
    /// of the port that it then leaves by.
    pub room: u16,
    /// The HMAC TLV at the end of the SRH is still to be filled in for each packet: one that is inserted, or one
    /// whose key is missing. `via` is then not resolved, so that no packet takes the fast path.
    pub hmac_open: bool,
    /// Where the packet goes: its first segment, looked up in the tables of the route.
    pub via: Via,
    /// The link of the route.
    pub link: LinkId,
    /// What counts the packets that got the headers, with their bytes as they came, and those that could not go on. `None`
    /// for the policy of a SID, which counts for itself.
    pub counter: Option<CounterId>,
    /// What becomes of the router's own packets, and of those that went through the device of a VRF, if they stay as they
    /// are: `L2Encap` is for packets that came in. Linux sets LWTUNNEL_STATE_OUTPUT_REDIRECT for the other modes alone.
    pub plain: Option<ActionId>,
}

/// An RPL source route: the header to insert, built once but for its last address, the packet's destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rpl {
    /// The routing header in wire order, as [`underpass_packet::rpl::Last`] completes it.
    pub header: Box<[u8]>,
    /// Bytes that a packet must have in front of its layer-3 header, as [`Headend::room`].
    pub room: u16,
    /// Where the packet goes: the first address, looked up in the tables of the route.
    pub via: Via,
    /// The link of the route.
    pub link: LinkId,
}

impl Rpl {
    /// The source route over these addresses, the first of which is where packets go, of a route with this link. `None`: there
    /// is none, or more than a header holds.
    pub fn new(addresses: &[Ipv6Addr], via: Via, link: LinkId) -> Option<Self> {
        let (first, rest) = addresses.split_first()?;
        // Behind the others, the packet's own destination, whatever it is.
        let listed = [rest, &[Ipv6Addr::UNSPECIFIED]].concat();
        let segments_left = u8::try_from(listed.len()).ok()?;
        let builder = rpl::Builder { next_header: 0, segments_left, destination: *first, addresses: &listed };
        let mut header = vec![0; rpl::FIXED_LEN + 16 * listed.len()];
        let len = builder.write_without_last(&mut header).ok()?;
        header.truncate(len);
        let link_layer = if via.resolved.is_some() { ethernet::Header::LEN } else { LONGEST_LINK_LAYER };
        let room = (len + 16).next_multiple_of(8) + link_layer;
        Some(Self { header: header.into(), room: room as u16, via, link })
    }
}
