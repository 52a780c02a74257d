//! Requests that `ip` does not send, and what Linux 6.12 answers to them.

use libc::{
    EADDRNOTAVAIL, EINVAL, EOPNOTSUPP, RTM_DELADDR, RTM_GETADDR, RTM_GETROUTE, RTM_NEWADDR, RTM_NEWROUTE,
};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};
use underpass_netlink::messages;
use underpass_netlink::reply::{Address, Reply, write_message};

use super::common::{Lab, address, up};

const V0: u32 = 2;
const V1: u32 = 3;
const OWN: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.change(up(V0), 0).unwrap();
    lab.change(up(V1), 0).unwrap();
    lab.change(address(V0, "fd00::1", 64), NLM_F_CREATE | NLM_F_EXCL).unwrap();
    lab
}

fn ask(lab: &mut Lab, kind: u16, flags: u16, write: impl FnOnce(&mut Reply<'_>)) -> Vec<u8> {
    let mut datagram = Vec::new();
    write_message(&mut datagram, kind, flags | NLM_F_REQUEST, Address::default(), write).unwrap();
    lab.raw(&datagram).concat()
}

/// The errno and the text of a refusal; `None` where an answer of this type came.
fn refusal(answer: &[u8], kind: u16) -> Option<(i32, String)> {
    let message = messages(answer).next().unwrap();
    if message.kind == kind {
        return None;
    }
    let errno = -i32::from_ne_bytes(*message.body().first_chunk().unwrap());
    let echo = u32::from_ne_bytes(*message.body()[4..].first_chunk().unwrap()) as usize;
    let text = message.attributes(4 + echo).find(|attribute| attribute.kind == 1);
    Some((errno, text.map(|text| text.text().to_string()).unwrap_or_default()))
}

fn question(lab: &mut Lab, header: [u8; 8], attributes: &[(u16, &[u8])]) -> Option<(i32, String)> {
    let answer = ask(lab, RTM_GETADDR, 0, |message| {
        message.fixed(&header);
        attributes.iter().for_each(|(kind, value)| message.attribute(*kind, value));
    });
    refusal(&answer, RTM_NEWADDR)
}

/// Linux: `inet6_rtm_getaddr`. There is no such question for IPv4.
#[test]
fn about_one_address() {
    let mut lab = lab();
    let of = |family: u8, link: u32| [family, 0, 0, 0, link as u8, (link >> 8) as u8, 0, 0];
    let refused = |errno: i32, text: &str| Some((errno, text.to_owned()));
    let other = [&OWN[..15], &[0x77]].concat();
    let (plain, local) = ((libc::IFA_ADDRESS, &OWN[..]), (libc::IFA_LOCAL, &OWN[..]));
    for strict in [true, false] {
        lab.client.strict_check = strict;
        for (header, attributes) in [
            (of(10, 0), &[plain][..]),
            (of(10, 0), &[local]),
            (of(10, V0), &[plain]),
            // A link that is not there is none.
            (of(10, 999), &[plain]),
            (of(10, 0), &[(libc::IFA_ADDRESS, &other), local]),
        ] {
            assert_eq!(question(&mut lab, header, attributes), None);
        }
        assert_eq!(question(&mut lab, of(10, V1), &[plain]), refused(EADDRNOTAVAIL, ""));
        assert_eq!(question(&mut lab, of(10, 0), &[(libc::IFA_ADDRESS, &other)]), refused(EADDRNOTAVAIL, ""));
        assert_eq!(question(&mut lab, of(10, 0), &[]), refused(EINVAL, ""));
        assert_eq!(
            question(&mut lab, of(2, 0), &[(libc::IFA_ADDRESS, &[10, 0, 0, 1])]),
            refused(EOPNOTSUPP, "")
        );
        assert_eq!(question(&mut lab, of(0, 0), &[plain]), refused(EOPNOTSUPP, ""));
        let short = ask(&mut lab, RTM_GETADDR, 0, |message| message.fixed(&[10, 0, 0, 0]));
        let text = "ipv6: Invalid header for get address request";
        assert_eq!(refusal(&short, RTM_NEWADDR), refused(EINVAL, text));
        let values = "ipv6: Invalid values in header for get address request";
        let values = refused(EINVAL, values).filter(|_| strict);
        assert_eq!(question(&mut lab, [10, 64, 0, 0, 0, 0, 0, 0], &[plain]), values);
        assert_eq!(question(&mut lab, [10, 0, 0, 1, 0, 0, 0, 0], &[plain]), values);
        let odd = refused(EINVAL, "ipv6: Unsupported attribute in get address request").filter(|_| strict);
        assert_eq!(question(&mut lab, of(10, 0), &[plain, (libc::IFA_LABEL, b"x\0")]), odd);
    }
}

/// Linux: `inet6_addr_del` looks at the length before the link.
#[test]
fn of_a_deletion_with_too_long_a_prefix() {
    let mut lab = lab();
    let answer = ask(&mut lab, RTM_DELADDR, NLM_F_ACK, |message| {
        message.fixed(&[10, 129, 0, 0, 99, 0, 0, 0]);
        message.attribute(libc::IFA_LOCAL, &OWN);
    });
    assert_eq!(refusal(&answer, 0), Some((EINVAL, "ipv6: Invalid prefix length".into())));
}

/// `ip -6 route add fd09::/64 nexthop via fe80::1 dev v0 nexthop via fe80::2 dev v1`, then a dump of the routes by each of
/// the two: `ip` asks for it, and shows only routes with one next hop. Linux: `fib6_info_uses_dev`.
#[test]
fn for_routes_by_a_link() {
    let mut lab = lab();
    let gateway = |last: u8| [&[0xfe, 0x80][..], &[0; 13], &[last]].concat();
    let added = ask(&mut lab, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, |message| {
        message.fixed(&[10, 64, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]);
        message.attribute(libc::RTA_DST, &[&[0xfd, 9][..], &[0; 14]].concat());
        let hops = [(V0, 1), (V1, 2)].map(|(link, last)| {
            let head = [&28u16.to_ne_bytes()[..], &[0, 0], &link.to_ne_bytes()].concat();
            [&head[..], &20u16.to_ne_bytes(), &libc::RTA_GATEWAY.to_ne_bytes(), &gateway(last)].concat()
        });
        message.attribute(libc::RTA_MULTIPATH, &hops.concat());
    });
    assert_eq!(refusal(&added, 0), Some((0, String::new())));
    for link in [V0, V1] {
        let answer = ask(&mut lab, RTM_GETROUTE, NLM_F_DUMP, |message| {
            message.fixed(&[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            message.u32(libc::RTA_OIF, link);
        });
        let attributes = messages(&answer).flat_map(|message| message.attributes(12).collect::<Vec<_>>());
        let ways = attributes.filter(|attribute| attribute.kind == libc::RTA_MULTIPATH);
        let ways: Vec<usize> = ways.map(|ways| ways.value.len()).collect();
        assert_eq!(ways, [2 * 28], "by link {link}");
    }
}
