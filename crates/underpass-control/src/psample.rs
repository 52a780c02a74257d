//! `psample`: groups of samples, and who listens to them. Linux: `net/psample/psample.c`.
//!
//! Actions `sample` put packets into a group each. Workers keep copies of them while somebody listens, and
//! [`Router::show_samples`] sends these to all who do.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use libc::EOPNOTSUPP;
use underpass_engine::worker::PacketSample;
use underpass_netlink::genetlink::{self, psample};
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::{Replies, Reply, RequestError};

use crate::dump::{Chunk, Dump, More, Outcome};
use crate::generic::family_id;
use crate::tc::action::change::publish_kind;
use crate::{Protocol, Request, Router};

/// The family's name.
pub(crate) const NAME: &str = "psample";
/// The group that hears which groups of samples there are.
const CONFIG: u32 = 62;
/// The group that gets the samples.
const PACKETS: u32 = 63;
/// The multicast groups of the family. A kernel beside the router numbers its own from the lowest on.
pub(crate) const MULTICAST: &[(&str, u32)] = &[("config", CONFIG), ("packets", PACKETS)];

/// A group of samples, which is there as long as actions use it.
#[derive(Debug)]
struct Group {
    number: u32,
    references: u32,
    /// The number of its next sample.
    next: Arc<AtomicU32>,
}

/// The groups of samples, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Psample {
    groups: Vec<Group>,
    /// Members of [`CONFIG`] and [`PACKETS`].
    members: [u32; 2],
}

impl Psample {
    /// Whether anybody wants to see samples.
    pub fn heard(&self) -> bool {
        self.members[1] > 0
    }

    /// Where the samples of a group are numbered. Without the group: nowhere.
    pub fn next_of(&self, number: u32) -> Arc<AtomicU32> {
        let group = self.groups.iter().find(|group| group.number == number);
        group.map(|group| Arc::clone(&group.next)).unwrap_or_default()
    }
}

/// Whether a multicast group is the router's own: no kernel has to know it.
pub fn is_own_group(protocol: Protocol, group: u32) -> bool {
    protocol == Protocol::Generic && MULTICAST.iter().any(|(_, own)| *own == group)
}

/// A client has joined a multicast group of generic netlink, or left it.
pub(crate) fn count_member(router: &mut Router, group: u32, joined: bool) {
    let Some(place) = MULTICAST.iter().position(|(_, own)| *own == group) else { return };
    let heard = router.psample.heard();
    if let Some(members) = router.psample.members.get_mut(place) {
        *members = if joined { *members + 1 } else { members.saturating_sub(1) };
    }
    if router.psample.heard() != heard {
        publish_kind(router, "sample");
    }
}

/// An action uses a group from now on.
pub(crate) fn hold_group(router: &mut Router, number: u32) {
    let groups = &mut router.psample.groups;
    let at = groups.iter().position(|group| group.number == number).unwrap_or_else(|| {
        groups.push(Group { number, references: 0, next: Arc::default() });
        groups.len() - 1
    });
    if groups.get(at).is_some_and(|group| group.references == 0) {
        tell(router, at, psample::CMD_NEW_GROUP);
    }
    if let Some(group) = router.psample.groups.get_mut(at) {
        group.references += 1;
    }
}

/// An action has no more use for a group.
pub(crate) fn release_group(router: &mut Router, number: u32) {
    let groups = &mut router.psample.groups;
    let Some(at) = groups.iter().position(|group| group.number == number) else { return };
    let Some(group) = groups.get_mut(at) else { return };
    group.references = group.references.saturating_sub(1);
    if group.references == 0 {
        tell(router, at, psample::CMD_DEL_GROUP);
        router.psample.groups.remove(at);
    }
}

