//! One function for each parser: it reads arbitrary bytes in every way that the parser offers, and checks
//! what must hold whatever they are. The hostile-input tests and the fuzz targets share them.

// Each fuzz target uses one of them.
#![allow(dead_code)]

use underpass_packet::{
    IntoBytes, arp,
    bpdu::Bpdu,
    checksum::{self, Sum},
    ethernet, geneve, gre, gue, icmp_extension, icmpv4, icmpv6, ioam, ipv4, ipv6,
    ipv6_ext::{self, Extensions, Kind},
    ipv6_options::Options,
    mpls, ndisc, rpl, srh, tcp, udp, vlan, vxlan,
};

/// Reads bytes, and says whether the parser took them.
pub type Exercise = fn(&[u8]) -> bool;

/// Every exercise with its name.
pub const ALL: [(&str, Exercise); 21] = [
    ("arp", arp),
    ("bpdu", bpdu),
    ("checksum", checksum),
    ("ethernet", ethernet),
    ("geneve", geneve),
    ("gre", gre),
    ("gue", gue),
    ("icmp_extension", icmp_extension),
    ("icmpv4", icmpv4),
    ("icmpv6", icmpv6),
    ("ioam", ioam),
    ("ipv4", ipv4),
    ("ipv6", ipv6),
    ("mpls", mpls),
    ("ndisc", ndisc),
    ("rpl", rpl),
    ("srh", srh),
    ("tcp", tcp),
    ("udp", udp),
    ("vlan", vlan),
    ("vxlan", vxlan),
];

/// That `part` lies at `offset` of `whole`: the very bytes, not equal ones elsewhere. Of no bytes, only
/// that they would.
fn assert_at(whole: &[u8], offset: usize, part: &[u8]) {
    let expected = &whole[offset..offset + part.len()];
    assert!(part.is_empty() || std::ptr::eq(expected, part));
}

pub fn arp(bytes: &[u8]) -> bool {
    let read = arp::Packet::parse(bytes);
    assert_eq!(arp::Packet::parse_mut(&mut bytes.to_vec()).map(|p| *p), read.copied());
    let Ok(packet) = read else { return false };
    let sender = (packet.sender_mac, packet.sender());
    let target = (packet.target_mac, packet.target());
    assert_eq!(*packet, arp::Packet::new(packet.operation.get(), sender, target));
    true
}

pub fn checksum(bytes: &[u8]) -> bool {
    let mut slow = 0;
    for word in bytes.chunks(2) {
        slow += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        slow = (slow & 0xFFFF) + (slow >> 16);
    }
    assert_eq!(Sum::new().add_bytes(bytes).fold(), slow as u16);
    // From the old half to the new one, in a message that ends with the other bytes.
    let half = bytes.len() / 4 * 2;
    let (old, rest) = bytes.split_at(half);
    let (new, rest) = rest.split_at(half);
    let after = [new, rest].concat();
    if after.iter().any(|b| *b != 0) {
        let before = checksum::of(&[old, rest].concat());
        assert_eq!(checksum::update_bytes(before, old, new), checksum::of(&after));
    }
    true
}

pub fn ethernet(bytes: &[u8]) -> bool {
    let read = ethernet::Header::parse(bytes);
    assert_eq!(read.is_ok(), bytes.len() >= 14);
    let Ok((header, payload)) = read else { return false };
    assert_at(bytes, 14, payload);
    let same = ethernet::Header::new(header.destination, header.source, header.ethertype.get());
    assert_eq!(same.as_bytes(), &bytes[..14]);
    assert_eq!(header.is_multicast(), bytes[0] % 2 == 1);
    true
}

