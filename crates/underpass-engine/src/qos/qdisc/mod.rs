//! Queueing disciplines: what a worker does with packets that have to wait.

mod clocks;

pub use clocks::Clocks;
