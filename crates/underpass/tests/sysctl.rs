//! Variables of /proc/sys/net that the router has and the kernel has not, as scripts use them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod daemon;

use daemon::Daemon;

/// `sh -c` of each shell that scripts are written for, and the tools that they call.
#[test]
fn scripts_read_and_write_them() {
    let daemon = Daemon::start(&["p0"]);
    let file = "/proc/sys/net/vrf/strict_mode";
    let script = |shell: &str, text: &str| {
        let outcome = daemon::run(&mut daemon.command(&[shell, "-c", text]));
        (outcome.status, outcome.output)
    };
    let reads = |wanted: &str| assert_eq!(daemon.succeeds(&format!("cat {file}")), format!("{wanted}\n"));
    reads("1");
    assert_eq!(daemon.succeeds("sysctl -n net.vrf.strict_mode"), "1\n");
    assert_eq!(daemon.succeeds("sysctl -w net.vrf.strict_mode=0"), "net.vrf.strict_mode = 0\n");
    reads("0");
    for shell in ["dash", "bash"] {
        for (value, write) in [
            ("1", format!("echo 1 > {file}")),
            ("0", format!("echo 0 >> {file} && test -w {file} -a -f {file}")),
            ("1", format!("printf '%d\\n' 1 > {file}; [ -e {file} ]")),
            ("0", format!("{{ echo 0; }} > {file}")),
            ("1", format!("/bin/echo 1 > {file}")),
            ("0", format!("echo 0 | tee {file} > /dev/null")),
            ("1", format!("echo 1 | cat > {file}")),
            ("0", format!("sysctl -q -w net.vrf.strict_mode=0; read x < {file}; [ $x = 0 ]")),
        ] {
            assert_eq!(script(shell, &write), (0, String::new()), "{shell}: {write}");
            reads(value);
        }
        // What Linux refuses is refused when it is written, and nothing else is hurt.
        for write in ["echo 2", "echo x", "/bin/echo 7", "printf 9"] {
            let (status, output) =
                script(shell, &format!("{write} > {file}; s=$?; echo still here; exit $s"));
            assert_ne!(status, 0, "{shell}: {write}");
            // dash calls every errno of its builtins an I/O error, in Linux too.
            assert!(output.contains("Invalid argument") || output.contains("I/O error"), "{output}");
            assert!(output.ends_with("still here\n"), "{output}");
            reads("0");
        }
        let (status, output) = script(shell, "echo 1 > /proc/sys/net/vrf/nothing_there");
        assert!(status != 0 && !output.contains("Invalid argument"), "{output}");
    }
    let refused = daemon.exec("sysctl -w net.vrf.strict_mode=2");
    assert!(
        refused.output.contains("setting key \"net.vrf.strict_mode\": Invalid argument"),
        "{}",
        refused.output
    );
    assert_ne!(refused.status, 0);
    let python = "
path = '/proc/sys/net/vrf/strict_mode'
with open(path, 'w') as file:
    file.write('1')
with open(path) as file:
    print(file.read().strip())
try:
    with open(path, 'w') as file:
        file.write('5')
except OSError as error:
    print(error.errno)
";
    let outcome = daemon::run(&mut daemon.command(&["python3", "-c", python]));
    assert_eq!(outcome.output, "1\n22\n");
}

/// A variable that no kernel has is a file like the others.
#[test]
fn variables_of_the_router_alone() {
    let daemon = Daemon::start(&["p0"]);
    let file = "/proc/sys/net/mpls/tc_propagate";
    assert_eq!(daemon.succeeds("sysctl -n net.mpls.tc_propagate"), "0\n");
    assert_eq!(daemon.succeeds("sysctl -w net.mpls.tc_propagate=1"), "net.mpls.tc_propagate = 1\n");
    assert_eq!(daemon.succeeds(&format!("cat {file}")), "1\n");
    for shell in ["dash", "bash"] {
        let script = format!("echo 0 > {file} && cat {file} && echo 1 > {file} && cat {file}");
        let outcome = daemon::run(&mut daemon.command(&[shell, "-c", &script]));
        assert_eq!((outcome.status, outcome.output), (0, "0\n1\n".to_owned()));
    }
    let refused = daemon.exec("sysctl -w net.mpls.tc_propagate=2");
    assert!(refused.output.contains("Invalid argument"), "{}", refused.output);
}

/// Linux: `vrf_strict_mode_change` and `vrf_newlink`, `seg6_end_dt_vrf_build`.
#[test]
fn strict_mode_says_whether_vrfs_share_tables() {
    let daemon = Daemon::start(&["p0"]);
    daemon.succeeds("ip link add red type vrf table 10");
    let second = "ip link add blue type vrf table 10";
    assert!(daemon.exec(second).output.contains("Table is used by another VRF"));
    daemon.succeeds("sysctl -q -w net.vrf.strict_mode=0");
    daemon.succeeds(second);
    let shared = daemon.exec("sysctl -w net.vrf.strict_mode=1");
    assert!(shared.output.contains("Device or resource busy"), "{}", shared.output);
    let route = "ip -6 route add fc00::1/128 encap seg6local action End.DT6 vrftable 10 dev p0";
    daemon.succeeds("ip link set p0 up");
    let refused = daemon.exec(route);
    assert!(refused.output.contains("Strict mode for VRF is disabled"), "{}", refused.output);
    daemon.succeeds("ip link del blue");
    daemon.succeeds("sysctl -q -w net.vrf.strict_mode=1");
    daemon.succeeds(route);
}
