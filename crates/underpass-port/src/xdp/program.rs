//! The program that decides, for each frame that a device receives, whether the kernel keeps it or a worker
//! gets it. It says what [`crate::kernel_frames::KernelFrames::kept`] says.
//!
//! There are three of a kind: for XDP, whose verdict redirects a frame to the worker's socket; for the socket
//! filter of an AF_PACKET port, which sees a copy of every frame and takes those for the worker; and for the
//! traffic control hook behind it, which drops those, so that the kernel does not forward them too.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use underpass_packet::{ethernet, protocol};

use super::assembler::{Label, Program, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Register, Size, When};
use super::bpf::{self, Map, ProgramKind};
use crate::kernel_frames::{
    ALL, ERRORS4, GROUPS4, GROUPS6, INFORMATION6, KernelFrames, LABELS, Maps, ND, QUOTED, VLAN_ID,
};

/// Helpers, from include/uapi/linux/bpf.h.
const MAP_LOOKUP_ELEM: i32 = 1;
const SKB_LOAD_BYTES: i32 = 26;
const REDIRECT_MAP: i32 = 51;

/// `struct xdp_md`.
mod xdp_md {
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_END: i16 = 4;
    pub(super) const INGRESS_IFINDEX: i16 = 12;
    pub(super) const RX_QUEUE_INDEX: i16 = 16;
}

/// `struct __sk_buff`.
pub(crate) mod sk_buff {
    pub(crate) const MARK: i16 = 8;
    pub(super) const VLAN_PRESENT: i16 = 20;
    pub(super) const VLAN_TCI: i16 = 24;
    pub(super) const VLAN_PROTO: i16 = 28;
    pub(super) const IFINDEX: i16 = 40;
}

/// Verdicts.
pub(crate) const XDP_PASS: i32 = 2;
pub(crate) const TCX_NEXT: i32 = -1;
pub(crate) const TCX_DROP: i32 = 2;
const FILTER_NONE: i32 = 0;
const FILTER_ALL: i32 = -1;

/// Offsets in a frame.
const ETHERTYPE: i16 = 12;
const ETHERNET_END: i32 = 14;
/// Of a tag that is in the frame.
const TAG: i16 = 14;
const TAG_LEN: i32 = 4;
const IP4_DESTINATION: i16 = 30;
const IP4_END: i32 = 34;
const IP6_NEXT_HEADER: i16 = 20;
const IP6_DESTINATION: i16 = 38;
const IP6_END: i32 = 54;
const ICMP6_TYPE: i16 = 54;
/// IPv4 begins here, and in an ICMP error what is quoted.
const IP4: i16 = 14;
const IP4_QUOTED: i16 = 42;
const ICMP4_TYPE: i16 = 34;
/// From the start of an IPv4 header without options.
const FRAGMENT: i16 = 6;
const PROTOCOL: i16 = 9;
const IP4_PORT: i16 = 22;
/// What follows the IPv6 header, and in an ICMPv6 error the quoted one.
const IP6_PAYLOAD: i16 = 54;
const IP6_PAYLOAD_QUOTED: i16 = 102;
/// From what follows an IPv6 header back to its next header.
const NEXT_HEADER: i16 = -34;

/// What is known of a device.
const DEVICE_DOMAIN: i16 = 0;
const DEVICE_FLAGS: i16 = 4;

/// The stack, down from the frame pointer: keys of maps, and the frame's start where it is copied.
const KEY_INGRESS: i16 = -4;
const KEY_ADDRESS: i16 = -24;
const KEY_VLAN: i16 = -24;
/// Not a multiple of four: the addresses behind the link layer are. The most that is looked at is 118 bytes.
const FRAME: i16 = -142;
/// What is known of the device.
const FLAGS: i16 = -148;
/// The first byte of the frame: whether it is for a group of stations.
const STATION: i16 = -149;
const TO_STATIONS: i32 = 1;

/// Where the frame's bytes come from.
struct Writer {
    program: Program,
    kind: ProgramKind,
    keep: Label,
    /// Whether a worker gets frames of VLANs that the kernel has no device for: by a socket, its copy of them.
    vlans: bool,
}

