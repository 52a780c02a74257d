//! One answer out of two: requests that go to the kernel, and what it answers and tells.
//!
//! Each message of a program has an [`Owner`]. The kernel has done a message when `send` returns, so what it
//! answers is taken at once, and the answers to a datagram stand in the order of its messages whoever gives
//! them. A dump of both is the kernel's first; where that ends, the router's follows, and one NLMSG_DONE ends
//! both.

use std::{
    borrow::Cow,
    mem::take,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST};
use nix::errno::Errno;
use underpass_control::{Client, Owner, Protocol, Replies, RequestError};
use underpass_netlink::{Message, messages};

use super::{
    connection::Gone,
    filter::LinkFilter,
    host::Host,
    upstream::{Datagram, Upstream},
};
use crate::protocol::mark;

/// Datagrams of the kernel taken at most while its answer to one message is sought: a dump that is under way
/// goes on with each.
const SOUGHT: usize = 64;
/// Types below this are netlink's own: `NLMSG_MIN_TYPE`.
const MIN_TYPE: u16 = 16;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;
/// Where `nlmsg_flags` are in a message.
const FLAGS: std::ops::Range<usize> = 6..8;

/// The kernel's side of a program's netlink socket, and what is merged of it.
#[derive(Debug)]
pub struct Beside {
    upstream: Upstream,
    dump: Option<Dump>,
    /// NETLINK_PKTINFO: what the kernel sends to a group ends with a mark of it.
    marks: bool,
}

/// A dump of which the kernel has given no end yet, or the router's part of one.
#[derive(Debug)]
struct Dump {
    sequence: u32,
    /// The request, until the kernel's part is over; empty if the dump is the kernel's alone.
    request: Box<[u8]>,
    /// Which links are wanted, where the kernel cannot say.
    filter: Option<LinkFilter>,
    /// The kernel's NLMSG_DONE, once the router's part has begun; or that it has no such dump.
    done: Vec<u8>,
    /// Whether the router had anything to say.
    said: bool,
}

impl Beside {
    /// Opens the kernel's side.
    pub fn open(protocol: Protocol) -> Result<Self, Errno> {
        Ok(Self { upstream: Upstream::open(protocol)?, dump: None, marks: false })
    }

