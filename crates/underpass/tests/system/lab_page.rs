//! The page of a network, in a browser.

use std::{
    fs::{self, File},
    process::{Child, Command, Stdio},
    thread,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use crate::{
    browser::{self, Browser},
    lab::{lab, two_ports, wait_for},
    net::{skip, turn},
};

/// Two hosts, two routers, and between these SRv6 one way. A device has a name that would be markup.
const NETWORK: &str = r#"
topology:
  nodes:
    h1:
      kind: host
      exec: [ip link set eth0 up, ip addr add 10.1.0.2/24 dev eth0, ip route add default via 10.1.0.1]
    r1:
      kind: router
      exec:
        - for device in near 'x<b>y'; do ip link set $device up; done
        - ip addr add 10.1.0.1/24 dev near
        - ip addr add fd09::1/64 dev 'x<b>y' nodad
        - ip addr add 10.9.0.1/24 dev 'x<b>y'
        - ip -6 route add fc00:2::/64 via fd09::2
        - ip sr tunsrc set fd09::1
        - ip route add 10.2.0.0/24 encap seg6 mode encap segs fc00:2::d4 dev 'x<b>y'
    r2:
      kind: router
      exec:
        - ip link set near up
        - ip link set core up
        - ip addr add 10.2.0.1/24 dev near
        - ip addr add fd09::2/64 dev core nodad
        - ip addr add 10.9.0.2/24 dev core
        - ip -6 route add fc00:2::d4/128 encap seg6local action End.DX4 nh4 10.2.0.2 count dev near
        - ip route add 10.1.0.0/24 via 10.9.0.1
    h2:
      kind: host
      exec: [ip link set eth0 up, ip addr add 10.2.0.2/24 dev eth0, ip route add default via 10.2.0.1]
  links:
    - endpoints: ["h1:eth0", "r1:near"]
    - endpoints: ["r1:x<b>y", "r2:core"]
    - endpoints: ["r2:near", "h2:eth0"]
checks:
  - {node: h1, exec: ping -n -c 1 -W 1 10.2.0.2, within: 20}
"#;

/// Ends the lab, which removes its network, also where the test fails.
struct Ended(Child);

impl Ended {
    fn end(&mut self) -> bool {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGINT);
        self.0.wait().unwrap().success()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

#[test]
fn a_browser_shows_the_network() {
    let name = "a_browser_shows_the_network";
    let Some(_turn) = turn(name) else { return };
    let Some(browser) = browser::installed() else {
        return skip(name, "no Chromium (scripts/test-tools.sh installs it)");
    };
    let [directory, temporary, profile] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let path = |name: &str| directory.path().join(name);
    fs::write(path("net.yaml"), format!("name: page{}{NETWORK}", std::process::id())).unwrap();
    let (port, out) = (two_ports(), path("out"));
    let lab = lab(&["run", "net.yaml", "--keep", "--web", &port.to_string()], temporary.path())
        .current_dir(&directory)
        .stdout(File::create(&out).unwrap())
        .spawn()
        .unwrap();
    let mut lab = Ended(lab);
    let mut browser = Browser::start(Command::new("sh"), browser, profile.path());
    let printed = wait_for(&out, "enter-h2\n");
    let enter = printed.lines().find(|line| line.ends_with("/enter-h1")).unwrap().trim().to_owned();
    let pings = thread::spawn(move || {
        let flows = "ping -n -q -i 0.05 -c 300 10.2.0.2 & ping -n -q -i 0.1 -c 150 -W 1 10.77.0.1; wait";
        Command::new(enter).args(["sh", "-c", flows]).stdout(Stdio::null()).status().unwrap()
    });
    browser.call("Page.navigate", json!({ "url": format!("http://127.0.0.1:{port}/") }));

    // The drop is at the end of the link where the packets come in, and at no other.
    let dropping = "[...document.querySelectorAll('#network .drop')].map((one) => one.dataset.end).join()";
    browser.wait(&format!("{dropping} === 'r1:near'"));
    let shown = browser.evaluate("document.querySelector('#network .drop').textContent");
    assert!(shown.as_str().unwrap().starts_with("\u{2715} no-route "), "{shown}");
    browser.text("drops", |text| text.contains("r1:near") && text.contains("No route to the destination."));
    let drawn = browser.text("network", |text| text.contains("bit/s"));
    for part in ["h1", "r1", "r2", "h2", "1 SID", "x<b>y", "core"] {
        assert!(drawn.contains(part), "{part} is not in {drawn}");
    }
    assert_eq!(browser.evaluate("document.querySelector('main b')"), serde_json::Value::Null);

    // A click on a node shows what it has, and no other's.
    browser.evaluate(
        "document.querySelector('[data-node=r2]').dispatchEvent(new MouseEvent('click', { bubbles: true }))",
    );
    browser.text("node-title", |text| text == "Node r2");
    let sids = browser.text("sids", |text| text.contains("End.DX4"));
    assert!(sids.contains("fc00:2::d4/128"), "{sids}");
    // The policy is at the other one.
    browser.text("policies", |text| text == "no route has segments");
    browser.text("ends", |text| text.contains("r2:core") && !text.contains("r1:near"));
    browser.evaluate(
        "document.querySelector('[data-node=r1]').dispatchEvent(new MouseEvent('click', { bubbles: true }))",
    );
    browser.text("policies", |text| text.contains("r1") && text.contains("encap segs fc00:2::d4"));
    browser.evaluate("document.getElementById('routing').open = true");
    browser.text("headends", |text| text.contains("10.2.0.0/24") && text.contains("segs fc00:2::d4"));
    browser.text("routes", |text| text.contains("10.1.0.0/24"));

    // Two more clicks follow the flow, through what it is packed into.
    browser.evaluate("document.getElementById('pick').click()");
    for node in ["h1", "h2"] {
        browser.evaluate(&format!(
            "document.querySelector('[data-node={node}]').dispatchEvent(new MouseEvent('click', {{ bubbles: true }}))"
        ));
    }
    let told = browser.text("followed", |text| text.contains(" packets from h1 to h2 in three seconds"));
    assert!(!told.starts_with("No packet"), "{told}");
    let stops = "[...document.querySelectorAll('#ways .way:first-child > ol > li')].map((one) => one.textContent).join(' | ')";
    assert_eq!(
        browser.evaluate(stops),
        "h1 | r1: in by near out by x<b>y | r2: in by core out by near | sent to h2 by r2:near"
    );
    let steps = browser.evaluate("document.querySelector('#ways .way').textContent");
    let steps = steps.as_str().unwrap();
    assert!(steps.contains("H.Encaps") && steps.contains("End.DX4"), "{steps}");
    browser.wait("document.querySelectorAll('#network .link.way').length === 3");

    // The other flow ends at the first router.
    browser.evaluate("document.getElementById('to').value = '10.77.0.1'");
    browser.evaluate("document.getElementById('flow').requestSubmit()");
    browser.text("followed", |text| text.contains(" from h1 to 10.77.0.1 in three seconds"));
    assert_eq!(browser.evaluate(stops), "h1 | r1: in by near out by near | dropped at r1:near: no-route");

    browser.shoot("network");
    // What the server has kept of the last hour, of which some seconds are over.
    browser.evaluate("document.getElementById('hour').click()");
    browser.text("ends", |text| text.contains("last hour"));
    browser.wait("document.querySelector('#ends polyline').getAttribute('points') !== ''");
    assert_eq!(browser.complaints, Vec::<String>::new());

    assert!(lab.end());
    browser.text("trouble", |text| text.starts_with("The lab does not answer"));
    let _ = pings.join().unwrap();
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}
