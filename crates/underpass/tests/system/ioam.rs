//! Traces of IOAM that end at an address of the router's own, beside a kernel: the router is one of their nodes, and who
//! the packet is for gets it.

use std::{process::Stdio, time::Duration};

use super::mpls::UNDERPASS;
use super::net::{settle, turn};
use super::tunnel::Pair;

/// Waits for a datagram, and prints its hop-by-hop options.
const RECEIVE: &str = "
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPOPTS, 1)
s.bind(('fd99::2', 7002))
s.settimeout(5)
print('ready', flush=True)
_, ancillary, _, _ = s.recvmsg(2048, 2048)
print(' '.join(data.hex() for level, kind, data in ancillary if kind == socket.IPV6_HOPOPTS))
";
const SEND: &str =
    "import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('fd99::2', 7002))";

/// 0x800000: of each node the hop limit and its id.
const TRACE: &str = "trace prealloc type 0x800000 ns 123 size 12";

#[test]
fn traces_end_at_the_host() {
    let Some(_turn) = turn("traces_end_at_the_host") else { return };
    let mut pair = Pair::new(&[], UNDERPASS);
    pair.both(
        "sysctl -qw net.ipv6.ioam6_id=1ME net.ipv6.conf.core.ioam6_enabled=1
         ip ioam namespace add 123
         ip -6 addr add fd99::ME/128 dev lo",
    );
    pair.routers[0]
        .run(&format!("ip -6 route add fd99::2 encap ioam6 mode inline {TRACE} via fd00::2 dev core"));
    pair.routers[1].run("ip -6 route add fd99::1 via fd00::1");
    let [near, far] = [0, 1].map(|at| pair.routers[at].namespace().clone());
    pair.check("inline", settle(&near, "fd99::2", Duration::from_secs(10)));
    let mut receiver = far.command("python3");
    let mut receiver = receiver.args(["-c", RECEIVE]).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    near.run(&format!("python3 -c \"{SEND}\"")).unwrap();
    let said = std::io::read_to_string(receiver.stdout.take().unwrap()).unwrap();
    receiver.wait().unwrap();
    let options = said.lines().nth(1).unwrap_or_default();
    // Four bytes of padding follow the trace. From the back: the first node, this one, and room for a third, each with
    // the hop limit before its id.
    assert!(options.len() >= 32, "{said}{}", pair.routers[1].log());
    let nodes = &options[options.len() - 32..options.len() - 8];
    assert_eq!((&nodes[..8], &nodes[10..16], &nodes[18..]), ("00000000", "00000c", "00000b"), "{said}");
    // What encapsulates ends in a tunnel, and the trace before it.
    pair.routers[1].run(
        "ip link add t6 type ip6tnl mode ip6ip6 local fd00::2 remote any
         ip link set t6 up",
    );
    pair.routers[0].run(&format!(
        "ip -6 route replace fd99::2 encap ioam6 mode encap tundst fd00::2 {TRACE} via fd00::2 dev core"
    ));
    pair.check("encap", settle(&near, "fd99::2", Duration::from_secs(5)));
    let shown = pair.routers[1].run("ip -s -j link show dev t6");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(shown[0]["stats64"]["rx"]["packets"].as_u64() > Some(0), "{shown}");
    pair.stop();
}
