//! Lines that a router saves make the same router: configurations of the golden packets go into one, its lines into
//! another, and the tools show the same of both.
//!
//! `UNDERPASS_SAVE=tunnel/` takes all cases whose name begins so, `UNDERPASS_SAVE=` all that there are; without it, those
//! that have a line of a kind which no case before had.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use underpass_daemon::offline::Offline;
use underpass_daemon::script::{self, configure};

const PORTS: [&str; 2] = ["p0,mac=02:00:00:00:00:01", "p1,mac=02:00:00:00:00:02"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

fn router() -> Offline {
    Offline::new(&PORTS.map(|port| port.parse().unwrap()), 1).unwrap().0
}

fn run(router: &Offline, text: &str) -> Result<(), String> {
    let file = Path::new("config");
    let lines = script::parse(file, text).map_err(|error| error.to_string())?;
    configure(router, file, &lines).map_err(|error| error.to_string())
}

/// What the tools show, without what differs from router to router and from time to time.
fn shown(router: &Offline) -> String {
    let output = router.run_line("ip -j link show").unwrap().stdout;
    let links: serde_json::Value = serde_json::from_slice(&output).unwrap();
    let links: Vec<&str> =
        links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap()).collect();
    let mut tc = "qdisc show\nactions list action gact\n".to_owned();
    for kind in ["police", "mirred", "mpls", "vlan", "skbedit", "tunnel_key", "csum", "pedit", "sample"] {
        writeln!(tc, "actions list action {kind}").unwrap();
    }
    for link in &links {
        writeln!(tc, "class show dev {link}").unwrap();
        for place in ["ingress", "egress", ""] {
            writeln!(tc, "filter show dev {link} {place}\nchain show dev {link} {place}").unwrap();
        }
    }
    let ip = "link show\naddr show\nroute show table all\nnexthop show\nrule show\nneigh show\nfou show\n\
              sr tunsrc show\nsr hmac show\nioam namespace show\nioam schema show\n";
    let ip6 = "route show table all\nrule show\n";
    let bridge = "link show\nvlan show\nfdb show\n";
    let tools: [(&[&str], &str); 5] = [
        (&["bridge", "-d"], bridge),
        (&["ip", "-d"], ip),
        (&["ip", "-d", "-6"], ip6),
        (&["ip", "-d", "-f", "mpls"], "route show\n"),
        (&["tc", "-d"], &tc),
    ];
    let mut all = String::new();
    for (tool, commands) in tools {
        let words: Vec<&str> = tool.iter().copied().chain(["-force", "-batch", "-"]).collect();
        let output = router.run_with(&words, commands).unwrap();
        all.push_str(&String::from_utf8_lossy(&output.stdout));
    }
    for place in ["platform_labels", "ip_ttl_propagate", "default_ttl", "tc_propagate"] {
        let line = script::parse_one(&format!("sysctl net.mpls.{place}")).unwrap();
        all.push_str(&script::run(router, &line).unwrap());
    }
    of_links_sorted(&masked(&all))
}

/// Sorts the routes that each link has by itself among each other: one is looked up by its link alone, so that their order, in which
/// links got a carrier, makes no difference.
fn of_links_sorted(text: &str) -> String {
    let of_link = |line: &&str| {
        let kinds = ["unicast fe80::/64 dev ", "anycast fe80:: dev ", "multicast ff00::/8 dev "];
        kinds.iter().any(|kind| line.starts_with(kind))
    };
    let mut sorted: Vec<&str> = text.lines().filter(of_link).collect();
    sorted.sort_unstable();
    let mut sorted = sorted.into_iter();
    let lines = text.lines().map(|line| if of_link(&line) { sorted.next().unwrap_or(line) } else { line });
    lines.fold(String::new(), |all, line| all + line + "\n")
}

