//! The preload library from inside a program: what a netlink socket of the router does is what one of the
//! kernel does (netlink(7), net/netlink/af_netlink.c of Linux 6.12).
//!
//! `underpass exec` runs this same test program, of which it starts the one function below.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod daemon;

use std::{
    io::{BufRead, BufReader, IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use daemon::{Daemon, run};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        signal::{Signal, kill},
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname,
            getsockopt, recv, recvmsg, send, sendto, socket, sockopt,
        },
    },
    unistd::Pid,
};

#[test]
fn a_program_cannot_tell() {
    let daemon = Daemon::start(&["p0"]);
    let program = std::env::current_exe().unwrap();
    let words = [program.to_str().unwrap(), "--ignored", "--exact", "in_the_program", "--nocapture"];
    let outcome = run(&mut daemon.command(&words));
    assert_eq!(outcome.status, 0, "{}", outcome.output);
    assert!(outcome.output.contains("1 passed"), "{}", outcome.output);
}

/// A router that is killed, and the next one at its place: a program goes over from one to the other as if it were one
/// kernel, and hears that something was lost.
#[test]
fn a_socket_goes_over_to_the_next_router() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("netlink.sock");
    let mut router = start_router(&socket);
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(daemon::UNDERPASS);
    command.arg("exec").arg("--socket").arg(&socket).arg("--").arg(program);
    command.args(["--ignored", "--exact", "between_two_routers", "--nocapture"]);
    command.env("TEST_ROUTER", router.id().to_string()).env("TEST_SOCKET", &socket);
    let outcome = run(&mut command);
    let _ = router.kill();
    router.wait().unwrap();
    assert_eq!(outcome.status, 0, "{}", outcome.output);
    assert!(outcome.output.contains("1 passed"), "{}", outcome.output);
}

/// A router at `socket`, which is ready.
fn start_router(socket: &Path) -> Child {
    let mut command = Command::new(daemon::UNDERPASS);
    command.args(["run", "--offline", "--port", "p0", "--socket"]).arg(socket).stdout(Stdio::piped());
    let mut router = command.spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(router.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.starts_with("underpass: ready at "), "{ready}");
    router
}

