//! Requests for keys of HMAC TLVs.

use libc::{EINVAL, ENOENT};
use underpass_engine::hmac::{Algorithm, Key, Keys, SECRET_LEN};
use underpass_netlink::genetlink::{self, seg6};
use underpass_netlink::{Attributes, RequestError};

use super::{SHA1, SHA256, Secret};
use crate::dump::{Chunk, Dump, More};
use crate::route::recompile::recompile_headends;
use crate::{Request, Router};

/// `SEG6_CMD_SETHMAC`: sets a key, or deletes it if its secret is empty.
pub(crate) fn set<const N: usize>(
    router: &mut Router,
    attributes: &Attributes<'_, N>,
) -> Result<(), RequestError> {
    let invalid = || RequestError::errno(EINVAL);
    let get = |kind| attributes.get(kind).ok_or_else(invalid);
    let (id, len) = (get(seg6::ATTR_HMACKEYID)?, get(seg6::ATTR_SECRETLEN)?);
    let (algorithm, id, len) = (get(seg6::ATTR_ALGID)?.u8(), id.u32(), usize::from(len.u8()));
    if id == 0 || len > SECRET_LEN {
        return Err(invalid());
    }
    if len == 0 {
        router.hmac_keys.by_id.remove(&id).ok_or(RequestError::errno(ENOENT))?;
        publish_hmac_keys(router, id);
        return Ok(());
    }
    let secret = get(seg6::ATTR_SECRET)?.value.get(..len).ok_or_else(invalid)?;
    let kind = match algorithm {
        SHA1 => Some(Algorithm::Sha1),
        SHA256 => Some(Algorithm::Sha256),
        _ => None,
    };
    let Some(key) = kind.and_then(|kind| Key::new(id, kind, secret)) else {
        // Linux has deleted the old key when it looks at the algorithm.
        if router.hmac_keys.by_id.remove(&id).is_some() {
            publish_hmac_keys(router, id);
        }
        return Err(invalid());
    };
    router.hmac_keys.by_id.insert(id, Secret { algorithm, secret: secret.into(), key });
    publish_hmac_keys(router, id);
    Ok(())
}

/// `SEG6_CMD_DUMPHMAC`.
pub(crate) fn dump(request: &Request<'_>) -> Box<dyn Dump> {
    Box::new(KeyDump { kind: request.message.kind, after: 0 })
}

struct KeyDump {
    /// The number of the family, under which the client knows it.
    kind: u16,
    /// The key that was written last; none has the id 0.
    after: u32,
}

impl Dump for KeyDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let mut further = router.hmac_keys.by_id.range(self.after.saturating_add(1)..);
        let Some((&id, key)) = further.next().filter(|(id, _)| **id > self.after) else {
            return Ok(More::No);
        };
        self.after = id;
        out.message(self.kind, |reply| {
            reply.fixed(&genetlink::header(seg6::CMD_DUMPHMAC, 1));
            reply.u32(seg6::ATTR_HMACKEYID, id);
            reply.u8(seg6::ATTR_SECRETLEN, key.secret.len() as u8);
            reply.attribute(seg6::ATTR_SECRET, &key.secret);
            reply.u8(seg6::ATTR_ALGID, key.algorithm);
        })?;
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.hmac_keys.generation
    }
}

/// Publishes a key that has changed, and the headers of policies that it makes the HMAC of.
fn publish_hmac_keys(router: &mut Router, id: u32) {
    let keys = Keys::new(router.hmac_keys.by_id.values().map(|secret| secret.key.clone()).collect());
    router.hmac_keys.compiled = keys.clone();
    router.hmac_keys.generation += 1;
    router.engine.set_hmac_keys(keys);
    recompile_headends(router, |srh| srh.hmac_key() == Some(id));
}
