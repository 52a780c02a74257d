//! bpf(2): maps, programs and links, as far as the ports need them. include/uapi/linux/bpf.h.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::assembler::{Function, Instruction};
use super::btf;

const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const MAP_DELETE_ELEM: i32 = 3;
const PROG_LOAD: i32 = 5;
const PROG_TEST_RUN: i32 = 10;
const LINK_CREATE: i32 = 28;
const PROG_GET_FD_BY_ID: i32 = 13;
const OBJ_GET_INFO_BY_FD: i32 = 15;
const PROG_QUERY: i32 = 16;
const BTF_LOAD: i32 = 18;

/// Kinds of maps.
#[derive(Clone, Copy)]
pub(crate) enum MapKind {
    /// `BPF_MAP_TYPE_HASH`.
    Hash = 1,
    /// `BPF_MAP_TYPE_XSKMAP`.
    Sockets = 17,
    /// `BPF_MAP_TYPE_ARENA`.
    Arena = 33,
}

/// Kinds of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProgramKind {
    /// `BPF_PROG_TYPE_SOCKET_FILTER`.
    Filter = 1,
    /// `BPF_PROG_TYPE_SCHED_CLS`.
    Classifier = 3,
    /// `BPF_PROG_TYPE_XDP`.
    Xdp = 6,
}

/// Where a link attaches a program.
#[derive(Clone, Copy)]
pub(crate) enum Attach {
    /// `BPF_XDP`.
    Xdp = 37,
    /// `BPF_TCX_INGRESS`.
    TcIngress = 46,
    /// `BPF_TCX_EGRESS`.
    TcEgress = 47,
}

/// Calls bpf(2) with an attribute of a plain C type.
fn bpf<T>(command: i32, attribute: &mut T) -> io::Result<i32> {
    let attribute_at: *mut T = attribute;
    // SAFETY: the kernel reads and writes at most the size of the attribute, and the memory that its
    // pointers name, which the callers keep alive.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attribute_at, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// As [`bpf`], for the commands that return a descriptor.
fn bpf_fd<T>(command: i32, attribute: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attribute)?;
    // SAFETY: a new descriptor, closed on exec, that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    name.iter_mut().take(15).zip(text.bytes()).for_each(|(to, from)| *to = from);
    name
}

/// A map; the kernel frees it when no descriptor and no program refers to it.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    key: usize,
    value: usize,
}

impl Map {
    /// Makes a map with keys and values of these lengths in bytes.
    pub(crate) fn new(kind: MapKind, text: &str, key: usize, value: usize, entries: u32) -> io::Result<Self> {
        /// Memory as entries come: a table for all of them would lie idle.
        const NO_PREALLOC: u32 = 1;
        let flags = if matches!(kind, MapKind::Hash) { NO_PREALLOC } else { 0 };
        Self::with_flags(kind, text, (key, value, entries), flags)
    }

    /// Makes an arena of so many pages.
    pub(crate) fn arena(text: &str, pages: u32) -> io::Result<Self> {
        const MMAPABLE: u32 = 1 << 10;
        Self::with_flags(MapKind::Arena, text, (0, 0, pages), MMAPABLE)
    }

    fn with_flags(
        kind: MapKind,
        text: &str,
        (key, value, entries): (usize, usize, u32),
        flags: u32,
    ) -> io::Result<Self> {
        #[repr(C)]
        struct Attribute {
            kind: u32,
            key: u32,
            value: u32,
            entries: u32,
            flags: u32,
            inner: u32,
            node: u32,
            name: [u8; 16],
        }
        let (inner, node) = (0, 0);
        let (key, value) = (key as u32, value as u32);
        let mut attribute =
            Attribute { kind: kind as u32, key, value, entries, flags, inner, node, name: name(text) };
        let fd = bpf_fd(MAP_CREATE, &mut attribute)?;
        Ok(Self { fd, key: key as usize, value: value as usize })
    }

