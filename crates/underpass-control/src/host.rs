//! The host beside the router: by which ports it takes its packets, and what else the packet path has to
//! know of the kernel there.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use libc::RTM_NEWROUTE;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use underpass_engine::buffer::PortId;
use underpass_engine::counters::Totals;
use underpass_engine::drops::DropReason;
use underpass_engine::in_kernel::records::{MissCause, OfDevice, Places};
use underpass_engine::tables::{LinkId, Rewrite, Writer};
use underpass_netlink::{RequestError, fou};

use crate::address::kernel_routes::connected_of;
use crate::link::Link;
use crate::link::encode::in_own_vrf;
use crate::link::mirror::change_mirrored_link;
use crate::link::publish::{is_only_one, publish_link};
use crate::link::tunnel::fallback::{named, use_kind};
use crate::link::vlan::compile::is_promiscuous;
use crate::live::{DUMMY, Hooked, RTPROT_RA, VlanDevice};
use crate::neighbour::LIMIT;
use crate::route::change::{ids_at, take_route};
use crate::route::compiled::NextHopKey;
use crate::route::config::RTA_PREFSRC;
use crate::route::encode::write_key;
use crate::route::info::Info;
use crate::route::ioam::ioam_link;
use crate::route::mirror::{append_mirrored6, mirrored, set_aside};
use crate::route::shadow::{Shadow, shadows_at};
use crate::route::table::Place;
use crate::route::update::places_of;
use crate::tc::action;
use crate::tc::action::change::small_burst;
use crate::{Device, LinkKind, Neighbour, Router};

use crate::route::vrf::{Sender, VrfChange, VrfDoor, compare, door_table, doors, vrf_routes_at};

impl Router {
    /// The host takes what is for itself in this VRF (the index of its link; 0: in none) by the port of a
    /// link. Frames from there are for this MAC address, if the link has none.
    pub fn set_host_port(&mut self, vrf: u32, link: u32, port: Option<(PortId, [u8; 6])>) {
        let Some(live) = &mut self.live else { return };
        match port {
            Some((port, mac)) => {
                live.host.ports.insert(vrf, port);
                live.host.macs.insert(link, mac);
            }
            None => {
                live.host.ports.remove(&vrf);
                live.host.macs.remove(&link);
            }
        }
        if port.is_some() {
            let given = self.request_kernel(libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, |message| {
                let [a, b, c, d] = link.to_ne_bytes();
                // Of host scope: the kernel sends nothing from it.
                message.fixed(&[libc::AF_INET as u8, 32, 0, libc::RT_SCOPE_HOST, a, b, c, d]);
                message.address(libc::IFA_LOCAL, DUMMY.into());
                message.address(libc::IFA_ADDRESS, DUMMY.into());
            });
            if let Err(error) = given {
                tracing::debug!("the device of the host has no address: {error}");
            }
        }
        let links: Vec<u32> = self.links.iter().map(|link| link.index).collect();
        links.into_iter().for_each(|link| publish_link(self, link));
    }

    /// Whether the kernel gets a copy of what comes in by a link.
    pub fn set_shared(&mut self, link: u32, shared: bool) {
        let Some(live) = &mut self.live else { return };
        let changed = if shared { live.host.shared.insert(link) } else { live.host.shared.remove(&link) };
        if changed {
            publish_link(self, link);
        }
    }

    /// The kernel takes by this port the frames that it keeps of those that have come in by a link.
    pub fn set_kernel_port(&mut self, link: u32, port: Option<PortId>) {
        let Some(live) = &mut self.live else { return };
        let old = match port {
            Some(port) => live.host.kernels.insert(link, port),
            None => live.host.kernels.remove(&link),
        };
        if old != port {
            publish_link(self, link);
        }
    }

    /// The programs of a link's device that carry packets in the kernel from now on, if it has any.
    pub fn set_programs(&mut self, link: u32, programs: Option<OfDevice>) {
        if let (Some(live), Some(OfDevice { misses, .. })) = (&mut self.live, programs) {
            live.host.stand_ins.insert(misses);
        }
        let old = match programs {
            Some(programs) => self.carriers.insert(link, programs),
            None => self.carriers.remove(&link),
        };
        if old != programs {
            publish_link(self, link);
        }
    }

