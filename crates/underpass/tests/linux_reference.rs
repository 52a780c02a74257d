//! Every line of `tests/linux-reference/commands.txt` that this router knows, run by the stock tools through
//! `underpass exec`: exit status and output are those that Linux 6.12 gave (`golden.txt`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod daemon;
mod newer;

use std::{collections::BTreeSet, fmt::Write, fs};

use daemon::{Daemon, Outcome, project};

/// What the recording Linux was given before the first line.
const SET_UP: &[&str] = &[
    "ip link add ifb0 type ifb",
    "ip link add ifb1 type ifb",
    "ip link add vrf100 type vrf table 100",
    "ip link set v0p up",
    "ip link set v0 up",
    "ip link set v1p up",
    "ip link set v1 up",
    "ip link set ifb0 up",
    "ip addr add 10.0.0.1/24 dev v0",
    "ip addr add fd00::1/64 dev v0 nodad",
    "ip addr add 10.1.0.1/24 dev v1",
    "ip link set vrf100 up",
    "sysctl -qw net.mpls.platform_labels=1000",
    "sysctl -qw net.mpls.conf.v0.input=1",
    "sysctl -qw net.mpls.conf.v1.input=1",
    // It had all of its fallback devices, as where the modules are loaded.
    "ip link show tunl0",
    "ip link show gre0",
    "ip link show sit0",
    "ip link show ip6gre0",
];

/// The sections that are run.
const SECTIONS: &[&str] = &[
    "SRv6 localsid",
    "SRv6 encap (headend)",
    "MPLS",
    "IOAM6",
    "RPL",
    "FOU / GUE",
    "tunnels",
    "tc",
    "misc link",
];

/// Lines of those sections that are not run, and why.
const SKIPPED: &[(&str, &str)] = &[(
    "ip -6 route add fc00:1::11/128 encap seg6local action End flavors psp,usd count dev v0",
    "Linux refuses what this router has: docs/differences.md",
)];

/// Lines of Linux's output that cannot be there, and why.
const ABSENT: &[(&str, &str)] = &[
    ("ip_vti0: ", MADE_BY_LINUX),
    ("mpls dummy0 ", MADE_BY_LINUX),
    ("mpls erspan0 ", MADE_BY_LINUX),
    ("mpls ip_vti0 ", MADE_BY_LINUX),
];
const MADE_BY_LINUX: &str = "Linux makes the link when it starts";

/// One command line and what Linux made of it.
struct Line {
    section: String,
    command: String,
    outcome: Outcome,
}

/// Reads a recording: `# --- section`, `[number rc=status] command`, and output indented by four.
fn recording(file: &str) -> Vec<Line> {
    let text = fs::read_to_string(project("tests/linux-reference").join(file)).unwrap();
    let mut lines: Vec<Line> = Vec::new();
    let mut section = String::new();
    for text in text.lines() {
        if let Some(name) = text.strip_prefix("# --- ") {
            section = name.to_owned();
        } else if let Some((head, command)) = text.strip_prefix('[').and_then(|text| text.split_once("] ")) {
            let status = head.split_once("rc=").unwrap().1.parse().unwrap();
            let outcome = Outcome { status, output: String::new() };
            lines.push(Line { section: section.clone(), command: command.to_owned(), outcome });
        } else if let (Some(text), Some(line)) = (text.strip_prefix("    "), lines.last_mut()) {
            writeln!(line.outcome.output, "{text}").unwrap();
        }
    }
    lines
}

/// Takes out what must differ: indices, forwarding, MAC addresses, the other end of a veth pair (ports have none), and,
/// in tables of link statistics, counts: Linux's own hosts had said a few words on the links.
fn comparable(outcome: &Outcome) -> String {
    let mut text = format!("status {}\n", outcome.status);
    let mut counts = false;
    for line in outcome.output.lines() {
        let mut line = without_age(line.trim_end());
        if counts {
            line = line.split_whitespace().map(|_| "N").collect::<Vec<_>>().join(" ");
        }
        counts =
            ["RX:", "TX:", "RX errors:", "TX errors:"].iter().any(|head| line.trim_start().starts_with(head));
        if let Some((index, rest)) = line.split_once(": ")
            && index.parse::<u32>().is_ok()
        {
            line = rest.replace("v0@v0p: ", "v0: ").replace("v1@v1p: ", "v1: ");
        }
        if let Some((before, rest)) = line.split_once("\"ifindex\":") {
            let rest = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
            line = format!("{before}\"ifindex\":N{rest}");
        }
        // This router always forwards; the recording Linux did not.
        if line.starts_with("inet") {
            line = line.replace(" forwarding off ", " forwarding on ");
        }
        if line.trim_start().starts_with("link/ether ") {
            line = "link/ether MAC brd ff:ff:ff:ff:ff:ff".to_owned();
        }
        writeln!(text, "{line}").unwrap();
    }
    text
}

