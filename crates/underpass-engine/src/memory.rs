//! Memory that lives as long as the process: that of packets.
//!
//! A burst touches a line or two of each of 64 slots, which lie pages apart. With pages of 4 KiB every one of them asks
//! for an entry of the address translation, of which a core has 64 at hand; with pages of 2 MiB a whole pool has a few.

use memmap2::{Advice, MmapMut, MmapOptions};

/// Bytes of a huge page of x86-64.
const HUGE: usize = 2 << 20;

/// Zeroed memory that is never given back: page-aligned, and in huge pages where it fills one and the kernel has them. What
/// is not used takes no memory, but for the rest of a huge page.
///
/// # Errors
/// The kernel does not grant so much.
pub fn leak(len: usize) -> std::io::Result<&'static mut [u8]> {
    // The interpreter maps nothing.
    if len == 0 || cfg!(miri) {
        return Ok(Vec::leak(vec![0; len]));
    }
    // One page more than is needed: the first may begin anywhere, and only aligned ones become huge.
    let more = if len < HUGE { 0 } else { HUGE };
    let mapped = MmapOptions::new().len(len + more).no_reserve_swap().map_anon()?;
    if more > 0 {
        // Refused by a kernel without huge pages; then small ones do.
        let _ = mapped.advise(Advice::HugePage);
    }
    let mapped: &'static mut MmapMut = Box::leak(Box::new(mapped));
    let first = if more > 0 { mapped.as_ptr().align_offset(HUGE) } else { 0 };
    Ok(mapped.get_mut(first..first + len).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_as_long_as_asked_for_and_zero() {
        for len in [0, 1, 4096, HUGE - 1, HUGE, 3 * HUGE + 1] {
            let memory = leak(len).unwrap();
            assert!(memory.len() == len && memory.iter().all(|byte| *byte == 0), "{len}");
            memory.fill(1);
            let page = if len < HUGE { 4096 } else { HUGE };
            if len > 0 && !cfg!(miri) {
                assert_eq!(memory.as_ptr() as usize % page, 0, "{len}");
            }
        }
    }
}
