//! Variables of `/proc/sys/net` that belong to what the router does. Linux: `net/mpls/af_mpls.c`,
//! `drivers/net/vrf.c`, `net/ipv6/addrconf.c`.
//!
//! A variable has a file in [`files`]; where its path has a `*`, each link has its own. Beside a kernel
//! these are used where the kernel does not have the file.

mod files;
pub(crate) mod save;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

pub use files::{Node, read_sysctl, sysctl_names, sysctl_node, write_sysctl};

/// A variable, whose value is a number.
pub(crate) struct Variable {
    /// Below `/proc/sys/net`; `*` stands for the name of a link.
    path: &'static str,
    /// What can be written.
    range: RangeInclusive<i64>,
    /// What it is at first.
    initial: i64,
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

/// What an `int` holds.
const ANY: RangeInclusive<i64> = i32::MIN as i64..=i32::MAX as i64;

/// A table belongs to one VRF, as routes with `vrftable` need. Linux: `vrf_strict_mode`; there it is off at first.
pub(crate) static STRICT_MODE: Variable = Variable { path: "vrf/strict_mode", range: 0..=1, initial: 1 };

/// Whether packets to the router go on along their SRHs, where the address is no SID: the lower of `all` and that of
/// the link.
pub(crate) static SEG6_ENABLED: Variable =
    Variable { path: "ipv6/conf/*/seg6_enabled", range: ANY, initial: 0 };

/// What is asked of the HMAC TLVs of SRHs that come in by a link; `all` has no effect, in Linux neither.
pub(crate) static SEG6_REQUIRE_HMAC: Variable =
    Variable { path: "ipv6/conf/*/seg6_require_hmac", range: ANY, initial: 0 };

/// Whether packets to the router go on along their RPL source routes: the lower of `all` and that of the link.
pub(crate) static RPL_SEG_ENABLED: Variable =
    Variable { path: "ipv6/conf/*/rpl_seg_enabled", range: 0..=1, initial: 0 };

/// Whether traces of packets that come in by a link are filled.
pub(crate) static IOAM6_ENABLED: Variable =
    Variable { path: "ipv6/conf/*/ioam6_enabled", range: 0..=1, initial: 0 };

/// The id of a link in traces.
pub(crate) static IOAM6_ID: Variable =
    Variable { path: "ipv6/conf/*/ioam6_id", range: 0..=0xffff, initial: 0xffff };

/// Its wide id.
pub(crate) static IOAM6_ID_WIDE: Variable =
    Variable { path: "ipv6/conf/*/ioam6_id_wide", range: 0..=0xffff_ffff, initial: 0xffff_ffff };

/// The id of the node in traces.
pub(crate) static IOAM6_NODE_ID: Variable =
    Variable { path: "ipv6/ioam6_id", range: 0..=0xff_ffff, initial: 0xff_ffff };

/// Its wide id.
pub(crate) static IOAM6_NODE_ID_WIDE: Variable =
    Variable { path: "ipv6/ioam6_id_wide", range: 0..=0xff_ffff_ffff_ffff, initial: 0xff_ffff_ffff_ffff };

/// Labels below it can have routes. Linux: `mpls_platform_labels`.
pub(crate) static PLATFORM_LABELS: Variable =
    Variable { path: "mpls/platform_labels", range: 0..=(1 << 20) - 1, initial: 0 };

/// Whether labelled packets are taken.
pub(crate) static MPLS_INPUT: Variable = Variable { path: "mpls/conf/*/input", range: 0..=1, initial: 0 };

/// Whether the TTL of a packet goes into its labels and back: RFC 3443.
pub(crate) static IP_TTL_PROPAGATE: Variable =
    Variable { path: "mpls/ip_ttl_propagate", range: 0..=1, initial: 1 };

/// The TTL of labels where it does not.
pub(crate) static DEFAULT_TTL: Variable = Variable { path: "mpls/default_ttl", range: 1..=255, initial: 255 };

/// Whether packets and their labels have one traffic class: the uniform model of RFC 3270 section 2.6.2. Linux has no
/// such variable, and does as with 0.
pub(crate) static TC_PROPAGATE: Variable = Variable { path: "mpls/tc_propagate", range: 0..=1, initial: 0 };

/// Whether the fallback devices of tunnels are made: 0 if they are. Linux: `net_has_fallback_tunnels`. A router that is
/// offline is not in the initial namespace, the only one that has them with 1.
pub(crate) static FALLBACK_TUNNELS: Variable =
    Variable { path: "core/fb_tunnels_only_for_init_net", range: 0..=2, initial: 0 };

/// Values that were written.
#[derive(Debug, Default)]
pub(crate) struct Sysctls(BTreeMap<(&'static str, Instance), i64>);

impl Sysctls {
    /// The value of a variable.
    pub fn value(&self, variable: &Variable, instance: Instance) -> i64 {
        let written = |instance| self.0.get(&(variable.path, instance)).copied();
        let inherited = || match instance {
            Instance::Link(_) => written(Instance::Default),
            _ => None,
        };
        written(instance).or_else(inherited).unwrap_or(variable.initial)
    }

    /// A link is no more, and so are its values.
    pub fn forget(&mut self, link: u32) {
        self.0.retain(|&(_, instance), _| instance != Instance::Link(link));
    }
}
