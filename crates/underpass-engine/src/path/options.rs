//! Options of IPv4 headers, and of IPv6 hop-by-hop and destination options headers: what of them is
//! wrong, and what the router writes into those that record a route or times.

use std::net::Ipv4Addr;

use arrayvec::ArrayVec;
use underpass_packet::ioam::OPTION;
use underpass_packet::ipv6_ext::Extension;
use underpass_packet::ipv6_options::{OPTION_PAD1, OPTION_PADN, OPTION_ROUTER_ALERT, Opt, Unrecognised};
use underpass_packet::{ipv4, ipv6};

use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::path::ioam_trace;
use crate::worker::error::{IcmpError, PacketError};
use crate::worker::metadata::PacketMeta;
use crate::worker::verdict::Verdict;

/// Why a packet is refused, and where the fault lies, in bytes from the start of its IP header.
pub(crate) struct Problem {
    error: PacketError,
    pub(crate) pointer: usize,
}

impl Problem {
    pub(crate) const fn silent(reason: DropReason) -> Self {
        Self { error: PacketError::silent(reason), pointer: 0 }
    }

    pub(crate) const fn notify(reason: DropReason, error: IcmpError, pointer: usize) -> Self {
        Self { error: PacketError::notify(reason, error), pointer }
    }

    /// The step in which the packet is refused.
    pub(crate) fn refuse(self, meta: &mut PacketMeta) -> Verdict {
        meta.extra.argument = self.pointer as u32;
        Verdict::Refuse(self.error)
    }
}

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_SOURCE_ROUTE: u8 = 131;
/// Commercial IP Security Option: FIPS 188.
const CIPSO: u8 = 134;
const STRICT_SOURCE_ROUTE: u8 = 137;
const ROUTER_ALERT: u8 = 148;

/// Checks the options of an IPv4 packet as Linux's `ip_options_compile` does.
///
/// # Errors
/// A parameter problem that points at the byte; source routes are dropped silently, as where
/// `accept_source_route` is off.
pub(crate) fn check4(packet: &ipv4::View<'_>) -> Result<(), Problem> {
    let (mut at, mut seen, mut source_route, mut cipso) = (0, [false; 2], false, false);
    while let Some(&kind) = packet.options.get(at) {
        let fault = |offset: usize| {
            Problem::notify(DropReason::OptionMalformed, IcmpError::Header, ipv4::Header::LEN + at + offset)
        };
        let len = match kind {
            END => break,
            NO_OPERATION => 1,
            _ => {
                let len = packet.options.get(at + 1).map_or(0, |len| usize::from(*len));
                let option = packet.options.get(at..at + len).filter(|option| option.len() >= 2);
                let option = option.ok_or(fault(0))?;
                if let RECORD_ROUTE | TIMESTAMP = kind
                    && std::mem::replace(&mut seen[usize::from(kind == TIMESTAMP)], true)
                {
                    return Err(fault(0));
                }
                // The place of the next entry counts from 1, and the first is behind the fixed part.
                let place = option.get(2).copied();
                let (fixed, entry) = match kind {
                    RECORD_ROUTE | LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => (3, 4),
                    TIMESTAMP if has_addresses(option) => (4, 8),
                    TIMESTAMP => (4, 4),
                    _ => (0, 0),
                };
                if kind == ROUTER_ALERT && len < 4 || len < fixed {
                    return Err(fault(1));
                }
                if matches!(kind, LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE) {
                    if place.is_none_or(|place| place < 4) {
                        return Err(fault(2));
                    }
                    // RFC 1812 section 5.2.4.1: more than one is an error.
                    if std::mem::replace(&mut source_route, true) {
                        return Err(fault(0));
                    }
                } else if fixed > 0
                    && place.is_none_or(|place| is_misplaced(usize::from(place), fixed, entry, len))
                {
                    return Err(fault(2));
                }
                if kind == TIMESTAMP && is_overfull(option) {
                    return Err(fault(3));
                }
                if kind == CIPSO {
                    if std::mem::replace(&mut cipso, true) {
                        return Err(fault(0));
                    }
                    check_cipso(option).map_err(fault)?;
                }
                len
            }
        };
        at += len;
    }
    if source_route { Err(Problem::silent(DropReason::OptionMalformed)) } else { Ok(()) }
}

