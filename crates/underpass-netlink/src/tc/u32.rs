//! `u32`: compares words of the packet, in hash tables that lead to each other. Linux: `net/sched/cls_u32.c`.
//!
//! ```text
//! TCA_U32_SEL: flags, offshift, nkeys (u8), 0, offmask (be16), off (u16), offoff, hoff (s16), hmask (be32), and keys:
//! mask, value (be32), off, offmask (s32). CLASSID, HASH, LINK, DIVISOR, FLAGS (u32). MARK: value, mask, success (u32)
//! ```
//!
//! A handle is a table (12 bits), a bucket of it (8 bits) and a node (12 bits).

use libc::EINVAL;

use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;

const CLASSID: u16 = 1;
const HASH: u16 = 2;
const LINK: u16 = 3;
const DIVISOR: u16 = 4;
const SEL: u16 = 5;
/// `TCA_U32_POLICE`: an old-style policer.
pub const POLICE: u16 = 6;
/// `TCA_U32_ACT`: actions.
pub const ACT: u16 = 7;
const INDEV: u16 = 8;
const PCNT: u16 = 9;
const MARK: u16 = 10;
const FLAGS: u16 = 11;
const PAD: u16 = 12;

const POLICY: [Type; 13] = policy(&[
    (CLASSID, Type::U32),
    (HASH, Type::U32),
    (LINK, Type::U32),
    (DIVISOR, Type::U32),
    (SEL, Type::AtLeast(SEL_LEN as u16)),
    (INDEV, Type::String(16)),
    (MARK, Type::AtLeast(12)),
    (FLAGS, Type::U32),
]);

/// Length of a `struct tc_u32_sel` without keys, and of a key.
const SEL_LEN: usize = 16;
const KEY_LEN: usize = 16;

/// `TC_U32_ROOT`: the table that a priority begins with.
pub const ROOT: u32 = 0xfff0_0000;

/// The table of a handle, in its place.
pub const fn table(handle: u32) -> u32 {
    handle & 0xfff0_0000
}

/// The bucket of a handle.
pub const fn bucket(handle: u32) -> u32 {
    handle >> 12 & 0xff
}

/// The node of a handle; 0 is the table itself.
pub const fn node(handle: u32) -> u32 {
    handle & 0xfff
}

/// A word of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Key {
    /// Which bits are compared, as they lie in the packet.
    pub mask: [u8; 4],
    /// With what.
    pub value: [u8; 4],
    /// Where the word begins, in bytes from the network header or from where the table before has led.
    pub offset: i32,
    /// Bits of the variable offset that are added: all or none.
    pub offset_mask: i32,
}

/// What is compared, and where the next table looks: `struct tc_u32_sel`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selector {
    /// `TC_U32_*`: 1 terminal, 2 offset, 4 variable offset, 8 eat.
    pub flags: u8,
    /// By how much the variable offset is shifted to the right.
    pub shift: u8,
    /// Bits of the word that the variable offset is read from, in network byte order.
    pub offset_mask: u16,
    /// What is added to it, in bytes.
    pub offset: u16,
    /// Where that word is.
    pub offset_at: i16,
    /// Where the word is that is hashed.
    pub hash_at: i16,
    /// Which bits are hashed.
    pub hash_mask: [u8; 4],
    /// All must be equal.
    pub keys: Vec<Key>,
}

impl Selector {
    fn read(bytes: &[u8]) -> Result<Self, RequestError> {
        let (Some(head), refused) = (bytes.first_chunk::<SEL_LEN>(), RequestError::errno(EINVAL)) else {
            return Err(RequestError::errno(EINVAL));
        };
        let &[flags, shift, count, _, a, b, c, d, e, f, g, h, i, j, k, l] = head;
        let keys = bytes.get(SEL_LEN..SEL_LEN + usize::from(count) * KEY_LEN).ok_or(refused)?;
        let keys = keys.as_chunks::<KEY_LEN>().0.iter().map(|key| {
            let (words, _) = key.as_chunks::<4>();
            let word = |at: usize| words.get(at).copied().unwrap_or_default();
            let number = |at| i32::from_ne_bytes(word(at));
            Key { mask: word(0), value: word(1), offset: number(2), offset_mask: number(3) }
        });
        if shift >= 16 {
            return Err(RequestError::new(EINVAL, "cls_u32: offshift must be less than 16"));
        }
        Ok(Self {
            flags,
            shift,
            offset_mask: u16::from_be_bytes([a, b]),
            offset: u16::from_ne_bytes([c, d]),
            offset_at: i16::from_ne_bytes([e, f]),
            hash_at: i16::from_ne_bytes([g, h]),
            hash_mask: [i, j, k, l],
            keys: keys.collect(),
        })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.flags, self.shift, self.keys.len() as u8, 0];
        bytes.extend_from_slice(&self.offset_mask.to_be_bytes());
        bytes.extend_from_slice(&self.offset.to_ne_bytes());
        bytes.extend_from_slice(&self.offset_at.to_ne_bytes());
        bytes.extend_from_slice(&self.hash_at.to_ne_bytes());
        bytes.extend_from_slice(&self.hash_mask);
        for key in &self.keys {
            bytes.extend_from_slice(&key.mask);
            bytes.extend_from_slice(&key.value);
            bytes.extend_from_slice(&key.offset.to_ne_bytes());
            bytes.extend_from_slice(&key.offset_mask.to_ne_bytes());
        }
        bytes
    }
}

