//! Devices that the router has made: those that stand for the host, those of tunnels, VLANs, bridges and VRFs, and dummies.

use std::{collections::BTreeSet, io};

use underpass_control::{Link, LinkKind, Router};
use underpass_engine::buffer::PortId;
use underpass_netlink::tunnel;
use underpass_port::{
    live::LivePort,
    tun::{ROUTER_MAC, TunKind, TunPort},
};

use super::super::{
    device,
    worker::{Handle, Order, Sent},
};
use super::{Attachments, HOST, HOST_MTU};
use crate::kernel::Made;

impl Attachments {
    /// Makes the device that stands for the host.
    ///
    /// # Errors
    /// There is one of that name already, or the right to make it is missing.
    pub fn make_host(&mut self, workers: &[Handle]) -> io::Result<()> {
        let port = self.free_port();
        let several = workers.len() > 1;
        let mut index = 0;
        for worker in workers {
            let queue = TunPort::open(HOST, TunKind::Tun, several)?;
            if index == 0 {
                index = underpass_port::index_of(HOST)?;
                self.sysctls.host_device(HOST, false);
                device::set_mtu(HOST, HOST_MTU)?;
                device::set_up(HOST)?;
            }
            worker.order(Order::Serve(port, Box::new(LivePort::Tun(queue)), Sent::Forwarded));
        }
        self.hosts.insert(0, (index, port));
        Ok(())
    }

    /// Serves the devices of VRFs that the router has made, and no longer those that are gone.
    pub(super) fn update_hosts(&mut self, router: &mut Router, workers: &[Handle], made: &Made) {
        let vrfs: Vec<(u32, String)> = router
            .links()
            .filter(|link| link.vrf_table().is_some() && !self.hosts.contains_key(&link.index))
            .map(|link| (link.index, link.name.clone()))
            .collect();
        for (index, name) in vrfs {
            // Of the kernel's own there is none.
            let Some(first) = made.take(index) else { continue };
            self.sysctls.host_device(&name, true);
            let port = self.serve(first, (TunKind::Tap, Sent::Forwarded), workers);
            self.hosts.insert(index, (index, port));
        }
        for (vrf, (index, port)) in &self.hosts {
            if router.link(*index).is_some_and(|link| link.attached != Some(*port)) {
                router.set_host_port(*vrf, *index, Some((*port, ROUTER_MAC)));
                let _ = router.attach(*index, Some(*port));
            }
        }
        self.update_host(router, workers);
        let gone: Vec<u32> =
            self.hosts.keys().copied().filter(|vrf| *vrf != 0 && router.link(*vrf).is_none()).collect();
        for vrf in gone {
            let Some((index, port)) = self.hosts.remove(&vrf) else { continue };
            router.set_host_port(vrf, index, None);
            self.close(port, workers);
        }
    }

    /// Makes the device that stands for the host anew if somebody has deleted it.
    fn update_host(&mut self, router: &mut Router, workers: &[Handle]) {
        if let Some(&(index, port)) = self.hosts.get(&0) {
            // Before the kernel has reported it it is no link either.
            if router.link(index).is_some() || !device::is_gone(index, HOST) {
                return;
            }
            tracing::warn!(
                "{HOST} was deleted: it is made anew, as this host's packets into encapsulations need it"
            );
            self.hosts.remove(&0);
            router.set_host_port(0, index, None);
            self.close(port, workers);
        }
        if let Err(error) = self.make_host(workers) {
            tracing::error!("{HOST}: {error}: it is tried again when a link changes");
        }
    }

    /// Gives each worker a queue of a device that the router has made, the first of which is there.
    fn serve(&mut self, first: TunPort, (kind, sent): (TunKind, Sent), workers: &[Handle]) -> PortId {
        let (port, name) = (self.free_port(), first.name().to_owned());
        let mut queues = vec![first];
        while queues.len() < workers.len() {
            match TunPort::open(&name, kind, true) {
                Ok(queue) => queues.push(queue),
                Err(error) => {
                    tracing::error!("{name}: {error}");
                    break;
                }
            }
        }
        for (worker, queue) in workers.iter().zip(queues) {
            worker.order(Order::Serve(port, Box::new(LivePort::Tun(queue)), sent));
        }
        port
    }

