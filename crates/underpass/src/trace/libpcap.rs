//! Filters in tcpdump's language, compiled by libpcap. It is looked for when one is asked for: whoever follows all
//! packets needs none, and the router itself never does.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    ptr::NonNull,
    slice,
};

use anyhow::{Context, bail};

/// Where it is: of Debian, of others.
const LIBRARIES: [&CStr; 3] = [c"libpcap.so.0.8", c"libpcap.so.1", c"libpcap.so"];
/// Frames begin with an Ethernet header: `DLT_EN10MB`.
const ETHERNET: c_int = 1;
/// What a program returns for a packet that matches.
const SNAPLEN: c_int = 262_144;
/// `PCAP_NETMASK_UNKNOWN`.
const NO_NETMASK: u32 = u32::MAX;

/// `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    len: u32,
    instructions: *mut Instruction,
}

/// `pcap_t`.
type Handle = *mut c_void;

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> Handle;
type Compile = unsafe extern "C" fn(Handle, *mut Program, *const c_char, c_int, u32) -> c_int;
type FreeCode = unsafe extern "C" fn(*mut Program);
type GetError = unsafe extern "C" fn(Handle) -> *const c_char;
type Close = unsafe extern "C" fn(Handle);

/// The functions of the library that are used here. It is never unloaded.
struct Libpcap {
    open_dead: OpenDead,
    compile: Compile,
    freecode: FreeCode,
    geterr: GetError,
    close: Close,
}

impl Libpcap {
    fn load() -> Option<Self> {
        let library = LIBRARIES.iter().find_map(|name| {
            // SAFETY: a name that ends in 0; the library's own initialisation is trusted as that of any other library.
            NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) })
        })?;
        let find = |name: &CStr| {
            // SAFETY: a library that was opened and is never closed, a name that ends in 0.
            NonNull::new(unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) }).map(NonNull::as_ptr)
        };
        // SAFETY: these are the signatures of `pcap/pcap.h`, which are the library's interface since version 0.8; a
        // pointer to data and one to a function are of one size on Linux.
        unsafe {
            Some(Self {
                open_dead: std::mem::transmute::<*mut c_void, OpenDead>(find(c"pcap_open_dead")?),
                compile: std::mem::transmute::<*mut c_void, Compile>(find(c"pcap_compile")?),
                freecode: std::mem::transmute::<*mut c_void, FreeCode>(find(c"pcap_freecode")?),
                geterr: std::mem::transmute::<*mut c_void, GetError>(find(c"pcap_geterr")?),
                close: std::mem::transmute::<*mut c_void, Close>(find(c"pcap_close")?),
            })
        }
    }
}

/// The classic BPF program of a filter for Ethernet frames: code, jump if true, jump if false, number.
///
/// # Errors
/// There is no libpcap; what it says of the filter.
pub fn compile(filter: &str) -> anyhow::Result<Vec<(u16, u8, u8, u32)>> {
    let text = CString::new(filter).context("a filter with a byte 0 in it")?;
    let Some(library) = Libpcap::load() else {
        bail!(
            "a filter needs libpcap, which is not here: install libpcap0.8 (Debian) or libpcap, or give no filter"
        );
    };
    // SAFETY: any numbers will do; the answer is checked.
    let handle = unsafe { (library.open_dead)(ETHERNET, SNAPLEN) };
    if handle.is_null() {
        bail!("libpcap has no memory");
    }
    let mut program = Program { len: 0, instructions: std::ptr::null_mut() };
    // SAFETY: a handle that is open, a program to be filled in, a text that ends in 0.
    let status = unsafe { (library.compile)(handle, &raw mut program, text.as_ptr(), 1, NO_NETMASK) };
    let compiled = if status == 0 && !program.instructions.is_null() {
        // SAFETY: libpcap has filled it in: so many instructions are there, until they are freed below.
        let instructions = unsafe { slice::from_raw_parts(program.instructions, program.len as usize) };
        let copied = instructions.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect();
        // SAFETY: a program that libpcap has filled in, freed once.
        unsafe { (library.freecode)(&raw mut program) };
        Ok(copied)
    } else {
        // SAFETY: a handle that is open; libpcap's text ends in 0 and is copied before the handle is closed.
        let error = unsafe { CStr::from_ptr((library.geterr)(handle)) }.to_string_lossy().into_owned();
        Err(anyhow::anyhow!("the filter '{filter}': {error}"))
    };
    // SAFETY: a handle that is open and not used any more.
    unsafe { (library.close)(handle) };
    compiled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_errors() {
        if Libpcap::load().is_none() {
            assert!(compile("ip").unwrap_err().to_string().contains("install libpcap0.8"));
            return;
        }
        // `tcpdump -y EN10MB -ddd ip6`
        let expected = [(40, 0, 0, 12), (21, 0, 1, 34525), (6, 0, 0, 262_144), (6, 0, 0, 0)];
        assert_eq!(compile("ip6").unwrap(), expected);
        assert_eq!(compile("").unwrap(), [(6, 0, 0, 262_144)]);
        let error = compile("tcp prot 80").unwrap_err().to_string();
        assert!(error.starts_with("the filter 'tcp prot 80': "), "{error}");
        assert!(compile("a\0b").is_err());
    }
}
