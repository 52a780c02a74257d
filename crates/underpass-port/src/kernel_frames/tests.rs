use proptest::prelude::*;
use underpass_packet::{ethernet, protocol};

use super::*;
use crate::xdp::bpf::{self, Map, MapKind, ProgramKind};
use crate::xdp::program::{self, Sockets, XDP_PASS};

/// The device that a test run of a program comes in by, `lo`; and one of another domain.
const DEVICE: u32 = 1;
const DOMAIN: u32 = 7;
const TCX_NEXT: u32 = u32::MAX;
const XDP_DROP: i32 = 1;

const LOCAL4: [u8; 4] = [10, 0, 0, 1];
const LOCAL6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// Groups that a tunnel is in.
const GROUP4: [u8; 4] = [239, 1, 2, 3];
const GROUP6: [u8; 16] = [0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn keeps(kernel_frames: &KernelFrames, ifindex: u32, frame: &[u8]) -> bool {
    kernel_frames.kept(ifindex, frame) == Kept::Yes
}

fn device(labels: bool) -> OfDevice {
    OfDevice { domain: DOMAIN, labels, all: false }
}

fn kernel_frames() -> KernelFrames {
    let kernel_frames = KernelFrames::new();
    kernel_frames.set_device(DEVICE, device(true)).unwrap();
    kernel_frames.add_local(DOMAIN, LOCAL4.into()).unwrap();
    kernel_frames.add_local(DOMAIN, LOCAL6.into()).unwrap();
    kernel_frames.add_local(DOMAIN, LINK_LOCAL.into()).unwrap();
    kernel_frames.add_local(0, [10, 0, 0, 2].into()).unwrap();
    kernel_frames.add_local(DOMAIN, GROUP4.into()).unwrap();
    kernel_frames.add_local(DOMAIN, GROUP6.into()).unwrap();
    kernel_frames.add_vlan(Vlan { ifindex: DEVICE, protocol: ethernet::VLAN, id: 5 }).unwrap();
    for claim in CLAIMS {
        kernel_frames.add_claim(claim).unwrap();
    }
    kernel_frames
}

const PORT: u16 = 0x5555;
const CLAIMS: [Claim; 9] = [
    Claim { ipv6: true, protocol: protocol::HOP_BY_HOP, port: 0, quoted: false },
    Claim { ipv6: false, protocol: protocol::GRE, port: 0, quoted: false },
    Claim { ipv6: false, protocol: protocol::UDP, port: PORT, quoted: false },
    Claim { ipv6: false, protocol: protocol::UDP, port: PORT, quoted: true },
    Claim { ipv6: true, protocol: protocol::GRE, port: 0, quoted: true },
    Claim { ipv6: true, protocol: protocol::GRE, port: 0, quoted: false },
    Claim { ipv6: true, protocol: protocol::UDP, port: PORT, quoted: false },
    Claim { ipv6: false, protocol: protocol::FRAGMENT, port: 0, quoted: false },
    Claim { ipv6: true, protocol: protocol::FRAGMENT, port: 0, quoted: false },
];

/// A packet of this protocol, with `PORT` where UDP has its destination port.
fn outer4(protocol: u8) -> Vec<u8> {
    changed([ip4(LOCAL4), vec![0; 66]].concat(), &[(23, protocol), (36, 0x55), (37, 0x55)])
}

/// The same to a group, in a frame for it.
fn to_group4(protocol: u8) -> Vec<u8> {
    changed(outer4(protocol), &[(0, 1), (30, 239), (31, 1), (32, 2), (33, 3)])
}

fn to_group6(protocol: u8) -> Vec<u8> {
    let mut frame = changed(outer6(protocol), &[(0, 0x33)]);
    frame[38..54].copy_from_slice(&GROUP6);
    frame
}

/// An ICMP error about a packet of this protocol to `PORT`.
fn error4(kind: u8, protocol: u8) -> Vec<u8> {
    let quoted = [(34, kind), (42, 0x45), (51, protocol), (64, 0x55), (65, 0x55)];
    changed(outer4(protocol::ICMP), &quoted)
}

fn outer6(protocol: u8) -> Vec<u8> {
    changed([ip6(LOCAL6, protocol, 0), vec![0; 50]].concat(), &[(56, 0x55), (57, 0x55)])
}

/// With a destination options header.
fn limited6(protocol: u8) -> Vec<u8> {
    changed(outer6(protocol::DESTINATION_OPTIONS), &[(54, protocol), (64, 0x55), (65, 0x55)])
}

fn error6(kind: u8, protocol: u8) -> Vec<u8> {
    let quoted = [(54, kind), (68, protocol), (102, protocol::GRE), (104, 0x55), (105, 0x55)];
    changed(outer6(protocol::ICMPV6), &quoted)
}

fn ip4(destination: [u8; 4]) -> Vec<u8> {
    let mut frame = [vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 40], vec![0; 36]].concat();
    frame[23] = 17;
    frame[30..34].copy_from_slice(&destination);
    frame
}

