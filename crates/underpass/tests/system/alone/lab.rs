//! Labs that measure, or that lose no packet.

use crate::{lab_ends::Lab, net::turn_alone};

/// Every request of a few short rounds is answered, and labels cost no multiple of plain forwarding.
#[test]
fn the_paths_of_the_commit() {
    let Some(_turn) = turn_alone("the_paths_of_the_commit") else { return };
    let lab = Lab::new();
    let said = lab.run(&["mpls", "--json", "--rounds", "3", "--time", "0.03"]);
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let mut seen = Vec::new();
    for case in report["cases"].as_array().unwrap() {
        seen.push((
            case["family"].as_str().unwrap().to_owned(),
            case["labels"].as_u64().unwrap(),
            case["nexthops"].as_u64().unwrap(),
        ));
        // Plain packets the kernel carries by itself, where it can; labelled ones are workers'.
        let least = if underpass_daemon::live::try_fast_path().is_ok() { 0.1 } else { 0.5 };
        assert!(case["ratio"].as_f64().unwrap() > least, "{case}");
        let latency = case["mpls"]["latency"].as_array().unwrap();
        assert!(latency.windows(2).all(|pair| pair[0].as_f64() <= pair[1].as_f64()), "{case}");
    }
    let wanted = ["IPv4", "IPv6"].into_iter().flat_map(|family| {
        [(1, 1), (2, 1), (1, 2), (2, 2)].map(|(labels, nexthops)| (family.to_owned(), labels, nexthops))
    });
    assert_eq!(seen, wanted.collect::<Vec<_>>());
    lab.left_nothing("it ended");
}

/// A short run of what `make soak` does for an hour: traffic, changes, a killed router.
#[test]
fn everything_at_once_for_a_while() {
    let Some(_turn) = turn_alone("everything_at_once_for_a_while") else { return };
    let lab = Lab::new();
    let said = lab.run(&["soak", "--minutes", "0.2", "--rate", "1500"]);
    assert!(said.contains("router killed") && said.ends_with("all held\n"), "{said}");
    lab.left_nothing("it ended");
}

/// Every tunnel of the series carries the same bytes there and back, and counts them; then streams and transactions.
#[test]
fn the_tunnels_of_the_series() {
    let Some(_turn) = turn_alone("the_tunnels_of_the_series") else { return };
    let lab = Lab::new();
    let said = lab.run(&["fou", "--json", "--rounds", "1", "--time", "0.04", "--connections", "8"]);
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let flows = |case: &serde_json::Value| {
        assert!(number(&case["stream"]["mbits"]) > 0.0, "{case}");
        assert!(number(&case["transactions"]["rate"]) > 0.0, "{case}");
        let latency = case["transactions"]["latency"].as_array().unwrap();
        assert!(
            latency.len() == 4 && latency.windows(2).all(|pair| number(&pair[0]) <= number(&pair[1])),
            "{case}"
        );
    };
    let (mut seen, mut hashes) = (Vec::new(), Vec::new());
    for case in report["tunnels"].as_array().unwrap() {
        flows(case);
        assert!(number(&case["cut"]["mbits"]) > 0.0, "{case}");
        let (carried, counted) = (&case["carried"], case["counted"].as_array().unwrap());
        assert_eq!(carried["bytes"], 1 << 20, "{case}");
        assert!(counted.len() == 4 && counted.iter().all(|bytes| number(bytes) > 1e6), "{case}");
        hashes.push(carried["sha256"].as_str().unwrap().to_owned());
        seen.push(["tunnel", "encapsulation"].map(|key| case[key].as_str().unwrap().to_owned()));
    }
    // SHA-256 of a mebibyte of SplitMix64 from 1 on, the low byte of a word first.
    assert_eq!(hashes, [HASH; 9]);
    let wanted = ["GRE", "IPIP", "SIT"].into_iter().flat_map(|tunnel| {
        ["fou-csum", "fou", "none"].map(|encapsulation| [tunnel, encapsulation].map(str::to_owned))
    });
    assert_eq!(seen, wanted.collect::<Vec<_>>());
    let references = report["references"].as_array().unwrap();
    references.iter().for_each(flows);
    assert_eq!((references.len(), report["goals"].as_array().unwrap().len()), (3, 3));
    lab.left_nothing("measured");
}

const HASH: &str = "85b66b3a5816d686deb42f2d2473d9a7121ceb75c822b838f958c76ca86ed8ea";

/// What is limited far above the load still comes through, by each of the ways to limit it.
#[test]
fn limits_of_the_experiment_let_packets_through() {
    let Some(_turn) = turn_alone("limits_of_the_experiment_let_packets_through") else { return };
    let said = Lab::new().run(&["police", "--json", "--rounds", "1", "--time", "0.04", "--no-accuracy"]);
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let limits = report["limits"].as_array().unwrap();
    let found: Vec<_> =
        limits.iter().map(|limit| (limit["router"].as_str(), limit["limit"].as_str())).collect();
    let [none, police, ifb, ingress] =
        ["no limit", "police at ingress", "ifb + HTB", "HTB at ingress, no ifb"].map(Some);
    let (ours, kernel) = (Some("Underpass"), Some("this kernel"));
    assert_eq!(
        found,
        [(ours, none), (ours, police), (ours, ifb), (ours, ingress), (kernel, none), (kernel, ifb)]
    );
    for limit in limits {
        assert!(limit["packets"].as_f64().unwrap() > 0.0, "{limit}");
    }
}
