//! Tunnels that come, change and go: what the fast path finds at once is what the slow path finds by a search.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use underpass_engine::counters::{Count, Direction};
use underpass_engine::tables::{
    GreFields, Link, LinkId, Tunnel, TunnelBound, TunnelId, TunnelKind, TunnelMode, TunnelRole,
};
use underpass_packet::{ethernet, protocol};

use super::lab::{Lab, Watcher, frame, ip4, ip6, udp};
use super::pair::{self, LOCAL4, REMOTE4};

/// Another end of tunnels.
const OTHER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const KINDS: [TunnelKind; 4] = [TunnelKind::Ipip, TunnelKind::Sit, TunnelKind::Gre, TunnelKind::Ip6tnl];
const KEY: u32 = 5;
/// TOS or traffic class of outer headers, without ECN.
const CLASS: u8 = 0x40;

/// What becomes of one of a few tunnels.
#[derive(Clone, Debug)]
struct Change {
    which: usize,
    /// It goes, if it is there; or only its device changes.
    goes: bool,
    stays: bool,
    /// Of the device.
    up: bool,
    kind: TunnelKind,
    has_local: bool,
    remote: Option<Ipv4Addr>,
    /// By which port its packets come in.
    bound: Option<usize>,
    mode: TunnelMode,
    receive: GreFields,
    copies_dscp: bool,
    allows_local_remote: bool,
    role: TunnelRole,
}

fn change() -> impl Strategy<Value = Change> {
    let one_of = |percent: f64| prop::bool::weighted(percent);
    let what = (0..6usize, one_of(0.3), one_of(0.3), one_of(0.8));
    let remote = prop::sample::select(vec![None, Some(REMOTE4), Some(REMOTE4), Some(OTHER4)]);
    let ends = (one_of(0.8), remote, prop::sample::select(vec![None, None, Some(0), Some(1)]));
    let mode = prop::sample::select(vec![TunnelMode::Any, TunnelMode::Ip4, TunnelMode::Ip6]);
    let kind = (prop::sample::select(&KINDS[..]), mode, prop::option::of(Just(KEY)), one_of(0.2));
    let role = prop::sample::select(vec![TunnelRole::Device; 6])
        .prop_union(prop::sample::select(vec![TunnelRole::Fallback, TunnelRole::External]));
    let rest = (one_of(0.2), one_of(0.2), role);
    (what, ends, kind, rest).prop_map(|(what, ends, (kind, mode, key, checksum), rest)| {
        let (which, goes, stays, up) = what;
        let (has_local, remote, bound) = ends;
        let (copies_dscp, allows_local_remote, role) = rest;
        let (mode, receive) = match kind {
            TunnelKind::Gre => (TunnelMode::Any, GreFields { key, checksum, sequence: false }),
            _ => (mode, GreFields::default()),
        };
        Change {
            which,
            goes,
            stays,
            up,
            kind,
            has_local,
            remote,
            bound,
            mode,
            receive,
            copies_dscp,
            allows_local_remote,
            role,
        }
    })
}

/// What becomes of frames.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    /// What has left, with the port.
    out: Vec<(u16, Vec<u8>)>,
    /// What links have counted.
    counts: Vec<Count>,
    dropped: u64,
}

/// A router, and its tunnels by number.
struct Router {
    lab: Lab,
    tunnels: [Option<(LinkId, TunnelId)>; 6],
    /// Devices of all kinds, a device for each number.
    links: Vec<LinkId>,
}

impl Router {
    fn new() -> Self {
        let mut lab = Lab::new();
        let links = (0..6).map(|_| pair::device(&mut lab, TunnelKind::Ipip, 0).0).collect();
        Self { lab, tunnels: [None; 6], links }
    }

