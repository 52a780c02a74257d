//! The daemon: it connects the kernel, programs that speak netlink, zebra and the workers with the router. And what its tools share:
//! how they find a router, start one offline, and run lines of configuration.

pub mod child;
pub mod client;
pub mod fpm;
pub mod history;
pub mod http;
pub mod kernel;
pub mod launch;
pub mod limits;
pub mod live;
pub mod offline;
pub mod offline_daemon;
pub mod output;
pub mod packet_path;
pub mod persist;
pub mod port_spec;
pub mod processor;
pub mod query;
pub mod script;
pub mod seconds;
pub mod serve;
pub mod sid;
pub mod startup;
pub mod supervise;
pub mod testbed;

/// What the preload library and the daemon say to each other. One file, compiled into both (a symbolic link, which a
/// package of this crate follows): linking the preload library itself would replace this program's own socket calls.
pub mod protocol;

/// Descriptor numbers in netlink messages: likewise one file for both.
mod numbers;