/// Takes indices, ages and what is made of indices out.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for line in text.lines() {
        let mut words: Vec<&str> = line.split(' ').collect();
        for name in ["installed", "used", "firstused", "expires"] {
            if let Some(at) = words.iter().position(|word| *word == name).filter(|at| at + 2 < words.len()) {
                words.drain(at..at + 3);
            }
        }
        if let Some(index) = words.first_mut().filter(|word| word.ends_with(':') && word.len() < 5) {
            *index = "N:";
        }
        for name in ["permaddr", "ref"] {
            if let Some(value) =
                words.iter().position(|word| *word == name).and_then(|at| words.get_mut(at + 1))
            {
                *value = "N";
            }
        }
        writeln!(masked, "{}", words.join(" ").trim_end()).unwrap();
    }
    masked
}

/// The lines that only one of two texts has.
fn difference(before: &str, after: &str) -> String {
    let mut all = String::new();
    let (mut a, mut b) = (before.lines(), after.lines());
    loop {
        match (a.next(), b.next()) {
            (None, None) => return all,
            (one, other) if one == other => {}
            (one, other) => {
                write!(all, "\n    - {}\n    + {}", one.unwrap_or(""), other.unwrap_or("")).unwrap();
                if all.len() > 1200 {
                    return all + "\n    …";
                }
            }
        }
    }
}

/// What is wrong with a configuration's way out and back in; empty if nothing is.
fn check(config: &str) -> String {
    let first = router();
    if let Err(error) = run(&first, config) {
        return format!("\n  {error}");
    }
    let saved = first.router().save(&());
    if !saved.left_out.is_empty() {
        return format!("\n  left out: {:?}", saved.left_out);
    }
    let second = router();
    if let Err(error) = run(&second, &saved.text()) {
        return format!("\n  {error}\n{}", saved.text());
    }
    let again = second.router().save(&());
    let mut wrong = String::new();
    if again.text() != saved.text() {
        write!(wrong, "\n  saved again:{}", difference(&saved.text(), &again.text())).unwrap();
    }
    let (before, after) = (shown(&first), shown(&second));
    if before != after {
        write!(wrong, "\n  shown:{}", difference(&before, &after)).unwrap();
    }
    if wrong.is_empty() { wrong } else { format!("{wrong}\n  lines:\n{}", saved.text()) }
}

/// A line without what any line of its kind may have.
fn shape(line: &str) -> String {
    let plain = |word: &str| {
        let number = word.starts_with(|c: char| c.is_ascii_digit()) || word.contains(':');
        if number { "N".to_owned() } else { word.to_owned() }
    };
    line.split([' ', ',', '/']).map(plain).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
}

fn find(directory: &Path, found: &mut Vec<PathBuf>) {
    if directory.join("config").exists() {
        found.push(directory.to_owned());
        return;
    }
    for entry in
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
    {
        find(&entry, found);
    }
}

