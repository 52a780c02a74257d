//! Links, addresses and neighbours, as `ip` asks for them. What is expected was printed by Linux 6.12 for
//! the command that stands above it.

use std::net::IpAddr;

use super::common::Lab;
use libc::{EBUSY, EEXIST, EINVAL, ENODEV, EOPNOTSUPP};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVrf, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use underpass_control::LinkKind;

const ADD: u16 = NLM_F_CREATE | NLM_F_EXCL;

fn named(name: &str) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.into()));
    link
}

fn of_kind(name: &str, kind: InfoKind, data: Option<InfoData>) -> Message {
    let mut link = named(name);
    let mut info = vec![LinkInfo::Kind(kind)];
    info.extend(data.map(LinkInfo::Data));
    link.attributes.push(LinkAttribute::LinkInfo(info));
    Message::NewLink(link)
}

fn vrf(name: &str, table: u32) -> Message {
    of_kind(name, InfoKind::Vrf, Some(InfoData::Vrf(vec![InfoVrf::TableId(table)])))
}

fn by_index(index: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link
}

fn up(index: u32, up: bool) -> Message {
    let mut link = by_index(index);
    link.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
    link.header.change_mask = LinkFlags::Up;
    Message::NewLink(link)
}

fn with(index: u32, attribute: LinkAttribute) -> Message {
    let mut link = by_index(index);
    link.attributes.push(attribute);
    Message::NewLink(link)
}

fn address(link: u32, local: &str, prefix_len: u8) -> AddressMessage {
    let local: IpAddr = local.parse().unwrap();
    let mut address = AddressMessage::default();
    address.header.family = if local.is_ipv6() { 10 } else { 2 }.into();
    address.header.index = link;
    address.header.prefix_len = prefix_len;
    address.attributes = vec![AddressAttribute::Local(local), AddressAttribute::Address(local)];
    address
}

/// The addresses of a link, as `ip addr show` lists them.
fn addresses(lab: &mut Lab, link: u32) -> Vec<String> {
    let mut all = AddressMessage::default();
    all.header.index = link;
    let list = lab.dump(Message::GetAddress(all)).into_iter().map(|message| {
        let Message::NewAddress(address) = message else { panic!("{message:?}") };
        assert_eq!(address.header.index, link);
        let v6 = address.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(local) => Some(*local),
            _ => None,
        });
        let plain = address.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(local) => Some(*local),
            _ => None,
        });
        format!("{}/{}", v6.or(plain).unwrap(), address.header.prefix_len)
    });
    list.collect()
}

#[test]
fn the_empty_probe_has_no_device() {
    // ip link add …: a RTM_NEWLINK of 32 bytes, flags 5
    assert_eq!(Lab::new().change(Message::NewLink(LinkMessage::default()), 0).unwrap_err().0, ENODEV);
}

#[test]
fn links_are_made_once() {
    let mut lab = Lab::new();
    lab.change(of_kind("d0", InfoKind::Dummy, None), ADD).unwrap();
    assert_eq!(lab.change(of_kind("d0", InfoKind::Dummy, None), ADD).unwrap_err().0, EEXIST);
    let unknown = of_kind("d1", InfoKind::Other("foo".into()), None);
    assert_eq!(lab.change(unknown, ADD), Err((EOPNOTSUPP, "Unknown device type".into())));
    assert_eq!(lab.change(vrf("r", 0), ADD), Err((EINVAL, "Invalid VRF table id".into())));
    let missing = of_kind("r", InfoKind::Vrf, None);
    assert_eq!(lab.change(missing, ADD), Err((EINVAL, "VRF table id is missing".into())));
    lab.change(vrf("r", 10), ADD).unwrap();
    // ip link add v4 type vrf table 10, with net.vrf.strict_mode=1
    assert_eq!(lab.change(vrf("q", 10), ADD).unwrap_err().0, EBUSY);
    let names: Vec<_> = lab.router.links().map(|link| link.name.clone()).collect();
    assert_eq!(names, ["lo", "v0", "v1", "d0", "r"]);
}

