//! Memory that is no longer needed.

#![allow(unsafe_code)]

/// Gives what is free back to the system: the C library keeps it where something small lies behind it.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
