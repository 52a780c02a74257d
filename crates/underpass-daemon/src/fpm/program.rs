//! What zebra has programmed: its messages become requests to the router, and what it does not send again after it has
//! reconnected is removed.
//!
//! The key of a route is family, table, prefix and metric, as in the kernel. A next-hop object has the id that zebra gives it,
//! unless that is taken: a restarted zebra counts its ids anew, while routes from before still use the old ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use libc::{EEXIST, EINVAL, ENETDOWN, ENODEV, ENOENT, EOPNOTSUPP, ESRCH, RTM_DELROUTE, RTM_NEWROUTE};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use underpass_control::{Client, Protocol, Replies, Router};
use underpass_netlink::{Message, message, messages};

use super::wire::{
    self, Object, RTM_DELNEXTHOP, RTM_GETNEXTHOP, RTM_NEWNEXTHOP, Route, RouteKey, as_request,
};

/// `RTPROT_ZEBRA`, the protocol of zebra's next-hop objects.
const RTPROT_ZEBRA: u8 = 11;
/// The first id for objects whose own id is taken. zebra counts from 1.
const ALIASES: u32 = 1 << 31;
/// Most different refusals that are logged, so that a full table of refused routes does not fill the log.
const LOGGED: usize = 64;
/// Most routes that wait for a device that is not there yet.
const LACKING: usize = 65_536;
/// How often the programmer looks whether such a device has come.
const RETRY: Duration = Duration::from_secs(1);
/// Most routes that are removed in one go; the control thread serves others in between.
const SWEEP: usize = 4096;

/// What FRR has sent and what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Netlink messages.
    pub messages: u64,
    /// Of them, those refused by the router, or of a type that is not for it.
    pub refused: u64,
    /// Routes that stand.
    pub routes: usize,
    /// Next-hop objects that stand.
    pub objects: usize,
    /// Routes that the present connection has not confirmed yet.
    pub stale: usize,
}

/// What became of a request for a route or an object.
enum Done {
    /// The router has taken it.
    Taken,
    /// The kernel has it, and so has the router by its mirror.
    Left,
    /// It is a group whose members have not all come.
    Waiting,
    /// The router has refused it: errno and text.
    Refused(i32, String),
}

struct HeldRoute {
    header: [u8; 12],
    generation: u64,
}

struct HeldObject {
    /// Its id in the router.
    id: u32,
    /// Its message, with the ids of the router.
    bytes: Box<[u8]>,
    group: bool,
}

pub(super) struct Programmer {
    client: Client,
    replies: Replies,
    /// Whether the router is beside a kernel, to which zebra may write too.
    beside_kernel: bool,
    /// Whether zebra is in the router's network namespace, so that it writes to that kernel.
    local: bool,
    /// The number of the present connection.
    generation: u64,
    routes: BTreeMap<RouteKey, HeldRoute>,
    /// How many of them are of earlier connections.
    stale: usize,
    /// By zebra's id.
    objects: BTreeMap<u32, HeldObject>,
    /// Ids of zebra's that are left to the kernel, or that zebra has made by netlink itself.
    left: BTreeSet<u32>,
    /// Groups that came before their members.
    waiting: BTreeMap<u32, Box<[u8]>>,
    /// Objects of connections before this one, by the router's id.
    retired: BTreeMap<u32, HeldObject>,
    /// The next id for an object whose own is taken.
    alias: u32,
    /// Messages of routes that were refused because a device is not there (ENODEV): a VRF that SIDs name is made after
    /// zebra has sent them, or anew after the router.
    lacking: BTreeMap<RouteKey, Box<[u8]>>,
    /// The same of next-hop objects, by zebra's id.
    lacking_objects: BTreeMap<u32, Box<[u8]>>,
    /// When to look for those devices.
    retry_at: Option<Instant>,
    /// The generation of the router's links that was seen last.
    seen: u64,
    /// When the present connection last confirmed something; `None` if nothing is to be swept.
    progress: Option<Instant>,
    grace: Duration,
    /// Routes of the sweep that is under way.
    swept: usize,
    counts: Counts,
    logged: BTreeSet<String>,
}

