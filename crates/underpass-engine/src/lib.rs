//! The packet path: buffers, forwarding tables, behaviours, counters and workers.
//!
//! No system calls on the packet path: the control thread maps tables. No clocks: time is an argument. Packets come in as
//! [`buffer::Packet`]s and go out through [`worker::Worker`]. The control thread changes [`tables::Tables`] through its one
//! [`tables::Writer`]; workers read them without locks.

pub mod bpf;
pub mod buffer;
pub mod coalesce;
pub mod counters;
pub mod drops;
mod flow;
pub mod hmac;
pub mod in_kernel;
pub mod l2;
pub mod limiter;
pub mod lpm;
pub mod memory;
mod mpls;
pub mod offload;
mod path;
pub mod publish;
pub mod qos;
mod srv6;
pub mod tables;
pub mod trace;
mod tunnel;
pub mod worker;
