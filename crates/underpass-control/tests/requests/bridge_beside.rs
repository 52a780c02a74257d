//! Bridges beside a kernel: its own where it has them, unless the router is told to make them, and devices that the router makes,
//! which follow their ports.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};
use underpass_control::{Device, Owner, Protocol, owner, translate};
use underpass_netlink::bridge::{DISABLED, FORWARDING};
use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_netlink::{Attribute, Message, messages};

use crate::common::beside::{Done, LOWER, Lab, MAC, MADE, UP, header, info};

const OTHER: u32 = 3;
const OTHERS_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xf];

/// `ip link add br0 type bridge ageing_time 2000`.
fn add(lab: &mut Lab) -> i32 {
    lab.ask(NLM_F_CREATE | NLM_F_EXCL, |message| {
        message.fixed(&header(0, 0, 0));
        message.text(libc::IFLA_IFNAME, "br0");
        info(message, "bridge", |message| message.u32(4, 2000));
    })
}

/// `ip link set dev INDEX master MASTER`.
fn enslave(lab: &mut Lab, index: u32, master: u32) -> i32 {
    lab.ask(0, |message| {
        message.fixed(&header(index, 0, 0));
        message.u32(libc::IFLA_MASTER, master);
    })
}

/// What is requested of the kernel for the bridge.
fn settled(attributes: &[(u16, Vec<u8>)]) -> Done {
    let (kind, index) = (libc::RTM_SETLINK, MADE);
    Done::Requested { kind, index, flags: [0; 2], attributes: attributes.to_vec() }
}

/// A router that has made a bridge, which the kernel has reported.
fn bridged() -> Lab {
    let mut lab = Lab::new(false);
    assert_eq!(add(&mut lab), 0);
    let up = libc::IFF_UP as u32;
    lab.tell_mac(libc::RTM_NEWLINK, (MADE, "br0"), (up, 1500), [2, 9, 9, 9, 9, 9]);
    lab.done();
    lab
}

fn state(lab: &Lab, index: u32) -> Option<u8> {
    lab.router.link(index)?.bridge_port.as_ref().map(|port| port.settings.state)
}

#[test]
fn a_kernel_that_has_them_makes_them() {
    let mut lab = Lab::new(true);
    assert_eq!(add(&mut lab), 0);
    let [Done::Requested { kind: libc::RTM_NEWLINK, attributes, .. }] = &lab.done()[..] else {
        panic!("the kernel has not got the request alone");
    };
    let kinds: Vec<u16> = attributes.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [libc::IFLA_IFNAME, libc::IFLA_LINKINFO]);
    assert!(lab.router.devices().next().is_none());
}

#[test]
fn the_router_makes_them_if_told_to() {
    for has_bridges in [true, false] {
        let mut lab = Lab::new(has_bridges);
        if has_bridges {
            lab.router.make_bridges();
        }
        assert_eq!(add(&mut lab), 0);
        let [Done::Made(name, Device::Bridge), Done::Requested { index: MADE, attributes, .. }] =
            &lab.done()[..]
        else {
            panic!("no device is made");
        };
        assert_eq!(name, "br0");
        // It has no carrier before a port forwards.
        let expected = [(libc::IFLA_MTU, 1500u32.to_ne_bytes().to_vec()), (libc::IFLA_CARRIER, vec![0])];
        assert_eq!(attributes[..], expected);
        lab.tell(libc::RTM_NEWLINK, MADE, "br0", 0, 1500);
        assert_eq!(lab.router.link(MADE).unwrap().bridge.as_ref().unwrap().settings.ageing_time, 2000);
    }
}

#[test]
fn a_bridge_follows_its_ports() {
    let mut lab = bridged();
    lab.tell_mac(libc::RTM_NEWLINK, (OTHER, "v1"), (UP, 1400), OTHERS_MAC);
    assert_eq!(enslave(&mut lab, OTHER, MADE), 0);
    // The address of its port, its MTU, and a carrier, as the port forwards.
    let mtu = (libc::IFLA_MTU, 1400u32.to_ne_bytes().to_vec());
    let mac = |mac: [u8; 6]| (libc::IFLA_ADDRESS, mac.to_vec());
    let carrier = |on: u8| (libc::IFLA_CARRIER, vec![on]);
    assert_eq!(lab.done(), [settled(&[mtu, mac(OTHERS_MAC)]), settled(&[carrier(1)])]);
    assert_eq!(state(&lab, OTHER), Some(FORWARDING));
    lab.tell_mac(libc::RTM_NEWLINK, (MADE, "br0"), (UP, 1400), OTHERS_MAC);
    assert_eq!(lab.done(), []);

    // The lower of two addresses. The kernel is told of no master.
    assert_eq!(enslave(&mut lab, LOWER, MADE), 0);
    assert_eq!(lab.done(), [settled(&[mac(MAC)])]);
    lab.tell(libc::RTM_NEWLINK, MADE, "br0", UP, 1400);
    lab.tell(libc::RTM_NEWLINK, LOWER, "v0", 0, 1500);
    assert_eq!(state(&lab, LOWER), Some(DISABLED));
    assert_eq!(lab.done(), []);

    // No port forwards any more; one is gone.
    lab.tell_mac(libc::RTM_NEWLINK, (OTHER, "v1"), (libc::IFF_UP as u32, 1400), OTHERS_MAC);
    assert_eq!(lab.done(), [settled(&[carrier(0)])]);
    lab.tell(libc::RTM_NEWLINK, MADE, "br0", libc::IFF_UP as u32, 1400);
    lab.tell(libc::RTM_DELLINK, OTHER, "v1", 0, 1400);
    let widened = (libc::IFLA_MTU, 1500u32.to_ne_bytes().to_vec());
    assert_eq!(lab.done(), [settled(&[widened])]);
    assert_eq!(enslave(&mut lab, LOWER, 0), 0);
    assert!(lab.router.link(LOWER).unwrap().bridge_port.is_none());
}

