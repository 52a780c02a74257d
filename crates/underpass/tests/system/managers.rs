//! Programs that manage a host's network, under `underpass exec` beside a kernel: systemd-networkd at one end of a cable,
//! NetworkManager at the other. Each makes a VRF, an IPIP tunnel inside it and a GRE tunnel from its own configuration.
//! Where one of them is not installed, `ip` takes its place.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use underpass_daemon::testbed::{Namespace, Router, join};

use crate::{
    net::{self, program},
    programs::{Running, eventually, there},
};

const NAME: &str = "networkd_and_network_manager";
const NETWORKD: &str = "/usr/lib/systemd/systemd-networkd";
/// Ends when a test ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// A system bus on which everything is allowed.
const BUS: &str = "<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen>
    <auth>EXTERNAL</auth><policy context=\"default\"><allow user=\"*\"/><allow own=\"*\"/>
    <allow send_destination=\"*\"/><allow receive_sender=\"*\"/></policy></busconfig>";

/// What a manager is to do: files, whose first lines are their names, between lines of dashes. `@` is the own number, `%` that
/// of the other end.
const NETWORKD_FILES: &str = "red.netdev
[NetDev]
Name=red
Kind=vrf
[VRF]
Table=100
---
ipip5.netdev
[NetDev]
Name=ipip5
Kind=ipip
[Tunnel]
Independent=yes
Local=10.5.0.@
Remote=10.5.0.%
TTL=64
---
gre5.netdev
[NetDev]
Name=gre5
Kind=gre
[Tunnel]
Independent=yes
Local=10.5.0.@
Remote=10.5.0.%
Key=7
---
e0.network
[Match]
Name=e0
[Network]
LinkLocalAddressing=no
Address=10.5.0.@/24
---
red.network
[Match]
Name=red
[Network]
LinkLocalAddressing=no
---
ipip5.network
[Match]
Name=ipip5
[Network]
LinkLocalAddressing=no
VRF=red
Address=10.9.0.@/30
---
gre5.network
[Match]
Name=gre5
[Network]
LinkLocalAddressing=no
Address=10.8.0.@/30
[Route]
Destination=10.80.0.0/16
";
const NETWORK_MANAGER_FILES: &str = "manager.conf
[main]
plugins=keyfile
dns=none
rc-manager=unmanaged
auth-polkit=false
no-auto-default=*
hostname-mode=none
[keyfile]
path=/etc/NetworkManager/system-connections
---
red.nmconnection
[connection]
id=red
type=vrf
interface-name=red
[vrf]
table=100
[ipv4]
method=disabled
[ipv6]
method=disabled
---
e0.nmconnection
[connection]
id=e0
type=ethernet
interface-name=e0
[ipv4]
method=manual
address1=10.5.0.@/24
[ipv6]
method=disabled
---
ipip5.nmconnection
[connection]
id=ipip5
type=ip-tunnel
interface-name=ipip5
master=red
slave-type=vrf
[ip-tunnel]
mode=1
local=10.5.0.@
remote=10.5.0.%
ttl=64
[ipv4]
method=manual
address1=10.9.0.@/30
[ipv6]
method=disabled
---
gre5.nmconnection
[connection]
id=gre5
type=ip-tunnel
interface-name=gre5
[ip-tunnel]
mode=2
local=10.5.0.@
remote=10.5.0.%
input-key=7
output-key=7
[ipv4]
method=manual
address1=10.8.0.@/30
route1=10.80.0.0/16
[ipv6]
method=disabled
";
const IP: &str = "ip addr add 10.5.0.@/24 dev e0; ip link add red type vrf table 100; ip link set red up
    ip link add ipip5 type ipip local 10.5.0.@ remote 10.5.0.% ttl 64; ip link set ipip5 master red up
    ip addr add 10.9.0.@/30 dev ipip5; ip link add gre5 type gre local 10.5.0.@ remote 10.5.0.% key 7
    ip link set gre5 up; ip addr add 10.8.0.@/30 dev gre5; ip route add 10.80.0.0/16 dev gre5";

/// A file system of its own, with a system bus and the devices of the namespace in /sys, which is read-only: so nobody waits
/// for udev. `$0` has the configuration.
const PLACE: &str = "mount -t sysfs none /sys; mount -o remount,ro /sys
    mkdir -p /run/dbus /run/systemd /run/NetworkManager /etc/systemd/network /var/lib/NetworkManager \
        /etc/NetworkManager/system-connections
    for mine in /run/dbus /run/systemd /run/NetworkManager /var/lib/NetworkManager; do mount -t tmpfs none $mine; done
    for there in /etc/systemd/network /etc/NetworkManager/system-connections; do mount --bind \"$0\" $there; done
    mkdir /run/systemd/netif; chown systemd-network: /run/systemd/netif || true
    exec dbus-daemon --config-file=\"$0.bus\" --nofork --nopidfile";

/// One end of the cable.
struct Side {
    namespace: Namespace,
    router: Router,
    /// Which of the two it is, from 1, and the other.
    own: [usize; 2],
    running: Vec<Running>,
}

impl Side {
    /// A text with the numbers of this end.
    fn numbered(&self, text: &str) -> String {
        text.replace('@', &self.own[0].to_string()).replace('%', &self.own[1].to_string())
    }

