//! What the preload library and the daemon say to each other.
//!
//! A netlink socket of a program is two AF_UNIX SOCK_SEQPACKET sockets:
//!
//! - **Data** is the descriptor that the program holds, one end of a socketpair. Each datagram is what
//!   a netlink datagram would be: one or more whole netlink messages, nothing before or after. So
//!   `poll`, `read` and `MSG_PEEK | MSG_TRUNC` need no help.
//! - **Control** is a connection to the daemon's socket, hidden from the program. Each datagram is one
//!   [`Message`].
//!
//! ```text
//! library                                  daemon
//!   OPEN protocol + other end of data  →
//!                                      ←   REPLY errno
//!   BIND port id, groups, process id   →
//!                                      ←   REPLY errno, port id
//!   SET option, value                  →
//!                                      ←   REPLY errno
//!   GET option                         →
//!                                      ←   REPLY errno, value low, value high
//!   (a datagram on data, with the      →
//!    descriptors that it names)
//!                                      ←   (answers on data), then DONE count
//!   ROOM bytes                         →                         no answer
//!   INDEX_OF name | NAME_OF index      →                         no OPEN needed
//!                                      ←   REPLY errno, index, name
//!   TUNNEL ioctl, name, parameters     →                         no OPEN needed
//!                                      ←   REPLY errno, and the parameters
//! ```
//!
//! A variable under `/proc/sys/net` that is the router's is asked for over a connection of its own:
//!
//! ```text
//!   SYSCTL what, path                  →
//!                                      ←   REPLY errno, and what was asked for
//!   (after a SYSCTL to write: a text)  →
//!                                      ←   REPLY errno
//!   (a byte 0 alone)                   →
//!                                      ←   DONE
//! ```
//!
//! After a SYSCTL to write, the connection is the file that the program writes to. So a text that reaches it
//! without the library's help (of a program that does not load it) is written too.
//!
//! Where a datagram has the number of a descriptor (`crate::numbers`), the descriptor goes with it
//! (SCM_RIGHTS), in the order of the numbers that are not negative; one that is not open has become -1. Behind that
//! of a BPF program for End.BPF comes a second: a file with [`PROGRAM_MAGIC`], the kernel's id of the program, and its
//! instructions as they were given to bpf(2), maps named by their ids. If the library does not know them, it is the
//! program once more.
//!
//! The library sends one thing at a time and waits: for the REPLY of a call, and for the DONE of a data
//! datagram. So a reply of the router is in the program's queue when its send returns, as with a socket
//! of the kernel (a dump's first part; the rest follows as the program reads), and options and requests
//! keep their order although they travel on two sockets. DONE carries the number of data datagrams
//! handled since OPEN, modulo 2^32, so that one that nobody waited for is not taken for the next.
//!
//! ROOM says how long the largest buffer is that the program has read with: longer parts of a dump would be cut. It is
//! sent while a dump is read and the number has grown. Until then a part is as short as Linux makes the first one.
//!
//! Once NETLINK_PKTINFO is set, each datagram of the router ends with a [`mark`] of its multicast group, which the
//! library takes off. At the end, so that a filter of the program's (SO_ATTACH_FILTER) finds the first message where it
//! looks for it; and a whole message, so that a program which reads it passes over it.
//!
//! Either side closes to end it. Both sides are on one machine: integers are in its byte order.

/// What a file with the instructions of a BPF program begins with.
pub const PROGRAM_MAGIC: [u8; 4] = *b"UPb1";

/// Environment variable that holds the path of the daemon's socket: one router for all, offline or live.
pub const SOCKET_VARIABLE: &str = "UNDERPASS_SOCKET";

/// Environment variable that holds the directory where the daemons of network namespaces listen, each at
/// [`socket_name`]. It counts only without [`SOCKET_VARIABLE`].
pub const RUNTIME_VARIABLE: &str = "UNDERPASS_RUNTIME";

