//! A node: its network namespace, its router and FRR, and the lines that run in it.

use std::{
    env, fs,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context;
use underpass_daemon::testbed::{Namespace, Outcome, Router, finish};

use super::{
    file,
    frr::{Frr, Installation},
};

/// What a router does and a host does not.
const FORWARD: &str = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
     net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0";
/// How long a line of `exec` may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node that runs.
#[derive(Debug)]
pub struct Node {
    pub namespace: Namespace,
    pub router: Option<Router>,
    pub frr: Option<Frr>,
    /// The programs that its lines find first.
    path: String,
    /// Where its files are.
    directory: PathBuf,
    /// Where its lines run.
    working: PathBuf,
}

impl Node {
    /// A node without devices. Below `lab` are `bin`, which has Underpass, and in `nodes` a directory for each.
    ///
    /// # Errors
    /// Those of [`Namespace::new`].
    pub fn new(node: &file::Node, lab: &Path, working: &Path) -> anyhow::Result<Self> {
        let namespace = Namespace::new(&node.name)?;
        if node.router.is_some() {
            namespace.run(FORWARD)?;
        }
        let directory = lab.join("nodes").join(&node.name);
        fs::create_dir_all(&directory)?;
        let paths = [directory.join("bin"), lab.join("bin")];
        let before = env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{before}", paths[0].display(), paths[1].display());
        Ok(Self { namespace, router: None, frr: None, path, directory, working: working.to_owned() })
    }

    /// Starts its router, if it is to have one; `metrics` is where it serves its page.
    ///
    /// # Errors
    /// Those of [`Router::start`].
    pub fn start(&mut self, node: &file::Node, program: &Path, metrics: Option<&str>) -> anyhow::Result<()> {
        if let Some(arguments) = &node.router {
            let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
            // zebra gives up root.
            if node.frr.is_some() {
                all.extend(["--socket-group", "frr"]);
            }
            all.extend(metrics.into_iter().flat_map(|address| ["--metrics", address]));
            self.router = Some(Router::start(program, &self.namespace, &all)?);
        }
        Ok(())
    }

    /// Runs its lines, through its router.
    ///
    /// # Errors
    /// One that does not succeed: its line in the file, and what it printed.
    pub fn configure(&self, node: &file::Node, topology: &file::Topology) -> anyhow::Result<()> {
        for line in &node.exec {
            let at = || format!("{}: node {}", topology.at(line.number), node.name);
            let several = line.text.trim().contains('\n');
            // Traced, so that an error tells which line of several it is.
            let traced = if several { format!("set -x\n{}", line.text) } else { line.text.clone() };
            let outcome = self.outcome(&traced, PATIENCE).with_context(at)?;
            if outcome.status != 0 {
                let first = line.text.trim().lines().next().unwrap_or_default();
                let shown = if several { format!("{first} …") } else { first.to_owned() };
                let printed = last_lines(&outcome.output, 8);
                anyhow::bail!("{}: `{shown}`: status {}\n{printed}", at(), outcome.status);
            }
        }
        Ok(())
    }

    /// Starts its FRR, if it is to have one.
    ///
    /// # Errors
    /// Those of [`Installation::start`].
    pub fn start_frr(
        &mut self,
        node: &file::Node,
        installation: &Installation,
        program: &Path,
    ) -> anyhow::Result<()> {
        if let Some(configuration) = &node.frr {
            let started = installation.start(&self.namespace, program, &self.directory, configuration);
            self.frr = Some(started.with_context(|| format!("node {}", node.name))?);
        }
        Ok(())
    }

    /// Configures its FRR.
    ///
    /// # Errors
    /// Those of [`Frr::configure`].
    pub fn configure_frr(&mut self, node: &file::Node) -> anyhow::Result<()> {
        match (&mut self.frr, &node.frr) {
            (Some(frr), Some(configuration)) => {
                let configured = frr.configure(&self.namespace, configuration);
                configured.with_context(|| format!("node {}", node.name))
            }
            _ => Ok(()),
        }
    }

    /// Runs lines of shell in it, through its router.
    ///
    /// # Errors
    /// The shell cannot be started; more than `patience`.
    pub fn outcome(&self, lines: &str, patience: Duration) -> anyhow::Result<Outcome> {
        let mut command: Command = match &self.router {
            Some(router) => router.command("sh"),
            None => self.namespace.command("sh"),
        };
        command.args(["-ec", lines]).env("PATH", &self.path).current_dir(&self.working);
        finish(&mut command, patience)
    }

    /// Writes a program that starts a shell in it, or what its arguments say, and is called `enter`. `name` is the network
    /// namespace's for `ip netns`.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn write_enter(&self, enter: &Path, name: &str) -> anyhow::Result<()> {
        let through = if self.router.is_some() { "underpass exec -- " } else { "" };
        let script = format!(
            "#!/bin/sh\n[ $# != 0 ] || set -- \"${{SHELL:-/bin/sh}}\"\nPATH='{}'\nexport PATH\n\
             exec ip netns exec '{name}' {through}\"$@\"\n",
            self.path
        );
        fs::write(enter, script)?;
        Ok(fs::set_permissions(enter, Permissions::from_mode(0o755))?)
    }

    /// What its router and FRR logged.
    pub fn log(&self) -> String {
        let router = self.router.as_ref().and_then(|router| router.log().ok()).unwrap_or_default();
        let frr = self.frr.as_ref().map(Frr::log).unwrap_or_default();
        let parts =
            [("underpass run", router), ("FRR", frr)].into_iter().filter(|(_, said)| !said.is_empty());
        parts
            .map(|(who, said)| format!("\n{}: {who} said:\n{}", self.namespace.name(), last_lines(&said, 8)))
            .collect()
    }

    /// Ends FRR and the router.
    ///
    /// # Errors
    /// The router does not end well.
    pub fn stop(self) -> anyhow::Result<()> {
        drop(self.frr);
        self.router.map_or(Ok(()), Router::stop)
    }
}

/// The end of a text, indented.
pub fn last_lines(text: &str, most: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(most)..].iter().map(|line| format!("    {line}\n")).collect()
}
