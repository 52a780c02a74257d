//! Routes with segments as actions of the packet path: SIDs, policy headends, RPL source routes.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use underpass_engine::tables::{
    ArgFe2, Behaviour, Bpf, Csid, Flavours, Headend, HeadendMode, LONGEST_LINK_LAYER, NextCsid, ReplaceCsid,
    Rpl,
};
use underpass_netlink::seg6::{Mode, Seg6, SegmentList};
use underpass_netlink::seg6local::{
    self, FLAVOR_NEXT_CSID, FLAVOR_PSP, FLAVOR_REPLACE_CSID, FLAVOR_USD, FLAVOR_USP, Flavors, Seg6Local,
};

use super::compiled::Build;
use super::info::Hop;
use super::next_hop::find_via;
use super::publish::lookup_id;
use super::published::Scope;
use super::scope::link_id;
use super::table::Family;
use crate::Router;
use crate::address::source::source6;

/// Hop limit of an outer header around a packet that has none: Linux's default.
const HOP_LIMIT: u8 = 64;
const ROUTING_HEADER: u8 = 43;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Length of the outer IPv6 header.
const OUTER: usize = 40;

/// `None`: the SID needs something that the router does not have, and drops.
pub(super) fn behaviour(
    router: &mut Router,
    local: &Seg6Local,
    hop: &Hop,
    scope: Scope,
    build: &mut Build,
) -> Option<Behaviour> {
    let own = lookup_id(router, scope);
    let vrf = |router: &mut Router| {
        let table = local.vrf_table?;
        router.links.vrf_with_table(table)?;
        Some(lookup_id(router, Scope::Rules { link: 0, vrf: Some(table) }))
    };
    // Table 0 is no table: Linux then looks up by the rules.
    let table = |router: &mut Router| match local.table? {
        0 => Some(own),
        table => Some(lookup_id(router, Scope::Table(table))),
    };
    Some(match local.action {
        seg6local::Action::End => Behaviour::End { lookup: own },
        seg6local::Action::EndX => Behaviour::X(find_via(router, local.nh6?.into(), own, build)),
        seg6local::Action::EndT => Behaviour::T { lookup: table(router)? },
        seg6local::Action::EndDX2 => Behaviour::DX2 { link: router.links.get(local.oif?)?.id },
        seg6local::Action::EndDX2V => Behaviour::DX2V { link: router.links.get(local.oif?)?.id },
        seg6local::Action::EndDT2U => Behaviour::DT2U { link: router.links.get(local.oif?)?.id },
        seg6local::Action::EndDT2M => Behaviour::DT2M {
            link: router.links.get(local.oif?)?.id,
            argument: local.fe2.map(|seg6local::ArgFe2 { at, count, bits }| ArgFe2 { at, count, bits }),
        },
        seg6local::Action::EndDX6 => Behaviour::DX6(find_via(router, local.nh6?.into(), own, build)),
        seg6local::Action::EndDX4 => Behaviour::DX4(find_via(router, local.nh4?.into(), own, build)),
        seg6local::Action::EndDT6 => {
            let in_vrf = local.vrf_table.is_some();
            Behaviour::DT6 { lookup: if in_vrf { vrf(router) } else { table(router) }?, vrf: in_vrf }
        }
        seg6local::Action::EndDT4 => Behaviour::DT4 { lookup: vrf(router)? },
        seg6local::Action::EndDT46 => Behaviour::DT46 { lookup: vrf(router)? },
        seg6local::Action::EndB6 => {
            let seg6 = Seg6 { mode: Mode::Inline, srh: local.srh.clone()? };
            Behaviour::B6(headend(router, &seg6, hop, scope, build)?.into())
        }
        seg6local::Action::EndBpf => {
            let program = hop.tunnel.as_ref()?.program.as_ref()?.code();
            let numbers: BTreeSet<u32> = router
                .routes
                .tables
                .keys()
                .filter(|(family, _)| *family == Family::V6)
                .map(|(_, table)| *table)
                .collect();
            let tables = numbers.into_iter().map(|table| (table, lookup_id(router, Scope::Table(table))));
            let tables = tables.collect();
            let source = encapsulation_source(router, hop.oif);
            let fixed_source = !router.tunnel_source.is_unspecified();
            Behaviour::Bpf(Box::new(Bpf { program, lookup: own, tables, source, fixed_source }))
        }
        seg6local::Action::EndB6Encaps => {
            let seg6 = Seg6 { mode: Mode::Encap, srh: local.srh.clone()? };
            Behaviour::B6Encaps(headend(router, &seg6, hop, scope, build)?.into())
        }
    })
}

