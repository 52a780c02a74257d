//! TCP_STREAM, and a transfer whose bytes are looked at.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Shutdown, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::unistd::Pid;
use serde::Serialize;
use sha2::{Digest, Sha256};
use underpass_daemon::testbed::Namespace;

use super::meter::{Meter, Shares};
use crate::random::Random;

/// One end asks or sends, the other answers or receives.
pub struct Ends {
    pub from: Namespace,
    pub to: Namespace,
    /// An address of `to`.
    pub address: IpAddr,
}

/// What a program writes and reads at once.
const CHUNK: usize = 128 << 10;
/// How long nothing may come.
const STANDSTILL: Duration = Duration::from_secs(5);
/// How long until neighbours are found and a way is there.
const PATIENCE: Duration = Duration::from_secs(15);

/// What one measurement says.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Flow {
    /// Megabits of payload a second.
    pub mbits: f64,
    pub cpu: Shares,
}

/// What was carried and came out as it went in, each way.
#[derive(Clone, Debug, Serialize)]
pub struct Carried {
    pub bytes: usize,
    /// Of the bytes on the way there.
    pub sha256: String,
}

/// Connections from one end to the other.
pub fn connect(ends: &Ends, count: usize) -> anyhow::Result<Vec<[TcpStream; 2]>> {
    let listener = ends.to.enter(|| TcpListener::bind((ends.address, 0)))??;
    listener.set_nonblocking(true)?;
    let to = listener.local_addr()?;
    let deadline = Instant::now() + PATIENCE;
    let open = || -> anyhow::Result<Vec<[TcpStream; 2]>> {
        let mut pairs = Vec::new();
        while pairs.len() < count {
            let out = match TcpStream::connect_timeout(&to, Duration::from_secs(1)) {
                Ok(out) => out,
                Err(error) if Instant::now() > deadline => {
                    return Err(error).with_context(|| format!("no connection to {to}"));
                }
                Err(_) => continue,
            };
            let into = accept(&listener, &out)?;
            for stream in [&out, &into] {
                stream.set_read_timeout(Some(STANDSTILL))?;
                stream.set_write_timeout(Some(STANDSTILL))?;
                stream.set_nodelay(true)?;
            }
            pairs.push([out, into]);
        }
        Ok(pairs)
    };
    ends.from.enter(open)?
}

/// The other end of `out`; those that were given up are passed over.
fn accept(listener: &TcpListener, out: &TcpStream) -> anyhow::Result<TcpStream> {
    let (own, deadline) = (out.local_addr()?, Instant::now() + STANDSTILL);
    loop {
        match listener.accept() {
            Ok((into, peer)) if peer == own => {
                into.set_nonblocking(false)?;
                return Ok(into);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).context("a connection that its listener does not see"),
        }
    }
}

/// One connection.
fn single(ends: &Ends) -> anyhow::Result<[TcpStream; 2]> {
    connect(ends, 1)?.pop().context("no connection")
}

/// A stream as fast as it goes, measured once it has run for `warm`.
pub fn measure(ends: &Ends, router: Option<Pid>, warm: Duration, time: Duration) -> anyhow::Result<Flow> {
    let [mut out, mut into] = single(ends)?;
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let chunk = vec![0; CHUNK];
            while out.write_all(&chunk).is_ok() {}
        });
        let mut chunk = vec![0; CHUNK];
        let mut read_for = |time: Duration| -> anyhow::Result<usize> {
            let (start, mut bytes) = (Instant::now(), 0);
            while start.elapsed() < time {
                match into.read(&mut chunk).context("the stream stands still")? {
                    0 => bail!("the stream ended"),
                    length => bytes += length,
                }
            }
            Ok(bytes)
        };
        let measured = read_for(warm).and_then(|_| {
            let meter = Meter::start(router)?;
            let bytes = read_for(time)?;
            let (took, cpu) = meter.stop()?;
            Ok(Flow { mbits: bytes as f64 * 8.0 / 1e6 / took.as_secs_f64(), cpu })
        });
        // Upon which the sender ends.
        drop(into);
        ensure!(sender.join().is_ok(), "the sender panicked");
        measured
    })
}

/// Bytes there and others back; both must come out as they went in.
pub fn carry(ends: &Ends, bytes: usize) -> anyhow::Result<Carried> {
    let [mut out, mut into] = single(ends)?;
    let sha256 = one_way(&mut out, &mut into, bytes, 1).context("there")?;
    one_way(&mut into, &mut out, bytes, 2).context("and back")?;
    Ok(Carried { bytes, sha256 })
}

fn one_way(from: &mut TcpStream, to: &mut TcpStream, bytes: usize, seed: u64) -> anyhow::Result<String> {
    let (sent, (length, received)) = thread::scope(|scope| {
        let sender = scope.spawn(|| -> std::io::Result<_> {
            let (mut hash, mut left, mut random) = (Sha256::new(), bytes, Random(seed));
            while left > 0 {
                let mut chunk: Vec<u8> = (0..CHUNK / 8).flat_map(|_| random.next().to_le_bytes()).collect();
                chunk.truncate(left);
                from.write_all(&chunk)?;
                hash.update(&chunk);
                left -= chunk.len();
            }
            from.shutdown(Shutdown::Write)?;
            Ok(hex(hash))
        });
        let (mut hash, mut length, mut chunk) = (Sha256::new(), 0, vec![0; CHUNK]);
        loop {
            match to.read(&mut chunk).with_context(|| format!("after {length} bytes"))? {
                0 => break,
                read => {
                    length += read;
                    hash.update(chunk.get(..read).unwrap_or_default());
                }
            }
        }
        match sender.join() {
            Ok(sent) => anyhow::Ok((sent?, (length, hex(hash)))),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    ensure!(length == bytes, "{length} of {bytes} bytes came out");
    ensure!(sent == received, "SHA-256 {sent} went in, {received} came out");
    Ok(sent)
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