/// `ip link add NAME master br0 type veth`: the kernel hears of no master.
#[test]
fn a_link_of_the_kernels_is_made_as_a_port() {
    let mut lab = bridged();
    let make = |name: &'static str| {
        move |message: &mut Reply<'_>| {
            message.fixed(&header(0, 0, 0));
            message.text(libc::IFLA_IFNAME, name);
            message.u32(libc::IFLA_MASTER, MADE);
            info(message, "veth", |_| {});
        }
    };
    assert_eq!(lab.ask(NLM_F_CREATE | NLM_F_EXCL, make("veth%d")), libc::EOPNOTSUPP);
    assert_eq!(lab.done(), []);
    // A kernel that has no kinds refuses this one, too.
    assert_eq!(lab.ask(NLM_F_CREATE | NLM_F_EXCL, make("v1")), libc::EOPNOTSUPP);
    lab.set_kinds(true);
    assert_eq!(lab.ask(NLM_F_CREATE | NLM_F_EXCL, make("v1")), 0);
    let [Done::Requested { kind: libc::RTM_NEWLINK, attributes, .. }] = &lab.done()[..] else {
        panic!("the kernel has not got the request alone");
    };
    let kinds: Vec<u16> = attributes.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [libc::IFLA_IFNAME, libc::IFLA_LINKINFO]);
    lab.tell_mac(libc::RTM_NEWLINK, (OTHER, "v1"), (UP, 1500), OTHERS_MAC);
    assert_eq!(state(&lab, OTHER), Some(FORWARDING));
    assert_eq!(lab.router.link(OTHER).unwrap().master, Some(MADE));
}

/// What Linux refuses, and what changes nothing.
#[test]
fn what_cannot_be_a_port_is_refused() {
    let mut lab = bridged();
    lab.tell(libc::RTM_NEWLINK, 1, "lo", UP | libc::IFF_LOOPBACK as u32, 65536);
    assert_eq!(enslave(&mut lab, 1, MADE), libc::EINVAL);
    assert_eq!(enslave(&mut lab, MADE, MADE), libc::ELOOP);
    assert_eq!(enslave(&mut lab, LOWER, 77), libc::EINVAL);
    let isolated = |message: &mut Reply<'_>| {
        message.fixed(&header(LOWER, 0, 0));
        let info = message.nest(libc::IFLA_LINKINFO);
        message.text(libc::IFLA_INFO_SLAVE_KIND, "bridge");
        let data = message.nest(libc::IFLA_INFO_SLAVE_DATA);
        message.u8(33, 1);
        message.end(data);
        message.end(info);
    };
    assert_eq!(lab.ask(0, isolated), libc::EOPNOTSUPP);
    assert_eq!(lab.done(), []);
    assert_eq!(enslave(&mut lab, LOWER, MADE), 0);
    lab.done();
    // What a port is to its bridge is nothing that the kernel hears of.
    assert_eq!(lab.ask(0, isolated), 0);
    assert_eq!(lab.done(), []);
}