impl Programmer {
    pub fn new(beside_kernel: bool, grace: Duration) -> Self {
        let mut client = Client::new(Protocol::Route, 0);
        (client.extended_ack, client.cap_ack) = (true, true);
        Self {
            client,
            replies: Replies::default(),
            beside_kernel,
            local: true,
            generation: 0,
            routes: BTreeMap::new(),
            stale: 0,
            objects: BTreeMap::new(),
            left: BTreeSet::new(),
            waiting: BTreeMap::new(),
            retired: BTreeMap::new(),
            alias: ALIASES,
            lacking: BTreeMap::new(),
            lacking_objects: BTreeMap::new(),
            retry_at: None,
            seen: 0,
            progress: None,
            grace,
            swept: 0,
            counts: Counts::default(),
            logged: BTreeSet::new(),
        }
    }

    /// Whether zebra has a route to this destination.
    pub fn has_route(&self, destination: IpAddr, length: u8, table: u32, metric: u32) -> bool {
        let has = |metric| self.routes.contains_key(&RouteKey::of(destination, length, table, metric));
        // What an IPv6 route without a metric has.
        has(metric) || metric == 1024 && destination.is_ipv6() && has(0)
    }

    /// Whether zebra has a route of this label.
    pub fn has_label(&self, label: u32) -> bool {
        // Those of labels stand last, all in one table.
        let key = self.routes.last_key_value().and_then(|(last, _)| last.with_label(label));
        key.is_some_and(|key| self.routes.contains_key(&key))
    }

    /// Whether an object of the router's is zebra's.
    pub fn has_object(&self, id: u32) -> bool {
        // Most have the id that zebra gave them.
        self.objects.get(&id).is_some_and(|object| object.id == id)
            || self.retired.contains_key(&id)
            || id >= ALIASES && self.objects.values().any(|object| object.id == id)
    }

    pub fn counts(&self) -> Counts {
        let objects = self.objects.len() + self.retired.len();
        Counts { routes: self.routes.len(), objects, stale: self.stale, ..self.counts }
    }

    /// A new connection: what came over those before is to be confirmed by it.
    pub fn connected(&mut self, local: bool, now: Instant) {
        self.local = local;
        self.generation += 1;
        self.stale = self.routes.len();
        let retired = std::mem::take(&mut self.objects).into_values().map(|object| (object.id, object));
        self.retired.extend(retired);
        self.left.clear();
        self.waiting.clear();
        // It sends all that it has.
        self.lacking.clear();
        self.lacking_objects.clear();
        self.retry_at = None;
        self.progress = (self.stale > 0 || !self.retired.is_empty()).then_some(now);
    }

    /// The connection is over: what came over it stays until another one says otherwise.
    pub fn disconnected(&mut self) {
        self.progress = None;
    }

    /// When [`Programmer::sweep`] or [`Programmer::retry`] has something to do.
    pub fn due_at(&self) -> Option<Instant> {
        [self.sweep_at(), self.retry_at].into_iter().flatten().min()
    }

    fn sweep_at(&self) -> Option<Instant> {
        Some(self.progress? + self.grace)
    }

    /// Tries routes again that lacked a device, if devices have come or gone since. The result is the answer to zebra
    /// of those that the router has taken.
    pub fn retry(&mut self, router: &mut Router, now: Instant) -> Vec<Vec<u8>> {
        if self.retry_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let mut answers = Vec::new();
        let links = router.link_generation();
        if links != self.seen {
            self.seen = links;
            for (id, bytes) in std::mem::take(&mut self.lacking_objects) {
                let Some(message) = messages(&bytes).next() else { continue };
                let done = self.new_object(router, &message, now);
                if lacks_device(&done) {
                    self.lacking_objects.insert(id, bytes);
                }
            }
            for (key, bytes) in std::mem::take(&mut self.lacking) {
                let Some(message) = messages(&bytes).next() else { continue };
                let Some(route) = Route::read(&message) else { continue };
                match self.new_route(router, &message, &route, now) {
                    Done::Taken | Done::Left => answers.push(wire::answer(&message, true)),
                    done if lacks_device(&done) => drop(self.lacking.insert(key, bytes)),
                    Done::Refused(..) | Done::Waiting => {}
                }
            }
            if !answers.is_empty() {
                tracing::info!("FPM: {} routes have the device now that they lacked", answers.len());
            }
        }
        let lacks = !self.lacking.is_empty() || !self.lacking_objects.is_empty();
        self.retry_at = lacks.then(|| now + RETRY);
        answers
    }

