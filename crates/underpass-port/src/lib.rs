//! Where packets come from and go: captures, memory for tests and measurements, and the kernel's devices.

pub mod back;
mod clsact;
pub mod fast;
pub mod keep;
pub mod live;
pub mod memory;
mod netlink;
pub mod packet;
pub mod pcap;
pub mod pcapng;
pub mod promiscuous;
mod sys;
pub mod tun;
mod vnet;
pub mod xdp;

pub use clsact::PRIORITY as FILTER_PRIORITY;
pub use sys::{index_of, without_offloads};
