//! A client of a router in the same process.

#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::panic)]

pub mod beside;
pub mod recorded;

use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use underpass_control::{Client, Protocol, Replies, Router};
use underpass_engine::buffer::PortId;
use underpass_engine::tables::Writer;

pub struct Lab {
    pub router: Router,
    pub client: Client,
    sequence: u32,
}

impl Lab {
    /// A router with the ports v0 and v1, as the recorded dialogues have them.
    pub fn new() -> Self {
        let mut router = Router::new(Writer::new(1).0);
        router.add_port("v0", [2, 0, 0, 0, 0, 1], PortId(0)).unwrap();
        router.add_port("v1", [2, 0, 0, 0, 0, 2], PortId(1)).unwrap();
        let mut client = Client::new(Protocol::Route, 77);
        client.extended_ack = true;
        client.strict_check = true;
        Self { router, client, sequence: 0 }
    }

    /// A router with the links of the recorded dialogues, under the same indices.
    pub fn recorded() -> Self {
        let router = Router::new(Writer::new(1).0);
        let mut client = Client::new(Protocol::Route, 77);
        client.extended_ack = true;
        client.strict_check = true;
        let mut lab = Self { router, client, sequence: 0 };
        for index in 2..=12 {
            lab.make("filler", "dummy", 0, &[]);
            let mut link = LinkMessage::default();
            link.header.index = index;
            lab.change(RouteNetlinkMessage::DelLink(link), 0).unwrap();
        }
        for (port, name) in ["v0p", "v0", "v1p", "v1"].into_iter().enumerate() {
            let index =
                lab.router.add_port(name, [2, 0, 0, 0, 0, port as u8 + 1], PortId(port as u16)).unwrap();
            lab.change(up(index), 0).unwrap();
        }
        lab.make("vrf100", "vrf", 17, &100u32.to_ne_bytes());
        lab.change(up(17), 0).unwrap();
        for (link, local, len) in [(14, "10.0.0.1", 24), (14, "fd00::1", 64), (16, "10.1.0.1", 24)] {
            lab.change(address(link, local, len), NLM_F_CREATE | NLM_F_EXCL).unwrap();
        }
        lab
    }

    /// `ip link add NAME index INDEX type KIND`, with the first attribute of that kind.
    pub fn make(&mut self, name: &str, kind: &str, index: u32, first: &[u8]) {
        let mut datagram = Vec::new();
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let to = underpass_netlink::reply::Address::default();
        underpass_netlink::reply::write_message(&mut datagram, libc::RTM_NEWLINK, flags, to, |message| {
            let [a, b, c, d] = index.to_ne_bytes();
            message.fixed(&[0, 0, 0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0]);
            message.text(libc::IFLA_IFNAME, name);
            let info = message.nest(libc::IFLA_LINKINFO);
            message.text(libc::IFLA_INFO_KIND, kind);
            let data = message.nest(libc::IFLA_INFO_DATA);
            if !first.is_empty() {
                message.attribute(1, first);
            }
            message.end(data);
            message.end(info);
        })
        .unwrap();
        assert_eq!(self.raw(&datagram)[0][16..20], [0; 4], "{name}");
    }

    /// All datagrams that answer one, dumps to their end.
    pub fn raw(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut replies = Replies::default();
        self.router.request(&mut self.client, datagram, &mut replies);
        for _ in 0..1_000 {
            if !self.client.dumping() {
                break;
            }
            self.router.continue_dump(&mut self.client, &mut replies);
        }
        assert!(!self.client.dumping(), "a dump does not end");
        replies.iter().map(<[u8]>::to_vec).collect()
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> Vec<NetlinkMessage<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = flags | NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let sequence = self.sequence;
        let all: Vec<_> = self.raw(&bytes).iter().flat_map(|datagram| split(datagram)).collect();
        assert!(all.iter().all(|m| (m.header.sequence_number, m.header.port_number) == (sequence, 77)));
        all
    }

    /// Sends a change; `Err` holds the errno and the text.
    pub fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> Result<(), (i32, String)> {
        let answers = self.send(message, flags | NLM_F_ACK);
        let Some(NetlinkPayload::Error(error)) = answers.last().map(|answer| &answer.payload) else {
            panic!("no acknowledgement: {answers:?}");
        };
        match error.raw_code() {
            0 => Ok(()),
            code => Err((-code, text(&error.header))),
        }
    }

    /// Everything that a dump answers with, but its end.
    pub fn dump(&mut self, message: RouteNetlinkMessage) -> Vec<RouteNetlinkMessage> {
        let mut answers = self.send(message, NLM_F_DUMP);
        let end = answers.pop().unwrap();
        assert!(matches!(end.payload, NetlinkPayload::Done(_)), "{end:?}");
        answers
            .into_iter()
            .map(|answer| match answer.payload {
                NetlinkPayload::InnerMessage(message) => message,
                other => panic!("in a dump: {other:?}"),
            })
            .collect()
    }
}

/// `ip addr add LOCAL/LEN dev …`
pub fn address(link: u32, local: &str, prefix_len: u8) -> RouteNetlinkMessage {
    let local: IpAddr = local.parse().unwrap();
    let mut address = AddressMessage::default();
    address.header.family = if local.is_ipv6() { 10 } else { 2 }.into();
    address.header.index = link;
    address.header.prefix_len = prefix_len;
    address.attributes = vec![AddressAttribute::Local(local), AddressAttribute::Address(local)];
    RouteNetlinkMessage::NewAddress(address)
}

/// `ip link set … up`
pub fn up(index: u32) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    RouteNetlinkMessage::NewLink(link)
}

/// The text of an extended acknowledgement, which follows the echo of the request.
fn text(echo: &[u8]) -> String {
    let len = u32::from_ne_bytes(echo[..4].try_into().unwrap()) as usize;
    let mut rest = &echo[len.next_multiple_of(4).min(echo.len())..];
    while rest.len() >= 4 {
        let (len, kind) = (u16::from_ne_bytes([rest[0], rest[1]]), u16::from_ne_bytes([rest[2], rest[3]]));
        if kind == 1 {
            return String::from_utf8_lossy(&rest[4..usize::from(len) - 1]).into_owned();
        }
        rest = &rest[usize::from(len).next_multiple_of(4)..];
    }
    String::new()
}

/// The messages of a datagram, decoded.
pub fn split(mut datagram: &[u8]) -> Vec<NetlinkMessage<RouteNetlinkMessage>> {
    let mut all = Vec::new();
    while datagram.len() >= 16 {
        let len = u32::from_ne_bytes(datagram[..4].try_into().unwrap()) as usize;
        all.push(NetlinkMessage::deserialize(&datagram[..len]).unwrap());
        datagram = &datagram[len.next_multiple_of(4).min(datagram.len())..];
    }
    all
}
