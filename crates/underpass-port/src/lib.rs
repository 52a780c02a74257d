//! Where packets come from and go: captures, memory for tests and measurements, and the kernel's devices.

mod clsact;
pub mod fast;
pub mod kernel_frames;
pub mod link_frames;
pub mod live;
pub mod memory;
mod netlink;
pub mod packet;
pub mod pcap;
pub mod pcapng;
pub mod reception;
pub mod return_path;
mod sys;
pub mod tun;
mod vnet;
pub mod xdp;

pub use clsact::PRIORITY as FILTER_PRIORITY;
pub use sys::{index_of, speed_of, without_offloads};
