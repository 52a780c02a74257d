//! `flower`: compares fields of the packet. Linux: `net/sched/cls_flower.c`.
//!
//! ```text
//! TCA_FLOWER_CLASSID, FLAGS (u32), ACT (actions), INDEV (a name), KEY_*: fields in network byte order, most with a
//! mask of the same length in an attribute of its own; VLANs, labels and ARP operations in host byte order
//! ```
//!
//! Which fields count depends on others: ports on the protocol, addresses on the Ethernet type. What does not count is
//! passed over, as in Linux.

use libc::{EBADMSG, EINVAL, EOPNOTSUPP};

use super::{exts_options, flags_valid};
use crate::RequestError;
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::reply::Reply;

const CLASSID: u16 = 1;
const INDEV: u16 = 2;
/// `TCA_FLOWER_ACT`: actions.
pub const ACT: u16 = 3;
const ETH_TYPE: u16 = 8;
const IP_PROTO: u16 = 9;
const FLAGS: u16 = 22;
const VLAN_ID: u16 = 23;
const VLAN_PRIO: u16 = 24;
const VLAN_ETH_TYPE: u16 = 25;
const KEY_FLAGS: u16 = 47;
const KEY_FLAGS_MASK: u16 = 48;
const MPLS_TTL: u16 = 67;
const MPLS_BOS: u16 = 68;
const MPLS_TC: u16 = 69;
const MPLS_LABEL: u16 = 70;
const CVLAN_ID: u16 = 77;
const CVLAN_PRIO: u16 = 78;
const CVLAN_ETH_TYPE: u16 = 79;
const IN_HW_COUNT: u16 = 86;
const SRC_MIN: u16 = 87;
const SRC_MAX: u16 = 88;
const DST_MIN: u16 = 89;
const DST_MAX: u16 = 90;
const MPLS_OPTS: u16 = 99;
const NUM_OF_VLANS: u16 = 102;
const MAX: usize = 112;

/// What Linux compares and this router does not: each attribute, and what `tc` calls it.
const ABSENT: [(u16, &str); 15] = [
    (84, "Tunnel options"),
    (85, "Tunnel options"),
    (91, "ct_state"),
    (93, "ct_zone"),
    (95, "ct_mark"),
    (97, "ct_label"),
    (100, "hash"),
    (103, "pppoe_sid"),
    (104, "ppp_proto"),
    (105, "l2tpv3_sid"),
    (106, "l2_miss"),
    (107, "cfm"),
    (108, "spi"),
    (110, "enc_flags"),
    (111, "enc_flags"),
];

/// A field of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Field {
    /// Destination MAC address.
    MacDestination,
    /// Source MAC address.
    MacSource,
    /// IP protocol.
    Protocol,
    /// Type of service or traffic class, with ECN.
    Tos,
    /// TTL or hop limit.
    Ttl,
    /// Source address of IPv4.
    Source4,
    /// Destination address of IPv4.
    Destination4,
    /// Source address of IPv6.
    Source6,
    /// Destination address of IPv6.
    Destination6,
    /// Source port of TCP, UDP or SCTP.
    SourcePort,
    /// Destination port.
    DestinationPort,
    /// Flags of TCP, 12 bits.
    TcpFlags,
    /// Type of ICMP or ICMPv6.
    IcmpType,
    /// Code of ICMP or ICMPv6.
    IcmpCode,
    /// IPv4 address of the sender of ARP.
    ArpSource,
    /// IPv4 address that ARP asks for.
    ArpTarget,
    /// Operation of ARP.
    ArpOperation,
    /// MAC address of the sender of ARP.
    ArpSourceMac,
    /// MAC address that ARP asks for.
    ArpTargetMac,
    /// Source address of the outer IPv4 header.
    TunnelSource4,
    /// Destination address of the outer IPv4 header.
    TunnelDestination4,
    /// Source address of the outer IPv6 header.
    TunnelSource6,
    /// Destination address of the outer IPv6 header.
    TunnelDestination6,
    /// Key of the tunnel.
    TunnelKey,
    /// Source port of the outer UDP header.
    TunnelSourcePort,
    /// Destination port of the outer UDP header.
    TunnelDestinationPort,
    /// Type of service of the outer header.
    TunnelTos,
    /// TTL of the outer header.
    TunnelTtl,
}

