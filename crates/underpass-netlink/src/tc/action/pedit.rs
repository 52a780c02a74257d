//! `pedit`: changes bytes of packets. Linux: `net/sched/act_pedit.c`.
//!
//! ```text
//! TCA_PEDIT_PARMS, or TCA_PEDIT_PARMS_EX with the next: tc_gen, nkeys (u8), flags (u8), padding (2),
//!     nkeys × { mask, val, off, at, offmask, shift (u32 each) }
//! TCA_PEDIT_KEYS_EX { nkeys × TCA_PEDIT_KEY_EX { TCA_PEDIT_KEY_EX_HTYPE (u16), TCA_PEDIT_KEY_EX_CMD (u16) } }
//! ```

use libc::EINVAL;

use super::{Generic, Times, options};
use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;
use crate::tc::word;

const TM: u16 = 1;
const PARMS: u16 = 2;
const PAD: u16 = 3;
const PARMS_EX: u16 = 4;
const KEYS_EX: u16 = 5;
const KEY_EX: u16 = 6;
const POLICY: [Type; 7] =
    policy(&[(PARMS, Type::AtLeast(HEADER as u16)), (PARMS_EX, Type::Any), (KEYS_EX, Type::Nested)]);

const HTYPE: u16 = 1;
const CMD: u16 = 2;
const KEY_POLICY: [Type; 3] = policy(&[(HTYPE, Type::U16), (CMD, Type::U16)]);

/// Length of a `struct tc_pedit` without keys.
const HEADER: usize = 24;
/// Length of a `struct tc_pedit_key`.
const KEY: usize = 24;
/// `TCA_PEDIT_HDR_TYPE_MAX`, `TCA_PEDIT_CMD_MAX`.
const MOST: [u16; 2] = [5, 1];

/// From where a key counts its offset: `TCA_PEDIT_KEY_EX_HDR_TYPE_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderType {
    /// The network header, whatever it is.
    Network,
    /// The Ethernet header.
    Ethernet,
    /// The IPv4 header.
    Ip4,
    /// The IPv6 header.
    Ip6,
    /// The TCP header.
    Tcp,
    /// The UDP header.
    Udp,
}

impl HeaderType {
    const ALL: [Self; 6] = [Self::Network, Self::Ethernet, Self::Ip4, Self::Ip6, Self::Tcp, Self::Udp];
}

/// What `ex` says of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extended {
    /// From where its offset counts.
    pub header: HeaderType,
    /// Its value is added, not put in.
    pub add: bool,
}

/// A change of four bytes: `(bytes & mask) ^ value`, in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Bits that stay.
    pub mask: u32,
    /// Bits that are changed, or what is added.
    pub value: u32,
    /// Where the bytes are.
    pub offset: i32,
    /// Where a byte is that adds to the offset, if [`Key::offset_mask`] is not 0.
    pub at: i32,
    /// Which of its bits.
    pub offset_mask: u32,
    /// How far they are shifted to the right; below 32.
    pub shift: u32,
    /// What `ex` says of it. `None`: it is in a request without `ex`.
    pub extended: Option<Extended>,
}

/// A list of changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pedit {
    /// Index and control action.
    pub generic: Generic,
    pub(super) flags: u8,
    /// The changes, in their order.
    pub keys: Vec<Key>,
    /// What Linux says of the keys once the action has its place.
    fault: Option<RequestError>,
}

impl Pedit {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `tcf_pedit_init` until it looks for the action.
    pub fn parse(attribute: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        if attribute.is_none() {
            return Err(RequestError::new(EINVAL, "act_pedit: Pedit requires attributes to be passed"));
        }
        let attributes = options(attribute, &POLICY)?;
        let text = "act_pedit: Missing required TCA_PEDIT_PARMS or TCA_PEDIT_PARMS_EX pedit attribute";
        let parms = attributes.get(PARMS).or(attributes.get(PARMS_EX));
        let parms = parms.ok_or(RequestError::new(EINVAL, text))?;
        let generic = Generic::read(parms.value);
        let flags = parms.value.get(Generic::LEN + 1).copied().unwrap_or(0);
        let (keys, fault) = match keys(&parms, attributes.get(KEYS_EX)) {
            Ok(keys) => (keys, None),
            Err(fault) => (Vec::new(), Some(fault)),
        };
        Ok(Self { generic, flags, keys, fault })
    }

