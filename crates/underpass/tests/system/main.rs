//! The whole: routers in network namespaces, between hosts whose packets are the kernel's own.
//!
//! Needs root; without it each test says that it is skipped. Most wait most of the time, and run
//! beside each other; those of `alone` do not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod alone;
mod behaviours;
mod beside;
mod book;
mod bridge;
mod browser;
mod changes;
mod daemon;
mod dummy;
mod examples;
mod fast_path;
mod frr;
mod given_back;
mod gobgp;
mod guest;
mod hmac;
mod interfaces;
mod ioam;
mod kernel_frames;
mod lab;
mod lab_ends;
mod lab_page;
mod managers;
mod mpls;
mod mtu;
mod net;
#[path = "../newer/mod.rs"]
mod newer;
mod programs;
mod restart;
mod spanning_tree;
mod top;
mod trace;
mod tunnel;
mod vlan;
mod vrf;
mod web;
