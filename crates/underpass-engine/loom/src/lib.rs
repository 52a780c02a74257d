//! The engine's publication between threads, with loom's threads and atomics in the place of the system's.

#![cfg(loom)]
#![allow(dead_code, reason = "the models use a part")]

#[path = "../../src/publish.rs"]
mod publish;
