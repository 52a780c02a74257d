//! The page beside `/metrics`, in a browser.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use underpass_daemon::{
    live::state::State,
    testbed::{self, Namespace, Router},
};

use crate::{
    browser::{self, Browser},
    net::{self, program, settle},
};

/// A router between two hosts, with a VRF, a SID, a label, a tunnel and a queue.
fn scene() -> ([Namespace; 2], Namespace, Router) {
    let [h1, r, h2] = ["h1", "r", "h2"].map(net::namespace);
    for (n, host) in [(1, &h1), (2, &h2)] {
        testbed::join(&r, &format!("v{n}"), host, "e0").unwrap();
        r.run(&format!("ip link set v{n} up; ip addr add 10.0.{n}.1/24 dev v{n}")).unwrap();
        host.run(&format!(
            "ip link set e0 up; ip addr add 10.0.{n}.2/24 dev e0; ip route add default via 10.0.{n}.1"
        ))
        .unwrap();
    }
    let router = Router::start(program(), &r, &["--workers", "1", "--metrics", "127.0.0.1:9117"]).unwrap();
    router
        .run(
            "sysctl -qw net.mpls.platform_labels=1000
             ip link add red type vrf table 100; ip link set red up
             ip -6 route add fc00:7::e/128 encap seg6local action End count dev v1
             ip -6 route add fd51::/64 encap seg6 mode encap segs fc00:2::1 dev v2
             ip -f mpls route add 777 via inet 10.0.2.2
             ip link add t0 type gre local 10.0.2.1 remote 10.0.2.2; ip link set t0 up
             tc qdisc add dev v2 root tbf rate 100mbit burst 10000 limit 100000
             tc actions add action police rate 1mbit burst 10000 conform-exceed drop/ok",
        )
        .unwrap();
    settle(&h1, "10.0.2.2", Duration::from_secs(5)).unwrap();
    ([h1, h2], r, router)
}

