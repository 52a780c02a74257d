//! Encapsulations that lead back to themselves.

use super::lab;
use super::lab::{Lab, frame, ip6, udp, v6};
use underpass_engine::drops::DropReason;
use underpass_engine::tables::{Action, ActionId, Behaviour, Discard, Headend, HeadendMode, Multipath};
use underpass_packet::{ethernet, protocol};

const MODES: [HeadendMode; 3] = [HeadendMode::Encap, HeadendMode::L2Encap, HeadendMode::Inline];

/// A policy whose only segment is `first`, which is looked up.
fn policy(lab: &Lab, mode: HeadendMode, first: &str) -> Headend {
    let list = if mode == HeadendMode::Inline { vec!["::", first] } else { vec![first] };
    let mut policy = lab.policy(mode, &list);
    policy.via.address = v6(first).into();
    policy.via.resolved = None;
    policy
}

/// A route to 2001:db8:N::/48 that encapsulates.
fn route(lab: &mut Lab, n: usize, policy: Headend) -> ActionId {
    let action = lab.writer.add_action(Action::Headend(policy));
    lab.writer.insert6(lab.fib6, v6(&format!("2001:db8:{n}::")), 48, action);
    action
}

fn packet(to: &str) -> Vec<u8> {
    frame(ethernet::IPV6, &ip6("fd00:0::2", to, protocol::UDP, &udp(9)))
}

/// A route whose own prefix has its first segment; Linux 6.12: "lwtunnel_input(): recursion limit reached".
#[test]
fn a_route_into_itself() {
    for mode in MODES {
        let mut lab = Lab::new();
        let policy = policy(&lab, mode, "2001:db8:5::9");
        route(&mut lab, 5, policy);
        assert_eq!(lab.send(&[packet("2001:db8:5::1")]), [], "{mode:?}");
        assert_eq!(lab.writer.dropped(DropReason::EncapsulationLoop), 1, "{mode:?}");
        assert_eq!(lab.writer.totals().buffer_moves_avoided, 1, "{mode:?}: found out at once");
        lab.assert_accounted();
    }
}

/// Two that lead to each other, of every two modes.
#[test]
fn two_routes_into_each_other() {
    for first in MODES {
        for second in MODES {
            let mut lab = Lab::new();
            let (there, back) = (policy(&lab, first, "2001:db8:6::9"), policy(&lab, second, "2001:db8:5::9"));
            route(&mut lab, 5, there);
            route(&mut lab, 6, back);
            assert_eq!(lab.send(&[packet("2001:db8:5::1")]), [], "{first:?} {second:?}");
            assert_eq!(lab.writer.dropped(DropReason::EncapsulationLoop), 1, "{first:?} {second:?}");
            lab.assert_accounted();
        }
    }
}

/// Linux 6.12 lets 8 encapsulations follow each other, as `ip -6 route add 2001:db8:N::/48 encap seg6 mode encap segs
/// 2001:db8:N+1::9 dev v1` for N = 5 to 12 does, and drops the packet before the ninth.
#[test]
fn eight_follow_each_other() {
    for mode in MODES {
        for count in [1, 8, 9] {
            let mut lab = Lab::new();
            for n in 5..5 + count {
                let policy = policy(&lab, mode, &format!("2001:db8:{}::9", n + 1));
                route(&mut lab, n, policy);
            }
            lab.writer.insert6(lab.fib6, v6(&format!("2001:db8:{}::", 5 + count)), 48, lab.forward[1]);
            let sent = lab.send(&[packet("2001:db8:5::1")]).len();
            assert_eq!(
                (sent, lab.writer.dropped(DropReason::EncapsulationLoop)),
                if count < 9 { (1, 0) } else { (0, 1) }
            );
            lab.assert_accounted();
        }
    }
}

/// End.B6 and End.B6.Encaps whose policy begins with their own SID: the error counts at the SID.
#[test]
fn a_sid_into_itself() {
    for mode in [HeadendMode::Inline, HeadendMode::Encap] {
        let mut lab = Lab::new();
        let list = if mode == HeadendMode::Inline { ["::", "fc00::1"] } else { ["fd00:1::9", "fc00::1"] };
        let mut policy = lab.policy(mode, &list);
        policy.via.address = v6("fc00::1").into();
        policy.via.resolved = None;
        let behaviour = if mode == HeadendMode::Inline {
            Behaviour::B6(policy.into())
        } else {
            Behaviour::B6Encaps(policy.into())
        };
        let counter = lab.sid("fc00::1", behaviour);
        let routed = lab::with_srh(&["fc00::1", "fd00:1::2"], 1, protocol::UDP, &udp(9));
        let packet = frame(ethernet::IPV6, &ip6("fd00:0::2", "fc00::1", protocol::ROUTING, &routed));
        assert_eq!(lab.send(&[packet]), [], "{mode:?}");
        assert_eq!(lab.writer.dropped(DropReason::EncapsulationLoop), 1, "{mode:?}");
        // It has come to the SID twice: Linux returns the error to either time.
        let counted = lab.writer.count(counter);
        assert_eq!((counted.packets, counted.bytes, counted.errors), (0, 0, 2), "{mode:?}");
        lab.assert_accounted();
    }
}

/// One way of several leads back: its flows are dropped, the others leave.
#[test]
fn a_way_of_several_into_itself() {
    let mut lab = Lab::new();
    let into_itself = policy(&lab, HeadendMode::Encap, "2001:db8:5::9");
    let onward = lab.policy(HeadendMode::Encap, &["fd00:1::9"]);
    let ways = [into_itself, onward].map(|policy| lab.writer.add_action(Action::Headend(policy)));
    let buckets = [((1 << 30) - 1, ways[0]), ((1 << 31) - 1, ways[1])];
    let multipath = lab.writer.add_action(Action::Multipath(Multipath { buckets: buckets.into() }));
    lab.writer.insert6(lab.fib6, v6("2001:db8:5::"), 48, multipath);
    let packets: Vec<_> = (0..64).map(|n| packet(&format!("2001:db8:5::{n:x}"))).collect();
    let sent: usize = packets.chunks(32).map(|burst| lab.send(burst).len()).sum();
    let dropped = lab.writer.dropped(DropReason::EncapsulationLoop) as usize;
    assert!(sent > 8 && sent + dropped == 64, "{sent} left, {dropped} dropped");
    lab.assert_accounted();
}

/// An error about a packet that a route has encapsulated may go by the same route.
#[test]
fn an_error_goes_by_the_route_that_it_is_about() {
    let mut lab = Lab::new();
    let there = policy(&lab, HeadendMode::Encap, "2001:db8:6::9");
    let action = route(&mut lab, 5, there);
    lab.writer.insert6(lab.fib6, v6("fd00:0::"), 32, action);
    let unreachable = lab.writer.add_action(Action::Discard(Discard::Unreachable));
    lab.writer.insert6(lab.fib6, v6("2001:db8:6::"), 48, unreachable);
    lab.send(&[packet("2001:db8:5::1")]);
    // The packet was unreachable, and then the error was.
    assert_eq!(lab.writer.dropped(DropReason::EncapsulationLoop), 0);
    assert_eq!((lab.writer.dropped(DropReason::Unreachable), lab.writer.totals().generated), (2, 1));
    lab.assert_accounted();
}
