//! Words that several kinds of tunnels have.

use crate::save::Words;

/// The TTL of a kind that can have the host's.
pub(super) fn ttl(words: &mut Words, inherits: bool, ttl: u8) {
    match (inherits, ttl) {
        (true, _) => words.pair("ttl", "inherit"),
        (false, 0) => words.pair("ttl", "auto"),
        (false, ttl) => words.pair("ttl", ttl),
    };
}

/// The TOS over IPv4, or of a kind that has one over IPv6 too.
pub(super) fn tos(words: &mut Words, tos: u8) {
    match tos {
        1 => words.pair("tos", "inherit"),
        tos => words.pair("tos", format_args!("{tos:#x}")),
    };
}