/// Checks a security option: eight bytes at least, a domain of interpretation that is not 0, and tags that fill it. Linux:
/// `cipso_v4_validate`, as a kernel without NetLabel has it.
///
/// # Errors
/// The byte that is wrong.
fn check_cipso(option: &[u8]) -> Result<(), usize> {
    let Some(([_, _, domain @ .., _, _], _)) = option.split_first_chunk::<8>() else { return Err(1) };
    if *domain == [0; 4] {
        return Err(2);
    }
    let mut at = 6;
    while at < option.len() {
        let len = option.get(at + 1).map(|len| usize::from(*len)).ok_or(at)?;
        if len == 0 || len > option.len() - at {
            return Err(at + 1);
        }
        at += len;
    }
    Ok(())
}

/// How times are recorded: the lower half of the fourth byte of the option. RFC 791 section 3.1.
const TIMES: u8 = 0;
const TIMES_AND_ADDRESSES: u8 = 1;

/// Of the addresses that are there.
const TIMES_OF: u8 = 3;

/// In the upper half: how many found no room.
const OVERFLOW: u8 = 0x10;

/// Whether each time of this option, which records some, stands behind an address.
fn has_addresses(option: &[u8]) -> bool {
    matches!(option.get(3).map(|how| how & 0xf), Some(TIMES_AND_ADDRESSES | TIMES_OF))
}

/// Whether an option that records times has no room, and cannot count one more who finds none.
fn is_overfull(option: &[u8]) -> bool {
    matches!(option, [_, _, place, how, ..]
        if usize::from(*place) > option.len() && how & 0xf != TIMES_OF && how >> 4 == 15)
}

/// Length of the option at the start of these, which have been checked. `None`: they end.
fn next4(options: &[u8]) -> Option<usize> {
    let len = match *options {
        [END, ..] | [] => return None,
        [NO_OPERATION, ..] => 1,
        [_, len, ..] => usize::from(len).max(1),
        [_] => return None,
    };
    (len <= options.len()).then_some(len)
}

/// The options of a header.
fn each4(mut options: &[u8], mut take: impl FnMut(&[u8])) {
    while let Some((option, rest)) = next4(options).and_then(|len| options.split_at_checked(len)) {
        take(option);
        options = rest;
    }
}

/// The same, to be changed.
fn each4_mut(mut options: &mut [u8], mut take: impl FnMut(&mut [u8])) {
    while let Some((option, rest)) = next4(options).and_then(|len| options.split_at_mut_checked(len)) {
        take(option);
        options = rest;
    }
}

/// What options ask of the router that a packet passes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Recorded {
    /// Whether anything was written.
    pub(crate) changed: bool,
    /// Whether the address by which the packet leaves is to be written, over the last one of a route, and of times.
    pub(crate) route: bool,
    pub(crate) times: bool,
}

/// Writes the router's address and the time into options that record them, which have been checked, as Linux's
/// `ip_options_compile` does. `own`: whether an address is the router's.
pub(crate) fn record4(
    options: &mut [u8],
    address: Ipv4Addr,
    time: [u8; 4],
    own: impl Fn(Ipv4Addr) -> bool,
) -> Recorded {
    let mut recorded = Recorded::default();
    let write = |option: &mut [u8], at: usize, what: &[u8]| {
        if let Some(place) = option.get_mut(at..at + what.len()) {
            place.copy_from_slice(what);
        }
    };
    each4_mut(options, |option| {
        let (place, how) = match *option {
            [RECORD_ROUTE | TIMESTAMP, _, place, how, ..] => (usize::from(place), how),
            _ => return,
        };
        // Entries begin at the byte before, counted from 0.
        let Some(at) = place.checked_sub(1).filter(|_| place <= option.len()) else {
            if option[0] == TIMESTAMP && place > option.len() && how & 0xf != TIMES_OF {
                option[3] = how.wrapping_add(OVERFLOW);
                recorded.changed = true;
            }
            return;
        };
        match (option[0], how & 0xf) {
            (RECORD_ROUTE, _) => {
                write(option, at, &address.octets());
                option[2] += 4;
                recorded.route = true;
            }
            (_, TIMES) => {
                write(option, at, &time);
                option[2] += 4;
            }
            (_, TIMES_AND_ADDRESSES) => {
                write(option, at, &address.octets());
                write(option, at + 4, &time);
                option[2] += 8;
                recorded.times = true;
            }
            (_, TIMES_OF) => {
                let named = option.get(at..at + 4).and_then(|named| named.first_chunk::<4>().copied());
                if named.is_none_or(|named| !own(named.into())) {
                    return;
                }
                write(option, at + 4, &time);
                option[2] += 8;
                recorded.times = true;
            }
            _ => return,
        }
        recorded.changed = true;
    });
    recorded
}

