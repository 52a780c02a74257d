//! Helpers that need nothing of SRv6. What they do and return: net/core/filter.c, kernel/bpf/helpers.c and
//! kernel/bpf/arraymap.c of Linux.

use super::{Fault, Helper, Memory, format};
use crate::flow;
use crate::limiter::Nanos;

const E2BIG: i64 = 7;
const EFAULT: i64 = 14;
const EEXIST: i64 = 17;
const EINVAL: i64 = 22;
const ENOMEM: i64 = 12;

/// A helper's error, as it returns it.
fn error(errno: i64) -> u64 {
    -errno as u64
}

/// Longest argument that a helper takes a copy of: an SRH is at most 2,048 bytes long.
const SCRATCH: usize = 2048;

/// Bytes that a helper was given.
pub(crate) struct Out {
    bytes: [u8; SCRATCH],
    len: usize,
}

impl Out {
    /// Takes `len` bytes out of a program's memory. `None`: more than any helper takes.
    pub(crate) fn copy(
        memory: &Memory<'_>,
        packet: &[u8],
        address: u64,
        len: u64,
    ) -> Result<Option<Self>, Fault> {
        let Some(len) = usize::try_from(len).ok().filter(|len| *len <= SCRATCH) else { return Ok(None) };
        let mut out = Self { bytes: [0; SCRATCH], len };
        memory.read(packet, address, &mut out.bytes[..len])?;
        Ok(Some(out))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What programs have printed, for whoever owns the worker to pass on.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) text: String,
    /// Lines for which there was no room.
    pub(crate) lost: u64,
}

impl Printed {
    /// Most bytes of text that wait.
    const ROOM: usize = 16 << 10;

    /// With all the room that it will ever have.
    pub(crate) fn new() -> Self {
        Self { text: String::with_capacity(Self::ROOM), lost: 0 }
    }

    fn add(&mut self, line: &str) {
        let line = line.trim_end_matches('\n');
        if self.text.len() + line.len() + 1 > Self::ROOM {
            self.lost += 1;
            return;
        }
        self.text.push_str(line);
        self.text.push('\n');
    }
}

/// What these helpers know.
pub(crate) struct General<'g> {
    /// The time of the burst.
    pub(crate) now: Nanos,
    /// The worker's number.
    pub(crate) processor: u32,
    /// The state of the random numbers; never 0.
    pub(crate) random: &'g mut u64,
    pub(crate) printed: &'g mut Printed,
}

impl General<'_> {
    /// Does what a helper does. `Err`: the program was stopped. `None`: it is not one of these.
    pub(crate) fn call(
        &mut self,
        helper: Helper,
        [a, b, c, d, e]: [u64; 5],
        packet: &[u8],
        memory: &mut Memory<'_>,
    ) -> Result<Option<u64>, Fault> {
        Ok(Some(match helper {
            Helper::MapLookup => {
                let (map, values) = memory.map(a)?;
                let index = key(memory, packet, b)?;
                match index < map.entries {
                    true => values + (index * map.stride) as u64,
                    false => 0,
                }
            }
            Helper::MapUpdate => update(memory, packet, [a, b, c, d])?,
            Helper::MapDelete => {
                memory.map(a)?;
                key(memory, packet, b)?;
                error(EINVAL)
            }
            Helper::Time | Helper::CoarseTime => self.now,
            Helper::Print => {
                let mut line = format::Line::new();
                match format::print(&mut line, memory, packet, (a, b), [c, d, e])? {
                    true => {
                        self.printed.add(line.text());
                        line.text().len() as u64
                    }
                    false => error(EINVAL),
                }
            }
            // Marsaglia's xorshift.
            Helper::Random => {
                *self.random ^= *self.random << 13;
                *self.random ^= *self.random >> 7;
                *self.random ^= *self.random << 17;
                *self.random >> 32
            }
            Helper::Processor => self.processor.into(),
            Helper::Node | Helper::ClassId | Helper::Realm => 0,
            Helper::LoadBytes => {
                let (offset, len) = (b as u32 as usize, d as u32 as usize);
                match packet.get(offset..).and_then(|rest| rest.get(..len)) {
                    Some(bytes) => {
                        memory.write(c, bytes)?;
                        0
                    }
                    None => {
                        clear(memory, c, len)?;
                        error(EFAULT)
                    }
                }
            }
            Helper::ChecksumDifference => checksum_difference(memory, packet, [a, b, c, d, e])?,
            Helper::Hash => u64::from(flow::hash(packet)),
            // All of the packet can always be read.
            Helper::PullData => match b as u32 as usize <= packet.len() {
                true => 0,
                false => error(ENOMEM),
            },
            Helper::CompareText => compare(memory, packet, a, b, c)?,
            Helper::StoreBytes | Helper::AdjustSrh | Helper::Action => return Ok(None),
        }))
    }
}