fn get(space: &Namespace, path: &str) -> String {
    let told = space.enter(|| {
        let mut connection = TcpStream::connect("127.0.0.1:9117").unwrap();
        write!(connection, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut told = String::new();
        connection.read_to_string(&mut told).unwrap();
        told
    });
    told.unwrap()
}

#[test]
fn what_programs_are_told() {
    let Some(_turn) = net::turn("what_programs_are_told") else { return };
    let (hosts, space, router) = scene();
    hosts[0].outcome("ping -n -c 1 -W 1 10.9.9.9").unwrap();
    let page = get(&space, "/");
    assert!(
        page.starts_with("HTTP/1.1 200 OK\r\n")
            && page.contains("\r\nContent-Security-Policy: default-src 'none'; ")
    );
    let told = get(&space, "/api/state.json");
    let state: State = serde_json::from_str(told.split_once("\r\n\r\n").unwrap().1).unwrap();
    let link = |name: &str| {
        state
            .links
            .iter()
            .find(|link| link.name == name)
            .unwrap_or_else(|| panic!("{name} is not in {:?}", state.links))
    };
    assert_eq!(
        (link("v1").kind.as_str(), link("v1").up, &link("v1").addresses[0][..]),
        ("port", true, "10.0.1.1/24")
    );
    assert_eq!((link("red").kind.as_str(), link("red").table), ("vrf", Some(100)));
    let tunnel = link("t0").tunnel.as_ref().unwrap();
    assert_eq!(
        (tunnel.local.as_str(), tunnel.remote.as_str(), tunnel.encap.as_ref()),
        ("10.0.2.1", "10.0.2.2", None)
    );
    assert!(link("v1").rx_packets > 0 && link("v2").tx_packets > 0);
    assert_eq!(state.stats.sids[0].prefix, "fc00:7::e/128");
    assert_eq!(state.labels[0].label, 777);
    let [queue] = &state.queues[..] else { panic!("{:?}", state.queues) };
    assert_eq!((&queue.device[..], &queue.kind[..], &queue.parent[..]), ("v2", "tbf", "root"));
    assert_eq!((queue.rate, queue.packets > 0), (Some(100_000_000), true));
    assert_eq!(state.policers[0].rate, Some(1_000_000));
    assert!(state.stats.drops["no-route"] >= 1);
    assert_eq!(state.meanings["no-route"], "No route to the destination.");
    let metrics = get(&space, "/metrics");
    for line in [
        "underpass_packets_dropped_total{reason=\"no-route\"} ",
        "underpass_link_up{device=\"v1\",kind=\"port\"} 1",
        "underpass_label_packets_total{label=\"777\"} 0",
        "underpass_policer_packets_total{index=\"1\"} 0",
        "underpass_tunnel_transmit_packets_total{device=\"t0\",kind=\"gre\"} ",
    ] {
        assert!(metrics.lines().any(|told| told.starts_with(line)), "{line}\n{metrics}");
    }
    // Who writes nothing holds up nobody.
    let silent = space.enter(|| TcpStream::connect("127.0.0.1:9117").unwrap()).unwrap();
    let asked = Instant::now();
    assert!(get(&space, "/metrics").contains("# EOF"));
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    drop(silent);
    // The same in a terminal, once.
    let text = space.run(&format!("{} top --once", program().display())).unwrap();
    for part in
        ["no-route", "No route to the destination.", "v1", "fc00:7::e/128", "777", "t0", "tbf", "police 1"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    router.stop().unwrap();
}

#[test]
fn a_browser_shows_the_router() {
    let name = "a_browser_shows_the_router";
    let Some(_turn) = net::turn(name) else { return };
    let Some(browser) = browser::installed() else {
        return net::skip(name, "no Chromium (scripts/test-tools.sh installs it)");
    };
    let (hosts, space, router) = scene();
    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(space.command("sh"), browser, directory.path());
    let flow = hosts[0].clone();
    let pings = thread::spawn(move || {
        flow.outcome("ping -n -q -i 0.01 -c 900 10.0.2.2 & ping -n -q -i 0.2 -c 40 -W 1 10.9.9.9; wait")
            .unwrap();
    });
    browser.call("Page.navigate", json!({ "url": "http://127.0.0.1:9117/" }));
    // Rates are there after the second reading.
    let rate = |text: &str| text.split("/s").any(|part| part.ends_with(|c: char| ('1'..='9').contains(&c)));
    let ports = browser.text("ports", |text| text.contains("v1") && text.contains("v2") && rate(text));
    assert!(ports.contains("up") && ports.contains("packet"), "{ports}");
    let drops = browser.text("drops", |text| text.contains("no-route") && rate(text));
    assert!(drops.contains("No route to the destination."), "{drops}");
    let drawn = browser.text("topology", |text| text.contains("bit/s"));
    for part in
        ["v1", "v2", "10.0.1.1/24", "red", "table 100", "fc00:7::e/128", "label 777", "t0", "gre → 10.0.2.2"]
    {
        assert!(drawn.contains(part), "{part} is not in {drawn}");
    }
    for (table, part) in [
        ("queues", "100Mbit/s"),
        ("policers", "1.00Mbit/s"),
        ("tunnels", "10.0.2.2"),
        ("workers", "worker 0"),
    ] {
        browser.text(table, |text| text.contains(part));
    }
    let busy = browser.evaluate("document.querySelectorAll('#topology .edge.busy').length");
    assert!(busy.as_u64() >= Some(2), "{busy}");
    assert_eq!(browser.complaints, Vec::<String>::new());
    // Where it runs, both families of a port, headends and routes.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    browser.text("place", |text| text == host.trim());
    assert!(ports.contains("10.0.1.1/24") && ports.contains("fe80::"), "{ports}");
    browser.evaluate("document.getElementById('routing').open = true");
    browser.text("headends", |text| text.contains("fd51::/64") && text.contains("segs fc00:2::1"));
    browser.text("routes", |text| text.contains("10.0.1.0/24") && text.contains("dev v1"));
    browser.shoot("router");
    // What the server has kept of the last hour, of which some seconds are over.
    browser.evaluate("document.getElementById('hour').click()");
    browser.text("ports", |text| text.contains("last hour"));
    browser.wait("document.querySelector('#ports polyline').getAttribute('points') !== ''");
    assert_eq!(browser.complaints, Vec::<String>::new());
    pings.join().unwrap();
    router.stop().unwrap();
    browser.text("trouble", |text| text.starts_with("The router does not answer"));
}
