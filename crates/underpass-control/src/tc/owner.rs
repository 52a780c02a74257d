//! Whose traffic control is, where there is a kernel beside the router: that of links whose packets go through the
//! router is the router's, and so are actions, which filters of any link share; that of other links is the kernel's.

use netlink_packet_core::NLM_F_DUMP;
use underpass_netlink::Message;
use underpass_netlink::tc::{self, HEADER, Header};

use super::parent::SHARED;
use crate::Router;
use crate::link::LinkKind;
use crate::owner::Owner;

const RTM_NEWCHAIN: u16 = 100;
const RTM_GETCHAIN: u16 = 102;

/// The priority of the filters that take packets from a kernel before Linux 6.6.
const OWN_FILTER: u32 = 0x7570;

/// Whether a message is about traffic control.
pub(crate) const fn is_about(kind: u16) -> bool {
    matches!(kind, libc::RTM_NEWQDISC..=libc::RTM_GETTFILTER | libc::RTM_NEWACTION..=libc::RTM_GETACTION)
        || matches!(kind, RTM_NEWCHAIN..=RTM_GETCHAIN)
}

fn header(message: &Message<'_>) -> Option<Header> {
    message.body().first_chunk::<HEADER>().map(Header::read)
}

/// Whether the traffic control of a link is the router's: packets come or go by it, or it is one of its devices, or
/// an `ifb`, to which filters take packets.
pub(crate) fn controls(router: &Router, index: u32) -> bool {
    let Some(live) = &router.live else { return true };
    let link = router.links.get(index);
    live.devices.get(index).is_some()
        || link.is_some_and(|link| link.port().is_some() || link.kind == LinkKind::Ifb)
}

/// Who answers a message about traffic control.
pub(crate) fn control_owner(router: &Router, message: &Message<'_>) -> Owner {
    if matches!(message.kind, libc::RTM_NEWACTION..=libc::RTM_GETACTION) {
        return Owner::Router;
    }
    let dump = message.kind == libc::RTM_GETQDISC && message.flags & NLM_F_DUMP != 0;
    let filters = message.kind == libc::RTM_GETTFILTER && message.flags & NLM_F_DUMP != 0;
    match header(message) {
        _ if dump => Owner::Both,
        Some(Header { link: SHARED, parent, .. }) if router.filters.is_shared(parent) => Owner::Router,
        // The kernel's filters are in force for what it keeps, and may be meant for all.
        Some(header) if filters && shares(router, header.link) => Owner::Both,
        Some(header) if controls(router, header.link) => Owner::Router,
        _ => Owner::Kernel,
    }
}

/// Whether the kernel may have hooks and a queue of its own at a link that the router controls.
fn shares(router: &Router, index: u32) -> bool {
    let own = router.live.as_ref().is_some_and(|live| live.devices.get(index).is_some());
    controls(router, index) && !own && !router.is_host_door(index)
}

/// Whether a message of the kernel is about what the router stands in for: the queue that the kernel has by itself
/// where the router has another, the filters by which the router takes its packets, and the queues to the host of the
/// router's devices. What somebody has given the kernel is shown, before the router's.
pub(crate) fn hides_control(router: &Router, message: &Message<'_>) -> bool {
    let Some(header) = header(message) else { return false };
    let action = matches!(message.kind, libc::RTM_NEWACTION..=libc::RTM_GETACTION);
    if action || router.live.is_none() || !controls(router, header.link) {
        return false;
    }
    if !shares(router, header.link) {
        return true;
    }
    match message.kind {
        libc::RTM_NEWTFILTER | libc::RTM_DELTFILTER => header.info >> 16 == OWN_FILTER,
        _ => {
            let root = router.tc.get(header.link).is_some_and(|control| control.root().is_some());
            root && tc::major(header.handle) == 0
        }
    }
}
