//! Bridges with spanning trees beside a kernel: what the router makes of ports, says and hears, and what a program decides.

use std::time::Duration;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use underpass_netlink::bridge::{BLOCKING, DISABLED, FORWARDING, LEARNING, LISTENING, SpanningTree};
use underpass_packet::bpdu::{Bpdu, Configuration};

use crate::common::beside::{Done, LOWER, Lab, MAC, MADE, UP, header, info};

const OTHER: u32 = 3;
const OTHERS_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xf];
const GROUP: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];

const IFLA_BR_FORWARD_DELAY: u16 = 1;
const IFLA_BR_STP_STATE: u16 = 5;
const IFLA_BRPORT_STATE: u16 = 1;
const IFLA_BRPORT_GUARD: u16 = 5;

/// `ip link set br0 type bridge …`, of numbers.
fn set(lab: &mut Lab, numbers: &[(u16, u32)]) -> i32 {
    lab.ask(0, |message| {
        message.fixed(&header(MADE, 0, 0));
        info(message, "bridge", |message| {
            numbers.iter().for_each(|(kind, number)| message.u32(*kind, *number));
        });
    })
}

/// `bridge link set dev INDEX …`.
fn set_port(lab: &mut Lab, index: u32, kind: u16, value: u8) -> i32 {
    lab.request(libc::RTM_SETLINK, 0, |message| {
        let mut header = header(index, 0, 0);
        header[0] = libc::AF_BRIDGE as u8;
        message.fixed(&header);
        let data = message.nest(libc::IFLA_PROTINFO);
        message.u8(kind, value);
        message.end(data);
    })
}

/// A router with a bridge of two ports, of which the second passes 1,000 megabits a second.
fn bridged(numbers: &[(u16, u32)]) -> Lab {
    let mut lab = Lab::new(false);
    let added = lab.ask(NLM_F_CREATE | NLM_F_EXCL, |message| {
        message.fixed(&header(0, 0, 0));
        message.text(libc::IFLA_IFNAME, "br0");
        info(message, "bridge", |message| {
            numbers.iter().for_each(|(kind, number)| message.u32(*kind, *number));
        });
    });
    assert_eq!(added, 0);
    lab.tell_mac(libc::RTM_NEWLINK, (MADE, "br0"), (libc::IFF_UP as u32, 1500), [2, 9, 9, 9, 9, 9]);
    lab.tell_mac(libc::RTM_NEWLINK, (OTHER, "v1"), (UP, 1500), OTHERS_MAC);
    for port in [LOWER, OTHER] {
        let enslaved = lab.ask(0, |message| {
            message.fixed(&header(port, 0, 0));
            message.u32(libc::IFLA_MASTER, MADE);
        });
        assert_eq!(enslaved, 0);
    }
    // The bridge has the lower address of its ports when the kernel says so.
    lab.tell_mac(libc::RTM_NEWLINK, (MADE, "br0"), (libc::IFF_UP as u32, 1500), MAC);
    lab.router.take_bridge_frames();
    lab
}

fn states(lab: &Lab) -> [u8; 2] {
    [LOWER, OTHER].map(|port| lab.router.link(port).unwrap().bridge_port.as_ref().unwrap().settings.state)
}

fn tree_of(lab: &Lab) -> SpanningTree {
    lab.router.link(MADE).unwrap().bridge.as_ref().unwrap().settings.spanning_tree
}

/// What a better bridge says, as one who is so far from the root.
fn better(cost: u32) -> Configuration {
    let root = [0, 1, 2, 0, 0, 0, 0, 0];
    Configuration {
        root,
        root_path_cost: cost,
        bridge: root,
        port: 0x8001,
        max_age: 20 * 256,
        hello_time: 2 * 256,
        forward_delay: 15 * 256,
        ..Configuration::default()
    }
}

#[test]
fn what_closes_a_circle_is_blocked() {
    let mut lab = bridged(&[(IFLA_BR_STP_STATE, 1)]);
    assert_eq!(states(&lab), [LISTENING; 2]);
    let mut ports: Vec<u32> = lab.router.spanning_tree_ports().collect();
    ports.sort_unstable();
    assert_eq!(ports, [LOWER, OTHER]);
    let hear = |lab: &mut Lab, port: u32, said: Configuration| {
        lab.router.hear_bridge(port, &Bpdu::Configuration(said).frame([2; 6], GROUP));
    };
    // The way by the faster port is the better one, of two to the same root.
    hear(&mut lab, LOWER, better(0));
    hear(&mut lab, OTHER, Configuration { port: 0x8002, ..better(0) });
    assert_eq!(states(&lab), [BLOCKING, LISTENING]);
    // What is for the group of other bridges is none of its.
    let mut other = Bpdu::Configuration(better(0)).frame([2; 6], [0x01, 0x80, 0xc2, 0, 0, 8]);
    lab.router.hear_bridge(OTHER, &other);
    other.truncate(20);
    lab.router.hear_bridge(OTHER, &other);

    // The port that leads to the root goes down: the other one takes its place.
    lab.tell_mac(libc::RTM_NEWLINK, (OTHER, "v1"), (libc::IFF_UP as u32, 1500), OTHERS_MAC);
    assert_eq!(states(&lab), [LISTENING, DISABLED]);
    assert_eq!(lab.router.spanning_tree_ports().collect::<Vec<_>>(), [LOWER]);
    // One that is heard no more by a guard.
    assert_eq!(set_port(&mut lab, LOWER, IFLA_BRPORT_GUARD, 1), 0);
    hear(&mut lab, LOWER, better(0));
    assert_eq!(states(&lab), [DISABLED; 2]);
}

