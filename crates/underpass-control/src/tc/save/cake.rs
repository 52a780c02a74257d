//! `cake` in words.

use underpass_netlink::tc::cake::{self, Cake};

use super::rate_word;
use crate::save::{Save, Words};

/// What distinguishes flows, by number.
const FLOWS: [&str; 8] =
    ["flowblind", "srchost", "dsthost", "hosts", "flows", "dual-srchost", "dual-dsthost", "triple-isolate"];

/// The words of its parameters.
pub(super) fn words(save: &mut Save<'_>, line: &mut Words, settings: &Cake, name: &str) {
    let &Cake { rate, diffserv, cells, flow_mode, overhead, raw, mpu, interval, target, memory, .. } =
        settings;
    let &Cake { wash, ingress, ack_filter, split_gso, fwmark, .. } = settings;
    match rate {
        0 => line.add("unlimited"),
        rate => line.pair("bandwidth", rate_word(rate)),
    };
    line.add(match diffserv {
        cake::DIFFSERV4 => "diffserv4",
        cake::DIFFSERV8 => "diffserv8",
        cake::BESTEFFORT => "besteffort",
        cake::PRECEDENCE => "precedence",
        _ => "diffserv3",
    });
    match FLOWS.get(usize::from(flow_mode)) {
        Some(word) => {
            line.add(word);
        }
        None => save.left_out(format!("the flow mode {flow_mode} of the cake {name}")),
    }
    line.add(if wash { "wash" } else { "nowash" });
    line.add(match ack_filter {
        cake::ACK_NONE => "no-ack-filter",
        cake::ACK_AGGRESSIVE => "ack-filter-aggressive",
        _ => "ack-filter",
    });
    line.add(if split_gso { "split-gso" } else { "no-split-gso" });
    line.add(if ingress { "ingress" } else { "egress" });
    line.pair("rtt", format_args!("{interval}us"));
    if target != (interval / 20).max(1) {
        save.left_out(format!("the target of the cake {name}, for which tc has no word"));
    }
    // In this order, as `raw` says that there are no cells, and no overhead.
    line.when(raw, "raw").pair("overhead", overhead);
    line.add(match cells {
        cake::CELLS_ATM => "atm",
        cake::CELLS_PTM => "ptm",
        _ => "noatm",
    });
    line.some("mpu", (mpu != 0).then_some(mpu)).some("memlimit", (memory != 0).then_some(memory));
    line.some("fwmark", (fwmark != 0).then(|| format!("{fwmark:#x}")));
}
