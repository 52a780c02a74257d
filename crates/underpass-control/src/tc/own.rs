//! Whose traffic control is, where there is a kernel beside the router: that of links whose packets go through the
//! router is the router's, and so are actions, which filters of any link share; that of other links is the kernel's.

use netlink_packet_core::NLM_F_DUMP;
use underpass_netlink::Message;
use underpass_netlink::tc::{self, HEADER, Header};

use crate::Router;
use crate::link::LinkKind;
use crate::owner::Owner;

const RTM_NEWCHAIN: u16 = 100;
const RTM_GETCHAIN: u16 = 102;

/// Whether a message is about traffic control.
pub(crate) const fn is_about(kind: u16) -> bool {
    matches!(kind, libc::RTM_NEWQDISC..=libc::RTM_GETTFILTER | libc::RTM_NEWACTION..=libc::RTM_GETACTION)
        || matches!(kind, RTM_NEWCHAIN..=RTM_GETCHAIN)
}

fn header(message: &Message<'_>) -> Option<Header> {
    message.body().first_chunk::<HEADER>().map(Header::read)
}

impl Router {
    /// Whether the traffic control of a link is the router's: packets come or go by it, or it is one of its devices, or
    /// an `ifb`, to which filters take packets.
    pub(crate) fn controls(&self, index: u32) -> bool {
        let Some(live) = &self.live else { return true };
        let link = self.links.get(index);
        live.devices.get(index).is_some()
            || link.is_some_and(|link| link.port().is_some() || link.kind == LinkKind::Ifb)
    }

    /// Who answers a message about traffic control.
    pub(crate) fn control_owner(&self, message: &Message<'_>) -> Owner {
        if matches!(message.kind, libc::RTM_NEWACTION..=libc::RTM_GETACTION) {
            return Owner::Router;
        }
        let dump = message.kind == libc::RTM_GETQDISC && message.flags & NLM_F_DUMP != 0;
        match header(message) {
            _ if dump => Owner::Both,
            Some(header) if self.controls(header.link) => Owner::Router,
            _ => Owner::Kernel,
        }
    }

    /// Whether a message of the kernel is about what the router stands in for: the kernel's own hooks of its links, the
    /// kernel's queue where the router has another, and the queues to the host of the router's devices.
    pub(crate) fn hides_control(&self, message: &Message<'_>) -> bool {
        let Some(header) = header(message) else { return false };
        let action = matches!(message.kind, libc::RTM_NEWACTION..=libc::RTM_GETACTION);
        if action || self.live.is_none() || !self.controls(header.link) {
            return false;
        }
        if self.live.as_ref().is_some_and(|live| live.devices.get(header.link).is_some()) {
            return true;
        }
        let root = self.tc.get(header.link).is_some_and(|control| control.root().is_some());
        root || tc::major(header.parent) == tc::HOOK && header.parent != tc::ROOT
    }
}
