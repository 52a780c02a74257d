//! Routers in network namespaces that have names: `exec --auto` and `run --all`. The names are seen by the scripts alone:
//! they have a mount namespace of their own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::process::{Command, Output};

const UNDERPASS: &str = env!("CARGO_BIN_EXE_underpass");

/// Runs a script where nobody else is; `None` if this is not root.
fn alone(test: &str, script: &str) -> Option<Output> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED {test}: not root");
        return None;
    }
    let before = "
        mkdir -p /run/netns
        mount -t tmpfs none /run/netns
        ip link set lo up
        # Whether a router is there, and whether one that was has left nothing.
        there() { ip netns exec $1 $UNDERPASS stats > /dev/null 2>&1; }
        gone() { ! ls /run/underpass/netns-$1.* 2> /dev/null; }
        eventually() { for i in $(seq 600); do if \"$@\"; then return 0; fi; sleep 0.1; done; echo never: $@; return 1; }
        inode() { stat -Lc %i /run/netns/$1; }
        ";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--propagation", "private", "bash", "-ec"]);
    command.arg(format!("{before}{script}")).env("UNDERPASS", UNDERPASS);
    for variable in ["UNDERPASS_SOCKET", "UNDERPASS_RUNTIME", "LD_PRELOAD"] {
        command.env_remove(variable);
    }
    Some(command.output().unwrap())
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A network as tutorials build it: red ── mid ── blue, with a segment that red's router inserts and mid's ends.
const NETWORK: &str = "
    ip netns add red
    ip netns add mid
    ip netns add blue
    ip link add red0 type veth peer name mid0
    ip link set red0 netns red
    ip link set mid0 netns mid
    ip -n mid link add mid1 type veth peer name blue0
    ip -n mid link set mid1 mtu 1400
    ip -n mid link set blue0 netns blue
    ip netns exec mid sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.seg6_enabled=1
    for name in red mid blue; do
        ip -n $name link set lo up
    done
    ip netns exec red bash -ec '
        ip link set red0 up
        ip address add fd01::1/64 dev red0 nodad
        ip -6 route add fc00:2::/64 via fd01::2
        ip -6 route add fd02::/64 encap seg6 mode encap segs fc00:2::1 via fd01::2 dev red0
        '
    ip -n mid link set mid0 up
    ip -n mid link set mid1 up
    ip -n mid address add fd01::2/64 dev mid0 nodad
    ip -n mid address add fd02::2/64 dev mid1 nodad
    ip -n mid -6 route add fc00:2::1/128 encap seg6local action End.DX6 nh6 fd02::1 count dev mid1
    ip -n blue link set blue0 up
    ip -n blue address add fd02::1/64 dev blue0 nodad
    ip -n blue -6 route add default via fd02::2
    ip netns exec red ping -n -c 3 -W 10 fd02::1
    ";

#[test]
fn a_script_that_makes_namespaces_has_routers_there() {
    let script = r#"
        $UNDERPASS exec --auto -- bash -ec "$NETWORK
            inode() { stat -Lc %i /run/netns/\$1; }
            ip -n mid -6 -s route show fc00:2::1
            # Each has its own.
            for name in red mid blue; do ip netns exec \$name $UNDERPASS stats > /dev/null; done
            inode red > /run/netns/inodes
            inode blue >> /run/netns/inodes
            # With the name its router goes, and what is at the other end of its devices.
            mid=\$(inode mid)
            ip netns del mid
            ip link show > /dev/null
            ! ls /run/underpass/netns-\$mid.* 2> /dev/null
            for i in \$(seq 100); do ip -n red link show red0 > /dev/null 2>&1 || break; sleep 0.1; done
            ! ip -n red link show red0 2> /dev/null
            # The name may be used again.
            ip netns add mid
            inode mid >> /run/netns/inodes
            ip -n mid link add again type dummy
            ip netns exec mid $UNDERPASS stats > /dev/null
            exit 7" || status=$?
        test "$status" = 7
        for inode in $(cat /run/netns/inodes); do gone $inode; done
        ! ls /run/underpass/auto-*.sock 2> /dev/null | grep "auto-$$"
        # What the scripts have made is still there.
        ip netns list | grep blue
        "#;
    let script = format!("export NETWORK={}\n{script}", shlex::try_quote(NETWORK).unwrap());
    let Some(output) = alone("a_script_that_makes_namespaces_has_routers_there", &script) else { return };
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("3 received, 0% packet loss"), "{text}");
    // Three packets had the segment.
    assert!(text.contains("packets 3 "), "{text}");
}

/// Without a router, programs do not reach the kernel instead; and it is said why.
#[test]
fn a_router_that_cannot_be_started_is_an_error() {
    let script = "
        mount --bind /dev/null /dev/net/tun
        $UNDERPASS exec --auto -- bash -c '
            ip netns add red || exit 8
            ip -n red link add d0 type dummy && exit 9
            ip link add d1 type veth peer name d2 || exit 10
            ip netns del red'
        ";
    let Some(output) = alone("a_router_that_cannot_be_started_is_an_error", script) else { return };
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("underpass: the router of network namespace red has ended: exit status: 1"),
        "{text}"
    );
    assert!(text.contains("red: underpass: the device of the host: "), "{text}");
    assert!(text.contains("Cannot open netlink socket: Connection refused"), "{text}");
}

#[test]
fn every_namespace_that_gets_a_name_has_a_router() {
    let script = "
        state=$(mktemp -d)
        ip netns add old
        $UNDERPASS run --all --log error --workers 1 --state $state &
        all=$!
        eventually there old
        ip netns add new
        eventually there new
        ip netns exec new $UNDERPASS exec -- ip link add t0 type gre remote 192.0.2.1 local 192.0.2.2
        # A device that comes later is attached.
        ip link add out type veth peer name in
        ip link set in netns new
        ip -n new link set in up
        attached() { ip netns exec new $UNDERPASS stats --json | grep '\"in\"'; }
        eventually attached
        new=$(inode new)
        saved() { grep t0 $state/new/state.conf; }
        eventually saved
        # One that is killed comes again, and has what it had.
        kill -9 $(head -n 1 /run/underpass/netns-$new.lock)
        again() { ip netns exec new $UNDERPASS exec -- ip link show t0; }
        eventually again
        ip netns del new
        eventually gone $new
        old=$(inode old)
        kill $all
        wait $all
        rm -r $state
        gone $old
        ";
    let Some(output) = alone("every_namespace_that_gets_a_name_has_a_router", script) else { return };
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("the router of network namespace new has ended: signal: 9 (SIGKILL)"), "{text}");
    assert_eq!(text.matches("has ended").count(), 1, "{text}");
}
