//! Keys and the source of encapsulations as lines.

use underpass_engine::hmac;

use super::{SHA1, SHA256, Secret};
use crate::save::{Save, Words, quoted};

pub(crate) fn save(save: &mut Save<'_>) {
    let source = save.router.tunnel_source;
    if !source.is_unspecified() {
        save.line(Words::new(&format!("ip sr tunsrc set {source}")));
    }
    for (id, Secret { algorithm, secret, key }) in &save.router.hmac_keys.by_id {
        let _: &hmac::Key = key;
        let name = match *algorithm {
            SHA1 => "sha1",
            SHA256 => "sha256",
            other => {
                save.left_out(format!(
                    "the HMAC key {id}: its algorithm has the number {other}, and no name"
                ));
                continue;
            }
        };
        match std::str::from_utf8(secret) {
            // The tool reads a line.
            Ok(text) if !text.contains(['\n', '\0']) && !text.is_empty() => {
                save.line(Words::new(&format!("ip sr hmac set {id} {name} <<< {}", quoted(text))));
            }
            _ => save.left_out(format!("the HMAC key {id}: its secret is not a line of text")),
        }
    }
}