#[test]
#[ignore = "run by a_socket_goes_over_to_the_next_router, under underpass exec"]
fn between_two_routers() {
    let variable = |name| std::env::var(name).unwrap();
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener =
        || socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute).unwrap();
    let (polled, watched, quiet) = (listener(), listener(), listener());
    for listener in [&polled, &watched, &quiet] {
        bind(listener.as_raw_fd(), &NetlinkAddr::new(0, 1)).unwrap();
    }
    set(&polled, libc::NETLINK_ADD_MEMBERSHIP, libc::RTNLGRP_NEXTHOP as i32).unwrap();
    set(&polled, libc::NETLINK_EXT_ACK, 1).unwrap();
    set(&quiet, libc::NETLINK_NO_ENOBUFS, 1).unwrap();
    let (requester, dumper) = (open(), open());
    assert!(works(requester.as_raw_fd()) && works(dumper.as_raw_fd()));
    let copy = polled.try_clone().unwrap();
    let ports = [&polled, &watched, &quiet, &requester].map(port_id);
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    epoll.add(&watched, EpollEvent::new(EpollFlags::EPOLLIN, 77)).unwrap();

    kill(Pid::from_raw(variable("TEST_ROUTER").parse().unwrap()), Signal::SIGKILL).unwrap();
    // Nothing to read is nothing to read, however often a program tries, and it seldom has a reason to.
    let mut wakes = 0;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        let mut waited = [PollFd::new(polled.as_fd(), PollFlags::POLLIN)];
        if poll(&mut waited, PollTimeout::from(200u8)).unwrap() > 0 {
            wakes += 1;
            assert_eq!(recv(polled.as_raw_fd(), &mut [0; 64], MsgFlags::empty()), Err(Errno::EAGAIN));
        }
        let mut events = [EpollEvent::empty()];
        if epoll.wait(&mut events, EpollTimeout::ZERO).unwrap() > 0 {
            wakes += 1;
            assert_eq!(recv(watched.as_raw_fd(), &mut [0; 64], MsgFlags::empty()), Err(Errno::EAGAIN));
        }
    }
    assert!((2..20).contains(&wakes), "{wakes} times awake");
    assert_eq!(send(requester.as_raw_fd(), &get_link(1), MsgFlags::empty()), Err(Errno::ECONNREFUSED));

    // A dump waits for the next one: programs read its answer, whether they could ask or not.
    let dump = std::thread::spawn(move || {
        let mut request = get_link(0);
        request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
        send(dumper.as_raw_fd(), &request, MsgFlags::empty()).unwrap();
        recv(dumper.as_raw_fd(), &mut [0; 8192], MsgFlags::empty()).unwrap()
    });
    let mut next = start_router(Path::new(&variable("TEST_SOCKET")));
    assert!(works(requester.as_raw_fd()));
    assert!(dump.join().unwrap() > 64);
    // What listens hears that it has missed something; then it is a listener as before.
    for listener in [&polled, &watched] {
        let end = Instant::now() + Duration::from_secs(10);
        let heard = loop {
            match recv(listener.as_raw_fd(), &mut [0; 64], MsgFlags::empty()) {
                Err(Errno::EAGAIN) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                other => break other,
            }
        };
        assert_eq!(heard, Err(Errno::ENOBUFS));
        assert_eq!(recv(listener.as_raw_fd(), &mut [0; 64], MsgFlags::empty()), Err(Errno::EAGAIN));
    }
    assert_eq!(recv(quiet.as_raw_fd(), &mut [0; 64], MsgFlags::empty()), Err(Errno::EAGAIN));
    assert_eq!([&polled, &watched, &quiet, &requester].map(port_id), ports);
    let listed = get(&polled, libc::SOL_NETLINK, libc::NETLINK_LIST_MEMBERSHIPS);
    assert_eq!(listed, Ok(1 | 1 << (libc::RTNLGRP_NEXTHOP - 1)));
    assert_eq!(get(&polled, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK), Ok(1));
    assert!(Command::new("ip").args("link set p0 mtu 1400".split(' ')).status().unwrap().success());
    for listener in [&polled, &copy, &watched, &quiet] {
        let peek = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
        assert!(recv(listener.as_raw_fd(), &mut [0; 64], peek).unwrap() > 64);
    }
    let mut events = [EpollEvent::empty()];
    assert_eq!((epoll.wait(&mut events, EpollTimeout::ZERO).unwrap(), events[0].data()), (1, 77));
    next.kill().unwrap();
    next.wait().unwrap();
}

#[test]
#[ignore = "run by a_program_cannot_tell, under underpass exec"]
fn in_the_program() {
    // One function: they share the numbers of descriptors.
    names_and_options();
    every_way_to_send_and_receive();
    parts_fit_the_reader();
    groups_of_datagrams();
    copies_and_closing();
    interfaces();
    other_sockets();
}

fn open() -> OwnedFd {
    socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute).unwrap()
}

/// RTM_GETLINK of interface `index`.
fn get_link(index: u32) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(32u32.to_ne_bytes());
    message.extend(libc::RTM_GETLINK.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([7, 0, 0, 0, 0, 0, 0, 0]); // sequence 7, port id 0
    message.extend([0; 4]);
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]);
    message
}

/// The sequence number and the port id of the answer that waits.
fn answer(fd: RawFd) -> (u32, u32) {
    let mut bytes = [0; 8192];
    // The answer is there when the request has been sent: no wait.
    let length = recv(fd, &mut bytes, MsgFlags::MSG_DONTWAIT).unwrap();
    assert!(length > 32, "an answer of {length} bytes");
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(u16::from_ne_bytes([bytes[4], bytes[5]]), libc::RTM_NEWLINK);
    (word(8), word(12))
}

fn port_id(fd: &OwnedFd) -> u32 {
    getsockname::<NetlinkAddr>(fd.as_raw_fd()).unwrap().pid()
}

/// setsockopt or getsockopt of a SOL_NETLINK option.
#[allow(unsafe_code)]
fn set(fd: &OwnedFd, name: i32, value: i32) -> Result<i32, Errno> {
    let length = size_of::<i32>() as u32;
    // SAFETY: `value` is an int, and its length is given.
    Errno::result(unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_NETLINK, name, (&raw const value).cast(), length)
    })
}

