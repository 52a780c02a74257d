//! Netlink requests to a router, by this program itself: what the preload library does for others.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, sendmsg,
    socket, socketpair,
};
use underpass_netlink::RequestError;

use crate::launch::LaunchError;
use crate::protocol::{Kind, Message, NAME_LENGTH, VERSION};

/// Options of SOL_NETLINK: an acknowledgement has texts, and not all of the request.
const OPTIONS: [i32; 2] = [libc::NETLINK_CAP_ACK, libc::NETLINK_EXT_ACK];

/// `NLM_F_ACK_TLVS`, `NLMSGERR_ATTR_MSG`: texts follow, and this is the one for people.
const HAS_TEXTS: u16 = 0x200;
const TEXT: u16 = 1;

/// A connection to a router, as a socket of NETLINK_ROUTE is one to the kernel.
#[derive(Debug)]
pub struct Client {
    control: OwnedFd,
    data: OwnedFd,
}

/// Why a request is not done.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no router to ask.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// What the router says, as `ip` writes it.
    #[error("{}{}", text.as_ref().map_or(String::new(), |text| format!("{text}: ")), io::Error::from_raw_os_error(*errno))]
    Refused {
        /// The errno.
        errno: i32,
        /// The text of its extended acknowledgement.
        text: Option<String>,
    },
    /// The connection broke.
    #[error("the router does not answer: {0}")]
    Broken(#[from] Errno),
    /// The request is too long.
    #[error("the request cannot be written: {}", io::Error::from_raw_os_error(.0.errno))]
    Unwritable(RequestError),
}

impl Client {
    /// A socket of the router that listens at `path`.
    ///
    /// # Errors
    /// Nothing listens there, or it is of another version.
    pub fn new(path: &Path) -> Result<Self, ClientError> {
        let control = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        connect(control.as_raw_fd(), &UnixAddr::new(path)?).map_err(|errno| match errno {
            Errno::ENOENT | Errno::ECONNREFUSED => LaunchError::NoRouter(path.to_owned()),
            _ => LaunchError::Unreachable { path: path.to_owned(), error: errno.into() },
        })?;
        let (data, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let client = Self { control, data };
        let open = Message::new(Kind::Open, libc::NETLINK_ROUTE as u32, VERSION, 0);
        client.call(&open, Some(&theirs))?;
        for option in OPTIONS {
            client.call(&Message::new(Kind::Set, option as u32, 1, 0), None)?;
        }
        Ok(client)
    }

    /// Says something by the control socket, and waits for the answer.
    fn call(&self, message: &Message, with: Option<&OwnedFd>) -> Result<Message, ClientError> {
        let bytes = message.to_bytes();
        let descriptors = with.map(AsRawFd::as_raw_fd);
        let rights = descriptors
            .as_ref()
            .map(|descriptor| ControlMessage::ScmRights(std::slice::from_ref(descriptor)));
        sendmsg::<UnixAddr>(
            self.control.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            rights.as_slice(),
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?;
        let answer = self.hear()?;
        match answer.a {
            0 => Ok(answer),
            errno => Err(ClientError::Refused { errno: errno as i32, text: None }),
        }
    }

    /// The next message of the control socket.
    fn hear(&self) -> Result<Message, ClientError> {
        let mut bytes = [0; Message::LENGTH];
        let length = recv(self.control.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
        let message = bytes.get(..length).and_then(Message::from_bytes);
        message.ok_or(ClientError::Broken(Errno::ECONNRESET))
    }

    /// The index of the link of this name.
    ///
    /// # Errors
    /// `ENODEV`: there is none.
    pub fn index_of(&self, name: &str) -> Result<u32, ClientError> {
        let mut padded = [0; NAME_LENGTH];
        let no_device =
            || ClientError::Refused { errno: libc::ENODEV, text: Some(format!("no device {name}")) };
        // A NUL stays behind it.
        let place =
            padded.get_mut(..name.len()).filter(|place| place.len() < NAME_LENGTH).ok_or_else(no_device)?;
        place.copy_from_slice(name.as_bytes());
        let question = Message { name: padded, ..Message::new(Kind::IndexOf, 0, 0, 0) };
        match self.call(&question, None) {
            Err(ClientError::Refused { errno: libc::ENODEV, .. }) => Err(no_device()),
            answer => Ok(answer?.b),
        }
    }

    /// Makes a request, of one message with NLM_F_ACK.
    ///
    /// # Errors
    /// What the router answers.
    pub fn request(&self, datagram: &[u8]) -> Result<(), ClientError> {
        send(self.data.as_raw_fd(), datagram, MsgFlags::MSG_NOSIGNAL)?;
        // Its answer lies in the queue then.
        while self.hear()?.kind != Kind::Done {}
        let mut answer = [0; 8192];
        let length = recv(self.data.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
        acknowledged(answer.get(..length).unwrap_or_default())
    }
}

/// Reads an acknowledgement: `struct nlmsgerr`.
fn acknowledged(answer: &[u8]) -> Result<(), ClientError> {
    /// The header of the answer, the errno and the header of the request.
    const FIXED: usize = 16 + 4 + 16;
    let broken = ClientError::Broken(Errno::EBADMSG);
    let (fixed, mut rest) = answer.split_at_checked(FIXED).ok_or(broken)?;
    let word =
        |at: usize| fixed.get(at..at + 4).and_then(|word| Some(i32::from_ne_bytes(*word.first_chunk()?)));
    let errno = -word(16).unwrap_or(0);
    if errno == 0 {
        return Ok(());
    }
    let flags = fixed.get(6..8).map_or(0, |flags| u16::from_ne_bytes([flags[0], flags[1]]));
    let mut text = None;
    while let Some(([a, b, c, d], _)) = rest.split_first_chunk::<4>().filter(|_| flags & HAS_TEXTS != 0) {
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        let Some(value) = rest.get(4..length) else { break };
        if u16::from_ne_bytes([*c, *d]) & !0xc000 == TEXT {
            text = Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned());
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Err(ClientError::Refused { errno, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_says_why() {
        let answer = |errno: i32, flags: u16, behind: &[u8]| {
            let length = (36 + behind.len()) as u32;
            let header =
                [&length.to_ne_bytes()[..], &2_u16.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]].concat();
            [&header[..], &(-errno).to_ne_bytes(), &[0; 16], behind].concat()
        };
        let refused = |bytes: &[u8]| acknowledged(bytes).unwrap_err().to_string();
        assert!(acknowledged(&answer(0, 0, &[])).is_ok());
        let texts = [&[8, 0, 2, 0, 1, 0, 0, 0][..], &[7, 0, 1, 0, b'n', b'o', 0, 0]].concat();
        assert_eq!(refused(&answer(libc::EINVAL, 0x300, &texts)), "no: Invalid argument (os error 22)");
        assert_eq!(refused(&answer(libc::EINVAL, 0x100, &texts)), "Invalid argument (os error 22)");
        // Cut off anywhere it is no text, and no panic.
        for length in 0..texts.len() {
            let _ = refused(&answer(libc::EINVAL, 0x300, &texts[..length]));
        }
        assert!(matches!(acknowledged(&[0; 35]), Err(ClientError::Broken(_))));
    }
}
