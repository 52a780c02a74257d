//! Packets through hooks, filters and actions, all made of the bytes.
#![no_main]

#[path = "../../tests/lab/mod.rs"]
mod lab;
#[path = "../../tests/traffic/mod.rs"]
mod traffic;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    traffic::any(bytes);
});
