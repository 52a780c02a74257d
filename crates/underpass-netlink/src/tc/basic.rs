//! `basic`: chooses packets by a tree of extended matches. Linux: `net/sched/cls_basic.c`, `ematch.c`.
//!
//! ```text
//! TCA_BASIC_CLASSID (u32), ACT, POLICE, PCNT: seen, chosen (u64). EMATCHES {
//!     TREE_HDR: nmatches, progid (u16)
//!     TREE_LIST { 1: matchid, kind, flags, 0 (u16), and what the kind adds; 2: … } }
//! ```
//!
//! Matches follow each other, joined by and or or; a container stands for the list that begins at another place.

use libc::{EINVAL, ENOENT, EOPNOTSUPP};

use super::exts_options;
use crate::RequestError;
use crate::attribute::{Attribute, Type, policy};
use crate::reply::Reply;
use crate::tc::u32::Key;

const CLASSID: u16 = 1;
const EMATCHES: u16 = 2;
/// `TCA_BASIC_ACT`: actions.
pub const ACT: u16 = 3;
/// `TCA_BASIC_POLICE`: an old-style policer.
pub const POLICE: u16 = 4;
const PCNT: u16 = 5;
const PAD: u16 = 6;

const POLICY: [Type; 7] = policy(&[(CLASSID, Type::U32), (EMATCHES, Type::Nested)]);

const TREE_HDR: u16 = 1;
const TREE_LIST: u16 = 2;
const TREE_POLICY: [Type; 3] = policy(&[(TREE_HDR, Type::AtLeast(4)), (TREE_LIST, Type::Nested)]);
const MATCH_HEADER: usize = 8;

/// How a match is joined with the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// It is the last.
    End,
    /// Both must hold.
    And,
    /// One must hold.
    Or,
}

/// Where an offset begins: `TCF_LAYER_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// The Ethernet header.
    Link,
    /// The network header.
    Network,
    /// The transport header.
    Transport,
    /// None: it holds for no packet.
    Other(u8),
}

impl Layer {
    const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Link,
            1 => Self::Network,
            2 => Self::Transport,
            other => Self::Other(other),
        }
    }
}

/// How two numbers are compared: `TCF_EM_OPND_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operator {
    /// Equal.
    Equal,
    /// Greater.
    Greater,
    /// Less.
    Less,
    /// None: it holds for no packet.
    Other,
}

impl Operator {
    const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Equal,
            1 => Self::Greater,
            2 => Self::Less,
            _ => Self::Other,
        }
    }
}

/// What is known of a packet: `TCF_META_ID_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meta {
    /// A number of the filter's own.
    Value(u64),
    /// The link that it came in by, or leaves by.
    Device,
    /// Its priority.
    Priority,
    /// Its Ethernet type, in host byte order.
    Protocol,
    /// Its length with what lies behind its Ethernet header.
    PacketLength,
    /// The length of its Ethernet header.
    MacLength,
    /// Its mark.
    Mark,
    /// The tag of its VLAN, 0 without.
    VlanTag,
}

/// A number of a comparison: what it is, shifted to the right, and masked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    /// What it is.
    pub meta: Meta,
    /// Bits that it is shifted.
    pub shift: u8,
    /// Bits that are compared; 0 for all.
    pub mask: u64,
}

/// What a match asks of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The list that begins at this place.
    Container(u32),
    /// Compares a number of the packet.
    Cmp {
        /// With this.
        value: u32,
        /// These bits of it; 0 for all.
        mask: u32,
        /// Where it is, in bytes from the layer.
        offset: u16,
        /// Its length in bytes: 1, 2 or 4; any other holds for no packet.
        width: u8,
        /// Whether it is little-endian.
        transform: bool,
        /// From where the offset counts.
        layer: Layer,
        /// How.
        operator: Operator,
    },
    /// Compares bytes.
    Nbyte {
        /// Where they are, in bytes from the layer.
        offset: u16,
        /// From where the offset counts.
        layer: Layer,
        /// The bytes.
        pattern: Vec<u8>,
    },
    /// Compares a word, as the classifier `u32` does.
    U32(Key),
    /// Compares what is known of a packet.
    Meta {
        /// What.
        left: Operand,
        /// With what.
        right: Operand,
        /// How.
        operator: Operator,
    },
}

/// One match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Match {
    /// What it asks.
    pub kind: Kind,
    /// Whether it must not hold.
    pub invert: bool,
    /// How it is joined with the next.
    pub relation: Relation,
    /// As it came, to be shown.
    bytes: Vec<u8>,
}

