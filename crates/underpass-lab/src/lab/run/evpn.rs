//! `underpass lab evpn`: the network of `examples/lab-evpn`, whose README shows it.

use std::{fs, path::Path};

use anyhow::ensure;
use clap::ValueEnum;
use underpass_daemon::output::print;

use super::{Options, file::Topology, show};

/// What is run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass lab evpn
  underpass lab evpn --over srv6 --keep
  underpass lab evpn --over vxlan --draw evpn.svg")]
pub struct Args {
    /// What is between the leaves: both in turn by default
    #[arg(long, value_name = "OVERLAY")]
    over: Option<Over>,
    #[command(flatten)]
    options: Options,
}

/// What is between the leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Over {
    /// VXLANs, of which FRR tells: EVPN
    Vxlan,
    /// SRv6: srv6l2 devices with End.DT2U and End.DT2M, and the SIDs of FRR's L3VPN
    Srv6,
}

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../lab-evpn/", $name)))),*]
    };
}

/// The topologies, and what they name.
const FILES: [(&str, &str); 10] = files![
    "evpn.yaml",
    "leaf.sh",
    "leaf1.conf",
    "leaf2.conf",
    "spine.conf",
    "srv6.yaml",
    "srv6-leaf.sh",
    "srv6-leaf1.conf",
    "srv6-leaf2.conf",
    "srv6-ways.sh"
];

impl Over {
    const fn file(self) -> &'static str {
        match self {
            Self::Vxlan => "evpn.yaml",
            Self::Srv6 => "srv6.yaml",
        }
    }
}

const PICTURE: &str = "
  red1  ──┐                                                 ┌── red2
  red4  ──┼── leaf1 core ── west spine east ── core leaf2 ──┼── red3
  blue1 ──┘                                                 ├── blue2
                                                            └── blue3

  red1, blue1  10.1.1.11     red2, blue2  10.1.1.12
  red3, blue3  10.1.2.13     red4         10.1.1.14
";

/// Builds it from the files inside this program, checks it, and removes it.
///
/// # Errors
/// There is no FRR; a check that does not hold.
pub fn run(program: &Path, args: &Args) -> anyhow::Result<()> {
    let Args { over, options } = args;
    let one = options.keep || options.draw.is_some() || options.web.is_some();
    ensure!(
        over.is_some() || !one,
        "--keep, --draw and --web are of one network: say --over vxlan or --over srv6"
    );
    let directory = tempfile::tempdir()?;
    for (name, text) in FILES {
        fs::write(directory.path().join(name), text)?;
    }
    for over in Over::value_variants().iter().filter(|other| over.is_none_or(|over| over == **other)) {
        let (name, text) = FILES.iter().find(|(name, _)| *name == over.file()).unwrap_or(&FILES[0]);
        let topology = Topology::parse(text, &format!("examples/lab-evpn/{name}"), directory.path())?;
        print(PICTURE)?;
        show(program, &topology, options)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program has inside is what examples/ has, and nothing of it is missing.
    #[test]
    fn the_files_name_each_other() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lab-evpn");
        for (over, confs, leaf) in [
            (Over::Vxlan, &["spine.conf", "leaf1.conf", "leaf2.conf"][..], "sh leaf.sh "),
            (Over::Srv6, &["srv6-leaf1.conf", "srv6-leaf2.conf"], "sh srv6-leaf.sh "),
        ] {
            let topology = Topology::read(&examples.join(over.file())).unwrap();
            let with_frr = topology.nodes.iter().filter_map(|node| node.frr.as_ref());
            let named: Vec<&str> = with_frr.map(|frr| frr.shown.as_str()).collect();
            assert_eq!(named, confs);
            for name in named {
                assert!(FILES.iter().any(|(file, _)| *file == name), "{name}");
            }
            let lines = topology.nodes.iter().flat_map(|node| &node.exec);
            assert_eq!(lines.filter(|line| line.text.starts_with(leaf)).count(), 2);
        }
    }
}