fn ip6(destination: [u8; 16], next: u8, kind: u8) -> Vec<u8> {
    let mut frame = [vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60], vec![0; 55]].concat();
    frame[38..54].copy_from_slice(&destination);
    (frame[19], frame[20], frame[54]) = (16, next, kind);
    frame
}

/// A packet behind one label.
fn labelled() -> Vec<u8> {
    let mut frame = ip4(LOCAL4);
    frame.splice(12..14, [0x88, 0x47, 0, 0x06, 0x41, 64]);
    frame
}

fn tagged(mut frame: Vec<u8>, kind: u16, control: u16) -> Vec<u8> {
    frame.splice(12..12, [kind.to_be_bytes(), control.to_be_bytes()].concat());
    frame
}

fn changed(mut frame: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    for (at, byte) in changes {
        if let Some(place) = frame.get_mut(*at) {
            *place = *byte;
        }
    }
    frame
}

#[test]
fn what_the_kernel_keeps() {
    let kernel_frames = kernel_frames();
    let mut elsewhere = LOCAL6;
    elsewhere[15] = 9;
    let cases = [
        ("local", ip4(LOCAL4), true),
        ("local in another domain", ip4([10, 0, 0, 2]), false),
        ("transit", ip4([10, 9, 9, 9]), false),
        ("multicast", ip4([224, 0, 0, 5]), true),
        ("broadcast", ip4([255; 4]), true),
        ("local", ip6(LOCAL6, 6, 0), true),
        ("transit", ip6(elsewhere, 6, 0), false),
        ("multicast", ip6([0xff; 16], 6, 0), true),
        ("echo request", ip6(elsewhere, 58, 128), false),
        ("router solicitation", ip6(elsewhere, 58, 133), true),
        ("redirect", ip6(elsewhere, 58, 137), true),
        ("behind discovery", ip6(elsewhere, 58, 138), false),
        ("UDP that looks like discovery", ip6(elsewhere, 17, 135), false),
        ("ICMPv6 without a type", ip6(elsewhere, 58, 128)[..54].to_vec(), true),
        ("group frame", changed(ip4([10, 9, 9, 9]), &[(0, 3)]), true),
        ("ARP", changed(ip4([10, 9, 9, 9]), &[(13, 6)]), true),
        ("VLAN of the kernel's", tagged(ip4([10, 9, 9, 9]), 0x8100, 0x3005), true),
        ("VLAN of the kernel's with another kind of tag", tagged(ip4(LOCAL4), 0x88a8, 5), false),
        ("another VLAN", tagged(ip4(LOCAL4), 0x8100, 6), false),
        ("another VLAN in a group frame", tagged(changed(ip4(LOCAL4), &[(0, 3)]), 0x8100, 6), false),
        ("local behind a priority tag", tagged(ip4(LOCAL4), 0x8100, 0xe000), true),
        ("transit behind a priority tag", tagged(ip4([10, 9, 9, 9]), 0x88a8, 0), false),
        ("label behind a priority tag", tagged(labelled(), 0x8100, 0), false),
        ("half a tag", tagged(ip4([10, 9, 9, 9]), 0x8100, 0)[..16].to_vec(), true),
        ("too short", ip4([10, 9, 9, 9])[..33].to_vec(), true),
        ("label", labelled(), false),
        ("label alone", labelled()[..18].to_vec(), false),
        ("half a label", labelled()[..16].to_vec(), false),
        ("label in a group frame", changed(labelled(), &[(0, 3)]), true),
        ("GRE", outer4(protocol::GRE), false),
        ("GRE behind options", changed(outer4(protocol::GRE), &[(14, 0x46)]), false),
        ("a fragment of GRE", changed(outer4(protocol::GRE), &[(21, 9)]), false),
        ("IPv4 in IPv4, which nobody claims", outer4(protocol::IPV4), true),
        ("foo-over-UDP", outer4(protocol::UDP), false),
        ("another UDP port", changed(outer4(protocol::UDP), &[(37, 0x56)]), true),
        ("foo-over-UDP behind options", changed(outer4(protocol::UDP), &[(14, 0x46)]), true),
        ("a fragment of foo-over-UDP", changed(outer4(protocol::UDP), &[(20, 0x20)]), false),
        ("a fragment of TCP", changed(outer4(protocol::TCP), &[(20, 0x20)]), true),
        (
            "a fragment of foo-over-UDP over IPv6",
            changed(outer6(protocol::FRAGMENT), &[(54, protocol::UDP)]),
            false,
        ),
        ("a fragment of TCP over IPv6", changed(outer6(protocol::FRAGMENT), &[(54, protocol::TCP)]), true),
        (
            "a fragment behind a tunnel limit",
            changed(limited6(protocol::FRAGMENT), &[(62, protocol::GRE)]),
            false,
        ),
        ("not to be fragmented", changed(outer4(protocol::UDP), &[(20, 0x40)]), false),
        ("foo-over-UDP to another", changed(outer4(protocol::UDP), &[(33, 2)]), false),
        ("an error about foo-over-UDP", error4(3, protocol::UDP), false),
        ("an error about GRE, which nobody claims", error4(3, protocol::GRE), true),
        ("an echo request", error4(8, protocol::UDP), true),
        ("GRE", outer6(protocol::GRE), false),
        ("GRE behind a tunnel limit", limited6(protocol::GRE), false),
        ("hop-by-hop options", outer6(protocol::HOP_BY_HOP), false),
        ("hop-by-hop options to the link", ip6(LINK_LOCAL, protocol::HOP_BY_HOP, 0), true),
        ("foo-over-UDP", outer6(protocol::UDP), false),
        ("foo-over-UDP behind a tunnel limit", limited6(protocol::UDP), false),
        ("behind longer options", changed(limited6(protocol::UDP), &[(55, 1)]), true),
        ("IPv6 in IPv6, which nobody claims", limited6(protocol::IPV6), true),
        ("an error about GRE", error6(2, protocol::GRE), false),
        ("an error about GRE with a limit", error6(2, protocol::DESTINATION_OPTIONS), false),
        ("an error about UDP, which nobody claims", error6(2, protocol::UDP), true),
        ("an echo request", error6(128, protocol::GRE), true),
        ("GRE to a group", to_group4(protocol::GRE), false),
        ("foo-over-UDP to a group", to_group4(protocol::UDP), false),
        ("the same behind a priority tag", tagged(to_group4(protocol::UDP), 0x8100, 0), false),
        ("the same in a frame for the station", changed(to_group4(protocol::UDP), &[(0, 2)]), false),
        ("foo-over-UDP to another group", changed(to_group4(protocol::UDP), &[(33, 4)]), true),
        ("another port of a group", changed(to_group4(protocol::UDP), &[(37, 0x56)]), true),
        ("TCP to a group", to_group4(protocol::TCP), true),
        ("foo-over-UDP to a group", to_group6(protocol::UDP), false),
        ("foo-over-UDP to another group", changed(to_group6(protocol::UDP), &[(53, 2)]), true),
        ("hop-by-hop options to a group, as of a query", to_group6(protocol::HOP_BY_HOP), true),
        ("neighbour discovery to a group", changed(to_group6(protocol::ICMPV6), &[(54, 135)]), true),
        ("GRE to an address in a frame for a group", changed(outer4(protocol::GRE), &[(0, 1)]), true),
        ("upstream-assigned label", changed(labelled(), &[(13, 0x48)]), true),
    ];
    for (what, frame, kept) in &cases {
        assert_eq!(keeps(&kernel_frames, DEVICE, frame), *kept, "{what}");
        assert!(keeps(&kernel_frames, 2, frame), "{what}, by a device that is not attached");
    }
    let vlan = Vlan { ifindex: DEVICE, protocol: ethernet::VLAN, id: 5 };
    assert_eq!(kernel_frames.kept(DEVICE, &tagged(ip4(LOCAL4), 0x8100, 6)), Kept::Copy);
    kernel_frames.remove_vlan(vlan).unwrap();
    assert_eq!(kernel_frames.kept(DEVICE, &tagged(ip4(LOCAL4), 0x8100, 5)), Kept::Copy);
    CLAIMS.into_iter().for_each(|claim| kernel_frames.remove_claim(claim).unwrap());
    assert!(keeps(&kernel_frames, DEVICE, &outer4(protocol::GRE)));
    assert!(keeps(&kernel_frames, DEVICE, &outer6(protocol::UDP)));
    kernel_frames.remove_local(DOMAIN, LOCAL4.into()).unwrap();
    assert!(!keeps(&kernel_frames, DEVICE, &ip4(LOCAL4)));
    kernel_frames.set_device(DEVICE, device(false)).unwrap();
    assert!(keeps(&kernel_frames, DEVICE, &labelled()), "labels are not taken");
    assert!(!keeps(&kernel_frames, DEVICE, &ip4(LOCAL4)));
    kernel_frames.remove_device(DEVICE).unwrap();
    assert!(keeps(&kernel_frames, DEVICE, &ip4(LOCAL4)));
}