/// An attribute of a field, that of its mask (0: it has none), its length in bytes.
type Plain = (Field, u16, u16, usize);

const ETHERNET: [Plain; 2] = [(Field::MacDestination, 4, 5, 6), (Field::MacSource, 6, 7, 6)];
const IP: [Plain; 3] = [(Field::Protocol, IP_PROTO, 0, 1), (Field::Tos, 73, 74, 1), (Field::Ttl, 75, 76, 1)];
const IPV4: [Plain; 2] = [(Field::Source4, 10, 11, 4), (Field::Destination4, 12, 13, 4)];
const IPV6: [Plain; 2] = [(Field::Source6, 14, 15, 16), (Field::Destination6, 16, 17, 16)];
const TCP: [Plain; 3] =
    [(Field::SourcePort, 18, 35, 2), (Field::DestinationPort, 19, 36, 2), (Field::TcpFlags, 71, 72, 2)];
const UDP: [Plain; 2] = [(Field::SourcePort, 20, 37, 2), (Field::DestinationPort, 21, 38, 2)];
const SCTP: [Plain; 2] = [(Field::SourcePort, 41, 39, 2), (Field::DestinationPort, 42, 40, 2)];
const ICMP: [Plain; 2] = [(Field::IcmpType, 51, 52, 1), (Field::IcmpCode, 49, 50, 1)];
const ICMPV6: [Plain; 2] = [(Field::IcmpType, 55, 56, 1), (Field::IcmpCode, 53, 54, 1)];
const ARP: [Plain; 5] = [
    (Field::ArpSource, 57, 58, 4),
    (Field::ArpTarget, 59, 60, 4),
    (Field::ArpOperation, 61, 62, 1),
    (Field::ArpSourceMac, 63, 64, 6),
    (Field::ArpTargetMac, 65, 66, 6),
];
const TUNNEL4: [Plain; 2] = [(Field::TunnelSource4, 27, 28, 4), (Field::TunnelDestination4, 29, 30, 4)];
const TUNNEL6: [Plain; 2] = [(Field::TunnelSource6, 31, 32, 16), (Field::TunnelDestination6, 33, 34, 16)];
const TUNNEL: [Plain; 5] = [
    (Field::TunnelKey, 26, 0, 4),
    (Field::TunnelSourcePort, 43, 44, 2),
    (Field::TunnelDestinationPort, 45, 46, 2),
    (Field::TunnelTos, 80, 81, 1),
    (Field::TunnelTtl, 82, 83, 1),
];
const GROUPS: [&[Plain]; 13] =
    [&ETHERNET, &IP, &IPV4, &IPV6, &TCP, &UDP, &SCTP, &ICMP, &ICMPV6, &ARP, &TUNNEL4, &TUNNEL6, &TUNNEL];

#[expect(
    clippy::indexing_slicing,
    reason = "a constant: an index beyond the end is an error of the compiler"
)]
const POLICY: [Type; MAX] = {
    let mut policy: [Type; MAX] = policy(&[
        (CLASSID, Type::U32),
        (INDEV, Type::String(16)),
        (ETH_TYPE, Type::U16),
        (VLAN_ID, Type::U16),
        (VLAN_PRIO, Type::U8),
        (VLAN_ETH_TYPE, Type::U16),
        (KEY_FLAGS, Type::U32),
        (KEY_FLAGS_MASK, Type::U32),
        (MPLS_TTL, Type::U8),
        (MPLS_BOS, Type::U8),
        (MPLS_TC, Type::U8),
        (MPLS_LABEL, Type::U32),
        (MPLS_OPTS, Type::Nested),
        (CVLAN_ID, Type::U16),
        (CVLAN_PRIO, Type::U8),
        (CVLAN_ETH_TYPE, Type::U16),
        (FLAGS, Type::U32),
        (NUM_OF_VLANS, Type::U8),
    ]);
    let mut group = 0;
    while group < GROUPS.len() {
        let mut i = 0;
        while i < GROUPS[group].len() {
            let (_, attribute, mask, len) = GROUPS[group][i];
            policy[attribute as usize] = Type::AtLeast(len as u16);
            if mask != 0 {
                policy[mask as usize] = Type::AtLeast(len as u16);
            }
            i += 1;
        }
        group += 1;
    }
    policy
};