/// Environment variable that holds the path of the socket at which `underpass exec --auto` listens, which starts and ends
/// the routers of network namespaces. A datagram says the namespace's inode (64 bits) and, if the namespace has just been
/// given a name, the path of that. The answer is an errno (32 bits); it comes when routers of namespaces that have no name
/// any more have ended, and, if there is no path, when the namespace's router is ready.
pub const AUTO_VARIABLE: &str = "UNDERPASS_AUTO";

/// Where daemons of network namespaces listen unless configured otherwise.
pub const RUNTIME: &str = "/run/underpass";

/// File name of the socket of a network namespace's daemon. `namespace`: the inode of `/proc/self/ns/net`.
pub fn socket_name(namespace: u64) -> String {
    format!("netns-{namespace}.sock")
}

/// Bytes of an interface name with its NUL: IFNAMSIZ of Linux.
pub const NAME_LENGTH: usize = 16;

/// The longest parameters of a tunnel: `struct ip6_tnl_parm2`, in bytes.
pub const TUNNEL_PARAMETERS: usize = 76;

/// What a control message says; the comments name the words `a`, `b`, `c` that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// `a`: the netlink protocol (NETLINK_ROUTE, NETLINK_GENERIC), `b`: [`VERSION`]. The daemon's end
    /// of the data socket goes with it (SCM_RIGHTS).
    Open = 1,
    /// `a`: the port id wanted, 0 for any; `b`: mask of multicast groups 1 to 32; `c`: the process id,
    /// which is the port id given if it is free.
    Bind = 2,
    /// `a`: an option of SOL_NETLINK; `b`: its value.
    Set = 3,
    /// `a`: an option of SOL_NETLINK. The reply holds the value in `b` (low) and `c` (high).
    Get = 4,
    /// `name`: an interface. The reply holds its index in `b`.
    IndexOf = 5,
    /// `a`: an interface index. The reply holds the name.
    NameOf = 6,
    /// `a`: one of [`sysctl`]. The path below `/proc/sys/net` follows the message, at most
    /// [`sysctl::PATH`] bytes; the reply is followed by what was asked for.
    Sysctl = 7,
    /// `a`: the number of an ioctl of tunnel devices; `name`: the device. The memory of the program that the ioctl
    /// speaks of follows the message, at most [`TUNNEL_PARAMETERS`] bytes; the reply is followed by what becomes of it.
    Tunnel = 8,
    /// `a`: length of the largest buffer that the program has read with, in bytes. There is no reply.
    Room = 9,
    /// Answer to any of the above. `a`: 0 or an errno.
    Reply = 16,
    /// A data datagram has been handled. `a`: how many since OPEN, modulo 2^32.
    Done = 17,
}

/// What is asked about a path below `/proc/sys/net`.
pub mod sysctl {
    /// What is there: the reply has [`FILE`] or [`DIRECTORY`] in `b`.
    pub const LOOK: u32 = 0;
    /// What the file reads.
    pub const READ: u32 = 1;
    /// To write to the file: each datagram after the reply is a text to be written.
    pub const WRITE: u32 = 2;
    /// The names in a directory, each followed by a slash.
    pub const LIST: u32 = 3;

    /// It is a file.
    pub const FILE: u32 = 1;
    /// It is a directory.
    pub const DIRECTORY: u32 = 2;

    /// A text of this byte alone is none, but asks for a DONE: all texts before have had their REPLY.
    pub const SETTLE: u8 = 0;

    /// Longest path, in bytes.
    pub const PATH: usize = 256;
    /// Longest text to be written, in bytes.
    pub const TEXT: usize = 4096;
    /// Longest text in a reply, in bytes.
    pub const ANSWER: usize = 128 << 10;
}

/// Version of this protocol; the daemon refuses another with EPROTO.
pub const VERSION: u32 = 3;

/// Length of a [`mark`].
pub const MARK: usize = 16;

/// Type (NLMSG_NOOP) and flags of a mark, which no message of the router or of a kernel has.
const MARK_KIND: [u8; 4] = [1, 0, 0x55, 0x50];

