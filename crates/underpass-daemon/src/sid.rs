//! `underpass sid`: SIDs for which `ip` has no word.

use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::seg6local::{
    Action, ArgFe2, Counts, FLAVOR_PSP, FLAVOR_REPLACE_CSID, FLAVOR_USD, FLAVOR_USP, Flavors, Seg6Local,
};

use crate::client::{Client, ClientError};
use crate::launch;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_TABLE: u16 = 15;
const RTA_ENCAP_TYPE: u16 = 21;
const RTA_ENCAP: u16 = 22;
/// `LWTUNNEL_ENCAP_SEG6_LOCAL`.
const SEG6_LOCAL: u16 = 7;
/// `ip`'s own `metric` of an IPv6 route.
const METRIC: u32 = 1024;

/// Add and delete SIDs for which `ip` has no word.
///
/// These are End.DX2V, End.DT2U and End.DT2M (RFC 8986 sections 4.10 to 4.12), and End, End.X and End.T with the REPLACE-CSID
/// flavour (RFC 9800 section 4.2). The router has to run with --experimental. All other SIDs are routes that `ip` adds:
/// `ip -6 route add … encap seg6local action …`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass run --experimental
  underpass exec -- ip link add srl0 type srv6l2
  underpass exec -- bridge fdb append 00:00:00:00:00:00 dev srl0 dst fc00:2::d3
  underpass sid add fc00:1::d2 End.DT2U --oif srl0 --count
  underpass sid add fc00:1::d3 End.DT2M --oif srl0
  underpass sid add fc00:1::d400/120 End.DT2M --oif srl0 --fe2 1x8
  underpass sid add fc00:1::40 End.DX2V --oif eth1
  underpass sid add 5f00:0:b:c:9::/80 End --dev eth0 --flavors replace-csid,psp --lblen 48 --nflen 32
  underpass sid replace fc00:1::40 End.DX2V --oif eth2
  underpass sid del fc00:1::d2")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// The router's socket [default: as for `underpass exec`]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add a SID
    Add(Sid),
    /// Add a SID, or put it in the place of the route that is there
    Replace(Sid),
    /// Delete a SID
    Del(Place),
}

/// Where the route of a SID is.
#[derive(Debug, clap::Args)]
struct Place {
    /// The SID, or the prefix of SIDs
    #[arg(value_name = "PREFIX", value_parser = prefix)]
    prefix: (Ipv6Addr, u8),
    /// The number of its table
    #[arg(long, default_value_t = 254)]
    table: u32,
    /// The metric of its route
    #[arg(long, default_value_t = METRIC)]
    metric: u32,
}