#[test]
fn the_copies_belong_together() {
    let commands = fs::read_to_string(project("tests/linux-reference/commands.txt")).unwrap();
    let commands: Vec<_> = commands.lines().filter(|line| !line.starts_with('#')).collect();
    let golden: Vec<_> = recording("golden.txt").into_iter().map(|line| line.command).collect();
    assert_eq!(commands, golden);
}

#[test]
fn as_linux_answers() {
    let daemon = Daemon::start(&["v0p", "v0", "v1p", "v1"]);
    for line in SET_UP {
        daemon.succeeds(line);
    }
    let (mut run, mut differences) = (0, String::new());
    for mut line in recording("golden.txt") {
        if !SECTIONS.contains(&line.section.as_str()) || SKIPPED.iter().any(|(skip, _)| *skip == line.command)
        {
            continue;
        }
        let absent = |text: &&str| !ABSENT.iter().any(|(start, _)| text.starts_with(start));
        line.outcome.output =
            line.outcome.output.lines().filter(absent).map(|text| format!("{text}\n")).collect();
        run += 1;
        let ours = match line.command.contains('\'') {
            true => daemon::run(&mut daemon.command(&["sh", "-c", &line.command])),
            false => daemon.exec(&line.command),
        };
        let (mut ours, mut linux) = (comparable(&ours), comparable(&line.outcome));
        if ["tc qdisc ls", "ip -f mpls netconf show"].contains(&line.command.as_str()) {
            // Links are in the order in which they were made: in Linux the ifbs were first.
            let sorted = |text: &str| {
                text.lines().collect::<BTreeSet<_>>().into_iter().fold(String::new(), |a, b| a + b + "\n")
            };
            (ours, linux) = (sorted(&ours), sorted(&linux));
        }
        if ours != linux {
            writeln!(differences, "{}\n  Linux:\n{linux}  ours:\n{ours}", line.command).unwrap();
        }
    }
    println!("{run} lines run");
    assert!(run >= 50, "only {run} lines were run");
    assert!(differences.is_empty(), "\n{differences}");
}

/// Lines of `{name}.commands` against `{name}.txt`, which `record.py` recorded: names, indices and MAC
/// addresses are the same there, so that nothing is taken out. Linux lists neighbours in the order of a hash.
fn as_recorded(name: &str) {
    let daemon = two_ports();
    // As where they were recorded: fallback devices of tunnels have indices.
    daemon.succeeds("sysctl -qw net.core.fb_tunnels_only_for_init_net=2");
    answers_of(&|line| daemon.exec(line), name, without_chance);
}

fn two_ports() -> Daemon {
    Daemon::start(&["v0,mac=02:00:00:00:00:01", "v1,mac=02:00:00:00:00:02"])
}

/// Compares what the router answers to `exec`, line by line, without what `without` takes out of both.
fn answers_of(exec: &dyn Fn(&str) -> Outcome, name: &str, without: fn(&str) -> String) {
    let lines = recording(&format!("{name}.txt"));
    let commands = fs::read_to_string(project(&format!("tests/linux-reference/{name}.commands"))).unwrap();
    assert_eq!(commands.lines().count(), lines.len());
    let mut differences = String::new();
    for line in lines {
        let text = |outcome: &Outcome| {
            let lines = outcome.output.lines().map(|line| without(line.trim_end()));
            let mut all: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
            if line.command.starts_with("ip neigh") || line.command.starts_with("bridge fdb show") {
                all.sort();
            }
            format!("status {}\n{}\n", outcome.status, all.join("\n"))
        };
        let (ours, linux) = (text(&exec(&line.command)), text(&line.outcome));
        if ours != linux {
            writeln!(differences, "{}\n  Linux:\n{linux}  ours:\n{ours}", line.command).unwrap();
        }
    }
    assert!(differences.is_empty(), "\n{differences}");
}

/// Takes out what Linux draws lots for: the permanent address of a tunnel over IPv6, and what is made of it.
fn without_chance(line: &str) -> String {
    let mut line = without_age(line);
    for (before, end) in [(" permaddr ", ' '), ("\"permaddr\":\"", '"'), (" inet6 fe80::", '/')] {
        let mut from = 0;
        while let Some(start) = line[from..].find(before).map(|at| from + at + before.len()) {
            let length = line[start..].find(end).unwrap_or(line.len() - start);
            if !before.contains("fe80") || line[start..start + length].contains("ff:fe") {
                line.replace_range(start..start + length, "X");
            }
            from = start;
        }
    }
    line
}

