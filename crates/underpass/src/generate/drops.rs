//! `docs/reference/drops.md`: why packets are dropped, and what to do.

use std::fmt::Write as _;

use underpass_daemon::live::PORT_REASONS;
use underpass_engine::drops::DropReason;

use super::advice::{advice, at_port};

const TOP: &str = "<!-- Written by `make reference`. -->
# Drops

Every packet that is neither sent nor given to the host is counted under one of these names. `underpass stats` and `underpass top` show
them, Prometheus gets them as `underpass_packets_dropped_total`, and `underpass trace --drops` shows the packets.
[Debugging a black hole](../how-to/black-hole.md) goes through an example.
";

const PORTS: &str = "
## At ports

A port has reasons of its own, for frames that did not come to the path of packets or did not leave it. `underpass stats` shows them
beside the port.
";

/// The page.
pub fn page() -> String {
    let mut page = TOP.to_owned();
    page.push_str("\n## In the path of packets\n");
    for reason in DropReason::ALL {
        let _ = write!(
            page,
            "\n### {}\n\n{}\n\n*What to do:* {}\n",
            reason.name(),
            reason.meaning(),
            advice(*reason)
        );
    }
    page.push_str(PORTS);
    for (reason, meaning) in PORT_REASONS {
        // The path of packets has a reason `no-buffer` too.
        let _ = write!(page, "\n### port: {reason}\n\n{meaning}\n\n*What to do:* {}\n", at_port(reason));
    }
    page
}
