//! Where packets come from and go: captures, and memory for tests and measurements.

pub mod memory;
pub mod pcap;
