//! Ioctls about interfaces: those of tunnels are the router's, and where it is all the network that the program sees
//! the others are refused, but for names and indices.

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname},
};
use std::os::fd::AsRawFd;

use super::{
    Outcome, Supervisor,
    calls::End,
    filter::TUNNELS,
    header,
    line::{Ask, Job, Line},
    listener::Call,
    thread,
};
use crate::protocol::{Kind, Message, NAME_LENGTH, TUNNEL_PARAMETERS};

/// Where a `struct ifreq` has what follows the name.
const BEHIND_NAME: u64 = NAME_LENGTH as u64;

impl Supervisor {
    /// ioctl(2) with one of the numbers that the filter picks.
    pub(super) fn ioctl(&mut self, call: &Call) -> Result<Outcome, Errno> {
        if thread::is_ours(call.thread) {
            return Ok(Outcome::Pass);
        }
        let (number, at) = (call.word(1) as u32, call.word(2));
        let name = || {
            let mut name = [0; NAME_LENGTH];
            thread::read(call.thread, at, &mut name).map(|()| name)
        };
        let (ask, end) = match number {
            _ if TUNNELS.iter().any(|(first, last)| (*first..=*last).contains(&number)) => {
                let mut data = [0; 8];
                thread::read(call.thread, at + BEHIND_NAME, &mut data)?;
                let message = Message { name: name()?, ..Message::new(Kind::Tunnel, number, 0, 0) };
                let data = u64::from_ne_bytes(data);
                let parameters = parameters(call, data, number)?;
                let bytes = [&message.to_bytes()[..], &parameters].concat();
                let end = End::Tunnel { parameters: (data, TUNNEL_PARAMETERS) };
                (Ask::Say { kind: Kind::Tunnel, bytes, file: None }, end)
            }
            _ if number == libc::SIOCGIFINDEX as u32 => {
                // Without a NUL it is too long to be a name of any.
                let name = name()?;
                if !name.contains(&0) {
                    return Err(Errno::ENODEV);
                }
                (Ask::say(Message { name, ..Message::new(Kind::IndexOf, 0, 0, 0) }), End::Index)
            }
            _ if number == libc::SIOCGIFNAME as u32 => {
                let index = header::read_int(call.thread, at + BEHIND_NAME)?;
                (Ask::say(Message::new(Kind::NameOf, index, 0, 0)), End::Name)
            }
            // The kernel's interfaces are not the router's: neither shown nor changed.
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let status = thread::Status::of(call.thread)?;
        let Some((control, router)) = self.connect(call, &status)? else { return Ok(Outcome::Pass) };
        self.open_line(Line::new(control, router, None), Job::new(Some(*call), [ask], end))?;
        Ok(Outcome::Later)
    }
}

/// The parameters of a tunnel, and what `ip -6 tunnel` has of a device of GRE and not of others.
fn parameters(call: &Call, at: u64, number: u32) -> Result<Vec<u8>, Errno> {
    let inet6 = || {
        let copy = thread::descriptor(call.thread, call.int(0)).ok()?;
        let address = getsockname::<SockaddrStorage>(copy.as_raw_fd()).ok()?;
        Some(address.family() == Some(AddressFamily::Inet6))
    };
    let (sure, more) = match number {
        0x89f8.. => (24, 0), // struct ip_tunnel_6rd
        // struct ip6_tnl_parm and what struct ip6_tnl_parm2 has behind it; struct ip_tunnel_parm.
        _ if inet6() == Some(true) => (64, TUNNEL_PARAMETERS - 64),
        _ => (52, 0),
    };
    let mut bytes = vec![0; sure];
    thread::read(call.thread, at, &mut bytes)?;
    let mut rest = vec![0; more];
    if thread::read(call.thread, at + sure as u64, &mut rest).is_ok() {
        bytes.extend_from_slice(&rest);
    }
    Ok(bytes)
}

/// Writes what the router has answered to the program.
///
/// # Errors
/// EFAULT.
pub fn fill(call: &Call, end: &End, (answer, text): &(Message, Vec<u8>)) -> Result<(), Errno> {
    let at = call.word(2);
    match end {
        End::Index => thread::write(call.thread, at + BEHIND_NAME, &answer.b.to_ne_bytes()),
        End::Name => thread::write(call.thread, at, &answer.name),
        End::Tunnel { parameters: (at, room) } => thread::write_all(call.thread, &[((*at, *room), text)]),
        _ => Ok(()),
    }
}
