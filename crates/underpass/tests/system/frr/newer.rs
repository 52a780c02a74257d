//! FRR of a newer Debian (`scripts/newer-tools.sh`) under `underpass exec`.

use std::{fs, path::Path, thread, time::Duration};

use underpass_daemon::testbed::{Namespace, Router};

use super::{Frr, bgp, eventually, give, tidy, twin, without_ids};
use crate::{
    net::{self, program},
    newer::Tools,
};

/// The newer `/usr`, and a directory for the sockets by which FRR's daemons find mgmtd.
const OVER: &str =
    "mount --bind \"$0\" /usr && mkdir -p /run/frr && mount --bind \"$1\" /run/frr && shift && exec \"$@\"";

/// FRR 10 sees VRFs and interfaces, and installs routes, next-hop groups and SIDs of an L3VPN; all of it is there again after a
/// router that was killed, and what FRR does from then on reaches the next one.
#[test]
fn frr_10_has_all_over_a_restart() {
    const NAME: &str = "frr_10_has_all_over_a_restart";
    let Some(_turn) = net::turn(NAME) else { return };
    let Some(tools) = Tools::there(NAME) else { return };
    if nix::unistd::User::from_name("frr").unwrap().is_none() {
        return net::skip(NAME, "there is no user frr (Debian: frr)");
    }
    let namespace = twin("frr-10");
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let state_text = state.to_str().unwrap();
    let sockets = tempfile::tempdir().unwrap();
    give(sockets.path());
    let start = || {
        let arguments = ["--attach", "p0", "--attach", "p1", "--socket-group", "frr", "--state", state_text];
        Router::start(program(), &namespace, &arguments).unwrap()
    };
    let router = start();
    let newer = |lines: &str| tidy(&router_lines(&namespace, &tools, lines));
    newer(
        "ip addr del 10.1.0.1/24 dev p1
         ip link add vrf-1 up type vrf table 100
         ip link set p1 master vrf-1
         ip addr add 10.1.0.1/24 dev p1",
    );
    let mut frr = of_tools(&namespace, &tools, sockets.path());
    frr.start("zebra", "");
    frr.locator(1);
    frr.start("staticd", "");
    frr.start("bgpd", &bgp(1, 2));
    eventually("zebra sees the VRF", || {
        let shown = frr.vtysh(&["show interface p1", "show vrf"]);
        if shown.contains("vrf: vrf-1") && shown.contains("table 100") { Ok(()) } else { Err(shown) }
    });
    frr.configure(&[
        "ip route 10.20.0.0/16 10.1.0.7 vrf vrf-1",
        "ip route 10.30.0.0/16 10.0.0.7",
        "ip route 10.30.0.0/16 10.0.0.8",
        "ipv6 route fd20::/32 fd00::2",
    ]);
    let shown = || {
        let lines = "ip -N route show table 100 proto 196; ip -N route show proto 196
                     ip -N -6 route show proto 196; ip -N -6 route show proto 186";
        without_ids(&newer(lines))
    };
    let whole = [
        "10.20.0.0/16 via 10.1.0.7 dev p1 ",
        "nexthop via 10.0.0.7 dev p0 weight 1",
        "nexthop via 10.0.0.8 dev p0 weight 1",
        "fd20::/32 via fd00::2 dev p0 ",
        "seg6local action End.DT4 vrftable 100 dev vrf-1 ",
        "seg6local action End.DT6 table 100 dev vrf-1 ",
    ];
    let has = |words: &[&str]| {
        let shown = shown();
        let missing: Vec<_> = words.iter().filter(|word| !shown.contains(**word)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} in\n{shown}\n{}", frr.log())) }
    };
    eventually("zebra has programmed the router", || has(&whole));
    assert!(newer("ip nexthop show").contains(" group "), "ECMP is a next-hop group");
    eventually("the state is kept", || {
        let kept = fs::read_to_string(state.join("state.conf")).unwrap_or_default();
        let own = ["10.20.0.0/16 ", "End.DT4 ", "End.DT6 "];
        if own.iter().all(|word| kept.contains(word)) { Ok(()) } else { Err(kept) }
    });
    router.kill().unwrap();
    thread::sleep(Duration::from_secs(1));
    let router = start();
    eventually("all is there again", || has(&whole));
    frr.configure(&["ip route 10.21.0.0/16 10.1.0.8 vrf vrf-1", "no ip route 10.30.0.0/16 10.0.0.8"]);
    eventually("what zebra does from then on reaches the router", || {
        has(&["10.21.0.0/16 via 10.1.0.8 dev p1 ", "10.30.0.0/16 via 10.0.0.7 dev p0 ", whole[4], whole[5]])
    });
    drop(frr);
    router.stop().unwrap();
}

/// The newer FRR, which finds mgmtd by sockets in this directory.
pub(super) fn of_tools(namespace: &Namespace, tools: &Tools, sockets: &Path) -> Frr {
    let mut frr = Frr::new(namespace, &["exec"]);
    let around = ["unshare", "--mount", "sh", "-c", OVER, tools.words()[4], sockets.to_str().unwrap()];
    frr.around = around.map(str::to_owned).to_vec();
    frr.start("mgmtd", "");
    frr
}

/// What lines of the newer `ip` print, through the router of a namespace.
fn router_lines(namespace: &Namespace, tools: &Tools, lines: &str) -> String {
    let mut command = namespace.command("unshare");
    command.args(tools.words()).arg(program()).args(["exec", "--", "sh", "-ec", lines]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{lines}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