fn tell(router: &mut Router, at: usize, command: u8) {
    let Some(group) = router.psample.groups.get(at).filter(|_| router.psample.members[0] > 0) else { return };
    let mut bytes = Vec::new();
    let flags = netlink_packet_core::NLM_F_MULTIPART;
    let written = write_message(&mut bytes, family_id(router, NAME), flags, Address::default(), |reply| {
        write_group(reply, command, group);
    });
    if written.is_ok() {
        router.events.tell(Protocol::Generic, CONFIG, bytes);
    }
}

fn write_group(reply: &mut Reply<'_>, command: u8, group: &Group) {
    reply.fixed(&genetlink::header(command, psample::VERSION));
    reply.u32(psample::ATTR_SAMPLE_GROUP, group.number);
    reply.u32(psample::ATTR_GROUP_REFCOUNT, group.references);
    reply.u32(psample::ATTR_GROUP_SEQ, group.next.load(Relaxed));
}

/// Answers `PSAMPLE_CMD_GET_GROUP`, which dumps.
pub(crate) fn answer(
    _: &mut Router,
    request: &Request<'_>,
    _: u8,
    dump: bool,
    _: &mut Replies,
) -> Result<Outcome, RequestError> {
    if !dump {
        return Err(RequestError::errno(EOPNOTSUPP));
    }
    Ok(Outcome::Dump(Box::new(Groups { kind: request.message.kind, next: 0 })))
}

/// A dump of the groups of samples.
struct Groups {
    kind: u16,
    next: usize,
}

impl Dump for Groups {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some(group) = router.psample.groups.get(self.next) else { return Ok(More::No) };
        out.message(self.kind, |reply| write_group(reply, psample::CMD_NEW_GROUP, group))?;
        self.next += 1;
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.actions.generation
    }
}

impl Router {
    /// Shows samples to whoever listens. `time`: nanoseconds since 1970.
    pub fn show_samples(&mut self, samples: &[PacketSample], time: u64) {
        if !self.psample.heard() {
            return;
        }
        let kind = family_id(self, NAME);
        for sample in samples {
            let mut bytes = Vec::new();
            let written = write_message(&mut bytes, kind, 0, Address::default(), |reply| {
                write_sample(reply, sample, time);
            });
            if written.is_ok() {
                self.events.tell(Protocol::Generic, PACKETS, bytes);
            }
        }
    }
}

/// `psample_sample_packet`.
fn write_sample(reply: &mut Reply<'_>, sample: &PacketSample, time: u64) {
    let begin = reply.len();
    reply.fixed(&genetlink::header(psample::CMD_SAMPLE, psample::VERSION));
    let interfaces =
        [(psample::ATTR_IIFINDEX, sample.received_by), (psample::ATTR_OIFINDEX, sample.leaves_by)];
    for (attribute, ifindex) in interfaces {
        if ifindex != 0 {
            reply.u16(attribute, ifindex as u16);
        }
    }
    reply.u32(psample::ATTR_SAMPLE_RATE, sample.sample.rate);
    reply.u32(psample::ATTR_ORIGSIZE, sample.length);
    reply.u32(psample::ATTR_SAMPLE_GROUP, sample.sample.group);
    reply.u32(psample::ATTR_GROUP_SEQ, sample.number);
    reply.u64_aligned(psample::ATTR_TIMESTAMP, time, psample::ATTR_PAD);
    reply.u16(psample::ATTR_PROTO, sample.protocol);
    // Headers of the attributes of data and of the cookie, and what fills them up.
    let cookie = sample.sample.cookie.as_deref();
    let others = reply.len() - begin + cookie.map_or(0, |cookie| cookie.len() + 8) + 8;
    let most = psample::MAX_SIZE.saturating_sub(others);
    let data = sample.bytes.get(..most).unwrap_or(&sample.bytes);
    if !data.is_empty() {
        reply.attribute(psample::ATTR_DATA, data);
    }
    if let Some(cookie) = cookie {
        reply.attribute(psample::ATTR_USER_COOKIE, cookie);
    }
}
