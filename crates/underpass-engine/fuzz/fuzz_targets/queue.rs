//! Packets in qdiscs that look into them, both made of the bytes.
#![no_main]

#[path = "../../tests/router/dice.rs"]
mod dice;
#[path = "../../tests/router/lab.rs"]
mod lab;
#[path = "../../tests/router/queues.rs"]
mod queues;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    queues::wait(bytes);
});