pub fn gre(bytes: &[u8]) -> bool {
    let Ok(view) = gre::View::parse(bytes) else {
        assert!(gre::View::parse_over_ipv4(bytes).is_err());
        return false;
    };
    if let Ok(same) = gre::View::parse_over_ipv4(bytes) {
        assert_eq!(same, view);
    }
    assert_at(bytes, view.header_len(), view.payload);
    if let Some(packet) = view.redirected() {
        assert_eq!(view.header_len(), 4);
        assert_at(bytes, bytes.len() - packet.len(), packet);
    }
    let (checksum, key, sequence) = (view.has_checksum(), view.key, view.sequence);
    let builder = gre::Builder { protocol: view.protocol, checksum, key, sequence };
    let mut same = bytes.to_vec();
    assert_eq!(builder.write(&mut same), Ok(view.header_len()));
    let again = gre::View::parse(&same);
    assert!(again.is_ok());
    let Ok(again) = again else { return true };
    assert_eq!((again.protocol, again.key, again.sequence), (view.protocol, key, sequence));
    assert!(again.checksum_valid() && again.payload == view.payload);
    // Only the checksum field, and bits that are not looked at, may have changed.
    let from = if checksum { 8 } else { 4 };
    assert_eq!((&same[2..4], &same[from..]), (&bytes[2..4], &bytes[from..]));
    true
}

pub fn gue(bytes: &[u8]) -> bool {
    let Ok(view) = gue::View::parse(bytes) else { return false };
    let len = bytes.len() - view.payload.len();
    assert_at(bytes, len, view.payload);
    if view.variant == 1 {
        assert_eq!((len, view.private.len()), (0, 0));
        return true;
    }
    assert_at(bytes, len - view.private.len(), view.private);
    let (remote_checksum, private) = (view.remote_checksum, view.private);
    let builder = gue::Builder { content: view.content, remote_checksum, private };
    let mut same = [0; gue::MAX_LEN];
    match builder.write(&mut same) {
        Ok(written) if written == len => assert_eq!(same[..len], bytes[..len]),
        // Private flags of which none is set are not written.
        written => assert_eq!((written, remote_checksum), (Ok(len - 4), None)),
    }
    if let Some(remote) = remote_checksum {
        let mut payload = view.payload.to_vec();
        assert_eq!(remote.complete(&mut payload), Ok(()));
        let at = usize::from(remote.offset);
        assert_eq!((&payload[..at], &payload[at + 2..]), (&view.payload[..at], &view.payload[at + 2..]));
    }
    true
}

pub fn icmp_extension(bytes: &[u8]) -> bool {
    let Ok(extension) = icmp_extension::Extension::parse(bytes) else { return false };
    let mut at = 4;
    for object in extension.objects() {
        assert_at(bytes, at + 4, object.payload);
        at += 4 + object.payload.len();
    }
    assert_eq!(at, bytes.len());
    if let Some(stack) = extension.label_stack() {
        let mut same = vec![0; icmp_extension::len_of_label_stack(stack.as_bytes().len())];
        assert_eq!(icmp_extension::write_label_stack(stack.as_bytes(), &mut same), Ok(()));
        let read = icmp_extension::Extension::parse(&same).map(|same| same.label_stack());
        assert_eq!(read, Ok(Some(stack)));
    }
    true
}

pub fn mpls(bytes: &[u8]) -> bool {
    let Ok(stack) = mpls::Stack::parse(bytes) else { return false };
    assert!(stack.entries.len() <= mpls::MAX_DEPTH);
    assert_at(bytes, mpls::Entry::LEN * stack.entries.len(), stack.payload);
    for (i, entry) in stack.entries.iter().enumerate() {
        assert_eq!(entry.is_bottom(), i + 1 == stack.entries.len());
        let same = mpls::Entry::new(entry.label(), entry.traffic_class(), entry.is_bottom(), entry.ttl());
        assert_eq!(same, *entry);
    }
    true
}

pub fn vlan(bytes: &[u8]) -> bool {
    let Ok(frame) = vlan::Frame::parse(bytes) else { return false };
    assert!(frame.tags.len() <= vlan::MAX_TAGS);
    assert!(frame.tags.iter().all(|tag| vlan::is_tag(tag.protocol.get())));
    assert!(!vlan::is_tag(frame.ethertype));
    assert_at(bytes, 14 + 4 * frame.tags.len(), frame.payload);
    for tag in frame.tags {
        let same = vlan::Tag::new(tag.protocol.get(), tag.id())
            .with_priority(tag.priority())
            .with_drop_eligible(tag.drop_eligible());
        assert_eq!(same, *tag);
    }
    true
}

