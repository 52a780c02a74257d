//! Linux's End.BPF: on to the next segment, and then whatever a program does to the packet.
//!
//! `input_action_end_bpf` of net/ipv6/seg6_local.c, and the helpers `bpf_lwt_seg6_*` of net/core/filter.c. What
//! a program may do to the SRH, and when that has to be sound again, is theirs.

use std::net::Ipv6Addr;

use underpass_packet::ipv6_ext::Kind;
use underpass_packet::srh::SrhMut;
use underpass_packet::{FromBytes, ipv6, protocol, srh};

use crate::bpf::{Fault, Field, General, Helper, Host, Machine, Memory, Out};
use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::hmac::{Check, Keys};
use crate::path::ipv6::check as ipv6_check;
use crate::srv6::end::{active_srh, extensions};
use crate::srv6::headend::insert_srh;
use crate::tables::{Bpf, LookupId};
use crate::worker::error::PacketError;

const ENETUNREACH: i64 = 101;
const EBADMSG: i64 = 74;
const EINVAL: i64 = 22;
const ENOENT: i64 = 2;
const EFAULT: i64 = 14;
const ENOMEM: i64 = 12;

/// `SEG6_LOCAL_ACTION_*` that `bpf_lwt_seg6_action` takes.
const END_X: u32 = 2;
const END_T: u32 = 3;
const END_DT6: u32 = 7;
const END_B6: u32 = 9;
const END_B6_ENCAP: u32 = 10;

/// What a program may return: `enum bpf_ret_code`.
const BPF_OK: u32 = 0;
const BPF_DROP: u32 = 2;
const BPF_REDIRECT: u32 = 7;

/// `htons(ETH_P_IPV6)`.
const PROTOCOL: u32 = 0xdd86;

fn error(errno: i64) -> u64 {
    -errno as u64
}

/// Where a packet goes on from a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BpfNext {
    /// Looked up.
    Look(LookupId, Ipv6Addr),
    /// Looked up in a table that there is not.
    Nowhere,
    /// Through the SID once more: the program said that it had chosen where to, and had not.
    Again,
}

/// What a look-up for a program led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// The error of the route; 0 for none.
    pub(crate) errno: i64,
    /// The address of the link that the packet would leave by.
    pub(crate) source: Option<Ipv6Addr>,
}

/// What came of a packet in a program.
pub(crate) struct Outcome {
    pub(crate) next: BpfNext,
    pub(crate) mark: u32,
    /// Bytes of outer headers put before it, and of SRHs inserted into it.
    pub(crate) wrapped: usize,
    pub(crate) inserted: usize,
    /// Bytes of the packet that the program has put outer headers before, last; 0 where it has taken outer headers off since.
    pub(crate) inside: Option<usize>,
    /// The program took the outer headers off, and the packet inside has addresses with which it must not be
    /// forwarded.
    pub(crate) unusual: bool,
}

/// Makes the next segment the destination, and returns where the SRH begins: RFC 8986 section 4.1 without the hop
/// limit, which Linux looks at when it forwards.
pub(crate) fn next_segment(packet: &mut Packet, check: &Check<'_>) -> Result<usize, DropReason> {
    let at = active_srh(packet, check)?;
    let (header, rest) =
        ipv6::Header::mut_from_prefix(packet.bytes_mut()).map_err(|_| DropReason::Ip6Truncated)?;
    let mut srh = rest
        .get_mut(at - ipv6::Header::LEN..)
        .and_then(|bytes| SrhMut::parse(bytes).ok())
        .ok_or(DropReason::SrhMalformed)?;
    header.destination = srh.advance().ok_or(DropReason::SrhMalformed)?;
    Ok(at)
}