/// What a datagram ends with for a program that has set NETLINK_PKTINFO: the header of an empty message, with the
/// multicast group that it went to; 0 for none.
pub fn mark(group: u32) -> [u8; MARK] {
    let mut mark = [0; MARK];
    mark[..4].copy_from_slice(&(MARK as u32).to_ne_bytes());
    mark[4..8].copy_from_slice(&MARK_KIND);
    mark[8..12].copy_from_slice(&group.to_ne_bytes());
    mark
}

/// The group that the mark at the end of a datagram names; `None` if there is no mark.
pub fn marked(datagram: &[u8]) -> Option<u32> {
    let mark = datagram.last_chunk::<MARK>()?;
    let group = u32::from_ne_bytes([mark[8], mark[9], mark[10], mark[11]]);
    (*mark == self::mark(group)).then_some(group)
}

/// One datagram on the control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// What it says.
    pub kind: Kind,
    /// First word.
    pub a: u32,
    /// Second word.
    pub b: u32,
    /// Third word.
    pub c: u32,
    /// An interface name, padded with NULs.
    pub name: [u8; NAME_LENGTH],
}

impl Message {
    /// Bytes on the wire.
    pub const LENGTH: usize = 16 + NAME_LENGTH;

    /// A message without a name.
    pub const fn new(kind: Kind, a: u32, b: u32, c: u32) -> Self {
        Self { kind, a, b, c, name: [0; NAME_LENGTH] }
    }

    /// The bytes to send.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        let words = [self.kind as u32, self.a, self.b, self.c];
        for (place, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
        bytes[16..].copy_from_slice(&self.name);
        bytes
    }

    /// The message at the start of `bytes`, and the text that follows it.
    pub fn with_text(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (message, text) = bytes.split_at_checked(Self::LENGTH)?;
        Some((Self::from_bytes(message)?, text))
    }

    /// The message in `bytes`; `None` unless it is exactly one, of a known kind.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LENGTH] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let kind = match word(0) {
            1 => Kind::Open,
            2 => Kind::Bind,
            3 => Kind::Set,
            4 => Kind::Get,
            5 => Kind::IndexOf,
            6 => Kind::NameOf,
            7 => Kind::Sysctl,
            8 => Kind::Tunnel,
            9 => Kind::Room,
            16 => Kind::Reply,
            17 => Kind::Done,
            _ => return None,
        };
        let mut name = [0; NAME_LENGTH];
        name.copy_from_slice(&bytes[16..]);
        Some(Self { kind, a: word(4), b: word(8), c: word(12), name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in [
            Kind::Open,
            Kind::Bind,
            Kind::Set,
            Kind::Get,
            Kind::IndexOf,
            Kind::NameOf,
            Kind::Sysctl,
            Kind::Tunnel,
            Kind::Room,
            Kind::Reply,
            Kind::Done,
        ] {
            let message = Message { name: *b"an-interface\0\0\0\0", ..Message::new(kind, 1, u32::MAX, 3) };
            assert_eq!(Message::from_bytes(&message.to_bytes()), Some(message));
        }
    }

    #[test]
    fn a_mark_is_told_from_messages() {
        assert_eq!((marked(&mark(0)), marked(&mark(27))), (Some(0), Some(27)));
        assert_eq!(marked(&[&[7; 20][..], &mark(3)].concat()), Some(3));
        let noop = [16, 0, 0, 0, 1, 0, 0, 0, 27, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!((marked(&noop), marked(&mark(5)[1..])), (None, None));
    }

    #[test]
    fn other_lengths_and_kinds_are_refused() {
        let bytes = Message::new(Kind::Done, 0, 0, 0).to_bytes();
        assert_eq!(Message::from_bytes(&bytes[1..]), None);
        assert_eq!(Message::from_bytes(&[&bytes[..], &[0]].concat()), None);
        for kind in [0u32, 10, 15, 18, u32::MAX] {
            let mut bytes = bytes;
            bytes[..4].copy_from_slice(&kind.to_ne_bytes());
            assert_eq!(Message::from_bytes(&bytes), None);
        }
    }
}
