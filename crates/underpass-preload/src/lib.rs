//! Carries the netlink sockets of a program to the daemon of its network namespace.

pub mod protocol;
