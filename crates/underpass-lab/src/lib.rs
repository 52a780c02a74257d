//! Measurements and laboratories: `underpass bench` measures the packet path, `underpass lab` builds networks of namespaces and
//! tries the router in them.

pub mod bench;
pub mod lab;
mod random;
