//! Actions: what is done with a packet that a filter has chosen. Linux: `net/sched/act_api.c`.
//!
//! ```text
//! RTM_{NEW,DEL,GET}ACTION: struct tcamsg (4 bytes), TCA_ACT_TAB {
//!     1: { TCA_ACT_KIND, TCA_ACT_OPTIONS { … }, TCA_ACT_INDEX, TCA_ACT_COOKIE, TCA_ACT_FLAGS, TCA_ACT_HW_STATS },
//!     2: … }
//! ```
//!
//! A filter has the same list among its options.

pub mod csum;
pub mod gact;
pub mod mirred;
pub mod mpls;
pub mod pedit;
pub mod police;
pub mod sample;
pub mod skbedit;
pub mod tunnel_key;
pub mod vlan;

use libc::{EINVAL, EOPNOTSUPP};

pub use self::csum::Csum;
pub use self::gact::Gact;
pub use self::mirred::Mirred;
pub use self::mpls::Mpls;
pub use self::pedit::Pedit;
pub use self::police::Police;
pub use self::sample::Sample;
pub use self::skbedit::Skbedit;
pub use self::tunnel_key::TunnelKey;
pub use self::vlan::Vlan;
use super::Bits;
use crate::RequestError;
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::reply::Reply;

/// Length of a `struct tcamsg`: a family and three bytes of nothing.
pub const HEADER: usize = 4;
/// `TCA_ACT_TAB`: the list of actions.
pub const TCA_ACT_TAB: u16 = 1;
/// `TCA_ROOT_FLAGS`: a bit field of [`LARGE_DUMP`] and [`TERSE_DUMP`].
pub const TCA_ROOT_FLAGS: u16 = 2;
/// `TCA_ROOT_COUNT`: how many a dump has.
pub const TCA_ROOT_COUNT: u16 = 3;
/// `TCA_ROOT_TIME_DELTA`: only what was used in so many milliseconds.
pub const TCA_ROOT_TIME_DELTA: u16 = 4;
/// Dumps as many actions in a message as fit it.
pub const LARGE_DUMP: u32 = 1;
/// Dumps without options.
pub const TERSE_DUMP: u32 = 2;
/// The policy of dumps.
pub const ROOT_POLICY: [Type; 6] =
    policy(&[(TCA_ROOT_FLAGS, Type::Exact(8)), (TCA_ROOT_TIME_DELTA, Type::U32)]);

/// `TCA_ACT_MAX_PRIO`: how many actions a filter has at most.
pub const MAX_ACTIONS: usize = 32;

const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const INDEX: u16 = 3;
const STATS: u16 = 4;
const COOKIE: u16 = 6;
const FLAGS: u16 = 7;
const HW_STATS: u16 = 8;
const USED_HW_STATS: u16 = 9;
const IN_HW_COUNT: u16 = 10;
/// `TCA_FCNT`: how many actions were flushed; the number of `TCA_ACT_COOKIE`.
pub const TCA_FCNT: u16 = COOKIE;

const POLICY: [Type; 11] = policy(&[
    (KIND, Type::String(u16::MAX)),
    (INDEX, Type::U32),
    (COOKIE, Type::AtMost(16)),
    (OPTIONS, Type::Nested),
    (FLAGS, Type::Exact(8)),
    (HW_STATS, Type::Exact(8)),
]);

/// `TCA_ACT_FLAGS_*` that a request may set: no statistics per processor, skip_hw, skip_sw.
const USER_FLAGS: u32 = 7;
/// `TCA_ACT_FLAGS_SKIP_HW`.
pub const SKIP_HW: u32 = 2;
/// `TCA_ACT_FLAGS_SKIP_SW`.
pub const SKIP_SW: u32 = 4;
/// `TCA_ACT_HW_STATS_ANY`: immediate or delayed.
pub const HW_STATS_ANY: u8 = 3;

/// `TC_ACT_UNSPEC`: go on with the next filter.
pub const UNSPEC: i32 = -1;
/// `TC_ACT_OK`.
pub const OK: i32 = 0;
/// `TC_ACT_RECLASSIFY`: begin again with the first filter.
pub const RECLASSIFY: i32 = 1;
/// `TC_ACT_SHOT`: drop.
pub const SHOT: i32 = 2;
/// `TC_ACT_PIPE`: go on with the next action.
pub const PIPE: i32 = 3;
/// `TC_ACT_STOLEN`: somebody else has the packet.
pub const STOLEN: i32 = 4;
/// `TC_ACT_TRAP`: in software as [`STOLEN`].
pub const TRAP: i32 = 8;
/// `TC_ACT_JUMP`: skip so many actions, in the lower 28 bits.
pub const JUMP: i32 = 1 << 28;
/// `TC_ACT_GOTO_CHAIN`: go on with a chain, its index in the lower 28 bits.
pub const GOTO_CHAIN: i32 = 2 << 28;
/// `TC_ACT_EXT_VAL_MASK`.
pub const VALUE: u32 = (1 << 28) - 1;

