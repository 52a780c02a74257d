//! GoBGP, a static program in Go, and FRR's zebra to which it gives its routes, under `underpass exec` beside a kernel. Its
//! neighbour is another GoBGP.

use std::{fs, path::Path, process::Command};

use underpass_daemon::testbed::{Router, join};

use crate::{
    net::{self, program},
    programs::{Running, eventually, there},
};

const NAME: &str = "gobgp_installs_what_it_learns";

/// Whether there is a GoBGP that understands the zebra of FRR 8.4; says so if not.
fn there_is_gobgp() -> bool {
    if !there(NAME, "gobgpd", "none that is new enough; see scripts/test-tools.sh") {
        return false;
    }
    let version =
        String::from_utf8(Command::new("gobgpd").arg("--version").output().unwrap().stdout).unwrap();
    let numbers: Vec<u32> = version
        .rsplit(' ')
        .next()
        .map(|numbers| numbers.trim().split('.').map_while(|number| number.parse().ok()).collect())
        .unwrap_or_default();
    let new = numbers.as_slice() >= &[3, 37];
    if !new {
        // 3.10 of Debian 12 ends by what zebra says of an interface.
        net::skip(NAME, &format!("{} is older than 3.37", version.trim()));
    }
    new
}

#[test]
fn gobgp_installs_what_it_learns() {
    let Some(_turn) = net::turn(NAME).filter(|_| there_is_gobgp()) else { return };
    if !Path::new("/usr/lib/frr/zebra").is_file() {
        return net::skip(NAME, "FRR is not installed");
    }
    let namespaces = ["gobgp", "neighbour"].map(net::namespace);
    join(&namespaces[0], "e0", &namespaces[1], "e0").unwrap();
    for (own, namespace) in (1..).zip(&namespaces) {
        namespace.run(&format!("ip link set e0 up; ip addr add 10.5.0.{own}/24 dev e0")).unwrap();
    }
    let router = Router::start(program(), &namespaces[0], &["--socket-group", "frr"]).unwrap();
    // A path of a socket is short.
    let directory = tempfile::Builder::new().prefix("up-gobgp-").tempdir_in("/tmp").unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    assert!(Command::new("chown").arg("frr:frr").arg(directory.path()).status().unwrap().success());
    let mut running = Vec::new();
    let mut zebra = router.command("/usr/lib/frr/zebra");
    zebra.args(["-P", "0", "-f", "/dev/null", "-i", &path("zebra.pid"), "-z", &path("zserv.api")]);
    zebra.args(["--vty_socket", &path("")]);
    running.push(Running::spawn(zebra, Path::new(&path("zebra.log"))));
    eventually("zebra is ready", || match Path::new(&path("zserv.api")).exists() {
        true => Ok(()),
        false => Err(fs::read_to_string(path("zebra.log")).unwrap()),
    });
    for own in [1, 2] {
        let mut configuration = format!(
            "[global.config]\n as = 6500{own}\n router-id = \"10.5.0.{own}\"\n[[neighbors]]\n\
             [neighbors.config]\n neighbor-address = \"10.5.0.{other}\"\n peer-as = 6500{other}\n\
             [neighbors.timers.config]\n connect-retry = 1\n idle-hold-time-after-reset = 1\n",
            other = 3 - own
        );
        if own == 1 {
            configuration += &format!(
                "[zebra.config]\n enabled = true\n version = 6\n url = \"unix:{}\"\n",
                path("zserv.api")
            );
        }
        let file = path(&format!("{own}.toml"));
        fs::write(&file, configuration).unwrap();
        let mut gobgpd = match own {
            1 => router.command("gobgpd"),
            _ => namespaces[1].command("gobgpd"),
        };
        gobgpd.args(["-f", &file]);
        running.push(Running::spawn(gobgpd, Path::new(&path(&format!("{own}.log")))));
    }
    let log = || fs::read_to_string(path("1.log")).unwrap();
    let learns = |what: &str, wanted: bool, ask: &str| {
        eventually(what, || {
            // Until the neighbour listens.
            let asked = namespaces[1].outcome(ask).unwrap();
            let shown = router.run("ip route show").unwrap();
            match shown.contains("10.66.0.0/16 nhid") && shown.contains("via 10.5.0.2 dev e0 proto bgp") {
                is if is == wanted => Ok(()),
                _ => Err(shown + &asked.output + &log()),
            }
        });
    };
    learns("a route is learnt", true, "gobgp global rib add 10.66.0.0/16");
    learns("it is withdrawn", false, "gobgp global rib del 10.66.0.0/16");
}
