//! Policing and shaping: the arithmetic of rates, and what is done to packets by it.

#[allow(dead_code, reason = "workers come to it next")]
mod action;
#[allow(dead_code, reason = "workers come to it next")]
mod estimator;
#[allow(dead_code, reason = "workers come to it next")]
mod hook;
#[allow(dead_code, reason = "workers come to it next")]
mod police;
pub mod qdisc;
mod rate;
mod wire;

pub(crate) use action::StoredAction;
pub(crate) use hook::StoredHook;
pub use rate::{LinkLayer, Rate, RateConfig};
pub use wire::WireLength;