/// What a frame for the worker is given to by XDP.
pub(crate) struct Sockets<'a> {
    pub(crate) map: &'a Map,
    /// The verdict where no socket is bound to the queue.
    pub(crate) missing: i32,
}

/// Loads the program. `sockets` is what XDP redirects to, by queue; the others need none.
pub(crate) fn load(
    kind: ProgramKind,
    frames: &KernelFrames,
    sockets: Option<Sockets<'_>>,
) -> io::Result<OwnedFd> {
    let maps = frames.maps().map_err(io::Error::other)?;
    let mark = frames.mark().cast_signed();
    let mut program = Program::default();
    let keep = program.label();
    let vlans = kind == ProgramKind::Filter;
    let mut writer = Writer { program, kind, keep, vlans };
    writer.classify(maps, mark);
    let keep_verdict = match kind {
        ProgramKind::Xdp => XDP_PASS,
        ProgramKind::Classifier => TCX_NEXT,
        ProgramKind::Filter => FILTER_NONE,
    };
    let Writer { mut program, .. } = writer;
    match (kind, sockets) {
        (ProgramKind::Xdp, Some(Sockets { map, missing })) => {
            program.map(R1, map);
            program.load(Size::Word, R2, R6, xdp_md::RX_QUEUE_INDEX);
            program.set(R3, missing);
            program.call(REDIRECT_MAP);
        }
        (ProgramKind::Classifier, _) => program.set(R0, TCX_DROP),
        (ProgramKind::Filter, _) => program.set(R0, FILTER_ALL),
        (ProgramKind::Xdp, None) => return Err(io::ErrorKind::InvalidInput.into()),
    }
    program.exit();
    program.here(keep);
    program.set(R0, keep_verdict);
    program.exit();
    bpf::load(kind, "underpass", &program.finish())
}

/// Loads a program that says the same of everything.
pub(crate) fn always(kind: ProgramKind, verdict: i32) -> io::Result<OwnedFd> {
    let mut program = Program::default();
    program.set(R0, verdict);
    program.exit();
    bpf::load(kind, "underpass_all", &program.finish())
}

/// Adds to a program at a hook of traffic control, beside which no socket listens, and of which R6 is the context: it jumps to `keep` if the kernel keeps the frame, and goes on behind this
/// if a worker gets it.
pub(crate) fn classify(program: Program, (maps, mark): (&Maps, i32), keep: Label) -> Program {
    let mut writer = Writer { program, kind: ProgramKind::Classifier, keep, vlans: true };
    writer.program.copy(R1, R6);
    writer.classify(maps, mark);
    writer.program
}

