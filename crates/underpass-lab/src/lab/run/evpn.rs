//! `underpass lab evpn`: the network of `examples/lab-evpn`, whose README shows it.

use std::{fs, path::Path};

use underpass_daemon::output::print;

use super::{Options, file::Topology, show};

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../../../../examples/lab-evpn/", $name)))),*]
    };
}

/// The topology, and what it names.
const FILES: [(&str, &str); 5] = files!["evpn.yaml", "leaf.sh", "leaf1.conf", "leaf2.conf", "spine.conf"];

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
pub fn run(program: &Path, options: &Options) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    for (name, text) in FILES {
        fs::write(directory.path().join(name), text)?;
    }
    let topology = Topology::parse(FILES[0].1, "examples/lab-evpn/evpn.yaml", directory.path())?;
    print(PICTURE)?;
    show(program, &topology, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program has inside is what examples/ has, and nothing of it is missing.
    #[test]
    fn the_files_name_each_other() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lab-evpn");
        let topology = Topology::read(&examples.join(FILES[0].0)).unwrap();
        let with_frr = topology.nodes.iter().filter_map(|node| node.frr.as_ref());
        let named: Vec<&str> = with_frr.map(|frr| frr.shown.as_str()).collect();
        assert_eq!(named, ["spine.conf", "leaf1.conf", "leaf2.conf"]);
        for name in named {
            assert!(FILES.iter().any(|(file, _)| *file == name), "{name}");
        }
        let lines = topology.nodes.iter().flat_map(|node| &node.exec);
        assert_eq!(lines.filter(|line| line.text.starts_with("sh leaf.sh ")).count(), 2);
    }
}
