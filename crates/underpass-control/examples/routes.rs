//! How fast a router takes IPv6 routes through netlink, and what memory they cost.
//!
//! `cargo run --release -p underpass-control --example routes -- [ROUTES] [BATCH]` adds ROUTES random
//! /48 to /64 prefixes (1,000,000) through one next hop, in datagrams of BATCH requests (100), replaces
//! each and deletes each; prints the rate of each pass and the growth of
//! the heap and of the memory in use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use underpass_control::{Client, Protocol, Replies, Router};
use underpass_engine::buffer::PortId;
use underpass_engine::tables::Writer;
use underpass_netlink::Reply;
use underpass_netlink::reply::{Address, write_message};

/// The system's allocator, which knows how much is allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code)]
// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;

fn request(datagram: &mut Vec<u8>, kind: u16, flags: u16, write: impl FnOnce(&mut Reply<'_>)) -> Result<()> {
    let to = Address { port: 0, sequence: 1 };
    Ok(write_message(datagram, kind, flags | NLM_F_REQUEST, to, write)?)
}

fn route(reply: &mut Reply<'_>, prefix: Ipv6Addr, len: u8, gateway: Ipv6Addr, link: u32) {
    reply.fixed(&[10, len, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]);
    reply.address(1, prefix.into());
    reply.address(5, gateway.into());
    reply.u32(4, link);
}

/// Random prefixes, each once.
fn prefixes(count: usize) -> Vec<(Ipv6Addr, u8)> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut all = std::collections::BTreeSet::new();
    while all.len() < count {
        let len = 48 + (random() % 17) as u8;
        let bits = u128::from(0x2000_0000_0000_0000 | random() >> 3) << 64;
        all.insert((bits & !(u128::MAX >> len), len));
    }
    let mut all: Vec<_> = all.into_iter().map(|(bits, len)| (Ipv6Addr::from_bits(bits), len)).collect();
    for i in (1..all.len()).rev() {
        all.swap(i, (random() % (i as u64 + 1)) as usize);
    }
    all
}

/// Memory of the process that is in use, in bytes: what the tables map for themselves too.
fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let count = arguments.next().transpose()?.unwrap_or(1_000_000);
    let batch = arguments.next().transpose()?.unwrap_or(100).max(1);

    let (writer, _, mut readers) = Writer::new(1);
    let mut router = Router::new(writer);
    let mut client = Client::new(Protocol::Route, 1);
    let mut replies = Replies::default();
    let link = router.add_port("v0", [2, 0, 0, 0, 0, 1], PortId(0))?;
    let mut setup = Vec::new();
    let [a, b, c, d] = link.to_ne_bytes();
    // ip link set v0 up; ip addr add fd00::1/64 dev v0
    request(&mut setup, 16, 0, |reply| reply.fixed(&[0, 0, 0, 0, a, b, c, d, 1, 0, 0, 0, 1, 0, 0, 0]))?;
    request(&mut setup, 20, NLM_F_CREATE, |reply| {
        reply.fixed(&[10, 64, 0, 0, a, b, c, d]);
        reply.address(2, Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into());
    })?;
    router.request(&mut client, &setup, &mut replies);
    ensure!(replies.is_empty(), "the set-up was refused");

    let prefixes = prefixes(count);
    let passes = [
        ("add", 24, NLM_F_CREATE | NLM_F_EXCL, 2u16),
        ("replace", 24, NLM_F_CREATE | NLM_F_REPLACE, 3),
        ("delete", 25, 0, 3),
    ];
    for (name, kind, flags, gateway) in passes {
        let gateway = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, gateway);
        let before = ALLOCATED.load(Relaxed);
        let resident_before = resident()?;
        let mut spent = std::time::Duration::ZERO;
        let mut datagram = Vec::new();
        for chunk in prefixes.chunks(batch) {
            datagram.clear();
            for &(prefix, len) in chunk {
                request(&mut datagram, kind, flags, |reply| route(reply, prefix, len, gateway, link))?;
            }
            let start = Instant::now();
            router.request(&mut client, &datagram, &mut replies);
            spent += start.elapsed();
            readers.iter_mut().for_each(|reader| reader.idle());
            ensure!(replies.is_empty(), "a request was refused");
        }
        let grown = ALLOCATED.load(Relaxed) as f64 - before as f64;
        let rate = count as f64 / spent.as_secs_f64();
        let resident = (resident()? - resident_before) / 1e6;
        let each = grown / count as f64;
        let grown = grown / 1e6;
        println!(
            "{name:8} {rate:10.0} routes/s   heap {grown:+.1} MB ({each:+.1} bytes a route), resident {resident:+.1} MB"
        );
    }
    readers.pop().context("one worker")?;
    Ok(())
}
