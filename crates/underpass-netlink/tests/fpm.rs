//! What FRR sends over FPM, read with the codecs of this crate. The files in `frr/` say how it was recorded.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{fmt::Write as _, path::Path};

use underpass_netlink::{Attribute, Encap, Message, fpm::Decoder, message::messages};

const AF_INET6: u8 = 10;

/// Every netlink message of a recording, one a line; the lines that begin with `$` stay.
fn read(name: &str, chunk: usize) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frr").join(name);
    let (mut text, mut decoder) = (String::new(), Decoder::default());
    for line in std::fs::read_to_string(path).unwrap().lines() {
        if line.starts_with('$') {
            writeln!(text, "{line}").unwrap();
        } else if !line.starts_with('#') {
            let bytes: Vec<u8> = (0..line.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap())
                .collect();
            let mut frames = 0;
            for chunk in bytes.chunks(chunk) {
                decoder.push(chunk);
                while let Some(frame) = decoder.frame().unwrap() {
                    frames += 1;
                    messages(frame).for_each(|message| writeln!(text, "{}", tell(&message)).unwrap());
                }
            }
            assert_eq!((frames, decoder.pending()), (1, 0), "{line}");
        }
    }
    text
}

/// The parts of a route or a next-hop object that this file asks about.
fn tell(message: &Message<'_>) -> String {
    let body = message.body();
    let is_route = matches!(message.kind, libc::RTM_NEWROUTE | libc::RTM_DELROUTE);
    let mut text = match message.kind {
        libc::RTM_NEWROUTE => format!("route table {} protocol {} type {}", body[4], body[5], body[7]),
        libc::RTM_DELROUTE => format!("no route table {}", body[4]),
        104 => format!("object family {}", body[0]),
        other => format!("message {other}"),
    };
    let attributes = Attribute { kind: 0, offset: 0, value: &body[if is_route { 12 } else { 8 }..] };
    // The last encapsulation counts, as in the kernel's own parser.
    let mut encap = (0, None);
    for attribute in attributes.nested() {
        match (is_route, attribute.kind) {
            (true, 1) => write!(text, " to {}/{}", attribute.address(body[0]).unwrap(), body[1]).unwrap(),
            (true, 30) => write!(text, " object {}", attribute.u32()).unwrap(),
            (false, 1) => write!(text, " id {}", attribute.u32()).unwrap(),
            (false, 2) => write!(text, " group of {}", attribute.value.len() / 8).unwrap(),
            (false, 4) => text.push_str(" blackhole"),
            (false, 6) => write!(text, " via {}", attribute.address(body[0]).unwrap()).unwrap(),
            (true, 21) | (false, 7) => encap.0 = attribute.u16(),
            (true, 22) | (false, 8) => encap.1 = Some(attribute),
            _ => {}
        }
    }
    if let (kind, Some(encap)) = encap {
        let encap = Encap::parse(kind, &encap, AF_INET6).unwrap();
        match encap {
            Encap::Mpls(mpls) => write!(text, " {:?}", mpls.labels).unwrap(),
            Encap::Seg6(seg6) => write!(text, " {:?} {}", seg6.mode, seg6.srh.first()).unwrap(),
            Encap::Seg6Local(local) => write!(text, " {:?}", local.action).unwrap(),
            Encap::Rpl(rpl) => write!(text, " rpl {}", rpl.addresses().count()).unwrap(),
            Encap::Ioam6(ioam6) => write!(text, " {:?}", ioam6.mode).unwrap(),
            Encap::Ip(tunnel) => write!(text, " to {}", tunnel.destination).unwrap(),
        }
    }
    text
}

fn has(text: &str, lines: &[&str]) {
    for wanted in lines {
        assert!(text.lines().any(|line| line == *wanted), "no {wanted:?} in\n{text}");
    }
}

#[test]
fn static_routes() {
    let text = read("static.txt", usize::MAX);
    assert_eq!(text, read("static.txt", 7));
    has(
        &text,
        &[
            // Connected routes come too, of protocol kernel.
            "route table 254 protocol 2 type 1 to 10.0.0.0/24 object 7",
            "object family 2 id 14 via 10.0.0.2",
            "route table 254 protocol 196 type 1 to 10.20.0.0/16 object 14",
            "object family 0 id 18 group of 2",
            "route table 254 protocol 196 type 1 to 10.20.0.0/16 object 18",
            "object family 2 id 22 blackhole",
            "route table 254 protocol 196 type 6 to 10.30.0.0/16",
            "route table 254 protocol 196 type 7 to fd40::/32",
            "route table 100 protocol 196 type 1 to 10.50.0.0/16 object 19",
            "no route table 254 to fd30::/32",
        ],
    );
    // A change is a withdrawal and an announcement in one frame.
    let (_, change) = text.split_once("$ ipv6 route fd20::/32 fd01::2\n").unwrap();
    let change: Vec<_> = change.lines().take(4).collect();
    assert_eq!(
        change[2..],
        ["no route table 254 to fd20::/32", "route table 254 protocol 196 type 1 to fd20::/32 object 28"]
    );
}

#[test]
fn srv6() {
    let text = read("srv6.txt", usize::MAX);
    assert_eq!(text, read("srv6.txt", 1));
    has(
        &text,
        &[
            "object family 10 id 11 EndDT4",
            "object family 10 id 12 EndDT6",
            "object family 10 id 14 via fd00::2 Encap fd01:0:2:0:100::",
            "route table 254 protocol 186 type 1 to fd01:0:1:100::/128 object 11",
            "route table 100 protocol 186 type 1 to 10.2.0.0/24 object 14",
        ],
    );
}

/// Without next-hop objects the encapsulation is the route's; a VPN label comes before it, as MPLS.
#[test]
fn srv6_without_objects() {
    let text = read("srv6-without-objects.txt", 3);
    has(
        &text,
        &[
            "route table 254 protocol 186 type 1 to fd01:0:1:100::/128 EndDT4",
            "route table 100 protocol 186 type 1 to 10.2.0.0/24 Encap fd01:0:2:0:100::",
        ],
    );
    assert!(text.ends_with("no route table 254 to fd01:0:1:200::/128\n$ zebra ends by SIGTERM\n"), "{text}");
}
