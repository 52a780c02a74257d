//! Answers: messages written one after the other into datagrams.

use std::net::IpAddr;

use libc::{NLMSG_DONE, NLMSG_ERROR};
use netlink_packet_core::{NLA_F_NESTED, NLA_HEADER_SIZE, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_MULTIPART};

use crate::RequestError;
use crate::message::{HEADER, Message};

const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;
const NLMSGERR_ATTR_MISS_TYPE: u16 = 5;

/// Who an answer goes to and what it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Address {
    /// `nlmsg_pid`: the port id of the client's socket.
    pub port: u32,
    /// `nlmsg_seq`: the sequence number of its request.
    pub sequence: u32,
}

/// Datagrams for one client, in the order in which they are to be sent.
#[derive(Clone, Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Replies {
    /// Forgets all, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Whether nothing is to be sent.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The datagrams.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| self.bytes.get(start..end).unwrap_or_default())
    }

    /// Writes one message into a datagram of its own.
    ///
    /// # Errors
    /// `EMSGSIZE` if an attribute in it would be longer than 65,535 bytes; nothing is then sent.
    pub fn message(
        &mut self,
        kind: u16,
        flags: u16,
        to: Address,
        write: impl FnOnce(&mut Reply<'_>),
    ) -> Result<(), RequestError> {
        let origin = self.bytes.len();
        write_at(&mut self.bytes, origin, (kind, flags), to, write)?;
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// Adds a datagram that is written already.
    pub fn datagram(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
    }

    /// Answers a request with success or with an error. Linux: `netlink_ack`. A success repeats the
    /// request's header only; an error repeats all of the request, unless `cap` (`NETLINK_CAP_ACK`);
    /// texts and offsets are for those who asked for them with `extended` (`NETLINK_EXT_ACK`). An error whose errno is
    /// 0 is a success with a warning.
    pub fn acknowledge(
        &mut self,
        request: &Message<'_>,
        port: u32,
        outcome: Result<(), &RequestError>,
        cap: bool,
        extended: bool,
    ) {
        let (echo, mut flags) = match outcome {
            Err(error) if !cap && error.errno != 0 => (request.bytes, 0),
            _ => (request.bytes.get(..HEADER).unwrap_or(request.bytes), NLM_F_CAPPED),
        };
        let error = outcome.err();
        let texts = error.filter(|error| extended && says_more(error));
        if texts.is_some() {
            flags |= NLM_F_ACK_TLVS;
        }
        let to = Address { port, sequence: request.sequence };
        let written = self.message(NLMSG_ERROR as u16, flags, to, |reply| {
            reply.fixed(&error.map_or(0, |error| -error.errno).to_ne_bytes());
            reply.fixed(echo);
            if let Some(error) = texts {
                reply.pad();
                reply.texts(error);
            }
        });
        debug_assert!(written.is_ok(), "no attribute of an acknowledgement is long");
    }
}

/// Appends one message to a datagram.
///
/// # Errors
/// `EMSGSIZE` if an attribute in it would be longer than 65,535 bytes; `datagram` is then unchanged.
pub fn write_message(
    datagram: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    to: Address,
    write: impl FnOnce(&mut Reply<'_>),
) -> Result<(), RequestError> {
    write_at(datagram, 0, (kind, flags), to, write)
}

/// The same where the datagram begins at an offset of `datagram`.
fn write_at(
    datagram: &mut Vec<u8>,
    origin: usize,
    (kind, flags): (u16, u16),
    to: Address,
    write: impl FnOnce(&mut Reply<'_>),
) -> Result<(), RequestError> {
    let start = datagram.len();
    datagram.extend_from_slice(&[0; 4]);
    datagram.extend_from_slice(&kind.to_ne_bytes());
    datagram.extend_from_slice(&flags.to_ne_bytes());
    datagram.extend_from_slice(&to.sequence.to_ne_bytes());
    datagram.extend_from_slice(&to.port.to_ne_bytes());
    let mut reply = Reply { bytes: datagram, origin, start, overflow: false };
    write(&mut reply);
    if reply.overflow {
        datagram.truncate(start);
        return Err(RequestError::errno(libc::EMSGSIZE));
    }
    let len = (datagram.len() - start) as u32;
    fill(datagram, start, len.to_ne_bytes());
    datagram.resize(datagram.len().next_multiple_of(4), 0);
    Ok(())
}

/// Whether a refusal says more than an errno.
fn says_more(error: &RequestError) -> bool {
    error.message.is_some() || error.offset.is_some() || error.missing.is_some()
}

/// Appends the end of a dump, with what ended it early, if anything did. Linux: `netlink_dump_done`; texts
/// are for those who asked for them with `extended` (`NETLINK_EXT_ACK`).
pub fn write_done(
    datagram: &mut Vec<u8>,
    mut flags: u16,
    to: Address,
    error: Option<&RequestError>,
    extended: bool,
) {
    flags |= NLM_F_MULTIPART;
    let texts = error.filter(|error| extended && says_more(error));
    if texts.is_some() {
        flags |= NLM_F_ACK_TLVS;
    }
    let written = write_message(datagram, NLMSG_DONE as u16, flags, to, |reply| {
        reply.fixed(&error.map_or(0, |error| -error.errno).to_ne_bytes());
        if let Some(error) = texts {
            reply.texts(error);
        }
    });
    debug_assert!(written.is_ok(), "no attribute of it is long");
}

/// A message being written. Values are in host byte order unless said.
#[derive(Debug)]
pub struct Reply<'a> {
    bytes: &'a mut Vec<u8>,
    /// Where the datagram begins, to which 64-bit values are aligned.
    origin: usize,
    start: usize,
    overflow: bool,
}

/// A nested attribute that is not ended yet.
#[derive(Clone, Copy, Debug)]
#[must_use = "a nest that is not ended has no length"]
pub struct Nest(usize);

impl Reply<'_> {
    /// Appends bytes as they are: the family's fixed header.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Fills up to a multiple of 4 bytes.
    pub fn pad(&mut self) {
        let len = (self.bytes.len() - self.start).next_multiple_of(4);
        self.bytes.resize(self.start + len, 0);
    }

    /// The attributes in which a refusal says more than an errno.
    fn texts(&mut self, error: &RequestError) {
        if let Some(message) = &error.message {
            self.text(NLMSGERR_ATTR_MSG, message);
        }
        if let Some(offset) = error.offset {
            self.u32(NLMSGERR_ATTR_OFFS, offset);
        }
        if let Some(missing) = error.missing {
            self.u32(NLMSGERR_ATTR_MISS_TYPE, missing);
        }
    }

    fn header(&mut self, kind: u16, len: usize) {
        self.overflow |= len > usize::from(u16::MAX);
        self.bytes.extend_from_slice(&(len as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
    }

    /// An attribute.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.header(kind, NLA_HEADER_SIZE + value.len());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// An attribute without a value.
    pub fn flag(&mut self, kind: u16) {
        self.attribute(kind, &[]);
    }

    /// An attribute of 1 byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.attribute(kind, &[value]);
    }

    /// An attribute of 2 bytes.
    pub fn u16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// An attribute of 2 bytes in network byte order.
    pub fn be16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// An attribute of 4 bytes.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// An attribute of 4 bytes in network byte order.
    pub fn be32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// An attribute of 8 bytes.
    pub fn u64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// An attribute of 8 bytes whose value starts at a multiple of 8 bytes from the start of the datagram
    /// (Linux: `nla_put_u64_64bit`, where the machine needs it): an empty attribute of type `pad` goes
    /// before it if need be.
    pub fn u64_aligned(&mut self, kind: u16, value: u64, pad: u16) {
        self.align_64(pad);
        self.u64(kind, value);
    }

    /// Makes the next attribute's value start at a multiple of 8 bytes from the start of the datagram.
    pub fn align_64(&mut self, pad: u16) {
        if !(self.bytes.len() - self.origin + NLA_HEADER_SIZE).is_multiple_of(8) {
            self.flag(pad);
        }
    }

    /// A string with its NUL.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.header(kind, NLA_HEADER_SIZE + value.len() + 1);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// An IPv4 or IPv6 address.
    pub fn address(&mut self, kind: u16, value: IpAddr) {
        match value {
            IpAddr::V4(value) => self.attribute(kind, &value.octets()),
            IpAddr::V6(value) => self.attribute(kind, &value.octets()),
        }
    }

    /// Begins an attribute that holds attributes, flagged `NLA_F_NESTED`.
    pub fn nest(&mut self, kind: u16) -> Nest {
        self.nest_unflagged(kind | NLA_F_NESTED)
    }

    /// The same without the flag: `nla_nest_start_noflag`, as most of rtnetlink does.
    pub fn nest_unflagged(&mut self, kind: u16) -> Nest {
        let nest = Nest(self.bytes.len());
        self.header(kind, NLA_HEADER_SIZE);
        nest
    }

    /// Ends a nested attribute.
    pub fn end(&mut self, nest: Nest) {
        let len = self.bytes.len() - nest.0;
        self.overflow |= len > usize::from(u16::MAX);
        fill(self.bytes, nest.0, (len as u16).to_ne_bytes());
    }

    /// Takes a nested attribute back, with all that is in it.
    pub fn cancel(&mut self, nest: Nest) {
        self.bytes.truncate(nest.0);
    }

    /// Length of the message so far, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Never: a message has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes to a place that was left open, behind the netlink header.
    pub fn fill(&mut self, at: usize, with: &[u8]) {
        if let Some(place) = self.written().get_mut(at..at + with.len()) {
            place.copy_from_slice(with);
        }
    }

    /// Bytes written so far, from the netlink header on, for what has to be filled in later (`rtnh_len`).
    pub fn written(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }
}

/// Writes to a place that was left open.
fn fill<const N: usize>(bytes: &mut [u8], at: usize, with: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = with;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::messages;

    const REQUEST: &[u8] = &[20, 0, 0, 0, 16, 0, 5, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];

    fn ack(outcome: Result<(), &RequestError>, cap: bool, extended: bool) -> Vec<u8> {
        let request = messages(REQUEST).next().unwrap();
        let mut replies = Replies::default();
        replies.acknowledge(&request, 77, outcome, cap, extended);
        let datagrams: Vec<_> = replies.iter().collect();
        assert_eq!(datagrams.len(), 1);
        datagrams[0].to_vec()
    }

    /// Linux 6.12: success is 36 bytes with NLM_F_CAPPED.
    #[test]
    fn success() {
        let bytes = ack(Ok(()), false, true);
        assert_eq!(bytes[..16], [36, 0, 0, 0, 2, 0, 0, 1, 9, 0, 0, 0, 77, 0, 0, 0]);
        assert_eq!(bytes[16..20], [0; 4]);
        assert_eq!(bytes[20..], REQUEST[..16]);
    }

    /// Linux 6.12: `ip route show table 10`, a table that is not there: the end of a dump says why.
    #[test]
    fn a_dump_that_cannot_begin() {
        let error = RequestError::new(libc::ENOENT, "ipv4: FIB table does not exist");
        let done = |extended| {
            let mut bytes = Vec::new();
            write_done(&mut bytes, 0, Address { port: 77, sequence: 5 }, Some(&error), extended);
            bytes
        };
        let bytes = done(true);
        assert_eq!(bytes[..16], [56, 0, 0, 0, 3, 0, 2, 2, 5, 0, 0, 0, 77, 0, 0, 0]);
        assert_eq!(bytes[16..], *b"\xfe\xff\xff\xff\x23\0\x01\0ipv4: FIB table does not exist\0\0");
        assert_eq!(done(false)[..8], [20, 0, 0, 0, 3, 0, 2, 0]);
    }

    #[test]
    fn failure_echoes_the_request_and_explains() {
        let error = RequestError::new(22, "no").at(20);
        let bytes = ack(Err(&error), false, true);
        assert_eq!(bytes[6..8], [0, 2]);
        assert_eq!(bytes[16..20], (-22i32).to_ne_bytes());
        assert_eq!(&bytes[20..40], REQUEST);
        assert_eq!(bytes[40..], [7, 0, 1, 0, b'n', b'o', 0, 0, 8, 0, 2, 0, 20, 0, 0, 0]);
        assert_eq!(ack(Err(&error), false, false).len(), 40);
        let capped = ack(Err(&error), true, true);
        assert_eq!((capped.len(), &capped[6..8]), (52, &[0, 3][..]));
    }

    #[test]
    fn too_long_an_attribute_leaves_nothing() {
        let mut replies = Replies::default();
        let long = vec![0; 65_533];
        let refused = replies.message(1, 0, Address::default(), |r| r.attribute(1, &long)).unwrap_err();
        assert_eq!(refused.errno, libc::EMSGSIZE);
        assert!(replies.is_empty());
    }

    #[test]
    fn aligns_64_bit_values() {
        let mut datagram = Vec::new();
        write_message(&mut datagram, 1, 0, Address::default(), |reply| {
            reply.u64_aligned(2, 5, 9);
            reply.flag(1);
            reply.u64_aligned(2, 6, 9);
        })
        .unwrap();
        assert_eq!(datagram[16..24], [4, 0, 9, 0, 12, 0, 2, 0]);
        assert_eq!(datagram[24], 5);
        assert_eq!(datagram[40], 6);
        assert_eq!(datagram.len() % 8, 0);
    }
}