/// The bytes as the data of an IOAM option.
pub fn ioam(bytes: &[u8]) -> bool {
    let mut filled = bytes.to_vec();
    let checked = ioam::check(bytes);
    let mut trace = match ioam::Ioam::parse(&mut filled) {
        Ok(ioam::Ioam::Trace(trace)) => trace,
        Ok(ioam::Ioam::Other) => {
            assert_ne!(bytes[1], ioam::PREALLOCATED);
            assert_eq!(checked, Ok(None));
            return false;
        }
        Err(malformed) => {
            assert_eq!(checked, Err(malformed));
            return false;
        }
    };
    let before = *trace.header();
    assert_eq!(checked, Ok(Some(&before)));
    let kind = before.trace_type();
    assert_eq!(before.node_len(), kind.node_len());
    let free = usize::from(before.rem_len()) * 4;
    assert!(10 + free <= bytes.len());
    let schema = [1, 0, 0, 7, 1, 2, 3, 4];
    let node = ioam::Node {
        hop_limit: 1,
        id: u32::MAX,
        links: (2, 3),
        time: (4, 5),
        data: 6,
        queue_depth: 7,
        id_wide: u64::MAX,
        links_wide: (8, 9),
        data_wide: 10,
        schema: Some(&schema),
    };
    let done = trace.fill(&node);
    let after = *trace.header();
    let len = usize::from(kind.node_len()) * 4 + if kind.has(22) { schema.len() } else { 0 };
    match done {
        ioam::Filled::Yes => {
            assert!(!before.overflow() && free >= len);
            let start = 10 + usize::from(after.rem_len()) * 4;
            assert_eq!(start + len, 10 + free);
            assert_eq!((&filled[10..start], &filled[10 + free..]), (&bytes[10..start], &bytes[10 + free..]));
            assert!(kind.offset(0).is_none_or(|at| filled[start + at] == 1));
        }
        // Only the flag changes.
        ioam::Filled::Overflow => {
            assert!(!before.overflow() && after.overflow() && (free == 0 || free < len));
            filled[4] ^= ioam::OVERFLOW;
            assert_eq!(filled, bytes);
        }
        ioam::Filled::Skipped => assert!(before.overflow() && filled == bytes),
    }
    let mut built = [0; 2048];
    let builder = ioam::Builder { header: before };
    let written = builder.write(&mut built).is_some_and(|len| len == builder.len() && len % 8 == 0);
    assert_eq!(written, before.rem_len() <= 61);
    true
}

pub fn ipv4(bytes: &[u8]) -> bool {
    let mut copy = bytes.to_vec();
    let (read, mutable) = (ipv4::View::parse(bytes), ipv4::ViewMut::parse(&mut copy));
    let (view, mut mutable) = match (read, mutable) {
        (Ok(view), Ok(mutable)) => (view, mutable),
        (read, mutable) => {
            assert_eq!(read.map(|_| ()), mutable.map(|_| ()));
            return false;
        }
    };
    assert_eq!((view.header, view.options), (&*mutable.header, &*mutable.options));
    assert_eq!(view.header.version(), 4);
    assert_at(bytes, 20, view.options);
    assert_at(bytes, view.header.header_len(), view.payload);
    let total = usize::from(view.header.total_length.get());
    assert_eq!(view.header.header_len() + view.payload.len(), total);
    assert!(view.header.fragment_offset() <= 65_528);

    mutable.fill_checksum();
    assert!(mutable.header.checksum_valid(mutable.options));
    mutable.header.decrement_ttl();
    mutable.header.update_tos(!view.header.tos);
    assert!(mutable.header.checksum_valid(mutable.options));
    assert_eq!(mutable.header.ttl, view.header.ttl.saturating_sub(1));
    true
}

