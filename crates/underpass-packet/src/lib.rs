//! Checked zero-copy views and builders of wire formats: one file a protocol.
//!
//! Every format is read the same way:
//!
//! - `Header` is the fixed part, as it lies on the wire. `parse` and `parse_mut` check, once, all that
//!   the format says about its own lengths, and lend views whose accessors cannot fail. What is wrong
//!   is a variant of the module's `Malformed`.
//! - Code that knows that the bytes were checked before reaches a fixed part with
//!   [`FromBytes::ref_from_prefix`] and [`FromBytes::mut_from_prefix`], which look at the length alone.
//! - A header is built by value and written with [`IntoBytes`]; formats of variable length have a
//!   builder that says its length first and then writes into a slice.
//!
//! Fields of several bytes are big-endian on the wire; accessors take and give numbers. Nothing here
//! allocates, and no input makes it panic.

pub mod arp;
pub mod bpdu;
pub mod checksum;
pub mod ethernet;
pub mod geneve;
pub mod gre;
pub mod gue;
pub mod icmp_extension;
pub mod icmpv4;
pub mod icmpv6;
pub mod ioam;
pub mod ipv4;
pub mod ipv6;
pub mod ipv6_ext;
pub mod ipv6_options;
pub mod mpls;
pub mod ndisc;
pub mod protocol;
pub mod rpl;
pub mod srh;
pub mod tcp;
#[cfg(test)]
mod testing;
pub mod udp;
pub mod vlan;
pub mod vxlan;

pub use zerocopy::network_endian::{U16, U32};
pub use zerocopy::{FromBytes, IntoBytes};
