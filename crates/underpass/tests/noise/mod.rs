//! What of a frame is chosen by who sends it, a kernel or the router, and is not compared: times, identifications, ports by a hash.

/// Clears the time in the latest data of IOAM traces, and those of a timestamp reply with the checksum over them.
pub fn clear_time(frame: &mut [u8]) {
    if frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&1) {
        let at = 14 + 4 * usize::from(frame[14] & 15);
        let is_reply = frame.get(at) == Some(&14);
        for field in [at + 2..at + 4, at + 12..at + 20] {
            frame.get_mut(field).filter(|_| is_reply).into_iter().for_each(|field| field.fill(0));
        }
    }
    if frame.get(12..14) != Some(&[0x86, 0xdd]) || frame.get(20) != Some(&0) {
        return;
    }
    let mut at = 56;
    let end = frame.len().min(54 + 8 * (usize::from(frame[55]) + 1));
    while at + 12 <= end {
        if frame[at] == 0x31 && frame[at + 3] == 0 {
            let bits = frame[at + 8];
            let node = at + 12 + 4 * usize::from(frame[at + 7] & 0x7f);
            let time = node + 4 * (bits >> 6).count_ones() as usize;
            let len = 4 * (bits >> 4 & 3).count_ones() as usize;
            if let Some(time) = frame.get_mut(time..time + len) {
                time.fill(0);
            }
        }
        at += if frame[at] == 0 { 1 } else { 2 + usize::from(frame[at + 1]) };
    }
}

/// ARP and neighbour discovery, which the recordings leave out.
pub fn is_noise(frame: &[u8]) -> bool {
    is_of_neighbours(frame)
        || frame.get(12..14) == Some(&[0x86, 0xdd])
            && frame.get(20) == Some(&58)
            && matches!(frame.get(54), Some(133..=137))
}

/// ARP, neighbour solicitations and advertisements, which some recordings have.
pub fn is_of_neighbours(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x06]) => true,
        Some([0x86, 0xdd]) => frame.get(20) == Some(&58) && matches!(frame.get(54), Some(135 | 136)),
        _ => false,
    }
}

/// Whether the router made this frame itself: an ICMP error or an echo reply.
pub fn is_router_made(frame: &[u8]) -> bool {
    match frame {
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x08, 0x00, rest @ ..] => {
            rest.get(9) == Some(&1) && matches!(rest.get(20), Some(0 | 3 | 4 | 5 | 11 | 12))
        }
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, rest @ ..] => {
            rest.get(6) == Some(&58) && matches!(rest.get(40), Some(1..=4 | 129))
        }
        _ => false,
    }
}

/// The EtherType and the IP addresses of a frame.
pub fn flow(frame: &[u8]) -> Vec<u8> {
    let addresses = if frame.get(12) == Some(&0x08) { 26..34 } else { 22..54 };
    [frame.get(12..14), frame.get(addresses)].into_iter().flatten().flatten().copied().collect()
}

/// The identification of IPv4 packets that the router makes is its own affair, and so are the flow label
/// of IPv6 packets and the source port of a tunnel: they are 0 in the recordings.
pub fn without_own_choices(mut frame: Vec<u8>) -> Vec<u8> {
    let is_tag = |tag: &&[u8]| matches!(tag, [0x81, 0x00, ..] | [0x88, 0xa8, ..]);
    let tags = 4 * frame.get(12..).unwrap_or_default().chunks(4).take_while(is_tag).count();
    if tags != 0 && frame.len() >= 14 + tags {
        let taken: Vec<u8> = frame.drain(12..12 + tags).collect();
        frame = without_own_choices(frame);
        frame.splice(12..12, taken);
        return frame;
    }
    if frame.get(12) == Some(&0x08) && (is_router_made(&frame) || is_outer(&frame)) {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
        let sum = sum_of(frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])));
        frame[24..26].copy_from_slice(&(!sum).to_be_bytes());
    } else if is_router_made(&frame) && frame.get(21) == Some(&64) {
        frame[15] &= 0xf0;
        frame[16..18].fill(0);
    }
    if is_outer(&frame) {
        without_source_port(&mut frame);
    }
    without_fragment_identification(&mut frame);
    frame
}