/// Runs a part of all cases: those whose number has this remainder.
fn part(number: usize, of: usize) {
    // Where configurations find their BPF programs.
    std::env::set_current_dir(root()).unwrap();
    let only = std::env::var("UNDERPASS_SAVE").ok();
    let mut directories = Vec::new();
    find(&root(), &mut directories);
    directories.sort();
    let mut seen = BTreeSet::new();
    let mut cases = Vec::new();
    for directory in directories {
        let config = fs::read_to_string(directory.join("config")).unwrap();
        // This machine's tools may not have the words.
        if config.contains("\n# The tools are those of scripts/newer-tools.sh.\n") {
            continue;
        }
        let name = directory.strip_prefix(root()).unwrap().display().to_string();
        let shapes: BTreeSet<String> =
            config.lines().filter(|line| !line.starts_with('#')).map(shape).collect();
        let new = !shapes.is_subset(&seen);
        seen.extend(shapes);
        let wanted = only.as_ref().map_or(new, |only| name.starts_with(only.as_str()));
        // A program is no line: `what_is_no_line_is_named`.
        if wanted && !config.contains("End.BPF") {
            cases.push((name, config));
        }
    }
    let (mut ran, mut failed) = (0, Vec::new());
    for (name, config) in cases.into_iter().skip(number).step_by(of) {
        ran += 1;
        let wrong = check(&config);
        if !wrong.is_empty() {
            println!("FAIL {name}");
            failed.push(format!("{name}:{wrong}"));
        }
    }
    println!("{ran} cases, {} differ", failed.len());
    assert!(failed.is_empty(), "{} of {ran} cases differ\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn configurations_of_the_golden_packets() {
    part(0, 2);
}

#[test]
fn configurations_of_the_golden_packets_2() {
    part(1, 2);
}

/// Those of both directions, numbered in the order in which they were made, not in that of priorities.
#[test]
fn tables_of_u32_keep_their_numbers() {
    let mut config = "ip link set p0 up\ntc qdisc add dev p0 clsact\n".to_owned();
    for (side, chain, priority) in
        [("egress", 0, 7), ("ingress", 0, 5), ("egress", 2, 1), ("ingress", 0, 3), ("egress", 0, 4)]
    {
        writeln!(
            config,
            "tc filter add dev p0 {side} chain {chain} prio {priority} protocol ip u32 match ip dst 10.0.0.{priority}/32 \
             action drop"
        )
        .unwrap();
    }
    let wrong = check(&config);
    assert!(wrong.is_empty(), "{wrong}");
}

/// All words of `cake`.
#[test]
fn every_cake_option_is_saved() {
    let words = [
        "",
        "bandwidth 1mbit diffserv4 rtt 40ms srchost wash ack-filter no-split-gso ingress overhead -14 mpu 84 memlimit 1mb fwmark 0xf0",
        "bandwidth 3gbit diffserv8 metro dual-dsthost ack-filter-aggressive raw atm",
        "besteffort flowblind conservative",
        "precedence hosts ptm overhead 30",
        "dsthost raw overhead 9",
        "dual-srchost interplanetary",
        "flows datacentre",
    ];
    for words in words {
        let config = format!("ip link set p0 up\ntc qdisc add dev p0 root handle 1: cake {words}\n");
        let wrong = check(&config);
        assert!(wrong.is_empty(), "{words}: {wrong}");
    }
}

/// A bridge keeps the link-local address of the MAC address that it had when it came up, as a VLAN device above it does.
#[test]
fn link_local_addresses_of_bridges() {
    let config = "ip link add br0 type bridge
        ip link set br0 up
        ip link add link br0 name br0.7 type vlan id 7
        ip link set br0.7 up
        ip link set p0 up
        ip link set p0 master br0
        ip link add br1 type bridge
        ip link set br1 up
        ip link set br1 address 02:00:00:00:00:77
        ip link add br2 address 02:00:00:00:00:78 type bridge
        ip link set p1 up
        ip link set p1 master br2
        ip link set br2 up";
    assert_eq!(check(config), "");
}

/// What no golden packets have: all words of `fq`, size tables that `tc` computes, and samples.
#[test]
fn tables_paces_and_samples() {
    let config = "ip link set p0 up\nip link set p1 up\ntc qdisc add dev p0 root handle 1: stab overhead -10 mtu 1500 mpu 64 \
                  tsize 128 linklayer atm fq limit 9 flow_limit 8 buckets 4 orphan_mask 7 quantum 300 initial_quantum 400 \
                  nopacing maxrate 1mbit low_rate_threshold 2mbit ce_threshold 5ms refill_delay 80ms timer_slack 20us \
                  horizon 5s horizon_cap\ntc qdisc add dev p1 root handle 1: stab overhead 20 fq\n\
                  tc qdisc add dev p1 stab linklayer atm clsact\n\
                  tc actions add action sample rate 10 group 4 trunc 128 continue index 7\n\
                  tc filter add dev p1 egress matchall action sample rate 3 group 5\n";
    let wrong = check(config);
    assert!(wrong.is_empty(), "{wrong}");
}