pub fn ipv6(bytes: &[u8]) -> bool {
    let mut copy = bytes.to_vec();
    let (read, mutable) = (ipv6::View::parse(bytes), ipv6::ViewMut::parse(&mut copy));
    let (view, mutable) = match (read, mutable) {
        (Ok(view), Ok(mutable)) => (view, mutable),
        (read, mutable) => {
            assert_eq!(read.map(|_| ()), mutable.map(|_| ()));
            return false;
        }
    };
    assert_eq!((view.header, view.payload), (&*mutable.header, &*mutable.payload));
    assert_eq!(view.header.version(), 6);
    assert_at(bytes, 40, view.payload);
    mutable.header.set_class_flow(view.header.traffic_class(), view.header.flow_label());
    assert_eq!(view.header, &*mutable.header);

    extensions(bytes, &view);
    true
}

fn extensions(bytes: &[u8], view: &ipv6::View<'_>) {
    let mut expected = (6, 40);
    let mut first = None;
    let mut failed = None;
    for (count, extension) in Extensions::new(view).enumerate() {
        assert!(failed.is_none() && count <= ipv6_ext::MAX_HEADERS);
        let extension = match extension {
            Ok(extension) => extension,
            Err(fault) => {
                failed = Some(fault);
                continue;
            }
        };
        first.get_or_insert(extension.kind);
        assert_eq!((extension.named_at, extension.offset), expected);
        assert_eq!(Kind::of(bytes[extension.named_at]), Some(extension.kind));
        assert_at(bytes, extension.offset, extension.bytes);
        assert_eq!(extension.next_header, bytes[extension.offset]);
        assert_eq!(extension.routing().is_some(), extension.kind == Kind::Routing);
        assert_eq!(extension.fragment().is_some(), extension.kind == Kind::Fragment);
        options(extension.bytes, extension.options());
        expected = (extension.offset, extension.offset + extension.bytes.len());
    }
    let upper = Extensions::new(view).upper();
    assert_eq!(upper.err(), failed);
    if let Ok(upper) = upper {
        assert_eq!((upper.named_at, upper.offset), expected);
        assert_eq!(upper.protocol, bytes[upper.named_at]);
        assert!(upper.offset <= 40 + view.payload.len());
        assert!(upper.fragment_offset > 0 || Kind::of(upper.protocol).is_none());
    }
    if let Some(first) = first {
        let found = Extensions::new(view).find_kind(first);
        assert_eq!(found.map(|e| e.map(|e| e.offset)), Ok(Some(40)));
    }
}

fn options(header: &[u8], options: Options<'_>) {
    let mut end = 2;
    let mut ended = false;
    for option in options {
        assert!(!ended);
        let Ok(option) = option else {
            ended = true;
            continue;
        };
        assert_eq!(option.offset, end);
        end += if option.kind == 0 { 1 } else { 2 + option.data.len() };
        assert_at(header, end - option.data.len(), option.data);
        assert_eq!(option.kind, header[option.offset]);
        assert_eq!(option.unrecognised() as u8, option.kind >> 6);
    }
}

pub fn rpl(bytes: &[u8]) -> bool {
    let Ok(rpl) = rpl::Rpl::parse(bytes) else { return false };
    assert!(rpl.len() <= bytes.len() && (1..=rpl::MAX_ADDRESSES).contains(&rpl.count()));
    assert!(usize::from(rpl.segments_left()) <= rpl.count());
    let destination = std::net::Ipv6Addr::from_bits(u128::from(bytes[6]) << 120 | 1);
    let addresses: Vec<_> = rpl.addresses(destination).collect();
    assert_eq!(addresses.len(), rpl.count());
    assert_eq!(rpl.address(rpl.count(), destination), None);
    // As short as it can be, and the same addresses.
    let (next_header, segments_left) = (rpl.next_header(), rpl.segments_left());
    let builder = rpl::Builder { next_header, segments_left, destination, addresses: &addresses };
    let mut written = [0; 2048];
    let len = builder.write(&mut written).unwrap_or(0);
    assert!(len <= rpl.len());
    let again = rpl::Rpl::parse(&written[..len]);
    assert_eq!(again.map(|again| again.count()), Ok(addresses.len()));
    let Ok(again) = again else { return false };
    assert_eq!((again.next_header(), again.segments_left()), (next_header, segments_left));
    assert!(again.addresses(destination).eq(addresses.iter().copied()));
    assert!(builder.write(&mut written[..len - 1]).is_err());
    true
}

