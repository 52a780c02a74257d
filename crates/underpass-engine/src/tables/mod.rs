//! The forwarding state that workers read and the control thread writes.

mod action;

pub use action::*;