/// Writes the address by which a packet leaves over the last one of its route, or of its times, as Linux's
/// `ip_forward_options` does.
pub(crate) fn record_way_out4(options: &mut [u8], address: Ipv4Addr, of: Recorded) {
    each4_mut(options, |option| {
        let before = match option[0] {
            RECORD_ROUTE if of.route => 5,
            TIMESTAMP if of.times => 9,
            _ => return,
        };
        let at = option.get(2).and_then(|place| usize::from(*place).checked_sub(before));
        if let Some(entry) = at.and_then(|at| option.get_mut(at..at + 4)) {
            entry.copy_from_slice(&address.octets());
        }
    });
}

/// The time as options have it: milliseconds since midnight UT, from a Unix time.
pub(crate) const fn time4(unix: Nanos) -> [u8; 4] {
    ((unix / 1_000_000 % 86_400_000) as u32).to_be_bytes()
}

/// Clears what follows the option that ends the options, which have been checked, as Linux's `ip_options_compile` does.
/// Whether that has changed anything.
pub(crate) fn clear_behind_end4(options: &mut [u8]) -> bool {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        at += match (kind, options.get(at + 1)) {
            (END, _) => {
                let behind = options.get_mut(at..).unwrap_or_default();
                let changed = behind.iter().any(|byte| *byte != END);
                behind.fill(END);
                return changed;
            }
            (NO_OPERATION, _) | (_, None) => 1,
            (_, Some(len)) => usize::from(*len).max(1),
        };
    }
    false
}

/// Options of an IPv4 header.
pub(crate) type Options4 = ArrayVec<u8, { ipv4::MAX_OPTIONS }>;

/// The options that Linux's `ip_options_compile` has taken note of before it has found this byte wrong: those before, and a security
/// option that has it behind its first.
pub(crate) fn known_before(options: &[u8], fault: usize) -> &[u8] {
    let mut at = 0;
    while let Some(rest) = options.get(at..).filter(|_| at < fault)
        && let Some(len) = next4(rest)
    {
        if at + len > fault {
            let end = if rest.first() == Some(&CIPSO) { at + len } else { at };
            return options.get(..end).unwrap_or_default();
        }
        at += len;
    }
    options.get(..fault).unwrap_or_default()
}

/// Those of the options of a packet, which have been recorded in, that what answers it has too: a route, then times, in which
/// the answer is recorded as well, then how secret it is. Linux: `__ip_options_echo`, `ip_options_build`.
pub(crate) fn echo4(options: &[u8], time: [u8; 4]) -> (Options4, Recorded) {
    let (mut echoed, mut recorded) = (Options4::new(), Recorded::default());
    for kind in [RECORD_ROUTE, TIMESTAMP, CIPSO] {
        each4(options, |option| {
            if option[0] != kind || option.len() > echoed.remaining_capacity() {
                return;
            }
            let start = echoed.len();
            echoed.extend(option.iter().copied());
            if kind == CIPSO {
                return;
            }
            let Some([_, _, place, rest @ ..]) = echoed.get_mut(start..) else { return };
            let (at, how) = (usize::from(*place), rest.first().map_or(0, |how| how & 0xf));
            let entry = match (kind, how) {
                (RECORD_ROUTE, _) | (_, TIMES) => 4,
                (_, TIMES_AND_ADDRESSES) => 8,
                _ => return,
            };
            // Entries begin at the byte before, counted from 0, of which three are not in `rest`.
            let Some(room) = at.checked_sub(4).and_then(|at| rest.get_mut(at..at + entry)) else { return };
            *place += entry as u8;
            if let Some(last) = room.last_chunk_mut().filter(|_| kind == TIMESTAMP) {
                *last = time;
            }
            recorded.route |= kind == RECORD_ROUTE;
            recorded.times |= entry == 8;
        });
    }
    while !echoed.len().is_multiple_of(4) && !echoed.is_full() {
        echoed.push(END);
    }
    (echoed, recorded)
}

