//! Questions to a running router, at its socket for statistics.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;

use crate::{launch::permission, live::stats_path};

/// Why there was no connection to a router's socket, and what helps.
pub fn unreachable(path: &Path, error: io::Error) -> anyhow::Error {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied => return anyhow::anyhow!("{path}: {error}{}", permission(&error)),
        // A path that no socket can have.
        io::ErrorKind::InvalidInput | io::ErrorKind::NotADirectory => {
            return anyhow::anyhow!("{path}: {error}");
        }
        _ => {}
    }
    anyhow::Error::new(error).context(format!("no router answers at {path}: start one with `underpass run`"))
}

/// What the router at `socket` answers.
///
/// # Errors
/// There is none, or it does not answer in time.
pub fn answer(socket: &Path, question: &str) -> anyhow::Result<String> {
    answer_within(socket, question, Duration::from_secs(5))
}

/// The same, with a time that it may take.
///
/// # Errors
/// As [`answer`].
pub fn answer_within(socket: &Path, question: &str, patience: Duration) -> anyhow::Result<String> {
    let path = stats_path(socket);
    let mut connection = UnixStream::connect(&path).map_err(|error| unreachable(&path, error))?;
    connection.set_read_timeout(Some(patience))?;
    writeln!(connection, "{question}")?;
    let mut text = String::new();
    let read = connection.read_to_string(&mut text);
    read.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => anyhow::anyhow!(
            "the router at {} has not answered for {} seconds: it hangs, or is stopped or too busy",
            path.display(),
            patience.as_secs()
        ),
        _ => anyhow::Error::new(error).context(format!("the answer of {}", path.display())),
    })?;
    ensure!(
        !text.is_empty(),
        "the router at {} has ended the connection without an answer: it was too busy to give one in time, or is ending; ask \
         again",
        path.display()
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread;

    use super::*;

    #[test]
    fn a_permission_that_is_missing_is_named() {
        let error = |kind: io::ErrorKind| format!("{:#}", unreachable(Path::new("/run/r.sock"), kind.into()));
        assert!(error(io::ErrorKind::PermissionDenied).contains("only root, and members of the group"));
        assert!(error(io::ErrorKind::NotFound).contains("start one with `underpass run`"));
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_named() {
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
        let error = answer(&long, "state").unwrap_err().to_string();
        assert!(error.starts_with("/tmp/xxx") && !error.contains("start one"), "{error}");
    }

    #[test]
    fn a_router_that_hangs_is_said_to_hang() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("router.sock");
        let _listener = UnixListener::bind(stats_path(&socket)).unwrap();
        let error = answer_within(&socket, "state", Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("has not answered for 0 seconds: it hangs"), "{error}");
    }

    #[test]
    fn no_answer_is_no_empty_answer() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("router.sock");
        let listener = UnixListener::bind(stats_path(&socket)).unwrap();
        let busy = thread::spawn(move || {
            let (connection, _) = listener.accept()?;
            BufReader::new(connection).read_line(&mut String::new())
        });
        let error = answer(&socket, "state").unwrap_err().to_string();
        busy.join().unwrap().unwrap();
        assert!(error.contains("too busy"), "{error}");
    }
}