impl Writer {
    /// Jumps to `keep` if the kernel keeps the frame, and falls through if the worker gets it.
    fn classify(&mut self, maps: &Maps, mark: i32) {
        let keep = self.keep;
        let (ip6, short) = (self.program.label(), self.program.label());
        let (group4, foreign4) = (self.program.label(), self.program.label());
        let (group6, foreign6) = (self.program.label(), self.program.label());
        let (labelled, taken) = (self.program.label(), self.program.label());
        let claimed = self.program.label();
        self.program.copy(R6, R1);
        if self.kind != ProgramKind::Xdp {
            self.returned(mark);
        }
        self.ingress(maps, taken);
        self.open();
        self.tag(maps, taken);
        self.reach(IP4_END, short);
        self.station();
        let program = &mut self.program;
        program.load(Size::Half, R2, R7, ETHERTYPE);
        program.jump_if(R2, When::Equal, in_machine_order(ethernet::IPV6), ip6);
        program.jump_if(R2, When::Equal, in_machine_order(ethernet::MPLS), labelled);
        program.jump_if(R2, When::NotEqual, in_machine_order(ethernet::IPV4), keep);
        program.load(Size::Byte, R2, R7, IP4_DESTINATION);
        program.jump_if(R2, When::Greater, i32::from(*GROUPS4.end()), keep);
        program.jump_if(R2, When::Greater, i32::from(*GROUPS4.start()) - 1, group4);
        keep_to_stations(program, keep);
        program.here(group4);
        program.store(Size::Word, R10, KEY_ADDRESS, R9);
        copy_words(program, IP4_DESTINATION, 1);
        look_up(program, &maps.local4, KEY_ADDRESS);
        program.jump_if(R0, When::Equal, 0, foreign4);
        self.claim4(claimed);

        // The kernel keeps what is for a group that no tunnel is in.
        let program = &mut self.program;
        program.here(foreign4);
        program.load(Size::Byte, R2, R7, IP4_DESTINATION);
        program.jump_if(R2, When::Greater, i32::from(*GROUPS4.start()) - 1, keep);
        program.jump(taken);

        self.program.here(ip6);
        self.reach(IP6_END, keep);
        let program = &mut self.program;
        program.load(Size::Byte, R2, R7, IP6_DESTINATION);
        program.jump_if(R2, When::Equal, i32::from(GROUPS6), group6);
        keep_to_stations(program, keep);
        program.here(group6);
        let not_icmp = program.label();
        program.load(Size::Byte, R2, R7, IP6_NEXT_HEADER);
        program.jump_if(R2, When::NotEqual, i32::from(underpass_packet::protocol::ICMPV6), not_icmp);
        self.reach(IP6_END + 1, keep);
        let program = &mut self.program;
        let not_nd = not_icmp;
        program.load(Size::Byte, R2, R7, ICMP6_TYPE);
        program.jump_if(R2, When::Less, i32::from(*ND.start()), not_nd);
        program.jump_if(R2, When::Less, i32::from(*ND.end()) + 1, keep);
        program.here(not_nd);
        program.store(Size::Word, R10, KEY_ADDRESS, R9);
        copy_words(program, IP6_DESTINATION, 4);
        look_up(program, &maps.local6, KEY_ADDRESS);
        program.jump_if(R0, When::Equal, 0, foreign6);
        self.claim6(claimed);

        let program = &mut self.program;
        program.here(foreign6);
        program.load(Size::Byte, R2, R7, IP6_DESTINATION);
        program.jump_if(R2, When::Equal, i32::from(GROUPS6), keep);
        program.jump(taken);

        let program = &mut self.program;
        program.here(claimed);
        look_up(program, &maps.claims, KEY_ADDRESS);
        program.jump_if(R0, When::Equal, 0, keep);
        program.jump(taken);

        // Labels need not have an IP header behind them.
        program.here(short);
        self.reach(ETHERNET_END, keep);
        self.station();
        let program = &mut self.program;
        program.load(Size::Half, R2, R7, ETHERTYPE);
        program.jump_if(R2, When::NotEqual, in_machine_order(ethernet::MPLS), keep);
        program.here(labelled);
        keep_to_stations(program, keep);
        program.load(Size::Word, R2, R10, FLAGS);
        program.jump_if(R2, When::Bits, LABELS.cast_signed(), taken);
        program.jump(keep);
        program.here(taken);
    }

    /// The kernel keeps what comes back from a worker, whose mark nobody else is to see.
    fn returned(&mut self, mark: i32) {
        let program = &mut self.program;
        let not_ours = program.label();
        program.load(Size::Word, R2, R6, sk_buff::MARK);
        program.jump_if(R2, When::NotEqual, mark, not_ours);
        if self.kind == ProgramKind::Classifier {
            program.set(R2, 0);
            program.store(Size::Word, R6, sk_buff::MARK, R2);
        }
        program.jump(self.keep);
        program.here(not_ours);
    }

