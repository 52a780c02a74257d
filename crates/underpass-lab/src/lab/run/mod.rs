//! `underpass lab run`: a network that a file describes, and its checks.

mod check;
mod evpn;
mod file;
mod frr;
mod node;
mod picture;
mod scale;
mod web;

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail, ensure};
use tempfile::TempDir;
use underpass_daemon::{output::print, testbed::join};

use super::run_until_signal::{Names, Signals};
pub use evpn::{Args as EvpnArgs, run as evpn};
use file::Topology;
use frr::Installation;
use node::{Node, last_lines};
pub use scale::{Args as ScaleArgs, run as scale};

/// A network from a file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass lab run examples/lab-small/lab.yaml          # build it, check it, remove it
  underpass lab run examples/lab-small/lab.yaml --keep   # and leave it running until Ctrl-C
  underpass lab run lab.yaml --keep --web 9200           # with a page of the network at 127.0.0.1
  underpass lab run lab.yaml --frr target/newer          # with the FRR of another Debian

A file:
  topology:
    nodes:
      h1: {kind: host, exec: [ip link set eth0 up, ip addr add 10.0.0.2/24 dev eth0]}
      r1: {kind: router, exec: [ip link set left up, ip addr add 10.0.0.1/24 dev left]}
    links:
      - endpoints: [\"h1:eth0\", \"r1:left\"]
  checks:
    - {node: h1, exec: ping -c 1 10.0.0.1, text: 1 received, within: 10}

docs/lab.md describes the format.")]
pub struct Args {
    /// The topology: nodes, links and checks, as docs/lab.md describes them
    file: PathBuf,
    #[command(flatten)]
    options: Options,
}

/// What is the same for every network of a file.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Keep it running until Ctrl-C, also if a check fails; print how to enter its nodes
    #[arg(long)]
    keep: bool,
    /// Take FRR from this unpacked /usr, as scripts/newer-tools.sh makes one
    #[arg(long, value_name = "DIR")]
    frr: Option<PathBuf>,
    /// Draw the network with what each end of a link has received, as SVG, when the checks are over
    #[arg(long, value_name = "FILE")]
    draw: Option<PathBuf>,
    /// Serve the page of the network at this port of 127.0.0.1, and those of the routers at the ports behind it
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..))]
    web: Option<u16>,
}

/// Builds the network of a file, checks it, and removes it.
///
/// # Errors
/// What is wrong with the file; a line of a node, or a check, that does not come out as it has to.
pub fn run(program: &Path, args: &Args) -> anyhow::Result<()> {
    show(program, &Topology::read(&args.file)?, &args.options)
}

fn show(program: &Path, topology: &Topology, options: &Options) -> anyhow::Result<()> {
    show_with(program, topology, options, |_| Ok(()))
}

/// The same; `after` is called when all checks hold.
fn show_with(
    program: &Path,
    topology: &Topology,
    options: &Options,
    after: impl FnOnce(&Lab) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut signals = Signals::block()?;
    let lab = Lab::build(program, topology, options, &mut signals)?;
    let checked = lab.check(topology, &mut signals).and_then(|()| after(&lab));
    if let Some(path) = &options.draw {
        fs::write(path, picture::draw(topology, &lab.received(topology)?))
            .with_context(|| format!("--draw {}", path.display()))?;
    }
    let told = options.keep && checked.is_err();
    if told && let Err(error) = &checked {
        print(&format!("\n{error:#}\n"))?;
    }
    if options.keep {
        lab.keep(topology, &mut signals)?;
    }
    lab.stop()?;
    ensure!(!told, "it did not come out as {} says, as told above", topology.shown);
    checked?;
    print("\nTorn down: every router ended by itself, nothing is left.\n")?;
    Ok(())
}

