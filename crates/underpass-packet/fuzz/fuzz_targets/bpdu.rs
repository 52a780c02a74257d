#![no_main]

#[path = "../../tests/exercise/mod.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::bpdu(bytes);
});
