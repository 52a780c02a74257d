//! Packets of a flow, wherever they are in their outer headers: a filter that finds them, and what tells one from another.
//!
//! The two addresses of a packet stand next to each other in its header, whatever is before that: Ethernet, VLAN tags, labels,
//! SRv6, tunnels. All of these are of an even length. The filter looks for the addresses at each even place.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An instruction of classic BPF.
pub type Instruction = (u16, u8, u8, u32);

/// Where the first header may begin.
const ETHERNET: usize = 14;
/// Where the last one may begin that is found.
const DEEPEST: usize = 14 + 200;
/// As many pairs of each family as a filter of 4,096 instructions has room for.
const PAIRS: (usize, usize) = (2, 2);

const LOAD: u16 = 0x20;
const EQUALS: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALL: u32 = 0x4_0000;

/// A sender and a receiver, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

/// The pairs between addresses, as many as the filter has room for.
pub fn pairs(from: &[IpAddr], to: &[IpAddr]) -> Vec<Pair> {
    let mut room = PAIRS;
    let mut pairs = Vec::new();
    for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (from, to))) {
        let (pair, room) = match (*from, *to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => (Pair::V4(from, to), &mut room.0),
            (IpAddr::V6(from), IpAddr::V6(to)) => (Pair::V6(from, to), &mut room.1),
            _ => continue,
        };
        if *room > 0 {
            *room -= 1;
            pairs.push(pair);
        }
    }
    pairs
}

/// The filter for frames that have packets of the pairs inside.
pub fn filter(pairs: &[Pair]) -> Vec<Instruction> {
    let mut program = Vec::new();
    for header in (ETHERNET..=DEEPEST).step_by(2) {
        for pair in pairs {
            match pair {
                Pair::V4(from, to) => {
                    test(&mut program, &[(header + 12, from.to_bits()), (header + 16, to.to_bits())]);
                }
                Pair::V6(from, to) => {
                    // All but the third: there is no room for more, and it is 0 more often than the others.
                    let words = |at: usize, address: &Ipv6Addr| {
                        let bits = address.to_bits();
                        [(at, (bits >> 96) as u32), (at + 4, (bits >> 64) as u32), (at + 12, bits as u32)]
                    };
                    let from = words(header + 8, from);
                    test(&mut program, &[from, words(header + 24, to)].concat());
                    if header == ETHERNET {
                        // An SRH without an outer header: where it goes at last is the first of its segments.
                        test(&mut program, &[from, words(header + 48, to)].concat());
                    }
                }
            }
        }
    }
    program.push((RETURN, 0, 0, 0));
    program
}

/// Accepts a frame that has these words; goes on if it has not.
fn test(program: &mut Vec<Instruction>, words: &[(usize, u32)]) {
    for (number, (at, word)) in words.iter().enumerate() {
        program.push((LOAD, 0, 0, *at as u32));
        // Over what follows of this test.
        let rest = 2 * (words.len() - number - 1) + 1;
        program.push((EQUALS, 0, rest as u8, *word));
    }
    program.push((RETURN, 0, 0, ALL));
}