pub fn srh(bytes: &[u8]) -> bool {
    let mut copy = bytes.to_vec();
    let (read, mutable) = (srh::Srh::parse(bytes), srh::SrhMut::parse(&mut copy));
    let (srh, mut mutable) = match (read, mutable) {
        (Ok(srh), Ok(mutable)) => (srh, mutable),
        (read, mutable) => {
            assert_eq!(read.map(|_| ()), mutable.map(|_| ()));
            return false;
        }
    };
    assert_eq!(srh, mutable.view());
    let listed = usize::from(srh.last_entry()) + 1;
    assert_eq!(srh.segments().len(), listed);
    assert_at(bytes, 8, srh.segments().as_bytes());
    assert_at(bytes, 8 + 16 * listed, srh.tlv_bytes());
    assert_eq!(8 + 16 * listed + srh.tlv_bytes().len(), srh.len());
    let tlvs: usize = srh.tlvs().map(|t| if t.kind == srh::TLV_PAD1 { 1 } else { 2 + t.value.len() }).sum();
    assert_eq!(tlvs, srh.tlv_bytes().len());
    for tlv in srh.tlvs() {
        assert!(tlv.hmac().is_none_or(|hmac| hmac.digest.len() + 6 == tlv.value.len()));
    }
    let digest = srh.hmac().map(|hmac| hmac.digest);
    assert!(digest.is_none() || srh.flags() & srh::FLAG_HMAC != 0);
    assert_eq!(mutable.digest_mut().map(|digest| digest.to_vec()), digest.map(<[u8]>::to_vec));
    if let Some(digest) = digest {
        assert_at(bytes, srh.len() - srh::DIGEST_LEN, digest);
    }

    let left = srh.segments_left();
    assert_eq!(mutable.view().next_segment().is_some(), left > 0);
    for visited in 0..left {
        assert_eq!(mutable.advance().as_ref(), srh.segments().get(usize::from(left - visited - 1)));
    }
    assert_eq!(mutable.advance(), None);
    mutable.set_next_header(!srh.next_header());
    mutable.set_flags(!srh.flags());
    mutable.set_tag(!srh.tag());
    assert_eq!(mutable.view().segments(), srh.segments());

    // A full list with this header's fields is what the builder writes.
    let path: Vec<_> = (0..listed).rev().filter_map(|i| srh.segment(i)).collect();
    let (flags, tag, tlvs) = (srh.flags(), srh.tag(), srh.tlv_bytes());
    let built = srh::Builder { flags, tag, tlvs, ..srh::Builder::new(srh.next_header(), &path) };
    let mut again = vec![0; srh.len()];
    if listed <= srh::MAX_SEGMENTS {
        assert_eq!(built.write(&mut again), Ok(srh.len()));
        again[3] = left;
        assert_eq!(again, &bytes[..srh.len()]);
    }
    true
}

pub fn udp(bytes: &[u8]) -> bool {
    let mut copy = bytes.to_vec();
    let (read, mutable) = (udp::View::parse(bytes), udp::ViewMut::parse(&mut copy));
    let (view, mutable) = match (read, mutable) {
        (Ok(view), Ok(mutable)) => (view, mutable),
        (read, mutable) => {
            assert_eq!(read.map(|_| ()), mutable.map(|_| ()));
            return false;
        }
    };
    assert_at(bytes, 8, view.payload);
    assert_eq!(8 + view.payload.len(), usize::from(view.header.length.get()));
    mutable.header.fill_checksum(Sum::new(), mutable.payload);
    assert!(mutable.header.has_checksum());
    assert!(mutable.header.checksum_valid(Sum::new(), mutable.payload));
    true
}

