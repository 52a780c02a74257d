//! What the kernel itself would do to packets that the router takes past it: filters and queueing disciplines of its
//! traffic control, BPF programs at the hooks of a device, chains of nftables and iptables for packets that are forwarded.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use nix::sys::socket::SockProtocol;
use underpass_netlink::{
    Message, messages,
    reply::{Address, Reply, write_message},
    tc::{HEADER, Header, major},
};
use underpass_port::{FILTER_PRIORITY, live::programs_of_others};

use super::socket::Socket;

/// `TC_H_ROOT`, `TC_H_INGRESS` (of `clsact` too), and where its filters are.
const ROOT: u32 = u32::MAX;
const INGRESS: u32 = 0xffff_fff1;
const HOOKS: [(u32, &str); 2] = [(0xffff_fff2, "ingress"), (0xffff_fff3, "egress")];
const TCA_KIND: u16 = 1;

/// `NFNL_SUBSYS_NFTABLES`, and its messages.
const NFTABLES: u16 = 10 << 8;
const GETCHAIN: u16 = NFTABLES | 4;
const GETRULE: u16 = NFTABLES | 7;
const NFGENMSG: usize = 4;
const NFPROTO_INET: u8 = 1;
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_NETDEV: u8 = 5;
const NFPROTO_BRIDGE: u8 = 7;
const NFPROTO_IPV6: u8 = 10;

const DATAGRAM: usize = 64 << 10;

/// Something of the kernel's that packets of the router pass by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bypassed {
    /// Index of the device that it is at; `None`: it is about packets of all devices.
    pub device: Option<u32>,
    /// What it is.
    pub what: String,
}

/// Asks the kernel what it has.
pub struct Filters {
    route: Socket,
    /// Without nftables in the kernel there is none.
    netfilter: Option<Socket>,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Filters {
    /// Connects to the kernel of the network namespace of the calling thread.
    ///
    /// # Errors
    /// What socket(2) and bind(2) say.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            route: Socket::open(0)?,
            netfilter: Socket::of(SockProtocol::NetlinkNetFilter, 0).ok(),
            sequence: 0,
            buffer: vec![0; DATAGRAM],
        })
    }

    /// What there is at these devices, and for packets of all; of frames in bridges if the router has `bridges`.
    ///
    /// # Errors
    /// What the kernel's socket says.
    pub fn look(&mut self, devices: &BTreeMap<u32, String>, bridges: bool) -> io::Result<BTreeSet<Bypassed>> {
        let mut found = BTreeSet::new();
        self.traffic_control(devices, &mut found)?;
        for &device in devices.keys() {
            let (received, sent) = programs_of_others(device);
            for (count, hook) in [(received, "ingress"), (sent, "egress")].into_iter().filter(|(n, _)| *n > 0)
            {
                let what = format!("{count} BPF program{} at tcx {hook}", if count == 1 { "" } else { "s" });
                found.insert(Bypassed { device: Some(device), what });
            }
        }
        self.nftables(devices, bridges, &mut found)?;
        iptables(&mut found);
        Ok(found)
    }

    fn traffic_control(
        &mut self,
        devices: &BTreeMap<u32, String>,
        found: &mut BTreeSet<Bypassed>,
    ) -> io::Result<()> {
        let qdiscs = self.dump(false, libc::RTM_GETQDISC, |request| {
            request.fixed(&[0; HEADER]);
        })?;
        let mut hooked = BTreeSet::new();
        for qdisc in qdiscs.iter().flat_map(|bytes| messages(bytes)) {
            let Some(header) = tc_header(&qdisc).filter(|header| devices.contains_key(&header.link)) else {
                continue;
            };
            match header.parent {
                INGRESS => {
                    hooked.insert(header.link);
                }
                // The kernel's own choice has the handle 0.
                ROOT if major(header.handle) != 0 => {
                    let what =
                        format!("qdisc {} {:x}: at the root", kind_of(&qdisc), major(header.handle) >> 16);
                    found.insert(Bypassed { device: Some(header.link), what });
                }
                _ => {}
            }
        }
        for link in hooked {
            for (parent, hook) in HOOKS {
                let filters = self.dump(false, libc::RTM_GETTFILTER, |request| {
                    let mut fixed = [0; HEADER];
                    fixed[4..8].copy_from_slice(&link.to_ne_bytes());
                    fixed[12..16].copy_from_slice(&parent.to_ne_bytes());
                    request.fixed(&fixed);
                })?;
                let kinds: BTreeSet<String> = filters
                    .iter()
                    .flat_map(|bytes| messages(bytes))
                    // Of what answers for `ingress` too, the first hook has reported.
                    .filter(|filter| {
                        tc_header(filter).is_some_and(|header| {
                            header.info >> 16 != FILTER_PRIORITY
                                && (hook == "ingress" || header.parent == parent)
                        })
                    })
                    .map(|filter| kind_of(&filter))
                    .collect();
                if !kinds.is_empty() {
                    let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
                    let what = format!("tc filters ({kinds}) at {hook}");
                    found.insert(Bypassed { device: Some(link), what });
                }
            }
        }
        Ok(())
    }

    fn nftables(
        &mut self,
        devices: &BTreeMap<u32, String>,
        bridges: bool,
        found: &mut BTreeSet<Bypassed>,
    ) -> io::Result<()> {
        const CHAIN_TABLE: u16 = 1;
        const CHAIN_NAME: u16 = 3;
        const CHAIN_HOOK: u16 = 4;
        const CHAIN_POLICY: u16 = 5;
        const RULE_TABLE: u16 = 1;
        const RULE_CHAIN: u16 = 2;
        if self.netfilter.is_none() {
            return Ok(());
        }
        let all = |request: &mut Reply<'_>| {
            request.fixed(&[0; NFGENMSG]);
        };
        let chains = self.dump(true, GETCHAIN, all)?;
        if chains.is_empty() {
            return Ok(());
        }
        let rules = self.dump(true, GETRULE, all)?;
        let text = |message: &Message<'_>, kind: u16| {
            let mut attributes = message.attributes(NFGENMSG);
            attributes.find(|attribute| attribute.kind == kind).map(|name| name.text()).unwrap_or_default()
        };
        let family = |message: &Message<'_>| message.body().first().copied().unwrap_or_default();
        let used: BTreeSet<(u8, String, String)> = rules
            .iter()
            .flat_map(|bytes| messages(bytes))
            .map(|rule| (family(&rule), text(&rule, RULE_TABLE), text(&rule, RULE_CHAIN)))
            .collect();
        let chains = chains.iter().flat_map(|bytes| messages(bytes));
        for chain in chains.filter(|chain| bridges || family(chain) != NFPROTO_BRIDGE) {
            let (table, name) = (text(&chain, CHAIN_TABLE), text(&chain, CHAIN_NAME));
            let Some(hook) = chain.attributes(NFGENMSG).find(|attribute| attribute.kind == CHAIN_HOOK) else {
                continue;
            };
            let drops = chain.attributes(NFGENMSG).any(|a| a.kind == CHAIN_POLICY && a.be32() == 0);
            if !drops && !used.contains(&(family(&chain), table.clone(), name.clone())) {
                continue;
            }
            let Some((family, place)) = hook_name(family(&chain), &hook) else { continue };
            let what = format!("nftables chain {family} {table} {name} at {place}");
            let at: Vec<u32> = devices_of(&hook)
                .iter()
                .filter_map(|name| {
                    devices.iter().find(|(_, device)| *device == name).map(|(index, _)| *index)
                })
                .collect();
            match place {
                "ingress" | "egress" => {
                    found.extend(
                        at.into_iter().map(|index| Bypassed { device: Some(index), what: what.clone() }),
                    );
                }
                _ => {
                    found.insert(Bypassed { device: None, what });
                }
            }
        }
        Ok(())
    }

    /// What answers the request for a dump.
    fn dump(
        &mut self,
        netfilter: bool,
        kind: u16,
        write: impl FnOnce(&mut Reply<'_>),
    ) -> io::Result<Vec<Vec<u8>>> {
        let socket = match &self.netfilter {
            Some(socket) if netfilter => socket,
            _ => &self.route,
        };
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let to = Address { port: 0, sequence: self.sequence };
        let mut request = Vec::new();
        let written = write_message(&mut request, kind, NLM_F_REQUEST | NLM_F_DUMP, to, write);
        debug_assert!(written.is_ok());
        let mut found = Vec::new();
        socket.send(&request)?;
        while let Some(length) = socket.receive(&mut self.buffer)? {
            for message in messages(self.buffer.get(..length).unwrap_or_default()) {
                if message.sequence != self.sequence {
                    continue;
                }
                if [libc::NLMSG_DONE as u16, libc::NLMSG_ERROR as u16].contains(&message.kind) {
                    return Ok(found);
                }
                found.push(message.bytes.to_vec());
            }
        }
        Ok(found)
    }
}

