//! What `ip` and `bridge` show of a spanning tree, in hundredths of a second.

use underpass_netlink::bridge::{InTree, PortInTree};

use super::{HUNDREDTH, Port, Timer, Tree};

impl Tree {
    /// Where the bridge is in the tree. Linux: `br_fill_info`.
    pub fn shown(&self, now: u64) -> InTree {
        let times = [self.times.forward_delay, self.times.hello, self.times.max_age];
        InTree {
            root: self.root,
            root_port: self
                .root_port
                .and_then(|port| self.ports.get(&port))
                .map_or(0, |port| port.settings.number),
            root_path_cost: self.root_path_cost,
            topology_change: [self.topology_change, self.detected],
            timers: [self.hello, self.notification, self.change].map(|timer| left(timer, now)),
            times: times.map(|time| (time / HUNDREDTH) as u32),
            ageing_time: self.shortened.map(|time| (time / HUNDREDTH) as u32),
        }
    }

    /// Where a port is in the tree. Linux: `br_port_fill_attrs`.
    pub fn port_shown(&self, index: u32, now: u64) -> Option<PortInTree> {
        let Port { best, acknowledges, pending, message_age, forward_delay, hold, .. } =
            self.ports.get(&index)?;
        Some(PortInTree {
            root: best.root,
            bridge: best.bridge,
            port: best.port,
            cost: best.cost,
            acknowledges: *acknowledges,
            pending: *pending,
            timers: [*message_age, *forward_delay, *hold].map(|timer| left(timer, now)),
        })
    }

    /// After how many milliseconds stations are forgotten while they may be elsewhere. Linux: `hold_time`, which is half of what
    /// it shows.
    pub fn ageing(&self) -> Option<u64> {
        self.topology_change.then_some(self.times.forward_delay)
    }
}

fn left(timer: Timer, now: u64) -> u64 {
    timer.map_or(0, |at| at.saturating_sub(now) / HUNDREDTH)
}
