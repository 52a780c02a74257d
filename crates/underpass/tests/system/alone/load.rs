//! Many requests while packets flow.

use std::{
    fmt::Write as _,
    fs,
    net::IpAddr,
    ops::Range,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::behaviours::Line;
use crate::mtu::configure;
use crate::net::{Kind::*, Stream, settle, turn_alone};

const CLIENTS: usize = 4;
const REQUESTS: usize = 20_000;

/// How many times fewer requests than the kernel a build for tests may answer.
const SLOWER: f64 = 50.0;

/// Routes that each client leaves.
const KEPT: usize = 100;

/// Routes of its own for each client: added, replaced, deleted again but for the last.
fn batch(client: usize) -> String {
    let mut lines = String::new();
    let mut count = 0;
    for n in 0.. {
        let sid = format!("fc00:1:{client:x}:{n:x}::");
        writeln!(lines, "route add {sid} encap seg6local action End count dev cust").unwrap();
        writeln!(lines, "route replace {sid} encap seg6local action End.DT6 table 254 count dev cust")
            .unwrap();
        count += 2;
        if n >= KEPT {
            writeln!(lines, "route del fc00:1:{client:x}:{:x}::", n - KEPT).unwrap();
            count += 1;
        }
        if count >= REQUESTS {
            return lines;
        }
    }
    lines
}

/// How many requests of these clients, each with a batch of its own, a second takes while packets flow.
fn requests_a_second(line: &Line, numbers: Range<usize>) -> f64 {
    let [h1, h2] = &line.hosts;
    let directory = tempfile::tempdir().unwrap();
    let batches: Vec<_> = numbers
        .map(|client| {
            let path = directory.path().join(client.to_string());
            fs::write(&path, batch(client)).unwrap();
            path
        })
        .collect();
    let edge = &line.edges[0];
    // There and back: both directions are encapsulated and decapsulated by the router.
    let there = Stream::start(h1, h2, "fd10:2::2".parse::<IpAddr>().unwrap(), 4000, 2000);
    let back = Stream::start(h2, h1, "fd10:1::2".parse::<IpAddr>().unwrap(), 4001, 2000);
    let start = Instant::now();
    let clients: Vec<_> = batches
        .iter()
        .map(|path| {
            let mut command = match &edge.router {
                Some(router) => router.command("ip"),
                None => edge.namespace.command("ip"),
            };
            command
                .arg("-batch")
                .arg(path)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for client in clients {
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let took = start.elapsed();
    let (there, back) = (there.end(), back.end());
    let requests: usize = batches.iter().map(|path| fs::read_to_string(path).unwrap().lines().count()).sum();
    there.assert_whole();
    back.assert_whole();
    let rate = requests as f64 / took.as_secs_f64();
    println!("{requests} requests in {took:?}: {rate:.0} a second");
    rate
}

#[test]
fn four_clients_and_no_packet_lost() {
    let Some(_turn) = turn_alone("four_clients_and_no_packet_lost") else { return };
    let line = Line::new([Underpass, Kernel, Kernel]);
    configure(&line);
    for address in ["fd10:2::2", "10.2.0.2"] {
        settle(&line.hosts[0], address, Duration::from_secs(10)).unwrap();
    }
    let rate = requests_a_second(&line, 1..1 + CLIENTS);
    for client in 1..=CLIENTS {
        let kept = line.edges[0].run(&format!("ip -6 route show root fc00:1:{client:x}::/48"));
        assert_eq!(kept.lines().filter(|route| route.contains("End.DT6")).count(), KEPT, "{kept}");
    }
    line.stop();
    // The kernel needs no program for an answer, and this one is built for tests.
    let line = Line::new([Kernel; 3]);
    configure(&line);
    settle(&line.hosts[0], "10.2.0.2", Duration::from_secs(10)).unwrap();
    let kernels = requests_a_second(&line, 1..1 + CLIENTS);
    assert!(rate > kernels / SLOWER, "{rate:.0} requests a second, the kernel answers {kernels:.0}");
    line.stop();
}