    /// Removes some of what the present connection has not confirmed, once nothing more of it was for the
    /// time of grace.
    pub fn sweep(&mut self, router: &mut Router, now: Instant) {
        if self.sweep_at().is_none_or(|at| at > now) {
            return;
        }
        let generation = self.generation;
        let stale = self.routes.iter().filter(|(_, held)| held.generation != generation);
        let stale: Vec<_> = stale.take(SWEEP).map(|(key, held)| (*key, held.header)).collect();
        for (key, header) in &stale {
            self.routes.remove(key);
            self.forget_route(router, key, header);
        }
        self.stale -= stale.len();
        self.swept += stale.len();
        if self.stale > 0 {
            return;
        }
        // Groups first: without a member they would be other groups for a moment.
        let retired = std::mem::take(&mut self.retired);
        for groups in [true, false] {
            for object in retired.values().filter(|object| object.group == groups) {
                self.forget_object(router, object.id);
            }
        }
        self.progress = None;
        let routes = std::mem::take(&mut self.swept);
        tracing::info!("FPM: {routes} routes and {} next-hop objects were not sent again", retired.len());
    }

    /// Does what a message says. The result is the answer to zebra: nothing, or the route's message
    /// with how it went.
    pub fn program(&mut self, router: &mut Router, message: &Message<'_>, now: Instant) -> Option<Vec<u8>> {
        self.counts.messages += 1;
        let done = match message.kind {
            RTM_NEWROUTE => {
                let route = Route::read(message);
                // Connected routes and those of the kernel itself: the router has them of its own.
                if route.as_ref().is_some_and(|route| route.protocol() == libc::RTPROT_KERNEL) {
                    return None;
                }
                match route {
                    Some(route) => {
                        let done = self.new_route(router, message, &route, now);
                        self.lacking.remove(&route.key);
                        if self.is_lacking(router, &done, now) {
                            self.lacking.insert(route.key, message.bytes.into());
                        }
                        done
                    }
                    None => refused(EINVAL),
                }
            }
            RTM_DELROUTE => {
                let Some(route) = Route::read(message) else { return self.refuse(message, EINVAL, "") };
                self.lacking.remove(&route.key);
                self.delete_route(router, &route.key);
                return None;
            }
            RTM_NEWNEXTHOP => {
                let done = self.new_object(router, message, now);
                if let Some(object) = Object::read(message) {
                    self.lacking_objects.remove(&object.id);
                    if self.is_lacking(router, &done, now) {
                        self.lacking_objects.insert(object.id, message.bytes.into());
                    }
                }
                done
            }
            RTM_DELNEXTHOP => {
                let Some(object) = Object::read(message) else { return self.refuse(message, EINVAL, "") };
                self.left.remove(&object.id);
                self.waiting.remove(&object.id);
                self.lacking_objects.remove(&object.id);
                if let Some(held) = self.objects.remove(&object.id) {
                    self.forget_object(router, held.id);
                }
                return None;
            }
            _ => refused(EOPNOTSUPP),
        };
        match done {
            Done::Refused(errno, text) => self.refuse(message, errno, &text),
            Done::Taken | Done::Left if message.kind == RTM_NEWROUTE => Some(wire::answer(message, true)),
            Done::Taken | Done::Left | Done::Waiting => None,
        }
    }

    /// Whether a message is to be kept: a device that it names is not there.
    fn is_lacking(&mut self, router: &Router, done: &Done, now: Instant) -> bool {
        let kept = self.lacking.len() + self.lacking_objects.len();
        if !lacks_device(done) || kept >= LACKING {
            return false;
        }
        if kept == 0 {
            self.seen = router.link_generation();
        }
        self.retry_at.get_or_insert(now + RETRY);
        true
    }

    fn refuse(&mut self, message: &Message<'_>, errno: i32, text: &str) -> Option<Vec<u8>> {
        self.counts.refused += 1;
        let family = message.body().first().copied().unwrap_or(0);
        let error = std::io::Error::from_raw_os_error(errno);
        let what = format!("message type {}, family {family}: {error}", message.kind);
        let what = if text.is_empty() { what } else { format!("{what}: {text}") };
        if self.logged.len() < LOGGED && self.logged.insert(what.clone()) {
            tracing::warn!("FPM: refused, and others like it are not logged: {what}");
        }
        (message.kind == RTM_NEWROUTE).then(|| wire::answer(message, false))
    }