/// The running network.
struct Lab {
    /// In the order of the file.
    nodes: Vec<Node>,
    directory: TempDir,
    /// What was done until when.
    phases: Vec<(&'static str, Instant)>,
}

impl Lab {
    fn build(
        program: &Path,
        topology: &Topology,
        options: &Options,
        signals: &mut Signals,
    ) -> anyhow::Result<Self> {
        let wants_frr = topology.nodes.iter().any(|node| node.frr.is_some());
        let installation =
            wants_frr.then(|| Installation::find(program, options.frr.as_deref())).transpose()?;
        let directory = tempfile::Builder::new().prefix("underpass-lab-").tempdir()?;
        // FRR's daemons are not root.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        let programs = directory.path().join("bin");
        fs::create_dir(&programs)?;
        symlink(program, programs.join("underpass"))?;
        let mut lab = Self { nodes: Vec::new(), directory, phases: Vec::new() };
        for node in &topology.nodes {
            lab.nodes.push(Node::new(node, lab.directory.path(), &topology.directory)?);
        }
        for link in &topology.links {
            lab.join(topology, link)?;
        }
        print(&format!("== {} ==\n{}", topology.name, described(topology)))?;
        lab.phases.push(("namespaces and links", Instant::now()));
        let pairs = || topology.nodes.iter().enumerate();
        for (at, node) in pairs() {
            signals.none_has_come()?;
            let metrics = options.web.map(|_| web::METRICS);
            lab.nodes[at].start(node, program, metrics)?;
        }
        if let Some(first) = options.web {
            lab.serve(topology, first)?;
        }
        lab.phases.push(("routers are ready", Instant::now()));
        lab.configure(topology, signals, true)?;
        lab.phases.push(("lines of routers", Instant::now()));
        if let Some(installation) = &installation {
            print(&format!("FRR {}\n", installation.version))?;
            for (at, node) in pairs() {
                lab.nodes[at].start_frr(node, installation, program)?;
            }
            for (at, node) in pairs() {
                signals.none_has_come()?;
                lab.nodes[at].configure_frr(node)?;
            }
        }
        lab.phases.push(("FRR has its configuration", Instant::now()));
        lab.configure(topology, signals, false)?;
        lab.phases.push(("lines of hosts", Instant::now()));
        Ok(lab)
    }

    fn join(&self, topology: &Topology, link: &file::Link) -> anyhow::Result<()> {
        let [one, other] = &link.ends;
        let (first, second) = (&self.nodes[one.node].namespace, &self.nodes[other.node].namespace);
        let joined = join(first, &one.device, second, &other.device);
        joined.with_context(|| topology.at(link.number))?;
        for (namespace, end) in [(first, one), (second, other)] {
            if let Some(mtu) = link.mtu {
                let set = namespace.ip(&["link", "set", &end.device, "mtu", &mtu.to_string()]);
                set.with_context(|| topology.at(link.number))?;
            }
        }
        Ok(())
    }

    /// Runs the lines of all routers, or of all hosts.
    fn configure(&self, topology: &Topology, signals: &mut Signals, routers: bool) -> anyhow::Result<()> {
        for (node, of_file) in self.nodes.iter().zip(&topology.nodes) {
            signals.none_has_come()?;
            if of_file.router.is_some() == routers {
                let configured = node.configure(of_file, topology);
                configured.map_err(|error| anyhow!("{error:#}{}", node.log()))?;
            }
        }
        Ok(())
    }

    /// The page of the network at the first port, and a port for the page of each router behind it.
    fn serve(&self, topology: &Topology, first: u16) -> anyhow::Result<()> {
        let mut ports = first..=u16::MAX;
        let port = ports.next().unwrap_or(first);
        let mut watched = web::Lab {
            name: topology.name.clone(),
            nodes: Vec::new(),
            links: topology.links.iter().map(|link| link.ends.clone()).collect(),
            places: Some(picture::places(topology)),
        };
        print(&format!("http://127.0.0.1:{port}/ is the network\n"))?;
        for (node, of_file) in self.nodes.iter().zip(&topology.nodes) {
            let namespace = node.namespace.clone();
            let name = of_file.name.clone();
            let kind = of_file.kind();
            let Some(arguments) = &of_file.router else {
                watched.nodes.push(web::Watched { name, kind, namespace, socket: None, page: None });
                continue;
            };
            let page = ports.next().context("--web: there are fewer ports than routers")?;
            web::lead(page, &namespace)?;
            print(&format!("http://127.0.0.1:{page}/ is {name}\n"))?;
            let socket = Some(web::socket(&namespace, arguments)?);
            watched.nodes.push(web::Watched { name, kind, namespace, socket, page: Some(page) });
        }
        web::serve(watched, port)
    }

