//! `underpass doctor`: what this machine allows, what its kernel has, and what the router would add.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::process::ExitCode;

use serde::Serialize;
use underpass_daemon::kernel::Filters;
use underpass_daemon::launch;
use underpass_daemon::live::{self, Stats};
use underpass_daemon::query::answer;
use underpass_daemon::testbed::{self, Namespace};
use underpass_port::kernel_frames::KernelFrames;
use underpass_port::live::{Device, Driver};

use underpass_daemon::{output::print, processor};

/// Report what this machine allows, which features its kernel has, and which the router would add.
///
/// It tries each feature in a temporary network namespace. Run it as root for the full report. The exit status is 1 if
/// `underpass run` cannot work here.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass doctor
  underpass doctor --json")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Something that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    works: bool,
    /// `underpass run` cannot do without.
    needed: bool,
    /// What follows from it, or what to do.
    note: String,
}

/// Something of the kernel's that packets which the router forwards do not pass.
#[derive(Debug, Serialize)]
struct Bypass {
    /// The device; `None` for all.
    device: Option<String>,
    what: String,
}

/// A feature of the kernel's.
#[derive(Debug, Serialize)]
struct Feature {
    what: &'static str,
    /// Whether this kernel has it; `None`: it could not be tried.
    kernel: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    kernel: String,
    machine: Vec<Finding>,
    features: Vec<Feature>,
    /// What the kernel of this namespace does to packets that a router would take past it.
    bypassed: Vec<Bypass>,
    /// What the router of this namespace warns of, if one runs.
    warnings: Vec<String>,
}

/// What the router has, and lines of shell that succeed where the kernel has it too.
const FEATURES: [(&str, &str); 21] = [
    ("SRv6 encapsulation", "ip -6 route add 2001:db8:1::/48 encap seg6 mode encap segs fc00::1 dev lo"),
    ("SRv6 endpoints", "ip -6 route add fc00::e/128 encap seg6local action End dev lo"),
    ("VRFs", "ip link add up0 type vrf table 100"),
    ("dummies", "ip link add up0 type dummy"),
    (
        "VLAN devices",
        "ip link add up0 type veth peer name up1 && ip link add link up0 name up2 type vlan id 7",
    ),
    ("bridges", "ip link add up0 type bridge"),
    ("VXLANs", "ip link add up0 type vxlan id 7 dstport 4789 local 10.0.0.1"),
    ("Geneve", "ip link add up0 type geneve id 7 remote 10.0.0.2"),
    ("MPLS", "sysctl -qw net.mpls.platform_labels=100 && ip -f mpls route add 16 dev lo"),
    ("IPIP", "ip link add up0 type ipip local 10.0.0.1 remote 10.0.0.2"),
    ("SIT", "ip link add up0 type sit local 10.0.0.1 remote 10.0.0.2"),
    ("GRE", "ip link add up0 type gre local 10.0.0.1 remote 10.0.0.2"),
    ("IPv6 tunnels", "ip link add up0 type ip6tnl local 2001:db8::1 remote 2001:db8::2"),
    ("foo-over-UDP", "ip fou add port 5555 ipproto 4"),
    ("IOAM", "ip -6 route add 2001:db8:2::/48 encap ioam6 trace prealloc type 0x800000 ns 1 size 12 dev lo"),
    ("RPL source routes", "ip -6 route add 2001:db8:3::/48 encap rpl segs fc00::1 dev lo"),
    ("ifb", "ip link add up0 type ifb"),
    ("HTB", "tc qdisc add dev lo root handle 1: htb default 1"),
    ("TBF", "tc qdisc add dev lo root tbf rate 1mbit burst 10k latency 50ms"),
    ("flower", "tc qdisc add dev lo clsact && tc filter add dev lo ingress flower ip_proto udp action ok"),
    (
        "policers",
        "tc qdisc add dev lo clsact && tc filter add dev lo ingress matchall action police rate 1mbit burst 10k",
    ),
];

/// Looks at all and prints it.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let root = testbed::permitted();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        machine: machine(root)?,
        features: FEATURES
            .iter()
            .map(|(what, lines)| anyhow::Ok(Feature { what, kernel: root.then(|| has(lines)).transpose()? }))
            .collect::<anyhow::Result<_>>()?,
        bypassed: bypassed(),
        warnings: warnings().unwrap_or_default(),
    };
    let works = report.machine.iter().all(|finding| finding.works || !finding.needed);
    print(&if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { text(&report)? })?;
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the kernel does at the devices of this namespace; nothing where that cannot be told.
fn bypassed() -> Vec<Bypass> {
    let devices = underpass_daemon::live::ethernet_devices();
    let found = Filters::open().and_then(|mut filters| filters.look(&devices, false)).unwrap_or_default();
    let name = |device: Option<u32>| devices.get(&device?).cloned();
    found.into_iter().map(|found| Bypass { device: name(found.device), what: found.what }).collect()
}

