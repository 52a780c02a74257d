//! Codecs for rtnetlink, generic netlink and FPM frames, for the answering side.
//!
//! Requests are read in place: [`message`] splits a datagram, [`attribute`] checks the attributes of a
//! message against a policy as Linux's `__nla_validate_parse` does, so that an error knows the offset of
//! the attribute that caused it. Answers are written straight into the datagram that carries them:
//! [`reply`]. `netlink-packet-core` gives the primitives; the typed messages of `netlink-packet-route`
//! report neither offsets nor errnos, so they serve in tests, as the client's side.

// An index that a request leads beyond the end would end the router: what may be missing is asked for.
#![deny(clippy::indexing_slicing)]

pub mod attribute;
pub mod bridge;
pub mod encap;
pub mod error;
pub mod fou;
pub mod fpm;
pub mod genetlink;
pub mod ioam6;
pub mod iptunnel;
pub mod message;
pub mod mpls;
pub mod reply;
pub mod rpl;
pub mod seg6;
pub mod seg6local;
pub mod tc;
pub mod tunnel;
pub mod vlan;

pub use attribute::{Attribute, Attributes, Type, Validate, policy};
pub use encap::Encap;
pub use error::RequestError;
pub use message::{Message, messages};
pub use reply::{Nest, Replies, Reply};
