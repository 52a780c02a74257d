//! What of the kernel's the router takes packets past: it is said when it is there or appears, and the devices are left
//! to the kernel if that was asked for.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use underpass_control::{Link, Router};

use crate::kernel::{Bypassed, Filters};

/// How long what appears may be unknown: programs and chains come without a word.
const AGE: Duration = Duration::from_secs(2);

/// What is done with a device at which the kernel has filters of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KernelFilters {
    /// It is attached, and what is passed by is logged.
    #[default]
    Warn,
    /// It is left to the kernel.
    Leave,
}

/// What was found.
pub struct Watch {
    policy: KernelFilters,
    filters: Option<Filters>,
    found: BTreeSet<Bypassed>,
    looked: Option<Instant>,
    /// The generation of the links when it was looked.
    links: u64,
}

impl Watch {
    /// Nothing was looked at yet.
    pub fn new(policy: KernelFilters) -> Self {
        let filters = Filters::open();
        if let Err(error) = &filters {
            tracing::warn!("what the kernel filters cannot be told: {error}");
        }
        Self { policy, filters: filters.ok(), found: BTreeSet::new(), looked: None, links: 0 }
    }

    /// How long it is until the next look.
    pub fn due(&self) -> Duration {
        if self.filters.is_none() {
            return AGE;
        }
        self.looked.map_or(Duration::ZERO, |looked| AGE.saturating_sub(looked.elapsed()))
    }

    /// Looks at the devices that are attached or may be, if it is time, links have changed, or the kernel has reported a
    /// change (`told`). Says whether other devices than before are to be left to the kernel.
    pub fn follow(&mut self, router: &Router, told: bool, attached: impl Fn(&Link) -> bool) -> bool {
        let links = router.link_generation();
        if !told && links == self.links && !self.due().is_zero() {
            return false;
        }
        let Some(filters) = &mut self.filters else { return false };
        (self.looked, self.links) = (Some(Instant::now()), links);
        let links = router.links().filter(|link| attached(link));
        let devices: BTreeMap<u32, String> = links.map(|link| (link.index, link.name.clone())).collect();
        let bridges = router.links().any(|link| link.bridge.is_some());
        let found = match filters.look(&devices, bridges) {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!("what the kernel filters: {error}");
                return false;
            }
        };
        for Bypassed { device, what } in found.difference(&self.found) {
            let place = device.and_then(|index| devices.get(&index)).map_or("all devices", |name| name);
            match self.policy {
                KernelFilters::Warn => tracing::warn!(
                    "{place}: the kernel has {what}, and packets that the router forwards do not pass it: give it to the \
                     router, or run with --kernel-filters leave"
                ),
                KernelFilters::Leave => {
                    tracing::warn!(
                        "{place}: the kernel has {what}: left to the kernel, which forwards there"
                    );
                }
            }
        }
        for Bypassed { device, what } in self.found.difference(&found) {
            let place = device.and_then(|index| devices.get(&index)).map_or("all devices", |name| name);
            tracing::info!("{place}: the kernel has no {what} any more");
        }
        let changed = found != self.found;
        self.found = found;
        changed && self.policy == KernelFilters::Leave
    }

    /// Whether a device is left to the kernel.
    pub fn leaves(&self, index: u32) -> bool {
        self.policy == KernelFilters::Leave
            && self.found.iter().any(|found| found.device.is_none_or(|device| device == index))
    }
}