    /// A device is the way by which frames come back to another one: nobody is shown it.
    pub fn note_return_path(&mut self, index: u32) {
        if let Some(live) = &mut self.live {
            live.host.stand_ins.insert(index);
        }
    }

    /// Whether a device stands for another one, or has stood.
    pub fn stands_in(&self, index: u32) -> bool {
        self.live.as_ref().is_some_and(|live| live.host.stand_ins.contains(&index))
    }

    /// The programs of a link's device that carry packets in the kernel.
    pub(crate) fn programs_of(&self, link: u32) -> Option<OfDevice> {
        self.carriers.get(&link).copied()
    }

    /// What looks at the packets of a link.
    pub fn hooked(&self, link: u32) -> Hooked {
        let live = self.live.as_ref();
        live.and_then(|live| live.host.hooked.get(&link)).copied().unwrap_or_default()
    }

    /// Changes with every change of what [`Router::hooked`] gives.
    pub fn hooked_generation(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.host.hooked_generation)
    }

    /// Whether there are VLAN devices of the router's above a link.
    pub fn has_vlans_above(&self, link: u32) -> bool {
        self.links.iter().any(|other| other.vlan.as_ref().is_some_and(|vlan| vlan.lower == link))
    }

    /// Whether a link takes frames for all stations: as a port of a bridge, or for VLAN devices above it.
    pub fn takes_all_stations(&self, link: u32) -> bool {
        let link = self.links.get(link);
        link.is_some_and(|link| link.bridge_port.is_some() || is_promiscuous(self, link))
    }

    /// The links that VLAN devices of the router's are above, or that are ports of its bridges.
    pub fn have_above(&self) -> BTreeSet<u32> {
        let lowers = self.links.iter().filter_map(|link| link.vlan.as_ref()).map(|vlan| vlan.lower);
        let ports = self.links.iter().filter(|link| link.bridge_port.is_some()).map(|link| link.index);
        lowers.chain(ports).collect()
    }

    /// The kernel's VLAN devices.
    pub fn vlan_devices(&self) -> impl Iterator<Item = VlanDevice> + '_ {
        self.live.iter().flat_map(|live| live.host.vlans.values().copied())
    }

    /// Links beside a kernel of which something looks at what leaves: what the host itself sends does not come by there.
    pub(crate) fn passed_by(&self) -> impl Iterator<Item = &str> {
        let hooked = self.live.iter().flat_map(|live| &live.host.hooked);
        let links = hooked.filter(|(_, hooked)| hooked.egress).filter_map(|(link, _)| self.links.get(*link));
        links
            .filter(|link| {
                link.kind == LinkKind::Dummy || link.kind == LinkKind::Kernel && link.attached.is_some()
            })
            .map(|link| &link.name[..])
    }

    /// Whether labelled packets are taken that come in by a link: `net.mpls.conf.IF.input`.
    pub fn takes_labels(&self, link: u32) -> bool {
        self.routes.labels.takes(link)
    }

    /// Changes with every change of a link, and of whether it takes labels.
    pub fn link_generation(&self) -> u64 {
        self.links.generation
    }

    /// The receive ports of foo-over-UDP.
    pub fn fou_ports(&self) -> impl Iterator<Item = &fou::Config> {
        self.fou.iter()
    }

    /// Changes with every change of a receive port.
    pub fn fou_generation(&self) -> u64 {
        self.fou.generation()
    }

    /// Changes with every change of what [`Router::local_addresses`] gives.
    pub fn local_generation(&self) -> u64 {
        self.addresses.locals + self.tunnels.groups.changes
    }

    /// The addresses that are the host's own in a VRF, and the broadcast addresses of its subnets. Of those
    /// in VRFs that the router makes the kernel does not know: what is for them comes to the router, which
    /// hands it over by the VRF's device.
    pub fn local_addresses(&self) -> BTreeSet<(u32, IpAddr)> {
        let mut locals = BTreeSet::new();
        for own in self.addresses.iter().filter(|own| !in_own_vrf(self, own.link)) {
            let domain = self.domain_of(own.link);
            locals.insert((domain, own.local));
            if let (IpAddr::V4(_), Some(IpNet::V4(subnet))) = (own.local, own.prefix())
                && subnet.prefix_len() < 31
            {
                locals.insert((domain, subnet.broadcast().into()));
            }
        }
        // What tunnels receive in their groups is claimed, as what they receive at addresses is.
        locals.extend(self.groups().into_iter().map(|(link, group)| (self.domain_of(link), group)));
        locals
    }

    /// What is known of the station with this address on a link.
    pub fn neighbour(&self, link: u32, address: IpAddr) -> Option<&Neighbour> {
        self.neighbours.get(link, address)
    }

    /// The link-layer header of packets to a neighbour, if its address is known; and the packet path's name
    /// for the link.
    pub fn link_layer(&self, link: u32, address: IpAddr) -> Option<(LinkId, Rewrite)> {
        let link = self.links.get(link)?;
        let mac = self.neighbours.get(link.index, address)?.usable()?;
        let mut bytes = [0; 20];
        bytes[..6].copy_from_slice(&mac);
        bytes[6..12].copy_from_slice(&link.mac);
        Some((link.id, Rewrite { bytes, len: 12 }))
    }

    /// Which of the protocols of packets inside others the host may take where no tunnel does, as bits of
    /// [`underpass_engine::tables::inside_bit`].
    pub fn set_host_takes(&mut self, protocols: u32) {
        self.engine.set_host_takes(protocols);
    }

    /// Whether hop-by-hop options of packets for the host's own addresses are the router's to read: there is a link on
    /// which traces are filled in.
    pub fn reads_options(&self) -> bool {
        self.links.iter().any(|link| ioam_link(self, link).enabled)
    }

    /// How much was replaced or removed that a worker may still hold.
    pub fn waiting(&self) -> usize {
        self.engine.waiting()
    }

    /// Frees what no worker can hold any more: to be called when nothing else has happened for a while.
    pub fn reclaim(&mut self) {
        self.engine.reclaim();
    }

    /// Where programs that carry packets in the kernel find what they read; `None`: there are none.
    pub fn places(&self) -> Option<Places> {
        self.engine.places()
    }

    /// Whether programs know an interface: there are numbers beyond those that they know.
    pub fn programs_know(&self, ifindex: u32) -> bool {
        self.engine.programs_know(ifindex)
    }

    /// Waits until programs have left what was there before, so that it can be freed: to be called when nothing else is to
    /// be done.
    pub fn leave_programs(&mut self) {
        self.engine.leave_programs();
    }

    /// Has the router write to other tables from now on, empty ones: those that it wrote to, as they are.
    pub fn exchange_engine(&mut self, engine: Writer) -> Writer {
        std::mem::replace(&mut self.engine, engine)
    }

    /// Says to programs what the workers' clock lies behind that of the machine, `CLOCK_MONOTONIC`.
    pub fn set_clock(&self, behind: Duration) {
        self.engine.set_clock(behind.as_nanos() as u64);
    }

    /// Has workers get all packets from programs, or no longer.
    pub fn set_aside(&self, aside: bool) {
        self.engine.set_aside(aside);
    }

    /// How many packets programs have decided on by themselves, and how many they gave to workers, by cause.
    pub fn carried(&self) -> (u64, Vec<(MissCause, u64)>) {
        let misses = MissCause::ALL.iter().map(|cause| (*cause, self.engine.misses(*cause)));
        (self.engine.totals_of_programs().received, misses.collect())
    }

    /// What became of the packets that programs decided on by themselves, and how many of them were dropped for each reason.
    pub fn programs_counted(&self) -> (Totals, Vec<(DropReason, u64)>) {
        let dropped =
            DropReason::ALL.iter().map(|reason| (*reason, self.engine.dropped_by_programs(*reason)));
        (self.engine.totals_of_programs(), dropped.collect())
    }

    /// What leaves by a dummy or a VLAN device leaves by this port from now on, behind which there is no wire.
    ///
    /// # Errors
    /// `ENODEV` if there is no such link.
    pub fn go_inside(&mut self, index: u32, port: PortId) -> Result<(), RequestError> {
        let old = self.links.get(index).cloned().ok_or(RequestError::errno(libc::ENODEV))?;
        if old.sink != Some(port) {
            change_mirrored_link(self, &old, Link { sink: Some(port), ..old.clone() });
        }
        Ok(())
    }

    /// Packets of a link come and go by this port from now on; `None`: by none.
    ///
    /// # Errors
    /// `ENODEV` if there is no such link.
    pub fn attach(&mut self, index: u32, port: Option<PortId>) -> Result<(), RequestError> {
        let old = self.links.get(index).cloned().ok_or(RequestError::errno(libc::ENODEV))?;
        if old.attached != port {
            change_mirrored_link(self, &old, Link { attached: port, ..old.clone() });
            self.engine.reclaim();
        }
        Ok(())
    }

    /// The places whose routes may have other shadows than when this was last asked: destination, table, and
    /// the shadows that they are to have now.
    pub fn changed_shadows(&mut self) -> Vec<(IpNet, u32, Vec<Shadow>)> {
        let changed = match &mut self.live {
            Some(live) => std::mem::take(&mut live.changed_places),
            None => return Vec::new(),
        };
        changed.into_iter().filter_map(|place| shadows_at(self, place)).collect()
    }

    /// The same for all places: links or addresses have changed, on which the sources and the MTUs depend.
    pub fn all_shadows(&mut self) -> Vec<(IpNet, u32, Vec<Shadow>)> {
        if let Some(live) = &mut self.live {
            live.changed_places.extend(live.own_places.iter().copied());
        }
        self.changed_shadows()
    }

    /// What the kernel is to have, and to have no more, of the router's own routes since this was last asked.
    pub fn vrf_changes(&mut self) -> Vec<VrfChange> {
        let mut changes = Vec::new();
        let Some(live) = &mut self.live else { return changes };
        for place in std::mem::take(&mut live.vrf_routes.dirty) {
            let wanted = vrf_routes_at(self, place);
            let Some(live) = &mut self.live else { return changes };
            let had = match wanted.is_empty() {
                true => live.vrf_routes.of.remove(&place),
                false => live.vrf_routes.of.insert(place, wanted.clone()),
            };
            compare(&had.unwrap_or_default(), &wanted, &mut changes);
        }
        let now = (self.links.generation, self.addresses.generation);
        if self.live.as_ref().is_some_and(|live| live.vrf_routes.seen != Some(now)) {
            let doors = doors(self);
            let Some(live) = &mut self.live else { return changes };
            live.vrf_routes.seen = Some(now);
            let had = std::mem::replace(&mut live.vrf_routes.doors, doors.clone());
            compare(&had, &doors, &mut changes);
        }
        changes
    }

    /// What of the host's own packets belongs into which VRF of the router's.
    ///
    /// An address that is there more than once says nothing about the VRF: nothing that the host sends from
    /// it unasked leaves, rather than leaving to the wrong neighbour.
    pub fn vrf_doors(&self) -> Vec<VrfDoor> {
        let mut doors = Vec::new();
        for (index, device) in self.devices() {
            let (Some(link), Device::Vrf { table }) = (self.links.get(index), device) else { continue };
            let door = |sender| VrfDoor { sender, table: door_table(index) };
            doors.push(door(Sender::Bound(link.name.clone())));
            let by = |slave: &Link| VrfDoor { sender: Sender::By(slave.name.clone()), table };
            doors.extend(self.links.slaves(index).map(by));
            let inside =
                |own: &&crate::Address| self.links.vrf_of(own.link).is_some_and(|vrf| vrf.index == index);
            for own in self.addresses.iter().filter(inside) {
                let unicast = !matches!(own.local, IpAddr::V6(address) if address.is_unicast_link_local());
                if unicast && is_only_one(self, own.local) {
                    doors.push(door(Sender::From(own.local)));
                }
            }
        }
        doors
    }

    /// Gives the kernel the connected routes of its main table that are missing there: those that a router
    /// which was killed had moved into VRFs, or, with `enslaved`, that this one has.
    pub fn restore_connected(&mut self, enslaved: bool) {
        let meant = |link: &&Link| link.up() && (enslaved || !in_own_vrf(self, link.index));
        let links: Vec<u32> = self.links.iter().filter(meant).map(|link| link.index).collect();
        for index in links {
            for (place, info) in connected_of(self, index) {
                let ids = ids_at(self, place);
                let there = |info: &Info| {
                    let same =
                        |id: &_| self.routes.infos.get(*id).is_some_and(|old| old.hops() == info.hops());
                    !in_own_vrf(self, index) && ids.iter().any(same)
                };
                if there(&info) {
                    continue;
                }
                let added = self.request_kernel(RTM_NEWROUTE, NLM_F_CREATE, |message| {
                    write_key(message, place, &info);
                    if let Some(source) = info.source {
                        message.address(RTA_PREFSRC, source);
                    }
                });
                if let Err(error) = added {
                    tracing::debug!("a connected route is not restored: {error}");
                }
            }
        }
    }

    /// The neighbours that routes name as their gateways and of which the kernel has heard nothing for a while.
    pub fn stale_gateways(&self) -> Vec<(u32, IpAddr)> {
        let hosts: BTreeSet<&NextHopKey> = self.routes.compiled.hosts.keys().map(|(key, _)| key).collect();
        let of_routes = |key: &&NextHopKey| !hosts.contains(key);
        let stale = |key: &&NextHopKey| {
            let neighbour = self.neighbours.get(key.0, key.1);
            neighbour.is_some_and(|neighbour| neighbour.state & libc::NUD_STALE != 0)
        };
        let next_hops = self.routes.compiled.next_hops.keys().filter(of_routes).filter(stale);
        next_hops.map(|&(link, address, _)| (link, address)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A link is asked for by this name: as in Linux, the name of a fallback device makes it, if the kind has not been
    /// used before. Returns whether anything may have been made.
    pub fn use_link(&mut self, name: &str) -> bool {
        let kind = named(name).filter(|_| self.links.named(name).is_none());
        kind.into_iter().for_each(|kind| use_kind(self, kind));
        kind.is_some()
    }

    /// Says whether routes of router advertisements on a link are not followed.
    pub fn ignore_advertised(&mut self, link: u32, ignore: bool) {
        let Some(live) = &mut self.live else { return };
        let changed = match ignore {
            true => live.advertised.links.insert(link),
            false => live.advertised.links.remove(&link),
        };
        if !changed {
            return;
        }
        if !ignore {
            let Some(live) = &mut self.live else { return };
            let by = |(_, info): &mut (Place, Info)| info.hops().iter().any(|hop| hop.oif == link);
            let back: Vec<_> = live.advertised.aside.extract_if(.., by).collect();
            back.into_iter().for_each(|(place, info)| append_mirrored6(self, place, info));
            return;
        }
        let by = |info: &Info| {
            !info.own() && info.protocol == RTPROT_RA && info.hops().iter().any(|hop| hop.oif == link)
        };
        for place in places_of(self, by) {
            for (position, id) in mirrored(self, place).into_iter().rev() {
                let info = self.routes.infos.get(id).filter(|info| by(info)).map(|info| Info::clone(info));
                if let Some(info) = info {
                    take_route(self, place, position);
                    set_aside(self, libc::RTM_NEWROUTE, place, &info);
                }
            }
        }
    }

    /// The neighbours that have become needed, on links that are ready, and of which nothing is known.
    pub fn take_wanted(&mut self) -> Vec<(u32, IpAddr)> {
        let generation = self.links.generation;
        let Some(live) = &mut self.live else { return Vec::new() };
        let mut all = std::mem::take(&mut live.wants.new);
        if live.wants.seen != generation {
            live.wants.seen = generation;
            all.append(&mut live.wants.asleep);
        }
        let ready = |link: &Link| link.up() && link.carrier && link.port().or(link.sink).is_some();
        let mut wanted = Vec::new();
        for (index, address) in all {
            let Some(link) = self.links.get(index).filter(|link| link.resolves()) else { continue };
            if self.tunnels.id(index).is_some() || self.neighbours.get(index, address).is_some() {
                continue;
            }
            if ready(link) {
                wanted.push((index, address));
            } else if let Some(live) = &mut self.live
                && live.wants.asleep.len() < LIMIT
            {
                live.wants.asleep.insert((index, address));
            }
        }
        wanted
    }

    /// What there is to warn of: policers whose burst is too small for a packet, and links where what the host itself
    /// sends goes past what looks at what leaves.
    pub fn warnings(&self) -> Vec<String> {
        let police = self.actions.of_kind("police");
        let small = police.filter_map(|(name, _)| Some((name, small_burst(self, name)?)));
        let small = small
            .map(|(name, small)| format!("the burst of police {} is {}", name.index, action::small(small)));
        let passed_by = self.passed_by().map(|link| {
            format!("{link}: what the host itself sends passes neither the filters nor the qdisc of what leaves there")
        });
        small.chain(passed_by).collect()
    }
}
