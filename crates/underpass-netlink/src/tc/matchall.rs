//! `matchall`: chooses every packet. Linux: `net/sched/cls_matchall.c`.
//!
//! ```text
//! TCA_MATCHALL_CLASSID, FLAGS (u32), ACT (actions). PCNT: packets (u64)
//! ```

use libc::EINVAL;

use super::{exts_options, flags_valid};
use crate::RequestError;
use crate::attribute::{Attribute, Type, policy};
use crate::reply::Reply;

const CLASSID: u16 = 1;
/// `TCA_MATCHALL_ACT`: actions.
pub const ACT: u16 = 2;
const FLAGS: u16 = 3;
const PCNT: u16 = 4;
const PAD: u16 = 5;

const POLICY: [Type; 6] = policy(&[(CLASSID, Type::U32), (FLAGS, Type::U32)]);

/// A filter as a request describes it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// `classid`.
    pub class: Option<u32>,
    /// `TCA_CLS_FLAGS_*`.
    pub flags: u32,
    /// Actions.
    pub actions: Option<Attribute<'a>>,
}

impl<'a> Request<'a> {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `mall_change`, without texts.
    pub fn parse(options: &Attribute<'a>) -> Result<Self, RequestError> {
        let attributes = exts_options(options, &POLICY)?;
        let flags = attributes.get(FLAGS).map_or(0, |flags| flags.u32());
        if !flags_valid(flags) {
            return Err(RequestError::errno(EINVAL));
        }
        let class = attributes.get(CLASSID).map(|class| class.u32());
        Ok(Self { class, flags, actions: attributes.get(ACT) })
    }
}

/// Writes the options: class (0 for none), flags, how many packets it chose; `actions` writes those.
pub fn write(reply: &mut Reply<'_>, class: u32, flags: u32, hits: u64, actions: impl FnOnce(&mut Reply<'_>)) {
    if class != 0 {
        reply.u32(CLASSID, class);
    }
    if flags != 0 {
        reply.u32(FLAGS, flags);
    }
    reply.align_64(PAD);
    reply.u64(PCNT, hits);
    actions(reply);
}