#[allow(unsafe_code)]
fn get(fd: &OwnedFd, level: i32, name: i32) -> Result<u64, Errno> {
    let (mut value, mut length) = (0u64, size_of::<u64>() as u32);
    // SAFETY: `value` has the room that `length` says.
    Errno::result(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    })?;
    Ok(value)
}

fn names_and_options() {
    let (first, second) = (open(), open());
    assert_eq!(port_id(&first), 0, "not bound yet");
    bind(first.as_raw_fd(), &NetlinkAddr::new(0, 0)).unwrap();
    assert_eq!(port_id(&first), std::process::id());
    let taken = NetlinkAddr::new(std::process::id(), 0);
    assert_eq!(bind(second.as_raw_fd(), &taken), Err(Errno::EADDRINUSE));
    bind(second.as_raw_fd(), &NetlinkAddr::new(0, 0)).unwrap();
    assert!(port_id(&second) > i32::MAX as u32, "another process's number is not taken");
    assert_eq!(bind(second.as_raw_fd(), &NetlinkAddr::new(4711, 0)), Err(Errno::EINVAL));
    bind(second.as_raw_fd(), &NetlinkAddr::new(0, 0b101)).unwrap();
    assert_eq!(getsockname::<NetlinkAddr>(second.as_raw_fd()).unwrap().groups(), 0b101);
    let listed = |fd| get(fd, libc::SOL_NETLINK, libc::NETLINK_LIST_MEMBERSHIPS);
    assert_eq!(listed(&second), Ok(0b101));
    set(&second, libc::NETLINK_DROP_MEMBERSHIP, 1).unwrap();
    set(&second, libc::NETLINK_ADD_MEMBERSHIP, libc::RTNLGRP_MPLS_ROUTE as i32).unwrap();
    assert_eq!(listed(&second), Ok(0b100 | 1 << (libc::RTNLGRP_MPLS_ROUTE - 1)));
    assert_eq!(getsockname::<NetlinkAddr>(second.as_raw_fd()).unwrap().groups() & 1, 0);
    assert_eq!(set(&second, libc::NETLINK_ADD_MEMBERSHIP, 0), Err(Errno::EINVAL));

    for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK, libc::NETLINK_GET_STRICT_CHK] {
        assert_eq!(get(&first, libc::SOL_NETLINK, option), Ok(0));
        set(&first, option, 1).unwrap();
        assert_eq!(get(&first, libc::SOL_NETLINK, option), Ok(1));
    }
    assert_eq!(get(&first, libc::SOL_SOCKET, libc::SO_DOMAIN), Ok(libc::AF_NETLINK as u64));
    assert_eq!(get(&first, libc::SOL_SOCKET, libc::SO_PROTOCOL), Ok(libc::NETLINK_ROUTE as u64));
    assert_eq!(get(&first, libc::SOL_SOCKET, libc::SO_TYPE), Ok(libc::SOCK_RAW as u64));

    // A port id is free once its socket is closed.
    let port = port_id(&second);
    drop(second);
    let third = open();
    let free = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        bind(third.as_raw_fd(), &NetlinkAddr::new(port, 0)).is_ok()
    });
    assert!(free);
}

