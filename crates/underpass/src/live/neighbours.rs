//! Neighbours that packets wait for: asked of the kernel, and told to the workers when it knows.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use underpass_control::Router;
use underpass_engine::{tables::LinkId, worker::Unresolved};

use super::worker::{Handle, Order};
use crate::kernel::Kernel;

/// When a neighbour that the kernel does not speak of is forgotten; workers have given up by then.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often gateways are confirmed of which nothing was heard. Linux's `base_reachable_time`.
const CONFIRM: Duration = Duration::from_secs(30);
/// Neighbours asked for at a time.
const LIMIT: usize = 4096;

/// The neighbours that were asked for.
#[derive(Debug, Default)]
pub struct Pending(HashMap<(u32, IpAddr), Asked>);

#[derive(Debug, Clone, Copy)]
struct Asked {
    link: LinkId,
    since: Instant,
    /// When the kernel had last told of it: that it failed before is no answer.
    told: Option<u32>,
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
            return tell(workers, wanted.link, wanted.address, Some(rewrite));
        }
        if self.0.len() >= LIMIT && !self.0.contains_key(&key) {
            return;
        }
        match kernel.asker().resolve(wanted.ifindex, wanted.address) {
            Ok(()) => {
                let told =
                    router.neighbour(wanted.ifindex, wanted.address).map(|neighbour| neighbour.updated);
                self.0.insert(key, Asked { link: wanted.link, since: Instant::now(), told });
            }
            Err(refusal) => {
                tracing::debug!("the kernel does not resolve {}: {refusal}", wanted.address);
                tell(workers, wanted.link, wanted.address, None);
            }
        }
    }

    /// Tells the workers what the kernel has found out meanwhile.
    pub fn settle(&mut self, router: &Router, workers: &[Handle]) {
        let now = Instant::now();
        self.0.retain(|&(link, address), asked| {
            if let Some((_, rewrite)) = router.link_layer(link, address) {
                tell(workers, asked.link, address, Some(rewrite));
                return false;
            }
            let failed = router.neighbour(link, address).is_some_and(|neighbour| {
                neighbour.state & libc::NUD_FAILED != 0 && Some(neighbour.updated) != asked.told
            });
            if failed {
                tell(workers, asked.link, address, None);
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
            if let Err(refusal) = kernel.asker().resolve(link, address) {
                tracing::debug!("the kernel does not confirm {address}: {refusal}");
            }
        }
    }
}

/// All workers may hold packets for it.
fn tell(
    workers: &[Handle],
    link: LinkId,
    address: IpAddr,
    rewrite: Option<underpass_engine::tables::Rewrite>,
) {
    workers.iter().for_each(|worker| worker.order(Order::Resolved(link, address, rewrite)));
}
