//! A request, as its handler sees it.

use libc::EINVAL;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE};
use underpass_netlink::reply::Address;
use underpass_netlink::{Attributes, Message, RequestError, Type, Validate, message};

/// The four bytes at a place of a fixed header.
pub(crate) fn word(header: &[u8], at: usize) -> [u8; 4] {
    header.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
}

/// One message of a client.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The message.
    pub message: Message<'a>,
    /// Port id of the client's socket.
    pub port: u32,
    /// The client asked for strict checks (`NETLINK_GET_STRICT_CHK`).
    pub strict: bool,
}

impl<'a> Request<'a> {
    /// Where the answer goes.
    pub const fn reply_to(&self) -> Address {
        Address { port: self.port, sequence: self.message.sequence }
    }

    const fn has(&self, flags: u16) -> bool {
        self.message.flags & flags == flags
    }

    /// `NLM_F_CREATE`: make it if it is not there.
    pub const fn create(&self) -> bool {
        self.has(NLM_F_CREATE)
    }

    /// `NLM_F_EXCL`: refuse if it is there.
    pub const fn exclusive(&self) -> bool {
        self.has(NLM_F_EXCL)
    }

    /// `NLM_F_REPLACE`: change it if it is there.
    pub const fn replace(&self) -> bool {
        self.has(NLM_F_REPLACE)
    }

    /// `NLM_F_APPEND`: add after those that are there.
    pub const fn append(&self) -> bool {
        self.has(NLM_F_APPEND)
    }

    /// Any bit of `NLM_F_DUMP`, which is how rtnetlink tells a dump from a question about one object.
    pub const fn dump(&self) -> bool {
        self.message.flags & NLM_F_DUMP != 0
    }

    /// `NLM_F_ECHO`: the client wants the notification of its own change.
    pub const fn echo(&self) -> bool {
        self.has(NLM_F_ECHO)
    }

    /// How a question (`RTM_GET*`) is checked: strictly if the client asked for it.
    pub const fn validate(&self) -> Validate {
        if self.strict { Validate::Strict } else { Validate::Liberal }
    }

    /// `rtgen_family`, the first byte of every rtnetlink message; 0 if there is none.
    pub fn family(&self) -> u8 {
        self.message.body().first().copied().unwrap_or(0)
    }

    /// The family's fixed header of `H` bytes.
    ///
    /// # Errors
    /// `EINVAL` if the message is shorter.
    pub fn fixed<const H: usize>(&self) -> Result<[u8; H], RequestError> {
        let fixed = self.message.body().first_chunk::<H>();
        fixed.copied().ok_or(RequestError::new(EINVAL, "Invalid header length"))
    }

    /// The fixed header of `H` bytes and the attributes behind it.
    ///
    /// # Errors
    /// `EINVAL` if the message is shorter than `H`, and as [`Attributes::parse`].
    pub fn parse<const H: usize, const N: usize>(
        &self,
        policy: &[Type; N],
        validate: Validate,
    ) -> Result<([u8; H], Attributes<'a, N>), RequestError> {
        let fixed = self.fixed::<H>()?;
        let base = message::HEADER + H.next_multiple_of(4);
        let bytes = self.message.bytes.get(base..).unwrap_or_default();
        Ok((fixed, Attributes::parse(policy, bytes, base, validate)?))
    }
}

/// `NETLINK_ROUTE` or `NETLINK_GENERIC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// rtnetlink.
    Route,
    /// Generic netlink.
    Generic,
}

/// Whether a request may make something new.
pub(crate) const fn creates(request: &Request<'_>) -> bool {
    request.message.flags & NLM_F_CREATE != 0
}
