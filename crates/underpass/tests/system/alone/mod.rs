//! Tests that measure, or that lose no packet at a rate: each runs while no other does.
//!
//! All are below this module, whose name comes first, so that they run first, one after another. One among the others would
//! have to wait for those that run, and keep the next ones waiting.

mod attack;
mod cni;
mod first_packet;
mod lab;
mod labels;
mod load;
mod neighbours;
mod shaping;
