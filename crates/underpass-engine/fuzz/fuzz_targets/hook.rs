//! Packets through hooks, filters and actions, all made of the bytes.
#![no_main]

#[path = "../../tests/router/dice.rs"]
mod dice;
#[path = "../../tests/router/lab.rs"]
mod lab;
#[path = "../../tests/router/pair.rs"]
mod pair;
#[path = "../../tests/router/traffic.rs"]
mod traffic;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    traffic::any(bytes);
});
