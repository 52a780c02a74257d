//! Answers that are too long for one datagram.

use std::borrow::Cow;
use std::fmt;

use netlink_packet_core::{NLM_F_DUMP_FILTERED, NLM_F_DUMP_INTR, NLM_F_MULTIPART};
use underpass_netlink::reply::{Address, Reply, write_done, write_message};
use underpass_netlink::{Replies, RequestError};

use crate::Router;

/// Longest datagram of a dump, in bytes, for a client that has room for it, unless a single message is longer: what
/// Linux sends at most, `SKB_WITH_OVERHEAD(32768)`.
pub const LARGE_PART: usize = 32_768 - 320;
/// The same for a client of which no larger buffer is known: Linux's `NLMSG_GOODSIZE`.
pub const SMALL_PART: usize = 4096 - 320;

/// A dump under way. It keeps a place (the key of the last object, not a copy of the table), so the
/// model may change between two datagrams.
pub trait Dump: Send {
    /// Writes the next object, if it passes the filter; says whether there may be more.
    ///
    /// # Errors
    /// What ends the dump early; the client reads it in `NLMSG_DONE`.
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError>;

    /// A number that changes when the objects of the dump do: the client is then told that what it
    /// reads may be inconsistent (`NLM_F_DUMP_INTR`).
    fn generation(&self, router: &Router) -> u64;

    /// Whether objects are filtered as a strict client asked (`NLM_F_DUMP_FILTERED`).
    fn filtered(&self) -> bool {
        false
    }

    /// Whether each message says so. Linux marks the routes of every strict dump, but the end only of one
    /// with a filter.
    fn marks_messages(&self) -> bool {
        self.filtered()
    }
}

/// Whether a dump has more to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum More {
    /// Ask again.
    Yes,
    /// All is written.
    No,
}

/// A dump of what the router has none of.
pub(crate) struct Empty;

impl Dump for Empty {
    fn next(&mut self, _: &Router, _: &mut Chunk<'_>) -> Result<More, RequestError> {
        Ok(More::No)
    }

    fn generation(&self, _: &Router) -> u64 {
        0
    }
}

/// Where a dump writes its messages.
#[derive(Debug)]
pub struct Chunk<'a> {
    datagram: &'a mut Vec<u8>,
    to: Address,
    flags: u16,
}

impl Chunk<'_> {
    /// Writes one message.
    ///
    /// # Errors
    /// `EMSGSIZE` if an attribute in it would be longer than 65,535 bytes.
    pub fn message(&mut self, kind: u16, write: impl FnOnce(&mut Reply<'_>)) -> Result<(), RequestError> {
        write_message(self.datagram, kind, self.flags, self.to, write)
    }
}

/// A dump and its client's request.
pub(crate) struct Running {
    dump: Box<dyn Dump>,
    to: Address,
    generation: u64,
    /// A message that did not fit the datagram before.
    carry: Vec<u8>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({:?})", self.to)
    }
}

impl Running {
    pub fn new(dump: Box<dyn Dump>, to: Address, router: &Router) -> Self {
        let generation = dump.generation(router);
        Self { dump, to, generation, carry: Vec::new() }
    }

    /// Writes the next datagram, of at most `limit` bytes unless a single message is longer; says whether there are more.
    /// `extended`: the client wants to know more than the errno of what ends the dump early.
    pub fn datagram(&mut self, router: &Router, limit: usize, extended: bool, replies: &mut Replies) -> More {
        let mut flags = NLM_F_MULTIPART;
        if self.dump.filtered() {
            flags |= NLM_F_DUMP_FILTERED;
        }
        if self.dump.generation(router) != self.generation {
            flags |= NLM_F_DUMP_INTR;
        }
        let marked = if self.dump.marks_messages() { flags | NLM_F_DUMP_FILTERED } else { flags };
        let mut bytes = std::mem::take(&mut self.carry);
        let mut done = None;
        while done.is_none() && bytes.len() < limit {
            let start = bytes.len();
            let mut chunk = Chunk { datagram: &mut bytes, to: self.to, flags: marked };
            match self.dump.next(router, &mut chunk) {
                Ok(More::Yes) => {}
                Ok(More::No) => done = Some(None),
                Err(error) => done = Some(Some(error)),
            }
            if start > 0 && bytes.len() > limit {
                self.carry.extend(bytes.drain(start..));
                // What is carried over goes first; a dump that is over says so again.
                done = None;
                break;
            }
        }
        if let Some(error) = &done {
            let start = bytes.len();
            write_done(&mut bytes, flags, self.to, error.as_ref(), extended);
            if start > 0 && bytes.len() > limit {
                let (part, end) = bytes.split_at(start);
                replies.datagram(part);
                replies.datagram(end);
                return More::No;
            }
        }
        replies.datagram(&bytes);
        if done.is_some() { More::No } else { More::Yes }
    }
}

/// What a request that was not refused is followed by.
pub(crate) enum Outcome {
    /// An acknowledgement, if the client asked for one.
    Done,
    /// An acknowledgement with a warning.
    Warning(Cow<'static, str>),
    /// A dump, and no acknowledgement.
    Dump(Box<dyn Dump>),
}
