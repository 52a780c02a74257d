//! A router that has everything that reads or writes routing headers and traces, and packets for it made of any bytes.
//! The tests and the fuzz target share them.

use std::cell::RefCell;

use underpass_engine::hmac::{Algorithm, Key, Keys};
use underpass_engine::tables::{
    Action, Behaviour, Csid, Flavours, HeadendMode, Ioam, IoamMode, IoamNamespace, IoamNode, IoamOnward,
    IoamPlaces, NextCsid, ReplaceCsid, Rpl, Via,
};
use underpass_packet::{ethernet, protocol};

use crate::lab::{Lab, frame, ip4, ip6, v6};

/// Where packets go: SIDs with and without flavours, headends, the router itself, a neighbour, nowhere.
const DESTINATIONS: &[&str] = &[
    "fc00::1",
    "fc00::2",
    "fc00::3",
    "fc00::4",
    "fc00::5",
    "fc00::6",
    "fc00::7",
    "fc00::8",
    "fc00::9",
    "fc00::a",
    "fc00::b",
    "fc01::1",
    "fc01::2",
    "fc01::3",
    "fc01::4",
    "fc01::5",
    "fc01::6",
    "fc01::7",
    "fc01:a:1::",
    "fc01:a:1:a:1::",
    "fd00::1",
    "fd00:1::9",
    "2001:db8:e0::1",
    "2001:db8:e1::1",
    "2001:db8:e2::1",
    "2001:db8:f0::1",
    "2001:db8:f1::1",
    "2001:db8:f2::1",
    "2001:db8:f3::1",
    "2001:db8:99::1",
];

/// Next headers, among others.
const NEXT: &[u8] = &[
    protocol::ROUTING,
    protocol::HOP_BY_HOP,
    protocol::DESTINATION_OPTIONS,
    protocol::IPV6,
    protocol::IPV4,
    protocol::ETHERNET,
    protocol::FRAGMENT,
    protocol::UDP,
    protocol::ICMPV6,
];

/// The pre-allocated trace of bits 0 and 1 for two nodes, the first one's hop limit and link to be filled in.
const TRACE: [u8; 32] = [
    0,
    3,
    1,
    0,
    0x31,
    26,
    0,
    0,
    0,
    123,
    2 << 3,
    2,
    0xc0,
    0,
    0,
    0, // header, padding, option, trace
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0x40,
    0,
    0,
    1,
    0,
    2,
    0,
    3,
];

