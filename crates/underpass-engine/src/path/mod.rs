//! Packets of IP on their way through the router: headers, look-ups by rules, errors, what is for the router itself.

pub(crate) mod arp;
pub(crate) mod fragment;
pub(crate) mod group;
pub(crate) mod host;
pub(crate) mod icmp;
mod icmp_sum;
pub(crate) mod input;
pub(crate) mod ioam;
pub(crate) mod ioam_trace;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
pub(crate) mod kept;
pub(crate) mod local;
pub(crate) mod ndp;
pub(crate) mod nobody;
pub(crate) mod options;
pub(crate) mod reassemble;
pub(crate) mod reassembly;
pub(crate) mod reset;
pub(crate) mod routing_header;
pub(crate) mod rpl;
pub(crate) mod rules;
pub(crate) mod source;
pub(crate) mod vrf;