/// The identification of fragments that the router makes of IPv6 packets, too, and that of its own IPv4 packets inside other
/// headers: `own_fragments` in record.py.
fn without_fragment_identification(frame: &mut [u8]) -> Option<()> {
    let in_labels = frame.get(12..14)? == [0x88, 0x47];
    let mut at = 14;
    if in_labels {
        while frame.get(at + 2)? & 1 == 0 {
            at += 4;
        }
        at += 4;
    }
    let of_ethertype = |bytes: &[u8]| match bytes {
        [0x08, 0x00] => Some(4),
        [0x86, 0xdd] => Some(41),
        _ => None,
    };
    let mut following = match frame.get(at)? >> 4 {
        4 if in_labels => 4,
        6 if in_labels => 41,
        _ => of_ethertype(frame.get(12..14)?)?,
    };
    loop {
        match following {
            4 => {
                let header = frame.get_mut(at..)?;
                let header = header.get_mut(..4 * usize::from(header.first()? & 15))?;
                if at > 14
                    && matches!(header.get(12..16)?, [192, 0, 2, 1] | [198, 51, 100, 1] | [10, 6, 0, 1])
                {
                    header[4..6].fill(0);
                    header[10..12].fill(0);
                    let sum =
                        sum_of(header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])));
                    header[10..12].copy_from_slice(&(!sum).to_be_bytes());
                }
                if u16::from_be_bytes([*header.get(6)?, header[7]]) & 0x1fff != 0 {
                    return None;
                }
                (following, at) = (*header.get(9)?, at + header.len());
            }
            47 => (following, at) = (of_ethertype(frame.get(at + 2..at + 4)?)?, at + 4),
            41 => {
                let source = frame.get(at + 8..at + 24)?;
                let own = source.starts_with(&[0x20, 1, 0xd, 0xb8])
                    && source[6..] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
                (following, at) = (*frame.get(at + 6)?, at + 40);
                while matches!(following, 0 | 43 | 60) {
                    (following, at) = (*frame.get(at)?, at + 8 * (usize::from(*frame.get(at + 1)?) + 1));
                }
                if following != 44 {
                    continue;
                }
                if own {
                    frame.get_mut(at + 4..at + 8)?.fill(0);
                }
                if u16::from_be_bytes([*frame.get(at + 2)?, *frame.get(at + 3)?]) >> 3 != 0 {
                    return None;
                }
                (following, at) = (frame[at], at + 8);
            }
            _ => return None,
        }
    }
}

/// A frame whose outer header's flow label is the router's own choice: then it is 0 in the recording.
pub fn without_flow_label(expected: &[u8], got: &[u8]) -> Vec<u8> {
    let mut got = got.to_vec();
    let label = |frame: &[u8]| [frame[15] & 15, frame[16], frame[17]];
    if is_outer(expected) && is_outer(&got) && expected[12] == 0x86 && label(expected) == [0; 3] {
        got[15] &= 0xf0;
        got[16..18].fill(0);
    }
    got
}

/// Whether the source is an address of the router's ports.
pub fn is_outer(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => matches!(frame.get(26..30), Some([192, 0, 2, 1] | [198, 51, 100, 1])),
        Some([0x86, 0xdd]) => {
            matches!(frame.get(22..38), Some([0x20, 1, 0xd, 0xb8, _, _, rest @ .., 1]) if rest == [0; 9])
        }
        _ => false,
    }
}

/// A UDP source port that is that of the flow is the router's own choice: 0 in the recordings, as if it had never been in
/// the checksum. `FLOW_PORTS` in record.py.
fn without_source_port(frame: &mut [u8]) {
    let (at, protocol) = match frame.get(12) {
        Some(0x08) if u16::from_be_bytes([frame[20], frame[21]]) & 0x1fff == 0 => {
            (14 + 4 * usize::from(frame[14] & 15), frame[23])
        }
        // Behind the encapsulation limit.
        Some(0x86) if frame[20] == 60 && frame.get(55) == Some(&0) => (62, frame[54]),
        Some(0x86) => (54, frame[20]),
        _ => return,
    };
    let Some(udp) = frame.get_mut(at..at + 8).filter(|_| protocol == 17) else { return };
    let word = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    let (source, destination, checksum) = (word(0), word(2), word(6));
    let chosen = match destination {
        5555 | 4789 | 4790 => (32768..61000).contains(&source),
        6081 => (1..u16::MAX).contains(&source),
        6635 => true,
        6636 => source >= 60000,
        _ => false,
    };
    if chosen {
        udp[..2].fill(0);
        if checksum != 0 {
            let sum = !sum_of([u32::from(!checksum), u32::from(!source)].into_iter());
            udp[6..8].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
        }
    }
}

/// The ones' complement sum of words.
fn sum_of(words: impl Iterator<Item = u32>) -> u16 {
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}
