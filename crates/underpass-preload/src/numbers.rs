//! Descriptor numbers in netlink messages: they mean something in the process that sends them only. The library
//! sends the descriptors along, and the daemon puts its own numbers for them in the same places.
//!
//! Linux: `rtnl_link_get_net_capable` (IFLA_NET_NS_FD, also of a veth's peer), `rtnl_net_getid` (NETNSA_FD),
//! `dev_change_xdp_fd` (IFLA_XDP_FD), `cls_bpf` (TCA_BPF_FD).

/// Most descriptors that one datagram takes along; the kernel would take 253.
pub const MOST: usize = 16;

const NETLINK: usize = 16;
/// Where an attribute's type has its flags.
const TYPE: u16 = 0x3fff;

const IFINFOMSG: usize = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_EXPECTED_FD: u16 = 8;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
/// VETH_INFO_PEER, VXCAN_INFO_PEER, IFLA_NETKIT_PEER_INFO: a `struct ifinfomsg` and its attributes.
const PEER: u16 = 1;
const PEERS: [&[u8]; 3] = [b"veth", b"vxcan", b"netkit"];

const NSIDMSG: usize = 4;
const NETNSA_FD: u16 = 3;
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;

const TCMSG: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Calls `visit` with the place of each descriptor number in the messages of a datagram of NETLINK_ROUTE.
pub fn each(datagram: &mut [u8], visit: &mut dyn FnMut(&mut [u8; 4])) {
    let mut rest = datagram;
    while let Some(length) = rest.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
        if length < NETLINK || length > rest.len() {
            return;
        }
        let (message, _) = rest.split_at_mut(length);
        let kind = half(message, 4).unwrap_or(0);
        let body = &mut message[NETLINK..];
        match kind {
            libc::RTM_NEWLINK | libc::RTM_SETLINK => link(body, visit),
            RTM_NEWNSID | RTM_GETNSID => attributes(body, NSIDMSG, &mut |kind, value| {
                number(kind == NETNSA_FD, value, visit);
            }),
            libc::RTM_NEWTFILTER => filter(body, visit),
            _ => {}
        }
        let next = length.next_multiple_of(4).min(rest.len());
        rest = &mut rest[next..];
    }
}

/// Calls `each` with the type and the value of each attribute behind a header.
fn attributes(bytes: &mut [u8], header: usize, each: &mut dyn FnMut(u16, &mut [u8])) {
    let mut rest = bytes.get_mut(header..).unwrap_or_default();
    while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let length = usize::from(length);
        if length < 4 || length > rest.len() {
            return;
        }
        each(kind & TYPE, &mut rest[4..length]);
        let next = length.next_multiple_of(4).min(rest.len());
        rest = &mut rest[next..];
    }
}

fn number(is: bool, value: &mut [u8], visit: &mut dyn FnMut(&mut [u8; 4])) {
    if let Some(number) = value.first_chunk_mut().filter(|_| is) {
        visit(number);
    }
}

/// The text of the attribute of a type, without its NUL.
fn text(bytes: &mut [u8], header: usize, wanted: u16) -> Vec<u8> {
    let mut found = Vec::new();
    attributes(bytes, header, &mut |kind, value| {
        if kind == wanted {
            found = value.iter().copied().take_while(|byte| *byte != 0).collect();
        }
    });
    found
}

/// A `struct ifinfomsg` and its attributes.
fn link(bytes: &mut [u8], visit: &mut dyn FnMut(&mut [u8; 4])) {
    attributes(bytes, IFINFOMSG, &mut |kind, value| match kind {
        IFLA_NET_NS_FD => number(true, value, visit),
        IFLA_XDP => attributes(value, 0, &mut |kind, value| {
            number(matches!(kind, IFLA_XDP_FD | IFLA_XDP_EXPECTED_FD), value, visit);
        }),
        IFLA_LINKINFO if PEERS.contains(&text(value, 0, IFLA_INFO_KIND).as_slice()) => {
            attributes(value, 0, &mut |kind, value| {
                if kind == IFLA_INFO_DATA {
                    attributes(value, 0, &mut |kind, value| {
                        if kind == PEER {
                            attributes(value, IFINFOMSG, &mut |kind, value| {
                                number(kind == IFLA_NET_NS_FD, value, visit);
                            });
                        }
                    });
                }
            });
        }
        _ => {}
    });
}

/// A `struct tcmsg` and its attributes.
fn filter(bytes: &mut [u8], visit: &mut dyn FnMut(&mut [u8; 4])) {
    if text(bytes, TCMSG, TCA_KIND) == b"bpf" {
        attributes(bytes, TCMSG, &mut |kind, value| {
            if kind == TCA_OPTIONS {
                attributes(value, 0, &mut |kind, value| number(kind == TCA_BPF_FD, value, visit));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = value.len() as u16 + 4;
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (NETLINK + body.len()) as u32;
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
    }

    fn found(datagram: &mut [u8]) -> Vec<i32> {
        let mut found = Vec::new();
        each(datagram, &mut |place| found.push(i32::from_ne_bytes(*place)));
        found
    }

    /// `ip link add a netns A type veth peer name b netns B`, then a question about a namespace's id.
    #[test]
    fn in_links_and_their_peers() {
        let fd = |fd: i32| attribute(IFLA_NET_NS_FD, &fd.to_ne_bytes());
        let peer = [vec![0; IFINFOMSG], attribute(3, b"b\0"), fd(5)].concat();
        let data = attribute(IFLA_INFO_DATA | 0x8000, &attribute(PEER, &peer));
        let info = |kind: &[u8]| [attribute(IFLA_INFO_KIND, kind), data.clone()].concat();
        let body = |kind| [vec![0; IFINFOMSG], fd(4), attribute(IFLA_LINKINFO, &info(kind))].concat();
        let nsid = message(RTM_GETNSID, &[vec![0; 4], attribute(NETNSA_FD, &6i32.to_ne_bytes())].concat());
        let mut datagram = [message(libc::RTM_NEWLINK, &body(b"veth")), nsid].concat();
        assert_eq!(found(&mut datagram), [4, 5, 6]);
        assert_eq!(found(&mut message(libc::RTM_NEWLINK, &body(b"vlan"))), [4]);
        assert!(found(&mut message(libc::RTM_GETLINK, &body(b"veth"))).is_empty());
        each(&mut datagram, &mut |place| *place = 7i32.to_ne_bytes());
        assert_eq!(found(&mut datagram), [7, 7, 7]);
        // Cut off anywhere, it is no harm.
        for length in 0..datagram.len() {
            found(&mut datagram[..length].to_vec());
        }
        let bpf =
            [attribute(TCA_KIND, b"bpf\0"), attribute(TCA_OPTIONS, &attribute(TCA_BPF_FD, &[9, 0, 0, 0]))];
        assert_eq!(found(&mut message(libc::RTM_NEWTFILTER, &[vec![0; TCMSG], bpf.concat()].concat())), [9]);
    }
}
