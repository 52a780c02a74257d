//! Variables of `/proc/sys/net` that belong to what the router does. Linux: `net/mpls/af_mpls.c`,
//! `drivers/net/vrf.c`, `net/ipv6/addrconf.c`.
//!
//! A variable is an entry of [`VARIABLES`]; where its path has a `*`, each link has its own. Beside a kernel
//! these are used where the kernel does not have the file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use libc::{EBUSY, EINVAL, EISDIR, ENOENT};

use crate::{Link, RequestError, Router};

/// A variable, whose value is a number.
pub(crate) struct Variable {
    /// Below `/proc/sys/net`; `*` stands for the name of a link.
    path: &'static str,
    /// What can be written.
    range: RangeInclusive<i64>,
    /// What it is at first.
    initial: i64,
    /// What more is asked of a value before it is stored.
    check: fn(&mut Router, Instance, i64) -> Result<(), RequestError>,
    /// What is done once it is.
    follow: fn(&mut Router, Instance),
}

/// Which of the values of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Instance {
    /// There is one only.
    One,
    /// `conf/all`.
    All,
    /// `conf/default`: what links that are added later begin with.
    Default,
    /// That of a link, by its index.
    Link(u32),
}

/// A table belongs to one VRF, as routes with `vrftable` need. Linux: `vrf_strict_mode`; there it is off at first.
pub(crate) static STRICT_MODE: Variable =
    Variable { path: "vrf/strict_mode", range: 0..=1, initial: 1, check: check_strict_mode, follow: nothing };

/// Whether packets to the router go on along their SRHs, where the address is no SID: the lower of `all` and that of
/// the link.
static SEG6_ENABLED: Variable =
    Variable { path: "ipv6/conf/*/seg6_enabled", range: ANY, initial: 0, check: any, follow: publish_links };

/// What is asked of the HMAC TLVs of SRHs that come in by a link; `all` has no effect, in Linux neither.
static SEG6_REQUIRE_HMAC: Variable = Variable {
    path: "ipv6/conf/*/seg6_require_hmac",
    range: ANY,
    initial: 0,
    check: any,
    follow: publish_links,
};

/// Whether packets to the router go on along their RPL source routes: the lower of `all` and that of the link.
static RPL_SEG_ENABLED: Variable = Variable {
    path: "ipv6/conf/*/rpl_seg_enabled",
    range: ANY,
    initial: 0,
    check: any,
    follow: publish_links,
};

/// Whether traces of packets that come in by a link are filled.
pub(crate) static IOAM6_ENABLED: Variable =
    Variable { path: "ipv6/conf/*/ioam6_enabled", range: 0..=1, initial: 0, check: any, follow: ioam };

/// The id of a link in traces.
pub(crate) static IOAM6_ID: Variable =
    Variable { path: "ipv6/conf/*/ioam6_id", range: 0..=0xffff, initial: 0xffff, check: any, follow: ioam };

/// Its wide id.
pub(crate) static IOAM6_ID_WIDE: Variable = Variable {
    path: "ipv6/conf/*/ioam6_id_wide",
    range: 0..=0xffff_ffff,
    initial: 0xffff_ffff,
    check: any,
    follow: ioam,
};

/// The id of the node in traces.
pub(crate) static IOAM6_NODE_ID: Variable =
    Variable { path: "ipv6/ioam6_id", range: 0..=0xff_ffff, initial: 0xff_ffff, check: any, follow: ioam };

/// Its wide id.
pub(crate) static IOAM6_NODE_ID_WIDE: Variable = Variable {
    path: "ipv6/ioam6_id_wide",
    range: 0..=0xff_ffff_ffff_ffff,
    initial: 0xff_ffff_ffff_ffff,
    check: any,
    follow: ioam,
};

/// Labels below it can have routes. Linux: `mpls_platform_labels`.
static PLATFORM_LABELS: Variable = Variable {
    path: "mpls/platform_labels",
    range: 0..=(1 << 20) - 1,
    initial: 0,
    check: any,
    follow: |router, instance| {
        let value = router.sysctl_value(&PLATFORM_LABELS, instance);
        router.resize_labels(value as u32);
    },
};

/// Whether labelled packets are taken.
static MPLS_INPUT: Variable = Variable {
    path: "mpls/conf/*/input",
    range: 0..=1,
    initial: 0,
    check: any,
    follow: |router, instance| {
        let takes = router.sysctl_value(&MPLS_INPUT, instance) == 1;
        if let Instance::Link(link) = instance {
            router.set_label_input(link, takes);
            // Ports are told with what changes of links.
            router.links.generation += 1;
        }
    },
};

