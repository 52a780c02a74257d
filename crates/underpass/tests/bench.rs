//! `underpass bench` as its users run it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_underpass")).arg("bench").args(arguments).output().unwrap()
}

#[test]
fn the_list_says_how_each_scenario_is_configured() {
    let output = bench(&["--list"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = text.lines().filter(|line| line.starts_with(char::is_alphabetic)).collect();
    for name in [
        "floor",
        "ip4",
        "ip6",
        "ip6-routes-10k",
        "ip6-routes-1m",
        "ip4-routes-1m",
        "srv6-end",
        "srv6-end-x",
        "srv6-end-t",
        "srv6-end-dx2",
        "srv6-end-dx4",
        "srv6-end-dx6",
        "srv6-end-dt4",
        "srv6-end-dt6",
        "srv6-end-dt46",
        "srv6-end-b6-encaps",
        "srv6-end-bpf",
        "srv6-h-encaps-1",
        "srv6-h-encaps-2",
        "srv6-h-encaps-4",
        "srv6-h-encaps-8",
        "srv6-h-encaps-13",
        "srv6-h-encaps-17",
        "srv6-h-encaps-21",
        "srv6-h-insert-2",
        "srv6-h-encaps-4in6-1",
        "srv6-h-encaps-red-2",
        "srv6-h-encaps-l2-1",
        "srv6-h-encaps-policies-10k",
        "srv6-hmac",
        "srv6-hmac-check",
        "srv6-hmac-inline",
        "srv6-un",
        "srv6-ua",
        "srv6-end-psp",
        "rpl-insert",
        "ioam-insert",
        "ioam-transit",
        "mpls-push-1",
        "mpls-push-2",
        "mpls-swap",
        "mpls-pop-ip4",
        "mpls-pop-ip6",
        "mpls-swap-1m",
        "mpls-ecmp-16",
        "counters",
    ] {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }
    let one = String::from_utf8(bench(&["--list", "srv6-end-dt4"]).stdout).unwrap();
    assert!(one.starts_with("srv6-end-dt4\n    ip link add vrf10 type vrf table 10\n"), "{one}");
    assert!(
        one.contains("    ip -6 route add fc00:1::1/128 encap seg6local action End.DT4 vrftable 10 count")
    );
}

#[test]
fn a_name_that_is_not_there_is_refused() {
    let output = bench(&["ip6", "ip7"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("underpass: no scenario is called 'ip7'; there are floor, ip4, "), "{text}");
}

#[test]
fn json_has_the_figures() {
    let output = bench(&["--json", "floor", "srv6-end-dx2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let records: Value = serde_json::from_slice(&output.stdout).unwrap();
    let records = records.as_array().unwrap();
    assert_eq!(
        records.iter().map(|r| r["name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["floor", "srv6-end-dx2"]
    );
    let figure = |record: &Value, name: &str| record[name].as_f64().unwrap();
    for record in records {
        assert!(figure(record, "packets") > 10_000.0);
        assert!(figure(record, "mpps") > 0.0 && figure(record, "floor_ns") > 0.0);
    }
    assert_eq!((figure(&records[0], "path_ns"), figure(&records[0], "path_ticks")), (0.0, 0.0));
    let path = &records[1];
    assert!(figure(path, "path_ns") > 0.0 && figure(path, "path_ticks") > 0.0);
    assert!((figure(path, "mpps") * figure(path, "path_ns") - 1e3).abs() < 1e-6);
    // Cycles are those of a core that runs at a rate that there is; whether it was shared is told.
    if cfg!(target_arch = "x86_64") {
        let cycles = figure(path, "path_cycles");
        assert!((0.1..10.0).contains(&(cycles / figure(path, "path_ticks"))), "{path}");
        assert!(figure(path, "with_sink_cycles") > cycles && path["core_shared"].is_boolean(), "{path}");
        assert_eq!(path["vpp"].as_u64(), Some(106));
    }
}

/// What is told of each count, and that ours moves nothing; no time is compared.
#[test]
fn segments_by_count() {
    let directory = tempfile::tempdir().unwrap();
    let svg = directory.path().join("plot.svg");
    let arguments = ["segments", "--json", "--rounds", "1", "--svg", svg.to_str().unwrap(), "srv6-encap"];
    let output = bench(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let cases: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((cases.as_array().unwrap().len(), cases[0]["case"].as_str()), (1, Some("srv6-encap")));
    let curves = cases[0]["curves"].as_array().unwrap();
    for (curve, model) in curves.iter().zip(["ours", "double"]) {
        assert_eq!(curve["model"], model);
        let points = curve["points"].as_array().unwrap();
        assert_eq!(points.len(), 30);
        for (count, point) in (1..).zip(points) {
            assert_eq!(
                (point["segments"].as_u64(), point["header_bytes"].as_u64()),
                (Some(count), Some(48 + 16 * count))
            );
            assert!(point["mpps"].as_f64().unwrap().is_finite());
            if model == "ours" {
                assert_eq!(point["moves"], 0);
            }
        }
    }
    assert_eq!(curves[1]["points"][12]["moves"], 2);
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.matches("<polyline").count() == 2);

    let output = bench(&["segments", "ip6"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.starts_with("underpass: no case is called 'ip6'; there are srv6-encap, srv6-inline"),
        "{text}"
    );
}

/// At most what the kernel's `struct mpls_route` takes. Of fewer routes the huge pages count, which are taken whole; of more
/// only this test takes longer.
#[test]
fn label_routes_take_less_memory_than_linuxs() {
    for (case, most, routes) in [
        ("ethernet,1,2", 56, 100_000),
        ("ipv6,1,1", 64, 100_000),
        ("ipv4,2,2", 88, 500_000),
        ("ipv4,16,2", 536, 60_000),
    ] {
        let output = bench(&["mpls-memory", "--case", case, "--routes", &routes.to_string()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let grown: usize = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        assert!((routes * 16..routes * most).contains(&grown), "{case}: {grown}");
    }
}
