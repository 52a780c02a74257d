//! `fw`: chooses packets by their mark. Linux: `net/sched/cls_fw.c`.
//!
//! ```text
//! The handle is the mark. TCA_FW_CLASSID, MASK (u32), INDEV (a name), ACT (actions), POLICE (an old-style policer)
//! ```

use super::exts_options;
use crate::RequestError;
use crate::attribute::{Attribute, Type, policy};
use crate::reply::Reply;

const CLASSID: u16 = 1;
/// `TCA_FW_POLICE`: an old-style policer.
pub const POLICE: u16 = 2;
const INDEV: u16 = 3;
/// `TCA_FW_ACT`: actions.
pub const ACT: u16 = 4;
const MASK: u16 = 5;

const POLICY: [Type; 6] = policy(&[(CLASSID, Type::U32), (INDEV, Type::String(16)), (MASK, Type::U32)]);

/// A filter as a request describes it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// `classid`.
    pub class: Option<u32>,
    /// Which bits of the mark.
    pub mask: Option<u32>,
    /// The link that packets come in by, its name.
    pub indev: Option<String>,
    /// Actions.
    pub actions: Option<Attribute<'a>>,
    /// An old-style policer.
    pub police: Option<Attribute<'a>>,
}

impl<'a> Request<'a> {
    /// Reads the options.
    ///
    /// # Errors
    /// What breaks the policy, without texts.
    pub fn parse(options: &Attribute<'a>) -> Result<Self, RequestError> {
        let attributes = exts_options(options, &POLICY)?;
        Ok(Self {
            class: attributes.get(CLASSID).map(|class| class.u32()),
            mask: attributes.get(MASK).map(|mask| mask.u32()),
            indev: attributes.get(INDEV).map(|name| name.text()),
            actions: attributes.get(ACT),
            police: attributes.get(POLICE),
        })
    }
}

/// Writes the options: class (0 for none), the name of the link, mask; `actions` writes those.
pub fn write(
    reply: &mut Reply<'_>,
    class: u32,
    indev: Option<&str>,
    mask: u32,
    actions: impl FnOnce(&mut Reply<'_>),
) {
    if class != 0 {
        reply.u32(CLASSID, class);
    }
    if let Some(indev) = indev {
        reply.text(INDEV, indev);
    }
    if mask != u32::MAX {
        reply.u32(MASK, mask);
    }
    actions(reply);
}