    /// Serves the devices of tunnels, and no longer those that are gone.
    pub(super) fn update_tunnels(&mut self, router: &mut Router, workers: &[Handle], made: &Made) {
        let tunnels: Vec<(u32, tunnel::Kind)> = router
            .links()
            .filter_map(|link| match link.kind {
                LinkKind::Tunnel(kind) => Some((link.index, kind)),
                _ => None,
            })
            .collect();
        for (index, kind) in tunnels {
            if let Some(first) = made.take(index) {
                let kind = if kind.ethernet() { TunKind::Tap } else { TunKind::Tun };
                self.sysctls.forwards(first.name());
                let port = self.serve(first, (kind, Sent::Wrapped), workers);
                self.tunnels.insert(index, port);
            }
            if let Some(port) = self.tunnels.get(&index) {
                let _ = router.attach(index, Some(*port));
            }
        }
        let gone: Vec<u32> =
            self.tunnels.keys().copied().filter(|index| router.link(*index).is_none()).collect();
        for index in gone {
            let Some(port) = self.tunnels.remove(&index) else { continue };
            self.close(port, workers);
        }
    }

    /// Serves the devices of VLANs and bridges that the router has made, and no longer those that are gone.
    pub(super) fn update_above(&mut self, router: &mut Router, workers: &[Handle], made: &Made) {
        let above = |link: &&Link| matches!(link.kind, LinkKind::Vlan | LinkKind::Bridge);
        let above = router.links().filter(above).map(|link| link.index);
        for index in above.collect::<Vec<_>>() {
            if let Some(first) = made.take(index) {
                let inside = self.free_port();
                self.kernel_frames.follow_inside(router, index);
                let host = self.serve(first, (TunKind::Tap, Sent::Wrapped), workers);
                self.above.insert(index, [host, inside]);
            }
            if let Some(&[host, inside]) = self.above.get(&index) {
                let _ = router.go_inside(index, inside);
                router.set_kernel_port(index, Some(host));
            }
        }
        let gone: Vec<u32> =
            self.above.keys().copied().filter(|index| router.link(*index).is_none()).collect();
        for index in gone {
            let Some(ports) = self.above.remove(&index) else { continue };
            self.kernel_frames.forget_inside(index);
            router.set_kernel_port(index, None);
            for port in ports {
                self.close(port, workers);
            }
        }
    }

    /// Gives dummies ports, and takes back those of dummies that are gone.
    pub(super) fn follow_dummies(&mut self, router: &mut Router, workers: &[Handle]) {
        let dummies = router.links().filter(|link| link.kind == LinkKind::Dummy).map(|link| link.index);
        for index in dummies.collect::<Vec<_>>() {
            let port = self.dummies.get(&index).copied().unwrap_or_else(|| self.free_port());
            self.dummies.insert(index, port);
            let _ = router.go_inside(index, port);
        }
        let gone = self.dummies.extract_if(.., |index, _| router.link(*index).is_none());
        for (_, port) in gone.collect::<Vec<_>>() {
            self.close(port, workers);
        }
    }

    /// The device by which the host sends what is looked up in a table: that of the table's VRF.
    pub fn host_device(&self, router: &Router, table: u32) -> Option<u32> {
        let vrf = router.links().find(|link| link.vrf_table() == Some(table)).map_or(0, |link| link.index);
        self.hosts.get(&vrf).map(|(index, _)| *index)
    }

    /// Follows which devices are in VRFs of the router's.
    pub(super) fn update_slaves(&mut self, router: &Router) {
        let slaves: BTreeSet<u32> = router
            .links()
            .filter(|link| link.master.is_some_and(|master| self.hosts.contains_key(&master)))
            .map(|link| link.index)
            .collect();
        self.slaves.difference(&slaves).for_each(|index| self.sysctls.set_free(*index));
        slaves.difference(&self.slaves).for_each(|index| self.sysctls.enslaved(*index));
        self.slaves = slaves;
    }
}
