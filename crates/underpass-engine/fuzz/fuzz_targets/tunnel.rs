//! Tunnels of every kind: the first bytes say which, and whether a packet goes in or comes out.
#![no_main]

#[path = "../../tests/router/lab.rs"]
mod lab;
#[path = "../../tests/router/pair.rs"]
mod pair;
#[path = "../../tests/router/passage.rs"]
mod passage;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    passage::send(bytes);
});
