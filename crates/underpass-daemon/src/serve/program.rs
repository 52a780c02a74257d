//! BPF programs that a client has loaded into the kernel for End.BPF, taken over by their descriptors.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    ptr::NonNull,
    sync::Arc,
};

use libc::{EINVAL, EOPNOTSUPP};
use underpass_control::{Program, RequestError};
use underpass_engine::bpf::{self, Map, Region};

use crate::protocol::PROGRAM_MAGIC;

const MAP_GET_FD_BY_ID: i32 = 14;
const OBJ_GET_INFO_BY_FD: i32 = 15;
/// `BPF_PROG_TYPE_LWT_SEG6LOCAL`.
const SEG6LOCAL: u32 = 19;
/// `BPF_MAP_TYPE_ARRAY`.
const ARRAY: u32 = 2;
/// `BPF_F_RDONLY_PROG`: programs only read it.
const READ_ONLY: u32 = 1 << 7;
/// `BPF_F_MMAPABLE`.
const MAPPABLE: u32 = 1 << 10;
/// Longest file of instructions: as many as the kernel takes.
const LONGEST: u64 = 8 + 8 * 1_000_000;
/// Most maps of a program: `MAX_USED_MAPS`.
const MAPS: usize = 64;

/// `struct bpf_prog_info`, as far as it is needed.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    lengths: [u32; 2],
    instructions: [u64; 2],
    load_time: u64,
    created_by: u32,
    map_count: u32,
    map_ids: u64,
    name: [u8; 16],
}

/// `struct bpf_map_info`, likewise.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
    name: [u8; 16],
}

/// What the kernel says of an object.
///
/// # Safety
/// `T` is a C struct of integers; the addresses in it are those of memory that the kernel may write as long as
/// what it is asked for is.
unsafe fn info<T>(fd: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    #[repr(C)]
    struct Ask {
        fd: i32,
        length: u32,
        info: u64,
    }
    let info = (&raw mut *info).expose_provenance() as u64;
    let mut ask = Ask { fd: fd.as_raw_fd(), length: size_of::<T>() as u32, info };
    // SAFETY: the kernel reads `ask` and writes at most the size of T; for the rest the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, &raw mut ask, size_of::<Ask>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A program that a request names by a descriptor, with the file that came behind it.
///
/// # Errors
/// What the client gets. Linux: `bpf_prog_get_type`; and what this router cannot run.
pub fn take(program: &OwnedFd, file: OwnedFd) -> Result<Program, RequestError> {
    let mut map_ids = [0u32; MAPS];
    let mut about = ProgramInfo {
        map_count: MAPS as u32,
        map_ids: (&raw mut map_ids).expose_provenance() as u64,
        ..ProgramInfo::default()
    };
    // SAFETY: the kernel writes at most MAPS ids.
    if unsafe { info(program.as_fd(), &mut about) }.is_err() || about.kind != SEG6LOCAL {
        return Err(RequestError::errno(EINVAL));
    }
    let code = instructions(file, about.id).ok_or(refuse(
        "the instructions of this program are not known: it must be loaded by the sender".to_owned(),
    ))?;
    let ids =
        map_ids.get(..about.map_count as usize).ok_or_else(|| refuse("it has too many maps".to_owned()))?;
    let maps: Result<Vec<_>, _> = ids.iter().map(|id| Ok((*id, map(*id)?))).collect();
    let decoded = bpf::Program::new(&code, maps?).map_err(|unsupported| refuse(unsupported.to_string()))?;
    let loaded =
        program.try_clone().map_err(|error| RequestError::errno(error.raw_os_error().unwrap_or(EINVAL)))?;
    Ok(Program::new(about.id, decoded, Arc::new(loaded)))
}

fn refuse(why: String) -> RequestError {
    RequestError::with_text(EOPNOTSUPP, format!("End.BPF: {why}"))
}

/// The instructions in a file that the library has written for the program of this id. `None`: it is another.
fn instructions(file: OwnedFd, id: u32) -> Option<Vec<u8>> {
    let file = File::from(file);
    let length = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    if length > LONGEST {
        return None;
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (of, code) = rest.split_first_chunk::<4>()?;
    (*magic == PROGRAM_MAGIC && u32::from_ne_bytes(*of) == id).then(|| code.to_vec())
}

/// The map of an id, in memory that is shared with the kernel.
fn map(id: u32) -> Result<Map, RequestError> {
    #[repr(C)]
    struct Ask {
        id: u32,
        next: u32,
        flags: u32,
    }
    let failed = |error: io::Error| refuse(format!("map {id} cannot be opened: {error}"));
    let mut ask = Ask { id, next: 0, flags: 0 };
    // SAFETY: the kernel reads `ask`.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, MAP_GET_FD_BY_ID, &raw mut ask, size_of::<Ask>()) };
    if fd < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: a new descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut about = MapInfo::default();
    // SAFETY: there are no addresses in it.
    unsafe { info(fd.as_fd(), &mut about) }.map_err(failed)?;
    let name = String::from_utf8_lossy(&about.name);
    let name = name.trim_end_matches('\0');
    if about.kind != ARRAY || about.flags & MAPPABLE == 0 {
        return Err(refuse(format!(
            "map \"{name}\" is not an array with BPF_F_MMAPABLE, which alone can be reached without a system call"
        )));
    }
    let length = (about.value as usize).next_multiple_of(8).checked_mul(about.entries as usize);
    let length = length.ok_or_else(|| refuse(format!("map \"{name}\" is too large")))?;
    // One that is frozen cannot be mapped to be written, and only programs that do not write have it so.
    let region = match about.flags & READ_ONLY {
        0 => Shared::map(&fd, length, true).or_else(|_| Shared::map(&fd, length, false)),
        _ => Shared::map(&fd, length, false),
    };
    Map::array(region.map_err(failed)?, about.value as usize, about.entries as usize)
        .ok_or_else(|| refuse(format!("map \"{name}\" is too large")))
}

/// A mapping, which is undone when it is dropped.
struct Shared {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it only undoes the mapping.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

impl Shared {
    /// The first `length` bytes of an array's values.
    fn map(fd: &OwnedFd, length: usize, writable: bool) -> io::Result<Region> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        let owner = Box::new(Self { start, length });
        // SAFETY: the mapping has this length and stays as long as its owner; only the region knows it. An array of
        // the kernel does not change its size.
        Ok(unsafe { Region::new(start, length, writable, owner) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; whoever uses it keeps this.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