/// Whether the next entry would lie before the first one, or go on after the option. Behind the last one
/// it may lie: the option is full.
const fn is_misplaced(place: usize, fixed: usize, entry: usize, len: usize) -> bool {
    place <= fixed || place <= len && place - 1 + entry > len
}

/// The jumbo payload option, RFC 2675: no slot is long enough for one that is right.
const JUMBO: u8 = 0xc2;

/// Longest padding between options, and most options of a header, as Linux takes them.
const MAX_PADDING: usize = 7;
const MAX_OPTIONS: usize = 8;

/// Checks the options of a hop-by-hop or destination options header: RFC 8200 section 4.2, as Linux's
/// `ip6_parse_tlv` does. `traces`: those of IOAM are known, as they are hop by hop, and filled if that is
/// enabled. Whether there is one to be filled.
///
/// # Errors
/// Silent, or a parameter problem that points at the option.
pub(crate) fn check6(
    header: &ipv6::Header,
    extension: &Extension<'_>,
    traces: Option<bool>,
) -> Result<bool, Problem> {
    let (mut padding, mut options, mut traced) = (0, 0, false);
    for option in extension.options() {
        let Ok(option) = option else { return Err(Problem::silent(DropReason::OptionMalformed)) };
        if matches!(option.kind, OPTION_PAD1 | OPTION_PADN) {
            padding += if option.kind == OPTION_PAD1 { 1 } else { 2 + option.data.len() };
            if padding > MAX_PADDING || option.data.iter().any(|byte| *byte != 0) {
                return Err(Problem::silent(DropReason::OptionMalformed));
            }
            continue;
        }
        (padding, options) = (0, options + 1);
        if options > MAX_OPTIONS {
            return Err(Problem::silent(DropReason::OptionMalformed));
        }
        match traces {
            Some(enabled) if option.kind == OPTION => {
                traced |= ioam_trace::check_option(&option, extension.offset + option.offset, enabled)?;
            }
            _ => check_option(header, extension.offset, &option, traces.is_some())?,
        }
    }
    Ok(traced)
}

/// What is wrong with a jumbo payload option in a packet that is no jumbogram. RFC 2675 section 3: a length that needs none is
/// told by its first byte, one beside a payload length by the option's.
fn jumbo(option: &Opt<'_>, pointer: usize) -> Problem {
    match option.data.first_chunk().filter(|_| option.data.len() == 4 && pointer % 4 == 2) {
        None => Problem::silent(DropReason::OptionMalformed),
        Some(len) if u32::from_be_bytes(*len) <= u32::from(u16::MAX) => {
            Problem::notify(DropReason::OptionMalformed, IcmpError::Header, pointer + 2)
        }
        Some(_) => Problem::notify(DropReason::OptionMalformed, IcmpError::Header, pointer),
    }
}

/// `hop_by_hop`: whether the option is looked at on the way, where more of them are known.
fn check_option(
    header: &ipv6::Header,
    extension: usize,
    option: &Opt<'_>,
    hop_by_hop: bool,
) -> Result<(), Problem> {
    let pointer = extension + option.offset;
    let report = || Problem::notify(DropReason::OptionUnknown, IcmpError::Option, pointer);
    match (option.kind, option.unrecognised()) {
        (OPTION_ROUTER_ALERT, _) if hop_by_hop && option.data.len() != 2 => {
            Err(Problem::silent(DropReason::OptionMalformed))
        }
        (JUMBO, _) if hop_by_hop => Err(jumbo(option, pointer)),
        (_, Unrecognised::Skip) => Ok(()),
        (_, Unrecognised::Discard) => Err(Problem::silent(DropReason::OptionUnknown)),
        (_, Unrecognised::ReportUnicast) if header.destination().is_multicast() => {
            Err(Problem::silent(DropReason::OptionUnknown))
        }
        (_, Unrecognised::Report | Unrecognised::ReportUnicast) => Err(report()),
    }
}
