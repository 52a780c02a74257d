//! Kubernetes' way to a network: a chain of CNI plugins, unmodified, under `underpass exec`, and the example that does the same
//! with `ip` and `tc`.
//!
//! ```text
//! pod ──── R o0 ──── out
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use crate::{
    alone::shaping::{RATE, flood},
    net::{self, program, settle, turn, turn_alone},
    programs::{eventually, there},
};
use underpass_daemon::testbed::{Namespace, Router, join};

const NAME: &str = "cni_holds_the_rate_of_a_pod";

/// The CNI plugins of this version and cnitool, built. `None`, and said so, without Go or without its proxy of modules.
fn plugins() -> Option<PathBuf> {
    const VERSION: &str = "v1.7.1";
    const TOOL: &str = "github.com/containernetworking/cni/cnitool@v1.3.0";
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cni-tools-{VERSION}"));
    if directory.exists() {
        return Some(directory);
    }
    if !there(NAME, "go", "golang-go") {
        return None;
    }
    let made = tempfile::tempdir_in(directory.parent().unwrap()).unwrap();
    let plugins = ["main/ptp", "ipam/host-local", "meta/bandwidth"]
        .map(|plugin| format!("github.com/containernetworking/plugins/plugins/{plugin}@{VERSION}"));
    for packages in [&plugins[..], &[TOOL.to_owned()]] {
        let mut install = Command::new("go");
        // Without optimisation and debugging information it takes two thirds of the time.
        install.args(["install", "-buildvcs=false", "-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w"]);
        install.args(packages).env("CGO_ENABLED", "0").env("GOBIN", made.path());
        let installed = install.output().unwrap();
        if !installed.status.success() {
            net::skip(NAME, &format!("go install: {}", String::from_utf8_lossy(&installed.stderr)));
            return None;
        }
    }
    // Another run of the tests may have been faster.
    let _ = fs::rename(made.path(), &directory);
    Some(directory)
}

/// What there is, as the router shows it and as the kernel does.
fn present(host: &Namespace, router: &Router) -> String {
    let lines = "ip -br link; tc qdisc show; ip addr show; ip route show table all; ip rule show";
    let ours = router.run(lines).unwrap();
    // The kernel's devices of the router's tables stay for the next.
    ours + &host.run("ip -br link | grep -v ^upm; tc qdisc show | grep -v upm").unwrap()
}

/// A pod with a rate: ptp, which starts host-local, and bandwidth, by cnitool. What goes to the pod and what comes from it is
/// held to the rate, all is in the router, and nothing stays. Then the same by the example.
#[test]
fn cni_holds_the_rate_of_a_pod() {
    // Building is done beside others, but not beside one that measures.
    let Some(beside) = turn(NAME) else { return };
    let Some(plugins) = plugins() else { return };
    drop(beside);
    let Some(_turn) = turn_alone(NAME) else { return };
    let [host, pod, out] = ["host", "pod", "out"].map(net::namespace);
    join(&host, "o0", &out, "e0").unwrap();
    host.run("ip addr add 10.99.0.1/24 dev o0; ip link set o0 up").unwrap();
    out.run("ip addr add 10.99.0.2/24 dev e0; ip link set e0 up; ip route add default via 10.99.0.1")
        .unwrap();
    let router = Router::start(program(), &host, &[]).unwrap();
    settle(&out, "10.99.0.1", Duration::from_secs(10)).unwrap();
    let before = present(&host, &router);
    // The way of the kernel's frames past filters stays for a second.
    let comes_back = |before: &str| {
        eventually("nothing stays", || match present(&host, &router) {
            shown if shown == before => Ok(()),
            shown => Err(format!("{shown}\nbefore:\n{before}")),
        });
    };

    let directory = tempfile::tempdir().unwrap();
    let ipam = serde_json::json!({
        "type": "host-local", "subnet": "10.88.0.0/24", "dataDir": directory.path().join("ipam"),
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let chain = serde_json::json!({"cniVersion": "1.0.0", "name": "lab", "plugins": [
        {"type": "ptp", "ipam": ipam},
        {"type": "bandwidth", "ingressRate": RATE as u64, "ingressBurst": 2_000_000,
         "egressRate": RATE as u64, "egressBurst": 2_000_000},
    ]});
    fs::write(directory.path().join("10-lab.conflist"), chain.to_string()).unwrap();
    let cnitool = |command: &str| {
        let line = format!(
            "CNI_PATH={} NETCONFPATH={} {} exec -- {}/cnitool {command} lab {}",
            plugins.display(),
            directory.path().display(),
            program().display(),
            plugins.display(),
            pod.path()
        );
        host.run(&line).unwrap()
    };
    let result: serde_json::Value = serde_json::from_str(&cnitool("add")).unwrap();
    let names: Vec<&str> =
        result["interfaces"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    let [veth, "eth0", ifb] = names[..] else { panic!("{result}") };
    let qdiscs = router.run("tc qdisc show").unwrap();
    for wanted in [
        format!("tbf 1: dev {veth} root refcnt 2 rate 20Mbit burst 250000b lat 25ms"),
        format!("tbf 1: dev {ifb} root refcnt 2 rate 20Mbit burst 250000b lat 25ms"),
        format!("ingress ffff: dev {veth}"),
    ] {
        assert!(qdiscs.contains(&wanted), "{wanted} is not in {qdiscs}");
    }
    let kernels = host.run("tc qdisc show").unwrap();
    assert!(
        !kernels.contains("tbf") && !kernels.contains("ingress"),
        "it is the router that has them: {kernels}"
    );
    settle(&pod, "10.99.0.2", Duration::from_secs(10)).unwrap();
    // What a busy machine takes from one measurement it does not take from all.
    let mut seen = Vec::new();
    let held = (0..3).any(|_| {
        let rates = thread::scope(|scope| {
            let to = scope.spawn(|| flood(&out, &pod, "10.88.0.2", 5001).0);
            [flood(&pod, &out, "10.99.0.2", 5002).0, to.join().unwrap()]
        });
        seen.push(rates);
        rates.iter().all(|rate| (rate / RATE - 1.0).abs() < 0.02)
    });
    assert!(held, "from the pod and to it: {seen:?} bit/s\n{}", router.run("tc -s qdisc show").unwrap());
    cnitool("del");
    comes_back(&before);
    assert!(!pod.run("ip link show").unwrap().contains("eth0"));

    // The example, with the longest name that there is.
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cni-bandwidth/ifb-tbf.sh");
    let long = "pod456789012345";
    router
        .run(&format!(
            "ip link add {long} type veth peer name eth0 netns {}; ip link set {long} up",
            pod.path()
        ))
        .unwrap();
    let before = present(&host, &router);
    router.run(&format!("sh {script} add {long} 20mbit 250000")).unwrap();
    let qdiscs = router.run("tc qdisc show").unwrap();
    assert_eq!(qdiscs.matches("rate 20Mbit burst 250000b").count(), 2, "{qdiscs}");
    // Once more fails, and changes nothing.
    let (during, again) =
        (present(&host, &router), router.outcome(&format!("sh {script} add {long} 1mbit 9k")));
    assert_ne!(again.unwrap().status, 0);
    assert_eq!(present(&host, &router), during);
    router.run(&format!("sh {script} del {long}")).unwrap();
    comes_back(&before);
    router.stop().unwrap();
}
