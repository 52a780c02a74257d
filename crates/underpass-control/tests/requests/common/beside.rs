//! A router beside a kernel that writes down what is requested of it.

use std::sync::{Arc, Mutex};

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};
use underpass_control::{Client, Device, Namespace, Protocol, Replies, RequestError, Router};
use underpass_engine::tables::Writer;
use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_netlink::{Message, messages};

/// The link that the kernel has at first.
pub const LOWER: u32 = 2;
/// The device that the router makes.
pub const MADE: u32 = 50;
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const UP: u32 = (libc::IFF_UP | libc::IFF_LOWER_UP) as u32;

/// What was requested of the kernel.
#[derive(Clone, PartialEq, Debug)]
pub enum Done {
    Made(String, Device),
    Requested { kind: u16, index: u32, flags: [u32; 2], attributes: Vec<(u16, Vec<u8>)> },
    Removed(u32),
    Kept(String, bool),
}

/// A kernel that does all, but makes no devices if it has not the kind of these.
struct Kernel {
    has_kind: Arc<Mutex<bool>>,
    has_program: Arc<Mutex<bool>>,
    done: Arc<Mutex<Vec<Done>>>,
}

impl Namespace for Kernel {
    fn speed(&self, name: &str) -> Option<u32> {
        (name == "v1").then_some(1000)
    }

    fn keep_spanning_tree(&mut self, bridge: &str, starts: bool) -> bool {
        self.done.lock().unwrap().push(Done::Kept(bridge.to_owned(), starts));
        *self.has_program.lock().unwrap()
    }

    fn request(&mut self, message: &mut [u8]) -> Result<(), RequestError> {
        let message = messages(message).next().unwrap();
        let word = |at: usize| u32::from_ne_bytes(*message.body()[at..].first_chunk().unwrap());
        let attributes: Vec<(u16, Vec<u8>)> =
            message.attributes(16).map(|attribute| (attribute.kind, attribute.value.to_vec())).collect();
        let of = |kind: u16| attributes.iter().any(|(found, _)| *found == kind);
        if of(libc::IFLA_LINKINFO) && !*self.has_kind.lock().unwrap() {
            return Err(RequestError::errno(libc::EOPNOTSUPP));
        }
        // A request that only asks whether there are such devices has no name for one.
        if of(libc::IFLA_LINKINFO) && !of(libc::IFLA_IFNAME) {
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

/// The router, a program that asks it, and what it has requested.
pub struct Lab {
    pub router: Router,
    client: Client,
    has_kind: Arc<Mutex<bool>>,
    has_program: Arc<Mutex<bool>>,
    done: Arc<Mutex<Vec<Done>>>,
}

impl Lab {
    pub fn new(has_kind: bool) -> Self {
        let (done, has_kind) = (Arc::<Mutex<Vec<Done>>>::default(), Arc::new(Mutex::new(has_kind)));
        let has_program = Arc::<Mutex<bool>>::default();
        let mut router = Router::live(Writer::new(1).0);
        router.set_namespace(Box::new(Kernel {
            has_kind: Arc::clone(&has_kind),
            has_program: Arc::clone(&has_program),
            done: Arc::clone(&done),
        }));
        let client = Client::new(Protocol::Route, 77);
        let mut lab = Self { router, client, has_kind, has_program, done };
        lab.tell(libc::RTM_NEWLINK, LOWER, "v0", UP, 1500);
        lab
    }

    /// The kernel says something of a link.
    pub fn tell(&mut self, kind: u16, index: u32, name: &str, flags: u32, mtu: u32) {
        self.tell_mac(kind, (index, name), (flags, mtu), MAC);
    }

    /// The same of one with this address.
    pub fn tell_mac(
        &mut self,
        kind: u16,
        (index, name): (u32, &str),
        (flags, mtu): (u32, u32),
        mac: [u8; 6],
    ) {
        let mut bytes = Vec::new();
        write_message(&mut bytes, kind, 0, Address { port: 0, sequence: 1 }, |message| {
            message.fixed(&header(index, flags, 0));
            message.text(libc::IFLA_IFNAME, name);
            message.attribute(libc::IFLA_ADDRESS, &mac);
            message.u32(libc::IFLA_MTU, mtu);
        })
        .unwrap();
        messages(&bytes).for_each(|message| self.router.mirror(&message));
    }

    /// A program asks for a link; the errno of the answer.
    pub fn ask(&mut self, flags: u16, write: impl FnOnce(&mut Reply<'_>)) -> i32 {
        self.request(libc::RTM_NEWLINK, flags, write)
    }

    /// A program asks for something; the errno of the answer.
    pub fn request(&mut self, kind: u16, flags: u16, write: impl FnOnce(&mut Reply<'_>)) -> i32 {
        let mut bytes = Vec::new();
        let flags = flags | NLM_F_REQUEST | NLM_F_ACK;
        write_message(&mut bytes, kind, flags, Address { port: 0, sequence: 9 }, write).unwrap();
        let mut replies = Replies::default();
        self.router.request(&mut self.client, &bytes, &mut replies);
        let answer: Vec<u8> = replies.iter().flatten().copied().collect();
        let last: Message<'_> = messages(&answer).last().unwrap();
        -i32::from_ne_bytes(*last.body().first_chunk().unwrap())
    }

    /// From now on the kernel makes devices of any kind, or none.
    pub fn set_kinds(&mut self, has: bool) {
        *self.has_kind.lock().unwrap() = has;
    }

    /// From now on a program keeps spanning trees.
    pub fn set_program(&mut self) {
        *self.has_program.lock().unwrap() = true;
    }

    /// What was requested since this was last asked.
    pub fn done(&self) -> Vec<Done> {
        std::mem::take(&mut self.done.lock().unwrap())
    }
}

/// `struct ifinfomsg`.
pub fn header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&change.to_ne_bytes());
    header
}

/// The kind of a link and what else makes it one, for a request.
pub fn info(message: &mut Reply<'_>, kind: &str, write: impl FnOnce(&mut Reply<'_>)) {
    let info = message.nest(libc::IFLA_LINKINFO);
    message.text(libc::IFLA_INFO_KIND, kind);
    let data = message.nest(libc::IFLA_INFO_DATA);
    write(message);
    message.end(data);
    message.end(info);
}
