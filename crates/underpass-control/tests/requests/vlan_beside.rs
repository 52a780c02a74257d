//! VLAN devices beside a kernel: its own where it has them, else devices that the router makes, which follow the link below.

use std::sync::{Arc, Mutex};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST};
use underpass_control::{Client, Device, Namespace, Protocol, Replies, RequestError, Router, translate};
use underpass_engine::tables::Writer;
use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_netlink::{Attribute, Message, messages};

const LOWER: u32 = 2;
const MADE: u32 = 50;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const UP: u32 = (libc::IFF_UP | libc::IFF_LOWER_UP) as u32;

/// What was requested of the kernel.
#[derive(Clone, PartialEq, Debug)]
enum Done {
    Made(String, Device),
    Requested { kind: u16, index: u32, flags: [u32; 2], attributes: Vec<(u16, Vec<u8>)> },
    Removed(u32),
}

/// A kernel that does all, but for VLAN devices if it has none.
struct Kernel {
    has_vlans: bool,
    done: Arc<Mutex<Vec<Done>>>,
}

impl Namespace for Kernel {
    fn request(&mut self, message: &mut [u8]) -> Result<(), RequestError> {
        let message = messages(message).next().unwrap();
        let word = |at: usize| u32::from_ne_bytes(*message.body()[at..].first_chunk().unwrap());
        let attributes: Vec<(u16, Vec<u8>)> =
            message.attributes(16).map(|attribute| (attribute.kind, attribute.value.to_vec())).collect();
        let of = |kind: u16| attributes.iter().any(|(found, _)| *found == kind);
        if of(libc::IFLA_LINKINFO) && !self.has_vlans {
            return Err(RequestError::errno(libc::EOPNOTSUPP));
        }
        if of(libc::IFLA_LINKINFO) && !of(libc::IFLA_LINK) {
            return Err(RequestError::errno(libc::EINVAL));
        }
        let done =
            Done::Requested { kind: message.kind, index: word(4), flags: [word(8), word(12)], attributes };
        self.done.lock().unwrap().push(done);
        Ok(())
    }

    fn make(&mut self, name: &str, device: Device) -> Result<u32, RequestError> {
        self.done.lock().unwrap().push(Done::Made(name.to_owned(), device));
        Ok(MADE)
    }

    fn remove(&mut self, index: u32) {
        self.done.lock().unwrap().push(Done::Removed(index));
    }
}

struct Lab {
    router: Router,
    client: Client,
    done: Arc<Mutex<Vec<Done>>>,
}

impl Lab {
    fn new(has_vlans: bool) -> Self {
        let done = Arc::<Mutex<Vec<Done>>>::default();
        let mut router = Router::live(Writer::new(1).0);
        router.set_namespace(Box::new(Kernel { has_vlans, done: Arc::clone(&done) }));
        let mut lab = Self { router, client: Client::new(Protocol::Route, 77), done };
        lab.tell(libc::RTM_NEWLINK, LOWER, "v0", UP, 1500);
        lab
    }

    /// The kernel says something of a link.
    fn tell(&mut self, kind: u16, index: u32, name: &str, flags: u32, mtu: u32) {
        let mut bytes = Vec::new();
        write_message(&mut bytes, kind, 0, Address { port: 0, sequence: 1 }, |message| {
            message.fixed(&header(index, flags, 0));
            message.text(libc::IFLA_IFNAME, name);
            message.attribute(libc::IFLA_ADDRESS, &MAC);
            message.u32(libc::IFLA_MTU, mtu);
        })
        .unwrap();
        messages(&bytes).for_each(|message| self.router.mirror(&message));
    }

    /// A program asks for something; the errno of the answer.
    fn ask(&mut self, flags: u16, write: impl FnOnce(&mut Reply<'_>)) -> i32 {
        let mut bytes = Vec::new();
        let flags = flags | NLM_F_REQUEST | NLM_F_ACK;
        write_message(&mut bytes, libc::RTM_NEWLINK, flags, Address { port: 0, sequence: 9 }, write).unwrap();
        let mut replies = Replies::default();
        self.router.request(&mut self.client, &bytes, &mut replies);
        let answer: Vec<u8> = replies.iter().flatten().copied().collect();
        let last: Message<'_> = messages(&answer).last().unwrap();
        -i32::from_ne_bytes(*last.body().first_chunk().unwrap())
    }

    /// `ip link add link v0 name v0.10 type vlan id 10`.
    fn add(&mut self) -> i32 {
        self.ask(NLM_F_CREATE | NLM_F_EXCL, |message| {
            message.fixed(&header(0, 0, 0));
            message.text(libc::IFLA_IFNAME, "v0.10");
            message.u32(libc::IFLA_LINK, LOWER);
            let info = message.nest(libc::IFLA_LINKINFO);
            message.text(libc::IFLA_INFO_KIND, "vlan");
            let data = message.nest(libc::IFLA_INFO_DATA);
            message.u16(1, 10);
            message.end(data);
            message.end(info);
        })
    }

    fn done(&self) -> Vec<Done> {
        std::mem::take(&mut self.done.lock().unwrap())
    }
}

fn header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&change.to_ne_bytes());
    header
}

#[test]
fn a_kernel_that_has_them_makes_them() {
    let mut lab = Lab::new(true);
    assert_eq!(lab.add(), 0);
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
    assert_eq!(lab.add(), 0);
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
    assert_eq!(lab.add(), 0);
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