#[test]
fn a_port_cannot_be_deleted() {
    let mut lab = Lab::new();
    assert_eq!(lab.change(Message::DelLink(by_index(2)), 0).unwrap_err().0, EOPNOTSUPP);
    assert_eq!(lab.change(Message::DelLink(by_index(9)), 0).unwrap_err().0, ENODEV);
}

#[test]
fn mtu_has_bounds() {
    let mut lab = Lab::new();
    lab.change(vrf("r", 10), ADD).unwrap();
    let refused = lab.change(with(4, LinkAttribute::Mtu(1000)), 0);
    assert_eq!(refused, Err((EINVAL, "mtu less than device minimum".into())));
    let refused = lab.change(with(4, LinkAttribute::Mtu(70000)), 0);
    assert_eq!(refused, Err((EINVAL, "mtu greater than device maximum".into())));
}

/// `ip link set v0 mtu 1200`, `ip neigh add fd00::9 … dev v0`
#[test]
fn neighbours_need_a_link_with_ipv6() {
    let mut lab = Lab::new();
    lab.change(with(2, LinkAttribute::Mtu(1200)), 0).unwrap();
    let mut neighbour = NeighbourMessage::default();
    neighbour.header.family = AddressFamily::Inet6;
    neighbour.header.ifindex = 2;
    let address = NeighbourAddress::Inet6("fd00::9".parse().unwrap());
    neighbour.attributes = vec![NeighbourAttribute::Destination(address)];
    let refused = lab.change(Message::NewNeighbour(neighbour), ADD);
    assert_eq!(refused, Err((EINVAL, "IPv6 is disabled on this device".into())));
}

/// `ip neigh add 10.0.0.2 lladdr 02:00:00:00:01:02 dev v0 nud permanent`, the same for `fd00::2`, then
/// `ip addr del` of one IPv4 address and the other: the last takes the IPv4 neighbour along.
#[test]
fn without_an_ipv4_address_a_link_has_no_ipv4_neighbours() {
    let mut lab = Lab::new();
    lab.change(up(2, true), 0).unwrap();
    for (local, prefix_len) in [("10.0.0.1", 24), ("10.1.0.1", 24), ("fd00::1", 64)] {
        lab.change(Message::NewAddress(address(2, local, prefix_len)), ADD).unwrap();
    }
    for near in ["10.0.0.2", "fd00::2"] {
        let near: IpAddr = near.parse().unwrap();
        let mut neighbour = NeighbourMessage::default();
        neighbour.header.family = if near.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
        neighbour.header.ifindex = 2;
        neighbour.header.state = NeighbourState::Permanent;
        neighbour.attributes = vec![
            NeighbourAttribute::Destination(near.into()),
            NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 1, 2]),
        ];
        lab.change(Message::NewNeighbour(neighbour), ADD).unwrap();
    }
    let known =
        |lab: &Lab| lab.router.neighbours().map(|(_, address, _)| address.to_string()).collect::<Vec<_>>();
    lab.change(Message::DelAddress(address(2, "10.0.0.1", 24)), 0).unwrap();
    assert_eq!(known(&lab), ["10.0.0.2", "fd00::2"]);
    lab.change(Message::DelAddress(address(2, "10.1.0.1", 24)), 0).unwrap();
    assert_eq!(known(&lab), ["fd00::2"]);
}

#[test]
fn going_up_brings_a_link_local_address_and_going_down_takes_ipv6() {
    let mut lab = Lab::new();
    lab.change(up(2, true), 0).unwrap();
    assert_eq!(addresses(&mut lab, 2), ["fe80::ff:fe00:1/64"]);
    lab.change(Message::NewAddress(address(2, "10.0.0.1", 24)), ADD).unwrap();
    lab.change(Message::NewAddress(address(2, "fd00::1", 64)), ADD).unwrap();
    assert_eq!(addresses(&mut lab, 2), ["10.0.0.1/24", "fd00::1/64", "fe80::ff:fe00:1/64"]);
    lab.change(up(2, false), 0).unwrap();
    assert_eq!(addresses(&mut lab, 2), ["10.0.0.1/24"]);
}

