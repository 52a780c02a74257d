//! Segment routing over IPv6: the endpoint behaviours of local SIDs and the policy headend, RFC 8986.

mod chain;
mod endpoint;
mod headend;

pub(crate) use endpoint::endpoint;
pub(crate) use headend::headend;
