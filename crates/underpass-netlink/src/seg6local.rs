//! SRv6 local SIDs on routes: `RTA_ENCAP` of type `seg6local`. Linux: `net/ipv6/seg6_local.c`.

mod flavors;

use std::net::{Ipv4Addr, Ipv6Addr};

use libc::{AF_INET6, EINVAL};
use strum::VariantArray;

use crate::RequestError;
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::reply::Reply;
use crate::seg6::SegmentList;

pub use flavors::{FLAVOR_NEXT_CSID, FLAVOR_PSP, FLAVOR_REPLACE_CSID, FLAVOR_USD, FLAVOR_USP, Flavors};

const ACTION: u16 = 1;
const SRH: u16 = 2;
const TABLE: u16 = 3;
const NH4: u16 = 4;
const NH6: u16 = 5;
const IIF: u16 = 6;
const OIF: u16 = 7;
const BPF: u16 = 8;
const VRFTABLE: u16 = 9;
const COUNTERS: u16 = 10;
const FLAVORS: u16 = 11;

/// Arg.FE2 of End.DT2M, far behind the attributes of Linux: bits of the SID before it, interfaces that it has room for, bits of each.
const FE2: u16 = 31;

/// How many attributes there are, with the numbers of none between.
const ATTRIBUTES: usize = 32;

const POLICY: [Type; ATTRIBUTES] = policy(&[
    (ACTION, Type::U32),
    (SRH, Type::Any),
    (TABLE, Type::U32),
    (NH4, Type::Exact(4)),
    (NH6, Type::Exact(16)),
    (IIF, Type::U32),
    (OIF, Type::U32),
    (BPF, Type::Nested),
    (VRFTABLE, Type::U32),
    (COUNTERS, Type::Nested),
    (FLAVORS, Type::Nested),
    (FE2, Type::Exact(3)),
]);

const CNT_PAD: u16 = 1;
const CNT_PACKETS: u16 = 2;
const CNT_BYTES: u16 = 3;
const CNT_ERRORS: u16 = 4;
const CNT_POLICY: [Type; 5] =
    policy(&[(CNT_PACKETS, Type::U64), (CNT_BYTES, Type::U64), (CNT_ERRORS, Type::U64)]);

const BPF_PROG: u16 = 1;
const BPF_PROG_NAME: u16 = 2;
/// `MAX_PROG_NAME`.
const PROG_NAME: u16 = 256;
const BPF_POLICY: [Type; 3] = policy(&[(BPF_PROG, Type::U32), (BPF_PROG_NAME, Type::String(PROG_NAME))]);

/// Marks the actions that Linux has no number for: with the number that IANA has given the behaviour (RFC 8986 section 10.2)
/// below it. Linux counts its own from 1, and has given none to these that could be relied on.
const EXPERIMENTAL: u32 = 1 << 31;

/// `SEG6_LOCAL_ACTION_*` that Linux implements, and others of the router's own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, VariantArray)]
#[repr(u32)]
pub enum Action {
    /// RFC 8986 section 4.1.
    End = 1,
    /// RFC 8986 section 4.2.
    EndX = 2,
    /// RFC 8986 section 4.3.
    EndT = 3,
    /// RFC 8986 section 4.9.
    EndDX2 = 4,
    /// RFC 8986 section 4.4.
    EndDX6 = 5,
    /// RFC 8986 section 4.5.
    EndDX4 = 6,
    /// RFC 8986 section 4.6.
    EndDT6 = 7,
    /// RFC 8986 section 4.7.
    EndDT4 = 8,
    /// Inserts an SRH.
    EndB6 = 9,
    /// RFC 8986 section 4.13.
    EndB6Encaps = 10,
    /// What a BPF program says.
    EndBpf = 15,
    /// RFC 8986 section 4.8.
    EndDT46 = 16,
    /// RFC 8986 section 4.10.
    EndDX2V = EXPERIMENTAL | 22,
    /// RFC 8986 section 4.11.
    EndDT2U = EXPERIMENTAL | 23,
    /// RFC 8986 section 4.12.
    EndDT2M = EXPERIMENTAL | 24,
}

