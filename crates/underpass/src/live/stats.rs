//! What a running router has counted: for `underpass stats` at a socket beside its own, and for Prometheus.
//!
//! Each connection to the socket gets one JSON document, [`Stats`].

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{self, Write},
    net::{SocketAddr, TcpListener},
    os::unix::{
        fs::{PermissionsExt, chown},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    Live, metrics,
    worker::{Handle, Order},
};
use crate::serve::Waker;
use underpass_engine::buffer::PortId;
use underpass_port::live::Tally;

/// How long somebody who asks may take to read the answer, and the control thread to give it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a worker may take to say what its ports have dropped.
const WORKER_PATIENCE: Duration = Duration::from_millis(200);

/// What a running router has counted since it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// What became of all packets.
    pub totals: Totals,
    /// Packets dropped by the packet path, by reason; reasons that have not occurred are left out.
    pub drops: BTreeMap<String, u64>,
    /// By port.
    pub ports: Vec<Port>,
    /// By worker.
    pub workers: Vec<Worker>,
    /// By local SID.
    pub sids: Vec<Sid>,
}

/// Every packet that came in or was made was sent, delivered or dropped, or is held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Came in by a port.
    pub received: u64,
    /// Made by the router: ICMP errors, fragments.
    pub generated: u64,
    /// Handed to a port to be sent.
    pub sent: u64,
    /// For the host.
    pub delivered: u64,
    /// Dropped for a reason.
    pub dropped: u64,
    /// Times that a packet was moved to make room for headers.
    pub buffer_moves: u64,
    /// Times that headers found room before or in a packet.
    pub buffer_moves_avoided: u64,
}

/// A device, as a port of the router.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The device.
    pub name: String,
    /// Its interface index.
    pub index: u32,
    /// `packet`, `xdp-native`, `xdp-generic` or `tun`.
    pub driver: String,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, with the link layer.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent, with the link layer.
    pub tx_bytes: u64,
    /// What the port itself has dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Large segments that were cut, as the device does not take them.
    pub cut: u64,
}

/// A thread that forwards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its number, from 0.
    pub number: usize,
    /// The processor that it is bound to.
    pub processor: Option<usize>,
    /// What became of its packets.
    pub totals: Totals,
    /// Bursts that had packets.
    pub bursts: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
}

/// A local SID.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sid {
    /// Its prefix.
    pub prefix: String,
    /// Its table.
    pub table: u32,
    /// Its behaviour.
    pub behaviour: String,
    /// Packets processed.
    pub packets: u64,
    /// Their bytes, as received from the IPv6 header on.
    pub bytes: u64,
    /// Packets refused.
    pub errors: u64,
}

/// Where the router at `socket` tells what it has counted.
pub fn path(socket: &Path) -> PathBuf {
    let mut path = OsString::from(socket);
    path.push(".stats");
    path.into()
}

/// Somebody who wants to know.
pub type Question = Sender<Stats>;

/// The way of questions to the control thread.
#[derive(Clone)]
struct Asking {
    questions: Sender<Question>,
    waker: Waker,
}

impl Asking {
    fn ask(&self) -> io::Result<Stats> {
        let (answer, answered) = channel();
        self.questions.send(answer).map_err(io::Error::other)?;
        self.waker.wake();
        answered.recv_timeout(PATIENCE).map_err(io::Error::other)
    }
}

/// The socket file, which goes when this is dropped; and the questions.
pub struct Listening {
    /// To be answered by the control thread.
    pub questions: Receiver<Question>,
    file: PathBuf,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// Listens beside `socket`, and for Prometheus if it asks somewhere.
///
/// # Errors
/// There is no listening there.
pub fn listen(
    socket: &Path,
    metrics: Option<SocketAddr>,
    group: Option<u32>,
    waker: &Waker,
) -> io::Result<Listening> {
    let file = path(socket);
    // Whoever held the lock of the namespace before is gone.
    let _ = fs::remove_file(&file);
    let listener = UnixListener::bind(&file)?;
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
    if group.is_some() {
        chown(&file, None, group)?;
    }
    let (questions, receiver) = channel();
    let asking = Asking { questions, waker: waker.clone() };
    if let Some(address) = metrics {
        let (listener, asking) = (TcpListener::bind(address)?, asking.clone());
        thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            for connection in listener.incoming().flatten() {
                if let Err(error) = metrics::answer(&connection, PATIENCE, || asking.ask()) {
                    tracing::debug!("somebody who asked for metrics: {error}");
                }
            }
        })?;
    }
    thread::Builder::new().name("stats".to_owned()).spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let answered =
                connection.set_write_timeout(Some(PATIENCE)).and_then(|()| asking.ask()).and_then(|stats| {
                    let mut text = serde_json::to_vec(&stats)?;
                    text.push(b'\n');
                    connection.write_all(&text)
                });
            if let Err(error) = answered {
                tracing::debug!("somebody who asked for statistics: {error}");
            }
        }
    })?;
    Ok(Listening { questions: receiver, file })
}

