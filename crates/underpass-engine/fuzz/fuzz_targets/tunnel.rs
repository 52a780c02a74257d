//! Tunnels of every kind: the first bytes say which, and whether a packet goes in or comes out.
#![no_main]

#[path = "../../tests/lab/mod.rs"]
mod lab;
#[path = "../../tests/pair/mod.rs"]
mod pair;
#[path = "../../tests/passage/mod.rs"]
mod passage;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    passage::send(bytes);
});
