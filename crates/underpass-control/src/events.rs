//! What `ip monitor` hears: notifications of changes, per multicast group.

use std::collections::VecDeque;

use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_netlink::{Replies, RequestError, tc};

use crate::{Protocol, Request};

/// A message for the members of a multicast group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notification {
    /// Of which protocol the group is.
    pub protocol: Protocol,
    /// `RTNLGRP_*`.
    pub group: u32,
    /// Port id of a client that does not get it: it asked for an echo of its change and has it already.
    pub except: Option<u32>,
    /// The message.
    pub bytes: Box<[u8]>,
}

/// What caused a change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cause {
    /// The request that asked for it; the zero address if none did.
    pub to: Address,
    /// That client wants to see the notification itself.
    pub echo: bool,
}

impl From<&Request<'_>> for Cause {
    fn from(request: &Request<'_>) -> Self {
        Self { to: request.reply_to(), echo: request.echo() }
    }
}

/// The groups that hear of what may be the router's own though there is a kernel beside it.
const OWN_GROUPS: [u32; 8] = [
    tc::GROUP,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV6_RULE,
    27, // RTNLGRP_MPLS_ROUTE
    29, // RTNLGRP_MPLS_NETCONF
    32, // RTNLGRP_NEXTHOP
];

/// Highest group number + 1: `RTNLGRP_MAX` is below 64.
const GROUPS: usize = 64;

/// The queue of notifications, and who listens.
#[derive(Debug)]
pub(crate) struct Events {
    members: [u32; GROUPS],
    queue: VecDeque<Notification>,
    /// There is a kernel beside the router, which tells of its links, addresses and neighbours itself.
    pub beside_kernel: bool,
    /// Notifications for the client whose request is being answered.
    pub echoes: Replies,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            members: [0; GROUPS],
            queue: VecDeque::new(),
            beside_kernel: false,
            echoes: Replies::default(),
        }
    }
}

impl Events {
    pub fn join(&mut self, group: u32) {
        if let Some(members) = self.members.get_mut(group as usize) {
            *members += 1;
        }
    }

    pub fn leave(&mut self, group: u32) {
        if let Some(members) = self.members.get_mut(group as usize) {
            *members = members.saturating_sub(1);
        }
    }

    /// Whether anybody would hear of a change from here.
    pub fn heard(&self, cause: Cause, group: u32) -> bool {
        let kernels = self.beside_kernel && !OWN_GROUPS.contains(&group);
        !kernels && self.has_members(cause, group)
    }

    fn has_members(&self, cause: Cause, group: u32) -> bool {
        cause.echo || self.members.get(group as usize).is_some_and(|&members| members > 0)
    }

    /// Tells the members of a group; `write` is called only if there are any, or the cause wants an echo.
    pub fn notify(
        &mut self,
        cause: Cause,
        group: u32,
        kind: u16,
        flags: u16,
        write: impl FnOnce(&mut Reply<'_>),
    ) {
        if self.heard(cause, group) {
            self.notify_own(cause, group, kind, flags, write);
        }
    }

    /// The same of what the kernel beside the router does not know, whoever tells that group of all else.
    pub fn notify_own(
        &mut self,
        cause: Cause,
        group: u32,
        kind: u16,
        flags: u16,
        write: impl FnOnce(&mut Reply<'_>),
    ) {
        if !self.has_members(cause, group) {
            return;
        }
        let mut bytes = Vec::new();
        if write_message(&mut bytes, kind, flags, cause.to, write).is_err() {
            return; // longer than a message can be: nobody can be told
        }
        if cause.echo {
            self.echoes.datagram(&bytes);
        }
        if self.members.get(group as usize).is_some_and(|&members| members > 0) {
            let except = cause.echo.then_some(cause.to.port);
            let bytes = bytes.into_boxed_slice();
            self.queue.push_back(Notification { protocol: Protocol::Route, group, except, bytes });
        }
    }

    /// Tells the members of a group of another protocol.
    pub fn tell(&mut self, protocol: Protocol, group: u32, bytes: Vec<u8>) {
        let bytes = bytes.into_boxed_slice();
        self.queue.push_back(Notification { protocol, group, except: None, bytes });
    }

    pub fn take(&mut self) -> impl Iterator<Item = Notification> + '_ {
        self.queue.drain(..)
    }
}

/// Refuses a group that cannot be joined.
pub(crate) fn check_group(group: u32) -> Result<(), RequestError> {
    if group == 0 || group as usize >= GROUPS { Err(RequestError::errno(libc::EINVAL)) } else { Ok(()) }
}
