//! TCP_RR of many connections at once: one byte there and one back, one transaction at a time in each.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::{
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    unistd::Pid,
};

use super::super::{
    meter::{Meter, Shares},
    stream::{self, Ends},
};

/// How long no answer may come.
const STANDSTILL: Duration = Duration::from_secs(5);

/// What one measurement says.
#[derive(Debug, Default)]
pub struct Round {
    /// Transactions a second.
    pub rate: f64,
    /// Nanoseconds that each took.
    pub taken: Vec<u32>,
    pub cpu: Shares,
}

/// Asks by `count` connections at once, measured once it has gone on for `warm`.
pub fn measure(
    ends: &Ends,
    router: Option<Pid>,
    count: usize,
    warm: Duration,
    time: Duration,
) -> anyhow::Result<Round> {
    let (clients, servers) = stream::connect(ends, count)?.into_iter().map(|[out, into]| (out, into)).unzip();
    let (mut clients, servers) = (Set::new(clients)?, Set::new(servers)?);
    let begin = Instant::now() + warm;
    let end = begin + time;
    thread::scope(|scope| {
        let server = scope.spawn(move || answer(servers, router, begin));
        let done = transact(&mut clients, begin, end);
        // Upon which the server ends.
        drop(clients);
        let cpu = match server.join() {
            Ok(answered) => answered,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let taken = done?;
        Ok(Round { rate: taken.len() as f64 / time.as_secs_f64(), taken, cpu: cpu? })
    })
}

/// Connections that are waited for together.
struct Set {
    epoll: Epoll,
    streams: Vec<TcpStream>,
}

impl Set {
    fn new(streams: Vec<TcpStream>) -> anyhow::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (index, stream) in (0..).zip(&streams) {
            stream.set_nonblocking(true)?;
            epoll.add(stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, index))?;
        }
        Ok(Self { epoll, streams })
    }

    /// Those that have something, each with its number.
    fn ready<'a>(
        &'a self,
        events: &'a mut [EpollEvent],
    ) -> anyhow::Result<impl Iterator<Item = (usize, &'a TcpStream)>> {
        let found = match self.epoll.wait(events, EpollTimeout::try_from(STANDSTILL)?) {
            Ok(0) => bail!("no transaction for {} s", STANDSTILL.as_secs()),
            Ok(found) => found,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(events.iter().take(found).filter_map(|event| {
            let index = event.data() as usize;
            Some((index, self.streams.get(index)?))
        }))
    }
}

/// A byte, `None` at the end of the stream or where none has come.
fn byte(mut stream: &TcpStream) -> anyhow::Result<Option<u8>> {
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(byte[0])),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error).context("a connection of transactions"),
    }
}

/// Returns what each transaction took that began after `begin`.
fn transact(clients: &mut Set, begin: Instant, end: Instant) -> anyhow::Result<Vec<u32>> {
    let mut asked: Vec<(Instant, u8)> = Vec::new();
    for mut stream in &clients.streams {
        asked.push((Instant::now(), 0));
        stream.write_all(&[0])?;
    }
    let (mut events, mut taken) = (vec![EpollEvent::empty(); asked.len()], Vec::new());
    while Instant::now() < end {
        for (index, mut stream) in clients.ready(&mut events)? {
            let answer = byte(stream)?.context("a connection ended")?;
            let Some((start, request)) = asked.get_mut(index) else { continue };
            ensure!(answer == *request, "{request} was asked, {answer} answered");
            let now = Instant::now();
            if *start >= begin && now < end {
                taken.push(u32::try_from((now - *start).as_nanos()).unwrap_or(u32::MAX));
            }
            (*start, *request) = (now, request.wrapping_add(1));
            stream.write_all(&[*request])?;
        }
    }
    Ok(taken)
}

/// Answers until the clients are gone. What it took from `begin` on.
fn answer(servers: Set, router: Option<Pid>, begin: Instant) -> anyhow::Result<Shares> {
    let (mut meter, mut events) = (None, vec![EpollEvent::empty(); servers.streams.len()]);
    loop {
        if meter.is_none() && Instant::now() >= begin {
            meter = Some(Meter::start(router)?);
        }
        for (_, mut stream) in servers.ready(&mut events)? {
            // Reset is what a client does that had an answer to come.
            let gone = match byte(stream) {
                Ok(Some(request)) => stream.write_all(&[request]).is_err(),
                _ => true,
            };
            if gone {
                let (_, cpu) = meter.context("the clients went before they were measured")?.stop()?;
                return Ok(cpu);
            }
        }
    }
}
