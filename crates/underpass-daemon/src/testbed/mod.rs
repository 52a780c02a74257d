//! Hosts and routers on one machine: network namespaces joined by veth pairs, for `underpass lab`,
//! `underpass bench live` and the tests of the whole.
//!
//! A namespace has no name and lives as long as this process and what it started, so nothing stays behind,
//! however the process ends.

mod namespace;
mod router;

pub use namespace::{Namespace, Outcome, finish, join};
pub use router::{Client, Router};

/// Whether this process may make network namespaces: it is root.
pub fn permitted() -> bool {
    nix::unistd::geteuid().is_root()
}