    /// Whether its keys are sound: what Linux looks at once the action has its place.
    ///
    /// # Errors
    /// As Linux's `tcf_pedit_init`.
    pub fn check(&self) -> Result<(), RequestError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// Whether hardware can be told of it: keys of `ex` that all do the same.
    pub(super) fn offloads(&self) -> bool {
        let Some(first) = self.keys.first().and_then(|key| key.extended) else { return false };
        self.keys.iter().all(|key| key.extended.is_some_and(|key| key.add == first.add))
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>, generic: &Generic, times: Times) {
        let extended = self.keys.iter().any(|key| key.extended.is_some());
        if extended {
            let nest = reply.nest_unflagged(KEYS_EX);
            for key in self.keys.iter().filter_map(|key| key.extended) {
                let one = reply.nest_unflagged(KEY_EX);
                reply.u16(HTYPE, key.header as u16);
                reply.u16(CMD, key.add.into());
                reply.end(one);
            }
            reply.end(nest);
        }
        let mut parms = generic.bytes();
        parms.extend([self.keys.len() as u8, self.flags, 0, 0]);
        for key in &self.keys {
            let Key { mask, value, offset, at, offset_mask, shift, extended: _ } = *key;
            let words = [mask, value, offset.cast_unsigned(), at.cast_unsigned(), offset_mask, shift];
            words.iter().for_each(|word| parms.extend(word.to_ne_bytes()));
        }
        reply.attribute(if extended { PARMS_EX } else { PARMS }, &parms);
        times.write(reply, TM, PAD);
    }
}

fn keys(parms: &Attribute<'_>, extended: Option<Attribute<'_>>) -> Result<Vec<Key>, RequestError> {
    let count = parms.value.get(Generic::LEN).copied().map_or(0, usize::from);
    if count == 0 {
        return Err(RequestError::new(EINVAL, "act_pedit: Pedit requires keys to be passed"));
    }
    let bytes = parms.value.get(HEADER..HEADER + count * KEY);
    let bytes = bytes
        .ok_or(parms.invalid("Length of TCA_PEDIT_PARMS or TCA_PEDIT_PARMS_EX pedit attribute is invalid"))?;
    let extended = extended.map(|list| extended_keys(&list, count)).transpose()?;
    let mut keys = Vec::with_capacity(count);
    for (number, bytes) in bytes.chunks_exact(KEY).enumerate() {
        let key = Key {
            mask: word(bytes, 0),
            value: word(bytes, 4),
            offset: word(bytes, 8).cast_signed(),
            at: word(bytes, 12).cast_signed(),
            offset_mask: word(bytes, 16),
            shift: word(bytes, 20).min(31),
            extended: extended.as_ref().and_then(|keys| keys.get(number).copied()),
        };
        if key.offset_mask == 0 && key.offset % 4 != 0 {
            return Err(RequestError::new(EINVAL, "act_pedit: Offsets must be on 32bit boundaries"));
        }
        keys.push(key);
    }
    Ok(keys)
}

