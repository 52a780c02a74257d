//! FRR in a node: its daemons in a mount namespace with `/run/frr` and `/etc/frr` of the node's own, zebra under
//! `underpass exec`.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::unistd::User;
use underpass_daemon::testbed::{Namespace, finish};

use super::file;

/// How long its daemons may take until all listen.
const PATIENCE: Duration = Duration::from_secs(60);
const USER: &str = "frr";

/// Where a node's programs find FRR: the `/usr` that has it, if not this machine's own, and the node's directories.
/// It does not run in a place where `/usr` or `/run/frr` of others would change.
const PLACE: &str = r#"set -e
[ -z "$1" ] || mount --bind "$1" /usr
mkdir -p /run/frr /etc/frr
mount --bind "$2/run" /run/frr
mount --bind "$2/etc" /etc/frr
shift 2
"#;

/// Starts the daemons that are named, one when the other listens. `$1` is Underpass. As the first process of its process
/// namespace, it takes them all along when it ends.
const START: &str = r#"underpass=$1
shift
for daemon; do
    set --
    [ "$daemon" != zebra ] || set -- "$underpass" exec --
    "$@" "/usr/lib/frr/$daemon" -P 0 --log file:/run/frr/log &
    until [ -e "/run/frr/$daemon.vty" ]; do
        kill -0 $! || { echo "$daemon has ended"; exit 1; }
        sleep 0.02
    done
done
touch /run/frr/ready
wait
"#;

/// Which daemon a line of the configuration wants: its first words, or what is among its words.
const DAEMONS: [(&str, &str); 13] = [
    ("router bgp", "bgpd"),
    ("router ospf", "ospfd"),
    ("router ospf6", "ospf6d"),
    ("router isis", "isisd"),
    ("router rip", "ripd"),
    ("router ripng", "ripngd"),
    ("router eigrp", "eigrpd"),
    ("router babel", "babeld"),
    ("router openfabric", "fabricd"),
    ("router pim", "pimd"),
    ("mpls ldp", "ldpd"),
    ("bfd", "bfdd"),
    ("pbr-map", "pbrd"),
];

/// Which FRR there is.
#[derive(Debug)]
pub struct Installation {
    /// The `/usr` that has it, if not this machine's own.
    usr: Option<PathBuf>,
    /// As zebra says.
    pub version: String,
}

/// FRR's daemons in a node. They end when this is dropped, or this process does.
#[derive(Debug)]
pub struct Frr {
    child: Child,
    directory: PathBuf,
}

impl Installation {
    /// The one of `usr`; or the newer one that `scripts/newer-tools.sh` has unpacked beside this program; or this machine's.
    ///
    /// # Errors
    /// There is none, or it cannot run here.
    pub fn find(program: &Path, usr: Option<&Path>) -> anyhow::Result<Self> {
        // Where programs and their loader are not all below /usr there is no other place for them.
        let movable = fs::read_link("/lib64").is_ok_and(|to| to.ends_with("usr/lib64"));
        let there = |usr: &Path| usr.join("lib/frr/zebra").exists();
        let unpacked = program.ancestors().nth(2).map(|target| target.join("newer"));
        let usr = match usr {
            Some(usr) if !there(usr) => bail!("--frr {}: there is no lib/frr/zebra in it", usr.display()),
            Some(usr) if !movable => {
                bail!("--frr {}: /lib64 is not /usr/lib64 on this machine", usr.display())
            }
            Some(usr) => Some(usr.canonicalize()?),
            None => unpacked.filter(|usr| movable && there(usr)),
        };
        if usr.is_none() && !there(Path::new("/usr")) {
            bail!("FRR is not installed (Debian: frr; or name an unpacked /usr by --frr)");
        }
        if User::from_name(USER)?.is_none() {
            bail!("there is no user '{USER}', which FRR's daemons become (Debian: frr)");
        }
        let directory = tempfile::tempdir()?;
        let mut found = Self { usr, version: String::new() };
        found.prepare(directory.path())?;
        let output = found
            .inside(&mut Command::new("unshare"), directory.path())
            .args(["/usr/lib/frr/zebra", "--version"])
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said.split_whitespace().skip_while(|word| *word != "version").nth(1);
        found.version = version.with_context(|| format!("zebra --version: {output:?}"))?.to_owned();
        Ok(found)
    }