/// Runs the program of a SID on a packet whose next segment, of the SRH at `at`, is its destination already. `find` looks an address
/// up for the program, in these tables and with this mark.
///
/// # Errors
/// Why the packet is dropped.
pub(crate) fn run(
    machine: &mut Machine,
    packet: &mut Packet,
    (bpf, own, at): (&Bpf, LookupId, usize),
    keys: Option<&Keys>,
    general: General<'_>,
    (ifindex, mark): (u32, u32),
    find: impl FnMut(&[u8], LookupId, Ipv6Addr, u32) -> Found,
) -> Result<Outcome, PacketError> {
    let segment = packet.offload().and_then(|offload| offload.segment);
    let size = segment.map_or(0, |segment| u32::from(segment.size));
    let fill = [
        (Field::Mark, mark),
        (Field::Protocol, PROTOCOL),
        (Field::IngressIfindex, ifindex),
        (Field::Ifindex, ifindex),
        (Field::GsoSize, size),
        (Field::GsoSegs, (packet.len() as u32).checked_div(size).map_or(0, |whole| whole + 1)),
    ];
    let header_length = packet.bytes().get(at + 1).map_or(0, |length| usize::from(*length) * 8);
    let mut skb = Skb {
        packet,
        bpf,
        own,
        keys,
        general,
        find,
        srh: Some(at),
        header_length,
        valid: true,
        next: BpfNext::Again,
        source: bpf.source,
        wrapped: 0,
        inserted: 0,
        inside: None,
        unusual: false,
    };
    let returned = machine.run(&bpf.program, &mut skb, &fill).map_err(|fault| match fault {
        Fault::Address => DropReason::BpfFault,
        Fault::Budget => DropReason::BpfBudget,
    })?;
    match returned {
        BPF_OK | BPF_REDIRECT => {}
        BPF_DROP => return Err(DropReason::BpfDrop.into()),
        _ => return Err(DropReason::BpfReturnUnknown.into()),
    }
    if skb.srh.is_some() && !skb.has_valid_srh() {
        return Err(DropReason::SrhMalformed.into());
    }
    let (header, _) =
        ipv6::Header::ref_from_prefix(skb.packet.bytes()).map_err(|_| DropReason::Ip6Truncated)?;
    let next = match returned {
        BPF_OK => BpfNext::Look(own, header.destination()),
        _ => skb.next,
    };
    let Skb { wrapped, inserted, inside, unusual, .. } = skb;
    Ok(Outcome { next, mark: machine.left(Field::Mark), wrapped, inserted, inside, unusual })
}

fn destination(packet: &Packet) -> Option<Ipv6Addr> {
    Some(ipv6::Header::ref_from_prefix(packet.bytes()).ok()?.0.destination())
}

/// The packet, and what Linux keeps of it beside: `struct seg6_bpf_srh_state`.
struct Skb<'s, F> {
    packet: &'s mut Packet,
    bpf: &'s Bpf,
    /// The tables that table 0 stands for.
    own: LookupId,
    keys: Option<&'s Keys>,
    general: General<'s>,
    find: F,
    /// Where the SRH is.
    srh: Option<usize>,
    /// Bytes of it behind the first 8, which its own length says once it has been checked.
    header_length: usize,
    /// Whether it is sound.
    valid: bool,
    next: BpfNext,
    source: Ipv6Addr,
    wrapped: usize,
    inserted: usize,
    inside: Option<usize>,
    unusual: bool,
}

impl<F: FnMut(&[u8], LookupId, Ipv6Addr, u32) -> Found> Host for Skb<'_, F> {
    #[inline(always)]
    fn packet(&self) -> &[u8] {
        self.packet.bytes()
    }

    fn call(&mut self, helper: Helper, arguments: [u64; 5], memory: &mut Memory<'_>) -> Result<u64, Fault> {
        let [_, b, c, d, _] = arguments;
        Ok(match helper {
            Helper::StoreBytes => self.store_bytes(memory, b as u32 as usize, c, d as u32)?,
            Helper::AdjustSrh => {
                let done = self.adjust_srh(b as u32 as usize, c as u32 as i32);
                memory.set_len(self.packet.len());
                done
            }
            Helper::Action => {
                let done = self.action(memory, b as u32, c, d as u32)?;
                memory.set_len(self.packet.len());
                done
            }
            helper => {
                self.general.call(helper, arguments, self.packet.bytes(), memory)?.unwrap_or(error(EINVAL))
            }
        })
    }
}