/// What tells a packet of the flow from others, and stays the same on its way: what is behind its header, its identification, and
/// which pair it is of. `None`: the frame has none of the flow.
pub fn identity(frame: &[u8], pairs: &[Pair]) -> Option<Vec<u8>> {
    let at = |at: usize, length: usize| frame.get(at..at + length);
    for header in (ETHERNET..=DEEPEST).step_by(2) {
        for (number, pair) in pairs.iter().enumerate() {
            let found = match pair {
                Pair::V4(from, to) => {
                    (at(header + 12, 8)? == [from.octets(), to.octets()].concat()).then(|| {
                        let length = usize::from(*frame.get(header)? & 0xf) * 4;
                        let all = u16::from_be_bytes([*frame.get(header + 2)?, *frame.get(header + 3)?]);
                        let payload = frame.get(header + length..)?;
                        let payload = payload.get(..usize::from(all).checked_sub(length)?).unwrap_or(payload);
                        Some([at(header + 4, 2)?, payload].concat())
                    })
                }
                Pair::V6(from, to) => {
                    let inside = at(header + 8, 32) == Some(&[from.octets(), to.octets()].concat());
                    let inserted = header == ETHERNET
                        && at(header + 8, 16) == Some(&from.octets())
                        && at(header + 48, 16) == Some(&to.octets());
                    let payload = || {
                        let length = u16::from_be_bytes([*frame.get(header + 4)?, *frame.get(header + 5)?]);
                        let payload = frame.get(header + 40..)?;
                        let payload = payload.get(..usize::from(length)).unwrap_or(payload);
                        // Behind an SRH, which shrinks no packet of the flow where it is taken off.
                        match *frame.get(header + 6)? {
                            43 => payload.get(8 + usize::from(*payload.get(1)?) * 8..).map(<[u8]>::to_vec),
                            _ => Some(payload.to_vec()),
                        }
                    };
                    (inside || inserted).then(payload)
                }
            };
            if let Some(payload) = found {
                return payload.map(|payload| [vec![number as u8], payload].concat());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use underpass_engine::bpf::classic::{Filter, Instruction as Checked};

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn v4(from: [u8; 4], to: [u8; 4], data: &[u8]) -> Vec<u8> {
        let length = (20 + data.len()) as u16;
        let [high, low] = length.to_be_bytes();
        [&[0x45, 0, high, low, 0, 9, 0, 0, 64, 17, 0, 0][..], &from, &to, data].concat()
    }

    fn v6(from: &str, to: &str, next: u8, data: &[u8]) -> Vec<u8> {
        let [high, low] = (data.len() as u16).to_be_bytes();
        let [from, to] = [from, to].map(|address| address.parse::<Ipv6Addr>().unwrap().octets());
        [&[0x60, 0, 0, 0, high, low, next, 64][..], &from, &to, data].concat()
    }

    #[test]
    fn found_in_any_outer_header() {
        let pairs = pairs(&addresses(&["10.1.0.2", "fd10:1::2"]), &addresses(&["10.2.0.2", "fd10:2::2"]));
        assert_eq!(pairs.len(), 2);
        let program = filter(&pairs);
        assert!(program.len() <= 4096);
        let checked: Vec<Checked> =
            program.iter().map(|&(code, jt, jf, k)| Checked { code, jt, jf, k }).collect();
        let filter = Filter::new(&checked).unwrap();
        let frame = |packet: &[u8]| [&[0; 14][..], packet].concat();
        let inner = v4([10, 1, 0, 2], [10, 2, 0, 2], b"abcdefgh");
        let six = v6("fd10:1::2", "fd10:2::2", 17, b"abcdefgh");
        let srh = [&[4, 2, 4, 0, 0, 0, 0, 0][..], &[7; 16], &inner].concat();
        let padded = [frame(&inner), vec![0; 18]].concat();
        let same = [
            frame(&inner),
            frame(&v6("fc00::1", "fc00::2", 43, &srh)),
            // Labels; VXLAN, with a frame inside.
            frame(&[&[0, 1, 0x30, 64, 0, 1, 0x31, 64][..], &inner].concat()),
            frame(&v4([1, 1, 1, 1], [2, 2, 2, 2], &[&[0; 30][..], &inner].concat())),
            padded,
        ];
        let known = identity(&same[0], &pairs);
        assert!(known.is_some());
        for frame in &same {
            assert!(filter.run(frame) > 0, "{frame:?}");
            assert_eq!(identity(frame, &pairs), known, "{frame:?}");
        }
        // An SRH in the packet's own header: the last segment is where it goes.
        let last = "fd10:2::2".parse::<Ipv6Addr>().unwrap().octets();
        let inserted = [&[17, 2, 4, 1, 0, 0, 0, 0][..], &last, b"abcdefgh"].concat();
        for frame in [frame(&six), frame(&v6("fd10:1::2", "fc00::9", 43, &inserted))] {
            assert!(filter.run(&frame) > 0, "{frame:?}");
            assert_eq!(identity(&frame, &pairs), Some([&[1][..], b"abcdefgh"].concat()), "{frame:?}");
        }
        for other in [
            v4([10, 2, 0, 2], [10, 1, 0, 2], b"abcdefgh"),
            v6("fd10:2::2", "fd10:1::2", 17, b"abcdefgh"),
            vec![0; 400],
            vec![],
        ] {
            assert_eq!(filter.run(&frame(&other)), 0, "{other:?}");
            assert_eq!(identity(&frame(&other), &pairs), None, "{other:?}");
        }
    }

    #[test]
    fn there_is_room_for_the_pairs() {
        let many: Vec<IpAddr> = (1..9_u8)
            .flat_map(|n| [IpAddr::from([10, 0, 0, n]), Ipv6Addr::from_bits(n.into()).into()])
            .collect();
        assert!(filter(&pairs(&many, &many)).len() <= 4096);
    }
}