/// The chain that a control action goes to, if it is `goto chain`.
pub const fn goto_chain(action: i32) -> Option<u32> {
    if action as u32 & !VALUE == GOTO_CHAIN as u32 { Some(action as u32 & VALUE) } else { None }
}

/// Whether Linux takes a control action: `tcf_action_valid`.
pub const fn is_control(action: i32) -> bool {
    match action as u32 & !VALUE {
        0 => action <= TRAP,
        opcode => opcode == JUMP as u32 || opcode == GOTO_CHAIN as u32 || action == UNSPEC,
    }
}

/// One action of a list, its options not read yet.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// `TCA_ACT_KIND`, if it is there.
    pub kind: Option<Attribute<'a>>,
    /// `TCA_ACT_OPTIONS`, if it is there.
    pub options: Option<Attribute<'a>>,
    /// `TCA_ACT_INDEX`, which only questions have.
    pub index: Option<u32>,
    /// `TCA_ACT_COOKIE`.
    pub cookie: Option<&'a [u8]>,
    /// `TCA_ACT_FLAGS` that are set.
    pub flags: u32,
    /// Which statistics of hardware are wanted, of [`HW_STATS_ANY`].
    pub hw_stats: u8,
}

impl<'a> Entry<'a> {
    /// Reads one element of a list.
    ///
    /// # Errors
    /// What breaks the policy.
    pub fn parse(attribute: &Attribute<'a>) -> Result<Self, RequestError> {
        let attributes = attribute.parse_nested(&POLICY, Validate::Liberal)?;
        let bits = |kind, allowed: u32| match attributes.get(kind) {
            None => Ok(None),
            Some(attribute) => {
                let bits = Bits::read(&attribute);
                if (bits.value | bits.selector) & !allowed != 0 || bits.value & !bits.selector != 0 {
                    return Err(attribute.invalid("Attribute failed policy validation"));
                }
                Ok(Some(bits.value))
            }
        };
        let flags = bits(FLAGS, USER_FLAGS)?.unwrap_or(0);
        let hw_stats = bits(HW_STATS, HW_STATS_ANY.into())?;
        if flags & (SKIP_HW | SKIP_SW) == SKIP_HW | SKIP_SW {
            return Err(RequestError::errno(EINVAL));
        }
        Ok(Self {
            kind: attributes.get(KIND),
            options: attributes.get(OPTIONS),
            index: attributes.get(INDEX).map(|index| index.u32()),
            cookie: attributes.get(COOKIE).map(|cookie| cookie.value),
            flags,
            hw_stats: hw_stats.map_or(HW_STATS_ANY, |bits| bits as u8),
        })
    }

    /// Reads a list: its elements from 1 on, up to the first number that is missing.
    ///
    /// # Errors
    /// What is no list.
    pub fn list(list: &Attribute<'a>) -> Result<Vec<Attribute<'a>>, RequestError> {
        const ANY: [Type; MAX_ACTIONS + 1] = [Type::Any; MAX_ACTIONS + 1];
        let list = list.parse_nested(&ANY, Validate::Liberal)?;
        Ok((1..=MAX_ACTIONS as u16).map_while(|number| list.get(number)).collect())
    }

    /// The name of its kind.
    ///
    /// # Errors
    /// `EINVAL` where there is none, or a longer one than any kind has.
    pub fn name(&self) -> Result<String, RequestError> {
        let kind = self.kind.ok_or(RequestError::new(EINVAL, "TC action kind must be specified"))?.text();
        if kind.len() >= libc::IFNAMSIZ {
            return Err(RequestError::new(EINVAL, "TC action name too long"));
        }
        Ok(kind)
    }
}

/// `tc_gen`: what the parameters of all kinds but police begin with, 20 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Generic {
    /// Number among the actions of its kind. 0: any free one.
    pub index: u32,
    /// Unused.
    pub capab: u32,
    /// Control action: what comes after it.
    pub action: i32,
    /// How many use it, requests that keep it included.
    pub refs: i32,
    /// How many filters use it.
    pub binds: i32,
}

