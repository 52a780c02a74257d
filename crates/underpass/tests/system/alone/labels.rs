//! Labels that change by the hundred thousand while packets follow some of them.

use std::{
    env,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsRawFd,
    process::Stdio,
    time::{Duration, Instant},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, setsockopt,
    socket, sockopt,
};
use underpass_netlink::{
    message, messages,
    mpls::{Via, stack, via},
    reply::{Address, write_message},
};

use crate::mpls::{Line, UNDERPASS, label_routes};
use crate::net::{Stream, settle, turn_alone};

/// The labels that the client changes: so many from the first.
const FIRST: u32 = 2000;
const COUNT: u32 = 100_000;
/// How often each is given another route after it was added.
const CHANGES: u32 = 2;
/// Tells this program that it is the client: the index of the link by which its routes lead.
const CLIENT: &str = "UNDERPASS_LABEL_CLIENT";
/// Requests are gathered up to so many bytes.
const BATCH: usize = 48 * 1024;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_VIA: u16 = 18;
const RTA_NEWDST: u16 = 19;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;

/// A request: a label's route by a gateway, with a label in its place; or its removal.
fn request(batch: &mut Vec<u8>, kind: u16, label: u32, to: Option<(u32, Ipv4Addr, u32)>) {
    let flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE;
    write_message(batch, kind, flags, Address::default(), |message| {
        message.fixed(&[
            libc::AF_MPLS as u8,
            20,
            0,
            0,
            libc::RT_TABLE_MAIN,
            4,
            0,
            libc::RTN_UNICAST,
            0,
            0,
            0,
            0,
        ]);
        message.attribute(RTA_DST, &stack(&[label]));
        if let Some((new, gateway, link)) = to {
            message.attribute(RTA_NEWDST, &stack(&[new]));
            message.attribute(RTA_VIA, &via(Via::Ip(IpAddr::V4(gateway))));
            message.u32(RTA_OIF, link);
        }
    })
    .unwrap();
}

/// The client, in a process of its own, whose netlink socket leads to the router. It says how many requests it
/// made, and in how many microseconds.
#[test]
#[ignore = "no_packet_lost_while_labels_change starts it"]
fn batching_client() {
    let link = env::var(CLIENT).unwrap().parse().unwrap();
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::empty(), SockProtocol::NetlinkRoute).unwrap();
    connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0)).unwrap();
    setsockopt(&socket, sockopt::ReceiveTimeout, &nix::sys::time::TimeVal::new(30, 0)).unwrap();
    let mut batches = vec![Vec::new()];
    let mut add = |kind, label, to| {
        if batches.last().unwrap().len() > BATCH {
            batches.push(Vec::new());
        }
        request(batches.last_mut().unwrap(), kind, label, to);
    };
    let gateways = [Ipv4Addr::new(10, 0, 2, 1), Ipv4Addr::new(10, 0, 2, 2)];
    let mut requests = 0_u64;
    for change in 0..=CHANGES {
        for label in FIRST..FIRST + COUNT {
            let new = 16 + (label + change) % 1000;
            add(libc::RTM_NEWROUTE, label, Some((new, gateways[(change % 2) as usize], link)));
            requests += 1;
            // The label that packets follow changes too, to another that leads them as well.
            if label % 100 == 0 {
                add(libc::RTM_NEWROUTE, 102, Some((112 + (label / 100) % 2 * 10, gateways[0], link)));
                requests += 1;
            }
        }
    }
    for label in FIRST + 100..FIRST + COUNT {
        add(libc::RTM_DELROUTE, label, None);
        requests += 1;
    }
    // The last of each batch is acknowledged; one that fails would be, too.
    for batch in &mut batches {
        let last = messages(batch).last().unwrap();
        let at = batch.len() - last.bytes.len();
        let flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK;
        batch[at + 6..at + 8].copy_from_slice(&flags.to_ne_bytes());
    }
    let start = Instant::now();
    let mut answers = vec![0; 64 * 1024];
    for batch in &batches {
        assert_eq!(send(socket.as_raw_fd(), batch, MsgFlags::empty()).unwrap(), batch.len());
        let len = recv(socket.as_raw_fd(), &mut answers, MsgFlags::empty()).unwrap();
        assert_eq!(messages(&answers[..len]).count(), 1);
        let error = &answers[message::HEADER..message::HEADER + 4];
        assert_eq!(i32::from_ne_bytes(error.try_into().unwrap()), 0);
    }
    println!("\ncounted {requests} {}", start.elapsed().as_micros());
}

/// Every packet arrives, once and in order, while labels come, change and go, its own among them.
#[test]
fn no_packet_lost_while_labels_change() {
    let Some(_turn) = turn_alone("no_packet_lost_while_labels_change") else { return };
    let mut line = Line::new([UNDERPASS; 3]);
    label_routes(&mut line);
    line.routers[1].run("sysctl -qw net.mpls.platform_labels=200000");
    line.routers[2].run("ip -f mpls route add 122 via inet 10.2.0.2 dev cust");
    let [h1, h2] = &line.hosts;
    settle(h1, "10.2.0.2", Duration::from_secs(10)).unwrap();
    settle(h1, "fd10:2::2", Duration::from_secs(10)).unwrap();
    let link = line.routers[1].run("ip -o link show east");
    let link = link.split(':').next().unwrap().trim().to_owned();
    let there = Stream::start(h1, h2, "10.2.0.2".parse().unwrap(), 4000, 2000);
    let back = Stream::start(h2, h1, "fd10:1::2".parse().unwrap(), 4001, 2000);
    let router = line.routers[1].underpass();
    let this = env::current_exe().unwrap();
    let mut client = router.command(&this.display().to_string());
    // Where this module is in the test program: without the crate's name.
    let (_, room) = module_path!().split_once("::").unwrap();
    let name = format!("{room}::batching_client");
    client.args(["--exact", &name, "--ignored", "--nocapture"]).env(CLIENT, link);
    let output = client.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let (there, back) = (there.end(), back.end());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("\ncounted "), "the client ran: {said}");
    there.assert_whole();
    back.assert_whole();
    assert!(there.sent > 100 && back.sent > 100, "{there:?} {back:?}");
    let counted = said.lines().find_map(|line| line.strip_prefix("counted ")).unwrap();
    let counted: Vec<u64> = counted.split(' ').map(|word| word.parse().unwrap()).collect();
    println!(
        "{} requests, {:.0} a second, and {} packets meanwhile",
        counted[0],
        counted[0] as f64 * 1e6 / counted[1] as f64,
        there.sent + back.sent,
    );
    // What the client left.
    let shown = line.routers[1].run("ip -f mpls route");
    let left = (FIRST..FIRST + 100).filter(|label| shown.contains(&format!("\n{label} as to "))).count();
    assert_eq!((left, shown.lines().count()), (100, 104), "{shown}");
    line.stop();
}
