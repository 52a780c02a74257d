//! Segment routing over IPv6: the endpoint behaviours of local SIDs and the policy headend, RFC 8986.

mod endpoint;
mod headend;

pub(crate) use endpoint::{Onward, endpoint, name};
pub(crate) use headend::{encapsulate_plain, headend, take_out};