    /// The packets that both ends of each link have received.
    fn received(&self, topology: &Topology) -> anyhow::Result<Vec<[u64; 2]>> {
        let of = |end: &file::End| self.nodes[end.node].namespace.received(&end.device);
        topology.links.iter().map(|link| Ok([of(&link.ends[0])?, of(&link.ends[1])?])).collect()
    }

    fn check(&self, topology: &Topology, signals: &mut Signals) -> anyhow::Result<()> {
        let start = Instant::now();
        for (number, check) in topology.checks.iter().enumerate() {
            signals.none_has_come()?;
            if let Some(name) = &check.name {
                print(&format!("\n== {name} ==\n"))?;
            }
            let node = &self.nodes[check.node];
            let name = node.namespace.name();
            let sign = if node.router.is_some() { '#' } else { '$' };
            let lines = check.line.text.trim_end().lines().map(|line| format!("{name}{sign} {line}\n"));
            print(&lines.collect::<String>())?;
            let result = check::run(check, node, signals)?;
            print(&last_lines(&result.output, 40))?;
            if let Some(wrong) = result.wrong {
                let logs: String = self.around(topology, check.node).map(Node::log).collect();
                bail!(
                    "{}: check {} of {} does not hold after {:.1} s: in {name}: {wrong}{}{logs}",
                    topology.at(check.line.number),
                    number + 1,
                    topology.checks.len(),
                    result.took.as_secs_f64(),
                    if logs.is_empty() { "" } else { "\n" },
                );
            }
            if result.took > Duration::from_secs(1) {
                print(&format!("    holds after {:.1} s\n", result.took.as_secs_f64()))?;
            }
        }
        let checks = topology.checks.len();
        print(&format!("\nAll {checks} checks hold, after {:.1} s.\n", start.elapsed().as_secs_f64()))?;
        Ok(())
    }

    /// A node and those that it is joined to.
    fn around(&self, topology: &Topology, node: usize) -> impl Iterator<Item = &Node> {
        let ends = topology.links.iter().map(|link| link.ends.each_ref().map(|end| end.node));
        let mut all: Vec<usize> = ends.filter(|ends| ends.contains(&node)).flatten().chain([node]).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter().map(|node| &self.nodes[node])
    }

    /// Gives the namespaces names until a signal comes.
    fn keep(&self, topology: &Topology, signals: &mut Signals) -> anyhow::Result<()> {
        let namespaces = self.nodes.iter().map(|node| &node.namespace);
        let _names = Names::give(namespaces, &topology.name)?;
        let mut told = String::from("\n== kept, until Ctrl-C ==\nA shell in a node, or a command behind:\n");
        for node in &self.nodes {
            let name = node.namespace.name();
            let enter = self.directory.path().join(format!("enter-{name}"));
            node.write_enter(&enter, &format!("{}-{name}", topology.name))?;
            told += &format!("  {}\n", enter.display());
        }
        print(&told)?;
        signals.wait()
    }

    fn stop(self) -> anyhow::Result<()> {
        self.nodes.into_iter().try_for_each(Node::stop)
    }
}

/// The nodes and links, a line each.
fn described(topology: &Topology) -> String {
    let mut text = String::new();
    for (at, node) in topology.nodes.iter().enumerate() {
        let kind = node.kind();
        let far = topology
            .links
            .iter()
            .flat_map(|link| [(&link.ends[0], &link.ends[1]), (&link.ends[1], &link.ends[0])]);
        let ends = far
            .filter(|(own, _)| own.node == at)
            .map(|(own, other)| format!("{} to {}", own.device, topology.nodes[other.node].name));
        text += &format!("  {:10} {kind:12} {}\n", node.name, ends.collect::<Vec<_>>().join(", "));
    }
    text
}