/// Takes out how long ago an action was made and used, which is shown from a hundredth of a second on.
fn without_age(line: &str) -> String {
    let mut line = line.to_owned();
    for (before, after) in [
        (" installed ", " sec"),
        (" used ", " sec"),
        (" firstused ", " sec"),
        (",\"installed\":", ""),
        (",\"last_used\":", ""),
        (",\"first_used\":", ""),
    ] {
        while let Some(start) = line.find(before) {
            let rest = &line[start + before.len()..];
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let end = start + before.len() + digits;
            let whole = line[end..].starts_with(after) && digits > 0;
            line.replace_range(start..if whole { end + after.len() } else { start + 1 }, "");
        }
    }
    line.trim_end().to_owned()
}

/// Tunnels of every kind, made, changed, shown and deleted; receive ports of FOU and GUE.
#[test]
fn tunnels_as_in_linux() {
    as_recorded("tunnels");
}

/// `bareudp`: its ports, beside those of FOU, and routes that say where its packets go.
#[test]
fn bareudp_as_in_linux() {
    as_recorded("bareudp");
}

/// VXLAN devices: made, changed, shown and deleted, their ports, and what is refused. In Linux one above a veth has the bound
/// of that for large segments.
#[test]
fn vxlan_as_in_linux() {
    vxlan_as_recorded("vxlan");
}

/// Devices whose other end is a group: what needs a link, changes of the group, what is shown.
#[test]
fn groups_as_in_linux() {
    vxlan_as_recorded("groups");
}

fn vxlan_as_recorded(name: &str) {
    let daemon = two_ports();
    daemon.succeeds("sysctl -qw net.core.fb_tunnels_only_for_init_net=2");
    answers_of(&|line| daemon.exec(line), name, |line| {
        without_chance(line)
            .replace("tso_max_size 524280", "tso_max_size 65536")
            .replace("\"tso_max_size\":524280", "\"tso_max_size\":65536")
    });
}

/// Ends of a VXLAN above a link: its own is another than one of the same address that a request adds.
#[test]
fn ends_by_a_link_as_in_linux() {
    as_recorded("vxlan_via");
}

/// Geneve devices of frames and of packets: made, changed, shown and deleted, their ports, and what is refused.
#[test]
fn geneve_as_in_linux() {
    as_recorded("geneve");
}

/// VXLANs and Geneve devices with external metadata: made, shown and deleted, the ports that they have alone, and what is
/// refused.
#[test]
fn external_networks_as_in_linux() {
    let daemon = two_ports();
    answers_of(&|line| daemon.exec(line), "external", |line| {
        without_chance(line).replace("tso_max_size 524280", "tso_max_size 65536")
    });
}

/// An external VXLAN that is many VLANs of a bridge: `vlan_tunnel`, `tunnel_info`, and its stations in each network.
#[test]
fn vlans_of_networks_as_in_linux() {
    as_recorded("vlan_tunnel");
}

/// `tunl0` and its like: made when they are first named, shown, changed, used, and what is refused. Linux has made them
/// with others before the first line, so that they have other indices.
#[test]
fn fallback_devices_as_in_linux() {
    let daemon = two_ports();
    answers_of(&|line| daemon.exec(line), "fallback", |line| {
        let line = without_chance(line);
        let line = match line.split_once(": ") {
            Some((index, rest)) if index.parse::<u32>().is_ok() => rest,
            _ => &line,
        };
        match line.split_once("\"ifindex\":") {
            Some((before, rest)) => before.to_owned() + rest.trim_start_matches(|c: char| c.is_ascii_digit()),
            None => line.to_owned(),
        }
    });
}

/// VLAN devices, also above each other: made, changed, shown, up and down with the link below, in a VRF, with qdiscs.
#[test]
fn vlans_as_in_linux() {
    let daemon = two_ports();
    daemon.succeeds("sysctl -qw net.core.fb_tunnels_only_for_init_net=2");
    // The ports there were veths, which say how large a segment they would take.
    answers_of(&|line| daemon.exec(line), "vlan", |line| {
        let line = without_chance(line).replace(" tso_max_size 524280 ", " tso_max_size 65536 ");
        line.replace("\"tso_max_size\":524280,", "\"tso_max_size\":65536,")
    });
    for flag in ["gvrp", "mvrp", "bridge_binding"] {
        let refused = daemon.exec(&format!("ip link add link v0 name refused type vlan id 99 {flag} on"));
        let said = format!("Error: {flag} is not supported by this router.");
        assert_eq!((refused.status, refused.output.trim()), (2, said.as_str()));
    }
}