#[derive(Debug, clap::Args)]
struct Sid {
    #[command(flatten)]
    place: Place,
    /// What it does
    #[arg(value_name = "BEHAVIOUR")]
    behaviour: Behaviour,
    /// Its L2 table: an srv6l2 device, or of End.DX2V the device below VLAN devices
    #[arg(long, value_name = "DEVICE")]
    oif: Option<String>,
    /// The device of its route [default: that of --oif]
    #[arg(long, value_name = "DEVICE")]
    dev: Option<String>,
    /// The neighbour, of End.X
    #[arg(long, value_name = "ADDRESS")]
    nh6: Option<Ipv6Addr>,
    /// The table of the next segment, of End.T
    #[arg(long, value_name = "TABLE")]
    lookup: Option<u32>,
    /// Its flavours: replace-csid, and psp, usp, usd
    #[arg(long, value_delimiter = ',')]
    flavors: Vec<Flavour>,
    /// Bits of the locator block
    #[arg(long, default_value_t = 0, requires = "flavors")]
    lblen: u8,
    /// Bits of the locator node and the function
    #[arg(long, default_value_t = 0, requires = "flavors")]
    nflen: u8,
    /// Its argument behind the prefix, of End.DT2M: K numbers of ports of the bridge, of X bits each, which frames do not go to
    #[arg(long, value_name = "KxX", value_parser = argument)]
    fe2: Option<(u8, u8)>,
    /// Count packets, bytes and errors
    #[arg(long)]
    count: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Behaviour {
    #[value(name = "End")]
    End,
    #[value(name = "End.X")]
    X,
    #[value(name = "End.T")]
    T,
    #[value(name = "End.DX2V")]
    DX2V,
    #[value(name = "End.DT2U")]
    DT2U,
    #[value(name = "End.DT2M")]
    DT2M,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Flavour {
    ReplaceCsid,
    Psp,
    Usp,
    Usd,
}

fn prefix(text: &str) -> Result<(Ipv6Addr, u8), String> {
    let (address, length) = text.split_once('/').unwrap_or((text, "128"));
    let address = address.parse().map_err(|_| "not an IPv6 address".to_owned())?;
    match length.parse() {
        Ok(length @ 0..=128) => Ok((address, length)),
        _ => Err("the length of a prefix is a number up to 128".to_owned()),
    }
}

fn argument(text: &str) -> Result<(u8, u8), String> {
    let numbers = text.split_once('x').and_then(|(k, x)| Some((k.parse().ok()?, x.parse().ok()?)));
    numbers.ok_or_else(|| "how many ports, and the bits of each: 2x8".to_owned())
}

impl Sid {
    /// What the route says of the SID.
    fn local(&self, client: &Client) -> anyhow::Result<Seg6Local> {
        let action = match self.behaviour {
            Behaviour::End => Action::End,
            Behaviour::X => Action::EndX,
            Behaviour::T => Action::EndT,
            Behaviour::DX2V => Action::EndDX2V,
            Behaviour::DT2U => Action::EndDT2U,
            Behaviour::DT2M => Action::EndDT2M,
        };
        let replaces = self.flavors.contains(&Flavour::ReplaceCsid);
        ensure!(
            action.is_experimental() || replaces,
            "{} without --flavors replace-csid is for `ip`: ip -6 route add … encap seg6local action {}",
            action.name(),
            action.name()
        );
        // Each behaviour has the option that it needs, and no other's.
        let experimental = action.is_experimental();
        for (option, there, wanted) in [
            ("--oif", self.oif.is_some(), experimental),
            ("--nh6", self.nh6.is_some(), action == Action::EndX),
            ("--lookup", self.lookup.is_some(), action == Action::EndT),
            ("--flavors", !self.flavors.is_empty(), !experimental),
        ] {
            ensure!(there || !wanted, "{} needs {option}", action.name());
            ensure!(wanted || !there, "{} has no {option}", action.name());
        }
        ensure!(self.fe2.is_none() || action == Action::EndDT2M, "{} has no --fe2", action.name());
        let bit = |flavour: &Flavour| match flavour {
            Flavour::ReplaceCsid => FLAVOR_REPLACE_CSID,
            Flavour::Psp => FLAVOR_PSP,
            Flavour::Usp => FLAVOR_USP,
            Flavour::Usd => FLAVOR_USD,
        };
        let operations = self.flavors.iter().map(bit).fold(0, |all, one| all | one);
        let flavors = Flavors { operations, block: self.lblen, node_function: self.nflen };
        Ok(Seg6Local {
            action,
            srh: None,
            table: self.lookup,
            nh4: None,
            nh6: self.nh6,
            oif: self.oif.as_deref().map(|name| client.index_of(name)).transpose()?,
            bpf: None,
            vrf_table: None,
            counted: self.count,
            flavors: (!self.flavors.is_empty()).then_some(flavors),
            fe2: self.fe2.map(|(count, bits)| ArgFe2 { at: self.place.prefix.1, count, bits }),
        })
    }
}

/// A request about a route, of this kind and with these flags.
fn request(
    client: &Client,
    (kind, flags): (u16, i32),
    place: &Place,
    route: Option<(u32, Seg6Local)>,
) -> Result<(), ClientError> {
    let Place { prefix: (address, length), table, metric } = place;
    let mut datagram = Vec::new();
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16;
    let scope = if kind == libc::RTM_NEWROUTE { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_NOWHERE };
    let (protocol, unicast) = match kind {
        libc::RTM_NEWROUTE => (libc::RTPROT_BOOT, libc::RTN_UNICAST),
        _ => (libc::RTPROT_UNSPEC, libc::RTN_UNSPEC),
    };
    write_message(&mut datagram, kind, flags, Address::default(), |message| {
        message.fixed(&[libc::AF_INET6 as u8, *length, 0, 0, 0, protocol, scope, unicast, 0, 0, 0, 0]);
        message.attribute(RTA_DST, &address.octets());
        message.u32(RTA_TABLE, *table);
        message.u32(RTA_PRIORITY, *metric);
        if let Some((device, local)) = route {
            message.u32(RTA_OIF, device);
            message.u16(RTA_ENCAP_TYPE, SEG6_LOCAL);
            let nest = message.nest(RTA_ENCAP);
            local.write(message, Counts::default());
            message.end(nest);
        }
    })
    .map_err(ClientError::Unwritable)?;
    client.request(&datagram)
}

/// A line of a script: its words behind `underpass`.
#[derive(Debug, Parser)]
#[command(name = "underpass", no_binary_name = true)]
enum OfScript {
    Sid(Args),
}

/// Runs a line of these words behind `underpass` against the router at a socket.
///
/// # Errors
/// What the program would say.
pub fn run_line(socket: &Path, words: &[String]) -> Result<(), String> {
    let OfScript::Sid(args) = OfScript::try_parse_from(words).map_err(|error| error.to_string())?;
    if args.socket.is_some() {
        return Err("--socket names another router: a line is for the one that it configures".to_owned());
    }
    request_at(socket, &args.verb).map_err(|error| format!("{error:#}"))
}

/// Makes the request.
///
/// # Errors
/// There is no router, or it refuses.
pub fn run(args: &Args) -> anyhow::Result<()> {
    request_at(&launch::chosen_socket(args.socket.as_deref())?, &args.verb)
}

fn request_at(socket: &Path, verb: &Verb) -> anyhow::Result<()> {
    let client = Client::new(socket)?;
    let add = |sid: &Sid, flags| -> anyhow::Result<()> {
        let local = sid.local(&client)?;
        let name =
            sid.dev.as_ref().or(sid.oif.as_ref()).context("the route of a SID needs a device: say --dev")?;
        let device = client.index_of(name)?;
        match request(&client, (libc::RTM_NEWROUTE, flags), &sid.place, Some((device, local))) {
            // Linux's answer to an action that it does not have, and so that of a router which has none of these.
            Err(ClientError::Refused { errno: libc::EINVAL, text: None }) => {
                anyhow::bail!("Invalid argument: does the router run with --experimental?")
            }
            done => Ok(done?),
        }
    };
    match verb {
        Verb::Add(sid) => add(sid, libc::NLM_F_CREATE | libc::NLM_F_EXCL)?,
        Verb::Replace(sid) => add(sid, libc::NLM_F_CREATE | libc::NLM_F_REPLACE)?,
        Verb::Del(place) => request(&client, (libc::RTM_DELROUTE, 0), place, None)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_for_its_own_router() {
        let nowhere = Path::new("/nonexistent/router.sock");
        let run = |line: &str| {
            run_line(nowhere, &line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap_err()
        };
        assert!(run("sid del fc00::1 --socket /other").contains("--socket names another router"));
        assert!(run("sid del fc00::1").contains("no router at /nonexistent/router.sock"));
        assert!(run("stats").contains("unrecognized subcommand"));
    }
}
