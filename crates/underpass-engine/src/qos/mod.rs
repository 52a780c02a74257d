//! Policing and shaping: the arithmetic of rates, and what is done to packets by it.

mod action;
mod classify;
mod csum;
pub(crate) mod edit;
mod estimator;
mod hook;
mod lengths;
mod pedit;
mod police;
pub mod qdisc;
mod rate;
mod subject;
mod wire;

pub(crate) use action::StoredAction;
pub(crate) use csum::make_checksums;
pub(crate) use edit::{edit_label, edit_vlan, give_header};
pub(crate) use hook::{Everything, Found, StoredHook};
pub(crate) use lengths::Lengths;
pub(crate) use pedit::edit_bytes;
pub(crate) use police::{Charge, Charged, Lease, Policed, Policer, SharedBucket, link_layer};
pub use rate::{LinkLayer, Rate, RateConfig};
pub(crate) use subject::{Nest, OuterKey, Place, Subject, packet_type, uncounted};
pub use wire::WireLength;
