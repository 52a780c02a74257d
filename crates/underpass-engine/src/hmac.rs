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

use crate::drops::DropReason;

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

    fn get(&self, id: u32) -> Result<&Key, DropReason> {
        let at = self.0.binary_search_by_key(&id, |key| key.id).map_err(|_| DropReason::HmacKeyUnknown)?;
        self.0.get(at).ok_or(DropReason::HmacKeyUnknown)
    }

    /// Makes the HMAC of a header that begins `srh` and ends in the TLV for it, in a packet from `source`.
    ///
    /// # Errors
    /// [`DropReason::SrhMalformed`], [`DropReason::HmacMissing`] without such a TLV, [`DropReason::HmacKeyUnknown`]; nothing is
    /// then written.
    pub fn make(&self, source: &[u8; 16], srh: &mut [u8]) -> Result<(), DropReason> {
        let mut srh = SrhMut::parse(srh).map_err(|_| DropReason::SrhMalformed)?;
        let read = srh.view();
        let key = self.get(read.hmac().ok_or(DropReason::HmacMissing)?.key_id)?;
        let digest = key.digest(source, &read);
        *srh.digest_mut().ok_or(DropReason::HmacMissing)? = digest;
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

/// What an SRH needs to be accepted, and the keys to check it by.
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
    pub(crate) fn check(&self, source: &[u8; 16], srh: &Srh<'_>) -> Result<(), DropReason> {
        let hmac = match (srh.hmac(), self.require) {
            (_, Require::Never) | (None, Require::Present) => return Ok(()),
            (None, Require::Always) => return Err(DropReason::HmacMissing),
            (Some(hmac), _) => hmac,
        };
        let key = self.keys.ok_or(DropReason::HmacKeyUnknown)?.get(hmac.key_id)?;
        if key.verify(source, srh, hmac.digest) { Ok(()) } else { Err(DropReason::HmacInvalid) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;
    use underpass_packet::srh::{Builder, FLAG_HMAC};

    use super::*;

    fn digest(algorithm: Algorithm, secret: &[u8], text: &[u8]) -> String {
        let bytes = match Key::new(1, algorithm, secret).unwrap().state {
            State::Sha1(state) => state.chain_update(text).finalize().into_bytes().to_vec(),
            State::Sha256(state) => state.chain_update(text).finalize().into_bytes().to_vec(),
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const COUNTING: [u8; 25] =
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25];

    /// RFC 2202 section 3, but for the cases whose key is longer than a block.
    #[test]
    fn hmac_sha1() {
        for (secret, text, expected) in [
            (&[0x0b; 20][..], &b"Hi There"[..], "b617318655057264e28bc0b6fb378c8ef146be00"),
            (b"Jefe", b"what do ya want for nothing?", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
            (&[0xaa; 20], &[0xdd; 50], "125d7342b9ac11cd91a39af48aa17b4f63f175d3"),
            (&COUNTING, &[0xcd; 50], "4c9007f4026250c6bc8414f9bf50c86c2d7235da"),
            (&[0x0c; 20], b"Test With Truncation", "4c1a03424b55e07fe7f27be1d58bb9324a9a5a04"),
        ] {
            assert_eq!(digest(Algorithm::Sha1, secret, text), expected);
        }
    }

    /// RFC 4231 sections 4.2 to 4.5. The keys of the others are longer than a block, or the digest is cut.
    #[test]
    fn hmac_sha256() {
        for (secret, text, expected) in [
            (
                &[0x0b; 20][..],
                &b"Hi There"[..],
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (&[0xaa; 20], &[0xdd; 50], "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
            (&COUNTING, &[0xcd; 50], "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"),
        ] {
            assert_eq!(digest(Algorithm::Sha256, secret, text), expected);
        }
    }

    #[test]
    fn secrets_are_at_most_a_block() {
        assert!(Key::new(1, Algorithm::Sha256, &[7; SECRET_LEN]).is_some());
        assert!(Key::new(1, Algorithm::Sha256, &[7; SECRET_LEN + 1]).is_none());
    }

    /// An SRH that ends in an HMAC of key 7, not made yet, with a padding TLV before it, and its source.
    fn any_header() -> impl Strategy<Value = ([u8; 16], Vec<u8>)> {
        let path = proptest::collection::vec(any::<[u8; 16]>().prop_map(Ipv6Addr::from), 1..20);
        let rest = (any::<[u8; 16]>(), any::<u8>(), any::<u16>(), any::<u8>(), any::<u8>());
        (path, rest).prop_map(|(path, (source, flags, tag, next_header, left))| {
            let tlvs = [&[4, 6, 0, 0, 0, 0, 0, 0][..], &[5, 38, 0, 0, 0, 0, 0, 7], &[0; DIGEST_LEN]].concat();
            let mut bytes = vec![0; 1024];
            let builder =
                Builder { flags: flags | FLAG_HMAC, tag, tlvs: &tlvs, ..Builder::new(next_header, &path) };
            let len = builder.write(&mut bytes).unwrap();
            bytes.truncate(len);
            // A reduced list leaves out the segment that is the destination.
            bytes[3] = left % (path.len() as u8 + 1);
            (source, bytes)
        })
    }

    fn keys(algorithm: Algorithm) -> Keys {
        let key = |id, secret| Key::new(id, algorithm, secret).unwrap();
        Keys::new(vec![key(9, &b"another"[..]), key(7, b"the secret"), key(1, b"")])
    }

    fn checked(keys: &Keys, require: Require, source: &[u8; 16], bytes: &[u8]) -> Result<(), DropReason> {
        let srh = Srh::parse(bytes).map_err(|_| DropReason::SrhMalformed)?;
        Check { require, keys: Some(keys) }.check(source, &srh)
    }

    /// Where in the header the digest begins.
    fn digest_at(bytes: &[u8]) -> usize {
        bytes.len() - DIGEST_LEN
    }

    proptest! {
        /// RFC 8754 section 2.1.2.1: the text is put together here byte by byte.
        #[test]
        fn covers_what_the_rfc_says((source, mut bytes) in any_header()) {
            use hmac::Mac as _;
            let segments = 16 * (usize::from(bytes[4]) + 1);
            let text = [&source[..], &[bytes[4], bytes[5], 0, 0, 0, 7], &bytes[8..8 + segments]].concat();
            for algorithm in [Algorithm::Sha1, Algorithm::Sha256] {
                keys(algorithm).make(&source, &mut bytes).unwrap();
                let expected = match algorithm {
                    Algorithm::Sha1 => {
                        let mac = Hmac::<Sha1>::new_from_slice(b"the secret").unwrap();
                        [&mac.chain_update(&text).finalize().into_bytes()[..], &[0; 12]].concat()
                    }
                    Algorithm::Sha256 => {
                        let mac = Hmac::<Sha256>::new_from_slice(b"the secret").unwrap();
                        mac.chain_update(&text).finalize().into_bytes().to_vec()
                    }
                };
                prop_assert_eq!(&bytes[digest_at(&bytes)..], expected);
            }
        }

        /// What is made passes, and with any bit turned of what is covered, of the key id or of the digest it
        /// does not. The other bits may change on the way.
        #[test]
        fn one_bit_wrong(
            (source, mut bytes) in any_header(),
            sha1: bool,
            bit in any::<prop::sample::Index>(),
        ) {
            let keys = keys(if sha1 { Algorithm::Sha1 } else { Algorithm::Sha256 });
            keys.make(&source, &mut bytes).unwrap();
            for require in [Require::Present, Require::Always] {
                prop_assert_eq!(checked(&keys, require, &source, &bytes), Ok(()));
            }
            let bit = bit.index(8 * (16 + bytes.len()));
            let (at, mask) = (bit / 8, 1 << (bit % 8));
            let (mut wrong_source, mut wrong) = (source, bytes.clone());
            match at.checked_sub(16) {
                None => wrong_source[at] ^= mask,
                Some(at) => wrong[at] ^= mask,
            }
            let outcome = checked(&keys, Require::Always, &wrong_source, &wrong);
            let (list, tlv) = (8 + 16 * (usize::from(bytes[4]) + 1), digest_at(&bytes) - 8);
            match at.checked_sub(16) {
                // Next header, segments left, tag: within what is well-formed.
                Some(0 | 6 | 7) => prop_assert_eq!(outcome, Ok(())),
                Some(3) => prop_assert!(matches!(outcome, Ok(()) | Err(DropReason::SrhMalformed))),
                // The padding before it; another type or length may contradict the rest.
                Some(at) if (list..list + 2).contains(&at) => {
                    prop_assert!(matches!(outcome, Ok(()) | Err(DropReason::SrhMalformed)));
                }
                Some(at) if (list + 2..tlv).contains(&at) => prop_assert_eq!(outcome, Ok(())),
                // The D bit and the reserved ones.
                Some(at) if (tlv + 2..tlv + 4).contains(&at) => prop_assert_eq!(outcome, Ok(())),
                _ => prop_assert!(outcome.is_err(), "bit {} of byte {} counts for nothing", bit % 8, at),
            }
        }

        /// Whatever a header is, it is either refused or has a digest that this key makes.
        #[test]
        fn arbitrary_headers(source: [u8; 16], bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let keys = keys(Algorithm::Sha256);
            let mut made = bytes.clone();
            if keys.make(&source, &mut made).is_err() {
                prop_assert_eq!(&made, &bytes);
            }
            let sound = Srh::parse(&bytes).is_ok();
            prop_assert_eq!(checked(&keys, Require::Never, &source, &bytes).is_ok(), sound);
            // A digest at random is never right.
            prop_assert!(checked(&keys, Require::Always, &source, &bytes).is_err());
        }
    }

    /// Linux: `seg6_hmac_validate_skb`, by what is asked.
    #[test]
    fn what_is_asked_for() {
        let plain: [u8; 24] = std::array::from_fn(|at| if at == 1 || at == 2 { 2 * at as u8 } else { 0 });
        let sha256 = keys(Algorithm::Sha256);
        let at = |require| checked(&sha256, require, &[1; 16], &plain);
        assert_eq!(at(Require::Never), Ok(()));
        assert_eq!(at(Require::Present), Ok(()));
        assert_eq!(at(Require::Always), Err(DropReason::HmacMissing));

        let tlv = [&[5, 38, 0, 0, 0, 0, 0, 8][..], &[0; DIGEST_LEN]].concat();
        let mut sealed = [&plain[..], &tlv].concat();
        (sealed[1], sealed[5]) = (7, FLAG_HMAC);
        let at = |require| checked(&sha256, require, &[1; 16], &sealed);
        assert_eq!(at(Require::Never), Ok(()));
        assert_eq!(at(Require::Present), Err(DropReason::HmacKeyUnknown));
        let srh = Srh::parse(&sealed).unwrap();
        let none = Check { require: Require::Present, keys: None };
        assert_eq!(none.check(&[1; 16], &srh), Err(DropReason::HmacKeyUnknown));
        sealed[31] = 9;
        assert_eq!(checked(&sha256, Require::Present, &[1; 16], &sealed), Err(DropReason::HmacInvalid));
        assert_eq!(sha256.make(&[1; 16], &mut sealed), Ok(()));
        assert_eq!(checked(&sha256, Require::Always, &[1; 16], &sealed), Ok(()));
        assert_eq!(
            checked(&keys(Algorithm::Sha1), Require::Always, &[1; 16], &sealed),
            Err(DropReason::HmacInvalid)
        );
    }
}
