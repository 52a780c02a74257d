//! The instructions of BPF programs that this process loads for End.BPF of SRv6.
//!
//! The kernel gives a program's instructions out as its verifier has rewritten them: for its own structures, and
//! with its own addresses for helpers. So what bpf(2) is given is kept here, and goes along with the descriptor
//! when a message names it.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_long, c_void},
    ptr,
    sync::{Mutex, PoisonError},
};

use libc::ssize_t;

use crate::{next, protocol::PROGRAM_MAGIC};

const PROG_LOAD: usize = 5;
const OBJ_GET_INFO_BY_FD: usize = 15;
/// `BPF_PROG_TYPE_LWT_SEG6LOCAL`.
const SEG6LOCAL: u32 = 19;
/// Programs that are remembered; older ones are forgotten.
const MOST: usize = 64;
const INSTRUCTION: usize = 8;
/// `BPF_COMPLEXITY_LIMIT_INSNS`.
const MOST_INSTRUCTIONS: usize = 1_000_000;

/// What is remembered of a program: its id, and its instructions, in which maps are named by their ids.
struct Loaded {
    id: u32,
    code: Vec<u8>,
}

static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// Makes an array so that it can be mapped into memory, where it was to be made otherwise: the router reaches maps by
/// memory alone. Programs see no difference. `None`: it is nothing of the kind, and nothing was made.
///
/// # Safety
/// As bpf(2) with these arguments.
pub unsafe fn map(command: usize, attribute: *const c_void, size: usize) -> Option<c_long> {
    const MAP_CREATE: usize = 0;
    /// `BPF_MAP_TYPE_ARRAY`.
    const ARRAY: u32 = 2;
    /// `BPF_F_MMAPABLE`.
    const MAPPABLE: u32 = 1 << 10;
    /// `BPF_F_RDONLY_PROG`, `BPF_F_WRONLY_PROG`.
    const HARMLESS: u32 = 1 << 7 | 1 << 8;
    /// Where `union bpf_attr` has the type and the flags, in words.
    const TYPE: usize = 0;
    const FLAGS: usize = 4;
    let mut words = [0u32; 64];
    if command != MAP_CREATE || attribute.is_null() || size <= FLAGS * 4 || size > size_of_val(&words) {
        return None;
    }
    // SAFETY: the caller's promise, and there is room.
    unsafe { ptr::copy_nonoverlapping(attribute.cast::<u8>(), (&raw mut words).cast(), size) };
    if words[TYPE] != ARRAY || words[FLAGS] & !HARMLESS != 0 {
        return None;
    }
    words[FLAGS] |= MAPPABLE;
    let errno = next::errno();
    let at = (&raw mut words).expose_provenance();
    // SAFETY: the kernel reads what the caller has put there, and what that points at is as it was.
    let made = unsafe { next::syscall(libc::SYS_bpf, MAP_CREATE, at, size, 0, 0, 0) };
    if made < 0 {
        next::set_errno(errno);
        return None;
    }
    Some(made)
}

/// The beginning of `union bpf_attr` for BPF_PROG_LOAD, to `fd_array`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    between: [u32; 26],
    descriptors: u64,
}

/// Takes note of what bpf(2) has done.
///
/// # Safety
/// The call with these arguments has succeeded with this result.
pub unsafe fn called(command: usize, attribute: *const c_void, size: usize, result: c_long) {
    let Ok(fd) = c_int::try_from(result) else { return };
    if command != PROG_LOAD || attribute.is_null() {
        return;
    }
    let mut load = Load::default();
    let size = size.min(size_of::<Load>());
    // SAFETY: the kernel has read `size` bytes there, and `load` has room for them; any bytes are a `Load`.
    unsafe { ptr::copy_nonoverlapping(attribute.cast::<u8>(), (&raw mut load).cast(), size) };
    let count = load.count as usize;
    if load.kind != SEG6LOCAL || load.instructions == 0 || count > MOST_INSTRUCTIONS {
        return;
    }
    let Some(id) = id_of(fd) else { return };
    let from = ptr::with_exposed_provenance::<u8>(load.instructions as usize);
    // SAFETY: the kernel has read so many instructions there.
    let mut code = unsafe { std::slice::from_raw_parts(from, count * INSTRUCTION) }.to_vec();
    // SAFETY: the kernel has looked into the array of descriptors for each of these.
    unsafe { name_maps(&mut code, load.descriptors) };
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.retain(|other| other.id != id);
    if loaded.len() == MOST {
        loaded.remove(0);
    }
    loaded.push(Loaded { id, code });
}