pub fn tcp(bytes: &[u8]) -> bool {
    let mut copy = bytes.to_vec();
    let (read, mutable) = (tcp::View::parse(bytes), tcp::ViewMut::parse(&mut copy));
    let (view, mutable) = match (read, mutable) {
        (Ok(view), Ok(mutable)) => (view, mutable),
        (read, mutable) => {
            assert_eq!(read.map(|_| ()), mutable.map(|_| ()));
            return false;
        }
    };
    assert_at(bytes, 20, view.options);
    assert_at(bytes, 20 + view.options.len(), view.payload);
    assert_eq!(view.header.header_len() + view.payload.len(), bytes.len());
    let mut left = view.options.len();
    for option in view.options() {
        let Ok(option) = option else { break };
        left -= if option.kind == tcp::OPTION_NOP { 1 } else { 2 + option.data.len() };
    }
    mutable.header.fill_checksum(Sum::new(), mutable.options, mutable.payload);
    assert!(mutable.header.checksum_valid(Sum::new(), mutable.options, mutable.payload));
    mutable.header.set_flags(!view.header.flags());
    assert_eq!(mutable.header.header_len(), view.header.header_len());
    assert!(left <= tcp::MAX_OPTIONS);
    true
}

pub fn icmpv4(bytes: &[u8]) -> bool {
    let Ok((header, data)) = icmpv4::Header::parse(bytes) else { return false };
    assert_at(bytes, 8, data);
    let mut same = icmpv4::Header::new(header.message());
    assert_eq!((same.message(), same.kind), (header.message(), header.kind));
    assert_eq!(same.is_error(), header.is_error());
    same.fill_checksum(data);
    assert!(same.checksum_valid(data));
    true
}

pub fn icmpv6(bytes: &[u8]) -> bool {
    let Ok((header, data)) = icmpv6::Header::parse(bytes) else { return false };
    assert_at(bytes, 8, data);
    let mut same = icmpv6::Header::new(header.message());
    assert_eq!((same.message(), same.kind), (header.message(), header.kind));
    assert_eq!(same.is_error(), header.is_error());
    let (source, destination) = (std::net::Ipv6Addr::LOCALHOST, std::net::Ipv6Addr::UNSPECIFIED);
    same.fill_checksum(source, destination, data);
    assert!(same.checksum_valid(source, destination, data));
    true
}

pub fn ndisc(bytes: &[u8]) -> bool {
    let Ok(view) = ndisc::View::parse(bytes) else { return false };
    assert_at(bytes, 24, view.option_bytes());
    let len: usize = view.options().map(|option| option.value.len() + 2).sum();
    assert_eq!(24 + len, bytes.len());
    let target = view.message.target();
    let mut same = match view.message.is_solicitation() {
        true => ndisc::Message::solicitation(target),
        false => ndisc::Message::advertisement(target, view.message.flags.get()),
    };
    (same.flags, same.checksum) = (view.message.flags, view.message.checksum);
    assert_eq!(same, *view.message);
    if let Ok(Some(mac)) = view.link_layer() {
        assert!(view.options().any(|option| option.value == mac));
    }
    true
}

pub fn geneve(bytes: &[u8]) -> bool {
    let Ok(read) = geneve::parse(bytes) else { return false };
    assert!((geneve::LEN..=geneve::MAX_LEN).contains(&read.len) && read.len % 4 == 0);
    // What is written has no options, and nothing reserved.
    assert_eq!(bytes[2..7], geneve::header(read.vni, read.protocol)[2..7]);
    true
}

pub fn bpdu(bytes: &[u8]) -> bool {
    let Ok(read) = Bpdu::parse(bytes) else { return false };
    let Some([a, b, c, d, e, f, g, h, i, j, k, l]) = bytes.first_chunk() else { return false };
    let (group, source) = ([*a, *b, *c, *d, *e, *f], [*g, *h, *i, *j, *k, *l]);
    let mut written = read.frame(source, group);
    // The length may count more, and other flags have no meaning.
    written[12..14].copy_from_slice(&bytes[12..14]);
    if let (Bpdu::Configuration(_), Some(flags)) = (read, written.get_mut(21)) {
        *flags |= bytes[21] & 0x7e;
    }
    assert!(bytes.starts_with(&written));
    true
}

pub fn vxlan(bytes: &[u8]) -> bool {
    let Ok((vni, frame)) = vxlan::parse(bytes) else { return false };
    assert_at(bytes, vxlan::LEN, frame);
    assert_eq!(bytes[..vxlan::LEN], vxlan::header(vni));
    true
}