#[allow(unsafe_code)]
fn every_way_to_send_and_receive() {
    let socket = open();
    let fd = socket.as_raw_fd();
    let request = get_link(1);
    let kernel = NetlinkAddr::new(0, 0);

    assert_eq!(send(fd, &request, MsgFlags::empty()), Ok(32));
    let port = port_id(&socket);
    assert_ne!(port, 0, "sending binds");
    assert_eq!(answer(fd), (7, port));
    assert_eq!(sendto(fd, &request, &kernel, MsgFlags::empty()), Ok(32));
    assert_eq!(answer(fd), (7, port));
    assert_eq!(nix::unistd::write(&socket, &request), Ok(32));
    assert_eq!(answer(fd), (7, port));
    let halves = [IoSlice::new(&request[..10]), IoSlice::new(&request[10..])];
    assert_eq!(nix::sys::uio::writev(&socket, &halves), Ok(32));
    assert_eq!(answer(fd), (7, port));
    let sent = nix::sys::socket::sendmsg(fd, &halves, &[], MsgFlags::empty(), Some(&kernel));
    assert_eq!(sent, Ok(32));
    assert_eq!(answer(fd), (7, port));

    assert_eq!(send(fd, &[], MsgFlags::empty()), Err(Errno::ENODATA));
    assert_eq!(sendto(fd, &request, &NetlinkAddr::new(4711, 0), MsgFlags::empty()), Err(Errno::ECONNREFUSED));
    assert_eq!(recv(fd, &mut [0; 64], MsgFlags::MSG_DONTWAIT), Err(Errno::EAGAIN));

    // As iproute2 reads: first how long it is, then what it is; each says that the kernel sent it.
    send(fd, &request, MsgFlags::empty()).unwrap();
    let peek = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
    let peeked = recvmsg::<NetlinkAddr>(fd, &mut [], None, peek).unwrap();
    let (length, from) = (peeked.bytes, peeked.address.unwrap());
    assert!(length > 32);
    assert_eq!((from.pid(), from.groups()), (0, 0));
    let mut bytes = vec![0; length];
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg::<NetlinkAddr>(fd, &mut slices, None, MsgFlags::empty()).unwrap();
    assert_eq!((received.bytes, received.address.unwrap().pid()), (length, 0));

    // Both messages of a sendmmsg, and both answers in a recvmmsg.
    let mut vector = libc::iovec { iov_base: request.as_ptr().cast_mut().cast(), iov_len: request.len() };
    // SAFETY: the vectors, names and messages live to the end of the block, with the lengths given.
    unsafe {
        let mut message: libc::mmsghdr = std::mem::zeroed();
        message.msg_hdr.msg_iov = &raw mut vector;
        message.msg_hdr.msg_iovlen = 1;
        let mut messages = [message, message];
        assert_eq!(libc::sendmmsg(fd, messages.as_mut_ptr(), 2, 0), 2);
        assert_eq!(messages.map(|message| message.msg_len), [32, 32]);
        let mut room = [0u8; 8192];
        let mut vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let mut names: [libc::sockaddr_nl; 2] = std::mem::zeroed();
        for (message, name) in messages.iter_mut().zip(&mut names) {
            name.nl_pid = 99;
            message.msg_hdr.msg_iov = &raw mut vector;
            message.msg_hdr.msg_name = (&raw mut *name).cast();
            message.msg_hdr.msg_namelen = 12;
        }
        let timeout = std::ptr::null_mut();
        assert_eq!(libc::recvmmsg(fd, messages.as_mut_ptr(), 2, libc::MSG_DONTWAIT, timeout), 2);
        for (message, name) in messages.iter().zip(names) {
            assert_eq!((message.msg_hdr.msg_namelen, name.nl_family), (12, libc::AF_NETLINK as u16));
            assert_eq!(name.nl_pid, 0);
        }
        // recvfrom too.
        send(fd, &request, MsgFlags::empty()).unwrap();
        let (mut name, mut length): (libc::sockaddr_nl, _) = (std::mem::zeroed(), 12);
        name.nl_pid = 99;
        let got = libc::recvfrom(
            fd,
            room.as_mut_ptr().cast(),
            room.len(),
            0,
            (&raw mut name).cast(),
            &raw mut length,
        );
        assert!(got > 32);
        assert_eq!((length, name.nl_pid, name.nl_family), (12, 0, libc::AF_NETLINK as u16));
    }
}

