//! `pedit` in words: each key is a field that `tc` has a name for, or a word at an offset.

use std::net::{Ipv4Addr, Ipv6Addr};

use underpass_netlink::tc::action::Pedit;
use underpass_netlink::tc::action::pedit::{Extended, HeaderType, Key};

use crate::save::{Save, Words, mac};

/// A field: its header, its name, where its word is, which of its bits the field is, and how far they are shifted.
type Field = (HeaderType, &'static str, i32, u32, u32);

const FIELDS: [Field; 18] = [
    (HeaderType::Ip4, "ip src", 12, u32::MAX, 0),
    (HeaderType::Ip4, "ip dst", 16, u32::MAX, 0),
    (HeaderType::Ip4, "ip ihl", 0, 0xff00_0000, 24),
    (HeaderType::Ip4, "ip tos", 0, 0x00ff_0000, 16),
    (HeaderType::Ip4, "ip df", 4, 0x0000_ff00, 8),
    (HeaderType::Ip4, "ip ttl", 8, 0xff00_0000, 24),
    (HeaderType::Ip4, "ip protocol", 8, 0x00ff_0000, 16),
    (HeaderType::Ip6, "ip6 flow_lbl", 0, 0x0007_ffff, 0),
    (HeaderType::Ip6, "ip6 traffic_class", 0, 0x0ff0_0000, 20),
    (HeaderType::Ip6, "ip6 payload_len", 4, 0xffff_0000, 16),
    (HeaderType::Ip6, "ip6 nexthdr", 4, 0x0000_ff00, 8),
    (HeaderType::Ip6, "ip6 hoplimit", 4, 0x0000_00ff, 0),
    (HeaderType::Ethernet, "eth type", 12, 0xffff_0000, 16),
    (HeaderType::Tcp, "tcp sport", 0, 0xffff_0000, 16),
    (HeaderType::Tcp, "tcp dport", 0, 0x0000_ffff, 0),
    (HeaderType::Tcp, "tcp flags", 12, 0x00ff_0000, 16),
    (HeaderType::Udp, "udp sport", 0, 0xffff_0000, 16),
    (HeaderType::Udp, "udp dport", 0, 0x0000_ffff, 0),
];

/// Addresses, which are keys of several words: the header, the name, where the first word is, the bits of each word.
const ADDRESSES: [(HeaderType, &str, i32, &[u32]); 4] = [
    (HeaderType::Ethernet, "eth dst", 0, &[u32::MAX, 0xffff_0000]),
    (HeaderType::Ethernet, "eth src", 4, &[0x0000_ffff, u32::MAX]),
    (HeaderType::Ip6, "ip6 src", 8, &[u32::MAX; 4]),
    (HeaderType::Ip6, "ip6 dst", 24, &[u32::MAX; 4]),
];

/// The words of a `pedit`, without what comes after it.
pub(super) fn pedit_words(save: &mut Save<'_>, words: &mut Words, pedit: &Pedit, what: &str) {
    words.when(pedit.keys.iter().any(|key| key.extended.is_some()), "ex");
    let mut rest = pedit.keys.as_slice();
    while let Some((first, behind)) = rest.split_first() {
        let (said, others) = match address(rest) {
            Some((said, count)) => (Some(said), rest.get(count..).unwrap_or_default()),
            None => (field(first), behind),
        };
        match said {
            Some(said) => {
                words.pair("munge", said);
            }
            None => save.left_out(format!("a key of {what}")),
        }
        rest = others;
    }
}

/// An address that the first of these keys set, and how many they are.
fn address(keys: &[Key]) -> Option<(String, usize)> {
    ADDRESSES.iter().find_map(|(header, name, offset, bits)| {
        let mut bytes = Vec::new();
        for ((key, offset), bits) in keys.iter().zip((*offset..).step_by(4)).zip(*bits) {
            let whole = Extended { header: *header, add: false };
            let Key { mask, value, .. } = *key;
            let plain = key.extended == Some(whole) && key.offset_mask == 0 && key.offset == offset;
            if !plain || u32::from_be(mask) != !bits || value & mask != 0 {
                return None;
            }
            let used = bits.to_be_bytes().into_iter().zip(value.to_ne_bytes());
            bytes.extend(used.filter(|(used, _)| *used != 0).map(|(_, byte)| byte));
        }
        let address = match (bytes.first_chunk::<16>(), bytes.first_chunk::<6>()) {
            (Some(bytes), _) => Ipv6Addr::from(*bytes).to_string(),
            (None, Some(bytes)) if bits.len() == 2 => mac(*bytes),
            _ => return None,
        };
        Some((format!("{name} set {address}"), bits.len()))
    })
}

/// What one key changes, as `tc` says it.
fn field(key: &Key) -> Option<String> {
    let (mask, value) = (u32::from_be(key.mask), u32::from_be(key.value));
    let header = key.extended.map_or(HeaderType::Network, |extended| extended.header);
    let add = key.extended.is_some_and(|extended| extended.add);
    let raw = format!("offset {} u32", key.offset);
    let (name, bits, shift) = match header {
        HeaderType::Network => (raw.as_str(), u32::MAX, 0),
        _ => FIELDS.iter().find_map(|(of, name, offset, bits, shift)| {
            let is = *of == header && *offset == key.offset && (!mask | value) & !bits == 0;
            is.then_some((*name, *bits, *shift))
        })?,
    };
    if key.offset_mask != 0 {
        return None;
    }
    let (changed, number) = (!mask & bits, value >> shift);
    if value & mask != 0 {
        // Bits that stay and are changed are inverted: all of them, or none.
        return (changed == 0 && !add).then(|| format!("{name} invert retain {number:#x}"));
    }
    let number = match name {
        "ip src" | "ip dst" => Ipv4Addr::from_bits(value).to_string(),
        _ => format!("{number:#x}"),
    };
    let verb = if add { "add" } else { "set" };
    Some(format!("{name} {verb} {number} retain {:#x}", changed >> shift))
}
