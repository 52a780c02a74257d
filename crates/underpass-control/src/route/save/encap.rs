//! What routes do to their packets, in words.

use underpass_netlink::Encap;
use underpass_netlink::ioam6::{Ioam6, Mode as IoamMode};
use underpass_netlink::iptunnel::{self, IpTunnel};
use underpass_netlink::mpls::Mpls;
use underpass_netlink::rpl::Rpl;
use underpass_netlink::seg6::{Mode, Seg6, SegmentList};
use underpass_netlink::seg6local::{
    Action, ArgFe2, FLAVOR_NEXT_CSID, FLAVOR_PSP, FLAVOR_REPLACE_CSID, FLAVOR_USD, FLAVOR_USP, Flavors,
    Seg6Local,
};

use crate::save::{Save, Words};

/// The words behind `encap`, or why there are none.
pub(in crate::route) fn encap_words(save: &Save<'_>, encap: &Encap) -> Result<Words, String> {
    match encap {
        Encap::Mpls(Mpls { labels, ttl }) => {
            let mut words = Words::new("mpls");
            words.add(label_stack(labels)).some("ttl", *ttl);
            Ok(words)
        }
        Encap::Ip(tunnel) => ip_words(tunnel),
        Encap::Seg6(seg6) => seg6_words(seg6),
        Encap::Seg6Local(local) => local_words(save, local),
        Encap::Rpl(rpl) => Ok(rpl_words(rpl)),
        Encap::Ioam6(ioam6) => Ok(ioam6_words(ioam6)),
    }
}

/// Labels as `ip` writes them.
pub(in crate::route) fn label_stack(labels: &[u32]) -> String {
    labels.iter().map(u32::to_string).collect::<Vec<_>>().join("/")
}

fn ip_words(tunnel: &IpTunnel) -> Result<Words, String> {
    let IpTunnel { id, destination, source, ttl, tos, flags, port: _ } = tunnel;
    let ipv6 = destination.is_ipv6();
    let mut words = Words::new(if ipv6 { "ip6" } else { "ip" });
    words.some("id", (*id != 0).then_some(id));
    words.some("dst", (!destination.is_unspecified()).then_some(destination));
    words.some("src", (!source.is_unspecified()).then_some(source));
    words.some(if ipv6 { "hoplimit" } else { "ttl" }, (*ttl != 0).then_some(ttl));
    words.some(if ipv6 { "tc" } else { "tos" }, (*tos != 0).then_some(format_args!("{tos:#x}")));
    words.when(flags & iptunnel::KEY != 0, "key").when(flags & iptunnel::CSUM != 0, "csum");
    words.when(flags & iptunnel::SEQ != 0, "seq");
    match flags & !(iptunnel::KEY | iptunnel::CSUM | iptunnel::SEQ) {
        0 => Ok(words),
        other => Err(format!("the flags {other:#x} of its encapsulation have no words")),
    }
}

/// The header that `ip` makes of segments, in the order in which they are visited. `room`: one more for each packet's
/// destination. iproute2: `parse_srh`.
fn header(segments: &[std::net::Ipv6Addr], room: bool, key: Option<u32>) -> Vec<u8> {
    let count = segments.len() + usize::from(room);
    let length = count * 2 + if key.is_some() { 5 } else { 0 };
    let last = count.wrapping_sub(1) as u8;
    let mut bytes = vec![0, length as u8, 4, last, last, if key.is_some() { 0x08 } else { 0 }, 0, 0];
    bytes.extend(std::iter::repeat_n(0, if room { 16 } else { 0 }));
    segments.iter().rev().for_each(|segment| bytes.extend(segment.octets()));
    if let Some(key) = key {
        bytes.extend([5, 38, 0, 0]);
        bytes.extend(key.to_be_bytes());
        bytes.extend([0; 32]);
    }
    bytes
}

/// `segs` of a header, if they are all that it has.
fn segs_words(srh: &SegmentList, room: bool) -> Result<Words, String> {
    let key = srh.hmac_key();
    let mut segments: Vec<_> = srh.segments().rev().collect();
    if room {
        segments.pop();
    }
    if header(&segments, room, key) != srh.bytes() {
        return Err("its segment list has more than `ip` writes".to_owned());
    }
    let list = segments.iter().map(|segment| segment.to_string()).collect::<Vec<_>>().join(",");
    let mut words = Words::new("segs");
    words.add(list).some("hmac", key);
    Ok(words)
}