    /// Notes what is known of the device that the frame came in by; its domain is in R9. The kernel keeps what comes in by
    /// a device of which nothing is known. Jumps to `taken` if a worker gets all frames.
    fn ingress(&mut self, maps: &Maps, taken: Label) {
        let program = &mut self.program;
        let ingress = if self.kind == ProgramKind::Xdp { xdp_md::INGRESS_IFINDEX } else { sk_buff::IFINDEX };
        program.load(Size::Word, R2, R6, ingress);
        program.store(Size::Word, R10, KEY_INGRESS, R2);
        look_up(program, &maps.devices, KEY_INGRESS);
        program.jump_if(R0, When::Equal, 0, self.keep);
        program.load(Size::Word, R9, R0, DEVICE_DOMAIN);
        program.load(Size::Word, R2, R0, DEVICE_FLAGS);
        program.store(Size::Word, R10, FLAGS, R2);
        program.jump_if(R2, When::Bits, ALL.cast_signed(), taken);
    }

    /// Notes for whom the frame is. Before XDP looks behind a tag it has done that.
    fn station(&mut self) {
        if self.kind != ProgramKind::Xdp {
            self.station_at_start();
        }
    }

    fn station_at_start(&mut self) {
        let program = &mut self.program;
        program.load(Size::Byte, R2, R7, 0);
        program.store(Size::Byte, R10, STATION, R2);
    }

    /// Passes over a priority tag. Of a frame with another tag the kernel has taken that off, except before XDP: the
    /// kernel keeps it, and a socket gets it too (`taken`) if the kernel has no device for the VLAN.
    fn tag(&mut self, maps: &Maps, taken: Label) {
        let untagged = self.program.label();
        if self.kind == ProgramKind::Xdp {
            self.reach(ETHERNET_END, self.keep);
            self.station_at_start();
            self.reach(ETHERNET_END + TAG_LEN, untagged);
            let (tagged, keep) = (self.program.label(), self.keep);
            let program = &mut self.program;
            program.load(Size::Half, R2, R7, ETHERTYPE);
            program.jump_if(R2, When::Equal, in_machine_order(ethernet::VLAN), tagged);
            program.jump_if(R2, When::NotEqual, in_machine_order(ethernet::SERVICE_VLAN), untagged);
            program.here(tagged);
            program.load(Size::Half, R2, R7, TAG);
            program.jump_if(R2, When::Bits, in_machine_order(VLAN_ID), keep);
            // The addresses are not looked at any more.
            self.program.add(R7, TAG_LEN);
        } else {
            let keep = self.keep;
            let program = &mut self.program;
            program.load(Size::Word, R2, R6, sk_buff::VLAN_PRESENT);
            program.jump_if(R2, When::Equal, 0, untagged);
            program.load(Size::Word, R2, R6, sk_buff::VLAN_TCI);
            program.and(R2, i32::from(VLAN_ID));
            program.jump_if(R2, When::Equal, 0, untagged);
            if self.vlans {
                program.store(Size::Half, R10, KEY_VLAN + 4, R2);
                program.load(Size::Word, R2, R10, KEY_INGRESS);
                program.store(Size::Word, R10, KEY_VLAN, R2);
                program.load(Size::Word, R2, R6, sk_buff::VLAN_PROTO);
                program.store(Size::Half, R10, KEY_VLAN + 6, R2);
                look_up(program, &maps.vlans, KEY_VLAN);
                program.jump_if(R0, When::Equal, 0, taken);
            }
            program.jump(keep);
        }
        self.program.here(untagged);
    }

    /// Writes the claim that there must be for a worker to get this IPv4 packet, and jumps to `claimed`; to `keep`
    /// if no claim can be on it. See [`crate::kernel_frames::Claim`].
    fn claim4(&mut self, claimed: Label) {
        let (udp, icmp, error) = (self.program.label(), self.program.label(), self.program.label());
        self.claim(4, IP4 + PROTOCOL);
        let program = &mut self.program;
        program.jump_if(R9, When::Equal, i32::from(protocol::UDP), udp);
        program.jump_if(R9, When::Equal, i32::from(protocol::ICMP), icmp);
        program.jump(claimed);

        program.here(udp);
        let fragment = self.program.label();
        self.plain4(IP4);
        self.whole4(fragment);
        self.port(IP4 + IP4_PORT, claimed);

        let program = &mut self.program;
        program.here(fragment);
        program.set(R2, i32::from(protocol::FRAGMENT));
        program.store(Size::Byte, R10, KEY_ADDRESS + 1, R2);
        program.jump(claimed);

        self.program.here(icmp);
        self.plain4(IP4);
        self.whole4(self.keep);
        self.reach(i32::from(IP4_QUOTED + PROTOCOL) + 1, self.keep);
        let program = &mut self.program;
        program.load(Size::Byte, R2, R7, ICMP4_TYPE);
        for kind in ERRORS4 {
            program.jump_if(R2, When::Equal, i32::from(kind), error);
        }
        program.jump(self.keep);
        program.here(error);
        self.claim(4 | QUOTED, IP4_QUOTED + PROTOCOL);
        self.program.jump_if(R9, When::NotEqual, i32::from(protocol::UDP), claimed);
        self.plain4(IP4_QUOTED);
        self.port(IP4_QUOTED + IP4_PORT, claimed);
    }