fn tc_header(message: &Message<'_>) -> Option<Header> {
    message.body().first_chunk::<HEADER>().map(Header::read)
}

fn kind_of(message: &Message<'_>) -> String {
    let mut attributes = message.attributes(HEADER);
    attributes.find(|attribute| attribute.kind == TCA_KIND).map(|kind| kind.text()).unwrap_or_default()
}

/// Family and hook as `nft` calls them, of hooks that forwarded packets pass.
fn hook_name(family: u8, hook: &underpass_netlink::Attribute<'_>) -> Option<(&'static str, &'static str)> {
    const HOOKNUM: u16 = 1;
    let number = hook.nested().find(|attribute| attribute.kind == HOOKNUM)?.be32();
    let name = match family {
        NFPROTO_INET => "inet",
        NFPROTO_IPV4 => "ip",
        NFPROTO_IPV6 => "ip6",
        NFPROTO_NETDEV => "netdev",
        NFPROTO_BRIDGE => "bridge",
        _ => return None,
    };
    let place = match (family, number) {
        (NFPROTO_NETDEV, 0) | (NFPROTO_INET, 5) => "ingress",
        (NFPROTO_NETDEV, 1) => "egress",
        (NFPROTO_NETDEV, _) => return None,
        (_, 0) => "prerouting",
        (_, 2) => "forward",
        (_, 4) => "postrouting",
        _ => return None,
    };
    Some((name, place))
}

/// The devices that a chain of `netdev` is at.
fn devices_of(hook: &underpass_netlink::Attribute<'_>) -> Vec<String> {
    const DEV: u16 = 3;
    const DEVS: u16 = 4;
    let one = hook.nested().filter(|attribute| attribute.kind == DEV);
    let several = hook.nested().filter(|attribute| attribute.kind == DEVS).flat_map(|list| list.nested());
    one.chain(several).map(|name| name.text()).collect()
}

/// Tables of the older iptables: the kernel names those that are in use.
fn iptables(found: &mut BTreeSet<Bypassed>) {
    for (file, name) in [("ip_tables_names", "iptables"), ("ip6_tables_names", "ip6tables")] {
        let tables = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        for table in
            tables.lines().filter(|table| ["filter", "nat", "mangle", "raw", "security"].contains(table))
        {
            let what = format!("{name} table {table}");
            found.insert(Bypassed { device: None, what });
        }
    }
}
