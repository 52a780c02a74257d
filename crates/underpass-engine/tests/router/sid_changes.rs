//! SIDs and the segments behind them that come, change and go between bursts: what a worker remembers of its look-ups never
//! leads a packet where the tables no longer do.

use proptest::prelude::*;
use underpass_engine::buffer::Pool;
use underpass_engine::tables::{Action, ActionId, Behaviour, Endpoint};
use underpass_packet::{ethernet, protocol};

use super::lab::{Lab, Watcher, frame, ip6, udp, v6, with_srh};

/// So many SIDs, and so many segments.
const COUNT: u8 = 4;

/// Between two bursts.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A SID's route is of this behaviour, or none.
    Sid(u8, u8),
    /// A segment's route leads to this port, to a SID, or nowhere.
    Segment(u8, u8),
}

struct Router {
    lab: Lab,
    sids: Vec<ActionId>,
}

impl Router {
    fn new(large: bool) -> Self {
        let mut lab = Lab::with_pool(Pool::new(512));
        let lookup = lab.lookup;
        let behaviours = [
            Behaviour::End { lookup },
            Behaviour::T { lookup },
            Behaviour::DT6 { lookup, vrf: true },
            Behaviour::DT46 { lookup },
        ];
        let link = lab.links[0];
        let sids = behaviours.map(|behaviour| {
            let counter = Some(lab.writer.add_counter());
            lab.writer.add_action(Action::Endpoint(Endpoint { behaviour, flavours: None, counter, link }))
        });
        if large {
            lab.spread();
        }
        Self { lab, sids: sids.into() }
    }

    fn change(&mut self, change: Change) {
        let (address, action) = match change {
            Change::Sid(n, action) => (sid(n), self.sids.get(usize::from(action)).copied()),
            Change::Segment(n, action) => {
                let actions = [self.lab.forward[0], self.lab.forward[1], self.sids[0]];
                (segment(n), actions.get(usize::from(action)).copied())
            }
        };
        match action {
            Some(action) => self.lab.writer.insert6(self.lab.fib6, v6(&address), 128, action),
            None => self.lab.writer.remove6(self.lab.fib6, v6(&address), 128),
        };
    }
}

fn sid(n: u8) -> String {
    format!("fc00::{n}")
}

fn segment(n: u8) -> String {
    format!("fc01:{n}::1")
}

/// A packet to a SID, and from there to a segment, or with a packet to it inside.
fn packet((n, to, inside): (u8, u8, bool)) -> Vec<u8> {
    let packet = if inside {
        let inner = ip6("2001:db8::9", &segment(to), protocol::UDP, &udp(8));
        ip6("fd00:0::2", &sid(n), protocol::IPV6, &inner)
    } else {
        let srh = with_srh(&[&sid(n), &segment(to)], 1, protocol::UDP, &udp(8));
        ip6("fd00:0::2", &sid(n), protocol::ROUTING, &srh)
    };
    frame(ethernet::IPV6, &packet)
}

#[test]
fn what_is_remembered_is_what_is_there() {
    let change = prop_oneof![
        (0..COUNT, 0..5_u8).prop_map(|(n, action)| Change::Sid(n, action)),
        (0..COUNT, 0..4_u8).prop_map(|(n, action)| Change::Segment(n, action)),
    ];
    let changes = proptest::collection::vec(change, 0..4);
    let burst = proptest::collection::vec((0..COUNT, 0..COUNT, prop::bool::weighted(0.2)), 1..24);
    let history = proptest::collection::vec((changes, burst), 1..8);
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(large in prop::bool::weighted(0.2), history in history)| {
        let (mut quick, mut slow) = (Router::new(large), Router::new(large));
        // At first all lead somewhere.
        let first = (0..COUNT).flat_map(|n| [Change::Sid(n, n), Change::Segment(n, 1)]).collect::<Vec<_>>();
        for change in &first {
            [&mut quick, &mut slow].into_iter().for_each(|router| router.change(*change));
        }
        for (changes, burst) in history {
            for change in changes {
                [&mut quick, &mut slow].into_iter().for_each(|router| router.change(change));
            }
            let frames: Vec<_> = burst.into_iter().map(packet).collect();
            // ICMP errors are limited, and told in another order: both routers have as many of them to tell.
            [&mut quick, &mut slow].into_iter().for_each(|router| router.lab.now += 1_000_000_000);
            let mut sent = quick.lab.send(&frames);
            let mut expected = slow.lab.send_watched(&frames, &mut Watcher);
            sent.sort();
            expected.sort();
            prop_assert_eq!(sent, expected);
            prop_assert_eq!(quick.lab.drops(), slow.lab.drops());
        }
        quick.lab.assert_accounted();
    });
}
