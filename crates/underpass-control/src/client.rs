//! One netlink socket of a program.

use crate::dump::{LARGE_PART, Running, SMALL_PART};
use crate::request::Protocol;

/// State of one netlink socket.
#[derive(Debug)]
pub struct Client {
    /// Its port id: what `getsockname` says, and what `nlmsg_pid` of every answer must be.
    pub port: u32,
    /// What it speaks.
    pub protocol: Protocol,
    /// `NETLINK_GET_STRICT_CHK`: requests are checked strictly, and dumps filtered.
    pub strict_check: bool,
    /// `NETLINK_EXT_ACK`: errors carry texts and offsets.
    pub extended_ack: bool,
    /// `NETLINK_CAP_ACK`: errors do not repeat the request.
    pub cap_ack: bool,
    /// Length of the largest buffer that its program is known to read with, in bytes; 0: none is known.
    pub room: usize,
    pub(crate) groups: Vec<u32>,
    pub(crate) dump: Option<Running>,
}

impl Client {
    /// A socket as it is when it was just opened.
    pub fn new(protocol: Protocol, port: u32) -> Self {
        Self {
            port,
            protocol,
            strict_check: false,
            extended_ack: false,
            cap_ack: false,
            room: 0,
            groups: Vec::new(),
            dump: None,
        }
    }

    /// Whether a dump is under way, to be continued with
    /// [`Router::continue_dump`](crate::Router::continue_dump).
    pub fn dumping(&self) -> bool {
        self.dump.is_some()
    }

    /// How long a datagram of a dump may be. Linux: `netlink_dump`.
    pub fn longest_part(&self) -> usize {
        self.room.clamp(SMALL_PART, LARGE_PART)
    }

    /// Whether it is a member of a multicast group.
    pub fn listens_to(&self, group: u32) -> bool {
        self.groups.contains(&group)
    }
}
