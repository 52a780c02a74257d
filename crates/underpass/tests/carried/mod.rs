//! The golden packets through the program that carries packets in the kernel: what it forwards or drops by itself is what
//! a worker sends or drops.

use std::fmt::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::net::if_::if_nameindex;
use nix::sched::{CloneFlags, unshare};
use underpass_daemon::offline::Offline;
use underpass_engine::hmac::Keys;
use underpass_engine::in_kernel::records::{Leaving, OfDevice};
use underpass_engine::tables::{
    ActionId, Fib4Id, Fib6Id, FouPortId, HookId, LinkId, LookupId, NextHopId, QdiscId, Reader, TcActionId,
    TunnelId, Writer,
};
use underpass_engine::worker::Worker;
use underpass_port::fast::{Fast, Hook, Verdict, arena::Arena};
use underpass_port::kernel_frames::{KernelFrames, OfDevice as Kept};

use super::noise::without_own_choices;
use super::{Case, PORTS, compare, pool, send};

/// The indexes of the ports of each case.
const PORTS_FROM: u32 = 2;

/// Ids that the tables of a case may have.
const MOST: u32 = 4096;

/// The program, and the tables that it reads: those of one case after the other, as loading it takes long.
struct Carrier {
    fast: Fast,
    _kernel_frames: KernelFrames,
    writer: Writer,
    worker: Worker,
}

/// What became of inputs.
#[derive(Default)]
struct Became {
    /// By the program at tcx, and in a driver.
    carried: [u64; 2],
    inputs: u64,
}

/// Runs the cases of a group, in a namespace of its own. What differs, a paragraph a case.
pub fn run(group: &str, cases: Vec<Case>) -> Vec<String> {
    if group == "qos" {
        // Of most of these filters programs know nothing, and what one takes out of a bucket a worker does not find there.
        return Vec::new();
    }
    let group = group.to_owned();
    let thread = std::thread::spawn(move || {
        let mut carrier = match Carrier::new() {
            Ok(carrier) => carrier,
            Err(why) => {
                eprintln!("SKIPPED {group} in the kernel: {why}");
                return Vec::new();
            }
        };
        let (mut all, mut failed) = (Became::default(), Vec::new());
        for case in &cases {
            let mut wrong = String::new();
            carrier = carrier.run(case, &mut all, &mut wrong);
            if !wrong.is_empty() {
                failed.push(format!("{} in the kernel:{wrong}", case.name));
            }
        }
        let [tcx, xdp] = all.carried;
        println!("{group}: of {} packets the program carries {tcx} at tcx, {xdp} in a driver", all.inputs);
        failed
    });
    thread.join().unwrap()
}

impl Carrier {
    fn new() -> Result<Self, String> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("no network namespace: {error}"))?;
        for index in PORTS_FROM..PORTS_FROM + PORTS.len() as u32 {
            // There may be one of the kernel's own.
            let there = if_nameindex().map_err(|error| error.to_string())?;
            if there.iter().all(|interface| interface.index() != index) {
                let line =
                    format!("link add d{index} mtu 9000 index {index} type veth peer index {}", index + 100);
                let mut ip = Command::new("ip");
                let made = ip.args(line.split(' ')).stderr(Stdio::null()).status();
                if !made.is_ok_and(|status| status.success()) {
                    return Err(format!("ip {line}"));
                }
            }
        }
        let kernel_frames = KernelFrames::new();
        if let Some(why) = kernel_frames.without_bpf() {
            return Err(why.to_owned());
        }
        for index in PORTS_FROM..PORTS_FROM + PORTS.len() as u32 {
            kernel_frames.set_device(index, Kept::default()).map_err(|error| error.to_string())?;
        }
        let arena = Arena::new().map_err(|error| format!("no arena: {error}"))?;
        let (writer, tables, readers, _) = Writer::watched(1, 0, Some(arena.programs()));
        let [reader]: [Reader; 1] = readers.try_into().map_err(|_| "one reader")?;
        let places = writer.places().ok_or("no room for the tables")?;
        let fast = Fast::load(arena, places, &kernel_frames).unwrap();
        let worker = Worker::new(Arc::clone(&tables), reader, pool());
        Ok(Self { fast, _kernel_frames: kernel_frames, writer, worker })
    }

    /// Runs the inputs of a case.
    fn run(self, case: &Case, all: &mut Became, wrong: &mut String) -> Self {
        let Self { fast, _kernel_frames, writer, mut worker } = self;
        let router = Offline::over(writer, &PORTS.map(|port| port.parse().unwrap())).unwrap();
        let programs = OfDevice { misses: 1, leaving: Leaving::Redirect, xdp: true };
        for index in PORTS_FROM..PORTS_FROM + PORTS.len() as u32 {
            router.router().set_programs(index, Some(programs));
        }
        if let Err(refused) = case.configure(&router) {
            write!(wrong, "\n  {refused}").unwrap();
        }
        let carried = || router.router().programs_counted().0.received;
        let mut left = Vec::new();
        for (port, (number, frame)) in &case.inputs {
            all.inputs += 1;
            for hook in [Hook::Tcx, Hook::Xdp] {
                let before = carried();
                // What ends within its first headers is given to no program here.
                let ran = fast.run(hook, frame, PORTS_FROM + u32::from(port.0), &mut left);
                let Ok(verdict) = ran else { continue };
                if carried() == before {
                    continue;
                }
                all.carried[usize::from(hook == Hook::Xdp)] += 1;
                // The addresses before a frame say by which port it leaves.
                let sent = send(&mut worker, &[(*port, frame)], case.time(*number), false).concat();
                let by_program = match verdict {
                    Verdict::Redirected => vec![without_own_choices(left.clone())],
                    Verdict::Dropped => Vec::new(),
                    Verdict::Kept => panic!("counted and kept"),
                };
                let place = format!("in {number} ({}), by the program at {hook:?}", case.label(*number));
                compare(wrong, &place, &sent, &by_program);
            }
        }
        let (empty, ..) = Writer::new(0);
        let mut writer = router.router().exchange_engine(empty);
        drop(router);
        worker.idle();
        clear(&mut writer);
        Self { fast, _kernel_frames, writer, worker }
    }
}

/// Removes all that packets can meet. The last number that is given back is the first to be used again: as in new tables,
/// 0.
fn clear(writer: &mut Writer) {
    for id in (0..MOST).rev() {
        writer.remove_link(LinkId(id));
        writer.remove_hook(HookId(id));
        writer.remove_qdisc(QdiscId(id));
        writer.remove_fou_port(FouPortId(id));
        writer.remove_tunnel(TunnelId(id));
        writer.remove_lookup(LookupId(id));
        writer.remove_fib4(Fib4Id(id));
        writer.remove_fib6(Fib6Id(id));
        writer.remove_action(ActionId(id));
        writer.remove_tc_action(TcActionId(id));
        writer.remove_next_hop(NextHopId(id));
        writer.set_label(id, None);
    }
    writer.set_hmac_keys(Keys::default());
    writer.leave_programs();
    writer.reclaim();
}