/// Linux: `tcf_pedit_keys_ex_parse`.
fn extended_keys(list: &Attribute<'_>, count: usize) -> Result<Vec<Extended>, RequestError> {
    let mut keys = Vec::with_capacity(count);
    for key in list.nested() {
        if keys.len() == count {
            let text = "act_pedit: Can't parse more extended keys than requested";
            return Err(RequestError::new(EINVAL, text));
        }
        if key.kind != KEY_EX {
            return Err(key.invalid("Unknown attribute, expected extended key"));
        }
        let parsed = key.parse_nested(&KEY_POLICY, Validate::Liberal);
        let parsed = parsed.map_err(|error| RequestError::errno(error.errno))?;
        let number = |kind, most| match parsed.get(kind).map(|attribute| attribute.u16()) {
            None => Err(RequestError::new(EINVAL, "Missing required attribute")),
            Some(number) if number > most => Err(RequestError::errno(libc::ERANGE)),
            Some(number) => Ok(number),
        };
        let (header, add) = (number(HTYPE, MOST[0])?, number(CMD, MOST[1])? != 0);
        let header = HeaderType::ALL.into_iter().find(|known| *known as u16 == header);
        keys.push(Extended { header: header.unwrap_or(HeaderType::Network), add });
    }
    if keys.len() < count {
        return Err(RequestError::new(EINVAL, "act_pedit: Not enough extended keys to parse"));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    fn attribute(value: &[u8]) -> Attribute<'_> {
        Attribute { kind: 2, offset: 0, value }
    }

    fn parms(keys: u8, words: &[u32]) -> Vec<u8> {
        let mut bytes = Generic::default().bytes();
        bytes.extend([keys, 0, 0, 0]);
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    /// What `tc` does not send. Linux 6.12's texts.
    #[test]
    fn what_is_refused() {
        let refused = |attributes: &[(u16, Vec<u8>)]| {
            let bytes = written(|reply| {
                attributes.iter().for_each(|(kind, bytes)| reply.attribute(*kind, bytes));
            });
            let pedit = Pedit::parse(Some(&attribute(&bytes)));
            pedit.and_then(|pedit| pedit.check()).unwrap_err().message.unwrap_or_default().into_owned()
        };
        let key = [0, 0, 4, 0, 0, 0];
        let one = |header: u16, command: u16| {
            written(|reply| {
                let nest = reply.nest_unflagged(KEY_EX);
                reply.u16(HTYPE, header);
                reply.u16(CMD, command);
                reply.end(nest);
            })
        };
        for (text, attributes) in [
            ("act_pedit: Missing required TCA_PEDIT_PARMS or TCA_PEDIT_PARMS_EX pedit attribute", vec![]),
            ("act_pedit: Pedit requires keys to be passed", vec![(PARMS, parms(0, &key))]),
            (
                "Length of TCA_PEDIT_PARMS or TCA_PEDIT_PARMS_EX pedit attribute is invalid",
                vec![(PARMS, parms(2, &key))],
            ),
            ("act_pedit: Offsets must be on 32bit boundaries", vec![(PARMS, parms(1, &[0, 0, 3, 0, 0, 0]))]),
            (
                "act_pedit: Can't parse more extended keys than requested",
                vec![(PARMS_EX, parms(1, &key)), (KEYS_EX, [one(0, 0), one(0, 0)].concat())],
            ),
            (
                "act_pedit: Not enough extended keys to parse",
                vec![(PARMS_EX, parms(1, &key)), (KEYS_EX, vec![])],
            ),
            ("", vec![(PARMS_EX, parms(1, &key)), (KEYS_EX, one(6, 0))]),
        ] {
            assert_eq!(refused(&attributes), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            words in proptest::collection::vec(any::<[u32; 5]>(), 1..9), kinds: [u8; 8], extended: bool, flags: u8,
        ) {
            let keys = words.iter().zip(kinds).map(|([mask, value, offset, at, offset_mask], kind)| Key {
                mask: *mask,
                value: *value,
                offset: (offset << 2).cast_signed(),
                at: at.cast_signed(),
                offset_mask: *offset_mask,
                shift: mask % 32,
                extended: extended.then(|| Extended {
                    header: HeaderType::ALL[usize::from(kind % 6)],
                    add: kind & 64 != 0,
                }),
            });
            let generic = Generic { index: 3, action: 2, ..Generic::default() };
            let pedit = Pedit { generic, flags, keys: keys.collect(), fault: None };
            let bytes = written(|reply| pedit.write(reply, &generic, Times::default()));
            prop_assert_eq!(Pedit::parse(Some(&attribute(&bytes))), Ok(pedit));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok(pedit) = Pedit::parse(Some(&attribute(&bytes))) {
                let _ = pedit.check();
            }
        }
    }
}