/// The index in an array that a key is.
fn key(memory: &Memory<'_>, packet: &[u8], address: u64) -> Result<usize, Fault> {
    Ok(u32::from_le_bytes(memory.load(packet, address)?) as usize)
}

/// `array_map_update_elem`.
fn update(memory: &mut Memory<'_>, packet: &[u8], [a, b, c, flags]: [u64; 4]) -> Result<u64, Fault> {
    /// `BPF_NOEXIST`, `BPF_EXIST`.
    const NO_EXIST: u64 = 1;
    const EXIST: u64 = 2;
    let (map, values) = memory.map(a)?;
    let index = key(memory, packet, b)?;
    if flags > EXIST {
        return Ok(error(EINVAL));
    }
    if index >= map.entries {
        return Ok(error(E2BIG));
    }
    if flags == NO_EXIST {
        return Ok(error(EEXIST));
    }
    let to = values + (index * map.stride) as u64;
    let mut at = 0;
    while at < map.value {
        let mut part = [0; 64];
        let len = part.len().min(map.value - at);
        memory.read(packet, c.wrapping_add(at as u64), &mut part[..len])?;
        memory.write(to + at as u64, &part[..len])?;
        at += len;
    }
    Ok(0)
}

/// Writes zeros.
fn clear(memory: &mut Memory<'_>, address: u64, len: usize) -> Result<(), Fault> {
    let zeros = [0; 64];
    let mut at = 0;
    while at < len {
        let part = zeros.len().min(len - at);
        memory.write(address.wrapping_add(at as u64), &zeros[..part])?;
        at += part;
    }
    Ok(())
}

/// `bpf_csum_diff`, as it is since Linux 6.13 on every processor: folded to 16 bits.
fn checksum_difference(
    memory: &Memory<'_>,
    packet: &[u8],
    [from, from_len, to, to_len, seed]: [u64; 5],
) -> Result<u64, Fault> {
    /// `MAX_BPF_STACK`.
    const MOST: u64 = 512;
    let (from_len, to_len) = (u64::from(from_len as u32), u64::from(to_len as u32));
    if !from_len.is_multiple_of(4) || !to_len.is_multiple_of(4) || from_len + to_len > MOST {
        return Ok(error(EINVAL));
    }
    let mut sum = u64::from(seed as u32);
    for (address, len, invert) in [(from, from_len, u32::MAX), (to, to_len, 0)] {
        for at in (0..len).step_by(4) {
            let word = u32::from_le_bytes(memory.load(packet, address.wrapping_add(at))?);
            sum += u64::from(word ^ invert);
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    Ok(sum)
}

/// `bpf_strncmp`.
fn compare(memory: &Memory<'_>, packet: &[u8], a: u64, len: u64, b: u64) -> Result<u64, Fault> {
    for at in 0..u64::from(len as u32) {
        let [x] = memory.load(packet, a.wrapping_add(at))?;
        let [y] = memory.load(packet, b.wrapping_add(at))?;
        if x != y {
            return Ok(if x < y { -1i64 as u64 } else { 1 });
        }
        if x == 0 {
            break;
        }
    }
    Ok(0)
}