/// What `ip route` writes behind `encap`.
pub(in crate::route) fn seg6_words(seg6: &Seg6) -> Result<Words, String> {
    let Seg6 { mode, srh } = seg6;
    let mode_word = match mode {
        Mode::Inline => "inline",
        Mode::Encap => "encap",
        Mode::L2Encap => "l2encap",
        Mode::EncapRed => "encap.red",
        Mode::L2EncapRed => "l2encap.red",
    };
    let mut words = Words::new("seg6");
    words.pair("mode", mode_word).add(segs_words(srh, *mode == Mode::Inline)?);
    Ok(words)
}

/// Whether `ip` has no word for a SID.
fn is_experimental(local: &Seg6Local) -> bool {
    let replaces = local.flavors.is_some_and(|flavors| flavors.operations & FLAVOR_REPLACE_CSID != 0);
    local.action.is_experimental() || replaces
}

fn flavor_names(operations: u32) -> String {
    let names = [
        (FLAVOR_PSP, "psp"),
        (FLAVOR_USP, "usp"),
        (FLAVOR_USD, "usd"),
        (FLAVOR_NEXT_CSID, "next-csid"),
        (FLAVOR_REPLACE_CSID, "replace-csid"),
    ];
    let list: Vec<_> = names.iter().filter(|(bit, _)| operations & bit != 0).map(|(_, name)| *name).collect();
    list.join(",")
}

/// The words of `underpass sid` behind the prefix, of a SID for which `ip` has none.
pub(in crate::route) fn sid_words(save: &Save<'_>, encap: &Encap) -> Option<Words> {
    let Encap::Seg6Local(local) = encap else { return None };
    let Seg6Local {
        action,
        srh: None,
        table,
        nh4: None,
        nh6,
        oif,
        bpf: None,
        vrf_table: None,
        counted,
        flavors,
        fe2,
    } = local
    else {
        return None;
    };
    is_experimental(local).then_some(())?;
    let mut words = Words::new(action.name());
    words.some("--oif", oif.map(|oif| save.name(oif))).some("--nh6", *nh6).some("--lookup", *table);
    if let Some(Flavors { operations, block, node_function }) = flavors {
        words
            .pair("--flavors", flavor_names(*operations))
            .pair("--lblen", block)
            .pair("--nflen", node_function);
    }
    words.some("--fe2", fe2.map(|ArgFe2 { count, bits, .. }| format!("{count}x{bits}")));
    words.when(*counted, "--count");
    Some(words)
}

fn local_words(save: &Save<'_>, local: &Seg6Local) -> Result<Words, String> {
    let Seg6Local { action, srh, table, nh4, nh6, oif, bpf, vrf_table, counted, flavors, fe2: _ } = local;
    if bpf.is_some() {
        return Err("the BPF program of End.BPF is not saved: load it with a line of your own".to_owned());
    }
    if is_experimental(local) {
        return Err(format!("`ip` has no word for its {}", action.name()));
    }
    let mut words = Words::new("seg6local action");
    words.add(action.name()).some("table", *table).some("vrftable", *vrf_table);
    words.some("nh4", *nh4).some("nh6", *nh6).some("oif", oif.map(|oif| save.name(oif)));
    if let Some(Flavors { operations, block, node_function }) = flavors {
        words.pair("flavors", flavor_names(*operations));
        if operations & FLAVOR_NEXT_CSID != 0 {
            words.pair("lblen", block).pair("nflen", node_function);
        }
    }
    if let Some(srh) = srh {
        // `ip` leaves room where an SRH is inserted.
        words.pair("srh", segs_words(srh, *action == Action::EndB6)?);
    }
    words.when(*counted, "count");
    Ok(words)
}

fn rpl_words(rpl: &Rpl) -> Words {
    let list = rpl.addresses().collect::<Vec<_>>();
    let mut words = Words::new("rpl segs");
    // `ip` reads them from behind.
    words.add(list.iter().rev().map(|address| address.to_string()).collect::<Vec<_>>().join(","));
    words
}

fn ioam6_words(ioam6: &Ioam6) -> Words {
    let Ioam6 { mode, frequency_k, frequency_n, source, destination, trace } = ioam6;
    let mut words = Words::new("ioam6");
    words.some(
        "freq",
        ((*frequency_k, *frequency_n) != (1, 1)).then_some(format_args!("{frequency_k}/{frequency_n}")),
    );
    words.pair(
        "mode",
        match mode {
            IoamMode::Inline => "inline",
            IoamMode::Encap => "encap",
            IoamMode::Auto => "auto",
        },
    );
    words.some("tunsrc", *source);
    words.some("tundst", (!destination.is_unspecified()).then_some(destination));
    let [a, b, c] = trace.trace_type().bytes();
    words.add("trace prealloc").pair("type", format_args!("{:#08x}", u32::from_be_bytes([0, a, b, c])));
    words.pair("ns", trace.namespace.get()).pair("size", u32::from(trace.rem_len()) * 4);
    words
}
