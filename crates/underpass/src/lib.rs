//! What the program `underpass` is made of: the daemon that wires the rooms together, and the way in
//! for programs that speak netlink.

pub mod fpm;
pub mod kernel;
pub mod launch;
pub mod limits;
pub mod live;
pub mod offline;
pub mod port_spec;
pub mod road;
pub mod serve;
pub mod testbed;

/// What the preload library and the daemon say to each other. One file, compiled into both: linking
/// the preload library itself would replace this program's own socket calls.
#[path = "../../underpass-preload/src/protocol.rs"]
pub mod protocol;

/// Descriptor numbers in netlink messages: likewise one file for both.
#[path = "../../underpass-preload/src/numbers.rs"]
mod numbers;
