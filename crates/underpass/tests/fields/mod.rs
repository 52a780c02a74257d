//! A frame as a list of named fields, to show where two frames differ. It does not use the views of
//! `underpass-packet`, which are under test; what is cut short is shown as bytes.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The fields of an Ethernet frame, one a line: `layer.field value`.
pub fn of(frame: &[u8]) -> Vec<String> {
    let mut fields = Fields { lines: Vec::new(), depth: 0 };
    fields.ethernet(frame);
    fields.lines
}

/// The lines in which two frames differ, `-` for what is expected and `+` for what came.
pub fn difference(expected: &[u8], got: &[u8]) -> String {
    let (expected, got) = (of(expected), of(got));
    let mut text = String::new();
    let mut at = 0;
    // Fields of one name are compared with each other as long as both frames have the same layers.
    for line in &expected {
        match got.get(at) {
            Some(other) if other == line => at += 1,
            Some(other) if other.split(' ').next() == line.split(' ').next() => {
                let _ = write!(text, "\n      - {line}\n      + {other}");
                at += 1;
            }
            _ => {
                let _ = write!(text, "\n      - {line}");
            }
        }
    }
    for line in got.iter().skip(at) {
        let _ = write!(text, "\n      + {line}");
    }
    text
}

struct Fields {
    lines: Vec<String>,
    depth: usize,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn address6(bytes: &[u8]) -> Ipv6Addr {
    <[u8; 16]>::try_from(&bytes[..16]).map_or(Ipv6Addr::UNSPECIFIED, Ipv6Addr::from)
}

impl Fields {
    fn field(&mut self, name: &str, value: impl std::fmt::Display) {
        self.lines.push(format!("{}{name} {value}", ">".repeat(self.depth)));
    }

    fn rest(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.field("bytes", format_args!("({}) {}", bytes.len(), hex(bytes)));
        }
    }

    fn ethernet(&mut self, frame: &[u8]) {
        if frame.len() < 14 {
            return self.rest(frame);
        }
        self.field("eth.destination", hex(&frame[..6]));
        self.field("eth.source", hex(&frame[6..12]));
        let mut at = 12;
        while frame.len() >= at + 4 && [0x8100, 0x88a8].contains(&word(frame, at)) {
            self.field("vlan", format_args!("{:04x} {:04x}", word(frame, at), word(frame, at + 2)));
            at += 4;
        }
        let Some(kind) = frame.get(at..at + 2) else { return self.rest(&frame[at..]) };
        self.field("eth.type", hex(kind));
        let payload = &frame[at + 2..];
        self.network(word(kind, 0), payload);
    }

    /// What an EtherType announces.
    fn network(&mut self, kind: u16, payload: &[u8]) {
        match kind {
            0x0800 => self.ipv4(payload),
            0x86dd => self.ipv6(payload),
            0x6558 => self.ethernet(payload),
            _ => self.rest(payload),
        }
    }

    fn gre(&mut self, bytes: &[u8]) {
        let flags = word(bytes, 0);
        self.field("gre.flags", hex(&bytes[..2]));
        self.field("gre.protocol", hex(&bytes[2..4]));
        let mut at = 4;
        for (bit, name) in [(0x8000, "checksum"), (0x2000, "key"), (0x1000, "sequence")] {
            if flags & bit != 0
                && let Some(field) = bytes.get(at..at + 4)
            {
                self.field(&format!("gre.{name}"), hex(field));
                at += 4;
            }
        }
        self.network(word(bytes, 2), &bytes[at..]);
    }

    /// What is in UDP to the port that cases of foo-over-UDP send to: a packet, GRE, or GUE of variant 0.
    fn over_udp(&mut self, bytes: &[u8]) {
        let header = 4 + 4 * usize::from(bytes.first().map_or(0, |first| first & 0x1f));
        match bytes {
            [0x45..=0x4f, ..] => self.upper(4, bytes),
            [0x60..=0x6f, ..] => self.upper(41, bytes),
            [0x00..=0x1f, protocol @ (4 | 41 | 47), ..] if bytes.len() > header => {
                self.field("gue", hex(&bytes[..header]));
                self.upper(*protocol, &bytes[header..]);
            }
            [_, _, _, _, ..] => self.upper(47, bytes),
            _ => self.rest(bytes),
        }
    }

