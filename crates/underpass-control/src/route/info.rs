//! What routes have in common: everything but their prefix. Linux: `struct fib_info`, `fib6_info`.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashTable;
use underpass_engine::counters::CounterId;
use underpass_netlink::Encap;

use super::compiled::RouteLimits;
use crate::Program;

/// Names an [`Info`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct InfoId(pub u32);

/// Number of route metrics, `RTAX_MAX`.
pub(crate) const METRICS: usize = 17;

/// An encapsulation, with the counter of a SID that counts: two such SIDs are never the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Tunnel {
    /// One for all SIDs that differ in their counters alone.
    pub encap: Arc<Encap>,
    pub counter: Option<CounterId>,
    /// The program of End.BPF.
    pub program: Option<Box<Program>>,
}

/// One way of a route.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Hop {
    /// Index of the link; 0 for none.
    pub oif: u32,
    pub gateway: Option<IpAddr>,
    pub onlink: bool,
    /// The link is down, and other ways of the route are left.
    pub dead: bool,
    /// `rtnh_hops` + 1.
    pub weight: u16,
    pub tunnel: Option<Tunnel>,
}

impl Hop {
    /// What it does to its packets besides forwarding them.
    pub fn encap(&self) -> Option<&Encap> {
        self.tunnel.as_ref().map(|tunnel| &*tunnel.encap)
    }
}

/// Where a route leads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum NextHops {
    /// Its own ways; none for a route that discards. An IPv6 route has one: those of a multipath route
    /// are routes of their own.
    Hops(Box<[Hop]>),
    /// A next-hop object.
    Object(u32),
}

/// Who a route, a next-hop object or a rule belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Origin {
    /// This router.
    #[default]
    Own,
    /// The kernel beside the router: the mirror of what is there.
    Kernel,
    /// The same, and the kernel alone can forward by it.
    KernelAlone,
}

/// A route without its prefix.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Info {
    /// `RTN_*`.
    pub kind: u8,
    /// `RTPROT_*`.
    pub protocol: u8,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `RTA_PRIORITY`.
    pub metric: u32,
    /// IPv6: router preference, `ICMPV6_ROUTER_PREF_*`.
    pub preference: u8,
    /// IPv6: an ordinary route to the loopback link, which discards.
    pub reject: bool,
    /// `src`.
    pub source: Option<IpAddr>,
    /// `RTAX_*` values, that of number n at n − 1; 0 for none.
    pub metrics: Option<Box<[u32; METRICS]>>,
    pub ways: NextHops,
    pub origin: Origin,
    /// IPv4: the type of service that its packets have; 0 for any. The kernel's alone.
    pub tos: u8,
    /// Of a route of the kernel's: a hash of what this router does not understand of it; 0 for nothing.
    pub unknown: u64,
}

const RTAX_LOCK: usize = 1;
const RTAX_MTU: usize = 2;
const RTAX_HOPLIMIT: usize = 10;

impl Info {
    /// One of the router's own that leads one way, by a link, and says nothing else.
    pub fn plain(kind: u8, scope: u8, link: u32, gateway: Option<IpAddr>, tunnel: Option<Tunnel>) -> Self {
        let hop = Hop { oif: link, gateway, onlink: false, dead: false, weight: 1, tunnel };
        Self {
            kind,
            protocol: 0,
            scope,
            metric: 0,
            preference: 0,
            reject: false,
            source: None,
            metrics: None,
            ways: NextHops::Hops([hop].into()),
            origin: Origin::Own,
            tos: 0,
            unknown: 0,
        }
    }

    /// Whether it is this router's own.
    pub fn own(&self) -> bool {
        self.origin == Origin::Own
    }

    /// The MTU of its packets; 0: that of the link.
    pub fn mtu(&self) -> u32 {
        self.metrics.as_ref().and_then(|metrics| metrics.get(RTAX_MTU - 1).copied()).unwrap_or_default()
    }

    /// What next hops are told apart by.
    pub fn limits(&self) -> RouteLimits {
        RouteLimits {
            bytes: self.mtu().min(u16::MAX.into()) as u16,
            locked: self.locks_mtu(),
            hop_limit: self.hop_limit(),
        }
    }

    /// The hop limit of what the router itself sends; 0: as always.
    fn hop_limit(&self) -> u8 {
        let limit = self.metrics.as_ref().and_then(|metrics| metrics.get(RTAX_HOPLIMIT - 1).copied());
        limit.map_or(0, |limit| limit.min(255) as u8)
    }

    /// Whether its MTU is not to follow that of the link: `mtu lock`.
    pub fn locks_mtu(&self) -> bool {
        let locks = self.metrics.as_ref().and_then(|metrics| metrics.get(RTAX_LOCK - 1).copied());
        locks.unwrap_or_default() & 1 << RTAX_MTU != 0
    }

