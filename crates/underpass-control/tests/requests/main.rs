//! Requests to the control plane: what is answered, what is told to those who listen, and what the tables then say.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod batches;
mod bridge_beside;
mod bridge_vlans;
mod common;
mod experimental;
mod filters;
mod flags_and_notices;
mod labels;
mod left_to_kernel;
mod links_and_addresses;
mod mirror;
mod neighbours;
mod raw_requests;
mod recorded_requests;
mod recorded_routes;
mod samples;
mod saved_beside;
mod scale;
mod siblings_beside;
mod spanning_tree;
mod vlan_beside;
mod vxlan_ends;