const IPV4_TYPE: u16 = 0x0800;
const IPV6_TYPE: u16 = 0x86dd;
const ARP_TYPES: [u16; 2] = [0x0806, 0x8035];
const MPLS_TYPES: [u16; 2] = [0x8847, 0x8848];
const VLAN_TYPES: [u16; 2] = [0x8100, 0x88a8];

/// Labels of a stack that can be compared.
pub const LABELS: usize = 7;

/// What a label must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Label {
    /// Label, 20 bits.
    pub label: Option<u32>,
    /// Traffic class, 3 bits.
    pub tc: Option<u8>,
    /// Bottom of stack.
    pub bos: Option<u8>,
    /// TTL.
    pub ttl: Option<u8>,
}

/// What a VLAN tag must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vlan {
    /// Its Ethernet type, in host byte order.
    pub tpid: Option<u16>,
    /// VLAN, 12 bits.
    pub id: Option<u16>,
    /// Priority, 3 bits.
    pub priority: Option<u8>,
    /// The Ethernet type behind it, in host byte order.
    pub next: Option<u16>,
}

/// A field, what it must be, and which of its bits count; both in network byte order, as long as the field is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    /// Which field.
    pub field: Field,
    /// Bytes of it.
    pub len: usize,
    /// What it must be.
    pub value: [u8; 16],
    /// Which bits.
    pub mask: [u8; 16],
    attributes: (u16, u16),
}

/// What is compared.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keys {
    /// Plain fields.
    pub values: Vec<Value>,
    /// The Ethernet type behind all tags, in host byte order.
    pub ethertype: Option<u16>,
    /// How many VLAN tags there are.
    pub vlans: Option<u8>,
    /// The outer tag.
    pub vlan: Vlan,
    /// The tag behind it.
    pub inner_vlan: Vlan,
    /// Labels that must be there, the outermost first.
    pub labels: [Option<Label>; LABELS],
    /// Least and greatest source port, in host byte order.
    pub source_ports: Option<(u16, u16)>,
    /// Least and greatest destination port.
    pub destination_ports: Option<(u16, u16)>,
    /// Whether it is a fragment (bit 0), and the first (bit 1); and which of the two count.
    pub fragment: Option<(u8, u8)>,
}

impl Keys {
    /// What is compared.
    ///
    /// # Errors
    /// As Linux's `fl_set_key`; `EOPNOTSUPP` for fields that the router does not compare.
    pub fn parse(options: &Attribute<'_>) -> Result<Self, RequestError> {
        Self::read(&exts_options(options, &POLICY)?)
    }