impl Generic {
    /// Length in a message.
    pub const LEN: usize = 20;

    fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>());
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        Self {
            index: word(0),
            capab: word(4),
            action: word(8) as i32,
            refs: word(12) as i32,
            binds: word(16) as i32,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let words = [self.index, self.capab, self.action as u32, self.refs as u32, self.binds as u32];
        words.map(u32::to_ne_bytes).concat()
    }
}

/// `struct tcf_t`: how long ago, in hundredths of a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// It was made.
    pub install: u64,
    /// The last packet came, or it was made.
    pub last_use: u64,
    /// 0.
    pub expires: u64,
    /// The first packet came; 0 if none did.
    pub first_use: u64,
}

impl Times {
    fn write(self, reply: &mut Reply<'_>, kind: u16, pad: u16) {
        reply.align_64(pad);
        let words = [self.install, self.last_use, self.expires, self.first_use];
        reply.attribute(kind, &words.map(u64::to_ne_bytes).concat());
    }
}

/// What an action has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Bytes, with the headers of all segments of a large one.
    pub bytes: u64,
    /// Packets, segments of a large one counted each.
    pub packets: u64,
    /// Packets that it dropped.
    pub drops: u32,
    /// Packets beyond a limit.
    pub overlimits: u32,
    /// The rate that the estimator has measured, where there is one: bytes and packets a second.
    pub rate: Option<(u64, u64)>,
}

const STATS_BASIC: u16 = 1;
const STATS_RATE_EST: u16 = 2;
const STATS_QUEUE: u16 = 3;
const STATS_RATE_EST64: u16 = 5;
const STATS_PAD: u16 = 6;
const STATS_PKT64: u16 = 8;

impl Counts {
    /// Writes `TCA_ACT_STATS`.
    fn write(&self, reply: &mut Reply<'_>) {
        let nest = reply.nest_unflagged(STATS);
        let basic = |reply: &mut Reply<'_>, kind, bytes: u64, packets: u64| {
            reply.align_64(STATS_PAD);
            // A `struct gnet_stats_basic`: 16 bytes, the last 4 of them nothing.
            let rest = [packets as u32, 0].map(u32::to_ne_bytes).concat();
            reply.attribute(kind, &[&bytes.to_ne_bytes()[..], &rest].concat());
            if packets > u64::from(u32::MAX) {
                reply.u64_aligned(STATS_PKT64, packets, STATS_PAD);
            }
        };
        basic(reply, STATS_BASIC, self.bytes, self.packets);
        if let Some((bytes, packets)) = self.rate {
            if bytes > u64::from(u32::MAX) {
                reply.align_64(STATS_PAD);
                reply.attribute(STATS_RATE_EST64, &[bytes, packets].map(u64::to_ne_bytes).concat());
            }
            let short = [bytes, packets].map(|rate| rate.min(u32::MAX.into()) as u32);
            reply.attribute(STATS_RATE_EST, &short.map(u32::to_ne_bytes).concat());
        }
        let queue = [0, 0, self.drops, 0, self.overlimits];
        reply.attribute(STATS_QUEUE, &queue.map(u32::to_ne_bytes).concat());
        reply.end(nest);
    }

    /// Writes `TCA_STATS`, in which a filter with an old-style policer has its counts: a `struct tc_stats`.
    pub fn write_compat(&self, reply: &mut Reply<'_>) {
        let (rate, packet_rate) = self.rate.unwrap_or_default();
        let words = [
            self.packets as u32,
            self.drops,
            self.overlimits,
            rate.min(u32::MAX.into()) as u32,
            packet_rate.min(u32::MAX.into()) as u32,
            0,
            0,
            0,
        ];
        reply.align_64(super::TCA_PAD);
        let words = words.map(u32::to_ne_bytes).concat();
        reply.attribute(super::TCA_STATS, &[&self.bytes.to_ne_bytes()[..], &words].concat());
    }
}

/// What an action does, and its control action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Config {
    /// Limits the rate.
    Police(Police),
    /// Decides.
    Gact(Gact),
    /// Sends the packet, or a copy of it, elsewhere.
    Mirred(Mirred),
    /// Puts on, takes off or changes a label.
    Mpls(Mpls),
    /// Puts on, takes off or changes a VLAN tag or the Ethernet header.
    Vlan(Vlan),
    /// Changes what is known of the packet.
    Skbedit(Skbedit),
    /// Says what a tunnel puts before the packet.
    TunnelKey(TunnelKey),
    /// Makes checksums right.
    Csum(Csum),
    /// Changes bytes.
    Pedit(Pedit),
    /// Shows one of so many packets to others.
    Sample(Sample),
}

