//! Where a router runs: the host and the name of the network namespace.

use std::{
    fs::{self, Metadata},
    os::unix::fs::MetadataExt,
};

use serde::{Deserialize, Serialize};

/// Where `ip netns` has the names.
const NAMES: &str = "/run/netns";

/// Where a router runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The name of the host.
    #[serde(default)]
    pub host: String,
    /// The name of the network namespace, as `ip netns` gives it; the first machine's namespace has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl Location {
    /// That of the calling thread.
    pub fn here() -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { host: host.trim_end().to_owned(), namespace: namespace() }
    }
}

fn namespace() -> Option<String> {
    let key = |metadata: Metadata| (metadata.dev(), metadata.ino());
    let own = key(fs::metadata("/proc/thread-self/ns/net").ok()?);
    let entries = fs::read_dir(NAMES).ok()?.flatten();
    let mut names = entries.filter(|entry| fs::metadata(entry.path()).is_ok_and(|named| key(named) == own));
    names.next().map(|entry| entry.file_name().to_string_lossy().into_owned())
}
