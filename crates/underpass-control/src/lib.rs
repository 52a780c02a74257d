//! The model of the router and the requests that change it.
//!
//! A [`Router`] answers the datagrams of netlink sockets, each a [`Client`]. There are four layers, each of which
//! imports those before it:
//!
//! - the model, what is configured: [`Router`] (`state.rs`) and the file of each feature (`link.rs`, `route.rs` …);
//! - what is made of it: tables of the engine (`compile.rs`, `publish.rs`) and dependency updates (`updates.rs`,
//!   `change.rs`);
//! - the model as lines of `ip` and `tc` (`save.rs`);
//! - requests (`request.rs`) and the kernel's messages (`mirror.rs`): a handler is a function of the router and one
//!   [`Request`]; it parses, checks all that can fail, then changes the model and publishes the change. Where the
//!   answer is long, it returns a [`Dump`] that is asked for as much as the client can take.

// An index that a request leads beyond the end would end the router: what may be missing is asked for.
#![deny(clippy::indexing_slicing)]

mod address;
mod client;
mod dump;
mod events;
mod fou;
mod generic;
mod hmac;
mod host;
mod ioam;
mod link;
mod live;
mod mirror;
mod namespace;
mod neighbour;
mod netconf;
mod owner;
mod program;
mod psample;
mod request;
mod route;
mod router;
mod save;
mod saved;
mod state;
mod statistics;
mod stats;
mod sysctl;
mod tc;
mod updates;

pub use address::Address;
pub use client::Client;
pub use dump::{Dump, LARGE_PART, SMALL_PART};
pub use events::Notification;
pub use link::{Link, LinkKind, Tunnel, tunnel_ioctl};
pub use live::{Hooked, PROTOCOL, VlanDevice};
pub use namespace::{Device, Namespace};
pub use neighbour::Neighbour;
pub use owner::{Owner, owner, translate};
pub use program::{Offered, Program};
pub use psample::is_own_group;
pub use request::{Protocol, Request};
pub use route::{
    Matched, PolicyCount, Route, RouteWords, RoutesInWords, Sender, Shadow, VrfChange, VrfDoor, VrfRoute,
    matched, policy_counts, routes, routes_in_words,
};
pub use save::{Elsewhere, Saved};
pub use state::Router;
pub use statistics::{LabelCount, LinkCounts, PolicerCounts, QueueCounts, SidCount};
pub use sysctl::{Node, read_sysctl, sysctl_names, sysctl_node, write_sysctl};
pub use underpass_netlink::{Replies, RequestError};
