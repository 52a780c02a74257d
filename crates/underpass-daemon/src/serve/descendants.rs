//! Which programs this process has started, itself or through others: its descendants.

use std::{fs, os::fd::OwnedFd, process};

use nix::sys::socket::{getsockopt, sockopt};

/// How many processes may be between.
const GENERATIONS: usize = 8;

/// Whether who has connected is a process that this one has started, or one that such a process has started. Where there is no
/// /proc to tell, everybody is.
pub fn is_own(control: &OwnedFd) -> bool {
    let own = i64::from(process::id());
    if parent(own).is_none() {
        return true;
    }
    let peer = getsockopt(control, sockopt::PeerCredentials).map_or(0, |peer| i64::from(peer.pid()));
    let mut ancestors = std::iter::successors(Some(peer), |process| parent(*process));
    ancestors.by_ref().take(GENERATIONS).any(|process| process == own)
}

/// The parent of a process: proc_pid_stat(5).
fn parent(process: i64) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn a_process_is_its_own_and_not_its_parents() {
        let pair =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        assert!(is_own(&pair.0));
        let own = i64::from(process::id());
        let above = parent(own).unwrap();
        assert_eq!(above, i64::from(nix::unistd::getppid().as_raw()));
        assert!(parent(above).is_none_or(|parent| parent != own));
    }
}
