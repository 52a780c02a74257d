//! What the router puts into a kernel that has no VRFs for those that it makes: the connected routes of their
//! tables, and rules and routes that lead sockets bound to a VRF's device there. All are of protocol
//! [`PROTOCOL`].

use std::net::IpAddr;

use libc::{EEXIST, ENETDOWN, ENODEV, ENOENT, ESRCH, RTM_DELROUTE, RTM_DELRULE, RTM_NEWROUTE, RTM_NEWRULE};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use underpass_control::{PROTOCOL, RequestError, Router, Sender, VrfChange, VrfDoor, VrfRoute};

use super::{Kernel, Requester};

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
const FRA_OIFNAME: u16 = 17;
const FRA_PROTOCOL: u16 = 21;
/// `FR_ACT_TO_TBL`.
const TO_TABLE: u8 = 1;
/// Where Linux has the rule that leads to the tables of VRFs.
const PRIORITY: u32 = 1000;

impl Kernel {
    /// Gives the kernel what it is to have now of the router's VRFs.
    pub fn follow(&mut self, router: &mut Router) {
        for change in router.vrf_changes() {
            let (route, add) = match change {
                VrfChange::Add(route) => (route, true),
                VrfChange::Remove(route) => (route, false),
            };
            if let Err(error) = self.requester.route(&route, add)
                && !harmless(error.errno)
            {
                // An address that cannot be used yet: it is told when it can.
                tracing::debug!("the kernel does not take {} of a VRF yet: {error}", route.destination);
            }
        }
        let doors = router.vrf_doors();
        if doors != self.doors {
            let gone = self.doors.iter().filter(|door| !doors.contains(door));
            let new = doors.iter().filter(|door| !self.doors.contains(door));
            for (add, door) in gone.map(|door| (false, door)).chain(new.map(|door| (true, door))) {
                if let Err(error) = self.requester.rule(door, add) {
                    tracing::warn!("what this host sends into a VRF is not led there: {error}: {door:?}");
                }
            }
            self.doors = doors;
        }
    }

    /// Takes everything back out of the kernel that [`Kernel::follow`] has put there.
    pub fn give_back(&mut self, router: &mut Router) {
        router.restore_connected(true);
        self.take_out();
    }

    /// Removes all routes and rules of protocol [`PROTOCOL`].
    fn take_out(&mut self) {
        match self.requester.dump_ours() {
            Ok(ours) => self.leftovers = ours,
            Err(error) => tracing::warn!("routes of the router's may stay: {error}"),
        }
        self.remove_leftovers();
        self.doors.clear();
    }
}

/// What follows from the kernel having done by itself what it is asked for.
fn harmless(errno: i32) -> bool {
    [EEXIST, ESRCH, ENOENT, ENODEV, ENETDOWN].contains(&errno)
}

impl Requester {
    fn route(&mut self, route: &VrfRoute, add: bool) -> Result<(), RequestError> {
        let (kind, flags) = if add { (RTM_NEWROUTE, NLM_F_CREATE) } else { (RTM_DELROUTE, 0) };
        let address = route.destination.addr();
        let (family, scope) = match address {
            IpAddr::V4(_) => (libc::AF_INET, libc::RT_SCOPE_LINK),
            IpAddr::V6(_) => (libc::AF_INET6, libc::RT_SCOPE_UNIVERSE),
        };
        self.request(kind, flags, |message| {
            let len = route.destination.prefix_len();
            let kind = libc::RTN_UNICAST;
            message.fixed(&[family as u8, len, 0, 0, 0, PROTOCOL, scope, kind, 0, 0, 0, 0]);
            message.u32(RTA_TABLE, route.table);
            if len > 0 {
                message.address(RTA_DST, address);
            }
            if route.metric > 0 {
                message.u32(RTA_PRIORITY, route.metric);
            }
            message.u32(RTA_OIF, route.link);
            if let Some(source) = route.source {
                message.address(RTA_PREFSRC, source);
            }
        })
    }

    /// Adds or removes the rules of a door.
    ///
    /// # Errors
    /// What the kernel refuses of one family, unless it is [`harmless`].
    fn rule(&mut self, door: &VrfDoor, add: bool) -> Result<(), RequestError> {
        let (kind, flags) = if add { (RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL) } else { (RTM_DELRULE, 0) };
        let families: &[i32] = match door.sender {
            Sender::Bound(_) | Sender::By(_) => &[libc::AF_INET, libc::AF_INET6],
            Sender::From(IpAddr::V4(_)) => &[libc::AF_INET],
            Sender::From(IpAddr::V6(_)) => &[libc::AF_INET6],
        };
        let mut outcome = Ok(());
        for &family in families {
            let done = self.request(kind, flags, |message| {
                let source_len = match door.sender {
                    Sender::Bound(_) | Sender::By(_) => 0,
                    Sender::From(IpAddr::V4(_)) => 32,
                    Sender::From(IpAddr::V6(_)) => 128,
                };
                message.fixed(&[family as u8, 0, source_len, 0, 0, 0, 0, TO_TABLE, 0, 0, 0, 0]);
                message.u32(FRA_PRIORITY, PRIORITY);
                message.u32(FRA_TABLE, door.table);
                match &door.sender {
                    Sender::Bound(device) => message.text(FRA_OIFNAME, device),
                    Sender::By(device) => message.text(FRA_IIFNAME, device),
                    Sender::From(address) => message.address(FRA_SRC, *address),
                }
                message.u8(FRA_PROTOCOL, PROTOCOL);
            });
            // One family must not keep the other from what it is to have.
            if done.as_ref().is_err_and(|error| !harmless(error.errno)) {
                outcome = done;
            }
        }
        outcome
    }
}
