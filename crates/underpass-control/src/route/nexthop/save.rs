//! Next-hop objects as lines.

use super::{Kind, Object};
use crate::route::save::hop_words;
use crate::route::table::Family;
use crate::save::{Save, Words};

pub(crate) fn save_object(save: &mut Save<'_>, id: u32) {
    let Some(Object { family, protocol, kind, origin: _ }) = save.router.routes.objects.get(id) else {
        return;
    };
    let of = Family::from_number(*family);
    let mut line = Words::new(if of == Some(Family::V6) { "ip -6 nexthop add" } else { "ip nexthop add" });
    line.pair("id", id);
    match kind {
        Kind::Single(hop) => {
            // A gateway says by itself of which family it is.
            let family = hop.gateway.map(Family::of).or(of).unwrap_or(Family::V4);
            let Some(words) = hop_words(save, family, &format!("the next hop {id}"), hop) else { return };
            line.add(words);
        }
        Kind::Blackhole => {
            line.add("blackhole");
        }
        Kind::Group(members) => {
            let member = |(id, weight): &(u32, u16)| match weight {
                1 => id.to_string(),
                weight => format!("{id},{weight}"),
            };
            line.pair("group", members.iter().map(member).collect::<Vec<_>>().join("/"));
        }
    }
    line.some("protocol", (*protocol != 0).then_some(protocol));
    save.line(line);
}
