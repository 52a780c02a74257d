//! Standard output, whose reader may go away: `underpass bench --list | head`.

use std::io::{self, ErrorKind, Write};

/// Writes `text`. A reader that has gone away is no error: it has what it wants.
///
/// # Errors
/// Those of writing.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
