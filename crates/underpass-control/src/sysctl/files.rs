//! The files of the variables below `/proc/sys/net`: how they are read and written, and what a write changes.

use std::collections::BTreeSet;

use libc::{EBUSY, EINVAL, EISDIR, ENOENT};

use super::*;
use crate::ioam::request::ioam_changed;
use crate::link::publish::publish_link;
use crate::route::mpls::publish::{resize_labels, set_label_input, set_label_ttl, set_ttl_propagate};
use crate::{Link, RequestError, Router};

/// The file of a variable.
struct File {
    variable: &'static Variable,
    /// What more is asked of a value before it is stored.
    check: fn(&mut Router, Instance, i64) -> Result<(), RequestError>,
    /// What is done once it is.
    update: fn(&mut Router, Instance),
}

/// All of them.
static FILES: &[File] = &[
    File { variable: &STRICT_MODE, check: check_strict_mode, update: nothing },
    File { variable: &SEG6_ENABLED, check: any, update: publish_links },
    File { variable: &SEG6_REQUIRE_HMAC, check: any, update: publish_links },
    File { variable: &IOAM6_ENABLED, check: any, update: ioam },
    File { variable: &IOAM6_ID, check: any, update: ioam },
    File { variable: &IOAM6_ID_WIDE, check: any, update: ioam },
    File { variable: &IOAM6_NODE_ID, check: any, update: ioam },
    File { variable: &IOAM6_NODE_ID_WIDE, check: any, update: ioam },
    File {
        variable: &PLATFORM_LABELS,
        check: any,
        update: |router, instance| {
            let value = router.sysctls.value(&PLATFORM_LABELS, instance);
            resize_labels(router, value as u32);
        },
    },
    File {
        variable: &MPLS_INPUT,
        check: any,
        update: |router, instance| {
            let takes = router.sysctls.value(&MPLS_INPUT, instance) == 1;
            if let Instance::Link(link) = instance {
                set_label_input(router, link, takes);
                // Ports are told with what changes of links.
                router.links.generation += 1;
            }
        },
    },
    File {
        variable: &IP_TTL_PROPAGATE,
        check: any,
        update: |router, instance| {
            let value = router.sysctls.value(&IP_TTL_PROPAGATE, instance);
            set_ttl_propagate(router, value == 1);
        },
    },
    File {
        variable: &DEFAULT_TTL,
        check: any,
        update: |router, instance| {
            let value = router.sysctls.value(&DEFAULT_TTL, instance);
            set_label_ttl(router, value as u8);
        },
    },
    File {
        variable: &TC_PROPAGATE,
        check: any,
        update: |router, instance| {
            let value = router.sysctls.value(&TC_PROPAGATE, instance);
            router.engine.set_uniform_classes(value == 1);
        },
    },
    File { variable: &RPL_SEG_ENABLED, check: any, update: publish_links },
    File { variable: &FALLBACK_TUNNELS, check: any, update: nothing },
];

/// Where `all` and `default` stand beside the links.
const WITH_ALL: &str = "ipv6/conf/*/";

/// Every value in the range is good.
fn any(_: &mut Router, _: Instance, _: i64) -> Result<(), RequestError> {
    Ok(())
}

/// Nothing more than the value to be read again.
fn nothing(_: &mut Router, _: Instance) {}

/// What traces say of the node and its links.
fn ioam(router: &mut Router, instance: Instance) {
    ioam_changed(router, instance);
}

