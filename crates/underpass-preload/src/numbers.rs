//! Descriptor numbers in netlink messages: they mean something in the process that sends them only. The library
//! sends the descriptors along, and the daemon puts its own numbers for them in the same places.
//!
//! Linux: `rtnl_link_get_net_capable` (IFLA_NET_NS_FD, also of a veth's peer), `rtnl_net_getid` (NETNSA_FD),
//! `dev_change_xdp_fd` (IFLA_XDP_FD), `cls_bpf` (TCA_BPF_FD),
//! `parse_nla_bpf` (SEG6_LOCAL_BPF_PROG).

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

const RTMSG: usize = 12;
const RTA_MULTIPATH: u16 = 9;
const RTA_ENCAP_TYPE: u16 = 21;
const RTA_ENCAP: u16 = 22;
/// A `struct rtnexthop`.
const RTNEXTHOP: usize = 8;
const NHMSG: usize = 8;
const RTM_NEWNEXTHOP: u16 = 104;
const NHA_ENCAP_TYPE: u16 = 7;
const NHA_ENCAP: u16 = 8;
const LWTUNNEL_ENCAP_SEG6_LOCAL: u16 = 7;
const SEG6_LOCAL_BPF: u16 = 8;
const SEG6_LOCAL_BPF_PROG: u16 = 1;

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// A BPF program for End.BPF, whose instructions go along.
    Program,
    /// Something else.
    Other,
}

/// What is called with a place.
pub type Visit<'v> = dyn FnMut(Meaning, &mut [u8; 4]) + 'v;

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Calls `visit` with the place of each descriptor number in the messages of a datagram of NETLINK_ROUTE.
pub fn each(datagram: &mut [u8], visit: &mut Visit<'_>) {
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
            libc::RTM_NEWROUTE => route(body, RTMSG, visit),
            RTM_NEWNEXTHOP => encap(body, NHMSG, (NHA_ENCAP_TYPE, NHA_ENCAP), visit),
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

fn number(is: bool, value: &mut [u8], visit: &mut Visit<'_>) {
    if let Some(number) = value.first_chunk_mut().filter(|_| is) {
        visit(Meaning::Other, number);
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
fn link(bytes: &mut [u8], visit: &mut Visit<'_>) {
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
fn filter(bytes: &mut [u8], visit: &mut Visit<'_>) {
    if text(bytes, TCMSG, TCA_KIND) == b"bpf" {
        attributes(bytes, TCMSG, &mut |kind, value| {
            if kind == TCA_OPTIONS {
                attributes(value, 0, &mut |kind, value| number(kind == TCA_BPF_FD, value, visit));
            }
        });
    }
}

/// The attributes of a route, behind a header.
fn route(bytes: &mut [u8], header: usize, visit: &mut Visit<'_>) {
    encap(bytes, header, (RTA_ENCAP_TYPE, RTA_ENCAP), visit);
    attributes(bytes, header, &mut |kind, value| {
        if kind != RTA_MULTIPATH {
            return;
        }
        let mut rest = value;
        while let Some(length) = half(rest, 0).map(usize::from) {
            if length < RTNEXTHOP || length > rest.len() {
                return;
            }
            let (hop, _) = rest.split_at_mut(length);
            encap(hop, RTNEXTHOP, (RTA_ENCAP_TYPE, RTA_ENCAP), visit);
            let next = length.next_multiple_of(4).min(rest.len());
            rest = &mut rest[next..];
        }
    });
}

/// The encapsulation among the attributes behind a header, its type being one of these and itself the other.
fn encap(bytes: &mut [u8], header: usize, (kind_at, encap_at): (u16, u16), visit: &mut Visit<'_>) {
    let mut local = false;
    attributes(bytes, header, &mut |kind, value| {
        local |= kind == kind_at && half(value, 0) == Some(LWTUNNEL_ENCAP_SEG6_LOCAL);
    });
    if !local {
        return;
    }
    attributes(bytes, header, &mut |kind, value| {
        if kind != encap_at {
            return;
        }
        attributes(value, 0, &mut |kind, value| {
            if kind != SEG6_LOCAL_BPF {
                return;
            }
            attributes(value, 0, &mut |kind, value| {
                if let Some(number) = value.first_chunk_mut().filter(|_| kind == SEG6_LOCAL_BPF_PROG) {
                    visit(Meaning::Program, number);
                }
            });
        });
    });
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
        each(datagram, &mut |_, place| found.push(i32::from_ne_bytes(*place)));
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
        each(&mut datagram, &mut |_, place| *place = 7i32.to_ne_bytes());
        assert_eq!(found(&mut datagram), [7, 7, 7]);
        // Cut off anywhere, it is no harm.
        for length in 0..datagram.len() {
            found(&mut datagram[..length].to_vec());
        }
        let bpf =
            [attribute(TCA_KIND, b"bpf\0"), attribute(TCA_OPTIONS, &attribute(TCA_BPF_FD, &[9, 0, 0, 0]))];
        assert_eq!(found(&mut message(libc::RTM_NEWTFILTER, &[vec![0; TCMSG], bpf.concat()].concat())), [9]);
    }

    /// `ip -6 route add … encap seg6local action End.BPF …`, alone and in a `nexthop`, and `ip nexthop add`.
    #[test]
    fn in_encapsulations() {
        let bpf = [attribute(SEG6_LOCAL_BPF_PROG, &[7, 0, 0, 0]), attribute(2, b"prog.o\0")].concat();
        let local = [attribute(1, &[15, 0, 0, 0]), attribute(SEG6_LOCAL_BPF | 0x8000, &bpf)].concat();
        let encap = |kind: u16| {
            [attribute(RTA_ENCAP, &local), attribute(RTA_ENCAP_TYPE, &kind.to_ne_bytes())].concat()
        };
        let route = |attributes: &[u8]| message(libc::RTM_NEWROUTE, &[&[0; RTMSG], attributes].concat());
        let mut seen = Vec::new();
        each(&mut route(&encap(7)), &mut |meaning, place| seen.push((meaning, *place)));
        assert_eq!(seen, [(Meaning::Program, [7, 0, 0, 0])]);
        assert!(found(&mut route(&encap(5))).is_empty());
        let length = (RTNEXTHOP + encap(7).len()) as u16;
        let hop = [&length.to_ne_bytes()[..], &[0; 6], &encap(7)].concat();
        let both = attribute(RTA_MULTIPATH, &[hop.clone(), hop].concat());
        assert_eq!(found(&mut route(&both)), [7, 7]);
        for length in 0..both.len() {
            found(&mut route(&both[..length]));
        }
        let kind = attribute(NHA_ENCAP_TYPE, &LWTUNNEL_ENCAP_SEG6_LOCAL.to_ne_bytes());
        let object = [vec![0; NHMSG], kind, attribute(NHA_ENCAP, &local)].concat();
        assert_eq!(found(&mut message(RTM_NEWNEXTHOP, &object)), [7]);
    }
}