/// A dump of 400 routes, read with buffers of one length: nothing is cut, and the parts are as long as Linux makes them for
/// such a reader.
fn parts_fit_the_reader() {
    let routes = (0..400).map(|i| format!("route add 10.{}.{}.0/24 dev p0\n", i / 200 + 60, i % 200));
    let batch = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(batch.path(), format!("link set p0 up\n{}", routes.collect::<String>())).unwrap();
    assert!(Command::new("ip").arg("-batch").arg(batch.path()).status().unwrap().success());
    for room in [4096, 8192, 32_768] {
        let socket = open();
        let mut request = vec![28, 0, 0, 0];
        request.extend(libc::RTM_GETROUTE.to_ne_bytes());
        request.extend((libc::NLM_F_REQUEST as u16 | libc::NLM_F_DUMP as u16).to_ne_bytes());
        request.extend([9, 0, 0, 0, 0, 0, 0, 0, libc::AF_INET as u8]);
        request.resize(28, 0);
        send(socket.as_raw_fd(), &request, MsgFlags::empty()).unwrap();
        let (mut count, mut longest, mut done) = (0, 0, false);
        while !done {
            let mut bytes = vec![0; room];
            let length = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_TRUNC).unwrap();
            assert!(length <= room, "{length} bytes for {room}");
            longest = longest.max(length);
            for message in underpass_netlink::messages(&bytes[..length]) {
                match message.kind {
                    libc::RTM_NEWROUTE => count += 1,
                    kind => done = i32::from(kind) == libc::NLMSG_DONE,
                }
            }
        }
        assert!(count >= 400, "{count} routes in parts for {room} bytes");
        assert!(longest > 3_000, "{longest}");
    }
    assert!(Command::new("ip").args(["route", "flush", "table", "main"]).status().unwrap().success());
}

/// NETLINK_PKTINFO: which group a datagram went to, 0 for an answer.
#[allow(unsafe_code)]
fn groups_of_datagrams() {
    let socket = open();
    set(&socket, libc::NETLINK_PKTINFO, 1).unwrap();
    assert_eq!(get(&socket, libc::SOL_NETLINK, libc::NETLINK_PKTINFO), Ok(1));
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 1)).unwrap();
    send(socket.as_raw_fd(), &get_link(1), MsgFlags::empty()).unwrap();
    assert!(Command::new("ip").args("link set p0 mtu 1450".split(' ')).status().unwrap().success());
    let receive = |room: usize, ancillary: usize| {
        let (mut bytes, mut space) = ([0u8; 8192], [0u64; 8]);
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: room };
        // SAFETY: what the message points at lives as long as it, with the lengths given.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
            (message.msg_control, message.msg_controllen) = (space.as_mut_ptr().cast(), ancillary);
            let length = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT);
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            let group = (!header.is_null()).then(|| {
                let kind = ((*header).cmsg_level, (*header).cmsg_type);
                assert_eq!(kind, (libc::SOL_NETLINK, libc::NETLINK_PKTINFO));
                libc::CMSG_DATA(header).cast::<u32>().read_unaligned()
            });
            let said = underpass_netlink::messages(&bytes[..length.max(0) as usize]).next().map(|m| m.kind);
            (group, said, message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC))
        }
    };
    let link = Some(libc::RTM_NEWLINK);
    assert_eq!(receive(8192, 64), (Some(0), link, 0));
    assert_eq!(receive(8192, 64), (Some(1), link, 0));
    // A program that does not look at it, and one whose buffers are too short.
    send(socket.as_raw_fd(), &get_link(1), MsgFlags::empty()).unwrap();
    assert_eq!(answer(socket.as_raw_fd()).0, 7);
    send(socket.as_raw_fd(), &get_link(1), MsgFlags::empty()).unwrap();
    send(socket.as_raw_fd(), &get_link(1), MsgFlags::empty()).unwrap();
    assert_eq!(receive(8192, 16), (None, link, libc::MSG_CTRUNC));
    assert_eq!(receive(20, 64), (Some(0), None, libc::MSG_TRUNC));
    set(&socket, libc::NETLINK_PKTINFO, 0).unwrap();
    send(socket.as_raw_fd(), &get_link(1), MsgFlags::empty()).unwrap();
    assert_eq!(receive(8192, 64), (None, link, 0));
}

/// Asks over `fd` and reads the answer.
fn works(fd: RawFd) -> bool {
    send(fd, &get_link(1), MsgFlags::empty()).is_ok_and(|_| answer(fd).0 == 7)
}

