//! `struct msghdr`, `struct iovec` and `struct sockaddr_nl` in the memory of a program, copied once.

use nix::errno::Errno;

use super::{
    datagram::Datagram,
    thread::{self, PARTS, Part},
};

/// Bytes of a `struct msghdr` of 64-bit programs.
pub const HEADER: usize = 56;
/// Bytes of a `struct mmsghdr`.
pub const WITH_LENGTH: usize = 64;
/// Bytes of a `struct sockaddr_nl`.
pub const ADDRESS: usize = size_of::<libc::sockaddr_nl>();

const NAME_LENGTH_AT: u64 = 8;
const CONTROL_LENGTH_AT: u64 = 40;
/// Where a `struct mmsghdr` has its `msg_len`.
pub const LENGTH_AT: u64 = HEADER as u64;

/// Where the kernel is to put what it says of a message, or has it from.
#[derive(Debug, Clone, Default)]
pub struct Header {
    /// The bytes.
    pub parts: Vec<Part>,
    /// The address, and how long it is or may be.
    pub name: Part,
    /// Control messages, and how long they may be.
    pub control: Part,
    /// Where the length of the address is written, if anywhere.
    name_length_at: Option<u64>,
    /// The header's own address, if there is one.
    at: Option<u64>,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

fn int(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

impl Header {
    /// The one at an address.
    ///
    /// # Errors
    /// EFAULT, EMSGSIZE for too many parts, EINVAL for lengths that are negative.
    pub fn at(thread: i32, at: u64) -> Result<Self, Errno> {
        let mut bytes = [0; HEADER];
        thread::read(thread, at, &mut bytes)?;
        let count = word(&bytes, 24) as usize;
        if count > PARTS {
            return Err(Errno::EMSGSIZE);
        }
        let mut vectors = vec![0; count * 16];
        thread::read(thread, word(&bytes, 16), &mut vectors)?;
        let parts = vectors.as_chunks::<16>().0.iter().map(|vector| {
            let (address, length) = (word(vector, 0), word(vector, 8) as usize);
            if length > isize::MAX as usize { Err(Errno::EINVAL) } else { Ok((address, length)) }
        });
        let name_length = int(&bytes, 8);
        if name_length > i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        let name = (word(&bytes, 0), name_length as usize);
        Ok(Self {
            parts: parts.collect::<Result<_, _>>()?,
            name: if name.0 == 0 { (0, 0) } else { name },
            control: if word(&bytes, 32) == 0 {
                (0, 0)
            } else {
                (word(&bytes, 32), word(&bytes, 40) as usize)
            },
            name_length_at: Some(at + NAME_LENGTH_AT),
            at: Some(at),
        })
    }

    /// That of sendto(2).
    pub fn to_send(part: Part, name: Part) -> Self {
        Self { parts: vec![part], name, ..Self::default() }
    }

    /// That of recvfrom(2), whose last argument is `length_at`.
    ///
    /// # Errors
    /// EFAULT; EINVAL for a length that is negative.
    pub fn to_receive(thread: i32, part: Part, name: u64, length_at: u64) -> Result<Self, Errno> {
        let room = if name == 0 { 0 } else { read_int(thread, length_at)? };
        if room > i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        let name_length_at = (name != 0).then_some(length_at);
        Ok(Self { parts: vec![part], name: (name, room as usize), name_length_at, ..Self::default() })
    }

    /// How long its parts are together.
    pub fn length(&self) -> usize {
        self.parts.iter().fold(0usize, |sum, (_, length)| sum.saturating_add(*length))
    }

    /// Copies the bytes of its parts.
    ///
    /// # Errors
    /// EFAULT.
    pub fn gather(&self, thread: i32) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; self.length()];
        thread::read_parts(thread, &self.parts, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes what has been received from a kernel: port id 0, no group. `more`: what else the program gets.
    ///
    /// # Errors
    /// EFAULT.
    pub fn fill(
        &self,
        thread: i32,
        bytes: &[u8],
        datagram: &Datagram,
        more: Option<u64>,
    ) -> Result<(), Errno> {
        let name = address(0, 0);
        let name_length = if self.name.0 == 0 { 0 } else { ADDRESS as u32 }.to_ne_bytes();
        let length = (datagram.length as u32).to_ne_bytes();
        let control = datagram.control.get(..self.control.1).unwrap_or(&datagram.control);
        let cut = if control.len() < datagram.control.len() { libc::MSG_CTRUNC } else { 0 };
        // The two are neighbours: a size_t and an int.
        let mut end = [0; 12];
        end[..8].copy_from_slice(&(control.len() as u64).to_ne_bytes());
        end[8..].copy_from_slice(&(datagram.flags | cut).to_ne_bytes());
        let mut writes = thread::scatter(&self.parts, bytes);
        writes.push((self.name, &name));
        writes.push((self.control, control));
        writes.extend(self.name_length_at.map(|at| ((at, name_length.len()), &name_length[..])));
        writes.extend(self.at.map(|at| ((at + CONTROL_LENGTH_AT, end.len()), &end[..])));
        writes.extend(more.map(|at| ((at, length.len()), &length[..])));
        thread::write_all(thread, &writes)
    }
}

/// The bytes of a `struct sockaddr_nl`.
pub fn address(port_id: u32, groups: u32) -> [u8; ADDRESS] {
    let mut bytes = [0; ADDRESS];
    bytes[..2].copy_from_slice(&(libc::AF_NETLINK as u16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&port_id.to_ne_bytes());
    bytes[8..].copy_from_slice(&groups.to_ne_bytes());
    bytes
}

/// The port id and the groups of an address that a program gives: Linux's `netlink_bind` and `netlink_connect`.
///
/// # Errors
/// EINVAL if it is none of netlink, EFAULT.
pub fn read_address(thread: i32, (at, length): Part) -> Result<(u32, u32), Errno> {
    let mut bytes = [0; ADDRESS];
    if length < ADDRESS {
        return Err(Errno::EINVAL);
    }
    thread::read(thread, at, &mut bytes)?;
    match u16::from_ne_bytes([bytes[0], bytes[1]]) {
        family if i32::from(family) == libc::AF_NETLINK => Ok((int(&bytes, 4), int(&bytes, 8))),
        _ => Err(Errno::EINVAL),
    }
}

/// An int in the memory of a program.
///
/// # Errors
/// EFAULT.
pub fn read_int(thread: i32, at: u64) -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    thread::read(thread, at, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Writes a value as the kernel does: at most the bytes that there is room for, and the full length.
///
/// # Errors
/// EFAULT.
pub fn write_value(thread: i32, at: u64, length_at: u64, value: &[u8]) -> Result<(), Errno> {
    let room = read_int(thread, length_at)?;
    if room > i32::MAX as u32 {
        return Err(Errno::EINVAL);
    }
    let length = (value.len() as u32).to_ne_bytes();
    thread::write_all(thread, &[((at, room as usize), value), ((length_at, length.len()), &length)])
}