#[test]
fn a_root_says_hello() {
    let mut lab = bridged(&[(IFLA_BR_STP_STATE, 1), (IFLA_BR_FORWARD_DELAY, 0)]);
    // Linux: `br_stp_start`.
    let delay = lab.router.link(MADE).unwrap().bridge.as_ref().unwrap().settings.forward_delay;
    assert_eq!(delay, 200);
    let due = lab.router.pass_spanning_trees();
    assert!(due <= Duration::from_secs(2), "{due:?}");
    let worse = Configuration { root: [0xff; 8], bridge: [0xff; 8], ..better(0) };
    lab.router.hear_bridge(LOWER, &Bpdu::Configuration(worse).frame([2; 6], GROUP));
    let [(LOWER, frame)] = &lab.router.take_bridge_frames()[..] else { panic!("it does not answer") };
    assert_eq!(frame[..12], [GROUP, MAC].concat());
    let Ok(Bpdu::Configuration(said)) = Bpdu::parse(frame) else { panic!("it says something else") };
    let own = [&[0x80, 0][..], &MAC].concat();
    assert_eq!((&said.root[..], &said.bridge[..], said.port), (&own[..], &own[..], 0x8001));
    assert_eq!((said.forward_delay, said.hello_time, said.max_age), (2 * 256, 2 * 256, 20 * 256));
}

#[test]
fn what_decides_can_change() {
    let mut lab = bridged(&[]);
    assert_eq!(states(&lab), [FORWARDING; 2]);
    // What forwards goes on, and its state is no matter of requests any more.
    assert_eq!(set(&mut lab, &[(IFLA_BR_STP_STATE, 1)]), 0);
    assert_eq!((states(&lab), tree_of(&lab)), ([FORWARDING; 2], SpanningTree::Own));
    assert_eq!(set_port(&mut lab, LOWER, IFLA_BRPORT_STATE, LEARNING), libc::EBUSY);
    for (delay, errno) in [(199, libc::ERANGE), (3001, libc::ERANGE), (200, 0)] {
        assert_eq!(set(&mut lab, &[(IFLA_BR_FORWARD_DELAY, delay)]), errno);
    }
    lab.router.hear_bridge(LOWER, &Bpdu::Configuration(better(0)).frame([2; 6], GROUP));
    lab.router.hear_bridge(OTHER, &Bpdu::Configuration(better(0)).frame([2; 6], GROUP));
    assert_eq!(states(&lab), [BLOCKING, FORWARDING]);
    assert_eq!(set(&mut lab, &[(IFLA_BR_STP_STATE, 0)]), 0);
    assert_eq!((states(&lab), tree_of(&lab)), ([FORWARDING; 2], SpanningTree::Off));
    assert_eq!(lab.router.spanning_tree_ports().count(), 0);
}

/// What a guard or a request has disabled stays so when it changes who decides.
#[test]
fn what_is_disabled_stays_so() {
    let mut lab = bridged(&[(IFLA_BR_STP_STATE, 1)]);
    assert_eq!(set_port(&mut lab, OTHER, IFLA_BRPORT_GUARD, 1), 0);
    // Of an unknown type, and cut short.
    let mut odd = Bpdu::TopologyChange.frame([2; 6], GROUP);
    odd[20] = 2;
    lab.router.hear_bridge(OTHER, &odd);
    assert_eq!(states(&lab), [LISTENING, DISABLED]);
    for tree in [0, 1] {
        assert_eq!(set(&mut lab, &[(IFLA_BR_STP_STATE, tree)]), 0);
        assert_eq!(states(&lab), [FORWARDING, DISABLED]);
    }
    for flags in [libc::IFF_UP as u32, UP] {
        lab.tell_mac(libc::RTM_NEWLINK, (OTHER, "v1"), (flags, 1500), OTHERS_MAC);
    }
    assert_eq!(states(&lab), [FORWARDING, LISTENING]);
}

#[test]
fn a_program_sets_states() {
    let mut lab = bridged(&[]);
    lab.set_program();
    lab.done();
    assert_eq!(set(&mut lab, &[(IFLA_BR_STP_STATE, 1)]), 0);
    assert_eq!(lab.done(), [Done::Kept("br0".to_owned(), true)]);
    assert_eq!((states(&lab), tree_of(&lab)), ([FORWARDING; 2], SpanningTree::Program));
    for state in [BLOCKING, LEARNING, FORWARDING] {
        assert_eq!(set_port(&mut lab, LOWER, IFLA_BRPORT_STATE, state), 0);
        assert_eq!(states(&lab), [state, FORWARDING]);
    }
    // They are saved where they are not what a port begins with.
    assert_eq!(set_port(&mut lab, OTHER, IFLA_BRPORT_STATE, BLOCKING), 0);
    let saved = lab.router.save(&());
    let of_ports: Vec<&str> = saved.lines().filter(|line| line.contains(" state ")).collect();
    assert_eq!(of_ports, ["bridge link set dev v0 state 3"]);
    // One that gets a carrier waits for the program.
    for flags in [libc::IFF_UP as u32, UP] {
        lab.tell_mac(libc::RTM_NEWLINK, (OTHER, "v1"), (flags, 1500), OTHERS_MAC);
    }
    assert_eq!(states(&lab), [FORWARDING, BLOCKING]);
    assert_eq!(lab.router.spanning_tree_ports().count(), 0);
    lab.done();
    assert_eq!(set(&mut lab, &[(IFLA_BR_STP_STATE, 0)]), 0);
    assert_eq!((tree_of(&lab), &lab.done()[0]), (SpanningTree::Off, &Done::Kept("br0".to_owned(), false)));
    assert_eq!(states(&lab), [FORWARDING; 2]);
}