impl Action {
    /// Its name, as `ip` writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::End => "End",
            Self::EndX => "End.X",
            Self::EndT => "End.T",
            Self::EndDX2 => "End.DX2",
            Self::EndDX6 => "End.DX6",
            Self::EndDX4 => "End.DX4",
            Self::EndDT6 => "End.DT6",
            Self::EndDT4 => "End.DT4",
            Self::EndB6 => "End.B6",
            Self::EndB6Encaps => "End.B6.Encaps",
            Self::EndBpf => "End.BPF",
            Self::EndDT46 => "End.DT46",
            Self::EndDX2V => "End.DX2V",
            Self::EndDT2U => "End.DT2U",
            Self::EndDT2M => "End.DT2M",
        }
    }

    /// Whether its number is the router's own: Linux has none, and answers EINVAL.
    pub const fn is_experimental(self) -> bool {
        self as u32 & EXPERIMENTAL != 0
    }

    /// The attribute without which the action is refused; 0 for none.
    const fn required(self) -> u16 {
        match self {
            Self::End | Self::EndDT6 => 0,
            Self::EndX | Self::EndDX6 => NH6,
            Self::EndDX4 => NH4,
            Self::EndT => TABLE,
            Self::EndDX2 | Self::EndDX2V | Self::EndDT2U | Self::EndDT2M => OIF,
            Self::EndDT4 | Self::EndDT46 => VRFTABLE,
            Self::EndB6 | Self::EndB6Encaps => SRH,
            Self::EndBpf => BPF,
        }
    }

    /// Whether the action reads the attribute. Linux ignores any other.
    const fn reads(self, attribute: u16) -> bool {
        match attribute {
            COUNTERS => true,
            FLAVORS => self.flavors() != 0,
            FE2 => matches!(self, Self::EndDT2M),
            TABLE | VRFTABLE if matches!(self, Self::EndDT6) => true,
            _ => self.required() == attribute,
        }
    }

    /// Which flavours it may have: those of RFC 8986 section 4.16 and RFC 9800 sections 4.1 and 4.2. Linux
    /// has PSP and NEXT-CSID of End, and NEXT-CSID of End.X.
    const fn flavors(self) -> u32 {
        match self {
            Self::End | Self::EndX | Self::EndT => {
                FLAVOR_PSP | FLAVOR_USP | FLAVOR_USD | FLAVOR_NEXT_CSID | FLAVOR_REPLACE_CSID
            }
            _ => 0,
        }
    }
}

/// `SEG6_LOCAL_BPF`: the program of End.BPF.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bpf {
    /// In a request the number of its descriptor, in an answer its id.
    pub program: u32,
    /// Whatever the one who loaded it called it, without the NUL at its end.
    pub name: Box<[u8]>,
}

impl Bpf {
    /// Linux: `parse_nla_bpf`.
    fn parse(bpf: &Attribute<'_>) -> Result<Self, RequestError> {
        let inside = bpf.parse_nested(&BPF_POLICY, Validate::Liberal).map_err(quiet)?;
        let (Some(program), Some(name)) = (inside.get(BPF_PROG), inside.get(BPF_PROG_NAME)) else {
            return Err(RequestError::errno(EINVAL));
        };
        // NLA_NUL_STRING of Linux.
        let end = name.value.iter().position(|byte| *byte == 0).ok_or(RequestError::errno(EINVAL))?;
        let name = name.value.get(..end).unwrap_or_default();
        Ok(Self { program: program.u32(), name: name.into() })
    }

    fn write(&self, reply: &mut Reply<'_>) {
        let nest = reply.nest(BPF);
        reply.u32(BPF_PROG, self.program);
        reply.attribute(BPF_PROG_NAME, &[&self.name, &[0][..]].concat());
        reply.end(nest);
    }
}

/// Arg.FE2 of End.DT2M: RFC 8986 section 4.12.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ArgFe2 {
    /// Bits of the SID before it.
    pub at: u8,
    /// How many interfaces it has room for.
    pub count: u8,
    /// Bits of each.
    pub bits: u8,
}

impl ArgFe2 {
    fn parse(argument: &Attribute<'_>) -> Result<Self, RequestError> {
        let [at, count, bits] = <[u8; 3]>::try_from(argument.value).unwrap_or_default();
        let length = u32::from(count) * u32::from(bits);
        if !(1..=16).contains(&bits) || !(1..=64).contains(&length) || u32::from(at) + length > 128 {
            return Err(
                argument.invalid("Arg.FE2 has 1 to 64 bits of the SID, in interfaces of 1 to 16 bits")
            );
        }
        Ok(Self { at, count, bits })
    }
}

/// What a counted SID has counted: `SEG6_LOCAL_CNT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Packets processed correctly.
    pub packets: u64,
    /// Their layer-3 bytes.
    pub bytes: u64,
    /// Packets that were not.
    pub errors: u64,
}