    fn read(attributes: &Attributes<'_, MAX>) -> Result<Self, RequestError> {
        for (kind, name) in ABSENT {
            if let Some(attribute) = attributes.get(kind) {
                let message = format!("{name} of flower is not supported by this router");
                return Err(RequestError::with_text(EOPNOTSUPP, message).at(attribute.offset));
            }
        }
        let mut keys =
            Self { vlans: attributes.get(NUM_OF_VLANS).map(|count| count.u8()), ..Self::default() };
        keys.take(attributes, &ETHERNET);
        keys.read_tags(attributes);
        let kind = keys.ethertype.unwrap_or(0);
        let ip = [IPV4_TYPE, IPV6_TYPE].contains(&kind);
        if ip {
            keys.take(attributes, &IP);
        }
        let any = |group: &[Plain]| group.iter().any(|(_, kind, ..)| attributes.get(*kind).is_some());
        if any(&IPV4) {
            keys.take(attributes, &IPV4);
        } else if any(&IPV6) {
            keys.take(attributes, &IPV6);
        }
        let protocol = attributes.get(IP_PROTO).filter(|_| ip).map_or(0, |protocol| protocol.u8());
        let group: &[Plain] = match i32::from(protocol) {
            libc::IPPROTO_TCP => &TCP,
            libc::IPPROTO_UDP => &UDP,
            libc::IPPROTO_SCTP => &SCTP,
            libc::IPPROTO_ICMP if kind == IPV4_TYPE => &ICMP,
            libc::IPPROTO_ICMPV6 if kind == IPV6_TYPE => &ICMPV6,
            _ if ARP_TYPES.contains(&kind) => &ARP,
            _ => &[],
        };
        keys.take(attributes, group);
        if MPLS_TYPES.contains(&kind) {
            keys.read_labels(attributes)?;
        }
        if [libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_SCTP].contains(&protocol.into()) {
            keys.read_ranges(attributes)?;
        }
        keys.take(attributes, if any(&TUNNEL6) { &TUNNEL6 } else { &TUNNEL4 });
        keys.take(attributes, &TUNNEL);
        if let Some(flags) = attributes.get(KEY_FLAGS) {
            let missing = RequestError::new(EINVAL, "Missing flags mask");
            let mask = attributes.get(KEY_FLAGS_MASK).ok_or(missing)?.be32();
            if mask & !3 != 0 {
                let message = "Of the flags of flower, those of fragments are supported by this router";
                return Err(RequestError::new(EOPNOTSUPP, message).at(flags.offset));
            }
            keys.fragment = (mask != 0).then_some((flags.be32() as u8 & mask as u8, mask as u8));
        }
        Ok(keys)
    }