/// What the router of this namespace warns of.
fn warnings() -> anyhow::Result<Vec<String>> {
    let told = answer(&launch::chosen_socket(None)?, "")?;
    Ok(serde_json::from_str::<Stats>(&told)?.warnings)
}

/// Whether the kernel takes these lines, in a namespace of their own.
fn has(lines: &str) -> anyhow::Result<bool> {
    let namespace = Namespace::new("doctor")?;
    namespace.run("ip addr add 10.0.0.1/24 dev lo; ip addr add 2001:db8::1/64 dev lo")?;
    Ok(namespace.outcome(lines)?.status == 0)
}

fn machine(root: bool) -> anyhow::Result<Vec<Finding>> {
    let finding = |what, works, needed, note: &str| Finding { what, works, needed, note: note.to_owned() };
    let missing = processor::missing();
    let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok();
    let mut found = vec![
        finding(
            "processor",
            missing.is_none(),
            true,
            missing.unwrap_or("has what the program was built for"),
        ),
        finding(
            "root",
            root,
            true,
            if root {
                "network namespaces and devices can be made"
            } else {
                "run it as root to see the rest"
            },
        ),
        finding(
            "/dev/net/tun",
            tun,
            false,
            if tun {
                "the host can use tunnels"
            } else {
                "modprobe tun, or no packets of the host's own go into tunnels"
            },
        ),
    ];
    if root {
        let namespace = Namespace::new("doctor")?;
        namespace.run("ip link add up0 type veth peer name up1; ip link set up0 up; ip link set up1 up")?;
        for (what, driver, needed) in [("AF_PACKET", Driver::Packet, true), ("AF_XDP", Driver::Xdp, false)] {
            let tried = namespace.enter(|| Device::attach("up0", driver, &KernelFrames::default()))?;
            let note = match &tried {
                Ok(device) => format!("{} with a veth device", device.driver()),
                Err(error) => error.to_string(),
            };
            found.push(Finding { what, works: tried.is_ok(), needed, note });
        }
        let tried = live::try_fast_path();
        let note = match &tried {
            Ok(()) => "the kernel carries by itself what it can (--fast-path auto)".to_owned(),
            Err(why) => format!("workers carry every packet: {why}"),
        };
        found.push(Finding { what: "fast path", works: tried.is_ok(), needed: false, note });
    }
    for (what, path) in [("ip", "ip"), ("tc", "tc")] {
        let version = std::process::Command::new(path).arg("-V").output();
        let note = version.as_ref().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let note = note.unwrap_or_else(|_| "apt install iproute2".to_owned());
        found.push(Finding { what, works: version.is_ok(), needed: false, note });
    }
    Ok(found)
}

fn text(report: &Report) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "underpass {} on Linux {}\n", report.version, report.kernel)?;
    for Finding { what, works, needed, note } in &report.machine {
        let mark = match (works, needed) {
            (true, _) => "yes",
            (false, true) => "NO",
            (false, false) => "no",
        };
        writeln!(text, "  {what:<20} {mark:<4} {note}")?;
    }
    writeln!(text, "\n  {:<20} {:<12} under underpass run", "", "this kernel")?;
    for Feature { what, kernel } in &report.features {
        let (here, router) = match kernel {
            Some(true) => ("yes", "yes"),
            Some(false) => ("no", "added"),
            None => ("unknown", "yes"),
        };
        writeln!(text, "  {what:<20} {here:<12} {router}")?;
    }
    if !report.bypassed.is_empty() {
        writeln!(text, "\n  bypassed by packets that underpass run forwards (see --kernel-filters):")?;
    }
    for Bypass { device, what } in &report.bypassed {
        writeln!(text, "  {:<20} {what}", device.as_deref().unwrap_or("all devices"))?;
    }
    if !report.warnings.is_empty() {
        writeln!(text, "\n  the router that runs here warns:")?;
    }
    for warning in &report.warnings {
        writeln!(text, "  {warning}")?;
    }
    Ok(text)
}
