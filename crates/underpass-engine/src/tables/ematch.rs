//! Extended matches of `basic` filters: Linux's `net/sched/em_*.c`.

/// How a match is joined to what follows it. As in Linux there is no precedence: a sequence ends with the first match
/// that is false before an `And` or true before an `Or`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmatchJoin {
    /// The rest must hold too.
    And,
    /// Or the rest must hold.
    Or,
}

/// One match of a sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ematch {
    /// Whether it holds where `test` does not.
    pub invert: bool,
    /// The condition.
    pub test: EmatchTest,
    /// How it is joined to the next; what the last one says does not count.
    pub join: EmatchJoin,
}

/// The condition of an [`Ematch`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EmatchTest {
    /// A sequence in parentheses.
    Group(Vec<Ematch>),
    /// `cmp`: a number in the packet.
    Cmp(EmatchCmp),
    /// `u32`: four bytes at `offset` behind the network header, in host byte order, are `value` where `mask` has bits.
    U32 {
        /// What the bits must be.
        value: u32,
        /// Bits that count.
        mask: u32,
        /// In bytes, may be negative.
        offset: i32,
    },
    /// `nbyte`: these bytes.
    Nbyte {
        /// From where `offset` counts.
        layer: EmatchLayer,
        /// In bytes.
        offset: u16,
        /// What is there.
        bytes: Box<[u8]>,
    },
    /// `meta`: two values compared.
    Meta {
        /// On the left.
        left: MetaTerm,
        /// How.
        compare: EmatchCompare,
        /// On the right.
        right: MetaTerm,
    },
}

/// `cmp`: a number in the packet, compared with another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmatchCmp {
    /// From where `offset` counts.
    pub layer: EmatchLayer,
    /// In bytes.
    pub offset: u16,
    /// How many bytes the number has: 1, 2 or 4, the first the highest.
    pub width: u8,
    /// Whether its bytes are the other way round (`trans`, on a machine whose first byte is the lowest).
    pub swap: bool,
    /// Bits of it that count; 0: all.
    pub mask: u32,
    /// How it is compared.
    pub compare: EmatchCompare,
    /// With what.
    pub value: u32,
}

/// From where an offset counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmatchLayer {
    /// The link-layer header.
    Link,
    /// The header behind it.
    Network,
    /// The header of the transport protocol; nothing matches where there is none.
    Transport,
}

/// A comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmatchCompare {
    /// Equal.
    Equal,
    /// The left one is less.
    Less,
    /// The left one is greater.
    Greater,
}

/// One side of a `meta` match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetaTerm {
    /// A number.
    Number(u64),
    /// Of the packet: shifted right first, then masked; a mask of 0 is none.
    Of {
        /// What.
        value: MetaValue,
        /// Bits to the right.
        shift: u8,
        /// Bits that count.
        mask: u64,
    },
}

/// What `meta` can compare: those of `TCF_META_ID_*` that mean something without a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetaValue {
    /// A random number.
    Random,
    /// `skb->priority`.
    Priority,
    /// The EtherType.
    Protocol,
    /// `skb->pkt_type`: 0 for us, 1 broadcast, 2 multicast, 3 other station's, 4 outgoing.
    PacketType,
    /// Length in bytes, as `skb->len`: without the link layer at ingress, with it at egress.
    PacketLength,
    /// Bytes that are not in the head of the buffer: 0.
    DataLength,
    /// Length of the link-layer header.
    MacLength,
    /// The mark.
    Mark,
    /// `skb->tc_index`.
    TcIndex,
    /// The Linux index of the link.
    Device,
    /// Of the link that the packet came in by.
    IngressDevice,
    /// The VLAN tag's identifier and priority, 0 without one.
    VlanTag,
}
