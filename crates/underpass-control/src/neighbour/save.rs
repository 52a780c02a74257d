//! Neighbours as lines.

use libc::{
    NTF_ROUTER, NUD_DELAY, NUD_FAILED, NUD_INCOMPLETE, NUD_NOARP, NUD_PERMANENT, NUD_PROBE, NUD_REACHABLE,
    NUD_STALE,
};

use super::Neighbour;
use crate::save::{Save, Words, mac};

/// `NTF_EXT_LEARNED`.
const EXT_LEARNED: u8 = 0x10;

pub(crate) fn save(save: &mut Save<'_>) {
    for (link, address, neighbour) in save.router.neighbours.iter() {
        let Neighbour { mac: lladdr, state, flags, protocol, updated: _ } = *neighbour;
        // Beside a kernel those that are learned come again by themselves.
        let learned = save.router.live.is_some() && state & (NUD_PERMANENT | NUD_NOARP) == 0;
        if !save.keeps_on(link) || learned || is_automatic(save, link, neighbour) {
            continue;
        }
        let name = match state {
            NUD_PERMANENT => "permanent",
            NUD_NOARP => "noarp",
            NUD_REACHABLE => "reachable",
            NUD_STALE => "stale",
            NUD_DELAY => "delay",
            NUD_PROBE => "probe",
            NUD_FAILED => "failed",
            NUD_INCOMPLETE => "incomplete",
            _ => "none",
        };
        let mut line = Words::new("ip neigh replace");
        line.add(address);
        line.some("lladdr", neighbour.usable().map(|_| mac(lladdr)));
        line.pair("dev", save.name(link)).pair("nud", name);
        line.when(flags & NTF_ROUTER != 0, "router").when(flags & EXT_LEARNED != 0, "extern_learn");
        line.some("protocol", Some(protocol).filter(|protocol| *protocol != 0));
        if flags & !(NTF_ROUTER | EXT_LEARNED) != 0 {
            save.left_out(format!("flags {flags:#x} of the neighbour {address} on {}", save.name(link)));
        }
        save.line(line);
    }
}

/// Whether Linux has made an entry for what needs no link-layer address.
fn is_automatic(save: &Save<'_>, link: u32, neighbour: &Neighbour) -> bool {
    let resolves = save.router.links.get(link).is_some_and(crate::Link::resolves);
    !resolves && neighbour.state == NUD_NOARP
}
