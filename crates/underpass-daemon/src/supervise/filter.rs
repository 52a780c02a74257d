//! The seccomp filter of a supervised program: which of its system calls the supervisor is notified of.
//!
//! A filter sees numbers, no memory. It picks the calls in which the AF_UNIX socket that the program holds would
//! behave otherwise than one of AF_NETLINK; among these it lets pass what cannot be about netlink. `read`, `write`,
//! `poll`, `close`, `dup` and `fork` are the kernel's own.

use std::mem::offset_of;

use libc::{c_long, seccomp_data, sock_filter};

/// `AUDIT_ARCH_*` of calls as this program makes them; the numbers of other calls mean something else.
#[cfg(target_arch = "x86_64")]
pub const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
/// `AUDIT_ARCH_AARCH64`.
#[cfg(target_arch = "aarch64")]
pub const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
/// Supervision does not know this processor.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const ARCHITECTURE: Option<u32> = None;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const ABOVE: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

const NOTIFY: sock_filter = instruction(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF);
const ALLOW: sock_filter = instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);

/// The first numbers and the last of ioctls of tunnel devices: `SIOCGETTUNNEL` to `SIOCCHGTUNNEL`, `SIOCGET6RD` to
/// `SIOCCHG6RD`.
pub const TUNNELS: [(u32, u32); 2] = [(0x89f0, 0x89f3), (0x89f8, 0x89fb)];
/// Those about interfaces, addresses, routes and tunnels, and `TUNSETIFF`; not `SIOCOUTQNSD` (0x894b).
const NETWORKS: [(u32, u32); 4] =
    [(0x8908, 0x894a), (0x894c, 0x89ff), (0x8b00, 0x8bff), (0x4004_54ca, 0x4004_54ca)];

/// Lengths of addresses of IPv4 and IPv6, which are none of netlink: such calls pass.
const OTHER_ADDRESSES: [u32; 2] =
    [size_of::<libc::sockaddr_in>() as u32, size_of::<libc::sockaddr_in6>() as u32];

