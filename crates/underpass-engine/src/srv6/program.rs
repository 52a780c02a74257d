//! Packets through the programs of SIDs with End.BPF.

use std::net::Ipv6Addr;

use crate::bpf::General;
use crate::bpf::programs::Programs;
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::path::input::note_unusual;
use crate::path::rules;
use crate::srv6;
use crate::srv6::bpf::{BpfNext, Found};
use crate::tables::{Action, ActionId, Bpf, Discard};
use crate::worker::metadata::{BEHIND_LABEL, LED_INTO_VRF, MAX_LOOKUPS, PacketMeta};
use crate::worker::path::{Path, Worker};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

const EINVAL: i64 = 22;
const EACCES: i64 = 13;
const ENETUNREACH: i64 = 101;
const EHOSTUNREACH: i64 = 113;

impl<const COUNT: bool> Worker<COUNT> {
    /// Says what BPF programs see of the machine: the processor that the worker runs on
    /// (`bpf_get_smp_processor_id`), and their clock at time 0 (`bpf_ktime_get_ns`). Otherwise that is 0, and the
    /// processor is the worker's number.
    #[must_use]
    pub fn programs_see(mut self, processor: u32, clock: Nanos) -> Self {
        (self.path.programs.processor, self.path.programs.clock) = (processor, clock);
        self
    }

    /// What programs have printed (`bpf_trace_printk`) since the last call, a line each, and how many lines there
    /// was no room for. `None`: nothing.
    pub fn printed<R>(&mut self, read: impl FnOnce(&str, u64) -> R) -> Option<R> {
        let printed = &mut self.path.programs.printed;
        if printed.text.is_empty() && printed.lost == 0 {
            return None;
        }
        let result = read(&printed.text, printed.lost);
        printed.text.clear();
        printed.lost = 0;
        Some(result)
    }
}

/// Takes a packet whose next segment is its destination through the program of its SID.
#[inline(never)]
pub(crate) fn run_program<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    bpf: &Bpf,
    srh: usize,
) -> Verdict {
    let mut srh = srh;
    for rounds in 0..MAX_LOOKUPS {
        match run_once(path, view, meta, bpf, srh) {
            Ok(Some(verdict)) => {
                if let Some((counter, bytes)) = meta.extra.counted.last() {
                    (0..rounds).for_each(|_| path.count(Some(counter), bytes as usize));
                }
                return verdict;
            }
            Ok(None) => {}
            Err(error) => return refused(path, meta, rounds, error),
        }
        // Linux takes it through the SID again, which it has not been led away from.
        match srv6::next_segment(&mut meta.packet, &view.check(meta.ingress)) {
            Ok(again) => srh = again,
            Err(reason) => return refused(path, meta, rounds + 1, reason.into()),
        }
    }
    refused(path, meta, MAX_LOOKUPS, DropReason::Loop.into())
}

/// Counts a packet as the error of its SID that it was no error of so far, once for each time that it has gone
/// through it.
fn refused<const COUNT: bool>(
    path: &mut Path<COUNT>,
    meta: &mut PacketMeta,
    rounds: u8,
    error: crate::worker::error::PacketError,
) -> Verdict {
    if let Some((counter, _)) = meta.extra.counted.last() {
        (0..rounds).for_each(|_| path.count_error(Some(counter)));
    }
    path.uncount(meta);
    Verdict::Refuse(error)
}

/// Runs the program once. `None`: the packet goes through the SID again.
fn run_once<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    bpf: &Bpf,
    srh: usize,
) -> Result<Option<Verdict>, crate::worker::error::PacketError> {
    let Programs { machine, random, printed, processor, clock } = &mut *path.programs;
    let general = General { now: view.now.wrapping_add(*clock), processor: *processor, random, printed };
    let ifindex = view.link(meta.ingress).map_or(0, |link| link.ifindex);
    let frame = meta.link_layer();
    let mark = (ifindex, meta.extra.mark);
    let find =
        |packet: &[u8], lookup, address, mark| found(view, rules::find6(view, packet, lookup, address, mark));
    let (before, start) = (meta.packet.len(), meta.packet.headroom());
    // Looked up as what comes in by its link is, as behind all SIDs that name no tables: `seg6_lookup_any_nexthop`.
    let link = view.link(meta.ingress).filter(|_| !meta.is(BEHIND_LABEL | LED_INTO_VRF));
    let own = link.map_or(bpf.lookup, |link| link.lookup);
    let outcome = srv6::run_program(
        machine,
        &mut meta.packet,
        (bpf, own, srh),
        view.tables.hmac_keys(view.guard),
        general,
        mark,
        find,
    )?;
    meta.extra.mark = outcome.mark;
    if outcome.wrapped > 0 {
        meta.wrapped(outcome.wrapped, frame);
    }
    if outcome.inserted > 0 {
        meta.inserted(outcome.inserted, frame);
    }
    // The headers before room for TLVs have moved over the Ethernet header: where the packet goes may be a headend of frames.
    if let Some(frame) = frame.filter(|_| meta.packet.headroom() < start) {
        meta.put_link_layer(frame);
    }
    // Linux: `bpf_push_seg6_encap` says for `ip_tunnel_xmit` what is inside.
    if let Some(inside) = outcome.inside {
        meta.extra.inside = inside as u32;
    }
    if meta.extra.growth != 0 && meta.packet.len() < before {
        meta.shortened(before - meta.packet.len());
    }
    note_unusual(meta, outcome.unusual);
    Ok(match outcome.next {
        BpfNext::Look(lookup, address) => Some(Verdict::look6(meta, lookup, address)),
        // Linux discards it, and that is no error of the SID.
        BpfNext::Nowhere => Some(Verdict::drop(DropReason::NoRoute)),
        BpfNext::Again => None,
    })
}

/// What a look-up tells a program: `seg6_lookup_nexthop`.
fn found(view: &View<'_>, found: Result<Option<ActionId>, Discard>) -> Found {
    let fails = |errno| Found { errno, source: None };
    let discard = match found {
        Ok(None) => return fails(ENETUNREACH),
        Ok(Some(id)) => match view.tables.action(id, view.guard) {
            Some(Action::Discard(discard)) => *discard,
            action => return Found { errno: 0, source: source(view, action) },
        },
        Err(discard) => discard,
    };
    match discard {
        Discard::Blackhole => fails(EINVAL),
        Discard::Prohibit => fails(EACCES),
        Discard::Unreachable => fails(EHOSTUNREACH),
        Discard::Throw => fails(ENETUNREACH),
    }
}

/// The address of the link that an action sends by.
fn source(view: &View<'_>, action: Option<&Action>) -> Option<Ipv6Addr> {
    let link = match action? {
        Action::Forward(id) => view.tables.next_hop(*id, view.guard)?.link,
        Action::OnLink(link) => *link,
        Action::Vrf(route) => route.link,
        _ => return None,
    };
    view.source6(view.link(link)?)
}
