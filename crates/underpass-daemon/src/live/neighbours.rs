//! Neighbours that packets wait for: asked of the kernel, and reported to the workers when it knows.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

use underpass_control::{RequestError, Router};
use underpass_engine::{tables::LinkId, worker::Unresolved};

use super::worker::{Handle, Order};
use crate::kernel::{Kernel, solicit};

/// When a neighbour that the kernel does not speak of is forgotten; workers have given up by then.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often gateways are confirmed of which nothing was heard. Linux's `base_reachable_time`.
const CONFIRM: Duration = Duration::from_secs(30);
/// How long an answer to a solicitation is waited for. Linux's `retrans_time`.
const AGAIN: Duration = Duration::from_secs(1);
/// Neighbours asked for at a time.
const LIMIT: usize = 4096;

/// The neighbours that were asked for.
#[derive(Debug, Default)]
pub struct Pending(HashMap<(u32, IpAddr), Asked>);

#[derive(Debug, Clone, Copy)]
struct Asked {
    link: LinkId,
    since: Instant,
    /// When the router last asked for it itself.
    solicited: Option<Instant>,
    /// When the kernel had last reported it: that it failed before is no answer.
    told: Option<u32>,
}

impl Asked {
    /// Asks for an IPv6 neighbour itself where the kernel cannot yet, once a second at most.
    fn solicit(&mut self, (index, address): (u32, IpAddr), router: &Router) {
        let IpAddr::V6(target) = address else { return };
        if self.solicited.is_some_and(|last| last.elapsed() < AGAIN) {
            return;
        }
        let (Some(link), Some(source)) = (router.link(index), source(router, index, target)) else { return };
        self.solicited = Some(Instant::now());
        if let Err(errno) = solicit(index, link.mac, source, target) {
            tracing::debug!("{}: no solicitation of {target} from {source}: {errno}", link.name);
        }
    }
}

/// From where a neighbour can be asked for on a link without a link-local address that may be used; `None` with one, as
/// the kernel then asks by itself.
fn source(router: &Router, link: u32, target: Ipv6Addr) -> Option<Ipv6Addr> {
    const UNUSABLE: u32 = libc::IFA_F_TENTATIVE | libc::IFA_F_OPTIMISTIC | libc::IFA_F_DADFAILED;
    let usable = router.addresses().filter(|own| own.link == link && own.flags & UNUSABLE == 0);
    let mut best = None;
    for own in usable {
        let IpAddr::V6(address) = own.local else { continue };
        if address.is_unicast_link_local() {
            return None;
        }
        let near = own.prefix().is_some_and(|prefix| prefix.contains(&IpAddr::V6(target)));
        best = best.max(Some((near, address)));
    }
    best.map(|(_, address)| address)
}

impl Pending {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A worker wants this one.
    pub fn want(&mut self, wanted: Unresolved, router: &Router, kernel: &mut Kernel, workers: &[Handle]) {
        let key = (wanted.ifindex, wanted.address);
        if let Some((_, rewrite)) = router.link_layer(wanted.ifindex, wanted.address) {
            // Learnt while the worker asked.
            return report(workers, wanted.link, wanted.address, Some(rewrite));
        }
        if let Err(error) = self.resolve(key, wanted.link, router, kernel) {
            tracing::debug!("the kernel does not resolve {}: {error}", wanted.address);
            report(workers, wanted.link, wanted.address, None);
        }
    }

    /// Packets may be for these neighbours soon.
    pub fn prepare(&mut self, neighbours: Vec<(u32, IpAddr)>, router: &Router, kernel: &mut Kernel) {
        for key in neighbours {
            let Some(link) = router.link(key.0).map(|link| link.id) else { continue };
            if !self.0.contains_key(&key)
                && let Err(error) = self.resolve(key, link, router, kernel)
            {
                tracing::debug!("the kernel does not resolve {}: {error}", key.1);
            }
        }
    }

    fn resolve(
        &mut self,
        key: (u32, IpAddr),
        link: LinkId,
        router: &Router,
        kernel: &mut Kernel,
    ) -> Result<(), RequestError> {
        if self.0.len() >= LIMIT && !self.0.contains_key(&key) {
            return Ok(());
        }
        kernel.requester().resolve(key.0, key.1)?;
        let told = router.neighbour(key.0, key.1).map(|neighbour| neighbour.updated);
        let solicited = self.0.get(&key).and_then(|asked| asked.solicited);
        let mut asked = Asked { link, since: Instant::now(), solicited, told };
        asked.solicit(key, router);
        self.0.insert(key, asked);
        Ok(())
    }

    /// Reports to the workers what the kernel has found out meanwhile.
    pub fn settle(&mut self, router: &Router, workers: &[Handle]) {
        let now = Instant::now();
        self.0.retain(|&(link, address), asked| {
            if let Some((_, rewrite)) = router.link_layer(link, address) {
                report(workers, asked.link, address, Some(rewrite));
                return false;
            }
            asked.solicit((link, address), router);
            let failed = router.neighbour(link, address).is_some_and(|neighbour| {
                neighbour.state & libc::NUD_FAILED != 0 && Some(neighbour.updated) != asked.told
            });
            if failed {
                report(workers, asked.link, address, None);
            }
            !failed && now.duration_since(asked.since) < PATIENCE
        });
    }
}

/// Has the kernel look whether gateways are still where they were. It does not see the packets that the router
/// sends to them, for which it would do that itself.
#[derive(Debug)]
pub struct Confirming(Instant);

impl Default for Confirming {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Confirming {
    /// How long it is until the next time.
    pub fn due(&self) -> Duration {
        CONFIRM.saturating_sub(self.0.elapsed())
    }

    /// Does it, if it is time.
    pub fn follow(&mut self, router: &Router, kernel: &mut Kernel) {
        if !self.due().is_zero() {
            return;
        }
        self.0 = Instant::now();
        for (link, address) in router.stale_gateways() {
            if let Err(error) = kernel.requester().resolve(link, address) {
                tracing::debug!("the kernel does not confirm {address}: {error}");
            }
        }
    }
}

/// All workers may hold packets for it.
fn report(
    workers: &[Handle],
    link: LinkId,
    address: IpAddr,
    rewrite: Option<underpass_engine::tables::Rewrite>,
) {
    workers.iter().for_each(|worker| worker.order(Order::Resolved(link, address, rewrite)));
}