    /// The kernel keeps IPv4 with options.
    fn plain4(&mut self, at: i16) {
        self.program.load(Size::Byte, R2, R7, at);
        self.program.jump_if(R2, When::NotEqual, 0x45, self.keep);
    }

    /// Jumps to `other` if it is a fragment.
    fn whole4(&mut self, other: Label) {
        self.program.load(Size::Half, R2, R7, IP4 + FRAGMENT);
        self.program.jump_if(R2, When::Bits, in_machine_order(0x3fff), other);
    }

    /// As [`Self::claim4`], for IPv6.
    fn claim6(&mut self, claimed: Label) {
        let (icmp, options) = (self.program.label(), self.program.label());
        self.claim(6, IP6_PAYLOAD + NEXT_HEADER);
        self.program.jump_if(R9, When::Equal, i32::from(protocol::ICMPV6), icmp);
        self.program.jump_if(R9, When::Equal, i32::from(protocol::HOP_BY_HOP), options);
        self.behind_options(IP6_PAYLOAD, claimed);

        // The kernel keeps those for an address of the link, and for groups.
        let keep = self.keep;
        let program = &mut self.program;
        program.here(options);
        program.load(Size::Byte, R2, R7, IP6_DESTINATION);
        program.jump_if(R2, When::Equal, i32::from(GROUPS6), keep);
        program.jump_if(R2, When::NotEqual, 0xfe, claimed);
        program.load(Size::Byte, R2, R7, IP6_DESTINATION + 1);
        program.jump_if(R2, When::Less, 0x80, claimed);
        program.jump_if(R2, When::Greater, 0xbf, claimed);
        program.jump(self.keep);

        self.program.here(icmp);
        self.reach(i32::from(IP6_PAYLOAD_QUOTED + NEXT_HEADER) + 1, self.keep);
        let program = &mut self.program;
        program.load(Size::Byte, R2, R7, ICMP6_TYPE);
        program.jump_if(R2, When::Greater, i32::from(INFORMATION6) - 1, self.keep);
        self.claim(6 | QUOTED, IP6_PAYLOAD_QUOTED + NEXT_HEADER);
        self.behind_options(IP6_PAYLOAD_QUOTED, claimed);
    }

    /// Completes the claim on what follows an IPv6 header, whose next header is in R9.
    fn behind_options(&mut self, payload: i16, claimed: Label) {
        let (udp, options) = (self.program.label(), self.program.label());
        let (fragment, behind) = (self.program.label(), self.program.label());
        let program = &mut self.program;
        program.jump_if(R9, When::Equal, i32::from(protocol::UDP), udp);
        program.jump_if(R9, When::Equal, i32::from(protocol::DESTINATION_OPTIONS), options);
        program.jump_if(R9, When::Equal, i32::from(protocol::FRAGMENT), fragment);
        program.jump(claimed);

        program.here(udp);
        self.port(payload + 2, claimed);

        self.program.here(options);
        self.reach(i32::from(payload) + 8, self.keep);
        let program = &mut self.program;
        program.load(Size::Byte, R2, R7, payload + 1);
        program.jump_if(R2, When::NotEqual, 0, self.keep);
        program.load(Size::Byte, R9, R7, payload);
        program.store(Size::Byte, R10, KEY_ADDRESS + 1, R9);
        program.jump_if(R9, When::Equal, i32::from(protocol::FRAGMENT), behind);
        program.jump_if(R9, When::NotEqual, i32::from(protocol::UDP), claimed);
        self.port(payload + 8 + 2, claimed);

        // All fragments say which protocol it is.
        for (label, at) in [(fragment, payload), (behind, payload + 8)] {
            self.program.here(label);
            self.reach(i32::from(at) + 8, self.keep);
            let program = &mut self.program;
            program.load(Size::Byte, R9, R7, at);
            program.jump_if(R9, When::Equal, i32::from(protocol::UDP), claimed);
            program.store(Size::Byte, R10, KEY_ADDRESS + 1, R9);
            program.jump(claimed);
        }
    }