/// What the ports of a worker have dropped, each reason by its name.
fn named(tally: &Tally) -> [(&'static str, u64); 6] {
    [
        ("no-buffer", tally.no_buffer),
        ("malformed", tally.malformed),
        ("queue-full", tally.queue_full),
        ("too-long", tally.too_long),
        ("send-error", tally.send_errors),
        ("kernel", tally.kernel_drops),
    ]
}

fn tallies(workers: &[Handle]) -> BTreeMap<PortId, (BTreeMap<String, u64>, u64)> {
    let (to, answers) = channel();
    workers.iter().for_each(|worker| worker.order(Order::Tally(to.clone())));
    drop(to);
    let mut sums: BTreeMap<PortId, (BTreeMap<String, u64>, u64)> = BTreeMap::new();
    for _ in workers {
        let Ok(ports) = answers.recv_timeout(WORKER_PATIENCE) else { break };
        for (port, tally) in ports {
            let (drops, cut) = sums.entry(port).or_default();
            *cut += tally.cut;
            for (reason, count) in named(&tally) {
                *drops.entry(reason.to_owned()).or_default() += count;
            }
        }
    }
    sums
}

impl Live {
    /// What has been counted until now.
    pub(super) fn stats(&self) -> Stats {
        let totals = |totals: underpass_engine::counters::Totals, dropped| Totals {
            received: totals.received,
            generated: totals.generated,
            sent: totals.sent,
            delivered: totals.delivered,
            dropped,
            buffer_moves: totals.buffer_moves,
            buffer_moves_avoided: totals.buffer_moves_avoided,
        };
        let drops = self.router.drops();
        let mut tallies = tallies(&self.workers);
        let drivers: BTreeMap<u32, (PortId, &str)> =
            self.attachments.drivers().map(|(index, port, driver)| (index, (port, driver))).collect();
        let ports = self.router.link_counts().into_iter().filter_map(|link| {
            let (port, driver) = drivers.get(&link.index)?;
            let (drops, cut) = tallies.remove(port).unwrap_or_default();
            Some(Port {
                name: link.name,
                index: link.index,
                driver: (*driver).to_owned(),
                rx_packets: link.received.0,
                rx_bytes: link.received.1,
                tx_packets: link.sent.0,
                tx_bytes: link.sent.1,
                drops,
                cut,
            })
        });
        let workers = self.workers.iter().enumerate().map(|(number, worker)| {
            let reasons = underpass_engine::drops::Drop::ALL.iter();
            Worker {
                number,
                processor: worker.processor,
                totals: totals(
                    worker.counters.totals(),
                    reasons.map(|reason| worker.counters.dropped(*reason)).sum(),
                ),
                bursts: worker.activity.bursts(),
                sleeps: worker.activity.sleeps(),
            }
        });
        let sids = self.router.sid_counts().into_iter().map(|sid| Sid {
            prefix: sid.prefix,
            table: sid.table,
            behaviour: sid.behaviour.to_owned(),
            packets: sid.count.packets,
            bytes: sid.count.bytes,
            errors: sid.count.errors,
        });
        Stats {
            totals: totals(self.router.totals(), drops.iter().map(|(_, count)| count).sum()),
            drops: drops
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(reason, count)| (reason.name().to_owned(), *count))
                .collect(),
            ports: ports.collect(),
            workers: workers.collect(),
            sids: sids.collect(),
        }
    }
}
