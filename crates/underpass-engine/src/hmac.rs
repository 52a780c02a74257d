//! The HMAC of an SRH, RFC 8754 section 2.1.2: its keys, how it is made and how it is checked. Linux:
//! `net/ipv6/seg6_hmac.c`.
//!
//! ```text
//! what it covers: | source address (16) | Last Entry | Flags | key id (4) | segment list |
//! ```
//!
//! Of a packet that this router encapsulates all of it is known with the route, so the HMAC is made there. Of
//! one that gets an SRH inserted the source and the last segment are its own.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::Sha256;
use underpass_packet::srh::{DIGEST_LEN, Srh, SrhMut};
use zerocopy::IntoBytes;

use crate::drops::Drop;

/// Longest secret, in bytes: Linux's `SEG6_HMAC_SECRET_LEN`, and the block of either hash.
pub const SECRET_LEN: usize = 64;

/// The hash of a key: `SEG6_HMAC_ALGO_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// 20 bytes of digest, followed by zeros.
    Sha1,
    /// 32 bytes.
    Sha256,
}

/// A key, its secret already hashed into the state that every digest begins with.
#[derive(Clone)]
pub struct Key {
    id: u32,
    state: State,
}

#[derive(Clone)]
enum State {
    Sha1(Hmac<Sha1>),
    Sha256(Hmac<Sha256>),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Key {
    /// A key by its id and secret. `None` if the secret is longer than [`SECRET_LEN`].
    pub fn new(id: u32, algorithm: Algorithm, secret: &[u8]) -> Option<Self> {
        // RFC 2104 section 2: a shorter one is filled up with zeros.
        let mut block = [0; SECRET_LEN];
        block.get_mut(..secret.len())?.copy_from_slice(secret);
        let state = match algorithm {
            Algorithm::Sha1 => State::Sha1(Hmac::new(&block.into())),
            Algorithm::Sha256 => State::Sha256(Hmac::new(&block.into())),
        };
        Some(Self { id, state })
    }

    /// The digest of a header in a packet from `source`.
    fn digest(&self, source: &[u8; 16], srh: &Srh<'_>) -> [u8; DIGEST_LEN] {
        let mut digest = [0; DIGEST_LEN];
        match &self.state {
            State::Sha1(state) => {
                let whole = self.over(state, source, srh).finalize().into_bytes();
                digest[..whole.len()].copy_from_slice(&whole);
            }
            State::Sha256(state) => {
                digest.copy_from_slice(&self.over(state, source, srh).finalize().into_bytes());
            }
        }
        digest
    }

    /// Whether `digest` is that of the header, in a time that does not depend on it.
    fn verify(&self, source: &[u8; 16], srh: &Srh<'_>, digest: &[u8]) -> bool {
        match &self.state {
            State::Sha1(state) => {
                let Some((digest, padding)) = digest.split_first_chunk::<20>() else { return false };
                padding.iter().all(|byte| *byte == 0)
                    && self.over(state, source, srh).verify_slice(digest).is_ok()
            }
            State::Sha256(state) => self.over(state, source, srh).verify_slice(digest).is_ok(),
        }
    }

    /// RFC 8754 section 2.1.2.1: the text that the HMAC covers.
    fn over<M: Mac + Clone>(&self, state: &M, source: &[u8; 16], srh: &Srh<'_>) -> M {
        let [a, b, c, d] = self.id.to_be_bytes();
        let mut state = state.clone();
        state.update(source);
        state.update(&[srh.last_entry(), srh.flags(), a, b, c, d]);
        state.update(srh.segments().as_bytes());
        state
    }
}

/// The keys of the router.
#[derive(Clone, Debug, Default)]
pub struct Keys(Box<[Key]>);

impl Keys {
    /// These keys, of which no two have the same id.
    pub fn new(mut keys: Vec<Key>) -> Self {
        keys.sort_unstable_by_key(|key| key.id);
        Self(keys.into())
    }

    fn get(&self, id: u32) -> Result<&Key, Drop> {
        let at = self.0.binary_search_by_key(&id, |key| key.id).map_err(|_| Drop::HmacKeyUnknown)?;
        self.0.get(at).ok_or(Drop::HmacKeyUnknown)
    }

    /// Makes the HMAC of a header that begins `srh` and ends in the TLV for it, in a packet from `source`.
    ///
    /// # Errors
    /// [`Drop::SrhMalformed`], [`Drop::HmacMissing`] without such a TLV, [`Drop::HmacKeyUnknown`]; nothing is
    /// then written.
    pub fn make(&self, source: &[u8; 16], srh: &mut [u8]) -> Result<(), Drop> {
        let mut srh = SrhMut::parse(srh).map_err(|_| Drop::SrhMalformed)?;
        let read = srh.view();
        let key = self.get(read.hmac().ok_or(Drop::HmacMissing)?.key_id)?;
        let digest = key.digest(source, &read);
        *srh.digest_mut().ok_or(Drop::HmacMissing)? = digest;
        Ok(())
    }
}

/// When the HMAC of an SRH is checked: `net.ipv6.conf.*.seg6_require_hmac`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Require {
    /// -1: never.
    Never,
    /// 0: where there is one.
    #[default]
    Present,
    /// 1: always, and a header without one is refused.
    Always,
}

/// What is asked of SRHs, and the keys to check it by.
#[derive(Clone, Copy)]
pub(crate) struct Check<'a> {
    pub(crate) require: Require,
    pub(crate) keys: Option<&'a Keys>,
}

impl Check<'_> {
    /// Whether a header without an HMAC passes.
    #[inline(always)]
    pub(crate) fn passes_plain(&self) -> bool {
        self.require != Require::Always
    }

    /// Checks the HMAC of a header in a packet from `source`. Linux: `seg6_hmac_validate_skb`.
    pub(crate) fn check(&self, source: &[u8; 16], srh: &Srh<'_>) -> Result<(), Drop> {
        let hmac = match (srh.hmac(), self.require) {
            (_, Require::Never) | (None, Require::Present) => return Ok(()),
            (None, Require::Always) => return Err(Drop::HmacMissing),
            (Some(hmac), _) => hmac,
        };
        let key = self.keys.ok_or(Drop::HmacKeyUnknown)?.get(hmac.key_id)?;
        if key.verify(source, srh, hmac.digest) { Ok(()) } else { Err(Drop::HmacInvalid) }
    }
}