/// Whether the TTL of a packet goes into its labels and back: RFC 3443.
static IP_TTL_PROPAGATE: Variable = Variable {
    path: "mpls/ip_ttl_propagate",
    range: 0..=1,
    initial: 1,
    check: any,
    follow: |router, instance| {
        let value = router.sysctl_value(&IP_TTL_PROPAGATE, instance);
        router.set_ttl_propagate(value == 1);
    },
};

/// The TTL of labels where it does not.
static DEFAULT_TTL: Variable = Variable {
    path: "mpls/default_ttl",
    range: 1..=255,
    initial: 255,
    check: any,
    follow: |router, instance| {
        let value = router.sysctl_value(&DEFAULT_TTL, instance);
        router.set_label_ttl(value as u8);
    },
};

/// Whether packets and their labels have one traffic class: the uniform model of RFC 3270 section 2.6.2. Linux has no
/// such variable, and does as with 0.
static TC_PROPAGATE: Variable = Variable {
    path: "mpls/tc_propagate",
    range: 0..=1,
    initial: 0,
    check: any,
    follow: |router, instance| {
        let value = router.sysctl_value(&TC_PROPAGATE, instance);
        router.engine.set_uniform_classes(value == 1);
    },
};

/// Whether the fallback devices of tunnels are made: 0 if they are. Linux: `net_has_fallback_tunnels`. A router that is
/// offline is not in the initial namespace, the only one that has them with 1.
pub(crate) static FALLBACK_TUNNELS: Variable = Variable {
    path: "core/fb_tunnels_only_for_init_net",
    range: 0..=2,
    initial: 0,
    check: any,
    follow: nothing,
};

/// All of them.
static VARIABLES: &[&Variable] = &[
    &STRICT_MODE,
    &SEG6_ENABLED,
    &SEG6_REQUIRE_HMAC,
    &IOAM6_ENABLED,
    &IOAM6_ID,
    &IOAM6_ID_WIDE,
    &IOAM6_NODE_ID,
    &IOAM6_NODE_ID_WIDE,
    &PLATFORM_LABELS,
    &MPLS_INPUT,
    &IP_TTL_PROPAGATE,
    &DEFAULT_TTL,
    &TC_PROPAGATE,
    &RPL_SEG_ENABLED,
    &FALLBACK_TUNNELS,
];

/// What an `int` holds.
const ANY: RangeInclusive<i64> = i32::MIN as i64..=i32::MAX as i64;
/// Where `all` and `default` stand beside the links.
const WITH_ALL: &str = "ipv6/conf/*/";