/// MTUs of links and of routes: which follow, and what goes where IPv6 does not work.
#[test]
fn mtus_as_in_linux() {
    as_recorded("mtu");
}

/// Neighbours: made, changed and not changed, with flags and protocols, and lost with the address and the state of their link.
#[test]
fn neighbours_as_in_linux() {
    as_recorded("neighbours");
}

#[test]
fn links_and_addresses_as_in_linux() {
    as_recorded("links");
}

/// Wrong and odd requests for routes, next-hop objects and rules: gateways that are elsewhere, or the router's own, in
/// VRFs too; questions with `tos`.
#[test]
fn refusals_as_in_linux() {
    as_recorded("refusals");
}

/// A link that gets another VRF is taken down and up, and with it VLAN devices and bridges; of ports with one address the first has it.
#[test]
fn links_above_one_in_a_vrf_as_in_linux() {
    let daemon = two_ports();
    daemon.succeeds("sysctl -qw net.core.fb_tunnels_only_for_init_net=2");
    answers_of(&|line| daemon.exec(line), "vlan_vrf", |line| {
        // The groups that a device listens to are none of the router's.
        if line.ends_with(" self permanent") { String::new() } else { line.to_owned() }
    });
}

/// Bridges, their ports, stations and VLANs: made, changed, shown, deleted and refused.
#[test]
fn bridges_as_in_linux() {
    let daemon = two_ports();
    daemon.succeeds("sysctl -qw net.core.fb_tunnels_only_for_init_net=2");
    answers_of(&|line| daemon.exec(line), "bridge", |line| {
        // The groups that a device listens to are none of the router's.
        if line.ends_with(" self permanent") {
            return String::new();
        }
        without_timers(line)
    });
    for option in ["mcast_snooping 1", "mcast_querier 1", "vlan_stats_enabled 1"] {
        let refused = daemon.exec(&format!("ip link add refused type bridge {option}"));
        assert!(
            refused.output.contains(&format!("{} is not supported", &option[..option.len() - 2])),
            "{refused:?}"
        );
    }
}

/// What is shown of time that has passed or is left.
fn without_timers(line: &str) -> String {
    let mut line = line.to_owned();
    for timer in
        ["gc_timer ", "forward_delay_timer ", "hello_timer ", "hold_timer ", "used ", "tso_max_size "]
    {
        if let Some(start) = line.find(timer).map(|at| at + timer.len()) {
            let value = |c: char| c == ' ' || c == '.' || c == '/' || c.is_ascii_digit();
            let end = line[start..].find(|c| !value(c)).map_or(line.len(), |at| start + at);
            line.replace_range(start..end, "");
        }
    }
    line
}

/// Bridges with spanning trees that hear no other bridge, once their ports have waited: here nobody waits.
#[test]
fn spanning_trees_as_in_linux() {
    let daemon = two_ports();
    daemon.succeeds("sysctl -qw net.core.fb_tunnels_only_for_init_net=2");
    let exec = |line: &str| {
        let waits =
            line.split_once("sleep ").and_then(|(before, after)| Some((before, after.split_once("; ")?.1)));
        daemon.exec(&waits.map_or(line.to_owned(), |(before, after)| format!("{before}{after}")))
    };
    answers_of(&exec, "stp", without_timers);
}

/// Ports at which bridges answer for others.
#[test]
fn ports_that_suppress_as_in_linux() {
    as_recorded("suppress");
}

/// What is odd or wrong in requests of every kind: which of it is refused, with which text, and what is there afterwards.
#[test]
fn edges_as_in_linux() {
    as_recorded("edges");
}

/// Where packets would go that are not plain unicast ones, settings of links, and refusals.
#[test]
fn answers_as_in_linux() {
    as_recorded("answers");
}

/// Label routes, labels that routes and next-hop objects put on, and what is refused of them.
#[test]
fn labels_as_in_linux() {
    as_recorded("mpls");
}

/// Qdiscs and classes of every kind, made, changed, shown, deleted and refused; ifb links.
#[test]
fn qdiscs_as_in_linux() {
    as_recorded("qdisc");
}

/// Filters of every kind, chains and actions: made, changed, shown, deleted, and what is refused of them.
#[test]
fn filters_as_in_linux() {
    as_recorded("filter");
}