    fn element(&self, command: i32, key: &[u8], value: &[u8]) -> io::Result<()> {
        #[repr(C)]
        struct Attribute {
            map: u32,
            padding: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        if key.len() != self.key || (command == MAP_UPDATE_ELEM && value.len() != self.value) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let value = if value.is_empty() { 0 } else { value.as_ptr() as u64 };
        let key = key.as_ptr() as u64;
        let map = self.as_raw_fd().cast_unsigned();
        bpf(command, &mut Attribute { map, padding: 0, key, value, flags: 0 }).map(drop)
    }

    /// Writes an entry.
    pub(crate) fn insert(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.element(MAP_UPDATE_ELEM, key, value)
    }

    /// Deletes an entry; one that is not there is no error.
    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<()> {
        match self.element(MAP_DELETE_ELEM, key, &[]) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }
}

impl AsRawFd for Map {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Loads a program. The error tells what the verifier says.
pub(crate) fn load(kind: ProgramKind, text: &str, program: &[Instruction]) -> io::Result<OwnedFd> {
    load_functions(kind, text, program, &[])
}

/// Tells the kernel of types.
fn load_types(types: &[u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attribute {
        types: u64,
        log: u64,
        size: u32,
        log_size: u32,
        log_level: u32,
        log_true_size: u32,
    }
    let (types, size) = (types.as_ptr() as u64, types.len() as u32);
    bpf_fd(BTF_LOAD, &mut Attribute { types, log: 0, size, log_size: 0, log_level: 0, log_true_size: 0 })
}

/// The same of a program with functions.
pub(crate) fn load_functions(
    kind: ProgramKind,
    text: &str,
    program: &[Instruction],
    functions: &[Function],
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attribute {
        kind: u32,
        instructions: u32,
        program: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        ifindex: u32,
        attach: u32,
        types: u32,
        function_size: u32,
        functions: u64,
        function_count: u32,
        rest: u32,
    }
    /// The program may be given packets in several pieces.
    const XDP_HAS_FRAGMENTS: u32 = 1 << 5;
    const LICENSE: &CStr = c"Apache-2.0 OR MIT";
    let (described, places) = btf::describe(functions);
    let types = if functions.is_empty() { None } else { Some(load_types(&described)?) };
    let mut log = vec![0_u8; 1 << 16];
    let mut attribute = Attribute {
        kind: kind as u32,
        instructions: program.len() as u32,
        program: program.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: if kind == ProgramKind::Xdp { XDP_HAS_FRAGMENTS } else { 0 },
        name: name(text),
        ifindex: 0,
        attach: 0,
        types: types.as_ref().map_or(0, |types| types.as_raw_fd().cast_unsigned()),
        function_size: if types.is_some() { size_of::<[u32; 2]>() as u32 } else { 0 },
        functions: if types.is_some() { places.as_ptr() as u64 } else { 0 },
        function_count: if types.is_some() { places.len() as u32 } else { 0 },
        rest: 0,
    };
    let error = match bpf_fd(PROG_LOAD, &mut attribute) {
        Ok(fd) => return Ok(fd),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Err(error),
        Err(error) => error,
    };
    // Once more, to hear why.
    (attribute.log_level, attribute.log_size) = (1, log.len() as u32);
    attribute.log = log.as_mut_ptr() as u64;
    let _ = bpf_fd(PROG_LOAD, &mut attribute);
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let log = String::from_utf8_lossy(log.get(..end).unwrap_or_default()).into_owned();
    Err(io::Error::new(error.kind(), format!("{error}; {log}")))
}

/// Attaches a program to a device, until the returned link is closed: by us, or by our death.
pub(crate) fn link(program: &OwnedFd, ifindex: u32, attach: Attach, flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attribute {
        program: u32,
        ifindex: u32,
        attach: u32,
        flags: u32,
        /// Of a TCX link: beside which other program, and at which revision; none.
        rest: [u64; 4],
    }
    let program = program.as_raw_fd().cast_unsigned();
    let mut attribute = Attribute { program, ifindex, attach: attach as u32, flags, rest: [0; 4] };
    bpf_fd(LINK_CREATE, &mut attribute)
}

/// How many programs of others are at a hook of a device. Those of routers are called `underpass…`.
pub(crate) fn others_at(ifindex: u32, attach: Attach) -> io::Result<usize> {
    const MOST: usize = 64;
    #[repr(C)]
    struct Query {
        ifindex: u32,
        attach: u32,
        query_flags: u32,
        attach_flags: u32,
        ids: u64,
        count: u32,
        rest: [u32; 9],
    }
    let mut ids = [0u32; MOST];
    let at = ids.as_mut_ptr() as u64;
    let (attach, rest) = (attach as u32, [0; 9]);
    let mut query =
        Query { ifindex, attach, query_flags: 0, attach_flags: 0, ids: at, count: MOST as u32, rest };
    bpf(PROG_QUERY, &mut query)?;
    let ids = ids.into_iter().take(query.count as usize);
    Ok(ids.filter(|id| !program_name(*id).is_ok_and(|name| name.starts_with(b"underpass"))).count())
}

fn program_name(id: u32) -> io::Result<[u8; 16]> {
    /// Where the name is in `struct bpf_prog_info`, and how much of that is read.
    const NAME: usize = 64;
    let mut by_id = [id, 0, 0];
    let program = bpf_fd(PROG_GET_FD_BY_ID, &mut by_id)?;
    #[repr(C)]
    struct Info {
        program: u32,
        len: u32,
        info: u64,
    }
    let mut info = [0u8; NAME + 16];
    let (program, at) = (program.as_raw_fd().cast_unsigned(), info.as_mut_ptr() as u64);
    bpf(OBJ_GET_INFO_BY_FD, &mut Info { program, len: info.len() as u32, info: at })?;
    let mut name = [0; 16];
    name.copy_from_slice(&info[NAME..]);
    Ok(name)
}

/// Runs a program once over `packet` as if it had come in by the device `ifindex`; what it returns.
#[cfg(test)]
pub(crate) fn test_run(program: &OwnedFd, packet: &[u8], context: &[u8]) -> io::Result<u32> {
    run(program, packet, context, Run::default()).map(|ran| ran.verdict)
}

/// Runs a program once over `packet`, with this context. `left` becomes what is in the packet then: at most as many bytes as
/// it had, or ENOSPC.
pub(crate) fn run_once(
    program: &OwnedFd,
    packet: &[u8],
    context: &[u8],
    left: &mut Vec<u8>,
) -> io::Result<Ran> {
    let ran = run(program, packet, context, Run { left, ..Run::default() })?;
    left.truncate(ran.len);
    Ok(ran)
}

/// Runs a program once over `packet`, with this context: what that is then.
pub(crate) fn run_for_context<const N: usize>(
    program: &OwnedFd,
    packet: &[u8],
    context: &[u8; N],
) -> io::Result<[u8; N]> {
    let mut after = [0; N];
    run(program, packet, context, Run { context: &mut after, ..Run::default() })?;
    Ok(after)
}

/// Makes `count` frames and does with each what a program of XDP says: redirects are real. Every frame begins
/// as `packet`, but for what became of the memory before it was used again: the program has to write it.
pub(crate) fn run_live(program: &OwnedFd, packet: &[u8], count: u32) -> io::Result<()> {
    /// `BPF_F_TEST_XDP_LIVE_FRAMES`.
    const LIVE_FRAMES: u32 = 1 << 1;
    run(program, packet, &[], Run { repeat: count, flags: LIVE_FRAMES, batch: 64, ..Run::default() })
        .map(drop)
}

#[derive(Default)]
struct Run<'a> {
    repeat: u32,
    flags: u32,
    batch: u32,
    /// Room for what is in the packet then.
    left: &'a mut [u8],
    /// Room for the context then.
    context: &'a mut [u8],
}

/// What came of a run.
pub(crate) struct Ran {
    /// What the program returned.
    pub(crate) verdict: u32,
    /// How long the program ran.
    pub(crate) duration: Duration,
    /// How long the packet is then.
    len: usize,
}

fn run(program: &OwnedFd, packet: &[u8], context: &[u8], run: Run<'_>) -> io::Result<Ran> {
    #[repr(C)]
    struct Attribute {
        program: u32,
        result: u32,
        data_in_len: u32,
        data_out_len: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        context_in_len: u32,
        context_out_len: u32,
        context_in: u64,
        context_out: u64,
        flags: u32,
        processor: u32,
        batch: u32,
        padding: u32,
    }
    let mut attribute = Attribute {
        program: program.as_raw_fd().cast_unsigned(),
        result: 0,
        data_in_len: packet.len() as u32,
        data_out_len: run.left.len() as u32,
        data_in: packet.as_ptr() as u64,
        data_out: if run.left.is_empty() { 0 } else { run.left.as_mut_ptr() as u64 },
        repeat: run.repeat,
        duration: 0,
        context_in_len: context.len() as u32,
        context_out_len: run.context.len() as u32,
        context_in: if context.is_empty() { 0 } else { context.as_ptr() as u64 },
        context_out: if run.context.is_empty() { 0 } else { run.context.as_mut_ptr() as u64 },
        flags: run.flags,
        processor: 0,
        batch: run.batch,
        padding: 0,
    };
    bpf(PROG_TEST_RUN, &mut attribute)?;
    let duration = Duration::from_nanos(attribute.duration.into());
    Ok(Ran { verdict: attribute.result, duration, len: attribute.data_out_len as usize })
}