/// Values that were written.
#[derive(Debug, Default)]
pub(crate) struct Sysctls(BTreeMap<(&'static str, Instance), i64>);

/// Every value in the range is good.
fn any(_: &mut Router, _: Instance, _: i64) -> Result<(), RequestError> {
    Ok(())
}

/// Nothing more than the value to be read again.
fn nothing(_: &mut Router, _: Instance) {}

/// What traces say of the node and its links.
fn ioam(router: &mut Router, instance: Instance) {
    router.ioam_changed(instance);
}

/// The packet path is told of the links that the value is for: all, or one and those enslaved to it.
fn publish_links(router: &mut Router, instance: Instance) {
    let of_it = |link: &&Link| match instance {
        Instance::All => true,
        Instance::Link(index) => link.index == index || link.master == Some(index),
        Instance::One | Instance::Default => false,
    };
    let links: Vec<u32> = router.links().filter(of_it).map(|link| link.index).collect();
    links.into_iter().for_each(|index| router.publish_link(index));
}

/// Linux: `vrf_strict_mode_change`.
fn check_strict_mode(router: &mut Router, _: Instance, value: i64) -> Result<(), RequestError> {
    let mut tables = BTreeSet::new();
    let shared = router.links().filter_map(|link| link.vrf_table()).any(|table| !tables.insert(table));
    if value == 1 && shared { Err(RequestError::errno(EBUSY)) } else { Ok(()) }
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A variable.
    File,
    /// A directory with variables in it or below it.
    Directory,
}

impl Router {
    /// What is at a path below `/proc/sys/net`, if anything of the router's is.
    pub fn sysctl(&self, path: &str) -> Option<Node> {
        if self.variable(path).is_some() {
            return Some(Node::File);
        }
        (!self.sysctl_names(path).is_empty()).then_some(Node::Directory)
    }

    /// The names of what is in a directory, sorted.
    pub fn sysctl_names(&self, directory: &str) -> BTreeSet<String> {
        let wanted: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
        let mut names = BTreeSet::new();
        for variable in VARIABLES {
            let parts: Vec<&str> = variable.path.split('/').collect();
            let here = parts.len() > wanted.len()
                && parts.iter().zip(&wanted).all(|(part, wanted)| match *part {
                    "*" => self.instance(variable, wanted).is_some(),
                    part => part == *wanted,
                });
            match parts.get(wanted.len()) {
                Some(&"*") if here => {
                    names.extend(self.links().map(|link| link.name.clone()));
                    if variable.path.starts_with(WITH_ALL) {
                        names.extend(["all".to_owned(), "default".to_owned()]);
                    }
                }
                Some(name) if here => {
                    names.insert((*name).to_owned());
                }
                _ => {}
            }
        }
        names
    }

    /// What a variable's file reads.
    ///
    /// # Errors
    /// `ENOENT` if the router has no such file, `EISDIR` if it is a directory.
    pub fn read_sysctl(&self, path: &str) -> Result<String, RequestError> {
        let (variable, instance) = self.file(path)?;
        Ok(format!("{}\n", self.sysctl_value(variable, instance)))
    }

    /// Writes to a variable's file: the first number in `text` counts, as Linux has it.
    ///
    /// # Errors
    /// As [`Router::read_sysctl`]; `EINVAL` if it is no number or out of the variable's range; what else the
    /// variable asks.
    pub fn write_sysctl(&mut self, path: &str, text: &[u8]) -> Result<(), RequestError> {
        let (variable, instance) = self.file(path)?;
        let value = number(text).filter(|value| variable.range.contains(value));
        let value = value.ok_or(RequestError::errno(EINVAL))?;
        (variable.check)(self, instance, value)?;
        if instance == Instance::Default {
            // The links that are there keep what they have.
            let old = self.sysctl_value(variable, Instance::Default);
            let links: Vec<u32> = self.links().map(|link| link.index).collect();
            for link in links {
                self.sysctls.0.entry((variable.path, Instance::Link(link))).or_insert(old);
            }
        }
        self.sysctls.0.insert((variable.path, instance), value);
        (variable.follow)(self, instance);
        Ok(())
    }

    /// Linux: `ipv6_rpl_srh_rcv`.
    pub(crate) fn rpl_seg_enabled(&self, link: &Link) -> bool {
        self.lower_of_all(&RPL_SEG_ENABLED, link) != 0
    }

    /// Linux: `ipv6_srh_rcv`.
    pub(crate) fn seg6_enabled(&self, link: &Link) -> bool {
        self.lower_of_all(&SEG6_ENABLED, link) != 0
    }

    /// Linux: `seg6_hmac_validate_skb`.
    pub(crate) fn seg6_require_hmac(&self, link: &Link) -> i64 {
        self.sysctl_value(&SEG6_REQUIRE_HMAC, self.receiving(link))
    }

    fn lower_of_all(&self, variable: &Variable, link: &Link) -> i64 {
        let value = |instance| self.sysctl_value(variable, instance);
        value(Instance::All).min(value(self.receiving(link)))
    }

    /// Whose values hold for what comes in by a link. Linux takes what comes in by a link of a VRF for coming in by
    /// the VRF's device.
    fn receiving(&self, link: &Link) -> Instance {
        let vrf = link.master.filter(|&master| self.links.vrf_of(master).is_some());
        Instance::Link(vrf.unwrap_or(link.index))
    }

    /// The value of a variable.
    pub(crate) fn sysctl_value(&self, variable: &Variable, instance: Instance) -> i64 {
        let written = |instance| self.sysctls.0.get(&(variable.path, instance)).copied();
        let inherited = || match instance {
            Instance::Link(_) => written(Instance::Default),
            _ => None,
        };
        written(instance).or_else(inherited).unwrap_or(variable.initial)
    }

    /// A link is no more, and so are its values.
    pub(crate) fn forget_sysctls(&mut self, link: u32) {
        self.sysctls.0.retain(|&(_, instance), _| instance != Instance::Link(link));
    }

    fn file(&self, path: &str) -> Result<(&'static Variable, Instance), RequestError> {
        self.variable(path).ok_or_else(|| match self.sysctl(path) {
            Some(_) => RequestError::errno(EISDIR),
            None => RequestError::errno(ENOENT),
        })
    }

    fn variable(&self, path: &str) -> Option<(&'static Variable, Instance)> {
        VARIABLES.iter().find_map(|&variable| match variable.path.split_once('*') {
            None => (variable.path == path).then_some((variable, Instance::One)),
            Some((before, after)) => {
                let name = path.strip_prefix(before)?.strip_suffix(after)?;
                Some((variable, self.instance(variable, name)?))
            }
        })
    }

    /// Whose value of a variable the name in the path asks for.
    fn instance(&self, variable: &Variable, name: &str) -> Option<Instance> {
        match name {
            "all" if variable.path.starts_with(WITH_ALL) => Some(Instance::All),
            "default" if variable.path.starts_with(WITH_ALL) => Some(Instance::Default),
            _ => self.links().find(|link| link.name == name).map(|link| Instance::Link(link.index)),
        }
    }
}

/// The first number of a text, as `proc_dointvec` of Linux reads it: decimal, `0x` hexadecimal, `0` octal.
fn number(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let word = text.split(|c: char| c.is_ascii_whitespace() || c == '\0').find(|word| !word.is_empty())?;
    let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (digits.get(2..)?, 16),
        [b'0', _, ..] => (digits.get(1..)?, 8),
        _ => (digits, 10),
    };
    // `from_str_radix` takes signs, Linux only the one.
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    i64::from_str_radix(digits, radix).ok().filter(|_| plain).map(|value| sign * value)
}

#[cfg(test)]
mod tests {
    use underpass_engine::buffer::PortId;
    use underpass_engine::tables::Writer;

    use super::*;

    fn router() -> Router {
        let mut router = Router::new(Writer::new(0).0);
        router.add_port("p0", [2, 0, 0, 0, 0, 1], PortId(0)).unwrap();
        router
    }

    fn refused(router: &mut Router, path: &str, text: &str) -> i32 {
        router.write_sysctl(path, text.as_bytes()).unwrap_err().errno
    }

    #[test]
    fn files_and_directories() {
        let router = router();
        assert_eq!(router.sysctl("vrf/strict_mode"), Some(Node::File));
        assert_eq!(router.sysctl("vrf"), Some(Node::Directory));
        assert_eq!(router.sysctl("ipv6/conf/p0"), Some(Node::Directory));
        assert_eq!(router.sysctl("ipv6/conf/p0/seg6_enabled"), Some(Node::File));
        for missing in
            ["vrf/strict", "ipv6/conf/p1/seg6_enabled", "ipv6/conf/p1", "core/x", "vrf/strict_mode/x"]
        {
            assert_eq!(router.sysctl(missing), None, "{missing}");
        }
        let names = |directory| router.sysctl_names(directory).into_iter().collect::<Vec<_>>();
        assert_eq!(names(""), ["core", "ipv6", "mpls", "vrf"]);
        assert_eq!(names("ipv6/conf"), ["all", "default", "lo", "p0"]);
        assert_eq!(
            names("ipv6/conf/p0/"),
            [
                "ioam6_enabled",
                "ioam6_id",
                "ioam6_id_wide",
                "rpl_seg_enabled",
                "seg6_enabled",
                "seg6_require_hmac"
            ]
        );
        assert_eq!(router.read_sysctl("vrf").unwrap_err().errno, EISDIR);
        assert_eq!(router.read_sysctl("mpls/conf/none").unwrap_err().errno, ENOENT);
    }

    #[test]
    fn values_are_numbers_in_their_range() {
        let mut router = router();
        for (text, reads) in [("0\n", "0\n"), ("1", "1\n"), (" 0x0 7\n", "0\n"), ("01\n", "1\n")] {
            router.write_sysctl("vrf/strict_mode", text.as_bytes()).unwrap();
            assert_eq!(router.read_sysctl("vrf/strict_mode").unwrap(), reads);
        }
        for text in ["2", "-1", "x", "1x", "", "\n", "+1", "--1", "0x", "99999999999999999999"] {
            assert_eq!(refused(&mut router, "vrf/strict_mode", text), EINVAL, "{text:?}");
        }
        for (text, errno) in [("2147483648", EINVAL), ("-2147483649", EINVAL), ("one", EINVAL)] {
            assert_eq!(refused(&mut router, "ipv6/conf/p0/seg6_require_hmac", text), errno, "{text}");
        }
        assert_eq!(refused(&mut router, "vrf/none", "1"), ENOENT);
        assert_eq!(router.read_sysctl("vrf/strict_mode").unwrap(), "1\n");
    }

    /// Linux copies `default` to a device when it is registered.
    #[test]
    fn default_is_for_links_to_come() {
        let mut router = router();
        router.write_sysctl("ipv6/conf/default/seg6_enabled", b"1").unwrap();
        assert_eq!(router.read_sysctl("ipv6/conf/p0/seg6_enabled").unwrap(), "0\n");
        router.add_port("p1", [2, 0, 0, 0, 0, 2], PortId(1)).unwrap();
        assert_eq!(router.read_sysctl("ipv6/conf/p1/seg6_enabled").unwrap(), "1\n");
        router.write_sysctl("ipv6/conf/p1/seg6_enabled", b"0").unwrap();
        assert_eq!(router.read_sysctl("ipv6/conf/p1/seg6_enabled").unwrap(), "0\n");
        assert_eq!(router.read_sysctl("ipv6/conf/default/seg6_enabled").unwrap(), "1\n");
    }
}
