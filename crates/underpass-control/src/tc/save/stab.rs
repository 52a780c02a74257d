//! Size tables in words: `tc` computes them of a few numbers, which the kernel is told too.

use underpass_netlink::tc::rate::{ATM, ETHERNET};
use underpass_netlink::tc::stab::SizeTable;

use crate::save::{Save, Words};

pub(super) fn words(save: &mut Save<'_>, line: &mut Words, table: &SizeTable, name: &str) {
    let made = made_by_tc(table);
    let link_layer = match u8::try_from(table.link_layer) {
        Ok(ETHERNET) => Some("ethernet"),
        Ok(ATM) => Some("atm"),
        _ => None,
    };
    // Without a link layer tc sends none that does nothing.
    let said = link_layer.is_some() || table.link_layer == 0 && (table.overhead != 0 || table.mpu != 0);
    if made.as_ref() != Some(table) || !said {
        return save.left_out(format!("the size table of {name}, which tc has not made"));
    }
    line.add("stab").pair("overhead", table.overhead).some("linklayer", link_layer);
    line.some("mpu", (table.mpu != 0).then_some(table.mpu));
    if !table.sizes.is_empty() {
        line.pair("mtu", table.mtu).pair("tsize", table.sizes.len());
    }
}

/// What `tc` makes of what is said of a table. iproute2: `tc_calc_size_table`.
fn made_by_tc(said: &SizeTable) -> Option<SizeTable> {
    let &SizeTable { overhead, link_layer, mpu, mtu, .. } = said;
    let empty = SizeTable {
        cell_log: 0,
        size_log: 0,
        cell_align: 0,
        overhead,
        link_layer,
        mpu,
        mtu: 0,
        sizes: Box::default(),
    };
    if link_layer <= ETHERNET.into() && mpu == 0 {
        return Some(empty);
    }
    let count = said.sizes.len() as u64;
    let last = count.checked_sub(1)?;
    let cell_log = (0..=30).find(|log| u64::from(mtu) >> log <= last)?;
    let charge = |cell: u64| {
        let size = (cell << cell_log).max(mpu.into());
        if link_layer == ATM.into() { size.div_ceil(48) * 53 } else { size }
    };
    // The longest is the last.
    let size_log = (0..=30).find(|log| charge(count) >> log <= u16::MAX.into())?;
    let sizes = (1..=count).map(|cell| (charge(cell) >> size_log) as u16).collect();
    Some(SizeTable { cell_log, size_log, cell_align: -1, mtu, sizes, ..empty })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_tc_makes_it_makes_again(
            words in (any::<i32>(), 1u32..3, 0u32..100_000, 1u32..1_000_000, 1usize..2000),
        ) {
            let (overhead, link_layer, mpu, mtu, count) = words;
            let sizes = vec![0; count].into_boxed_slice();
            let said = SizeTable { cell_log: 9, size_log: 9, cell_align: 9, overhead, link_layer, mpu, mtu, sizes };
            let made = made_by_tc(&said).unwrap();
            prop_assert_eq!(made_by_tc(&made), Some(made));
        }
    }

    /// `tc qdisc add … stab linklayer atm mtu 256 tsize 4`, as the kernel gets it.
    #[test]
    fn a_table_of_tc() {
        let sizes = Box::from([159, 318, 424, 583]);
        let table = SizeTable {
            cell_log: 7,
            size_log: 0,
            cell_align: -1,
            overhead: 0,
            link_layer: 2,
            mpu: 0,
            mtu: 256,
            sizes,
        };
        assert_eq!(made_by_tc(&table), Some(table));
    }
}
