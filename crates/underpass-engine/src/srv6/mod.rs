//! Segment routing over IPv6: the endpoint behaviours of local SIDs and the policy headend, RFC 8986.

mod bpf;
mod endpoint;
mod flavours;
mod headend;

pub(crate) use bpf::{Found, Next, next_segment, run as run_program};
pub(crate) use endpoint::{
    LEAST_ETHERTYPE, Onward, advance_at, endpoint, name, next_segment_plain, plain_inner, write_segment,
};
pub(crate) use headend::{copy, headend, inherited, open_gap, take_out, write_headers};