/// A worker hears of changes; that it gets all frames does not say whose they are.
#[test]
fn a_keeper_follows() {
    let kernel_frames = kernel_frames();
    let mut keeper = kernel_frames.keeper();
    assert_eq!(keeper.kept(DEVICE, &ip4(LOCAL4)), Kept::Yes);
    kernel_frames.set_device(DEVICE, OfDevice { all: true, ..device(true) }).unwrap();
    assert_eq!(
        (kernel_frames.kept(DEVICE, &ip4(LOCAL4)), keeper.kept(DEVICE, &ip4(LOCAL4))),
        (Kept::No, Kept::Yes)
    );
    kernel_frames.remove_local(DOMAIN, LOCAL4.into()).unwrap();
    assert_eq!(keeper.kept(DEVICE, &ip4(LOCAL4)), Kept::No);
}

/// Where a worker gets all frames, only those that come back from it are the kernel's.
#[test]
fn the_programs_give_all() {
    let kernel_frames = kernel_frames();
    kernel_frames.set_device(DEVICE, OfDevice { all: true, ..device(false) }).unwrap();
    let Ok(_) = kernel_frames.maps() else {
        eprintln!("SKIPPED the_programs_give_all: {}", kernel_frames.without_bpf().unwrap_or_default());
        return;
    };
    let sockets = Map::new(MapKind::Sockets, "test", 4, 4, 1).unwrap();
    let redirect = Sockets { map: &sockets, missing: XDP_DROP };
    let xdp = program::load(ProgramKind::Xdp, &kernel_frames, Some(redirect)).unwrap();
    let classifier = program::load(ProgramKind::Classifier, &kernel_frames, None).unwrap();
    // `struct __sk_buff` with a mark.
    let mut back = [0; 192];
    back[8..12].copy_from_slice(&kernel_frames.mark().to_ne_bytes());
    for frame in [ip4(LOCAL4), changed(ip4(LOCAL4), &[(0, 3)]), changed(ip4(LOCAL4), &[(13, 6)]), labelled()]
    {
        assert_eq!(bpf::test_run(&xdp, &frame, &[]).unwrap(), XDP_DROP as u32);
        assert_ne!(bpf::test_run(&classifier, &frame, &[]).unwrap(), TCX_NEXT);
        assert_eq!(bpf::test_run(&classifier, &frame, &back).unwrap(), TCX_NEXT);
    }
}

