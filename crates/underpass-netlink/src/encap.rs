//! Encapsulations of routes: `RTA_ENCAP_TYPE` and `RTA_ENCAP`. Linux: `net/core/lwtunnel.c`.

use libc::{EINVAL, EOPNOTSUPP};

use crate::RequestError;
use crate::attribute::Attribute;
use crate::ioam6::Ioam6;
use crate::iptunnel::IpTunnel;
use crate::message::messages;
use crate::mpls::Mpls;
use crate::reply::{Address, Reply, write_message};
use crate::rpl::Rpl;
use crate::seg6::Seg6;
use crate::seg6local::{Counts, Seg6Local};

const LWTUNNEL_ENCAP_MPLS: u16 = 1;
const LWTUNNEL_ENCAP_IP: u16 = 2;
const LWTUNNEL_ENCAP_IP6: u16 = 4;
const LWTUNNEL_ENCAP_SEG6: u16 = 5;
const LWTUNNEL_ENCAP_SEG6_LOCAL: u16 = 7;
const LWTUNNEL_ENCAP_RPL: u16 = 8;
const LWTUNNEL_ENCAP_IOAM6: u16 = 9;
const LWTUNNEL_ENCAP_MAX: u16 = 10;

/// What a route does to its packets besides forwarding them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Encap {
    /// `encap mpls`.
    Mpls(Mpls),
    /// `encap seg6`.
    Seg6(Seg6),
    /// `encap seg6local`.
    Seg6Local(Seg6Local),
    /// `encap rpl`.
    Rpl(Rpl),
    /// `encap ioam6`.
    Ioam6(Ioam6),
    /// `encap ip` and `encap ip6`.
    Ip(IpTunnel),
}

/// Checks an `RTA_ENCAP_TYPE`, before anything else of the route is looked at.
///
/// # Errors
/// As Linux's `lwtunnel_valid_encap_type`; `EOPNOTSUPP` is its answer where the type's module is missing.
pub const fn check_type(kind: u16) -> Result<(), RequestError> {
    match kind {
        LWTUNNEL_ENCAP_MPLS
        | LWTUNNEL_ENCAP_IP
        | LWTUNNEL_ENCAP_IP6
        | LWTUNNEL_ENCAP_SEG6
        | LWTUNNEL_ENCAP_SEG6_LOCAL
        | LWTUNNEL_ENCAP_RPL
        | LWTUNNEL_ENCAP_IOAM6 => Ok(()),
        0 | 11.. => Err(RequestError::new(EINVAL, "Unknown lwt encapsulation type")),
        1..=LWTUNNEL_ENCAP_MAX => Err(RequestError::new(EOPNOTSUPP, "lwt encapsulation type not supported")),
    }
}

impl Encap {
    /// Reads an `RTA_ENCAP` of a type, on a route of an address family.
    ///
    /// # Errors
    /// As Linux's `lwtunnel_build_state`.
    pub fn parse(kind: u16, encap: &Attribute<'_>, family: u8) -> Result<Self, RequestError> {
        match kind {
            LWTUNNEL_ENCAP_MPLS => Mpls::parse(encap).map(Self::Mpls),
            LWTUNNEL_ENCAP_IP => IpTunnel::parse(encap, false).map(Self::Ip),
            LWTUNNEL_ENCAP_IP6 => IpTunnel::parse(encap, true).map(Self::Ip),
            LWTUNNEL_ENCAP_SEG6 => Seg6::parse(encap, family).map(Self::Seg6),
            LWTUNNEL_ENCAP_SEG6_LOCAL => Seg6Local::parse(encap, family).map(Self::Seg6Local),
            LWTUNNEL_ENCAP_RPL => Rpl::parse(encap, family).map(Self::Rpl),
            LWTUNNEL_ENCAP_IOAM6 => Ioam6::parse(encap, family).map(Self::Ioam6),
            0 => Err(RequestError::new(EINVAL, "LWT encap type not specified")),
            _ => Err(RequestError::new(EOPNOTSUPP, "LWT encapsulation type not supported").at(encap.offset)),
        }
    }

    /// `LWTUNNEL_ENCAP_*`.
    pub const fn kind(&self) -> u16 {
        match self {
            Self::Mpls(_) => LWTUNNEL_ENCAP_MPLS,
            Self::Seg6(_) => LWTUNNEL_ENCAP_SEG6,
            Self::Seg6Local(_) => LWTUNNEL_ENCAP_SEG6_LOCAL,
            Self::Rpl(_) => LWTUNNEL_ENCAP_RPL,
            Self::Ioam6(_) => LWTUNNEL_ENCAP_IOAM6,
            Self::Ip(tunnel) if tunnel.destination.is_ipv4() => LWTUNNEL_ENCAP_IP,
            Self::Ip(_) => LWTUNNEL_ENCAP_IP6,
        }
    }

