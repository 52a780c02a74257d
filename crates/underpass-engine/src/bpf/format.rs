//! `bpf_trace_printk`: kernel/trace/bpf_trace.c, kernel/bpf/helpers.c (`bpf_bprintf_prepare`).

use std::fmt::Write;

use arrayvec::ArrayString;

use super::{Fault, Memory};

/// Longest line: `MAX_BPRINTF_BUF`.
const MOST: usize = 1024;

/// A line, cut where it becomes too long.
pub(super) struct Line(ArrayString<MOST>);

impl Line {
    pub(super) fn new() -> Self {
        Self(ArrayString::new())
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    fn push(&mut self, byte: u8) {
        // What does not fit is left out.
        let _ = self.0.try_push(if byte.is_ascii() { char::from(byte) } else { '?' });
    }

    fn pad(&mut self, text: &str, width: usize, zeros: bool) {
        let missing = width.min(MOST).saturating_sub(text.len());
        (0..missing).for_each(|_| self.push(if zeros { b'0' } else { b' ' }));
        text.bytes().for_each(|byte| self.push(byte));
    }
}

/// Writes a line after a format of so many bytes. `false`: the format is not one that Linux takes.
pub(super) fn print(
    line: &mut Line,
    memory: &Memory<'_>,
    packet: &[u8],
    (format, len): (u64, u64),
    arguments: [u64; 3],
) -> Result<bool, Fault> {
    let mut text = [0; 256];
    let Some(text) = usize::try_from(len).ok().and_then(|len| text.get_mut(..len)) else {
        return Ok(false);
    };
    memory.read(packet, format, text)?;
    let Some((0, text)) = text.split_last() else { return Ok(false) };
    let mut arguments = arguments.into_iter();
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            if !byte.is_ascii_graphic() && !byte.is_ascii_whitespace() {
                return Ok(false);
            }
            line.push(byte);
            continue;
        }
        if bytes.next_if_eq(&b'%').is_some() {
            line.push(b'%');
            continue;
        }
        let zeros = bytes.next_if_eq(&b'0').is_some();
        let mut width = 0usize;
        while let Some(digit) = bytes.next_if(u8::is_ascii_digit) {
            width = width.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
        }
        let mut longs = 0;
        while bytes.next_if_eq(&b'l').is_some() {
            longs += 1;
        }
        let (Some(kind), Some(argument)) = (bytes.next(), arguments.next()) else { return Ok(false) };
        let narrow = argument as u32;
        let mut number = ArrayString::<24>::new();
        // 24 digits hold any of these.
        let written = match (kind, longs) {
            (b'd' | b'i', 0) => write!(number, "{}", narrow as i32),
            (b'd' | b'i', _) => write!(number, "{}", argument as i64),
            (b'u', 0) => write!(number, "{narrow}"),
            (b'u', _) => write!(number, "{argument}"),
            (b'x', 0) => write!(number, "{narrow:x}"),
            (b'x', _) => write!(number, "{argument:x}"),
            (b'X', 0) => write!(number, "{narrow:X}"),
            (b'X', _) => write!(number, "{argument:X}"),
            (b'p', 0) => write!(number, "{argument:016x}"),
            (b'c', 0) => {
                line.push(argument as u8);
                continue;
            }
            (b's', 0) => {
                for at in 0..MOST as u64 {
                    match memory.load(packet, argument.wrapping_add(at)) {
                        Ok([byte]) if byte != 0 => line.push(byte),
                        _ => break,
                    }
                }
                continue;
            }
            _ => return Ok(false),
        };
        if written.is_err() {
            return Ok(false);
        }
        line.pad(&number, width, zeros);
    }
    Ok(true)
}