/// What a call must be for the supervisor to be notified.
enum When<'a> {
    /// Any.
    Always,
    /// An argument is one of these.
    Among(usize, &'a [u32]),
    /// An argument is none of these.
    NotAmong(usize, &'a [u32]),
    /// An argument is in one of these ranges.
    Within(usize, &'a [(u32, u32)]),
    /// An argument, which is an address, is not null.
    Given(usize),
}

/// The offset of the low half of an argument, or with `1` of its high half.
fn argument(number: usize, half: usize) -> u32 {
    let half = if cfg!(target_endian = "little") { half } else { 1 - half };
    (offset_of!(seccomp_data, args) + 8 * number + 4 * half) as u32
}

/// Instructions that end with a verdict for a call.
fn verdict(when: &When<'_>) -> Vec<sock_filter> {
    let load = |number| instruction(LOAD, 0, 0, argument(number, 0));
    match when {
        When::Always => vec![NOTIFY],
        When::Among(number, values) => {
            let tests = (0u8..)
                .zip(*values)
                .map(|(at, value)| instruction(EQUAL, values.len() as u8 - at, 0, *value));
            [load(*number)].into_iter().chain(tests).chain([ALLOW, NOTIFY]).collect()
        }
        When::NotAmong(number, values) => {
            let tests = (0u8..)
                .zip(*values)
                .map(|(at, value)| instruction(EQUAL, values.len() as u8 - at, 0, *value));
            [load(*number)].into_iter().chain(tests).chain([NOTIFY, ALLOW]).collect()
        }
        When::Within(number, ranges) => {
            let tests = ranges.iter().flat_map(|(first, last)| {
                [instruction(AT_LEAST, 0, 2, *first), instruction(ABOVE, 1, 0, *last), NOTIFY]
            });
            [load(*number)].into_iter().chain(tests).chain([ALLOW]).collect()
        }
        When::Given(number) => vec![
            load(*number),
            instruction(EQUAL, 0, 2, 0),
            instruction(LOAD, 0, 0, argument(*number, 1)),
            instruction(EQUAL, 1, 0, 0),
            NOTIFY,
            ALLOW,
        ],
    }
}

/// The filter. `alone`: the router is all the network that the program sees, so that other ioctls than those of
/// tunnels are refused, too.
pub fn program(architecture: u32, alone: bool) -> Vec<sock_filter> {
    let nature = [libc::SO_DOMAIN as u32, libc::SO_PROTOCOL as u32, libc::SO_TYPE as u32];
    let netlink = [libc::SOL_NETLINK as u32];
    let ioctls: &[_] = if alone { &NETWORKS } else { &TUNNELS };
    let rules: [(c_long, When<'_>); 13] = [
        (libc::SYS_socket, When::Among(0, &[libc::AF_NETLINK as u32])),
        (libc::SYS_sendmsg, When::Always),
        (libc::SYS_recvmsg, When::Always),
        (libc::SYS_sendto, When::NotAmong(5, &OTHER_ADDRESSES)),
        (libc::SYS_recvfrom, When::Given(4)),
        (libc::SYS_bind, When::NotAmong(2, &OTHER_ADDRESSES)),
        (libc::SYS_connect, When::NotAmong(2, &OTHER_ADDRESSES)),
        (libc::SYS_getsockname, When::Always),
        (libc::SYS_getpeername, When::Always),
        (libc::SYS_setsockopt, When::Among(1, &netlink)),
        (libc::SYS_sendmmsg, When::Always),
        (libc::SYS_recvmmsg, When::Always),
        (libc::SYS_ioctl, When::Within(1, ioctls)),
    ];
    let mut program = vec![
        instruction(LOAD, 0, 0, offset_of!(seccomp_data, arch) as u32),
        instruction(EQUAL, 1, 0, architecture),
        ALLOW,
        instruction(LOAD, 0, 0, offset_of!(seccomp_data, nr) as u32),
    ];
    let mut add = |number: c_long, verdict: Vec<sock_filter>| {
        program.push(instruction(EQUAL, 0, verdict.len() as u8, number as u32));
        program.extend(verdict);
    };
    for (number, when) in &rules {
        add(*number, verdict(when));
    }
    // Options of SOL_NETLINK, and those of SOL_SOCKET that say what kind of socket it is.
    let socket = verdict(&When::Among(2, &nature));
    let level = [
        instruction(LOAD, 0, 0, argument(1, 0)),
        instruction(EQUAL, 0, 1, libc::SOL_NETLINK as u32),
        NOTIFY,
        instruction(EQUAL, 1, 0, libc::SOL_SOCKET as u32),
        ALLOW,
    ];
    add(libc::SYS_getsockopt, level.into_iter().chain(socket).collect());
    program.push(ALLOW);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCH: u32 = 0xc000_003e;

    /// What the filter says of a call: whether the supervisor is notified.
    fn notified(alone: bool, arch: u32, number: c_long, args: [u64; 6]) -> bool {
        let mut data = Vec::new();
        data.extend_from_slice(&(number as u32).to_ne_bytes());
        data.extend_from_slice(&arch.to_ne_bytes());
        data.extend_from_slice(&[0; 8]);
        args.iter().for_each(|argument| data.extend_from_slice(&argument.to_ne_bytes()));
        let program = program(ARCH, alone);
        let (mut at, mut a) = (0, 0u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let jump = |taken| usize::from(if taken { jt } else { jf });
            match code {
                LOAD => a = u32::from_ne_bytes(data[k as usize..k as usize + 4].try_into().unwrap()),
                EQUAL => at += jump(a == k),
                AT_LEAST => at += jump(a >= k),
                ABOVE => at += jump(a > k),
                RETURN => return k == libc::SECCOMP_RET_USER_NOTIF,
                _ => panic!("{code}"),
            }
        }
    }

    #[test]
    fn only_what_can_be_about_netlink() {
        let says = |number, args| notified(false, ARCH, number, args);
        assert!(says(libc::SYS_socket, [16, 3, 0, 0, 0, 0]));
        assert!(!says(libc::SYS_socket, [2, 3, 0, 0, 0, 0]));
        assert!(says(libc::SYS_socket, [1 << 32 | 16, 3, 0, 0, 0, 0]), "the kernel reads an int");
        assert!(!notified(false, 0x4000_0003, libc::SYS_socket, [16, 3, 0, 0, 0, 0]));
        for number in [libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_dup, libc::SYS_poll] {
            assert!(!says(number, [16; 6]));
        }
        for length in [0, 12, 128] {
            assert!(says(libc::SYS_sendto, [3, 1, 1, 0, 1, length]));
            assert!(says(libc::SYS_bind, [3, 1, length, 0, 0, 0]));
        }
        for length in [16, 28] {
            assert!(!says(libc::SYS_sendto, [3, 1, 1, 0, 1, length]));
            assert!(!says(libc::SYS_connect, [3, 1, length, 0, 0, 0]));
        }
        assert!(!says(libc::SYS_recvfrom, [3, 1, 1, 0, 0, 0]));
        assert!(says(libc::SYS_recvfrom, [3, 1, 1, 0, 5, 0]));
        assert!(says(libc::SYS_recvfrom, [3, 1, 1, 0, 5 << 32, 0]));
        assert!(says(libc::SYS_setsockopt, [3, 270, 1, 0, 0, 0]));
        assert!(!says(libc::SYS_setsockopt, [3, 1, 1, 0, 0, 0]));
        assert!(says(libc::SYS_getsockopt, [3, 270, 9, 0, 0, 0]));
        for name in [libc::SO_DOMAIN, libc::SO_PROTOCOL, libc::SO_TYPE] {
            assert!(says(libc::SYS_getsockopt, [3, 1, name as u64, 0, 0, 0]));
            assert!(!says(libc::SYS_getsockopt, [3, 6, name as u64, 0, 0, 0]));
        }
        assert!(!says(libc::SYS_getsockopt, [3, 1, libc::SO_ERROR as u64, 0, 0, 0]));
    }

    #[test]
    fn ioctls_of_networks_where_the_router_is_alone() {
        let says = |alone, number| notified(alone, ARCH, libc::SYS_ioctl, [3, number, 0, 0, 0, 0]);
        for number in [0x89f0, 0x89f3, 0x89f8, 0x89fb] {
            assert!(says(false, number) && says(true, number));
        }
        for number in [0x89ef, 0x89f4, 0x8933, 0x4004_54ca] {
            assert!(!says(false, number) && says(true, number), "{number:x}");
        }
        for number in [0x5401, 0x8907, 0x894b, 0x8c00, 0x541b] {
            assert!(!says(false, number) && !says(true, number), "{number:x}");
        }
    }
}