    fn ipv4(&mut self, bytes: &[u8]) {
        let size = bytes.first().map_or(0, |first| usize::from(first & 15) * 4);
        if size < 20 || bytes.len() < size {
            return self.rest(bytes);
        }
        self.field("ipv4.version-ihl", hex(&bytes[..1]));
        self.field("ipv4.tos", hex(&bytes[1..2]));
        self.field("ipv4.total-length", word(bytes, 2));
        self.field("ipv4.identification", hex(&bytes[4..6]));
        self.field("ipv4.flags-offset", hex(&bytes[6..8]));
        self.field("ipv4.ttl", bytes[8]);
        self.field("ipv4.protocol", bytes[9]);
        self.field("ipv4.checksum", hex(&bytes[10..12]));
        self.field("ipv4.source", Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]));
        self.field("ipv4.destination", Ipv4Addr::new(bytes[16], bytes[17], bytes[18], bytes[19]));
        if size > 20 {
            self.field("ipv4.options", hex(&bytes[20..size]));
        }
        if word(bytes, 6) & 0x1fff == 0 {
            self.upper(bytes[9], &bytes[size..]);
        } else {
            self.rest(&bytes[size..]);
        }
    }

    fn ipv6(&mut self, bytes: &[u8]) {
        if bytes.len() < 40 {
            return self.rest(bytes);
        }
        self.field("ipv6.version", bytes[0] >> 4);
        self.field("ipv6.traffic-class", hex(&[bytes[0] << 4 | bytes[1] >> 4]));
        self.field("ipv6.flow-label", hex(&[bytes[1] & 15, bytes[2], bytes[3]]));
        self.field("ipv6.payload-length", word(bytes, 4));
        self.field("ipv6.next-header", bytes[6]);
        self.field("ipv6.hop-limit", bytes[7]);
        self.field("ipv6.source", address6(&bytes[8..]));
        self.field("ipv6.destination", address6(&bytes[24..]));
        self.upper(bytes[6], &bytes[40..]);
    }

    fn routing(&mut self, bytes: &[u8]) {
        let size = bytes.get(1).map_or(0, |length| usize::from(*length) * 8 + 8);
        if size == 0 || bytes.len() < size {
            return self.rest(bytes);
        }
        self.field("srh.next-header", bytes[0]);
        self.field("srh.length", bytes[1]);
        self.field("srh.type", bytes[2]);
        self.field("srh.segments-left", bytes[3]);
        self.field("srh.last-entry", bytes[4]);
        self.field("srh.flags", hex(&bytes[5..6]));
        self.field("srh.tag", hex(&bytes[6..8]));
        let list = (8 + (usize::from(bytes[4]) + 1) * 16).min(size) & !15 | 8;
        for (n, segment) in bytes[8..list.min(size)].as_chunks::<16>().0.iter().enumerate() {
            self.field(&format!("srh.segment[{n}]"), address6(segment));
        }
        if list < size {
            self.field("srh.tlvs", hex(&bytes[list..size]));
        }
        self.upper(bytes[0], &bytes[size..]);
    }

    /// What follows an IP header whose protocol or next header is `protocol`.
    fn upper(&mut self, protocol: u8, bytes: &[u8]) {
        self.depth += 1;
        match (protocol, bytes.len()) {
            (4, _) => self.ipv4(bytes),
            (41, _) => self.ipv6(bytes),
            (43, _) => self.routing(bytes),
            (47, 4..) => self.gre(bytes),
            (143, _) => self.ethernet(bytes),
            (0 | 60, 8..) if bytes.len() >= usize::from(bytes[1]) * 8 + 8 => {
                let size = usize::from(bytes[1]) * 8 + 8;
                self.field("options", hex(&bytes[..size]));
                self.upper(bytes[0], &bytes[size..]);
            }
            (44, 8..) => {
                self.field("fragment", hex(&bytes[..8]));
                if word(bytes, 2) >> 3 == 0 {
                    self.upper(bytes[0], &bytes[8..]);
                } else {
                    self.rest(&bytes[8..]);
                }
            }
            (17, 8..) => {
                self.field("udp.ports", format_args!("{} {}", word(bytes, 0), word(bytes, 2)));
                self.field("udp.length", word(bytes, 4));
                self.field("udp.checksum", hex(&bytes[6..8]));
                match word(bytes, 2) {
                    5555 => self.over_udp(&bytes[8..]),
                    _ => self.rest(&bytes[8..]),
                }
            }
            (1 | 58, 8..) => {
                let name = if protocol == 1 { "icmp" } else { "icmpv6" };
                self.field(&format!("{name}.type-code"), format_args!("{} {}", bytes[0], bytes[1]));
                self.field(&format!("{name}.checksum"), hex(&bytes[2..4]));
                self.field(&format!("{name}.rest"), hex(&bytes[4..8]));
                self.depth += 1;
                match (protocol, bytes[0]) {
                    (1, 3..=5 | 11 | 12) => self.ipv4(&bytes[8..]),
                    (58, 1..=4) => self.ipv6(&bytes[8..]),
                    _ => self.rest(&bytes[8..]),
                }
                self.depth -= 1;
            }
            _ => self.rest(bytes),
        }
        self.depth -= 1;
    }
}
