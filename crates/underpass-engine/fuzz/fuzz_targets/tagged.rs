//! Tagged frames, from the wire and from the host: the first bytes say which tags, the others what is behind them.
#![no_main]

#[path = "../../tests/router/lab.rs"]
mod lab;
#[path = "../../tests/router/tagged.rs"]
mod tagged;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tagged::send(bytes);
});
