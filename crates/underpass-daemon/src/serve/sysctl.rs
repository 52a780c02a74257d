//! Variables of `/proc/sys/net`: what the library asks in a program's name.

use underpass_control::{Node, RequestError, Router, read_sysctl, sysctl_names, sysctl_node, write_sysctl};

use super::session::reply;
pub use crate::protocol::sysctl::TEXT;
use crate::protocol::{
    Kind, Message,
    sysctl::{ANSWER, DIRECTORY, FILE, LIST, LOOK, PATH, READ, SETTLE, WRITE},
};

/// Answers a SYSCTL message: the reply, and the path if the connection is to be its file from now on.
pub fn answer(router: &Router, what: u32, path: &[u8]) -> (Vec<u8>, Option<Box<str>>) {
    match look(router, what, path) {
        Ok((message, text, variable)) => ([&message.to_bytes(), text.as_bytes()].concat(), variable),
        Err(errno) => (refused(errno).to_bytes().to_vec(), None),
    }
}

fn refused(errno: i32) -> Message {
    Message { a: errno as u32, ..Message::new(Kind::Reply, 0, 0, 0) }
}

/// The reply, the text that follows it, and the path of a file that is opened.
type Answer = (Message, String, Option<Box<str>>);

fn look(router: &Router, what: u32, path: &[u8]) -> Result<Answer, i32> {
    let path = std::str::from_utf8(path).map_err(|_| libc::ENOENT)?;
    if path.len() > PATH {
        return Err(libc::ENAMETOOLONG);
    }
    let node = sysctl_node(router, path).ok_or(libc::ENOENT)?;
    let kind = if node == Node::File { FILE } else { DIRECTORY };
    let message = Message { b: kind, ..reply() };
    match (what, node) {
        (LOOK, _) => Ok((message, String::new(), None)),
        (READ, _) => {
            let text = read_sysctl(router, path).map_err(|error| error.errno)?;
            Ok((message, text, None))
        }
        (WRITE, Node::File) => Ok((message, String::new(), Some(path.into()))),
        (WRITE, Node::Directory) => Err(libc::EISDIR),
        (LIST, Node::Directory) => {
            let mut text = String::new();
            for name in sysctl_names(router, path) {
                text.push_str(&name);
                text.push('/');
            }
            if text.len() > ANSWER { Err(libc::ENOMEM) } else { Ok((message, text, None)) }
        }
        (LIST, Node::File) => Err(libc::ENOTDIR),
        _ => Err(libc::EINVAL),
    }
}

/// Writes to a variable; gives the reply.
pub fn write(router: &mut Router, path: &str, text: &[u8]) -> Message {
    if text == [SETTLE] {
        return Message::new(Kind::Done, 0, 0, 0);
    }
    let written = match text.len() > TEXT {
        true => Err(RequestError::errno(libc::EINVAL)),
        false => write_sysctl(router, path, text),
    };
    written.map_or_else(|error| refused(error.errno), |()| reply())
}
