//! Size tables: what a packet is charged instead of its length. Linux: `qdisc_get_stab`.
//!
//! ```text
//! TCA_STAB_BASE: struct tc_sizespec
//! |   cell_log    |   size_log    |      cell_align (s16)         |
//! |                        overhead (s32)                         |
//! |                     linklayer, mpu, mtu                       |
//! |                             tsize                             |
//! TCA_STAB_DATA: tsize numbers (u16)
//! ```

use libc::EINVAL;

use super::{TCA_STAB, word};
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::{Reply, RequestError};

const BASE: u16 = 1;
const DATA: u16 = 2;

const POLICY: [Type; 3] = policy(&[(BASE, Type::AtLeast(SPEC as u16)), (DATA, Type::Any)]);

/// Length of a `struct tc_sizespec`.
const SPEC: usize = 24;
/// `STAB_SIZE_LOG_MAX`.
const MAX_LOG: u8 = 30;

/// A size table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeTable {
    /// Bytes of a cell of lengths, as a power of 2.
    pub cell_log: u8,
    /// Bytes of a unit of the table, as a power of 2.
    pub size_log: u8,
    /// Bytes that are added to a length to find its cell.
    pub cell_align: i16,
    /// Bytes that are added to each packet first.
    pub overhead: i32,
    /// `TC_LINKLAYER_*`: what `tc` has made the table for.
    pub link_layer: u32,
    /// The same: the least size of a packet.
    pub mpu: u32,
    /// The same: the longest packet.
    pub mtu: u32,
    /// What the packets of each cell are charged. Empty: their length and the overhead.
    pub sizes: Box<[u16]>,
}

impl SizeTable {
    /// Reads `TCA_STAB`.
    ///
    /// # Errors
    /// As Linux's `qdisc_get_stab`.
    pub fn parse(attribute: &Attribute<'_>) -> Result<Self, RequestError> {
        let attributes = attribute.parse_nested(&POLICY, Validate::Liberal)?;
        let invalid = |text| Err(RequestError::new(EINVAL, text));
        let Some(base) = attributes.get(BASE) else {
            return invalid("Size table base attribute is missing");
        };
        let [overhead, link_layer, mpu, mtu, count] = [4, 8, 12, 16, 20].map(|at| word(base.value, at));
        let [cell_log, size_log, a, b] = base.value.first_chunk().copied().unwrap_or_default();
        let mut sizes = Box::default();
        if count > 0 {
            let Some(data) = attributes.get(DATA) else {
                return invalid("Size table data attribute is missing");
            };
            let (numbers, _) = data.value.as_chunks::<2>();
            sizes = numbers.iter().map(|number| u16::from_ne_bytes(*number)).collect::<Box<[u16]>>();
        }
        if sizes.len() != count as usize {
            return invalid("Invalid size of size table");
        }
        if size_log > MAX_LOG || cell_log > MAX_LOG {
            return invalid("Invalid logarithmic size of size table");
        }
        Ok(Self {
            cell_log,
            size_log,
            cell_align: i16::from_ne_bytes([a, b]),
            overhead: overhead.cast_signed(),
            link_layer,
            mpu,
            mtu,
            sizes,
        })
    }

    /// Writes `TCA_STAB`. As in Linux, the table itself is not shown.
    pub fn write(&self, reply: &mut Reply<'_>) {
        let nest = reply.nest_unflagged(TCA_STAB);
        reply.attribute(BASE, &self.base());
        reply.end(nest);
    }

    /// `struct tc_sizespec`.
    fn base(&self) -> Vec<u8> {
        let [a, b] = self.cell_align.to_ne_bytes();
        let words =
            [self.overhead.cast_unsigned(), self.link_layer, self.mpu, self.mtu, self.sizes.len() as u32];
        [self.cell_log, self.size_log, a, b]
            .into_iter()
            .chain(words.into_iter().flat_map(u32::to_ne_bytes))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    fn parse(bytes: &[u8]) -> Result<SizeTable, RequestError> {
        SizeTable::parse(&Attribute { kind: TCA_STAB, offset: 0, value: bytes })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            logs in (0u8..=MAX_LOG, 0u8..=MAX_LOG),
            cell_align: i16,
            overhead: i32,
            words: [u32; 3],
            sizes: Vec<u16>,
        ) {
            let [link_layer, mpu, mtu] = words;
            let (cell_log, size_log) = logs;
            let sizes = sizes.into_boxed_slice();
            let table = SizeTable { cell_log, size_log, cell_align, overhead, link_layer, mpu, mtu, sizes };
            let bytes = written(|reply| {
                table.write(reply);
                let data: Vec<u8> = table.sizes.iter().flat_map(|size| size.to_ne_bytes()).collect();
                reply.attribute(DATA, &data);
            });
            prop_assert_eq!(parse(&bytes[4..]), Ok(table));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn what_linux_refuses() {
        let refused = |base: &[u8], data: Option<&[u8]>| {
            let bytes = written(|reply| {
                reply.attribute(BASE, base);
                data.into_iter().for_each(|data| reply.attribute(DATA, data));
            });
            parse(&bytes).unwrap_err()
        };
        let mut base = [0; SPEC];
        assert_eq!(
            parse(&[]).unwrap_err(),
            RequestError::new(EINVAL, "Size table base attribute is missing")
        );
        base[20] = 2;
        assert_eq!(refused(&base, None), RequestError::new(EINVAL, "Size table data attribute is missing"));
        let invalid = RequestError::new(EINVAL, "Invalid size of size table");
        assert_eq!(refused(&base, Some(&[1, 2])), invalid);
        assert_eq!(refused(&base, Some(&[1, 2, 3, 4, 5, 6])), invalid);
        base[0] = 31;
        let invalid = RequestError::new(EINVAL, "Invalid logarithmic size of size table");
        assert_eq!(refused(&base, Some(&[1, 2, 3, 4])), invalid);
    }
}