/// A local SID of a route: its action and what that needs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Seg6Local {
    /// What the SID does.
    pub action: Action,
    /// `srh`: the policy of End.B6 and End.B6.Encaps.
    pub srh: Option<SegmentList>,
    /// `table`.
    pub table: Option<u32>,
    /// `nh4`.
    pub nh4: Option<Ipv4Addr>,
    /// `nh6`.
    pub nh6: Option<Ipv6Addr>,
    /// `oif`, an ifindex.
    pub oif: Option<u32>,
    /// `endpoint`.
    pub bpf: Option<Bpf>,
    /// `vrftable`.
    pub vrf_table: Option<u32>,
    /// `count`.
    pub counted: bool,
    /// `flavors`.
    pub flavors: Option<Flavors>,
    /// Of End.DT2M the ports that frames do not go to.
    pub fe2: Option<ArgFe2>,
}

/// Linux parses the nests of `COUNTERS` and `FLAVORS` without extended acknowledgement.
fn quiet(error: RequestError) -> RequestError {
    RequestError::errno(error.errno)
}

impl Seg6Local {
    /// Reads an `RTA_ENCAP` of type `seg6local` on a route of an address family. Whether a VRF has the
    /// table of `vrftable` is for the caller to check.
    ///
    /// # Errors
    /// As Linux's `seg6_local_build_state`.
    pub fn parse(encap: &Attribute<'_>, family: u8) -> Result<Self, RequestError> {
        if i32::from(family) != AF_INET6 {
            return Err(RequestError::errno(EINVAL));
        }
        let attributes = encap.parse_nested(&POLICY, Validate::Liberal)?;
        let number = attributes.get(ACTION).ok_or(RequestError::errno(EINVAL))?.u32();
        let action = Action::VARIANTS.iter().copied().find(|&action| action as u32 == number);
        let action = action.ok_or(RequestError::errno(EINVAL))?;
        if action.required() != 0 && attributes.get(action.required()).is_none() {
            return Err(RequestError::errno(EINVAL));
        }
        let get = |kind| attributes.get(kind).filter(|_| action.reads(kind));
        let local = Self {
            action,
            srh: get(SRH).map(|srh| SegmentList::parse(srh.value)).transpose()?,
            table: get(TABLE).map(|table| table.u32()),
            nh4: get(NH4).map(|address| address.ipv4()),
            nh6: get(NH6).map(|address| address.ipv6()),
            oif: get(OIF).map(|oif| oif.u32()),
            bpf: get(BPF).map(|bpf| Bpf::parse(&bpf)).transpose()?,
            vrf_table: get(VRFTABLE).map(|table| table.u32()),
            counted: counters(&attributes)?,
            flavors: get(FLAVORS).map(|flavors| Flavors::parse(action, &flavors)).transpose()?,
            fe2: get(FE2).map(|argument| ArgFe2::parse(&argument)).transpose()?,
        };
        if action == Action::EndDT6 && local.table.is_some() == local.vrf_table.is_some() {
            return Err(RequestError::new(EINVAL, "table or vrftable must be specified"));
        }
        Ok(local)
    }

    /// Writes what is inside `RTA_ENCAP`.
    pub fn write(&self, reply: &mut Reply<'_>, counts: Counts) {
        reply.u32(ACTION, self.action as u32);
        if let Some(srh) = &self.srh {
            reply.attribute(SRH, srh.bytes());
        }
        if let Some(table) = self.table {
            reply.u32(TABLE, table);
        }
        if let Some(address) = self.nh4 {
            reply.address(NH4, address.into());
        }
        if let Some(address) = self.nh6 {
            reply.address(NH6, address.into());
        }
        if let Some(oif) = self.oif {
            reply.u32(OIF, oif);
        }
        if let Some(bpf) = &self.bpf {
            bpf.write(reply);
        }
        if let Some(table) = self.vrf_table {
            reply.u32(VRFTABLE, table);
        }
        if self.counted {
            let nest = reply.nest(COUNTERS);
            reply.u64_aligned(CNT_PACKETS, counts.packets, CNT_PAD);
            reply.u64_aligned(CNT_BYTES, counts.bytes, CNT_PAD);
            reply.u64_aligned(CNT_ERRORS, counts.errors, CNT_PAD);
            reply.end(nest);
        }
        if let Some(flavors) = &self.flavors {
            flavors.write(FLAVORS, reply);
        }
        if let Some(ArgFe2 { at, count, bits }) = self.fe2 {
            reply.attribute(FE2, &[at, count, bits]);
        }
    }
}

