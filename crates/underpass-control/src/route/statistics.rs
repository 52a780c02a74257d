//! The local SIDs and what they have counted.

use underpass_netlink::Encap;
use underpass_netlink::seg6local::Action;

use crate::Router;
use crate::statistics::SidCount;

const fn name(action: Action) -> &'static str {
    match action {
        Action::End => "End",
        Action::EndX => "End.X",
        Action::EndT => "End.T",
        Action::EndDX2 => "End.DX2",
        Action::EndDX6 => "End.DX6",
        Action::EndDX4 => "End.DX4",
        Action::EndDT6 => "End.DT6",
        Action::EndDT4 => "End.DT4",
        Action::EndB6 => "End.B6",
        Action::EndB6Encaps => "End.B6.Encaps",
        Action::EndBpf => "End.BPF",
        Action::EndDT46 => "End.DT46",
    }
}

impl Router {
    /// Every local SID with what it has counted.
    pub fn sid_counts(&self) -> Vec<SidCount> {
        let mut sids = Vec::new();
        // Few of the routes are SIDs: which are, is found among what routes have in common.
        let locals: std::collections::BTreeSet<_> = self
            .routes
            .infos
            .iter()
            .filter(|(_, info)| {
                self.ways(info).iter().any(|hop| matches!(hop.encap(), Some(Encap::Seg6Local(_))))
            })
            .map(|(id, _)| id)
            .collect();
        if locals.is_empty() {
            return sids;
        }
        for ((family, table), routes) in &self.routes.tables {
            for (key, ids) in routes.after(None) {
                for info in
                    ids.iter().filter(|id| locals.contains(id)).filter_map(|id| self.routes.infos.get(*id))
                {
                    let prefix = key.prefix();
                    for hop in self.ways(info).iter() {
                        let Some(Encap::Seg6Local(local)) = hop.encap() else {
                            continue;
                        };
                        let counts = self.counts(hop);
                        sids.push(SidCount {
                            prefix: format!("{}/{}", family.address(prefix.bits), prefix.len),
                            table: *table,
                            behaviour: name(local.action),
                            count: underpass_engine::counters::Count {
                                packets: counts.packets,
                                bytes: counts.bytes,
                                errors: counts.errors,
                            },
                        });
                    }
                }
            }
        }
        sids
    }
}
