//! A zebra that runs on while its router ends and another one comes.

use std::{fs, thread, time::Duration};

use underpass_daemon::testbed::Router;

use super::{Frr, bgp, eventually, give, there, tidy, twin, without_ids};
use crate::net::{self, program};

/// zebra under `underpass exec` goes over to the next router: it neither spins nor fills its log, and sees what that has.
#[test]
fn zebra_goes_over_to_the_next_router() {
    const NAME: &str = "zebra_goes_over_to_the_next_router";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME)) else { return };
    let namespace = net::namespace("frr");
    let directory = tempfile::tempdir().unwrap();
    give(directory.path());
    let socket = directory.path().join("netlink.sock");
    let path = socket.display().to_string();
    let start = || {
        let arguments = ["--offline", "--socket", &path, "--port", "p0"];
        let router = Router::start(program(), &namespace, &arguments).unwrap();
        give(&socket);
        router
    };
    let exec = |lines: &str| {
        let mut command = namespace.command(program());
        command.args(["exec", "--socket", &path, "--", "sh", "-ec", lines]);
        assert!(command.status().unwrap().success(), "{lines}");
    };
    let router = start();
    let mut frr = Frr::new(&namespace, &["exec", "--socket", &path]);
    frr.start("zebra", "");
    let (ticks, log) = (|| frr.zebra_ticks(), || frr.log());
    router.kill().unwrap();
    let (before, said) = (ticks(), log().len());
    thread::sleep(Duration::from_secs(3));
    // Hundredths of a second.
    assert!(ticks() - before < 30, "zebra spins: {} in 3 s\n{}", ticks() - before, log());
    assert!(log().len() - said < 4000, "{}", log());

    let _router = start();
    // Twice a second the library looks for a router; what changes before is lost, and zebra does not read it again.
    thread::sleep(Duration::from_secs(2));
    exec("ip link set p0 up; ip addr add 10.9.0.1/24 dev p0; ip link add d9 type dummy");
    eventually("zebra sees what the next router has", || {
        let shown = frr.vtysh(&["show interface brief"]);
        if shown.contains("10.9.0.1/24") && shown.contains("d9") { Ok(()) } else { Err(shown + &log()) }
    });
    assert!(log().len() - said < 8000, "{}", log());
}

/// What zebra has installed is there when a router that was killed is back, under the interface indices that zebra knows;
/// what it does from then on reaches the router. With a VRF of another index zebra 8.4 ends.
#[test]
fn zebra_has_its_vrf_routes_and_sids_over_a_restart() {
    const NAME: &str = "zebra_has_its_vrf_routes_and_sids_over_a_restart";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME)) else { return };
    let namespace = twin("frr");
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let state_text = state.to_str().unwrap();
    let start = || {
        let arguments = ["--attach", "p0", "--attach", "p1", "--socket-group", "frr", "--state", state_text];
        Router::start(program(), &namespace, &arguments).unwrap()
    };
    let router = start();
    let mut frr = Frr::new(&namespace, &["exec"]);
    frr.start("zebra", "");
    frr.locator(1);
    frr.start("staticd", "");
    frr.start("bgpd", &bgp(1, 2));
    // A VRF that is down when bgpd hears of it leaves the SIDs inactive in zebra for ever.
    router
        .run(
            "ip addr del 10.1.0.1/24 dev p1
             ip link add vrf-1 up type vrf table 100
             ip link set p1 master vrf-1
             ip addr add 10.1.0.1/24 dev p1",
        )
        .unwrap();
    eventually("zebra sees the VRF", || {
        let shown = frr.vtysh(&["show interface p1"]);
        if shown.contains("vrf: vrf-1") { Ok(()) } else { Err(shown) }
    });
    // Its next hop is to be found in the VRF alone.
    frr.configure(&["ip route 10.20.0.0/16 10.1.0.7 vrf vrf-1", "ipv6 route fd20::/32 fd00::2"]);
    let shown = |router: &Router| {
        let lines = "ip -N route show table 100 proto 196; ip -N -6 route show proto 196; ip -N -6 route show proto 186";
        let index = "ip -o link show vrf-1 | cut -d: -f1";
        let shown = without_ids(&tidy(&router.run(&format!("{lines}; {index}")).unwrap()));
        let mut lines: Vec<_> = shown.lines().collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    let has = |router: &Router, words: &[&str]| {
        let shown = shown(router);
        match words.iter().all(|word| shown.contains(word)) {
            true => Ok(()),
            false => Err(format!("{shown}\n{}", frr.log())),
        }
    };
    let first = ["10.20.0.0/16 ", "fd20::/32 ", "End.DT4 ", "End.DT6 "];
    eventually("zebra has programmed the router", || has(&router, &first));
    let before = shown(&router);
    eventually("the state is kept", || {
        let kept = fs::read_to_string(state.join("state.conf")).unwrap_or_default();
        // The route by a device of the kernel's stays there.
        let own = first.iter().filter(|word| !word.starts_with("fd20"));
        if own.into_iter().all(|word| kept.contains(word)) { Ok(()) } else { Err(kept) }
    });

    router.kill().unwrap();
    let (ticks, said) = (frr.zebra_ticks(), frr.log().len());
    thread::sleep(Duration::from_secs(2));
    let router = start();
    eventually("all is there again", || {
        let shown = shown(&router);
        if shown == before { Ok(()) } else { Err(format!("{shown}\nwas\n{before}")) }
    });
    eventually("zebra's routes are installed", || {
        let routes = frr.vtysh(&["show ip route vrf vrf-1", "show ipv6 route", "show interface brief"]);
        let whole = ["S>* 10.20.0.0/16 ", "S>* fd20::/32 ", "vrf-1 "];
        if whole.iter().all(|word| routes.contains(word)) { Ok(()) } else { Err(routes + &frr.log()) }
    });
    frr.configure(&[
        "ip route 10.21.0.0/16 10.1.0.8 vrf vrf-1",
        "ipv6 route fd21::/32 fd00::2",
        "no ipv6 route fd20::/32 fd00::2",
    ]);
    eventually("what zebra does from then on reaches the router", || {
        has(&router, &["10.20.0.0/16 ", "10.21.0.0/16 ", "fd21::/32 ", "End.DT4 "])
            .and_then(|()| if shown(&router).contains("fd20::") { Err(shown(&router)) } else { Ok(()) })
    });
    // Hundredths of a second, with all that it had to do.
    assert!(frr.zebra_ticks() - ticks < 100, "zebra spins: {}\n{}", frr.zebra_ticks() - ticks, frr.log());
    assert!(frr.log().len() - said < 8000, "{}", frr.log());
    drop(frr);
    router.stop().unwrap();
}
