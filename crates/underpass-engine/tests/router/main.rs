//! The router as a whole: packets in, packets out. One program, as the path is compiled into each that tests it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod any_hook;
mod any_packet;
mod any_queue;
mod any_tagged;
mod any_tunnel;
mod beside;
mod bridges;
mod dice;
mod dt2;
mod dx2v;
mod exercise;
mod flavours;
mod frame_runs;
mod headroom;
mod hooks;
mod lab;
mod labelled_tunnels;
mod loops;
mod mpls;
mod own_address;
mod packets;
mod pair;
mod passage;
mod path;
mod programs;
mod queues;
mod reassembly;
mod replace_csid;
mod rows;
mod segments;
mod shaping;
mod sid_changes;
mod tagged;
mod traffic;
mod tunnel_changes;
mod tunnel_errors;
mod tunnel_hooks;
mod tunnel_lookup;
mod tunnels;
mod unresolved;