    /// Writes the encapsulation as attribute `encap` and its type as attribute `kind`; `counts` is what a
    /// counted SID shows.
    pub fn write(&self, reply: &mut Reply<'_>, encap: u16, kind: u16, counts: Counts) {
        let nest = reply.nest_unflagged(encap);
        match self {
            Self::Mpls(mpls) => mpls.write(reply),
            Self::Seg6(seg6) => seg6.write(reply),
            Self::Seg6Local(local) => local.write(reply, counts),
            Self::Rpl(rpl) => rpl.write(reply),
            Self::Ioam6(ioam6) => ioam6.write(reply),
            Self::Ip(tunnel) => tunnel.write(reply),
        }
        reply.end(nest);
        reply.u16(kind, self.kind());
    }

    /// Whether it counts its packets: a SID with `count`, and an insertion into some of them.
    pub fn counts(&self) -> bool {
        match self {
            Self::Mpls(_) | Self::Seg6(_) | Self::Rpl(_) | Self::Ip(_) => false,
            Self::Seg6Local(local) => local.counted,
            Self::Ioam6(ioam6) => ioam6.frequency_k < ioam6.frequency_n,
        }
    }

    /// Whether its type is one of those of [`IpTunnel`], which mean something to the kernel's own devices too.
    pub const fn is_of_device(kind: u16) -> bool {
        matches!(kind, LWTUNNEL_ENCAP_IP | LWTUNNEL_ENCAP_IP6)
    }

    /// Whether this is all that an `RTA_ENCAP` of the kernel's says: written again it has the same attributes. Counts may
    /// differ.
    pub fn is_all_of(&self, told: &Attribute<'_>) -> bool {
        let mut bytes = Vec::new();
        let write = |reply: &mut Reply<'_>| self.write(reply, ENCAP, ENCAP + 1, Counts::default());
        if write_message(&mut bytes, 0, 0, Address::default(), write).is_err() {
            return false;
        }
        let written = messages(&bytes).next().and_then(|message| message.attributes(0).next());
        written.is_some_and(|written| covers(&written, told))
    }

    /// Whether two are the same to Linux where routes are compared: `lwtunnel_cmp_encap`.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ioam6(this), Self::Ioam6(other)) => this.is_like(other),
            _ => self == other,
        }
    }
}

/// What an encapsulation is written as to be compared.
const ENCAP: u16 = 1;

/// Whether each attribute inside `told` is inside `written` too, with the same value or with attributes inside.
fn covers(written: &Attribute<'_>, told: &Attribute<'_>) -> bool {
    let whole = |attribute: &Attribute<'_>| {
        let len = |inside: Attribute<'_>| (inside.value.len() + 4).next_multiple_of(4);
        attribute.value.len() >= 4
            && attribute.nested().map(len).sum::<usize>() == attribute.value.len().next_multiple_of(4)
    };
    told.nested().all(|told| {
        let mut alike = written.nested().filter(|written| written.kind == told.kind);
        alike.any(|written| {
            written.value == told.value
                || whole(&written) && whole(&told) && counts_or_covers(&written, &told)
        })
    })
}

/// The same of attributes inside; those of 8 bytes and more are counts.
fn counts_or_covers(written: &Attribute<'_>, told: &Attribute<'_>) -> bool {
    told.nested().all(|told| {
        let mut alike = written.nested().filter(|written| written.kind == told.kind);
        alike.any(|written| written.value == told.value || told.value.len() == 8)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::message::HEADER;
    use crate::reply::{Address, write_message};

    /// An attribute with this value.
    pub(crate) fn as_attribute(value: &[u8]) -> Attribute<'_> {
        Attribute { kind: 22, offset: 0, value }
    }

    /// What `write` writes behind a netlink header.
    pub(crate) fn written(write: impl FnOnce(&mut Reply<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_message(&mut bytes, 0, 0, Address::default(), write).unwrap();
        bytes.split_off(HEADER)
    }

    /// Linux 6.12 without the module of a type, here XFRM.
    #[test]
    fn types_of_missing_modules() {
        assert_eq!(check_type(10).unwrap_err().errno, EOPNOTSUPP);
        assert_eq!(check_type(0).unwrap_err().errno, EINVAL);
        assert_eq!(check_type(11).unwrap_err().errno, EINVAL);
        for made in [1, 2, 4, 5, 7, 8, 9] {
            assert!(check_type(made).is_ok());
        }
    }
}