/// The programs, run by the kernel, decide as [`KernelFrames::kept`] does.
#[test]
fn the_programs_agree() {
    let kernel_frames = kernel_frames();
    agree(&kernel_frames);
    kernel_frames.set_device(DEVICE, device(false)).unwrap();
    agree(&kernel_frames);
}

fn agree(kernel_frames: &KernelFrames) {
    let Ok(_) = kernel_frames.maps() else {
        eprintln!("SKIPPED the_programs_agree: {}", kernel_frames.without_bpf().unwrap_or_default());
        return;
    };
    let sockets = Map::new(MapKind::Sockets, "test", 4, 4, 1).unwrap();
    let redirect = Sockets { map: &sockets, missing: XDP_DROP };
    let xdp = program::load(ProgramKind::Xdp, kernel_frames, Some(redirect)).unwrap();
    let classifier = program::load(ProgramKind::Classifier, kernel_frames, None).unwrap();
    program::load(ProgramKind::Filter, kernel_frames, None).unwrap();
    let number = || {
        prop_oneof![
            Just(protocol::GRE),
            Just(protocol::UDP),
            Just(protocol::ICMP),
            Just(protocol::ICMPV6),
            Just(protocol::DESTINATION_OPTIONS),
            Just(protocol::HOP_BY_HOP),
            Just(protocol::FRAGMENT),
            any::<u8>(),
        ]
    };
    let frame = prop_oneof![
        any::<[u8; 4]>().prop_map(ip4),
        Just(ip4(LOCAL4)),
        Just(ip4([10, 0, 0, 2])),
        (any::<[u8; 16]>(), any::<u8>(), any::<u8>()).prop_map(|(to, next, kind)| ip6(to, next, kind)),
        (any::<[u8; 16]>(), 130..140_u8).prop_map(|(to, kind)| ip6(to, 58, kind)),
        any::<u8>().prop_map(|next| ip6(LOCAL6, next, 0)),
        number().prop_map(|next| ip6(LINK_LOCAL, next, 0)),
        Just(labelled()),
    ];
    let outer = prop_oneof![
        number().prop_map(outer4),
        number().prop_map(to_group4),
        number().prop_map(to_group6),
        (any::<u8>(), number()).prop_map(|(kind, of)| error4(kind, of)),
        (Just(3_u8), number()).prop_map(|(kind, of)| error4(kind, of)),
        number().prop_map(outer6),
        number().prop_map(limited6),
        (any::<u8>(), number()).prop_map(|(kind, of)| error6(kind, of)),
    ];
    let tag = prop_oneof![Just(0), Just(0xe000), Just(5), any::<u16>()];
    let kind = prop_oneof![Just(0x8100), Just(0x88a8)];
    let behind = (frame.clone(), kind, tag).prop_map(|(frame, kind, tag)| tagged(frame, kind, tag));
    let frame = prop_oneof![2 => frame, 2 => outer, 1 => behind];
    let changes = proptest::collection::vec((0..114_usize, any::<u8>()), 0..2);
    let strategy = (frame, changes, prop_oneof![14..70_usize, 34..120_usize, Just(120)]);
    proptest!(|((frame, changes, len) in strategy)| {
        let mut frame = changed(frame, &changes);
        frame.truncate(len);
        let kept = kernel_frames.kept(DEVICE, &frame) != Kept::No;
        let said = bpf::test_run(&xdp, &frame, &[]).unwrap();
        prop_assert_eq!(said == XDP_PASS as u32, kept, "XDP says {}", said);
        // A tag lies elsewhere by then, and the kernel wants the address headers of IP whole.
        let tagged = frame[12..14] == [0x81, 0] || frame[12..14] == [0x88, 0xa8];
        if !tagged && let Ok(said) = bpf::test_run(&classifier, &frame, &[]) {
            prop_assert_eq!(said == TCX_NEXT, kept, "the classifier says {}", said);
        }
    });
}