    /// The same with another MTU.
    pub fn with_mtu(&self, mtu: u32) -> Self {
        let mut info = self.clone();
        let metrics = info.metrics.get_or_insert_with(|| Box::new([0; METRICS]));
        if let Some(place) = metrics.get_mut(RTAX_MTU - 1) {
            *place = mtu;
        }
        info
    }

    /// Its own ways.
    pub fn hops(&self) -> &[Hop] {
        match &self.ways {
            NextHops::Hops(hops) => hops,
            NextHops::Object(_) => &[],
        }
    }

    /// IPv6: whether routes like it to the same prefix are used together. Linux: `rt6_qualify_for_ecmp`.
    pub fn spreads(&self) -> bool {
        matches!(self.hops(), [Hop { gateway: Some(_), .. }])
    }
}

/// All infos, each once, counted.
#[derive(Debug, Default)]
pub(crate) struct Infos {
    /// By what they are: the infos themselves are in `entries`.
    ids: HashTable<InfoId>,
    hasher: RandomState,
    entries: Vec<Option<(Arc<Info>, u32)>>,
    free: Vec<u32>,
    /// How many have a dead way.
    dead: usize,
    encaps: HashSet<Arc<Encap>>,
    /// So many encapsulations are looked through for those that nobody has any more.
    sweep_at: usize,
}

/// The info of an id that is in use, in any case in which there is one.
fn at(entries: &[Option<(Arc<Info>, u32)>], id: InfoId) -> Option<&Info> {
    entries.get(id.0 as usize)?.as_ref().map(|(info, _)| &**info)
}

fn has_dead(info: &Info) -> bool {
    info.hops().iter().any(|hop| hop.dead)
}

impl Infos {
    pub fn get(&self, id: InfoId) -> Option<&Arc<Info>> {
        Some(&self.entries.get(id.0 as usize)?.as_ref()?.0)
    }

    /// The id of an info that is there.
    pub fn find(&self, info: &Info) -> Option<InfoId> {
        let Self { ids, hasher, entries, .. } = self;
        ids.find(hasher.hash_one(info), |&id| at(entries, id) == Some(info)).copied()
    }

    /// An encapsulation that is kept once.
    pub fn share(&mut self, encap: Arc<Encap>) -> Arc<Encap> {
        if let Some(there) = self.encaps.get(&*encap) {
            return Arc::clone(there);
        }
        if self.encaps.len() >= self.sweep_at {
            self.encaps.retain(|encap| Arc::strong_count(encap) > 1);
            self.sweep_at = (2 * self.encaps.len()).max(64);
        }
        self.encaps.insert(Arc::clone(&encap));
        encap
    }

    /// Counts one more user of an info, which is kept if it is new.
    pub fn acquire(&mut self, info: Info) -> InfoId {
        if let Some(id) = self.find(&info) {
            self.hold(id);
            return id;
        }
        self.dead += usize::from(has_dead(&info));
        let info = Arc::new(info);
        let slot = self.free.pop().unwrap_or(self.entries.len() as u32);
        let entry = Some((info.clone(), 1));
        match self.entries.get_mut(slot as usize) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
        let Self { ids, hasher, entries, .. } = self;
        let hash = |id: &InfoId| at(entries, *id).map_or(0, |info| hasher.hash_one(info));
        ids.insert_unique(hasher.hash_one(&*info), InfoId(slot), hash);
        InfoId(slot)
    }

    /// Counts one more user.
    pub fn hold(&mut self, id: InfoId) {
        if let Some(Some((_, users))) = self.entries.get_mut(id.0 as usize) {
            *users += 1;
        }
    }

    /// Counts one user less; returns the info if that was the last.
    pub fn release(&mut self, id: InfoId) -> Option<Arc<Info>> {
        let slot = self.entries.get_mut(id.0 as usize)?;
        let (_, users) = slot.as_mut()?;
        *users -= 1;
        if *users > 0 {
            return None;
        }
        let (info, _) = slot.take()?;
        self.dead -= usize::from(has_dead(&info));
        if let Ok(entry) = self.ids.find_entry(self.hasher.hash_one(&*info), |&other| other == id) {
            entry.remove();
        }
        self.free.push(id.0);
        Some(info)
    }

    /// Whether any info has a way of its own that is dead.
    pub const fn any_dead(&self) -> bool {
        self.dead > 0
    }

    /// All infos.
    pub fn iter(&self) -> impl Iterator<Item = (InfoId, &Arc<Info>)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(i, entry)| Some((InfoId(i as u32), &entry.as_ref()?.0)))
    }
}
