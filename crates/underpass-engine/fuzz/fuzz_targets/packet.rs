//! Packets through a router that has every behaviour: the first bytes say whither and in what.
#![no_main]

#[path = "../../tests/router/lab.rs"]
mod lab;
#[path = "../../tests/router/packets.rs"]
mod packets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    packets::send(bytes);
});
