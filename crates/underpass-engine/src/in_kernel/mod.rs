//! What programs in the kernel read of the tables, and what they count.
//!
//! A program carries a packet where a worker would come to the same. It walks the same tries ([`crate::lpm`]), which lie in
//! a [`region::Region`] that both can reach. What a leaf leads to is a *record* for it: a few words that say what most
//! packets need of an action, a next hop, a link ([`records`]). What has no record is a worker's.
//!
//! A record is never changed: another takes its place by one store, and its memory is used again when every worker has
//! begun another burst and every processor has left the programs that ran then ([`Programs::wait`]).

pub mod counters;
pub mod filters;
pub mod labels;
pub mod layout;
pub mod links;
pub mod records;
pub mod region;
pub mod tunnels;

use region::Region;

/// What the tables need so that programs in the kernel can read them.
pub struct Programs {
    /// The memory that they share with the programs.
    pub region: Region,
    /// How many processors run programs.
    pub processors: usize,
    /// Waits until no processor runs a program that has run when it was called.
    pub wait: Box<dyn Fn() + Send>,
}