    /// Makes what [`Installation::inside`] wants of a node's directory.
    fn prepare(&self, directory: &Path) -> anyhow::Result<()> {
        for name in ["run", "etc", "bin"] {
            fs::create_dir_all(directory.join(name))?;
        }
        let user = User::from_name(USER)?.with_context(|| format!("there is no user '{USER}'"))?;
        chown(directory.join("run"), Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        // All of FRR's configuration is in frr.conf.
        fs::write(directory.join("etc/vtysh.conf"), "service integrated-vtysh-config\n")?;
        Ok(())
    }

    /// Arguments of `unshare`, before those of a program that finds the node's FRR.
    fn inside<'a>(&self, unshare: &'a mut Command, directory: &Path) -> &'a mut Command {
        let usr = self.usr.clone().unwrap_or_default();
        let script = format!("{PLACE}exec \"$@\"");
        unshare.args(["--mount", "sh", "-c", &script, "sh"]).arg(usr).arg(directory)
    }

    /// Starts its daemons in a node whose devices are there. `directory` is the node's, whose `bin` gets a `vtysh`.
    ///
    /// # Errors
    /// Those of writing files and starting programs.
    pub fn start(
        &self,
        namespace: &Namespace,
        underpass: &Path,
        directory: &Path,
        configuration: &file::Frr,
    ) -> anyhow::Result<Frr> {
        self.prepare(directory)?;
        fs::write(directory.join("etc/frr.conf"), &configuration.text)?;
        self.write_vtysh(directory)?;
        let said = File::create(directory.join("said"))?;
        let mut command = namespace.command("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["--mount", "sh", "-c", &format!("{PLACE}{START}"), "sh"]);
        command.arg(self.usr.clone().unwrap_or_default()).arg(directory).arg(underpass);
        command.args(self.daemons(&configuration.text));
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        let child = command.spawn().context("unshare")?;
        Ok(Frr { child, directory: directory.to_owned() })
    }

    /// The daemons that a configuration wants, in the order of their start.
    fn daemons(&self, configuration: &str) -> Vec<&'static str> {
        let mut daemons = vec!["zebra", "staticd"];
        // FRR 9 and later configure staticd by it.
        if self.usr.as_deref().unwrap_or(Path::new("/usr")).join("lib/frr/mgmtd").exists() {
            daemons.insert(0, "mgmtd");
        }
        daemons.extend(wanted(configuration));
        daemons
    }

    /// `vtysh` that reaches the node's daemons wherever it is started.
    fn write_vtysh(&self, directory: &Path) -> anyhow::Result<()> {
        let usr = self.usr.clone().unwrap_or_default();
        let script = format!(
            "#!/bin/sh\nexec unshare --mount sh -c '{PLACE}exec /usr/bin/vtysh \"$@\"' sh '{}' '{}' \"$@\"\n",
            usr.display(),
            directory.display()
        );
        let path = directory.join("bin/vtysh");
        fs::write(&path, script)?;
        Ok(fs::set_permissions(path, Permissions::from_mode(0o755))?)
    }
}

/// The daemons beside zebra and staticd.
fn wanted(configuration: &str) -> Vec<&'static str> {
    let begins = |words: &str| {
        let wanted = || words.split(' ');
        configuration.lines().any(|line| line.split_whitespace().take(wanted().count()).eq(wanted()))
    };
    DAEMONS.iter().filter(|(words, _)| begins(words)).map(|(_, daemon)| *daemon).collect()
}

/// What vtysh says of lines, each led by its file and line. Every daemon says the same.
fn complaints(said: &str, configuration: &file::Frr) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for line in said.lines().filter(|line| line.contains('%')) {
        let numbered = line.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
        let numbered = numbered.and_then(|(number, what)| Some((number.parse::<u64>().ok()?, what)));
        let told = match numbered {
            Some((number, what)) => {
                format!("{}:{}: {what}", configuration.shown, configuration.before + number)
            }
            None => line.to_owned(),
        };
        if !all.contains(&told) {
            all.push(told);
        }
    }
    all
}

impl Frr {
    /// Waits until its daemons listen, and has them read the configuration.
    ///
    /// # Errors
    /// A daemon ends, or a line is not taken: with what was said.
    pub fn configure(&mut self, namespace: &Namespace, configuration: &file::Frr) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.directory.join("run/ready").exists() {
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(self.directory.join("said"))?;
                bail!("FRR does not start\n{said}{}", self.log());
            }
            thread::sleep(Duration::from_millis(10));
        }
        loop {
            let mut vtysh = namespace.command(self.directory.join("bin/vtysh"));
            let outcome = finish(vtysh.arg("-b"), PATIENCE)?;
            let complaints = complaints(&outcome.output, configuration);
            if outcome.status == 0 && complaints.is_empty() {
                return Ok(());
            }
            // A daemon listens before it has reached zebra, of which some lines need to know: bgpd's SRv6 locator.
            let early = complaints.is_empty() && outcome.output.contains("Failure to communicate");
            if !early || Instant::now() > deadline {
                let all = if complaints.is_empty() { outcome.output } else { complaints.join("\n") };
                bail!("FRR does not take {}:\n{all}", configuration.shown);
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// What its daemons logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("run/log")).unwrap_or_default()
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FRR 10.3: `vtysh -b`.
    #[test]
    fn a_line_that_is_not_taken_is_named_once() {
        let said = "[1|mgmtd] sending configuration\nline 3: % Unknown command[28]:  neighbour 10.0.0.1\n\
                    line 3: % Unknown command[28]:  neighbour 10.0.0.1\n";
        let configuration = file::Frr { shown: "x.yaml".to_owned(), before: 5, text: String::new() };
        assert_eq!(
            complaints(said, &configuration),
            ["x.yaml:8: % Unknown command[28]:  neighbour 10.0.0.1"]
        );
    }

    #[test]
    fn lines_say_which_daemons_start() {
        let text = "hostname r1\nrouter ospf6\nrouter bgp 65000 vrf red\n neighbor 10.0.0.1 bfd\nmpls ldp\n";
        assert_eq!(wanted(text), ["bgpd", "ospf6d", "ldpd"]);
        assert!(wanted("ip route 10.0.0.0/8 10.1.0.1\n").is_empty());
        assert_eq!(wanted("bfd\n peer 10.0.0.1\n"), ["bfdd"]);
    }
}