/// Whether the SID counts; it must then have room for all three counters.
fn counters(attributes: &Attributes<'_, ATTRIBUTES>) -> Result<bool, RequestError> {
    let Some(counters) = attributes.get(COUNTERS) else { return Ok(false) };
    let inside = counters.parse_nested(&CNT_POLICY, Validate::Liberal).map_err(quiet)?;
    let all = [CNT_PACKETS, CNT_BYTES, CNT_ERRORS].into_iter().all(|kind| inside.get(kind).is_some());
    if all { Ok(true) } else { Err(RequestError::errno(EINVAL)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::flavors::{FLV_LCBLOCK_BITS, FLV_LCNODE_FN_BITS, FLV_OPERATION};
    use super::*;
    use crate::encap::tests::{as_attribute, written};
    use crate::seg6::tests::{segments, srh};

    fn parse(write: impl FnOnce(&mut Reply<'_>)) -> Result<Seg6Local, RequestError> {
        Seg6Local::parse(&as_attribute(&written(write)), AF_INET6 as u8)
    }

    fn flavors(reply: &mut Reply<'_>, operations: u32, block: u8, node_function: u8) {
        let nest = reply.nest(FLAVORS);
        reply.u32(FLV_OPERATION, operations);
        reply.u8(FLV_LCBLOCK_BITS, block);
        reply.u8(FLV_LCNODE_FN_BITS, node_function);
        reply.end(nest);
    }

    /// Linux 6.12: `ip -6 route add … encap seg6local action …`, without what the action needs, or for
    /// actions that it does not have (End.BM).
    #[test]
    fn required_attributes() {
        for &action in Action::VARIANTS {
            let refused = parse(|reply| reply.u32(ACTION, action as u32));
            assert_eq!(refused.is_ok(), action == Action::End, "{action:?}");
        }
        assert_eq!(parse(|reply| reply.u32(ACTION, 14)), Err(RequestError::errno(EINVAL)));
        assert_eq!(parse(|_| ()), Err(RequestError::errno(EINVAL)));
    }

    /// Linux 6.12: `… action End.DT6 table 100 vrftable 100`: "table or vrftable must be specified".
    #[test]
    fn dt6_takes_one_table() {
        let both = parse(|reply| {
            reply.u32(ACTION, 7);
            reply.u32(TABLE, 100);
            reply.u32(VRFTABLE, 100);
        });
        assert_eq!(both.unwrap_err().message.unwrap(), "table or vrftable must be specified");
        let one = parse(|reply| {
            reply.u32(ACTION, 7);
            reply.u32(TABLE, 100);
            reply.u32(OIF, 3); // not for End.DT6: ignored
        });
        let one = one.unwrap();
        assert_eq!((one.table, one.vrf_table, one.oif), (Some(100), None, None));
    }

    /// Linux 6.12: `… action End flavors next-csid lblen B nflen N`.
    #[test]
    fn next_csid_lengths() {
        for (block, node_function, fits) in [
            (32, 16, true),
            (120, 8, true),
            (8, 120, true),
            (33, 16, false),
            (128, 16, false),
            (120, 16, false),
            (0, 8, false),
            (8, 0, false),
            (8, 9, false),
        ] {
            let parsed = parse(|reply| {
                reply.u32(ACTION, 1);
                flavors(reply, FLAVOR_NEXT_CSID, block, node_function);
            });
            assert_eq!(parsed.is_ok(), fits, "{block}/{node_function}");
        }
    }

    /// RFC 9800 section 4.2: a container full of CSIDs, and room for their index behind block, node and function.
    #[test]
    fn replace_csid_lengths() {
        let parsed = |operations, block, node_function| {
            parse(|reply| {
                reply.u32(ACTION, 1);
                flavors(reply, operations, block, node_function);
            })
        };
        for (block, node_function, fits) in [
            (48, 32, true),
            (32, 16, true),
            (16, 8, true),
            (56, 64, true),
            (64, 64, false),
            (96, 32, false),
            (88, 32, true),
            (48, 24, false),
            (48, 40, false),
            (0, 32, false),
        ] {
            let replace = FLAVOR_REPLACE_CSID | FLAVOR_PSP;
            let read = parsed(replace, block, node_function);
            let expected = Flavors { operations: replace, block, node_function };
            assert_eq!(
                read.ok().and_then(|sid| sid.flavors),
                fits.then_some(expected),
                "{block}/{node_function}"
            );
        }
        let both = parsed(FLAVOR_REPLACE_CSID | FLAVOR_NEXT_CSID, 48, 32);
        assert_eq!(both.unwrap_err().errno, EINVAL);
    }

    /// RFC 8986 section 4.16: every combination on End, End.X and End.T. Linux takes fewer. What is no flavour is
    /// refused as there, and other actions ignore the attribute, as there.
    #[test]
    fn flavours_per_action() {
        for &action in Action::VARIANTS {
            let with = |operations| {
                parse(|reply| {
                    reply.u32(ACTION, action as u32);
                    reply.u32(TABLE, 100);
                    reply.address(NH4, Ipv4Addr::LOCALHOST.into());
                    reply.address(NH6, Ipv6Addr::LOCALHOST.into());
                    reply.u32(OIF, 3);
                    if action != Action::EndDT6 {
                        reply.u32(VRFTABLE, 100);
                    }
                    reply.attribute(SRH, &srh(&[Ipv6Addr::LOCALHOST]));
                    Bpf { program: 1, name: (*b"prog.o:[plain]").into() }.write(reply);
                    flavors(reply, operations, 32, 16);
                })
            };
            let takes = matches!(action, Action::End | Action::EndX | Action::EndT);
            for operations in (0..32).step_by(2) {
                let read = with(operations).unwrap().flavors.map(|flavors| flavors.operations);
                assert_eq!(read, takes.then_some(operations), "{action:?} {operations}");
            }
            for operations in [1, 32, 34] {
                let refused = with(operations).err().and_then(|error| error.message);
                let expected = takes.then_some("Unsupported Flavor operation(s)");
                assert_eq!(refused.as_deref(), expected, "{action:?} {operations}");
            }
        }
    }

    #[test]
    fn counters_need_room_for_all_three() {
        let some = parse(|reply| {
            reply.u32(ACTION, 1);
            let nest = reply.nest(COUNTERS);
            reply.u64(CNT_PACKETS, 0);
            reply.u64(CNT_BYTES, 0);
            reply.end(nest);
        });
        assert_eq!(some, Err(RequestError::errno(EINVAL)));
    }

    fn any_local() -> impl Strategy<Value = Seg6Local> {
        let csid = (1u8..8, 1u8..8, 0u32..16).prop_map(|(block, node, bits)| {
            // Some of those with REPLACE-CSID in the place of NEXT-CSID.
            let replaces = bits & 8 != 0 && block > 4 && node.is_power_of_two();
            let operations =
                if replaces { bits << 1 & !FLAVOR_NEXT_CSID | FLAVOR_REPLACE_CSID } else { bits << 1 };
            let csid = operations & (FLAVOR_NEXT_CSID | FLAVOR_REPLACE_CSID) != 0;
            let length = |bytes: u8| if csid { bytes * 8 } else { 0 };
            Flavors { operations, block: length(block), node_function: length(node) }
        });
        (0..Action::VARIANTS.len(), any::<u32>(), segments(), any::<bool>(), proptest::option::of(csid))
            .prop_map(|(action, n, list, counted, csid)| {
                let action = Action::VARIANTS[action];
                let reads = |kind| action.reads(kind).then_some(());
                let vrf = action != Action::EndDT6 || n % 2 == 0;
                Seg6Local {
                    action,
                    srh: reads(SRH).and_then(|()| SegmentList::parse(&srh(&list)).ok()),
                    table: reads(TABLE).filter(|()| action == Action::EndT || !vrf).map(|()| n),
                    nh4: reads(NH4).map(|()| Ipv4Addr::from_bits(n)),
                    nh6: reads(NH6).map(|()| list[0]),
                    oif: reads(OIF).map(|()| n),
                    bpf: reads(BPF).map(|()| Bpf { program: n, name: (*b"prog.o:[plain]").into() }),
                    vrf_table: reads(VRFTABLE).filter(|()| vrf).map(|()| n),
                    counted,
                    flavors: csid.filter(|_| action.reads(FLAVORS)),
                    fe2: reads(FE2).map(|()| ArgFe2 { at: n as u8 % 65, count: 4, bits: 1 + n as u8 % 16 }),
                }
            })
    }

    proptest! {
        #[test]
        fn round_trip(local in any_local(), packets: u64) {
            let parsed = parse(|reply| local.write(reply, Counts { packets, ..Counts::default() }));
            prop_assert_eq!(parsed, Ok(local));
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            let _ = Seg6Local::parse(&as_attribute(&bytes), AF_INET6 as u8);
        }

        #[test]
        fn a_changed_byte_never_panics(local in any_local(), at: prop::sample::Index, value: u8) {
            let mut bytes = written(|reply| local.write(reply, Counts::default()));
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Ok(parsed) = Seg6Local::parse(&as_attribute(&bytes), AF_INET6 as u8) {
                let again = parse(|reply| parsed.write(reply, Counts::default()));
                prop_assert_eq!(again, Ok(parsed));
            }
        }
    }
}
