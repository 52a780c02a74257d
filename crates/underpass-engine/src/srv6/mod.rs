//! Segment routing over IPv6: the endpoint behaviours of local SIDs and the policy headend, RFC 8986.

pub(crate) mod bpf;
pub(crate) mod decap;
pub(crate) mod dt2;
mod end;
pub(crate) mod endpoint;
pub(crate) mod flavours;
pub(crate) mod headend;
pub(crate) mod next;
pub(crate) mod program;
pub(crate) mod replace_csid;

pub(crate) use crate::srv6::bpf::{next_segment, run as run_program};
pub(crate) use crate::srv6::decap::find_inner_fast;
pub(crate) use crate::srv6::dt2::come_in;
pub(crate) use crate::srv6::end::{advance_at, next_segment_fast, step_at, write_segment};
pub(crate) use crate::srv6::endpoint::endpoint;
pub(crate) use crate::srv6::headend::{copy, headend, inherited, open_gap, take_out, write_headers};