    /// Starts a program with its configuration, in a file system of its own.
    fn start(&mut self, directory: &Path, files: &str, words: &[&str]) {
        let place = directory.join(self.own[0].to_string());
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
        for file in self.numbered(files).split("---\n") {
            let (name, text) = file.split_once('\n').unwrap();
            fs::write(place.join(name), text).unwrap();
            let secret = name.ends_with(".nmconnection");
            let mode = if secret { 0o600 } else { 0o644 };
            fs::set_permissions(place.join(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        fs::write(place.with_added_extension("bus"), BUS).unwrap();
        let mut bus = self.namespace.command("unshare");
        bus.args(["--mount", "sh", "-ec", PLACE]).arg(&place);
        self.running.push(Running::spawn(bus, &place.with_added_extension("bus.log")));
        let inside = self.inside();
        eventually("there is a bus", || {
            let mut test = Command::new("nsenter");
            let there = test.args([&inside, "test", "-S", "/run/dbus/system_bus_socket"]).status().unwrap();
            if there.success() { Ok(()) } else { Err(self.log(directory)) }
        });
        let mut command = self.router.command("nsenter");
        command.arg(inside).args(words);
        // Before the bus, which it would miss.
        self.running.insert(0, Running::spawn(command, &place.with_added_extension("log")));
    }

    /// The file system of its programs, for `nsenter`.
    fn inside(&self) -> String {
        format!("--mount=/proc/{}/ns/mnt", self.running.last().unwrap().id())
    }

    fn log(&self, directory: &Path) -> String {
        let place = directory.join(self.own[0].to_string());
        ["log", "bus.log"]
            .map(|end| fs::read_to_string(place.with_added_extension(end)).unwrap_or_default())
            .concat()
    }
}

/// Whether a program may have a file system of its own.
fn permitted() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "sh", "-c", "mount -t sysfs none /sys && mount -o remount,ro /sys"]);
    let permitted = command.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !permitted {
        net::skip(NAME, "no file system can be mounted");
    }
    permitted
}

#[test]
fn networkd_and_network_manager() {
    let Some(_turn) = net::turn(NAME).filter(|_| permitted() && there(NAME, "dbus-daemon", "dbus-daemon"))
    else {
        return;
    };
    let networkd = there(NAME, NETWORKD, "systemd");
    let network_manager = there(NAME, "NetworkManager", "network-manager");
    if !networkd && !network_manager {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let namespaces = ["networkd", "network-manager"].map(net::namespace);
    join(&namespaces[0], "e0", &namespaces[1], "e0").unwrap();
    for namespace in &namespaces {
        namespace.run("ip link set e0 up").unwrap();
    }
    // systemd-networkd becomes that user.
    let group: &[&str] = if networkd { &["--socket-group", "systemd-network"] } else { &[] };
    let mut own = 0;
    let mut sides = namespaces.map(|namespace| {
        own += 1;
        let router = Router::start(program(), &namespace, if own == 1 { group } else { &[] }).unwrap();
        Side { namespace, router, own: [own, 3 - own], running: Vec::new() }
    });
    let [first, second] = &mut sides;
    match networkd {
        true => first.start(directory.path(), NETWORKD_FILES, &[NETWORKD]),
        false => drop(first.router.run(&first.numbered(IP)).unwrap()),
    }
    let words = "NetworkManager --no-daemon --config-dir=/run/none --system-config-dir=/run/none \
                 --intern-config=/run/NetworkManager/i.conf --state-file=/run/NetworkManager/state \
                 --pid-file=/run/NetworkManager/pid --config=/etc/NetworkManager/system-connections/manager.conf";
    match network_manager {
        true => second.start(
            directory.path(),
            NETWORK_MANAGER_FILES,
            &words.split_whitespace().collect::<Vec<_>>(),
        ),
        false => drop(second.router.run(&second.numbered(IP)).unwrap()),
    }
    for side in &sides {
        let wanted = "ipip remote 10.5.0.% local 10.5.0.@ ttl 64|master red|gre remote 10.5.0.% local 10.5.0.@\
                      |ikey 0.0.0.7 okey 0.0.0.7|vrf table 100|10.9.0.@/30|10.8.0.@/30|10.80.0.0/16 dev gre5";
        let wanted = side.numbered(wanted);
        eventually("the devices are there", || {
            let shown = side.router.run("ip -d link show; ip addr show; ip route show").unwrap();
            let missing: Vec<&str> = wanted.split('|').filter(|wanted| !shown.contains(wanted)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            Err(format!("{missing:?} missing in {shown}\n{}", side.log(directory.path())))
        });
        // The kernel has what stands for it in the namespace.
        let kernels = side.namespace.run("ip -d link show ipip5").unwrap();
        assert!(kernels.contains("tun type tun"), "{kernels}");
    }
    // What they have made works: of the GRE tunnels, and in the VRFs.
    net::settle(&sides[0].namespace, "10.8.0.2", PATIENCE).unwrap();
    net::settle(&sides[0].namespace, "10.9.0.2 -I ipip5", PATIENCE).unwrap();
    net::settle(&sides[1].namespace, "10.9.0.1 -I ipip5", PATIENCE).unwrap();
    // And what their own tools say.
    let tool = |side: &Side, words: &str, state: &str| {
        eventually("all is done", || {
            let shown = side.router.run(&format!("nsenter {} {words}", side.inside())).unwrap();
            let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
            let is_done = |name| lines.iter().any(|words| words.contains(&name) && words.contains(&state));
            let done = ["e0", "red", "ipip5", "gre5"].into_iter().all(is_done);
            if done { Ok(()) } else { Err(shown + &side.log(directory.path())) }
        });
    };
    if networkd {
        tool(&sides[0], "networkctl --no-pager --no-legend list", "configured");
    }
    if network_manager {
        tool(&sides[1], "nmcli device", "connected");
    }
}