    fn new_route(&mut self, router: &mut Router, message: &Message<'_>, route: &Route, now: Instant) -> Done {
        let mut copy = message.bytes.to_vec();
        let mut own = route.encapsulated || route.is_label() || !self.beside_kernel || !self.local;
        if let Some((id, at)) = route.object {
            match self.objects.get(&id) {
                Some(held) => {
                    wire::put(&mut copy, at, held.id);
                    own = true;
                }
                None if self.left.contains(&id) || self.beside_kernel && self.local => {}
                None => {
                    let errno = if self.lacking_objects.contains_key(&id) { ENODEV } else { EINVAL };
                    return Done::Refused(errno, format!("next-hop object {id} is not there"));
                }
            }
        }
        if !own {
            self.delete_route(router, &route.key);
            return Done::Left;
        }
        let held = self.routes.get(&route.key).map(|held| held.generation);
        let exclusive = self.beside_kernel && held.is_none();
        as_request(&mut copy, NLM_F_CREATE | if exclusive { NLM_F_EXCL } else { NLM_F_REPLACE });
        match self.request(router, &copy) {
            // The very same is there.
            Err((EEXIST, _)) if !exclusive => {}
            // zebra has given it to the kernel, or the router by netlink, and that was enough.
            Err((EEXIST, _)) if self.local => return Done::Left,
            Err((errno, text)) => {
                // zebra does not have the one before any more.
                self.delete_route(router, &route.key);
                return Done::Refused(errno, text);
            }
            Ok(()) => {}
        }
        if held.is_some_and(|generation| generation != self.generation) {
            self.stale -= 1;
            self.confirmed(now);
        }
        let held = HeldRoute { header: route.header, generation: self.generation };
        self.routes.insert(route.key, held);
        Done::Taken
    }

    /// Something was confirmed: there is more to come, or all is done.
    fn confirmed(&mut self, now: Instant) {
        let left = self.stale > 0 || !self.retired.is_empty();
        self.progress = (left && self.progress.is_some()).then_some(now);
    }

    /// Removes a route that came over FPM; any other stays.
    fn delete_route(&mut self, router: &mut Router, key: &RouteKey) {
        if let Some(held) = self.routes.remove(key) {
            if held.generation != self.generation {
                self.stale -= 1;
            }
            self.forget_route(router, key, &held.header);
        }
    }

    fn forget_route(&mut self, router: &mut Router, key: &RouteKey, header: &[u8; 12]) {
        match self.request(router, &wire::delete_route(header, key)) {
            // It went with its link or its next-hop object.
            Ok(()) | Err((ESRCH | ENOENT | ENODEV | EINVAL, _)) => {}
            Err((errno, text)) => tracing::warn!("FPM: a route could not be removed: errno {errno}: {text}"),
        }
    }

    fn forget_object(&mut self, router: &mut Router, id: u32) {
        match self.request(router, &wire::object_request(RTM_DELNEXTHOP, id)) {
            Ok(()) | Err((ENOENT, _)) => {}
            Err((errno, text)) => {
                tracing::warn!("FPM: an object could not be removed: errno {errno}: {text}")
            }
        }
    }

    fn new_object(&mut self, router: &mut Router, message: &Message<'_>, now: Instant) -> Done {
        let Some(object) = Object::read(message) else { return refused(EINVAL) };
        let done = self.take_object(router, message.bytes, &object, now);
        if matches!(done, Done::Taken | Done::Left) {
            self.wake(router, now);
        }
        done
    }

    /// Takes the groups that waited for their members.
    fn wake(&mut self, router: &mut Router, now: Instant) {
        while let Some(id) =
            self.waiting.iter().find_map(|(&id, bytes)| self.is_complete(bytes).then_some(id))
        {
            let Some(bytes) = self.waiting.remove(&id) else { return };
            let Some(message) = messages(&bytes).next() else { return };
            let Some(object) = Object::read(&message) else { return };
            if let Done::Refused(errno, text) = self.take_object(router, &bytes, &object, now) {
                self.refuse(&message, errno, &text);
            }
        }
    }

    fn is_complete(&self, bytes: &[u8]) -> bool {
        let object = messages(bytes).next().and_then(|message| Object::read(&message));
        let members = object.and_then(|object| object.members).unwrap_or_default().0;
        members.iter().all(|member| self.objects.contains_key(member) || self.left.contains(member))
    }

