//! What `flower` compares, in words.

use std::net::{Ipv4Addr, Ipv6Addr};

use underpass_netlink::tc::SKIP_HW;
use underpass_netlink::tc::flower::{Field, Keys, Label, Value, Vlan};

use super::{Filter, Filters, Template};
use crate::save::{Save, Words, mac, protocol};
use crate::tc::action::save::Made;
use crate::tc::filter::save::save_filter;

impl Filters {
    /// Lines, those that compare the same behind each other, as they are asked.
    pub(in crate::tc::filter) fn save(&self, save: &mut Save<'_>, made: &mut Made, begin: &Words) {
        let Self { by_handle, by_key: _, masks, first_free: _ } = self;
        let mut filters: Vec<(&u32, &Filter)> = by_handle.iter().collect();
        filters.sort_by_key(|(handle, filter)| {
            (masks.iter().position(|(mask, _)| *mask == filter.masked.mask), **handle)
        });
        for (handle, Filter { keys, input, masked: _, common }) in filters {
            let mut words = Words::new(&format!("handle {handle:#x} flower"));
            words.some("indev", input.map(|link| save.name(link)));
            match key_words(keys) {
                Ok(keys) => {
                    words.add_all(&keys).when(common.flags & SKIP_HW != 0, "skip_hw");
                    save_filter(save, made, begin, &words, common);
                }
                Err(why) => save.left_out(format!("the flower filter {handle:#x} of {begin}: {why}")),
            }
        }
    }
}

impl Template {
    /// The protocol and the words of a chain's template, or why there are none.
    pub(in crate::tc::filter) fn words(&self, save: &Save<'_>) -> Result<(u16, Words), String> {
        let Self { keys, input, mask: _ } = self;
        let mut words = Words::default();
        words.some("indev", input.map(|link| save.name(link))).add_all(&key_words(keys)?);
        let kind = keys.vlan.tpid.or(keys.ethertype).unwrap_or(libc::ETH_P_ALL as u16);
        Ok((kind, words))
    }
}

/// A number under a mask of as many bits.
fn masked(value: u128, mask: u128, len: usize, hex: bool) -> String {
    let all = u128::MAX >> (128 - 8 * len.clamp(1, 16));
    let show = |number: u128| if hex { format!("{number:#x}") } else { number.to_string() };
    if mask == all { show(value) } else { format!("{}/{}", show(value), show(mask)) }
}

/// How many bits of a mask count, if they are the first.
fn prefix(mask: u128, bits: u32) -> Result<u32, String> {
    let left = mask << (128 - bits);
    let ones = left.leading_ones();
    let first = if ones == 0 { 0 } else { u128::MAX << (128 - ones) };
    if left == first { Ok(ones) } else { Err("the mask of an address is no prefix".to_owned()) }
}

fn key_words(keys: &Keys) -> Result<Words, String> {
    let Keys {
        values,
        ethertype,
        vlans,
        vlan,
        inner_vlan,
        labels,
        source_ports,
        destination_ports,
        fragment,
    } = keys;
    let mut words = Words::default();
    words.some("num_of_vlans", *vlans);
    vlan_words(&mut words, vlan, inner_vlan, *ethertype);
    for value in values {
        value_words(&mut words, value)?;
    }
    label_words(&mut words, labels);
    for (name, range) in [("src_port", source_ports), ("dst_port", destination_ports)] {
        words.some(name, range.map(|(low, high)| format!("{low}-{high}")));
    }
    if let Some((flags, mask)) = fragment {
        let names = [(1, "frag", "nofrag"), (2, "firstfrag", "nofirstfrag")];
        let set = names.iter().filter(|(bit, ..)| mask & bit != 0);
        let named = set.map(|(bit, yes, no)| if flags & bit != 0 { *yes } else { *no });
        words.pair("ip_flags", named.collect::<Vec<_>>().join("/"));
    }
    Ok(words)
}

fn vlan_words(words: &mut Words, outer: &Vlan, inner: &Vlan, ethertype: Option<u16>) {
    let Vlan { tpid: _, id, priority, next } = *outer;
    words.some("vlan_id", id).some("vlan_prio", priority);
    // Behind the outer tag is the inner one, or what is inside.
    let behind = inner.tpid.or(next).or(outer.tpid.and(ethertype));
    words.some("vlan_ethtype", behind.map(protocol));
    let Vlan { tpid, id, priority, next } = *inner;
    words.some("cvlan_id", id).some("cvlan_prio", priority);
    words.some("cvlan_ethtype", next.or(tpid.and(ethertype)).map(protocol));
}

