//! Options of IPv4 headers, and of IPv6 hop-by-hop and destination options headers: what of them is
//! wrong. None of them asks this router for anything: it fills in no route and no time.

use underpass_packet::ioam::OPTION;
use underpass_packet::ipv6_ext::Extension;
use underpass_packet::ipv6_options::{OPTION_PAD1, OPTION_PADN, OPTION_ROUTER_ALERT, Opt, Unrecognised};
use underpass_packet::{ipv4, ipv6};

use super::{IcmpError, Refusal, Road, Step, ioam};
use crate::drops::Drop;

/// Why a packet is refused, and where the fault lies, in bytes from the start of its IP header.
pub(super) struct Problem {
    refusal: Refusal,
    pointer: usize,
}

impl Problem {
    pub(super) const fn silent(reason: Drop) -> Self {
        Self { refusal: Refusal::silent(reason), pointer: 0 }
    }

    pub(super) const fn told(reason: Drop, error: IcmpError, pointer: usize) -> Self {
        Self { refusal: Refusal::told(reason, error), pointer }
    }

    /// The step in which the packet is refused.
    pub(super) fn refuse(self, road: &mut Road) -> Step {
        road.extra.argument = self.pointer as u32;
        Step::Refuse(self.refusal)
    }
}

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;
const ROUTER_ALERT: u8 = 148;

/// Checks the options of an IPv4 packet as Linux's `ip_options_compile` does.
///
/// # Errors
/// A parameter problem that points at the byte; source routes are dropped silently, as where
/// `accept_source_route` is off.
pub(super) fn check4(packet: &ipv4::View<'_>) -> Result<(), Problem> {
    let mut at = 0;
    while let Some(&kind) = packet.options.get(at) {
        let fault = |offset: usize| {
            Problem::told(Drop::OptionMalformed, IcmpError::Header, ipv4::Header::LEN + at + offset)
        };
        let len = match kind {
            END => return Ok(()),
            NO_OPERATION => 1,
            _ => {
                let len = packet.options.get(at + 1).map_or(0, |len| usize::from(*len));
                let option = packet.options.get(at..at + len).filter(|option| option.len() >= 2);
                let option = option.ok_or(fault(0))?;
                // The place of the next entry counts from 1, and the first is behind the fixed part.
                let place = option.get(2).copied();
                let (fixed, entry) = match kind {
                    RECORD_ROUTE | LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => (3, 4),
                    TIMESTAMP => (4, 4),
                    _ => (0, 0),
                };
                if kind == ROUTER_ALERT && len < 4 || len < fixed {
                    return Err(fault(1));
                }
                if matches!(kind, LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE) {
                    return Err(Problem::silent(Drop::OptionMalformed));
                }
                if fixed > 0 && place.is_none_or(|place| is_misplaced(usize::from(place), fixed, entry, len))
                {
                    return Err(fault(2));
                }
                len
            }
        };
        at += len;
    }
    Ok(())
}

/// Clears what follows the option that ends the options, which have been checked, as Linux's `ip_options_compile` does.
/// Whether that has changed anything.
pub(super) fn clear_behind_end4(options: &mut [u8]) -> bool {
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

/// Leaves those of the options of an echo request, which have been checked, that its reply has too: a route and times, as
/// Linux's `ip_options_echo` does. How many bytes they are then, and how many are gone.
pub(super) fn echo4(options: &mut [u8]) -> (usize, usize) {
    let (mut at, mut kept) = (0, 0);
    while let Some(&kind) = options.get(at) {
        let len = match (kind, options.get(at + 1)) {
            (END, _) => break,
            (NO_OPERATION, _) => 1,
            (_, Some(len)) => usize::from(*len).max(1),
            (_, None) => break,
        };
        if matches!(kind, RECORD_ROUTE | TIMESTAMP) && at + len <= options.len() {
            options.copy_within(at..at + len, kept);
            kept += len;
        }
        at += len;
    }
    let padded = kept.next_multiple_of(4).min(options.len());
    options[kept..padded].fill(END);
    (padded, options.len() - padded)
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
pub(super) fn check6(
    header: &ipv6::Header,
    extension: &Extension<'_>,
    traces: Option<bool>,
) -> Result<bool, Problem> {
    let (mut padding, mut options, mut traced) = (0, 0, false);
    for option in extension.options() {
        let Ok(option) = option else { return Err(Problem::silent(Drop::OptionMalformed)) };
        if matches!(option.kind, OPTION_PAD1 | OPTION_PADN) {
            padding += if option.kind == OPTION_PAD1 { 1 } else { 2 + option.data.len() };
            if padding > MAX_PADDING || option.data.iter().any(|byte| *byte != 0) {
                return Err(Problem::silent(Drop::OptionMalformed));
            }
            continue;
        }
        (padding, options) = (0, options + 1);
        if options > MAX_OPTIONS {
            return Err(Problem::silent(Drop::OptionMalformed));
        }
        match traces {
            Some(enabled) if option.kind == OPTION => {
                traced |= ioam::check_option(&option, extension.offset + option.offset, enabled)?;
            }
            _ => check_option(header, extension.offset, &option)?,
        }
    }
    Ok(traced)
}

fn check_option(header: &ipv6::Header, extension: usize, option: &Opt<'_>) -> Result<(), Problem> {
    let pointer = extension + option.offset;
    let report = || Problem::told(Drop::OptionUnknown, IcmpError::Option, pointer);
    match (option.kind, option.unrecognised()) {
        (OPTION_ROUTER_ALERT, _) if option.data.len() != 2 => Err(Problem::silent(Drop::OptionMalformed)),
        (JUMBO, _) => Err(Problem::silent(Drop::OptionMalformed)),
        (_, Unrecognised::Skip) => Ok(()),
        (_, Unrecognised::Discard) => Err(Problem::silent(Drop::OptionUnknown)),
        (_, Unrecognised::ReportUnicast) if header.destination().is_multicast() => {
            Err(Problem::silent(Drop::OptionUnknown))
        }
        (_, Unrecognised::Report | Unrecognised::ReportUnicast) => Err(report()),
    }
}