fn router() -> Lab {
    let mut lab = Lab::new();
    lab.all_behaviours();
    let lookup = lab.lookup;
    for bits in 1..8u8 {
        let flavours = |csid| Flavours { psp: bits & 1 != 0, usp: bits & 2 != 0, usd: bits & 4 != 0, csid };
        lab.flavoured(&format!("fc01::{bits}"), Behaviour::End { lookup }, Some(flavours(None)));
        if bits == 7 {
            let structure = Csid::Next(NextCsid { block: 32, node_function: 16 });
            let all = Some(flavours(Some(structure)));
            lab.flavoured_prefix("fc01:a:1::", 48, Behaviour::X(lab.via(1)), all);
            let structure = Csid::Replace(ReplaceCsid { block: 32, node_function: 16 });
            let all = Some(flavours(Some(structure)));
            lab.flavoured_prefix("fc01:a:2::", 48, Behaviour::End { lookup }, all);
        }
    }
    let key = |id, algorithm| Key::new(id, algorithm, b"a secret").unwrap();
    lab.writer.set_hmac_keys(Keys::new(vec![key(7, Algorithm::Sha256), key(8, Algorithm::Sha1)]));
    let mut sealed = lab.policy(HeadendMode::Inline, &["::", "fd00:1::8"]);
    let mut header = sealed.header.to_vec();
    (header[1], header[5]) = (9, 8);
    header.extend([&[5, 38, 0, 0, 0, 0, 0, 7][..], &[0; 32]].concat());
    (sealed.header, sealed.hmac_open, sealed.room) = (header.into(), true, sealed.room + 40);
    // As where routes are compiled: what is to be sealed goes the slow path.
    sealed.via = Via { address: v6("fd00:1::8").into(), resolved: None, ..sealed.via };
    let rpl = Rpl::new(&[v6("fd00:1::9"), v6("fd00:1::8")], lab.via(1), lab.links[1]).unwrap();
    let ioam = |mode| {
        Action::Ioam(Box::new(Ioam {
            mode,
            frequency: None,
            header: TRACE.into(),
            places: IoamPlaces { hop_limit: 24, ingress: 28, ..IoamPlaces::default() },
            source: v6("fd00::1"),
            via: Via { address: v6("fd00:1::9").into(), ..lab.via(1) },
            onward: IoamOnward::NextHop(lab.next_hops[1]),
            link: lab.links[1],
        }))
    };
    let actions = [Action::Headend(sealed), Action::Rpl(rpl), ioam(IoamMode::Inline), ioam(IoamMode::Encap)];
    for (n, action) in actions.into_iter().enumerate() {
        let action = lab.writer.add_action(action);
        lab.writer.insert6(lab.fib6, v6(&format!("2001:db8:f{n}::")), 48, action);
    }
    let schema = Some([0u8, 0, 0, 7].into());
    let namespaces = [IoamNamespace { id: 123, data: 1, data_wide: 2, schema }].into();
    lab.writer.set_ioam(IoamNode { id: 3, id_wide: 4, namespaces });
    let mut link = lab.link(0);
    (link.ioam.enabled, link.ioam.id) = (true, 5);
    lab.writer.set_link(lab.links[0], link);
    lab
}

thread_local! {
    static ROUTER: RefCell<Lab> = RefCell::new(router());
}

/// The frame that some bytes stand for: the first three say what they are the payload of.
fn made(bytes: &[u8]) -> Vec<u8> {
    let Some((&[kind, next, to], payload)) = bytes.split_first_chunk::<3>() else { return bytes.to_vec() };
    let to = DESTINATIONS[usize::from(to) % DESTINATIONS.len()];
    let next = NEXT.get(usize::from(next)).copied().unwrap_or(next);
    let payload = &payload[..payload.len().min(1400)];
    match kind & 7 {
        0 => payload.to_vec(),
        1 => frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 200, 0, 9], next, payload)),
        // What comes out of a SID.
        2 => {
            let inside = ip6("fd00::2", to, next, payload);
            frame(ethernet::IPV6, &ip6("fd00::2", "fc00::8", protocol::IPV6, &inside))
        }
        _ => {
            let mut packet = ip6("fd00::2", to, next, payload);
            // Few hops are left, too.
            packet[7] = [40, 40, 40, 1, 2][usize::from(kind >> 3) % 5];
            frame(ethernet::IPV6, &packet)
        }
    }
}

/// Sends what the bytes stand for through the router. Each packet is accounted for, and those that leave are whole.
/// Whether one does.
pub fn send(bytes: &[u8]) -> bool {
    ROUTER.with_borrow_mut(|lab| {
        let sent = lab.send(&[made(bytes)]);
        lab.assert_accounted();
        for (port, frame) in &sent {
            let ethertype = frame.get(12..14).map(|at| u16::from_be_bytes([at[0], at[1]]));
            let (at, header) = match ethertype {
                Some(ethernet::IPV6) => (18, 40),
                Some(ethernet::IPV4) => (16, 0),
                _ => continue,
            };
            // A frame out of End.DX2 leaves as it is.
            if frame[..6] != crate::lab::PEERS[usize::from(*port)] {
                continue;
            }
            let length = usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
            assert_eq!(length + header + 14, frame.len(), "{}", format_frame(frame));
        }
        !sent.is_empty()
    })
}

fn format_frame(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}