fn label_words(words: &mut Words, labels: &[Option<Label>]) {
    let one = |words: &mut Words, prefix: &str, label: &Label| {
        let Label { label, tc, bos, ttl } = label;
        words.some(&format!("{prefix}label"), *label).some(&format!("{prefix}tc"), *tc);
        words.some(&format!("{prefix}bos"), *bos).some(&format!("{prefix}ttl"), *ttl);
    };
    let deeper = labels.iter().skip(1).any(Option::is_some);
    match labels.first() {
        Some(Some(label)) if !deeper && *label != Label::default() => one(words, "mpls_", label),
        _ if labels.iter().any(Option::is_some) => {
            words.add("mpls");
            for (label, depth) in labels.iter().zip(1..) {
                if let Some(label) = label {
                    words.add("lse").pair("depth", depth);
                    one(words, "", label);
                }
            }
        }
        _ => {}
    }
}

fn value_words(words: &mut Words, value: &Value) -> Result<(), String> {
    let len = value.len;
    let number = |bytes: &[u8; 16]| u128::from_be_bytes(*bytes) >> (8 * (16 - len.clamp(1, 16)));
    let (of, mask) = (number(&value.value), number(&value.mask));
    if mask == 0 {
        return Ok(());
    }
    let hardware = || {
        let address = |bytes: &[u8; 16]| mac(bytes.first_chunk().copied().unwrap_or_default());
        format!("{}/{}", address(&value.value), address(&value.mask))
    };
    let ipv4 = || Ok::<_, String>(format!("{}/{}", Ipv4Addr::from_bits(of as u32), prefix(mask, 32)?));
    let ipv6 = || Ok::<_, String>(format!("{}/{}", Ipv6Addr::from_bits(of), prefix(mask, 128)?));
    let plain = |hex| masked(of, mask, len, hex);
    match value.field {
        Field::MacDestination => words.pair("dst_mac", hardware()),
        Field::MacSource => words.pair("src_mac", hardware()),
        Field::Protocol => words.pair(
            "ip_proto",
            match of as i32 {
                libc::IPPROTO_TCP => "tcp".to_owned(),
                libc::IPPROTO_UDP => "udp".to_owned(),
                libc::IPPROTO_SCTP => "sctp".to_owned(),
                libc::IPPROTO_ICMP => "icmp".to_owned(),
                libc::IPPROTO_ICMPV6 => "icmpv6".to_owned(),
                other => format!("{other:#x}"),
            },
        ),
        Field::Tos => words.pair("ip_tos", plain(true)),
        Field::Ttl => words.pair("ip_ttl", plain(false)),
        Field::Source4 => words.pair("src_ip", ipv4()?),
        Field::Destination4 => words.pair("dst_ip", ipv4()?),
        Field::Source6 => words.pair("src_ip", ipv6()?),
        Field::Destination6 => words.pair("dst_ip", ipv6()?),
        Field::SourcePort => words.pair("src_port", plain(false)),
        Field::DestinationPort => words.pair("dst_port", plain(false)),
        // 12 bits.
        Field::TcpFlags if mask == 0xfff => words.pair("tcp_flags", format_args!("{of:#x}")),
        Field::TcpFlags => words.pair("tcp_flags", plain(true)),
        Field::IcmpType => words.pair("type", plain(false)),
        Field::IcmpCode => words.pair("code", plain(false)),
        Field::ArpSource => words.pair("arp_sip", ipv4()?),
        Field::ArpTarget => words.pair("arp_tip", ipv4()?),
        Field::ArpOperation => words.pair("arp_op", plain(false)),
        Field::ArpSourceMac => words.pair("arp_sha", hardware()),
        Field::ArpTargetMac => words.pair("arp_tha", hardware()),
        Field::TunnelSource4 => words.pair("enc_src_ip", ipv4()?),
        Field::TunnelDestination4 => words.pair("enc_dst_ip", ipv4()?),
        Field::TunnelSource6 => words.pair("enc_src_ip", ipv6()?),
        Field::TunnelDestination6 => words.pair("enc_dst_ip", ipv6()?),
        Field::TunnelKey => words.pair("enc_key_id", of),
        Field::TunnelSourcePort => {
            return Err("`tc` has no word for the source port of an outer header".to_owned());
        }
        Field::TunnelDestinationPort => words.pair("enc_dst_port", plain(false)),
        Field::TunnelTos => words.pair("enc_tos", plain(true)),
        Field::TunnelTtl => words.pair("enc_ttl", plain(false)),
    };
    Ok(())
}