    fn make(&mut self, change: &Change) {
        let link = self.links[change.which];
        let place = &mut self.tunnels[change.which];
        if let Some((_, id)) = place.filter(|_| change.goes) {
            self.lab.writer.remove_tunnel(id);
            *place = None;
            return;
        }
        let device = Link { ifindex: 9, port: None, up: change.up, ..self.lab.link(0) };
        self.lab.writer.set_link(link, device);
        if place.is_some() && change.stays {
            return;
        }
        let (_, like) = pair::device(&mut self.lab, change.kind, 0);
        let nowhere =
            |address: IpAddr| -> IpAddr { if address.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() } };
        let remote = match (change.remote, like.remote) {
            (None, remote) => nowhere(remote),
            (Some(OTHER4), IpAddr::V4(_)) => OTHER4.into(),
            // One of the router's own.
            (Some(OTHER4), IpAddr::V6(_)) => like.local,
            (Some(_), remote) => remote,
        };
        let tunnel = Tunnel {
            link,
            local: if change.has_local { like.local } else { nowhere(like.local) },
            remote,
            bound: change.bound.map(|port| TunnelBound::Link(self.lab.links[port])),
            mode: change.mode,
            receive: change.receive,
            copies_dscp: change.copies_dscp,
            allows_local_remote: change.allows_local_remote,
            role: change.role,
            ..like
        };
        match place {
            Some((_, id)) => self.lab.writer.set_tunnel(*id, tunnel),
            None => *place = Some((link, self.lab.writer.add_tunnel(tunnel))),
        }
    }

    fn counted(&self) -> (Vec<Count>, Vec<(&'static str, u64)>) {
        let links = self.links.iter().chain(&self.lab.links);
        let counts = links.map(|link| self.lab.writer.link_count(*link, Direction::Receive)).collect();
        (counts, self.lab.drops())
    }

    /// Sends them, by the slow path if they are watched.
    fn send(&mut self, frames: &[Vec<u8>], watched: bool) -> Outcome {
        // So much later that no error is withheld.
        self.lab.now += 10_000_000_000;
        let (before, drops_before) = self.counted();
        let mut out =
            if watched { self.lab.send_watched(frames, &mut Watcher) } else { self.lab.send(frames) };
        out.sort();
        let (after, drops) = self.counted();
        let sum = |drops: &[(&str, u64)]| drops.iter().map(|(_, n)| n).sum::<u64>();
        let counts = after.into_iter().zip(before).map(|(after, before)| after - before).collect();
        Outcome { out, counts, dropped: sum(&drops) - sum(&drops_before) }
    }
}

/// What may come out of the tunnels, or is for none.
fn frames() -> Vec<Vec<u8>> {
    // They go on by port 1.
    let inside4 = ip4([10, 2, 0, 7], [10, 1, 0, 9], protocol::UDP, &udp(4));
    let inside6 = ip6("fd00:2::7", "fd00:1::9", protocol::UDP, &udp(4));
    let mut frames = Vec::new();
    for remote in [REMOTE4, OTHER4] {
        let outer = |protocol: u8, inside: &[u8]| {
            let mut outer = ip4(remote.octets(), LOCAL4.octets(), protocol, inside);
            outer[1] = CLASS;
            pair::mend(&mut outer);
            frame(ethernet::IPV4, &outer)
        };
        frames.push(outer(protocol::IPV4, &inside4));
        frames.push(outer(protocol::IPV6, &inside6));
        frames.push(outer(protocol::GRE, &pair::gre(&inside4, None)));
        frames.push(outer(protocol::GRE, &pair::gre(&inside4, Some(KEY))));
    }
    for remote in ["fd00::2", "fd00::1"] {
        let outer = |protocol: u8, inside: &[u8]| {
            let mut outer = ip6(remote, "fd00::1", protocol, inside);
            outer[0] |= CLASS >> 4;
            frame(ethernet::IPV6, &outer)
        };
        frames.push(outer(protocol::IPV4, &inside4));
        frames.push(outer(protocol::IPV6, &inside6));
    }
    frames
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn fast_and_slow_path_find_the_same(changes in prop::collection::vec(change(), 1..24)) {
        let (mut router, frames) = (Router::new(), frames());
        for change in changes {
            router.make(&change);
            let common = router.send(&frames, false);
            prop_assert_eq!(common, router.send(&frames, true), "after {:?}", change);
        }
        router.lab.assert_accounted();
    }
}

/// The frames do come out of such tunnels, and some come out of none.
#[test]
fn frames_come_out() {
    let mut router = Router::new();
    let like = Change {
        which: 0,
        goes: false,
        stays: false,
        up: true,
        kind: TunnelKind::Ipip,
        has_local: true,
        remote: Some(REMOTE4),
        bound: None,
        mode: TunnelMode::Any,
        receive: GreFields::default(),
        copies_dscp: false,
        allows_local_remote: false,
        role: TunnelRole::Device,
    };
    for (which, kind) in KINDS.into_iter().enumerate() {
        router.make(&Change { which, kind, ..like.clone() });
        let Outcome { counts, .. } = router.send(&frames(), false);
        assert!(counts[which].packets > 0, "{kind:?}");
    }
    let Outcome { out, dropped, .. } = router.send(&frames(), false);
    let left = out.iter().filter(|(port, _)| *port == 1).count();
    assert!(left == 5 && dropped >= 7, "{left} left, {dropped} dropped");
}
