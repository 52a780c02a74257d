//! Why a request is refused: an errno, and what the extended acknowledgement says about it.

use std::borrow::Cow;

/// A negative answer to a request. The handler that returns it has changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("errno {errno}{}", .message.as_deref().map(|m| format!(": {m}")).unwrap_or_default())]
pub struct RequestError {
    /// The positive errno.
    pub errno: i32,
    /// `NLMSGERR_ATTR_MSG`: what the tool prints after `Error: `.
    pub message: Option<Cow<'static, str>>,
    /// `NLMSGERR_ATTR_OFFS`: offset of the offending attribute, in bytes from the netlink header.
    pub offset: Option<u32>,
    /// `NLMSGERR_ATTR_MISS_TYPE`: type of an attribute that is missing.
    pub missing: Option<u32>,
}

impl RequestError {
    /// An errno with nothing to say about it.
    pub const fn errno(errno: i32) -> Self {
        Self { errno, message: None, offset: None, missing: None }
    }

    /// An errno with the text that Linux gives with it.
    pub const fn new(errno: i32, message: &'static str) -> Self {
        Self { errno, message: Some(Cow::Borrowed(message)), offset: None, missing: None }
    }

    /// An errno with a text made for the occasion.
    pub fn with_text(errno: i32, message: String) -> Self {
        Self { errno, message: Some(Cow::Owned(message)), offset: None, missing: None }
    }

    /// Says which attribute is at fault.
    pub const fn at(mut self, offset: u32) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Says which attribute is missing.
    pub const fn missing(mut self, kind: u16) -> Self {
        self.missing = Some(kind as u32);
        self
    }
}
