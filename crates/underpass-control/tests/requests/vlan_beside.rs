//! VLAN devices beside a kernel: its own where it has them, else devices that the router makes, which follow the link below.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use underpass_control::{Device, translate};
use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_netlink::{Attribute, messages};

use crate::common::beside::{Done, LOWER, Lab, MAC, MADE, UP, header, info};

/// `ip link add link v0 name v0.10 type vlan id 10`.
fn add(lab: &mut Lab) -> i32 {
    lab.ask(NLM_F_CREATE | NLM_F_EXCL, |message| {
        message.fixed(&header(0, 0, 0));
        message.text(libc::IFLA_IFNAME, "v0.10");
        message.u32(libc::IFLA_LINK, LOWER);
        info(message, "vlan", |message| message.u16(1, 10));
    })
}

#[test]
fn a_kernel_that_has_them_makes_them() {
    let mut lab = Lab::new(true);
    assert_eq!(add(&mut lab), 0);
    let [Done::Requested { kind: libc::RTM_NEWLINK, attributes, .. }] = &lab.done()[..] else {
        panic!("the kernel has not got the request alone");
    };
    let kinds: Vec<u16> = attributes.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [libc::IFLA_IFNAME, libc::IFLA_LINK, libc::IFLA_LINKINFO]);
    assert!(lab.router.devices().next().is_none());
}

#[test]
fn the_routers_follow_the_link_below() {
    let mut lab = Lab::new(false);
    assert_eq!(add(&mut lab), 0);
    let [Done::Made(name, Device::Vlan), Done::Requested { index: MADE, attributes, .. }] = &lab.done()[..]
    else {
        panic!("no device is made");
    };
    assert_eq!(name, "v0.10");
    let expected = [(libc::IFLA_MTU, 1500u32.to_ne_bytes().to_vec()), (libc::IFLA_ADDRESS, MAC.to_vec())];
    assert_eq!(attributes[..], expected);
    lab.tell(libc::RTM_NEWLINK, MADE, "v0.10", UP, 1500);
    let made = lab.router.link(MADE).unwrap().vlan.clone().unwrap();
    assert_eq!((made.lower, made.tag.id, made.inherits_mac), (LOWER, 10, true));

    // The link below goes down: so does the device, which cannot come up before it.
    lab.tell(libc::RTM_NEWLINK, LOWER, "v0", 0, 1500);
    let up = libc::IFF_UP as u32;
    let follows = |flags: [u32; 2], attributes: &[(u16, Vec<u8>)]| {
        vec![Done::Requested { kind: libc::RTM_SETLINK, index: MADE, flags, attributes: attributes.to_vec() }]
    };
    assert_eq!(lab.done(), follows([0, up], &[]));
    lab.tell(libc::RTM_NEWLINK, MADE, "v0.10", 0, 1500);
    let rise = |message: &mut Reply<'_>| message.fixed(&header(MADE, up, up));
    assert_eq!(lab.ask(0, rise), libc::ENETDOWN);
    assert_eq!(lab.done(), []);

    // It comes up with a smaller MTU.
    lab.tell(libc::RTM_NEWLINK, LOWER, "v0", UP, 1400);
    let smaller = (libc::IFLA_MTU, 1400u32.to_ne_bytes().to_vec());
    assert_eq!(lab.done(), follows([up, up], &[smaller, (libc::IFLA_CARRIER, vec![1])]));
    lab.tell(libc::RTM_NEWLINK, MADE, "v0.10", UP, 1400);
    let larger = |message: &mut Reply<'_>| {
        message.fixed(&header(MADE, 0, 0));
        message.u32(libc::IFLA_MTU, 1500);
    };
    assert_eq!(lab.ask(0, larger), libc::ERANGE);

    // An address of its own it keeps; the carrier is that of the link below.
    let address = |message: &mut Reply<'_>| {
        message.fixed(&header(MADE, 0, 0));
        message.attribute(libc::IFLA_ADDRESS, &[2, 9, 9, 9, 9, 9]);
    };
    assert_eq!(lab.ask(0, address), 0);
    assert!(!lab.router.link(MADE).unwrap().vlan.as_ref().unwrap().inherits_mac);
    lab.done();
    lab.tell(libc::RTM_NEWLINK, LOWER, "v0", up, 1400);
    assert_eq!(lab.done(), follows([0, 0], &[(libc::IFLA_CARRIER, vec![0])]));

    // It goes with the link below.
    lab.tell(libc::RTM_DELLINK, LOWER, "v0", 0, 1400);
    assert_eq!(lab.done(), [Done::Removed(MADE)]);
    assert!(lab.router.link(MADE).is_none() && lab.router.devices().next().is_none());
}

/// The value of an attribute inside another.
fn inner<'a>(of: &Attribute<'a>, kind: u16) -> &'a [u8] {
    of.nested().find(|inner| inner.kind == kind).unwrap().value
}

/// What is shown of the device is a VLAN device.
#[test]
fn the_routers_are_shown_as_vlan_devices() {
    let mut lab = Lab::new(false);
    assert_eq!(add(&mut lab), 0);
    let mut bytes = Vec::new();
    write_message(&mut bytes, libc::RTM_NEWLINK, 0, Address { port: 0, sequence: 1 }, |message| {
        message.fixed(&header(MADE, UP, 0));
        message.text(libc::IFLA_IFNAME, "v0.10");
    })
    .unwrap();
    let shown = translate(&lab.router, &messages(&bytes).next().unwrap()).unwrap();
    let message = messages(&shown).next().unwrap();
    let of = |kind: u16| message.attributes(16).find(|attribute| attribute.kind == kind);
    assert_eq!(of(libc::IFLA_LINK).map(|lower| lower.u32()), Some(LOWER));
    let info = of(libc::IFLA_LINKINFO).unwrap();
    assert_eq!(inner(&info, libc::IFLA_INFO_KIND), b"vlan\0");
    let data = info.nested().find(|inner| inner.kind == libc::IFLA_INFO_DATA).unwrap();
    assert_eq!(inner(&data, 1), 10u16.to_ne_bytes());
    assert_eq!(inner(&data, 5), 0x8100u16.to_be_bytes());
}
