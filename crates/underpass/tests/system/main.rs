//! The whole: routers in network namespaces, between hosts whose packets are the kernel's own.
//!
//! Needs root; without it each test says that it is skipped. One runs at a time: they share two cores with
//! the hosts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod attack;
mod behaviours;
mod beside;
mod changes;
mod daemon;
mod examples;
mod frr;
mod guest;
mod hmac;
mod ioam;
mod kept;
mod lab;
mod labels;
mod load;
mod mpls;
mod mtu;
mod net;
mod programs;
mod restart;
mod shaping;
mod top;
mod trace;
mod tunnel;
mod vrf;
mod web;