/// A filter or a table as a request describes it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// `flowid`.
    pub class: Option<u32>,
    /// The table and the bucket that it goes into.
    pub table: Option<u32>,
    /// The table that it leads to; 0 for none any more.
    pub link: Option<u32>,
    /// Buckets of a new table.
    pub divisor: Option<u32>,
    /// What it compares; read by [`Request::selector`].
    selector: Option<Attribute<'a>>,
    /// The link that packets come in by, its name.
    pub indev: Option<String>,
    /// Value and mask of a mark.
    pub mark: Option<(u32, u32)>,
    /// `TCA_CLS_FLAGS_*`.
    pub flags: u32,
    /// Actions.
    pub actions: Option<Attribute<'a>>,
    /// An old-style policer.
    pub police: Option<Attribute<'a>>,
}

impl<'a> Request<'a> {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `u32_change` before it looks at the filter there is.
    pub fn parse(options: &Attribute<'a>) -> Result<Self, RequestError> {
        let attributes = options.parse_nested(&POLICY, Validate::Liberal)?;
        let word = |kind| attributes.get(kind).map(|attribute: Attribute<'_>| attribute.u32());
        let flags = word(FLAGS).unwrap_or(0);
        if !super::flags_valid(flags) {
            return Err(RequestError::new(EINVAL, "cls_u32: Invalid filter flags"));
        }
        let mark = attributes.get(MARK).map(|mark| (mark.u32(), (mark.u64() >> 32) as u32));
        #[cfg(target_endian = "big")]
        let mark =
            mark.map(|(_, mask)| mask).zip(attributes.get(MARK)).map(|(mask, mark)| (mark.u32(), mask));
        Ok(Self {
            class: word(CLASSID),
            table: word(HASH),
            link: word(LINK),
            divisor: word(DIVISOR),
            selector: attributes.get(SEL),
            indev: attributes.get(INDEV).map(|name| name.text()),
            mark,
            flags,
            actions: attributes.get(ACT),
            police: attributes.get(POLICE),
        })
    }

    /// What it compares.
    ///
    /// # Errors
    /// `EINVAL` if it does not say, or not soundly.
    pub fn selector(&self) -> Result<Selector, RequestError> {
        let selector = self.selector.ok_or(RequestError::new(EINVAL, "cls_u32: Selector not specified"))?;
        Selector::read(selector.value)
    }
}

/// What is shown of a filter.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    /// Its handle.
    pub handle: u32,
    /// What it compares.
    pub selector: &'a Selector,
    /// `flowid`; 0 for none.
    pub class: u32,
    /// The table that it leads to.
    pub link: Option<u32>,
    /// `TCA_CLS_FLAGS_*`.
    pub flags: u32,
    /// Value and mask of a mark, and how many packets had it.
    pub mark: Option<(u32, u32, u32)>,
    /// The link that packets come in by, its name.
    pub indev: Option<&'a str>,
    /// Packets that it was asked about, that it chose, and for each key those that it was equal for.
    pub hits: (u64, u64, Vec<u64>),
}

impl Shown<'_> {
    /// Writes the options; `actions` writes those in their place.
    pub fn write(&self, reply: &mut Reply<'_>, actions: impl FnOnce(&mut Reply<'_>)) {
        reply.attribute(SEL, &self.selector.bytes());
        reply.u32(HASH, self.handle & 0xffff_f000);
        if self.class != 0 {
            reply.u32(CLASSID, self.class);
        }
        if let Some(link) = self.link {
            reply.u32(LINK, link);
        }
        if self.flags != 0 {
            reply.u32(FLAGS, self.flags);
        }
        if let Some((value, mask, success)) = self.mark {
            reply.attribute(MARK, &[value, mask, success].map(u32::to_ne_bytes).concat());
        }
        actions(reply);
        if let Some(indev) = self.indev {
            reply.text(INDEV, indev);
        }
        let (seen, hit, keys) = &self.hits;
        let mut counts = [*seen, *hit].map(u64::to_ne_bytes).concat();
        keys.iter().for_each(|count| counts.extend_from_slice(&count.to_ne_bytes()));
        reply.align_64(PAD);
        reply.attribute(PCNT, &counts);
    }
}

/// Writes the options of a table.
pub fn write_table(reply: &mut Reply<'_>, divisor: u32) {
    reply.u32(DIVISOR, divisor);
}