/// Puts the ids of maps where a program has their descriptors.
///
/// # Safety
/// `descriptors` is null or the address of an array that has all the places that the program names.
unsafe fn name_maps(code: &mut [u8], descriptors: u64) {
    const LD_IMM64: u8 = 0x18;
    // BPF_PSEUDO_MAP_FD and BPF_PSEUDO_MAP_VALUE by a descriptor; the same by a place in the array.
    const BY_FD: [u8; 2] = [1, 2];
    const BY_PLACE: [u8; 2] = [5, 6];
    let mut slots = code.as_chunks_mut::<INSTRUCTION>().0.iter_mut();
    while let Some([opcode, registers, _, _, immediate @ ..]) = slots.next() {
        if *opcode != LD_IMM64 {
            continue;
        }
        let _upper = slots.next();
        let (low, source) = (*registers & 15, *registers >> 4);
        let number = c_int::from_le_bytes(*immediate);
        let (fd, kind) = if BY_FD.contains(&source) {
            (number, source)
        } else if BY_PLACE.contains(&source) && descriptors != 0 {
            let array = ptr::with_exposed_provenance::<c_int>(descriptors as usize);
            // SAFETY: the caller's promise.
            let fd = unsafe { array.offset(number as isize).read_unaligned() };
            (fd, source - 4)
        } else {
            continue;
        };
        // An id of 0 is none: the router refuses the program.
        *immediate = id_of(fd).unwrap_or(0).to_le_bytes();
        *registers = kind << 4 | low;
    }
}

/// The id of a program or a map.
fn id_of(fd: c_int) -> Option<u32> {
    /// `union bpf_attr` for BPF_OBJ_GET_INFO_BY_FD.
    #[repr(C)]
    struct Ask {
        fd: u32,
        length: u32,
        info: u64,
    }
    // `struct bpf_prog_info` and `struct bpf_map_info` begin with the type and the id.
    let mut info = [0u32; 2];
    let mut ask = Ask { fd: fd as u32, length: 8, info: (&raw mut info).expose_provenance() as u64 };
    let errno = next::errno();
    // SAFETY: the kernel reads `ask`, and writes at most the 8 bytes of `info` that it says.
    let result = unsafe {
        let (ask_at, size) = ((&raw mut ask).expose_provenance(), size_of::<Ask>());
        next::syscall(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, ask_at, size, 0, 0, 0)
    };
    next::set_errno(errno);
    let [_, id] = info;
    (result == 0 && id != 0).then_some(id)
}

/// A memfd with the instructions of the program that a descriptor is of, for the router. `None`: this process has
/// not loaded it, or it is none.
pub fn instructions(fd: c_int) -> Option<c_int> {
    let id = id_of(fd)?;
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let code = &loaded.iter().find(|loaded| loaded.id == id)?.code;
    let record = [&PROGRAM_MAGIC[..], &id.to_ne_bytes(), code].concat();
    // SAFETY: memfd_create reads the name, write the record; close takes a number that is ours.
    unsafe {
        let file = libc::memfd_create(c"program".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return None;
        }
        if next::write(file, record.as_ptr().cast(), record.len()) != record.len() as ssize_t {
            next::close(file);
            return None;
        }
        Some(file)
    }
}