impl<F: FnMut(&[u8], LookupId, Ipv6Addr, u32) -> Found> Skb<'_, F> {
    /// Where the SRH is, and where its segment list ends, from the start of the packet.
    fn layout(&self) -> Option<(usize, usize)> {
        let at = self.srh?;
        let last_entry = *self.packet.bytes().get(at + 4)?;
        Some((at, at + (usize::from(last_entry) + 1) * 16))
    }

    /// `bpf_lwt_seg6_store_bytes`.
    fn store_bytes(&mut self, memory: &Memory<'_>, offset: usize, from: u64, len: u32) -> Result<u64, Fault> {
        let Some(bytes) = Out::copy(memory, self.packet.bytes(), from, len.into())? else {
            return Ok(error(EFAULT));
        };
        let Some((at, tlvs)) = self.layout() else { return Ok(error(EINVAL)) };
        let end = offset + bytes.bytes().len();
        // Linux forgets the first 8 bytes of the SRH here, so that those of the first segment may be written.
        if offset >= tlvs && end <= at + 8 + self.header_length {
            self.valid = false;
        } else if offset < at + 5 || end > at + 8 {
            return Ok(error(EFAULT));
        }
        let Some(room) = self.packet.bytes_mut().get_mut(offset..end) else { return Ok(error(EFAULT)) };
        room.copy_from_slice(bytes.bytes());
        Ok(0)
    }

    /// `bpf_lwt_seg6_adjust_srh`: makes room for TLVs, or takes some out.
    fn adjust_srh(&mut self, offset: usize, len: i32) -> u64 {
        let Some((at, tlvs)) = self.layout() else { return error(EINVAL) };
        let end = at + 8 + self.header_length;
        let by = len.unsigned_abs() as usize;
        if !(tlvs + 8..=end).contains(&offset) || len < 0 && offset + by > end {
            return error(EFAULT);
        }
        let longer = self.packet.len() + by - ipv6::Header::LEN;
        if len > 0 {
            if u16::try_from(longer).is_err() || offset > self.packet.len() {
                return error(ENOMEM);
            }
            let Ok(bytes) = self.packet.push(by) else { return error(ENOMEM) };
            bytes.copy_within(by..by + offset, 0);
            if let Some(room) = bytes.get_mut(offset..offset + by) {
                room.fill(0);
            }
            self.header_length += by;
        } else {
            if offset + by > self.packet.len() {
                return error(ENOMEM);
            }
            self.packet.bytes_mut().copy_within(..offset, by);
            self.packet.pull(by);
            self.header_length -= by;
        }
        let payload_length = self.packet.len().saturating_sub(ipv6::Header::LEN);
        if let Ok((header, _)) = ipv6::Header::mut_from_prefix(self.packet.bytes_mut()) {
            header.payload_length = (payload_length as u16).into();
        }
        let Some(at) = self.find_routing() else { return error(EINVAL) };
        self.srh = Some(at);
        self.valid = false;
        0
    }

    /// `bpf_lwt_seg6_action`.
    pub(crate) fn action(
        &mut self,
        memory: &Memory<'_>,
        action: u32,
        parameter: u64,
        len: u32,
    ) -> Result<u64, Fault> {
        let Some(parameter) = Out::copy(memory, self.packet.bytes(), parameter, len.into())? else {
            return Ok(error(EINVAL));
        };
        let parameter = parameter.bytes();
        let mark = memory.get(Field::Mark);
        let table = || <[u8; 4]>::try_from(parameter).ok().map(u32::from_le_bytes);
        let done = match action {
            END_X | END_T | END_DT6 if !self.has_valid_srh() => Err(EBADMSG),
            END_X => match <[u8; 16]>::try_from(parameter) {
                Ok(address) => self.look(Some(self.own), Some(address.into()), mark),
                Err(_) => Err(EINVAL),
            },
            END_T => match table() {
                Some(table) => self.look(self.bpf.table(table, self.own), None, mark),
                None => Err(EINVAL),
            },
            END_DT6 => match table() {
                Some(table) => {
                    self.decapsulate().and_then(|()| self.look(self.bpf.table(table, self.own), None, mark))
                }
                None => Err(EINVAL),
            },
            END_B6 | END_B6_ENCAP if self.srh.is_some() && !self.has_valid_srh() => Err(EBADMSG),
            END_B6 | END_B6_ENCAP if !is_valid(parameter, false) => Err(EINVAL),
            END_B6 => self.insert(parameter, mark),
            END_B6_ENCAP => self.encapsulate(parameter, mark),
            _ => Err(EINVAL),
        };
        Ok(done.map_or_else(error, |()| 0))
    }

    /// `seg6_lookup_nexthop`: finds where the packet goes, by its destination or by another address.
    fn look(&mut self, tables: Option<LookupId>, address: Option<Ipv6Addr>, mark: u32) -> Result<(), i64> {
        let Some(tables) = tables else {
            self.next = BpfNext::Nowhere;
            return Err(EINVAL);
        };
        let Some(address) = address.or_else(|| destination(self.packet)) else { return Err(ENETUNREACH) };
        self.next = BpfNext::Look(tables, address);
        let found = (self.find)(self.packet.bytes(), tables, address, mark);
        if !self.bpf.fixed_source {
            // Linux takes an address of the link that the packet is to leave by, as far as it knows.
            self.source = found.source.unwrap_or(self.source);
        }
        if found.errno == 0 { Ok(()) } else { Err(found.errno) }
    }

    /// `seg6_bpf_has_valid_srh`.
    fn has_valid_srh(&mut self) -> bool {
        let Some(at) = self.srh else { return false };
        if !self.valid {
            if !self.header_length.is_multiple_of(8) {
                return false;
            }
            let length = (self.header_length / 8) as u8;
            let bytes = self.packet.bytes_mut().get_mut(at..).unwrap_or_default();
            let Some(place) = bytes.get_mut(1) else { return false };
            *place = length;
            self.valid = bytes.get(..(usize::from(length) + 1) * 8).is_some_and(|srh| is_valid(srh, true));
        }
        self.valid
    }

    /// Where the first routing header is, used up or not.
    fn find_routing(&self) -> Option<usize> {
        extensions(self.packet.bytes()).ok()?.find_kind(Kind::Routing).ok()?.map(|header| header.offset)
    }

    /// `bpf_update_srh_state`.
    fn refresh(&mut self) {
        self.srh = self.find_routing();
        if let Some(at) = self.srh {
            self.header_length = self.packet.bytes().get(at + 1).map_or(0, |length| usize::from(*length) * 8);
            self.valid = true;
        }
    }

    /// Takes off all that is before the IPv6 packet inside.
    fn decapsulate(&mut self) -> Result<(), i64> {
        let upper = extensions(self.packet.bytes()).ok().and_then(|headers| headers.upper().ok());
        let upper = upper.filter(|upper| upper.protocol == protocol::IPV6 && upper.fragment_offset == 0);
        let at = upper.ok_or(EBADMSG)?.offset;
        let inside = self.packet.bytes().get(at..).ok_or(EBADMSG)?;
        // Linux does not look.
        let checked = ipv6_check(inside).map_err(|_| EBADMSG)?;
        self.packet.narrow(at, checked.len);
        self.unusual = checked.unusual;
        self.wrapped = self.wrapped.saturating_sub(at);
        self.inside = Some(0);
        self.refresh();
        Ok(())
    }

    /// `BPF_LWT_ENCAP_SEG6_INLINE` of `bpf_push_seg6_encap`.
    pub(crate) fn insert(&mut self, srh: &[u8], mark: u32) -> Result<(), i64> {
        insert_srh(self.packet, srh).map_err(|_| ENOMEM)?;
        // The destination is the segment that the list begins with, wherever segments left points.
        let first = last_entry(srh);
        if let Ok((header, _)) = ipv6::Header::mut_from_prefix(self.packet.bytes_mut())
            && srh[3] != srh[4]
            && let Some(first) = first
        {
            header.destination = first.octets();
        }
        // Into headers of this router's own it goes with them.
        *(if self.wrapped > 0 { &mut self.wrapped } else { &mut self.inserted }) += srh.len();
        self.moved(srh.len());
        self.sign()?;
        self.look(Some(self.own), None, mark)?;
        self.refresh();
        Ok(())
    }

    /// Has so many bytes more before the SRH. While the packet has no way, that one remains the program's.
    fn moved(&mut self, by: usize) {
        self.srh = self.srh.map(|at| at + by);
    }

    /// Fills in the HMAC of an SRH that has just been put on, if it has one: `seg6_push_hmac`.
    fn sign(&mut self) -> Result<(), i64> {
        let at = self.find_routing().ok_or(EINVAL)?;
        let (header, rest) = ipv6::Header::mut_from_prefix(self.packet.bytes_mut()).map_err(|_| EINVAL)?;
        let srh = rest.get_mut(at - ipv6::Header::LEN..).unwrap_or_default();
        let Some([_, length, _, _, _, flags, ..]) = srh.first_chunk::<8>() else { return Err(EINVAL) };
        if flags & srh::FLAG_HMAC == 0 {
            return Ok(());
        }
        let len = (usize::from(*length) + 1) * 8;
        let srh = srh.get_mut(..len).ok_or(EINVAL)?;
        self.keys.ok_or(ENOENT)?.make(&header.source, srh).map_err(|_| ENOENT)
    }

    /// `BPF_LWT_ENCAP_SEG6` of `bpf_push_seg6_encap`: `seg6_do_srh_encap`.
    pub(crate) fn encapsulate(&mut self, srh: &[u8], mark: u32) -> Result<(), i64> {
        let first = last_entry(srh).ok_or(EINVAL)?;
        let [a, b, c, d, _, _, _, hop_limit] = *self.packet.bytes().first_chunk().ok_or(EINVAL)?;
        let inside = self.packet.len();
        let payload_length = u16::try_from(inside + srh.len()).map_err(|_| ENOMEM)?;
        let room = self.packet.push(ipv6::Header::LEN + srh.len()).map_err(|_| ENOMEM)?;
        let (fixed, rest) = room.split_first_chunk_mut::<{ ipv6::Header::LEN }>().ok_or(ENOMEM)?;
        fixed[..4].copy_from_slice(&[a, b, c, d]);
        fixed[4..6].copy_from_slice(&payload_length.to_be_bytes());
        fixed[6] = protocol::ROUTING;
        fixed[7] = hop_limit;
        fixed[8..24].copy_from_slice(&self.source.octets());
        fixed[24..].copy_from_slice(&first.octets());
        let place = rest.get_mut(..srh.len()).ok_or(ENOMEM)?;
        place.copy_from_slice(srh);
        place[0] = protocol::IPV6;
        self.wrapped += ipv6::Header::LEN + srh.len();
        self.inside = Some(inside);
        self.moved(ipv6::Header::LEN + srh.len());
        self.sign()?;
        self.look(Some(self.own), None, mark)?;
        self.refresh();
        Ok(())
    }
}

