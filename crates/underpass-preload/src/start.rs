//! What happens when the library is loaded.
#![allow(unsafe_code)]

use crate::{channel, table};

// SAFETY: functions in .init_array are called once, before the program's main, with arguments that may be
// ignored.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Notes the process, and reads the environment while nothing can have changed it.
extern "C" fn start() {
    table::adopt();
    if channel::active() {
        // What a shell redirected for this program.
        for fd in 0..=2 {
            if channel::is_connection(fd) {
                table::enter_writer(fd);
            }
        }
    }
}
