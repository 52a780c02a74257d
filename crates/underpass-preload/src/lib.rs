//! Carries the netlink sockets of a program to the router: a library for LD_PRELOAD.
//!
//! With `UNDERPASS_SOCKET` in the environment, or with `UNDERPASS_RUNTIME` and a router in the caller's network
//! namespace, `socket(AF_NETLINK, …, NETLINK_ROUTE or NETLINK_GENERIC)` gives the program a socket whose other end the router holds ([`protocol`] says how they speak). That
//! socket is a real one, so reading, polling and waiting on it need no help; interposed are the calls in
//! which an AF_UNIX socket would behave otherwise than an AF_NETLINK one. Without the variables every call
//! goes to the C library untouched.
//!
//! What goes round a preloaded library reaches the kernel: set-user-ID and statically linked programs, and the
//! C library's own lookups (`getifaddrs`, `if_nameindex`).

// The functions of `hooks` have the names of the C library's: this crate is for LD_PRELOAD, not to be linked.
pub mod numbers;
pub mod protocol;

mod auto;
mod channel;
mod hooks;
mod lost;
mod next;
mod programs;
mod start;
mod submit;
mod table;
