//! The generic netlink header, and the numbers of the families that the router answers for.
//!
//! ```text
//! |    command    |    version    |           reserved            |
//! ```

/// Length of the generic netlink header, in bytes.
pub const HEADER: usize = 4;

/// The header of an answer.
pub const fn header(command: u8, version: u8) -> [u8; HEADER] {
    [command, version, 0, 0]
}

/// `nlctrl`, the family that knows the families. Linux: `include/uapi/linux/genetlink.h`.
pub mod control {
    /// Its message type, `GENL_ID_CTRL`.
    pub const ID: u16 = 0x10;
    /// Announces a family.
    pub const NEWFAMILY: u8 = 1;
    /// Asks for a family by name or id, or for all.
    pub const GETFAMILY: u8 = 3;
    /// u16.
    pub const ATTR_FAMILY_ID: u16 = 1;
    /// String of at most 15 bytes.
    pub const ATTR_FAMILY_NAME: u16 = 2;
    /// u32.
    pub const ATTR_VERSION: u16 = 3;
    /// u32: length of the family's own header.
    pub const ATTR_HDRSIZE: u16 = 4;
    /// u32: highest attribute type.
    pub const ATTR_MAXATTR: u16 = 5;
    /// Nested array of [`ATTR_OP_ID`] and [`ATTR_OP_FLAGS`].
    pub const ATTR_OPS: u16 = 6;
    /// u32: a command.
    pub const ATTR_OP_ID: u16 = 1;
    /// u32: `GENL_*` flags of a command.
    pub const ATTR_OP_FLAGS: u16 = 2;
    /// Nested array of [`ATTR_MCAST_GRP_ID`] and [`ATTR_MCAST_GRP_NAME`].
    pub const ATTR_MCAST_GROUPS: u16 = 7;
    /// String: the name of a multicast group.
    pub const ATTR_MCAST_GRP_NAME: u16 = 1;
    /// u32: its number.
    pub const ATTR_MCAST_GRP_ID: u16 = 2;
}

/// `psample`, packets that the action `sample` shows. Linux: `include/uapi/linux/psample.h`.
pub mod psample {
    /// Its version, in the generic netlink header.
    pub const VERSION: u8 = 1;
    /// A packet, for the group `packets`.
    pub const CMD_SAMPLE: u8 = 0;
    /// Lists the groups of samples.
    pub const CMD_GET_GROUP: u8 = 1;
    /// There is a group now, for the group `config`, or one of the list.
    pub const CMD_NEW_GROUP: u8 = 2;
    /// It is no more.
    pub const CMD_DEL_GROUP: u8 = 3;
    /// u16: interface index of the link that the packet came in by.
    pub const ATTR_IIFINDEX: u16 = 0;
    /// u16: that of the link that it leaves by.
    pub const ATTR_OIFINDEX: u16 = 1;
    /// u32: length of the packet.
    pub const ATTR_ORIGSIZE: u16 = 2;
    /// u32: number of a group.
    pub const ATTR_SAMPLE_GROUP: u16 = 3;
    /// u32: number of the sample in its group, or how many the group has had.
    pub const ATTR_GROUP_SEQ: u16 = 4;
    /// u32: one of so many packets.
    pub const ATTR_SAMPLE_RATE: u16 = 5;
    /// The packet, or its first bytes.
    pub const ATTR_DATA: u16 = 6;
    /// u32: how many use a group.
    pub const ATTR_GROUP_REFCOUNT: u16 = 7;
    /// Aligns what follows it.
    pub const ATTR_PAD: u16 = 9;
    /// u64: nanoseconds since 1970.
    pub const ATTR_TIMESTAMP: u16 = 13;
    /// u16: EtherType, in host byte order.
    pub const ATTR_PROTO: u16 = 14;
    /// The cookie of the action.
    pub const ATTR_USER_COOKIE: u16 = 15;
    /// `PSAMPLE_ATTR_MAX`.
    pub const ATTR_MAX: u16 = 16;
    /// `PSAMPLE_MAX_PACKET_SIZE`: bytes of the attributes of a sample.
    pub const MAX_SIZE: usize = 0xffff;
}

/// `IOAM6`, Linux: `include/uapi/linux/ioam6_genl.h`.
pub mod ioam6 {
    /// Its version, in the generic netlink header.
    pub const VERSION: u8 = 1;
    /// Adds a namespace: [`ATTR_NS_ID`] and what data it has.
    pub const CMD_ADD_NAMESPACE: u8 = 1;
    /// Deletes one.
    pub const CMD_DEL_NAMESPACE: u8 = 2;
    /// Lists them.
    pub const CMD_DUMP_NAMESPACES: u8 = 3;
    /// Adds a schema: [`ATTR_SC_ID`] and [`ATTR_SC_DATA`].
    pub const CMD_ADD_SCHEMA: u8 = 4;
    /// Deletes one.
    pub const CMD_DEL_SCHEMA: u8 = 5;
    /// Lists them.
    pub const CMD_DUMP_SCHEMAS: u8 = 6;
    /// Gives a namespace a schema, or with [`ATTR_SC_NONE`] none.
    pub const CMD_NS_SET_SCHEMA: u8 = 7;
    /// u16: id of a namespace.
    pub const ATTR_NS_ID: u16 = 1;
    /// u32.
    pub const ATTR_NS_DATA: u16 = 2;
    /// u64.
    pub const ATTR_NS_DATA_WIDE: u16 = 3;
    /// u32: id of a schema.
    pub const ATTR_SC_ID: u16 = 4;
    /// At most [`MAX_SCHEMA_DATA`] bytes.
    pub const ATTR_SC_DATA: u16 = 5;
    /// Flag.
    pub const ATTR_SC_NONE: u16 = 6;
    /// Aligns what follows it.
    pub const ATTR_PAD: u16 = 7;
    /// `IOAM6_MAX_SCHEMA_DATA_LEN`.
    pub const MAX_SCHEMA_DATA: u16 = 255 * 4;
}

/// `SEG6`, Linux: `include/uapi/linux/seg6_genl.h`.
pub mod seg6 {
    /// Sets the secret of an HMAC key.
    pub const CMD_SETHMAC: u8 = 1;
    /// Lists the HMAC keys.
    pub const CMD_DUMPHMAC: u8 = 2;
    /// Sets the source address of encapsulations.
    pub const CMD_SET_TUNSRC: u8 = 3;
    /// Gets it.
    pub const CMD_GET_TUNSRC: u8 = 4;
    /// An IPv6 address.
    pub const ATTR_DST: u16 = 1;
    /// u32: the id of an HMAC key, not 0.
    pub const ATTR_HMACKEYID: u16 = 3;
    /// The secret of a key.
    pub const ATTR_SECRET: u16 = 4;
    /// u8: how many of its bytes count.
    pub const ATTR_SECRETLEN: u16 = 5;
    /// u8: `SEG6_HMAC_ALGO_*`.
    pub const ATTR_ALGID: u16 = 6;
    /// Highest attribute type.
    pub const ATTR_MAX: u16 = 7;
}
