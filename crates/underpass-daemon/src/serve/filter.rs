//! Dumps of links with a filter that names something of the router's: a device that the kernel knows by another
//! kind, or a master that it has not made one. The kernel is asked for all, and the links are chosen here.

use underpass_control::Router;
use underpass_netlink::{Message, messages};

/// Length of `struct ifinfomsg`.
const HEADER: usize = 16;
/// Length of a netlink header.
const NETLINK: usize = 16;

/// Which links a program wants to see.
#[derive(Debug)]
pub struct LinkFilter {
    master: Option<u32>,
    kind: Option<Box<str>>,
}

impl LinkFilter {
    /// The filter of a dump of links, and the request without it. `None` if the kernel can do it all.
    pub fn of(router: &Router, message: &Message<'_>) -> Option<(Self, Vec<u8>)> {
        if message.kind != libc::RTM_GETLINK {
            return None;
        }
        let (master, kind) = described(message);
        let own = router.links().any(|link| {
            let is_master = link.vrf_table().is_some() && master == Some(link.index);
            is_master || kind.is_some() && link.kind.name() == kind.as_deref()
        });
        if !own {
            return None;
        }
        let mut request = message.bytes.get(..NETLINK + HEADER)?.to_vec();
        for attribute in message.attributes(HEADER) {
            if !matches!(attribute.kind, libc::IFLA_MASTER | libc::IFLA_LINKINFO) {
                let length = attribute.value.len() as u16 + 4;
                request.extend_from_slice(&length.to_ne_bytes());
                request.extend_from_slice(&attribute.kind.to_ne_bytes());
                request.extend_from_slice(attribute.value);
                request.resize(request.len().next_multiple_of(4), 0);
            }
        }
        let length = request.len() as u32;
        request.get_mut(..4)?.copy_from_slice(&length.to_ne_bytes());
        Some((Self { master, kind }, request))
    }

    /// Whether the program wants to see a link.
    pub fn passes(&self, link: &[u8]) -> bool {
        let Some(message) = messages(link).next().filter(|message| message.kind == libc::RTM_NEWLINK) else {
            return true;
        };
        let (master, kind) = described(&message);
        (self.master.is_none() || master == self.master) && (self.kind.is_none() || kind == self.kind)
    }
}

/// The master and the kind of a link that a message names.
fn described(message: &Message<'_>) -> (Option<u32>, Option<Box<str>>) {
    let (mut master, mut kind) = (None, None);
    for attribute in message.attributes(HEADER) {
        match attribute.kind {
            libc::IFLA_MASTER if attribute.value.len() == 4 => master = Some(attribute.u32()),
            libc::IFLA_LINKINFO => {
                let inner = attribute.nested().find(|inner| inner.kind == libc::IFLA_INFO_KIND);
                kind = inner.map(|inner| inner.text().into());
            }
            _ => {}
        }
    }
    (master, kind)
}