/// `None`: the list is empty, which no request can make it.
pub(super) fn headend(
    router: &mut Router,
    seg6: &Seg6,
    hop: &Hop,
    scope: Scope,
    build: &mut Build,
) -> Option<Headend> {
    let lookup = lookup_id(router, scope);
    let first = seg6.srh.segments().next_back()?;
    let mode = match seg6.mode {
        Mode::Inline => HeadendMode::Inline,
        Mode::Encap | Mode::EncapRed => HeadendMode::Encap,
        Mode::L2Encap | Mode::L2EncapRed => HeadendMode::L2Encap,
    };
    let source = encapsulation_source(router, hop.oif);
    let mut header = header(seg6, source, first);
    let mut via = find_via(router, first.into(), lookup, build);
    let mut hmac_open = seg6.srh.hmac();
    if hmac_open && mode != HeadendMode::Inline {
        // It covers nothing of the packet.
        let srh = header.get_mut(OUTER..).unwrap_or_default();
        hmac_open = router.hmac_keys.compiled().make(&source.octets(), srh).is_err();
    }
    if hmac_open {
        via.resolved = None;
    }
    // Every port has Ethernet frames. Where the way out is not known yet, there may be more to it.
    let link_layer = if via.resolved.is_some() { ETHERNET } else { LONGEST_LINK_LAYER };
    let framed = if mode == HeadendMode::L2Encap { ETHERNET } else { 0 };
    let room = (header.len() + framed + link_layer) as u16;
    Some(Headend {
        mode,
        header: header.into(),
        room,
        hmac_open,
        via,
        link: link_id(router, hop.oif),
        counter: None,
        plain: None,
    })
}

/// A source route by this link. `None`: the route has more addresses than a header holds, which no request can ask for.
pub(super) fn source_route(
    router: &mut Router,
    (route, link): (&underpass_netlink::rpl::Rpl, u32),
    scope: Scope,
    build: &mut Build,
) -> Option<Rpl> {
    let addresses: Vec<Ipv6Addr> = route.addresses().collect();
    let lookup = lookup_id(router, scope);
    let via = find_via(router, (*addresses.first()?).into(), lookup, build);
    Rpl::new(&addresses, via, link_id(router, link))
}

/// The source of outer headers: `ip sr tunsrc`, or what Linux would choose on the link.
fn encapsulation_source(router: &mut Router, link: u32) -> Ipv6Addr {
    match router.tunnel_source {
        source if !source.is_unspecified() => source,
        _ => kept_source(router, link).unwrap_or(Ipv6Addr::UNSPECIFIED),
    }
}

/// What this link sends from, for something that is to be compiled again if that changes.
pub(super) fn kept_source(router: &mut Router, link: u32) -> Option<Ipv6Addr> {
    let source = source6(router, link);
    router.routes.compiled.sources.insert(link, source);
    source
}

pub(super) fn flavours(flavors: Flavors) -> Flavours {
    let has = |flavor| flavors.operations & flavor != 0;
    let Flavors { block, node_function, .. } = flavors;
    Flavours {
        psp: has(FLAVOR_PSP),
        usp: has(FLAVOR_USP),
        usd: has(FLAVOR_USD),
        csid: match () {
            () if has(FLAVOR_NEXT_CSID) => Some(Csid::Next(NextCsid { block, node_function })),
            () if has(FLAVOR_REPLACE_CSID) => Some(Csid::Replace(ReplaceCsid { block, node_function })),
            () => None,
        },
    }
}

/// The headers that a policy puts before a packet, as [`Headend::header`] describes them.
fn header(seg6: &Seg6, source: Ipv6Addr, first: Ipv6Addr) -> Vec<u8> {
    let srh = match seg6.mode {
        Mode::Inline => {
            let mut srh = seg6.srh.bytes().to_vec();
            srh.iter_mut().skip(8).take(16).for_each(|byte| *byte = 0);
            srh
        }
        Mode::Encap | Mode::L2Encap => seg6.srh.bytes().to_vec(),
        Mode::EncapRed | Mode::L2EncapRed => reduced(&seg6.srh),
    };
    if seg6.mode == Mode::Inline {
        return srh;
    }
    let mut header = vec![0x60, 0, 0, 0, 0, 0, if srh.is_empty() { 0 } else { ROUTING_HEADER }, HOP_LIMIT];
    header.extend_from_slice(&source.octets());
    header.extend_from_slice(&first.octets());
    header.extend_from_slice(&srh);
    header
}

/// The header without the first segment, RFC 8754 section 4.1.1. Of one segment nothing is left, its TLVs
/// neither, as in Linux; but with an HMAC it stays whole.
fn reduced(srh: &SegmentList) -> Vec<u8> {
    let bytes = srh.bytes();
    let Some(last_entry) = bytes.get(4).and_then(|last| last.checked_sub(1)) else {
        return if srh.hmac() { bytes.to_vec() } else { Vec::new() };
    };
    let kept = 8 + (usize::from(last_entry) + 1) * 16;
    let mut reduced = bytes.get(..kept).unwrap_or(bytes).to_vec();
    reduced.extend_from_slice(srh.tlvs());
    if let [_, length, _, _, last, ..] = &mut reduced[..] {
        *length = length.saturating_sub(2);
        *last = last_entry;
    }
    reduced
}