/// The kinds of actions.
pub const KINDS: [&str; 10] =
    ["csum", "gact", "mirred", "mpls", "pedit", "police", "sample", "skbedit", "vlan", "tunnel_key"];

impl Config {
    /// Reads the options of a kind: what Linux looks at before it looks for an action of that index.
    ///
    /// # Errors
    /// As Linux's `init` of each kind. `EOPNOTSUPP` with a text of the router's own for a kind that Linux has and
    /// the router has not; `ENOENT` for one that neither has.
    pub fn parse(kind: &str, options: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        Ok(match kind {
            "police" => Self::Police(Police::parse(options)?),
            "gact" => Self::Gact(Gact::parse(options)?),
            "mirred" => Self::Mirred(Mirred::parse(options)?),
            "mpls" => Self::Mpls(Mpls::parse(options)?),
            "vlan" => Self::Vlan(Vlan::parse(options)?),
            "skbedit" => Self::Skbedit(Skbedit::parse(options)?),
            "tunnel_key" => Self::TunnelKey(TunnelKey::parse(options)?),
            "csum" => Self::Csum(Csum::parse(options)?),
            "pedit" => Self::Pedit(Pedit::parse(options)?),
            "sample" => Self::Sample(Sample::parse(options)?),
            _ => return Err(unknown_kind(kind)),
        })
    }

    /// Its kind, as `tc` names it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Police(_) => "police",
            Self::Gact(_) => "gact",
            Self::Mirred(_) => "mirred",
            Self::Mpls(_) => "mpls",
            Self::Vlan(_) => "vlan",
            Self::Skbedit(_) => "skbedit",
            Self::TunnelKey(_) => "tunnel_key",
            Self::Csum(_) => "csum",
            Self::Pedit(_) => "pedit",
            Self::Sample(_) => "sample",
        }
    }

    /// The index that it asks for; 0 for any.
    pub const fn index(&self) -> u32 {
        match self {
            Self::Police(police) => police.index,
            Self::Gact(gact) => gact.generic.index,
            Self::Mirred(mirred) => mirred.generic.index,
            Self::Mpls(mpls) => mpls.generic.index,
            Self::Vlan(vlan) => vlan.generic.index,
            Self::Skbedit(skbedit) => skbedit.generic.index,
            Self::TunnelKey(key) => key.generic.index,
            Self::Csum(csum) => csum.generic.index,
            Self::Pedit(pedit) => pedit.generic.index,
            Self::Sample(sample) => sample.generic.index,
        }
    }

    /// Its control action.
    pub const fn action(&self) -> i32 {
        match self {
            Self::Police(police) => police.action,
            Self::Gact(gact) => gact.generic.action,
            Self::Mirred(mirred) => mirred.generic.action,
            Self::Mpls(mpls) => mpls.generic.action,
            Self::Vlan(vlan) => vlan.generic.action,
            Self::Skbedit(skbedit) => skbedit.generic.action,
            Self::TunnelKey(key) => key.generic.action,
            Self::Csum(csum) => csum.generic.action,
            Self::Pedit(pedit) => pedit.generic.action,
            Self::Sample(sample) => sample.generic.action,
        }
    }

    /// Whether Linux asks hardware for its statistics.
    pub fn is_counted_by_hardware(&self) -> bool {
        match self {
            Self::Police(_) => true,
            Self::Gact(gact) => gact.offloads(),
            Self::Mirred(_) => true,
            Self::Mpls(mpls) => mpls.offloads(),
            Self::Vlan(_) => true,
            Self::Skbedit(skbedit) => skbedit.offloads(),
            Self::TunnelKey(_) | Self::Csum(_) | Self::Sample(_) => true,
            Self::Pedit(pedit) => pedit.offloads(),
        }
    }

    /// How Linux warns who makes it without a filter: hardware cannot be told of it.
    pub fn warning(&self) -> Option<&'static str> {
        match self {
            Self::Police(police) if !police.offloads() => {
                Some("act_api: Failed to setup tc actions for offload")
            }
            Self::Pedit(pedit) if !pedit.offloads() => Some("act_pedit: Unsupported pedit command offload"),
            _ => None,
        }
    }

    fn write(&self, reply: &mut Reply<'_>, shown: &Shown<'_>) {
        let fill = |generic: &Generic| Generic {
            index: shown.index,
            refs: shown.refs,
            binds: shown.binds,
            ..*generic
        };
        let Shown { times, .. } = *shown;
        match self {
            Self::Police(police) => police.write(reply, shown),
            Self::Gact(gact) => Gact { generic: fill(&gact.generic), ..*gact }.write(reply, times),
            Self::Mirred(mirred) => Mirred { generic: fill(&mirred.generic), ..*mirred }.write(reply, times),
            Self::Mpls(mpls) => Mpls { generic: fill(&mpls.generic), ..*mpls }.write(reply, times),
            Self::Vlan(vlan) => Vlan { generic: fill(&vlan.generic), ..*vlan }.write(reply, times),
            Self::Skbedit(edit) => Skbedit { generic: fill(&edit.generic), ..*edit }.write(reply, times),
            Self::TunnelKey(key) => key.write(reply, fill(&key.generic), times),
            Self::Csum(csum) => Csum { generic: fill(&csum.generic), ..*csum }.write(reply, times),
            Self::Pedit(pedit) => pedit.write(reply, &fill(&pedit.generic), times),
            Self::Sample(sample) => Sample { generic: fill(&sample.generic), ..*sample }.write(reply, times),
        }
    }
}