/// The packet path is told of the links that the value is for: all, or one and those enslaved to it.
fn publish_links(router: &mut Router, instance: Instance) {
    let of_it = |link: &&Link| match instance {
        Instance::All => true,
        Instance::Link(index) => link.index == index || link.master == Some(index),
        Instance::One | Instance::Default => false,
    };
    let links: Vec<u32> = router.links().filter(of_it).map(|link| link.index).collect();
    links.into_iter().for_each(|index| publish_link(router, index));
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

/// What is at a path below `/proc/sys/net`, if anything of the router's is.
pub fn sysctl_node(router: &Router, path: &str) -> Option<Node> {
    if variable(router, path).is_some() {
        return Some(Node::File);
    }
    (!sysctl_names(router, path).is_empty()).then_some(Node::Directory)
}

/// The names of what is in a directory, sorted.
pub fn sysctl_names(router: &Router, directory: &str) -> BTreeSet<String> {
    let wanted: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    let mut names = BTreeSet::new();
    for File { variable, .. } in FILES {
        let parts: Vec<&str> = variable.path.split('/').collect();
        let here = parts.len() > wanted.len()
            && parts.iter().zip(&wanted).all(|(part, wanted)| match *part {
                "*" => instance(router, variable, wanted).is_some(),
                part => part == *wanted,
            });
        match parts.get(wanted.len()) {
            Some(&"*") if here => {
                names.extend(router.links().map(|link| link.name.clone()));
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
pub fn read_sysctl(router: &Router, path: &str) -> Result<String, RequestError> {
    let (File { variable, .. }, instance) = file(router, path)?;
    Ok(format!("{}\n", router.sysctls.value(variable, instance)))
}

/// Writes to a variable's file: the first number in `text` counts, as Linux has it.
///
/// # Errors
/// As [`read_sysctl`]; `EINVAL` if it is no number or out of the variable's range; what else the
/// variable asks.
pub fn write_sysctl(router: &mut Router, path: &str, text: &[u8]) -> Result<(), RequestError> {
    router.changes += 1;
    let (File { variable, check, update }, instance) = file(router, path)?;
    let value = number(text).filter(|value| variable.range.contains(value));
    let value = value.ok_or(RequestError::errno(EINVAL))?;
    check(router, instance, value)?;
    if instance == Instance::Default {
        // The links that are there keep what they have.
        let old = router.sysctls.value(variable, Instance::Default);
        let links: Vec<u32> = router.links().map(|link| link.index).collect();
        for link in links {
            router.sysctls.0.entry((variable.path, Instance::Link(link))).or_insert(old);
        }
    }
    router.sysctls.0.insert((variable.path, instance), value);
    update(router, instance);
    Ok(())
}

fn file(router: &Router, path: &str) -> Result<(&'static File, Instance), RequestError> {
    variable(router, path).ok_or_else(|| match sysctl_node(router, path) {
        Some(_) => RequestError::errno(EISDIR),
        None => RequestError::errno(ENOENT),
    })
}

fn variable(router: &Router, path: &str) -> Option<(&'static File, Instance)> {
    FILES.iter().find_map(|file| match file.variable.path.split_once('*') {
        None => (file.variable.path == path).then_some((file, Instance::One)),
        Some((before, after)) => {
            let name = path.strip_prefix(before)?.strip_suffix(after)?;
            Some((file, instance(router, file.variable, name)?))
        }
    })
}

/// Whose value of a variable the name in the path asks for.
fn instance(router: &Router, variable: &Variable, name: &str) -> Option<Instance> {
    match name {
        "all" if variable.path.starts_with(WITH_ALL) => Some(Instance::All),
        "default" if variable.path.starts_with(WITH_ALL) => Some(Instance::Default),
        _ => router.links().find(|link| link.name == name).map(|link| Instance::Link(link.index)),
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
        write_sysctl(router, path, text.as_bytes()).unwrap_err().errno
    }

    #[test]
    fn files_and_directories() {
        let router = router();
        assert_eq!(sysctl_node(&router, "vrf/strict_mode"), Some(Node::File));
        assert_eq!(sysctl_node(&router, "vrf"), Some(Node::Directory));
        assert_eq!(sysctl_node(&router, "ipv6/conf/p0"), Some(Node::Directory));
        assert_eq!(sysctl_node(&router, "ipv6/conf/p0/seg6_enabled"), Some(Node::File));
        for missing in
            ["vrf/strict", "ipv6/conf/p1/seg6_enabled", "ipv6/conf/p1", "core/x", "vrf/strict_mode/x"]
        {
            assert_eq!(sysctl_node(&router, missing), None, "{missing}");
        }
        let names = |directory| sysctl_names(&router, directory).into_iter().collect::<Vec<_>>();
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
        assert_eq!(read_sysctl(&router, "vrf").unwrap_err().errno, EISDIR);
        assert_eq!(read_sysctl(&router, "mpls/conf/none").unwrap_err().errno, ENOENT);
    }

    #[test]
    fn values_are_numbers_in_their_range() {
        let mut router = router();
        for (text, reads) in [("0\n", "0\n"), ("1", "1\n"), (" 0x0 7\n", "0\n"), ("01\n", "1\n")] {
            write_sysctl(&mut router, "vrf/strict_mode", text.as_bytes()).unwrap();
            assert_eq!(read_sysctl(&router, "vrf/strict_mode").unwrap(), reads);
        }
        for text in ["2", "-1", "x", "1x", "", "\n", "+1", "--1", "0x", "99999999999999999999"] {
            assert_eq!(refused(&mut router, "vrf/strict_mode", text), EINVAL, "{text:?}");
        }
        for (text, errno) in [("2147483648", EINVAL), ("-2147483649", EINVAL), ("one", EINVAL)] {
            assert_eq!(refused(&mut router, "ipv6/conf/p0/seg6_require_hmac", text), errno, "{text}");
        }
        assert_eq!(refused(&mut router, "vrf/none", "1"), ENOENT);
        assert_eq!(read_sysctl(&router, "vrf/strict_mode").unwrap(), "1\n");
    }

    /// Linux copies `default` to a device when it is registered.
    #[test]
    fn default_is_for_links_to_come() {
        let mut router = router();
        write_sysctl(&mut router, "ipv6/conf/default/seg6_enabled", b"1").unwrap();
        assert_eq!(read_sysctl(&router, "ipv6/conf/p0/seg6_enabled").unwrap(), "0\n");
        router.add_port("p1", [2, 0, 0, 0, 0, 2], PortId(1)).unwrap();
        assert_eq!(read_sysctl(&router, "ipv6/conf/p1/seg6_enabled").unwrap(), "1\n");
        write_sysctl(&mut router, "ipv6/conf/p1/seg6_enabled", b"0").unwrap();
        assert_eq!(read_sysctl(&router, "ipv6/conf/p1/seg6_enabled").unwrap(), "0\n");
        assert_eq!(read_sysctl(&router, "ipv6/conf/default/seg6_enabled").unwrap(), "1\n");
    }
}