/// `bridge fdb add 02:00:00:00:00:77 dev v0 master static`, or another kind of request with this header, and its owner.
fn asked(kind: u16, flags: u16, write: impl FnOnce(&mut Reply<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_message(&mut bytes, kind, flags | NLM_F_REQUEST, Address { port: 0, sequence: 3 }, write).unwrap();
    bytes
}

#[test]
fn requests_go_to_whose_the_bridge_is() {
    const NEWVLAN: u16 = 112;
    const GETVLAN: u16 = 114;
    let mut lab = bridged();
    lab.tell_mac(libc::RTM_NEWLINK, (OTHER, "v1"), (UP, 1500), OTHERS_MAC);
    assert_eq!(enslave(&mut lab, LOWER, MADE), 0);
    let of_bridge = |index: u32| {
        let mut header = header(index, 0, 0);
        header[0] = libc::AF_BRIDGE as u8;
        header
    };
    let station = |index: u32, flags: u8| {
        let mut header = [0; 12];
        (header[0], header[10]) = (libc::AF_BRIDGE as u8, flags);
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header
    };
    let owned = |bytes: &[u8]| owner(&lab.router, Protocol::Route, &messages(bytes).next().unwrap());
    for (index, expected) in [(LOWER, Owner::Router), (MADE, Owner::Router), (OTHER, Owner::Kernel)] {
        for kind in [libc::RTM_SETLINK, libc::RTM_DELLINK] {
            let bytes = asked(kind, 0, |message| message.fixed(&of_bridge(index)));
            assert_eq!(owned(&bytes), expected, "{kind} of {index}");
        }
        for (kind, flags) in [(NEWVLAN, 0), (GETVLAN, NLM_F_DUMP)] {
            let bytes = asked(kind, flags, |message| message.fixed(&of_bridge(index)[..8]));
            assert_eq!(owned(&bytes), expected, "{kind} of {index}");
        }
        let bytes = asked(libc::RTM_NEWNEIGH, 0, |message| message.fixed(&station(index, libc::NTF_MASTER)));
        assert_eq!(owned(&bytes), expected, "{index}");
    }
    // The addresses that a device of the kernel's has itself are the kernel's.
    let itself = asked(libc::RTM_NEWNEIGH, 0, |message| message.fixed(&station(LOWER, libc::NTF_SELF)));
    assert_eq!(owned(&itself), Owner::Kernel);
    for (kind, index) in [(libc::RTM_GETLINK, 0), (GETVLAN, 0), (libc::RTM_GETNEIGH, 0)] {
        let bytes = asked(kind, NLM_F_DUMP, |message| message.fixed(&of_bridge(index)));
        assert_eq!(owned(&bytes), Owner::Both, "{kind}");
    }
    let of_one = asked(libc::RTM_GETNEIGH, NLM_F_DUMP, |message| {
        message.fixed(&station(0, 0));
        message.u32(libc::NDA_MASTER, MADE);
    });
    assert_eq!(owned(&of_one), Owner::Router);
    assert_eq!(
        owned(&asked(libc::RTM_GETNEIGH, 0, |message| {
            message.fixed(&station(0, 0));
            message.u32(libc::NDA_MASTER, MADE);
        })),
        Owner::Router
    );
}

/// The value of an attribute inside another.
fn inner<'a>(of: &Attribute<'a>, kind: u16) -> Attribute<'a> {
    of.nested().find(|inner| inner.kind == kind).unwrap()
}

/// What the kernel says of a link, as programs are shown it.
fn shown(lab: &Lab, index: u32, name: &str) -> Vec<u8> {
    let told = asked(libc::RTM_NEWLINK, 0, |message| {
        message.fixed(&header(index, UP, 0));
        message.text(libc::IFLA_IFNAME, name);
    });
    translate(&lab.router, &messages(&told).next().unwrap()).unwrap().into_owned()
}

#[test]
fn bridges_and_ports_are_shown_as_such() {
    let mut lab = bridged();
    assert_eq!(enslave(&mut lab, LOWER, MADE), 0);
    let of = |message: &Message<'_>, kind: u16| {
        message.attributes(16).find(|attribute| attribute.kind == kind).map(|found| found.value.to_vec())
    };
    let bytes = shown(&lab, MADE, "br0");
    let bridge = messages(&bytes).next().unwrap();
    let info = bridge.attributes(16).find(|attribute| attribute.kind == libc::IFLA_LINKINFO).unwrap();
    assert_eq!(inner(&info, libc::IFLA_INFO_KIND).value, b"bridge\0");
    let ageing = inner(&inner(&info, libc::IFLA_INFO_DATA), 4);
    assert_eq!(ageing.value, 2000u32.to_ne_bytes());

    let bytes = shown(&lab, LOWER, "v0");
    let port = messages(&bytes).next().unwrap();
    assert_eq!(of(&port, libc::IFLA_MASTER), Some(MADE.to_ne_bytes().to_vec()));
    let info = port.attributes(16).find(|attribute| attribute.kind == libc::IFLA_LINKINFO).unwrap();
    assert_eq!(inner(&info, libc::IFLA_INFO_SLAVE_KIND).value, b"bridge\0");
    assert_eq!(inner(&inner(&info, libc::IFLA_INFO_SLAVE_DATA), 1).value, [FORWARDING]);

    // The bridge goes, and its port is free.
    let delete = |message: &mut Reply<'_>| message.fixed(&header(MADE, 0, 0));
    lab.done();
    assert_eq!(lab.request(libc::RTM_DELLINK, 0, delete), 0);
    assert_eq!(lab.done(), [Done::Removed(MADE)]);
    let bytes = shown(&lab, LOWER, "v0");
    assert_eq!(of(&messages(&bytes).next().unwrap(), libc::IFLA_MASTER), None);
}