/// Actions of `tunnel_key`: made, changed, shown, shared, deleted, flushed, and what is refused of them.
#[test]
fn tunnel_keys_as_in_linux() {
    as_recorded("tunnel_key");
}

/// `netem`: made, changed, shown, with a qdisc in it, and what is refused of it.
#[test]
fn netem_as_in_linux() {
    as_recorded("netem");
}

/// `red`: made, changed, shown, and what is refused of it.
#[test]
fn red_as_in_linux() {
    as_recorded("red");
}

/// `fq`: made, changed, shown, and what is refused of it.
#[test]
fn paced_flows_as_in_linux() {
    as_recorded("fq");
}

/// The action `sample`: made, changed, shown, and what is refused of it.
#[test]
fn samples_as_in_linux() {
    as_recorded("sample");
}

/// `cake`: made, changed, shown, and what is refused of it.
#[test]
fn cake_as_in_linux() {
    as_recorded("cake");
}

/// What Linux has of `cake` with connections to look at, and a rate that follows what comes: refused, and nothing is changed.
#[test]
fn what_a_cake_refuses() {
    let daemon = two_ports();
    let cake = "qdisc replace dev v0 root handle 1: cake bandwidth 1mbit";
    daemon.succeeds(&format!("tc {cake}"));
    let before = daemon.exec("tc qdisc show dev v0").output;
    for (word, why) in [
        ("nat", "No conntrack support in kernel"),
        ("autorate-ingress", "A rate that follows what comes is not supported by this router"),
    ] {
        let refused = daemon.exec(&format!("tc {cake} besteffort {word}"));
        assert_eq!((refused.status, refused.output.trim()), (2, format!("Error: {why}.").as_str()));
        assert_eq!(daemon.exec("tc qdisc show dev v0").output, before);
    }
}

/// `codel` and `sfq`: made, changed, shown, and what is refused of them.
#[test]
fn fair_and_short_queues_as_in_linux() {
    as_recorded("queues");
}

/// Size tables: of roots and, by a change, of what is in classes.
#[test]
fn size_tables_as_in_linux() {
    as_recorded("stab");
}

/// Actions of `csum` and `pedit`: made, changed, shown, shared, deleted, and what is refused of them.
#[test]
fn actions_that_rewrite_as_in_linux() {
    as_recorded("rewrite");
}

/// Blocks of filters that hooks share, traffic control at dummies and VRFs, and the largest number of everything.
#[test]
fn blocks_as_in_linux() {
    as_recorded("blocks");
}

/// What `ip`, `tc` and `bridge` of iproute2 6.15 ask for, and 6.1 did not: weights of 16 bits, `dscp` of rules, protocols of
/// addresses, statistics of next-hop objects.
#[test]
fn newer_tools_are_answered_as_in_linux() {
    let Some(newer) = newer::Tools::there("newer_tools_are_answered_as_in_linux") else { return };
    let daemon = two_ports();
    daemon.succeeds("sysctl -qw net.core.fb_tunnels_only_for_init_net=2");
    let exec = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        daemon::run(&mut newer.over(&daemon.command(&words)))
    };
    answers_of(&exec, "newer", without_chance);
}

/// Every combination of flavours, which Linux has not: what is taken is what is shown.
#[test]
fn flavours_are_shown() {
    let daemon = Daemon::start(&["v0", "v1"]);
    for line in ["ip link set v0 up", "ip addr add fd00::1/64 dev v0"] {
        daemon.succeeds(line);
    }
    for action in ["End", "End.X nh6 fd00::2", "End.T table 100"] {
        for bits in 1..16_u32 {
            let names = ["psp", "usp", "usd", "next-csid"];
            let names: Vec<_> = names.iter().enumerate().filter(|(n, _)| bits & 1 << n != 0).collect();
            let names: Vec<_> = names.into_iter().map(|(_, name)| *name).collect();
            let lengths = if bits >= 8 { " lblen 40 nflen 24" } else { "" };
            let route = format!(
                "fc00:1::/48 encap seg6local action {action} flavors {}{lengths} dev v0",
                names.join(",")
            );
            daemon.succeeds(&format!("ip -6 route replace {route}"));
            let shown = daemon.exec("ip -6 route show fc00:1::/48").output;
            let expected = format!("{} metric 1024 pref medium", route.replace("/48 encap", "/48  encap"));
            assert_eq!(shown.trim_end(), expected);
        }
    }
    let refused =
        daemon.exec("ip -6 route add fc00:2::/48 encap seg6local action End.BM srh segs fc00::1 dev v0");
    assert_eq!((refused.status, refused.output.trim()), (2, "RTNETLINK answers: Invalid argument"));
}
