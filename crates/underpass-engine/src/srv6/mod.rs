//! Segment routing over IPv6: the endpoint behaviours of local SIDs and the policy headend, RFC 8986.

mod endpoint;
mod headend;

pub(crate) use endpoint::endpoint;
pub(crate) use headend::headend;