#[test]
fn enslaving_takes_the_link_down_for_a_moment() {
    let mut lab = Lab::new();
    lab.change(vrf("r", 10), ADD).unwrap();
    lab.change(up(2, true), 0).unwrap();
    lab.change(Message::NewAddress(address(2, "fd00::1", 64)), ADD).unwrap();
    lab.change(with(2, LinkAttribute::Controller(4)), 0).unwrap();
    // Linux: the global address is gone, the link-local one is back
    assert_eq!(addresses(&mut lab, 2), ["fe80::ff:fe00:1/64"]);
    assert_eq!(lab.router.links().find(|link| link.index == 2).unwrap().master, Some(4));
    let refused = lab.change(with(4, LinkAttribute::Controller(4)), 0);
    assert_eq!(refused, Err((EINVAL, "Can not enslave an L3 master device to a VRF".into())));
    let refused = lab.change(with(1, LinkAttribute::Controller(4)), 0);
    assert_eq!(refused, Err((EOPNOTSUPP, "Can not enslave loopback device to a VRF".into())));
    assert_eq!(lab.change(with(3, LinkAttribute::Controller(1)), 0).unwrap_err().0, EOPNOTSUPP);
    lab.change(Message::DelLink(by_index(4)), 0).unwrap();
    assert_eq!(lab.router.links().find(|link| link.index == 2).unwrap().master, None);
}

/// Linux 6.12 reads `IFLA_LINKINFO` of `RTM_NEWLINK` only: another request with it does all else that it says.
#[test]
fn what_a_link_is_stays_with_rtm_setlink() {
    let mut lab = Lab::new();
    lab.change(vrf("r", 10), ADD).unwrap();
    let Message::NewLink(mut wanted) = of_kind("v0", InfoKind::Bridge, Some(InfoData::Bridge(Vec::new())))
    else {
        unreachable!()
    };
    wanted.attributes.push(LinkAttribute::Controller(4));
    lab.change(Message::SetLink(wanted), 0).unwrap();
    let link = lab.router.links().find(|link| link.name == "v0").unwrap();
    assert_eq!((link.master, link.index), (Some(4), 2));
    assert!(matches!(link.kind, LinkKind::Port(_)));
}

#[test]
fn addresses_keep_linux_order_and_rules() {
    let mut lab = Lab::new();
    let mut add = |local: &str, len| lab.change(Message::NewAddress(address(2, local, len)), ADD);
    for (local, len) in [("10.0.0.1", 24), ("10.0.0.2", 24), ("10.0.0.3", 32), ("10.1.0.1", 31)] {
        add(local, len).unwrap();
    }
    assert_eq!(add("10.0.0.1", 24), Err((EEXIST, "ipv4: Address already assigned".into())));
    assert_eq!(add("10.0.0.1", 33), Err((EINVAL, "ipv4: Invalid prefix length".into())));
    assert_eq!(add("::1", 128).unwrap_err().1, "ipv6: Cannot assign loopback address on this device");
    assert_eq!(add("::", 128).unwrap_err().1, "ipv6: Invalid address");
    for (local, len) in [("fd00::1", 64), ("fd00::2", 64)] {
        add(local, len).unwrap();
    }
    assert_eq!(add("fd00::2", 56), Err((EEXIST, "ipv6: address already assigned".into())));
    let all = ["10.0.0.1/24", "10.0.0.3/32", "10.1.0.1/31", "10.0.0.2/24", "fd00::2/64", "fd00::1/64"];
    assert_eq!(addresses(&mut lab, 2), all);
    // with a primary address go its secondary ones
    lab.change(Message::DelAddress(address(2, "10.0.0.1", 24)), 0).unwrap();
    assert_eq!(addresses(&mut lab, 2), ["10.0.0.3/32", "10.1.0.1/31", "fd00::2/64", "fd00::1/64"]);
    let gone = lab.change(Message::DelAddress(address(2, "10.0.0.1", 24)), 0);
    assert_eq!(gone.unwrap_err().1, "ipv4: Address not found");
}
