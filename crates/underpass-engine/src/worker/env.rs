//! What the packets of a burst have in common, and what the fast path checks of each.

use arrayvec::ArrayVec;

use crate::buffer::{BURST, Packet, PortId};
use crate::path::{ipv4, ipv6};
use crate::tables::{Action, ActionId, Link, LinkId};
use crate::worker::family::Family;
use crate::worker::fibs::{FibList, Fibs};
use crate::worker::metadata::ExtraMeta;
use crate::worker::path::Waiting;
use crate::worker::rewrite::{ETHERNET, IPV4, IPV6};
use crate::worker::view::View;

/// Those of a burst that are still to be taken.
pub(crate) type Packets<'b> = arrayvec::Drain<'b, Packet, BURST>;

/// A sound packet, as far as its look-up needs it.
#[derive(Clone, Copy)]
pub(crate) enum Validated {
    /// The destination, and the length of the packet.
    V6(u128, usize),
    V4(u32, usize),
}

/// What the packets of a burst have in common.
pub(crate) struct Env<'v, 'a> {
    pub(crate) view: &'v View<'a>,
    pub(crate) port: PortId,
    pub(crate) ingress: LinkId,
    pub(crate) link: &'a Link,
    pub(crate) extra: ExtraMeta,
    pub(crate) fib4: Option<FibList<'a, u32>>,
    pub(crate) fib6: Option<FibList<'a, u128>>,
    /// The first eight bytes of a frame for the link, as far as they are its address.
    pub(crate) mac: u64,
    /// Which of the first bits of an IPv4 header are looked at.
    pub(crate) bits4: u32,
}

/// What goes along with the packets of a burst.
pub(crate) struct BurstContext<'x, 'v, 'a, T> {
    pub(crate) env: &'x Env<'v, 'a>,
    pub(crate) fibs: &'x mut Fibs<'a>,
    /// Those that wait for a look-up.
    pub(crate) waiting: &'x mut ArrayVec<Waiting, BURST>,
    pub(crate) trace: &'x mut T,
}

impl<'v, 'a> Env<'v, 'a> {
    pub(crate) fn new(
        view: &'v View<'a>,
        fibs: &mut Fibs<'a>,
        port: PortId,
        ingress: LinkId,
        link: &'a Link,
    ) -> Self {
        let [a, b, c, d, e, f] = link.mac;
        Self {
            view,
            port,
            ingress,
            link,
            extra: ExtraMeta::new(link.lookup),
            fib4: fibs.fib4(view, link.lookup).filter(|_| link.forward4),
            fib6: fibs.fib6(view, link.lookup).filter(|_| link.forward6),
            mac: u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
            bits4: view.tables.plain_bits4(),
        }
    }

    /// The packet in a frame, if it is sound and for this router.
    #[inline(always)]
    pub(crate) fn validate(&self, frame: &[u8]) -> Option<Validated> {
        let (head, packet) = frame.split_first_chunk::<ETHERNET>()?;
        let [a, b, c, d, e, f, g, h, .., type0, type1] = *head;
        if (u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ self.mac) << 16 != 0 {
            return None;
        }
        // Compared as it lies, which saves turning it round.
        match u16::from_ne_bytes([type0, type1]) {
            IPV6 => ipv6::plain(packet).map(|(target, len)| Validated::V6(target, len)),
            IPV4 => ipv4::plain(packet, self.bits4).map(|(target, len)| Validated::V4(target, len)),
            _ => None,
        }
    }

    /// What is in a frame for this router that has a packet of this family.
    #[inline(always)]
    pub(crate) fn inside<'p, A: Family>(&self, frame: &'p [u8]) -> Option<&'p [u8]> {
        if self.is_of_type(frame, A::ETHERTYPE) { frame.get(ETHERNET..) } else { None }
    }

    /// Whether a frame is for this router and of this EtherType.
    #[inline(always)]
    pub(crate) fn is_of_type(&self, frame: &[u8], ethertype: u16) -> bool {
        let Some([a, b, c, d, e, f, g, h, .., type0, type1]) = frame.first_chunk::<ETHERNET>() else {
            return false;
        };
        (u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]) ^ self.mac) << 16 == 0
            && u16::from_be_bytes([*type0, *type1]) == ethertype
    }

    #[inline(always)]
    pub(crate) fn action(&self, leaf: Option<u32>) -> Option<&'v Action> {
        self.view.tables.action(ActionId(leaf?), self.view.guard)
    }
}