/// The segment that an SRH's last entry names: the first to visit.
fn last_entry(srh: &[u8]) -> Option<Ipv6Addr> {
    let at = 8 + usize::from(*srh.get(4)?) * 16;
    Some(Ipv6Addr::from_octets(*srh.get(at..)?.first_chunk()?))
}

/// `seg6_validate_srh`: whether the lengths of an SRH agree with each other. `reduced`: the segment that is the
/// destination may be missing.
fn is_valid(bytes: &[u8], reduced: bool) -> bool {
    let Some([_, length, kind, left, last, ..]) = bytes.first_chunk::<8>() else { return false };
    let (length, left, last) = (usize::from(*length), usize::from(*left), usize::from(*last));
    let list = match reduced {
        false => left <= last,
        true => last < length / 2 && left <= last + 1,
    };
    if *kind != srh::ROUTING_TYPE || (length + 1) * 8 != bytes.len() || !list {
        return false;
    }
    let Some(mut tlvs) = bytes.get(8 + (last + 1) * 16..) else { return false };
    // Linux takes a Pad1 for a TLV with a length, too.
    while !tlvs.is_empty() {
        match tlvs.get(1).and_then(|length| tlvs.get(2 + usize::from(*length)..)) {
            Some(rest) => tlvs = rest,
            None => return false,
        }
    }
    true
}
