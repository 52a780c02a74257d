//! Whether a program can load the preload library.
//!
//! A static ELF program has no interpreter (PT_INTERP) that would load it; one in Go has no need of the C library for
//! its system calls. The Go linker leaves a note, which is there in stripped programs, too.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    os::unix::{ffi::OsStrExt, fs::FileExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

/// How the sockets of a program can be led to a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It loads the library.
    Dynamic,
    /// It is static.
    Static,
    /// It is written in Go.
    Go,
    /// It is static and of another architecture, whose system calls cannot be supervised.
    Foreign,
}

impl Kind {
    /// Whether the library does not reach it.
    pub fn needs_supervision(self) -> bool {
        matches!(self, Self::Static | Self::Go)
    }
}

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// Interpreters of interpreters that Linux follows.
const INTERPRETERS: usize = 5;
/// Program headers are looked at so far.
const HEADERS: usize = 64;
/// Bytes of a program header of 32 bits.
const SHORTEST: usize = 32;
/// Notes are looked at so far, in bytes.
const NOTES: usize = 4096;

/// What kind of program a command is. What cannot be read or is not known is taken for dynamic: starting it says what
/// is wrong.
pub fn kind(command: &OsStr) -> Kind {
    let mut path = find(command);
    for _ in 0..INTERPRETERS {
        let Some(file) = path.as_deref().and_then(|path| File::open(path).ok()) else { break };
        let mut first = [0; 256];
        let length = file.read_at(&mut first, 0).unwrap_or(0);
        let first = first.get(..length).unwrap_or_default();
        match first.strip_prefix(b"#!") {
            Some(line) => path = interpreter(line),
            None => return elf(&file, first).unwrap_or(Kind::Dynamic),
        }
    }
    Kind::Dynamic
}

/// The file of a command, as execvp(3) finds it.
fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|status| status.is_file() && status.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(&path).map(|directory| directory.join(command)).find(executable)
}

/// The program that a script's first line names.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let word = line.split(u8::is_ascii_whitespace).next().filter(|word| !word.is_empty())?;
    Some(Path::new(OsStr::from_bytes(word)).to_owned())
}

fn number<const LENGTH: usize>(bytes: &[u8], at: usize) -> Option<[u8; LENGTH]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// What an ELF file is: elf(5). `None`: it is none, or broken.
fn elf(file: &File, first: &[u8]) -> Option<Kind> {
    const LITTLE: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };
    const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    if !first.starts_with(b"\x7fELF") {
        return None;
    }
    let wide = first.get(4) == Some(&2);
    let native = wide && first.get(5) == Some(&LITTLE) && u16::from_ne_bytes(number(first, 18)?) == MACHINE;
    let half = |at| Some(u16::from_ne_bytes(number(first, at)?) as usize);
    let (start, size, count) = match wide {
        true => (u64::from_ne_bytes(number(first, 32)?), half(54)?, half(56)?),
        false => (u64::from(u32::from_ne_bytes(number(first, 28)?)), half(42)?, half(44)?),
    };
    if size < SHORTEST || count == 0 {
        return None;
    }
    let mut headers = vec![0; size * count.min(HEADERS)];
    file.read_exact_at(&mut headers, start).ok()?;
    let mut found = Kind::Static;
    for header in headers.chunks_exact(size) {
        match u32::from_ne_bytes(number(header, 0)?) {
            PT_INTERP if found == Kind::Static => found = Kind::Dynamic,
            PT_NOTE if native && is_gos(file, header) => found = Kind::Go,
            _ => {}
        }
    }
    // One that loads libraries loads those of its architecture, or says that it cannot.
    Some(if !native && found == Kind::Static { Kind::Foreign } else { found })
}

/// Whether among the notes of a program header is one of the Go linker.
fn is_gos(file: &File, header: &[u8]) -> bool {
    let place = |at| number(header, at).map(u64::from_ne_bytes);
    let (Some(offset), Some(length)) = (place(8), place(32)) else { return false };
    let mut notes = vec![0; (length as usize).min(NOTES)];
    if file.read_exact_at(&mut notes, offset).is_err() {
        return false;
    }
    let mut rest = notes.as_slice();
    while let (Some(name), Some(content)) = (number(rest, 0), number(rest, 4)) {
        let (name, content) = (u32::from_ne_bytes(name) as usize, u32::from_ne_bytes(content) as usize);
        if rest.get(12..12 + name) == Some(b"Go\0\0") {
            return true;
        }
        let next = 12 + name.next_multiple_of(4) + content.next_multiple_of(4);
        rest = rest.get(next..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::OpenOptionsExt};

    use super::*;

    #[test]
    fn programs_and_scripts() {
        assert_eq!(kind(OsStr::new("sh")), Kind::Dynamic);
        assert_eq!(kind(OsStr::new("no-such-program-anywhere")), Kind::Dynamic);
        let here = env::current_exe().unwrap();
        assert_eq!(kind(here.as_os_str()), Kind::Dynamic);
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            let mut options = fs::OpenOptions::new();
            let file = options.create(true).write(true).mode(0o755).open(&path).unwrap();
            file.write_all_at(bytes, 0).unwrap();
            path
        };
        // This program without its interpreter is a static one; each header is 56 bytes.
        let mut bytes = fs::read(&here).unwrap();
        let start = u64::from_ne_bytes(number(&bytes, 32).unwrap()) as usize;
        let count = u16::from_ne_bytes(number(&bytes, 56).unwrap()) as usize;
        let interpreter = (0..count).map(|at| start + at * 56).find(|at| bytes[*at] == 3).unwrap();
        bytes[interpreter] = 0;
        let program = write("static", &bytes[..start + count * 56]);
        assert_eq!(kind(program.as_os_str()), Kind::Static);
        let mut other = bytes[..start + count * 56].to_vec();
        other[18] = 40; // ARM
        assert_eq!(kind(write("foreign", &other).as_os_str()), Kind::Foreign);
        let script = format!("#! {} -x\nls\n", program.display());
        assert_eq!(kind(write("script", script.as_bytes()).as_os_str()), Kind::Static);
        // As a note of the Go linker, in the place of the interpreter.
        bytes[interpreter] = 4;
        let notes = bytes.len() as u64;
        bytes[interpreter + 8..interpreter + 16].copy_from_slice(&notes.to_ne_bytes());
        bytes[interpreter + 32..interpreter + 40].copy_from_slice(&36u64.to_ne_bytes());
        let other = [&[4u8, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0][..], b"GNU\0abcd"].concat();
        let note = [&other[..], &[4, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0][..], b"Go\0\0"].concat();
        bytes.extend_from_slice(&note);
        assert_eq!(kind(write("go", &bytes).as_os_str()), Kind::Go);
        bytes[4] = 1;
        assert_ne!(kind(write("narrow", &bytes).as_os_str()), Kind::Go);
        bytes[4] = 2;
        for length in [0, 3, 16, 40, 63] {
            assert_eq!(kind(write("cut", &bytes[..length]).as_os_str()), Kind::Dynamic);
        }
    }
}