/// A list of matches; empty for one that every packet passes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tree {
    /// The matches, the first list first.
    pub matches: Vec<Match>,
    progid: u16,
    given: bool,
}

const META_HDR: u16 = 1;
const META_LVALUE: u16 = 2;
const META_RVALUE: u16 = 3;
const META_POLICY: [Type; 4] = policy(&[(META_HDR, Type::AtLeast(8))]);
/// `TCF_META_TYPE_INT`.
const META_INT: u16 = 1;

fn half(bytes: &[u8], at: usize) -> u16 {
    let bytes = bytes.get(at..at + 2).and_then(|bytes| bytes.first_chunk::<2>());
    bytes.map_or(0, |bytes| u16::from_ne_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> [u8; 4] {
    bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>()).copied().unwrap_or_default()
}

fn invalid() -> RequestError {
    RequestError::errno(EINVAL)
}

fn unsupported(message: &'static str) -> RequestError {
    RequestError::new(EOPNOTSUPP, message)
}

impl Kind {
    fn read(kind: u16, flags: u16, data: &[u8], place: u32, count: u32) -> Result<Self, RequestError> {
        let simple = flags & 8 != 0;
        let long = |len: usize| if data.len() < len || simple { Err(invalid()) } else { Ok(()) };
        Ok(match kind {
            0 => {
                if data.len() < 4 {
                    return Err(invalid());
                }
                let to = u32::from_ne_bytes(word(data, 0));
                if to >= count || to <= place {
                    return Err(invalid());
                }
                Self::Container(to)
            }
            1 => {
                long(12)?;
                // Bit fields of a little-endian machine: the first is in the lower half.
                let (Some(&a), Some(&b)) = (data.get(10), data.get(11)) else { return Err(invalid()) };
                let fields = |byte: u8| match cfg!(target_endian = "little") {
                    true => (byte & 0xf, byte >> 4),
                    false => (byte >> 4, byte & 0xf),
                };
                let ((width, flags), (layer, operator)) = (fields(a), fields(b));
                Self::Cmp {
                    value: u32::from_ne_bytes(word(data, 0)),
                    mask: u32::from_ne_bytes(word(data, 4)),
                    offset: half(data, 8),
                    width,
                    transform: flags & 1 != 0,
                    layer: Layer::from_number(layer),
                    operator: Operator::from_number(operator),
                }
            }
            2 => {
                long(4)?;
                let packed = half(data, 2);
                let (len, layer) = match cfg!(target_endian = "little") {
                    true => (packed & 0xfff, packed >> 12),
                    false => (packed >> 4, packed & 0xf),
                };
                let pattern = data.get(4..4 + usize::from(len)).ok_or_else(invalid)?.to_vec();
                Self::Nbyte { offset: half(data, 0), layer: Layer::from_number(layer as u8), pattern }
            }
            3 => {
                long(16)?;
                let number = |at| i32::from_ne_bytes(word(data, at));
                let (mask, value) = (word(data, 0), word(data, 4));
                Self::U32(Key { mask, value, offset: number(8), offset_mask: number(12) })
            }
            4 => {
                long(0)?;
                Self::read_meta(data)?
            }
            // Linux's answer where `em_canid` is not there.
            7 => return Err(RequestError::errno(ENOENT)),
            5..=9 => {
                return Err(unsupported(
                    "Of ematches, cmp, nbyte, u32 and meta are supported by this router",
                ));
            }
            _ => return Err(RequestError::errno(ENOENT)),
        })
    }

    fn read_meta(data: &[u8]) -> Result<Self, RequestError> {
        let attributes = crate::Attributes::parse(&META_POLICY, data, 0, crate::Validate::Liberal)
            .map_err(|error| RequestError::errno(error.errno))?;
        let header = attributes.get(META_HDR).ok_or_else(invalid)?.value;
        let operand = |at: usize, value: u16| {
            let (kind, shift) = (half(header, at), header.get(at + 2).copied().unwrap_or(0));
            if kind >> 12 > META_INT {
                return Err(invalid());
            }
            let bytes = attributes.get(value).map(|value| value.value);
            // A number of 4 or 8 bytes: for a value itself, else the mask.
            let number = match bytes {
                None => 0,
                Some(bytes) => match bytes.first_chunk::<8>() {
                    Some(bytes) => u64::from_ne_bytes(*bytes),
                    None if bytes.len() >= 4 => u32::from_ne_bytes(word(bytes, 0)).into(),
                    None => return Err(invalid()),
                },
            };
            if kind >> 12 != META_INT {
                return Err(unsupported("Names in meta are not supported by this router"));
            }
            let meta = match kind & 0x7ff {
                0 => Meta::Value(number),
                5 => Meta::Device,
                6 => Meta::Priority,
                7 => Meta::Protocol,
                9 => Meta::PacketLength,
                11 => Meta::MacLength,
                12 => Meta::Mark,
                46 => Meta::VlanTag,
                1..=47 => return Err(unsupported("This meta value is not supported by this router")),
                _ => return Err(invalid()),
            };
            let mask = if matches!(meta, Meta::Value(_)) { 0 } else { number };
            Ok((kind >> 12, Operand { meta, shift, mask }))
        };
        let ((kind, left), (other, right)) = (operand(0, META_LVALUE)?, operand(4, META_RVALUE)?);
        if kind != other {
            return Err(invalid());
        }
        let operator = Operator::from_number(header.get(3).copied().unwrap_or(0));
        Ok(Self::Meta { left, right, operator })
    }
}

impl Tree {
    /// Reads the tree.
    ///
    /// # Errors
    /// As Linux's `tcf_em_tree_validate`, which has no texts; `EOPNOTSUPP` with one for kinds that the router lacks.
    pub fn parse(attribute: &Attribute<'_>) -> Result<Self, RequestError> {
        let attributes = exts_options(attribute, &TREE_POLICY)?;
        let (Some(header), Some(list)) = (attributes.get(TREE_HDR), attributes.get(TREE_LIST)) else {
            return Err(invalid());
        };
        let count = half(header.value, 0);
        let mut matches = Vec::new();
        for (attribute, number) in list.nested().zip(1..=u16::MAX) {
            let bytes = attribute.value;
            if attribute.kind != number || number > count || bytes.len() < MATCH_HEADER {
                return Err(invalid());
            }
            let (kind, flags) = (half(bytes, 2), half(bytes, 4));
            let relation = match flags & 3 {
                0 => Relation::End,
                1 => Relation::And,
                2 => Relation::Or,
                _ => return Err(invalid()),
            };
            let data = bytes.get(MATCH_HEADER..).unwrap_or_default();
            let kind = Kind::read(kind, flags, data, (number - 1).into(), count.into())?;
            // What lies behind a match of a fixed length is not kept by `nbyte`.
            let kept = match &kind {
                Kind::Container(_) => MATCH_HEADER + 4,
                Kind::Nbyte { pattern, .. } => MATCH_HEADER + 4 + pattern.len(),
                _ => bytes.len(),
            };
            let bytes = bytes.get(..kept).unwrap_or(bytes).to_vec();
            matches.push(Match { kind, invert: flags & 4 != 0, relation, bytes });
        }
        if matches.len() != usize::from(count) {
            return Err(invalid());
        }
        Ok(Self { matches, progid: half(header.value, 2), given: true })
    }

    fn write(&self, reply: &mut Reply<'_>) {
        let tree = reply.nest_unflagged(EMATCHES);
        let count = self.matches.len() as u16;
        reply.attribute(TREE_HDR, &[count, self.progid].map(u16::to_ne_bytes).concat());
        let list = reply.nest_unflagged(TREE_LIST);
        for (one, number) in self.matches.iter().zip(1..) {
            reply.attribute(number, &one.bytes);
        }
        reply.end(list);
        reply.end(tree);
    }
}

/// A filter as a request describes it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// `classid`.
    pub class: Option<u32>,
    /// Actions.
    pub actions: Option<Attribute<'a>>,
    /// An old-style policer.
    pub police: Option<Attribute<'a>>,
    tree: Option<Attribute<'a>>,
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
            actions: attributes.get(ACT),
            police: attributes.get(POLICE),
            tree: attributes.get(EMATCHES),
        })
    }

    /// The matches, which Linux reads after the actions.
    ///
    /// # Errors
    /// As [`Tree::parse`].
    pub fn tree(&self) -> Result<Tree, RequestError> {
        self.tree.as_ref().map_or_else(|| Ok(Tree::default()), Tree::parse)
    }
}

/// Writes the options: class (0 for none), packets seen and chosen; `actions` writes those.
pub fn write(
    reply: &mut Reply<'_>,
    class: u32,
    (seen, chosen): (u64, u64),
    tree: &Tree,
    actions: impl FnOnce(&mut Reply<'_>),
) {
    if class != 0 {
        reply.u32(CLASSID, class);
    }
    reply.align_64(PAD);
    reply.attribute(PCNT, &[seen, chosen].map(u64::to_ne_bytes).concat());
    actions(reply);
    tree.write(reply);
}
