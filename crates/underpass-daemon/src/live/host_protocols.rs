//! The encapsulated protocols that the host itself may take when no tunnel of the router's does: those for which it has a
//! raw socket, or the kernel a tunnel. The senders of all others get port unreachable, as from a Linux that has the tunnels. The
//! kernel of this host may lack them, and would answer protocol unreachable.

use std::fs;

use underpass_control::Router;
use underpass_engine::tables::inside_bit;

use super::kernel_frames::protocols_of;

/// Reads which sockets and tunnels there are.
pub fn follow(router: &mut Router) {
    let listening = |path: &str, ipv6: bool| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(protocol).fold(0, |bits, protocol| bits | inside_bit(protocol, ipv6))
    };
    let sockets =
        listening("/proc/thread-self/net/raw", false) | listening("/proc/thread-self/net/raw6", true);
    let tunnels = router.kernel_tunnels().fold(0, |bits, kind| {
        protocols_of(kind).iter().fold(bits, |bits, protocol| bits | inside_bit(*protocol, kind.ipv6()))
    });
    router.set_host_takes(sockets | tunnels);
}

/// The protocol of a raw socket: the port of its local address.
fn protocol(line: &str) -> Option<u8> {
    let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
    u16::from_str_radix(port, 16).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.18: /proc/net/raw6 with a socket of `socket(AF_INET6, SOCK_RAW, IPPROTO_GRE)`.
    #[test]
    fn a_raw_socket_has_its_protocol_for_a_port() {
        let line = "   47: 00000000000000000000000000000000:002F 00000000000000000000000000000000:0000 07 00000000:00000000 \
                    00:00000000 00000000     0        0 91012 2 0000000000000000 0";
        assert_eq!(protocol(line), Some(47));
        assert_eq!(protocol("  sl  local_address         remote_address        st"), None);
    }
}
