//! BPF programs on a packet: the first byte says how the others become instructions.
#![no_main]

#[path = "../../tests/router/exercise.rs"]
mod exercise;
#[path = "../../tests/router/lab.rs"]
mod lab;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::any(bytes);
});