    fn take(&mut self, attributes: &Attributes<'_, MAX>, group: &[Plain]) {
        for &(field, kind, mask_kind, len) in group {
            let Some(attribute) = attributes.get(kind) else { continue };
            let read = |attribute: Attribute<'_>| {
                let mut bytes = [0; 16];
                bytes.iter_mut().zip(attribute.value).take(len).for_each(|(to, from)| *to = *from);
                bytes
            };
            let all = {
                let mut bytes = [0; 16];
                bytes.iter_mut().take(len).for_each(|byte| *byte = 0xff);
                bytes
            };
            let mask = attributes.get(mask_kind).filter(|_| mask_kind != 0).map_or(all, read);
            let attributes = (kind, mask_kind);
            self.values.push(Value { field, len, value: read(attribute), mask, attributes });
        }
    }

    fn read_tags(&mut self, attributes: &Attributes<'_, MAX>) {
        let half = |kind| attributes.get(kind).map(|attribute: Attribute<'_>| attribute.be16());
        let tags = self.vlans.unwrap_or(0);
        // What says that there is a tag, if anything does.
        let tagged = |keys: &mut Self, kind: Option<u16>, least: u8| match kind {
            None => (tags > least).then_some(None),
            Some(kind) if tags > least || VLAN_TYPES.contains(&kind) => Some(Some(kind)),
            Some(kind) => {
                keys.ethertype = Some(kind);
                None
            }
        };
        let read = |tpid: Option<u16>, id, priority, next| Vlan {
            tpid: tpid.filter(|tpid| *tpid != 0),
            id: attributes.get(id).map(|id: Attribute<'_>| id.u16() & 0xfff),
            priority: attributes.get(priority).map(|priority: Attribute<'_>| priority.u8() & 7),
            next: half(next),
        };
        let Some(tpid) = tagged(self, half(ETH_TYPE), 0) else { return };
        self.vlan = read(tpid, VLAN_ID, VLAN_PRIO, VLAN_ETH_TYPE);
        let Some(tpid) = tagged(self, half(VLAN_ETH_TYPE), 1) else { return };
        self.inner_vlan = read(tpid, CVLAN_ID, CVLAN_PRIO, CVLAN_ETH_TYPE);
        self.ethertype = half(CVLAN_ETH_TYPE).or(self.ethertype);
    }

    fn read_labels(&mut self, attributes: &Attributes<'_, MAX>) -> Result<(), RequestError> {
        let plain = [MPLS_TTL, MPLS_BOS, MPLS_TC, MPLS_LABEL].map(|kind| attributes.get(kind));
        let Some(options) = attributes.get(MPLS_OPTS) else {
            if plain.iter().any(Option::is_some) {
                self.labels[0] = Some(read_label(plain)?);
            }
            return Ok(());
        };
        if plain.iter().any(Option::is_some) {
            let message = "MPLS label, Traffic Class, Bottom Of Stack and Time To Live must be encapsulated in the \
                           MPLS options attribute";
            return Err(RequestError::new(EBADMSG, message).at(options.offset));
        }
        const POLICY: [Type; 6] =
            policy(&[(1, Type::U8), (2, Type::U8), (3, Type::U8), (4, Type::U8), (5, Type::U32)]);
        for entry in options.nested() {
            if entry.kind != 1 {
                return Err(entry.invalid("Invalid MPLS option type"));
            }
            let entry = entry.parse_nested(&POLICY, Validate::Strict)?;
            let depth = entry.get(1).ok_or(RequestError::new(EINVAL, "Missing MPLS option \"depth\""))?;
            let place = usize::from(depth.u8()).checked_sub(1);
            let slot = place.and_then(|place| self.labels.get_mut(place));
            let slot = slot.ok_or_else(|| depth.invalid("Invalid MPLS depth"))?;
            *slot = Some(read_label([2, 3, 4, 5].map(|kind| entry.get(kind)))?);
        }
        Ok(())
    }

    fn read_ranges(&mut self, attributes: &Attributes<'_, MAX>) -> Result<(), RequestError> {
        let range = |least, most, both, order| match (attributes.get(least), attributes.get(most)) {
            (None, None) => Ok(None),
            (Some(least), Some(most)) if most.be16() > least.be16() => Ok(Some((least.be16(), most.be16()))),
            (Some(least), Some(_)) => Err(least.invalid(order)),
            _ => Err(RequestError::new(EINVAL, both)),
        };
        let destination = range(
            DST_MIN,
            DST_MAX,
            "Both min and max destination ports must be specified",
            "Invalid destination port range (min must be strictly smaller than max)",
        );
        let source = range(
            SRC_MIN,
            SRC_MAX,
            "Both min and max source ports must be specified",
            "Invalid source port range (min must be strictly smaller than max)",
        );
        self.destination_ports = destination?;
        self.source_ports = source?;
        Ok(())
    }

    /// Writes the attributes of what is compared, `indev` among them.
    pub fn write(&self, reply: &mut Reply<'_>, indev: Option<&str>) {
        if let Some(indev) = indev {
            reply.text(INDEV, indev);
        }
        for value in &self.values {
            let (kind, mask) = value.attributes;
            let cut = |bytes: &[u8; 16]| bytes.get(..value.len).unwrap_or(bytes).to_vec();
            if cut(&value.mask).iter().all(|byte| *byte == 0) {
                continue;
            }
            reply.attribute(kind, &cut(&value.value));
            if mask != 0 {
                reply.attribute(mask, &cut(&value.mask));
            }
        }
        let half = |reply: &mut Reply<'_>, kind, value: Option<u16>| {
            if let Some(value) = value {
                reply.be16(kind, value);
            }
        };
        half(reply, ETH_TYPE, self.ethertype);
        if let Some(count) = self.vlans.filter(|_| self.vlans.is_some()) {
            reply.u8(NUM_OF_VLANS, count);
        }
        self.write_labels(reply);
        for (vlan, id, priority) in [(self.vlan, VLAN_ID, VLAN_PRIO), (self.inner_vlan, CVLAN_ID, CVLAN_PRIO)]
        {
            if let Some(value) = vlan.id {
                reply.u16(id, value);
            }
            if let Some(value) = vlan.priority {
                reply.u8(priority, value);
            }
        }
        half(reply, VLAN_ETH_TYPE, self.inner_vlan.tpid);
        if self.ethertype.is_some() {
            if self.inner_vlan.next.is_some() {
                half(reply, CVLAN_ETH_TYPE, self.ethertype);
            } else {
                half(reply, VLAN_ETH_TYPE, self.vlan.next);
            }
        }
        for (range, least, most) in
            [(self.destination_ports, DST_MIN, DST_MAX), (self.source_ports, SRC_MIN, SRC_MAX)]
        {
            if let Some((low, high)) = range {
                reply.be16(least, low);
                reply.be16(most, high);
            }
        }
        if let Some((flags, mask)) = self.fragment {
            reply.be32(KEY_FLAGS, flags.into());
            reply.be32(KEY_FLAGS_MASK, mask.into());
        }
    }

    fn write_labels(&self, reply: &mut Reply<'_>) {
        let deeper = self.labels.iter().skip(1).any(Option::is_some);
        if let (Some(label), false) = (self.labels[0], deeper)
            && label != Label::default()
        {
            write_label(reply, [MPLS_TTL, MPLS_BOS, MPLS_TC, MPLS_LABEL], label);
        } else if deeper || self.labels[0].is_some() {
            let options = reply.nest(MPLS_OPTS);
            for (label, depth) in self.labels.iter().zip(1..) {
                let Some(label) = label else { continue };
                let entry = reply.nest(1);
                reply.u8(1, depth);
                write_label(reply, [2, 3, 4, 5], *label);
                reply.end(entry);
            }
            reply.end(options);
        }
    }
}

/// A label from its TTL, bottom of stack, traffic class and label.
fn read_label([ttl, bos, tc, label]: [Option<Attribute<'_>>; 4]) -> Result<Label, RequestError> {
    if let Some(bos) = bos.filter(|bos| bos.u8() > 1) {
        return Err(bos.invalid("Bottom Of Stack (BOS) must be 0 or 1"));
    }
    if let Some(tc) = tc.filter(|tc| tc.u8() > 7) {
        return Err(tc.invalid("Traffic Class (TC) must be between 0 and 7"));
    }
    if let Some(label) = label.filter(|label| label.u32() >= 1 << 20) {
        return Err(label.invalid("Label must be between 0 and 1048575"));
    }
    let byte = |attribute: Option<Attribute<'_>>| attribute.map(|attribute| attribute.u8());
    Ok(Label { label: label.map(|label| label.u32()), tc: byte(tc), bos: byte(bos), ttl: byte(ttl) })
}

fn write_label(reply: &mut Reply<'_>, [ttl, bos, tc, label]: [u16; 4], value: Label) {
    for (kind, value) in [(ttl, value.ttl), (bos, value.bos), (tc, value.tc)] {
        if let Some(value) = value {
            reply.u8(kind, value);
        }
    }
    if let Some(value) = value.label {
        reply.u32(label, value);
    }
}

/// A filter as a request describes it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// `classid`.
    pub class: Option<u32>,
    /// `TCA_CLS_FLAGS_*`.
    pub flags: u32,
    /// Actions.
    pub actions: Option<Attribute<'a>>,
    /// The link that packets come in by, its name.
    pub indev: Option<String>,
    attributes: Box<Attributes<'a, MAX>>,
}

impl<'a> Request<'a> {
    /// Reads the options.
    ///
    /// # Errors
    /// What breaks the policy, or flags that there are not; without texts.
    pub fn parse(options: &Attribute<'a>) -> Result<Self, RequestError> {
        let attributes = Box::new(exts_options(options, &POLICY)?);
        let flags = attributes.get(FLAGS).map_or(0, |flags| flags.u32());
        if !flags_valid(flags) {
            return Err(RequestError::errno(EINVAL));
        }
        Ok(Self {
            class: attributes.get(CLASSID).map(|class| class.u32()),
            flags,
            actions: attributes.get(ACT),
            indev: attributes.get(INDEV).map(|name| name.text()),
            attributes,
        })
    }

    /// What is compared, which Linux reads after the actions.
    ///
    /// # Errors
    /// As [`Keys::parse`].
    pub fn keys(&self) -> Result<Keys, RequestError> {
        Keys::read(&self.attributes)
    }
}

/// Writes the options: class (0 for none), what is compared, flags; `actions` writes those.
pub fn write(
    reply: &mut Reply<'_>,
    class: u32,
    keys: &Keys,
    indev: Option<&str>,
    flags: u32,
    actions: impl FnOnce(&mut Reply<'_>),
) {
    if class != 0 {
        reply.u32(CLASSID, class);
    }
    keys.write(reply, indev);
    if flags != 0 {
        reply.u32(FLAGS, flags);
    }
    reply.u32(IN_HW_COUNT, 0);
    actions(reply);
}