    /// What becomes readable when the kernel has something to say.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.upstream.as_fd()
    }

    /// Binds to a port id and to groups 1 to 32, as `netlink_bind` and `netlink_autobind` of Linux do for the
    /// program; gives the port id.
    pub fn bind(&self, wanted: u32, groups: u32, process: u32) -> Result<u32, Errno> {
        match wanted {
            0 if process != 0 => match self.upstream.bind(process, groups) {
                Err(Errno::EADDRINUSE) => self.upstream.bind(0, groups),
                bound => bound,
            },
            wanted => self.upstream.bind(wanted, groups),
        }
    }

    /// Sets an option of SOL_NETLINK.
    pub fn set(&mut self, option: i32, value: u32) -> Result<(), Errno> {
        self.upstream.set(option, value)?;
        if option == libc::NETLINK_PKTINFO {
            self.marks = value != 0;
        }
        Ok(())
    }

    /// Reads an option of SOL_NETLINK.
    pub fn get(&self, option: i32) -> Result<u64, Errno> {
        self.upstream.get(option)
    }

    /// Has each message of a datagram answered by its owner, in their order. `buffer` is where the kernel's
    /// datagrams are read.
    pub fn request(
        &mut self,
        host: &mut dyn Host,
        client: &mut Client,
        datagram: &[u8],
        buffer: &mut [u8],
        answers: &mut Replies,
    ) -> Result<(), Gone> {
        for message in messages(datagram) {
            host.catch_up();
            let owner = match message.kind < MIN_TYPE || message.flags & NLM_F_REQUEST == 0 {
                true => Owner::Router, // nobody's: at most to be acknowledged
                false => host.owner(client, &message),
            };
            let dump = is_dump(client.protocol, &message);
            let busy = match owner {
                Owner::Router => self.dump.is_some(),
                _ => client.dumping(),
            };
            if dump && busy {
                let error = RequestError::errno(libc::EBUSY);
                let (cap, extended) = (client.cap_ack, client.extended_ack);
                answers.acknowledge(&message, client.port, Err(&error), cap, extended);
                continue;
            }
            if owner == Owner::Router {
                host.request(client, message.bytes, answers);
                continue;
            }
            let mut asked = Cow::Borrowed(message.bytes);
            if dump && self.dump.is_none() {
                let request = if owner == Owner::Both { message.bytes } else { &[] };
                let (request, done, mut filter) = (request.into(), Vec::new(), None);
                if let Some((own, without)) = LinkFilter::of(host.router(), &message) {
                    (filter, asked) = (Some(own), Cow::Owned(without));
                }
                self.dump = Some(Dump { sequence: message.sequence, request, filter, done, said: false });
            }
            if let Err(errno) = self.upstream.send(&asked) {
                let error = RequestError::errno(errno as i32);
                let (cap, extended) = (client.cap_ack, client.extended_ack);
                answers.acknowledge(&message, client.port, Err(&error), cap, extended);
                self.dump.take_if(|dump| dump.sequence == message.sequence);
                continue;
            }
            for _ in 0..SOUGHT {
                if let Heard::Nothing | Heard::Answer =
                    self.take(host, client, message.sequence, buffer, answers)?
                {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes what the kernel has to say next, or the next part of the router's dump; says whether there was
    /// anything.
    pub fn hear(
        &mut self,
        host: &mut dyn Host,
        client: &mut Client,
        buffer: &mut [u8],
        out: &mut Replies,
    ) -> Result<bool, Gone> {
        if client.dumping() {
            let mut part = Replies::default();
            host.router().continue_dump(client, &mut part);
            self.router_part(&part, out);
            return Ok(true);
        }
        Ok(!matches!(self.take(host, client, 0, buffer, out)?, Heard::Nothing))
    }

    /// Takes one datagram of the kernel and passes on what is for the program.
    fn take(
        &mut self,
        host: &mut dyn Host,
        client: &mut Client,
        sequence: u32,
        buffer: &mut [u8],
        out: &mut Replies,
    ) -> Result<Heard, Gone> {
        let part = client.longest_part();
        let Datagram { length, group } = match self.upstream.receive(buffer, part) {
            Ok(Some(received)) => received,
            Ok(None) => return Ok(Heard::Nothing),
            Err(Errno::ENOBUFS) => return Err(Gone::CutOff("what the kernel tells is not read")),
            Err(Errno::EMSGSIZE) => return Err(Gone::CutOff("the kernel's answer is longer than 1 MiB")),
            Err(_) => return Err(Gone::CutOff("the kernel's socket fails")),
        };
        let datagram = buffer.get(..length).unwrap_or_default();
        let (mut heard, mut ended) = (Heard::Other, None);
        // Where the first message lies that is not passed on as it is.
        let mut kept: Option<Vec<u8>> = None;
        let mut at = 0;
        for message in messages(datagram) {
            let answers = message.sequence == sequence && client.port == message.port();
            if answers && message.kind != DONE {
                heard = Heard::Answer;
            }
            let end = at + message.bytes.len().next_multiple_of(4);
            let shown = match self.ends(&message) {
                Some(request) => {
                    ended = Some(request);
                    None
                }
                None if client.protocol == Protocol::Route => host.translate(&message),
                None => Some(Cow::Borrowed(message.bytes)),
            };
            let shown = shown.filter(|link| self.wants(&message, link));
            if !matches!(shown, Some(Cow::Borrowed(_))) && kept.is_none() {
                kept = Some(datagram.get(..at).unwrap_or_default().to_vec());
            }
            if let (Some(bytes), Some(kept)) = (shown, &mut kept) {
                append(kept, &bytes);
            }
            at = end;
        }
        let shown = kept.as_deref().unwrap_or(datagram);
        if self.marks && group != 0 && !shown.is_empty() {
            out.datagram(&[shown, &mark(group)].concat());
        } else {
            in_parts(shown, part, out);
        }
        if let Some(request) = ended {
            let mut part = Replies::default();
            host.catch_up();
            host.request(client, &request, &mut part);
            self.router_part(&part, out);
            heard = Heard::Answer;
        }
        Ok(heard)
    }

    /// Whether the program wants what a message of the kernel has become.
    fn wants(&self, message: &Message<'_>, shown: &[u8]) -> bool {
        let dump = self.dump.as_ref().filter(|dump| dump.sequence == message.sequence);
        dump.and_then(|dump| dump.filter.as_ref()).is_none_or(|filter| filter.passes(shown))
    }

    /// Whether a message ends the kernel's part of a dump of both: then the request that began it. A kernel that has no such
    /// dump leaves it to the router.
    fn ends(&mut self, message: &Message<'_>) -> Option<Box<[u8]>> {
        let dump = self.dump.as_mut().filter(|dump| dump.sequence == message.sequence)?;
        if !matches!(message.kind, DONE | ERROR) {
            return None;
        }
        if (message.kind == DONE || is_unsupported(message)) && !dump.request.is_empty() {
            dump.done.extend_from_slice(message.bytes);
            return Some(take(&mut dump.request));
        }
        self.dump = None;
        None
    }

    /// Passes on a part of the router's dump; its end is made the end of both.
    fn router_part(&mut self, part: &Replies, out: &mut Replies) {
        let Some(dump) = &mut self.dump else {
            part.iter().for_each(|datagram| out.datagram(datagram));
            return;
        };
        let mut over = false;
        for datagram in part.iter() {
            let mut bytes = Vec::with_capacity(datagram.len());
            for message in messages(datagram) {
                let mine = message.sequence == dump.sequence;
                if !mine || !matches!(message.kind, DONE | ERROR) {
                    dump.said |= mine;
                    append(&mut bytes, message.bytes);
                    continue;
                }
                over = true;
                // The router's end speaks for both only if it gave something: the kernel may have the table
                // that the router does not have, or neither has it.
                let flags = messages(&dump.done).next().map_or(0, |done| done.flags);
                let start = bytes.len();
                append(&mut bytes, if dump.said { message.bytes } else { &dump.done });
                if let Some(field) = bytes.get_mut(start..).and_then(|end| end.get_mut(FLAGS)) {
                    let own = u16::from_ne_bytes([field[0], field[1]]);
                    field.copy_from_slice(&(own | flags & NLM_F_DUMP_INTR).to_ne_bytes());
                }
            }
            if !bytes.is_empty() {
                out.datagram(&bytes);
            }
        }
        if over {
            self.dump = None;
        }
    }
}

/// Whether it is a refusal of what the kernel does not have.
fn is_unsupported(message: &Message<'_>) -> bool {
    message.kind == ERROR && message.body().first_chunk() == Some(&(-libc::EOPNOTSUPP).to_ne_bytes())
}

/// What a datagram of the kernel was.
enum Heard {
    /// There was none.
    Nothing,
    /// One with the answer that was sought.
    Answer,
    /// Another.
    Other,
}

/// Goes on with the router's dump, if one is under way; says whether it was.
pub fn continue_dump(host: &mut dyn Host, client: &mut Client, out: &mut Replies) -> bool {
    let dumping = client.dumping();
    if dumping {
        host.router().continue_dump(client, out);
    }
    dumping
}

/// Passes messages on in datagrams of at most `part` bytes, unless one is longer: what the router has written into the
/// kernel's may have made them longer than the program has room for.
fn in_parts(datagram: &[u8], part: usize, out: &mut Replies) {
    let (mut rest, mut len) = (datagram, 0);
    for message in messages(datagram) {
        let next = message.bytes.len().next_multiple_of(4);
        if len > 0 && len + next > part {
            let (full, behind) = rest.split_at(len);
            out.datagram(full);
            (rest, len) = (behind, 0);
        }
        len = (len + next).min(rest.len());
    }
    if !rest.is_empty() {
        out.datagram(rest);
    }
}

fn append(datagram: &mut Vec<u8>, message: &[u8]) {
    datagram.extend_from_slice(message);
    datagram.resize(datagram.len().next_multiple_of(4), 0);
}

/// Whether a request is a dump: rtnetlink takes either bit for one, and every fourth of its types is a
/// question; generic netlink wants both bits.
pub fn is_dump(protocol: Protocol, message: &Message<'_>) -> bool {
    match protocol {
        Protocol::Route => message.kind % 4 == libc::RTM_GETLINK % 4 && message.flags & NLM_F_DUMP != 0,
        Protocol::Generic => message.flags & NLM_F_DUMP == NLM_F_DUMP,
    }
}