    /// Begins a claim on the protocol whose number is at this place, which R9 becomes.
    fn claim(&mut self, family: u8, protocol: i16) {
        let program = &mut self.program;
        program.set(R2, i32::from(family));
        program.store(Size::Byte, R10, KEY_ADDRESS, R2);
        program.load(Size::Byte, R9, R7, protocol);
        program.store(Size::Byte, R10, KEY_ADDRESS + 1, R9);
        program.set(R2, 0);
        program.store(Size::Half, R10, KEY_ADDRESS + 2, R2);
    }

    /// Completes a claim with the UDP port at this place.
    fn port(&mut self, at: i16, claimed: Label) {
        self.reach(i32::from(at) + 2, self.keep);
        let program = &mut self.program;
        program.load(Size::Half, R2, R7, at);
        program.store(Size::Half, R10, KEY_ADDRESS + 2, R2);
        program.jump(claimed);
    }

    /// R7 becomes the start of the frame; of XDP, R8 its end.
    fn open(&mut self) {
        let program = &mut self.program;
        if self.kind == ProgramKind::Xdp {
            program.load(Size::Word, R7, R6, xdp_md::DATA);
            program.load(Size::Word, R8, R6, xdp_md::DATA_END);
            return;
        }
        program.copy(R7, R10);
        program.add(R7, i32::from(FRAME));
    }

    /// Makes the first `len` bytes of the frame readable at R7; of a shorter frame, jumps to `short`.
    fn reach(&mut self, len: i32, short: Label) {
        let program = &mut self.program;
        if self.kind == ProgramKind::Xdp {
            program.copy(R2, R7);
            program.add(R2, len);
            return program.jump_if_register(R2, When::Greater, R8, short);
        }
        program.copy(R1, R6);
        program.set(R2, 0);
        program.copy(R3, R7);
        program.set(R4, len);
        program.call(SKB_LOAD_BYTES);
        program.jump_if(R0, When::NotEqual, 0, short);
    }
}

/// Jumps to `keep` if the frame is for a group of stations.
fn keep_to_stations(program: &mut Program, keep: Label) {
    program.load(Size::Byte, R2, R10, STATION);
    program.jump_if(R2, When::Bits, TO_STATIONS, keep);
}

/// R0 becomes the address of the entry with the key at `key` of the stack, or 0.
fn look_up(program: &mut Program, map: &Map, key: i16) {
    program.map(R1, map);
    program.copy(R2, R10);
    program.add(R2, i32::from(key));
    program.call(MAP_LOOKUP_ELEM);
}

/// Copies words of the frame behind the domain of the address key.
fn copy_words(program: &mut Program, from: i16, words: i16) {
    const THROUGH: Register = R2;
    for word in 0..words {
        program.load(Size::Word, THROUGH, R7, from + 4 * word);
        program.store(Size::Word, R10, KEY_ADDRESS + 4 + 4 * word, THROUGH);
    }
}

/// What a load of two bytes of the frame gives for this number.
fn in_machine_order(number: u16) -> i32 {
    i32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

/// The descriptor that `SO_ATTACH_BPF` wants.
pub(crate) fn descriptor(program: &OwnedFd) -> i32 {
    program.as_raw_fd()
}