    fn take_object(&mut self, router: &mut Router, bytes: &[u8], object: &Object, now: Instant) -> Done {
        let members = object.members.as_ref().map(|(members, _)| &members[..]).unwrap_or_default();
        if !self.is_complete(bytes) {
            self.waiting.insert(object.id, bytes.into());
            return Done::Waiting;
        }
        let own = object.encapsulated || members.iter().any(|member| self.objects.contains_key(member));
        if !own && self.beside_kernel && self.local {
            self.left.insert(object.id);
            if let Some(held) = self.objects.remove(&object.id) {
                self.forget_object(router, held.id);
            }
            return Done::Left;
        }
        let known = |id: &u32| self.objects.get(id).map_or(*id, |held| held.id);
        let members: Vec<u32> = members.iter().map(known).collect();
        let mut copy = bytes.to_vec();
        object.rewrite(&mut copy, object.id, &members);
        let group = object.members.is_some();
        // zebra changes an object of its own.
        if let Some(held) = self.objects.get(&object.id).map(|held| held.id) {
            object.rewrite(&mut copy, held, &members);
            as_request(&mut copy, NLM_F_CREATE | NLM_F_REPLACE);
            return match self.request(router, &copy) {
                Ok(()) => self.hold(object.id, held, &copy, group),
                Err((errno, text)) => Done::Refused(errno, text),
            };
        }
        // An object of a connection before, sent again.
        as_request(&mut copy, NLM_F_CREATE | NLM_F_EXCL);
        let body = |bytes: &[u8]| bytes.get(message::HEADER..).unwrap_or_default().to_vec();
        let again = |copy: &[u8], held: &HeldObject| body(&held.bytes) == body(copy);
        if self.retired.get(&object.id).is_some_and(|held| again(&copy, held)) {
            self.retired.remove(&object.id);
            self.confirmed(now);
            return self.hold(object.id, object.id, &copy, group);
        }
        match self.request(router, &copy) {
            Ok(()) => return self.hold(object.id, object.id, &copy, group),
            Err((EEXIST, _)) => {}
            Err((errno, text)) => return Done::Refused(errno, text),
        }
        if !self.retired.contains_key(&object.id) && self.local && self.is_zebras(router, object.id) {
            self.left.insert(object.id);
            return Done::Left;
        }
        loop {
            let id = self.alias;
            self.alias = self.alias.checked_add(1).unwrap_or(ALIASES);
            object.rewrite(&mut copy, id, &members);
            match self.request(router, &copy) {
                Ok(()) => return self.hold(object.id, id, &copy, group),
                Err((EEXIST, _)) => {}
                Err((errno, text)) => return Done::Refused(errno, text),
            }
        }
    }

    fn hold(&mut self, zebras: u32, id: u32, bytes: &[u8], group: bool) -> Done {
        self.objects.insert(zebras, HeldObject { id, bytes: bytes.into(), group });
        Done::Taken
    }

    /// Whether zebra has made an object of this id by netlink.
    fn is_zebras(&mut self, router: &mut Router, id: u32) -> bool {
        self.replies.clear();
        router.request(&mut self.client, &wire::object_request(RTM_GETNEXTHOP, id), &mut self.replies);
        let mut told = self.replies.iter().flat_map(messages);
        told.any(|message| message.kind == RTM_NEWNEXTHOP && message.body().get(2) == Some(&RTPROT_ZEBRA))
    }

    /// Asks the router; an errno and its text if it refuses.
    fn request(&mut self, router: &mut Router, request: &[u8]) -> Result<(), (i32, String)> {
        self.replies.clear();
        router.request(&mut self.client, request, &mut self.replies);
        let answer =
            self.replies.iter().flat_map(messages).find(|message| message.kind == libc::NLMSG_ERROR as u16);
        let body = answer.map(|message| message.body()).unwrap_or_default();
        match body.first_chunk().map(|errno| i32::from_ne_bytes(*errno)) {
            Some(0) => Ok(()),
            Some(errno) => Err((-errno, extended(body))),
            None => Err((EINVAL, "no answer".to_owned())),
        }
    }
}

/// Whether a request was refused because a device that it names is not there, or is down. Of next-hop objects Linux says
/// so in a text.
fn lacks_device(done: &Done) -> bool {
    match done {
        Done::Refused(ENODEV | ENETDOWN, _) => true,
        Done::Refused(EINVAL, text) => text == "Invalid device index",
        _ => false,
    }
}

fn refused(errno: i32) -> Done {
    Done::Refused(errno, String::new())
}

/// The text of an acknowledgement that does not repeat its request.
fn extended(body: &[u8]) -> String {
    const TEXT: u16 = 1;
    let value = body.get(4 + message::HEADER..).unwrap_or_default();
    let mut attributes = underpass_netlink::Attribute { kind: 0, offset: 0, value }.nested();
    attributes.find(|attribute| attribute.kind == TEXT).map(|text| text.text()).unwrap_or_default()
}