#[allow(unsafe_code)]
fn copies_and_closing() {
    let original = open();
    assert!(works(original.as_raw_fd()));
    let copy = original.try_clone().unwrap(); // F_DUPFD_CLOEXEC
    let port = port_id(&original);
    drop(original);
    assert!(works(copy.as_raw_fd()));
    assert_eq!(port_id(&copy), port);
    // SAFETY: the numbers are made here and owned once each.
    let (dup, dup2) = unsafe {
        let dup = OwnedFd::from_raw_fd(Errno::result(libc::dup(copy.as_raw_fd())).unwrap());
        let dup2 = OwnedFd::from_raw_fd(Errno::result(libc::dup2(copy.as_raw_fd(), 100)).unwrap());
        (dup, dup2)
    };
    drop(copy);
    assert!(works(dup.as_raw_fd()) && works(100));
    drop(dup);

    // A program that closes all that it does not know leaves its socket whole.
    for fd in 101..2048 {
        // SAFETY: nothing of this program has these numbers; what it inherited it does not need.
        unsafe { libc::close(fd) };
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::close_range(101, u32::MAX, 0) }, 0);
    assert!(works(100));
    // Nor does a program that is started take it along or away.
    assert!(Command::new("true").status().unwrap().success());
    // SAFETY: the child calls only what is safe after fork.
    match unsafe { libc::fork() } {
        // SAFETY: as above.
        0 => unsafe {
            libc::close(100);
            libc::_exit(0)
        },
        child => {
            let mut status = 0;
            // SAFETY: `status` is there to be written.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        }
    }
    assert!(works(100));
    // What takes the number of a socket is no socket.
    let other = std::fs::File::options().write(true).open("/dev/null").unwrap();
    // SAFETY: 100 is owned by `dup2`, and stays open.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), 100) }, 100);
    assert_eq!(nix::unistd::write(&dup2, &get_link(1)), Ok(32));
    assert_eq!(send(100, &get_link(1), MsgFlags::empty()), Err(Errno::ENOTSOCK));
}

#[allow(unsafe_code)]
fn interfaces() {
    assert_eq!(nix::net::if_::if_nametoindex("lo"), Ok(1));
    assert_eq!(nix::net::if_::if_nametoindex("p0"), Ok(2));
    assert_eq!(nix::net::if_::if_nametoindex("eth-of-the-host"), Err(Errno::ENODEV));
    assert_eq!(nix::net::if_::if_nametoindex("a-name-that-is-far-too-long"), Err(Errno::ENODEV));
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the name has room for IF_NAMESIZE bytes.
    unsafe {
        assert!(!libc::if_indextoname(2, name.as_mut_ptr().cast()).is_null());
        assert_eq!(&name[..3], b"p0\0");
        assert!(libc::if_indextoname(77, name.as_mut_ptr().cast()).is_null());
        assert_eq!(Errno::last(), Errno::ENXIO);
    }
    let any = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
    // SAFETY: all zero bytes are a valid ifreq, which is what these requests read and write.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[..2].copy_from_slice(&[b'p' as libc::c_char, b'0' as libc::c_char]);
        assert_eq!(libc::ioctl(any.as_raw_fd(), libc::SIOCGIFINDEX, &raw mut request), 0);
        assert_eq!(request.ifr_ifru.ifru_ifindex, 2);
        request.ifr_name = [0; 16];
        assert_eq!(libc::ioctl(any.as_raw_fd(), libc::SIOCGIFNAME, &raw mut request), 0);
        assert_eq!(request.ifr_name[..2], [b'p' as libc::c_char, b'0' as libc::c_char]);
        // The kernel's own interfaces are neither shown nor changed.
        assert_eq!(libc::ioctl(any.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request), -1);
        assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
    }
}

fn other_sockets() {
    let flags = SockFlag::SOCK_CLOEXEC;
    for protocol in [SockProtocol::NetlinkSockDiag, SockProtocol::NetlinkNetFilter] {
        let refused = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol);
        assert_eq!(refused.map(drop), Err(Errno::EPROTONOSUPPORT));
    }
    let refused = socket(AddressFamily::Netlink, SockType::Stream, flags, SockProtocol::NetlinkRoute);
    assert_eq!(refused.map(drop), Err(Errno::ESOCKTNOSUPPORT));
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(nix::unistd::write(&a, b"hello"), Ok(5));
    assert_eq!(recv(b.as_raw_fd(), &mut [0; 8], MsgFlags::empty()), Ok(5));
    assert_eq!(getsockopt(&a, sockopt::SockType), Ok(SockType::Stream));
}