/// Kinds of actions that Linux 6.12 has and the router has not.
const LINUX_ONLY: [&str; 11] =
    ["bpf", "connmark", "ct", "ctinfo", "gate", "ife", "ipt", "nat", "simple", "skbmod", "xt"];

/// Why a kind cannot be made.
pub fn unknown_kind(kind: &str) -> RequestError {
    if LINUX_ONLY.contains(&kind) {
        return RequestError::with_text(
            EOPNOTSUPP,
            format!("Action \"{kind}\" is not supported by this router"),
        );
    }
    RequestError::new(libc::ENOENT, "Failed to load TC action module")
}

/// All that is shown of an action.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// What it does.
    pub config: &'a Config,
    /// Its number.
    pub index: u32,
    /// How many use it.
    pub refs: i32,
    /// How many filters use it.
    pub binds: i32,
    /// What it was given to remember.
    pub cookie: Option<&'a [u8]>,
    /// `TCA_ACT_FLAGS` that are set.
    pub flags: u32,
    /// Which statistics of hardware are wanted.
    pub hw_stats: u8,
    /// Whether hardware was asked for statistics, and there is none.
    pub asked_hw: bool,
    /// How old it is.
    pub times: Times,
    /// What it has counted.
    pub counts: Counts,
}

impl Shown<'_> {
    /// Writes an element of a list; `indexed` for a terse one of a dump of actions.
    pub fn write_terse(&self, reply: &mut Reply<'_>, indexed: bool) {
        reply.text(KIND, self.config.kind());
        self.counts.write(reply);
        if indexed {
            reply.u32(INDEX, self.index);
        }
        if let Some(cookie) = self.cookie {
            reply.attribute(COOKIE, cookie);
        }
    }

    /// Writes an element of a list. Linux: `tcf_action_dump_1`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        self.write_terse(reply, false);
        let bits = |value: u8| Bits { value: value.into(), selector: HW_STATS_ANY.into() };
        if self.hw_stats != HW_STATS_ANY {
            bits(self.hw_stats).write(reply, HW_STATS);
        }
        if self.asked_hw {
            bits(0).write(reply, USED_HW_STATS);
        }
        if self.flags != 0 {
            Bits { value: self.flags, selector: self.flags }.write(reply, FLAGS);
        }
        reply.u32(IN_HW_COUNT, 0);
        let nest = reply.nest_unflagged(OPTIONS);
        self.config.write(reply, self);
        reply.end(nest);
    }

    /// Writes the options alone: an old-style policer.
    pub fn write_options(&self, reply: &mut Reply<'_>) {
        self.config.write(reply, self);
    }
}

/// The attributes inside the options of a kind that reports no texts.
fn options<'a, const N: usize>(
    options: Option<&Attribute<'a>>,
    policy: &[Type; N],
) -> Result<Attributes<'a, N>, RequestError> {
    let options = options.ok_or(RequestError::errno(EINVAL))?;
    options.parse_nested(policy, Validate::Liberal).map_err(|error| RequestError::errno(error.errno))
}

/// Writes the number of flushed actions of a kind, as an element of a list.
pub fn write_flushed(reply: &mut Reply<'_>, kind: &str, count: u32) {
    let list = reply.nest_unflagged(TCA_ACT_TAB);
    let nest = reply.nest_unflagged(0);
    reply.text(KIND, kind);
    reply.u32(TCA_FCNT, count);
    reply.end(nest);
    reply.end(list);
}
