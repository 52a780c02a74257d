//! The keys of HMAC TLVs: `ip sr hmac`. Linux: `net/ipv6/seg6.c`, `net/ipv6/seg6_hmac.c`.

pub(crate) mod request;
pub(crate) mod save;

use std::collections::BTreeMap;

use underpass_engine::hmac::{Key, Keys};

/// `SEG6_HMAC_ALGO_*`.
const SHA1: u8 = 1;
const SHA256: u8 = 2;

/// The keys, and how often they have changed.
#[derive(Debug, Default)]
pub(crate) struct HmacKeys {
    by_id: BTreeMap<u32, Secret>,
    /// The same for the packet path.
    compiled: Keys,
    generation: u64,
}

/// What a key was set to.
struct Secret {
    algorithm: u8,
    secret: Box<[u8]>,
    key: Key,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.key.fmt(f)
    }
}

impl HmacKeys {
    /// For HMACs that are made with their route.
    pub fn compiled(&self) -> &Keys {
        &self.compiled
    }
}
