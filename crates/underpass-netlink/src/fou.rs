//! Receive ports of foo-over-UDP: generic netlink `fou`. Linux: `include/uapi/linux/fou.h`, `net/ipv4/fou_core.c`.
//!
//! ```text
//! FOU_ATTR_PORT and PEER_PORT (u16 in network byte order), AF, IPPROTO and TYPE (u8), REMCSUM_NOPARTIAL (flag),
//! LOCAL_V4 and PEER_V4, LOCAL_V6 and PEER_V6 (addresses), IFINDEX (s32)
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use libc::{AF_INET, AF_INET6, EAFNOSUPPORT, EINVAL};

use crate::attribute::{Attributes, Type, policy};
use crate::reply::Reply;
use crate::{RequestError, genetlink};

/// The family's version, in the generic netlink header.
pub const VERSION: u8 = 1;
/// Opens a port.
pub const CMD_ADD: u8 = 1;
/// Closes the port whose [`Socket`] is the same.
pub const CMD_DEL: u8 = 2;
/// Shows that port, or as a dump all.
pub const CMD_GET: u8 = 3;

const PORT: u16 = 1;
const AF: u16 = 2;
const IPPROTO: u16 = 3;
const TYPE: u16 = 4;
const REMCSUM_NOPARTIAL: u16 = 5;
const LOCAL_V4: u16 = 6;
const LOCAL_V6: u16 = 7;
const PEER_V4: u16 = 8;
const PEER_V6: u16 = 9;
const PEER_PORT: u16 = 10;
const IFINDEX: u16 = 11;
/// Highest attribute type.
pub const ATTR_MAX: u16 = IFINDEX;

/// The policy of all three commands, which are checked liberally.
pub const POLICY: [Type; ATTR_MAX as usize + 1] = policy(&[
    (PORT, Type::U16),
    (AF, Type::U8),
    (IPPROTO, Type::U8),
    (TYPE, Type::U8),
    (REMCSUM_NOPARTIAL, Type::Flag),
    (LOCAL_V4, Type::U32),
    (LOCAL_V6, Type::AtLeast(16)),
    (PEER_V4, Type::U32),
    (PEER_V6, Type::AtLeast(16)),
    (PEER_PORT, Type::U16),
    (IFINDEX, Type::U32),
]);

/// What follows UDP on a port: `FOU_ENCAP_*`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Packets of one IP protocol, with nothing between.
    Direct = 1,
    /// Generic UDP encapsulation.
    Gue = 2,
}

/// Addresses of a port, of one family; unspecified ones are any.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Addresses {
    /// Of IPv4.
    V4 {
        /// The router's own.
        local: Ipv4Addr,
        /// The only one that packets come from.
        peer: Ipv4Addr,
    },
    /// Of IPv6, and of it alone.
    V6 {
        /// The router's own.
        local: Ipv6Addr,
        /// The only one that packets come from.
        peer: Ipv6Addr,
    },
}

/// What distinguishes two ports. Linux: `fou_cfg_cmp`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Socket {
    /// UDP port of the router. 0: any free one to Linux, which shows 0 all the same.
    pub port: u16,
    /// UDP port of the peer. 0: any.
    pub peer_port: u16,
    /// Addresses of both.
    pub addresses: Addresses,
    /// Index of the link that packets come in by. 0: any.
    pub ifindex: i32,
}

/// A port as a request describes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// Where it listens.
    pub socket: Socket,
    /// `FOU_ENCAP_*`; see [`Config::kind`].
    pub encap: u8,
    /// IP protocol of what comes in, where the kind is [`Kind::Direct`].
    pub protocol: u8,
    /// Whether remote checksum offload completes checksums at once, not where they are looked at.
    pub no_partial: bool,
}

impl Config {
    /// Reads a request that is no dump.
    ///
    /// # Errors
    /// As Linux's `parse_nl_config`, and for [`CMD_GET`] `fou_nl_get_doit`. None of them has a text.
    pub fn parse(command: u8, attributes: &Attributes<'_, { POLICY.len() }>) -> Result<Self, RequestError> {
        let byte = |kind| attributes.get(kind).map_or(0, |attribute| attribute.u8());
        let ipv4 = |kind| attributes.get(kind).map(|attribute| attribute.ipv4());
        let ipv6 = |kind| attributes.get(kind).map(|attribute| attribute.ipv6());
        // Addresses of the other family are passed over.
        let (addresses, has_local, has_peer) = match attributes.get(AF).map(|family| i32::from(family.u8())) {
            None | Some(AF_INET) => {
                let (local, peer) = (ipv4(LOCAL_V4), ipv4(PEER_V4));
                let any = Ipv4Addr::UNSPECIFIED;
                let addresses = Addresses::V4 { local: local.unwrap_or(any), peer: peer.unwrap_or(any) };
                (addresses, local.is_some(), peer.is_some())
            }
            Some(AF_INET6) => {
                let (local, peer) = (ipv6(LOCAL_V6), ipv6(PEER_V6));
                let any = Ipv6Addr::UNSPECIFIED;
                let addresses = Addresses::V6 { local: local.unwrap_or(any), peer: peer.unwrap_or(any) };
                (addresses, local.is_some(), peer.is_some())
            }
            Some(_) => return Err(RequestError::errno(EAFNOSUPPORT)),
        };
        let port = attributes.get(PORT).map_or(0, |port| port.be16());
        // Without a peer, its port is passed over too.
        let peer_port = match attributes.get(PEER_PORT) {
            None if has_peer => return Err(RequestError::errno(EINVAL)),
            Some(port) if has_peer => port.be16(),
            _ => 0,
        };
        let ifindex = match attributes.get(IFINDEX) {
            Some(_) if !has_local => return Err(RequestError::errno(EINVAL)),
            Some(index) => index.u32() as i32,
            None => 0,
        };
        if command == CMD_GET && port == 0 {
            return Err(RequestError::errno(EINVAL));
        }
        Ok(Self {
            socket: Socket { port, peer_port, addresses, ifindex },
            encap: byte(TYPE),
            protocol: byte(IPPROTO),
            no_partial: attributes.get(REMCSUM_NOPARTIAL).is_some(),
        })
    }

    /// What follows UDP. Linux looks at it when the socket is open already: a port that is taken is `EADDRINUSE` first.
    ///
    /// # Errors
    /// `EINVAL`: no kind, or one that is not known.
    pub const fn kind(&self) -> Result<Kind, RequestError> {
        match self.encap {
            1 => Ok(Kind::Direct),
            2 => Ok(Kind::Gue),
            _ => Err(RequestError::errno(EINVAL)),
        }
    }

    /// Writes the body of an answer to [`CMD_GET`].
    pub fn write(&self, reply: &mut Reply<'_>) {
        let Socket { port, peer_port, addresses, ifindex } = self.socket;
        let family = match addresses {
            Addresses::V4 { .. } => AF_INET,
            Addresses::V6 { .. } => AF_INET6,
        };
        reply.fixed(&genetlink::header(CMD_GET, VERSION));
        reply.u8(AF, family as u8);
        reply.be16(PORT, port);
        reply.be16(PEER_PORT, peer_port);
        // Linux does not keep the protocol that was given with GUE.
        reply.u8(IPPROTO, if self.encap == Kind::Direct as u8 { self.protocol } else { 0 });
        reply.u8(TYPE, self.encap);
        reply.u32(IFINDEX, ifindex as u32);
        if self.no_partial {
            reply.flag(REMCSUM_NOPARTIAL);
        }
        match addresses {
            Addresses::V4 { local, peer } => {
                reply.address(LOCAL_V4, local.into());
                reply.address(PEER_V4, peer.into());
            }
            Addresses::V6 { local, peer } => {
                reply.address(LOCAL_V6, local.into());
                reply.address(PEER_V6, peer.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use libc::ERANGE;
    use proptest::prelude::*;

    use super::*;
    use crate::attribute::Validate;
    use crate::encap::tests::written;
    use crate::message::HEADER;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    }

    /// Reads what follows the netlink header.
    fn read(body: &[u8]) -> Result<Config, RequestError> {
        let (header, attributes) = body.split_at(genetlink::HEADER);
        let base = HEADER + genetlink::HEADER;
        let attributes = Attributes::parse(&POLICY, attributes, base, Validate::Liberal)?;
        Config::parse(header[0], &attributes)
    }

    fn request(command: u8, list: &[(u16, &[u8])]) -> Result<Config, RequestError> {
        read(&written(|reply| {
            reply.fixed(&genetlink::header(command, VERSION));
            list.iter().for_each(|(kind, value)| reply.attribute(*kind, value));
        }))
    }

    fn config(port: u16, addresses: Addresses, kind: Kind, protocol: u8) -> Config {
        let socket = Socket { port, peer_port: 0, addresses, ifindex: 0 };
        Config { socket, encap: kind as u8, protocol, no_partial: false }
    }

    const ANY_4: Addresses = Addresses::V4 { local: Ipv4Addr::UNSPECIFIED, peer: Ipv4Addr::UNSPECIFIED };
    const ANY_6: Addresses = Addresses::V6 { local: Ipv6Addr::UNSPECIFIED, peer: Ipv6Addr::UNSPECIFIED };

    /// `ip fou add port 5558 ipproto 4 local 10.0.0.1 peer 10.0.0.2 peer_port 777`.
    fn with_peer() -> Config {
        let addresses = Addresses::V4 { local: Ipv4Addr::new(10, 0, 0, 1), peer: Ipv4Addr::new(10, 0, 0, 2) };
        let mut config = config(5558, addresses, Kind::Direct, 4);
        config.socket.peer_port = 777;
        config
    }

    /// What `ip` of iproute2 6.1 sends for the command that stands above each.
    #[test]
    fn requests_of_ip() {
        for (text, expected) in [
            // ip fou add port 5555 ipproto 4
            (
                "01010000 0600010015b30000 0500040001000000 0500020002000000 0500030004000000",
                config(5555, ANY_4, Kind::Direct, 4),
            ),
            // ip fou add port 6080 gue
            ("01010000 0600010017c00000 0500040002000000 0500020002000000", config(6080, ANY_4, Kind::Gue, 0)),
            // ip fou add port 6081 gue -6
            ("01010000 0600010017c10000 0500040002000000 050002000a000000", config(6081, ANY_6, Kind::Gue, 0)),
            // ip -6 fou add port 6082 ipproto 41
            (
                "01010000 0600010017c20000 0500040001000000 050002000a000000 0500030029000000",
                config(6082, ANY_6, Kind::Direct, 41),
            ),
            // ip fou add port 5558 ipproto 4 local 10.0.0.1 peer 10.0.0.2 peer_port 777
            (
                "01010000 0600010015b60000 0500040001000000 0500020002000000 0500030004000000 080006000a000001
                 080008000a000002 06000a0003090000",
                with_peer(),
            ),
            // ip fou del port 5557
            (
                "02010000 0600010015b50000 0500040001000000 0500020002000000",
                config(5557, ANY_4, Kind::Direct, 0),
            ),
        ] {
            assert_eq!(read(&hex(text)), Ok(expected), "{text}");
        }
    }

    /// Linux 6.12, `ip fou show` behind the commands above.
    #[test]
    fn answers_of_linux() {
        for (text, port) in [
            (
                "03010000 0500020002000000 0600010015b60000 06000a0003090000 0500030004000000 0500040001000000
                 08000b0000000000 080006000a000001 080008000a000002",
                with_peer(),
            ),
            (
                "03010000 050002000a000000 0600010017c20000 06000a0000000000 0500030029000000 0500040001000000
                 08000b0000000000 1400070000000000000000000000000000000000 1400090000000000000000000000000000000000",
                config(6082, ANY_6, Kind::Direct, 41),
            ),
            // FOU_CMD_ADD with FOU_ATTR_IPPROTO 4 and FOU_ATTR_REMCSUM_NOPARTIAL.
            (
                "03010000 0500020002000000 0600010015b40000 06000a0000000000 0500030000000000 0500040002000000
                 08000b0000000000 04000500 0800060000000000 0800080000000000",
                Config { no_partial: true, ..config(5556, ANY_4, Kind::Gue, 4) },
            ),
        ] {
            assert_eq!(written(|reply| port.write(reply)), hex(text), "{text}");
        }
    }

    /// Linux 6.12, the answers to these attributes with each command.
    #[test]
    fn refuses_what_linux_refuses() {
        let (port, direct) = ((PORT, &[0x15, 0xb3][..]), (TYPE, &[1][..]));
        let (local, address) = ([127, 0, 0, 1], [0xfd; 16]);
        for command in [CMD_ADD, CMD_DEL, CMD_GET] {
            for (last, errno) in [
                ((AF, &[1][..]), EAFNOSUPPORT),
                ((PEER_V4, &local), EINVAL),
                ((IFINDEX, &[1, 0, 0, 0]), EINVAL),
            ] {
                assert_eq!(
                    request(command, &[port, direct, last]),
                    Err(RequestError::errno(errno)),
                    "{last:?}"
                );
            }
            for last in [
                (AF, &[][..]),
                (LOCAL_V4, &local[..3]),
                (LOCAL_V6, &address[..8]),
                (PEER_V6, &address[..8]),
                (REMCSUM_NOPARTIAL, &[1]),
                (IFINDEX, &[1, 0]),
                (PEER_PORT, &[1]),
                (IPPROTO, &[]),
            ] {
                let error = RequestError::new(ERANGE, "Attribute failed policy validation").at(0x24);
                assert_eq!(request(command, &[port, direct, last]), Err(error), "{last:?}");
            }
        }
        assert_eq!(request(CMD_GET, &[]), Err(RequestError::errno(EINVAL)));
        assert_eq!(request(CMD_ADD, &[direct]).map(|config| config.socket.port), Ok(0));
        for kind in [None, Some(0), Some(3)] {
            let list: Vec<_> = kind.as_slice().chunks(1).map(|kind| (TYPE, kind)).collect();
            let config = request(CMD_ADD, &[&[port][..], &list].concat()).unwrap();
            assert_eq!(config.kind(), Err(RequestError::errno(EINVAL)));
        }
    }

    /// Linux 6.12 takes all of these and shows the same ports.
    #[test]
    fn takes_what_linux_takes() {
        let direct = (TYPE, &[1][..]);
        let expected = config(5555, ANY_4, Kind::Direct, 0);
        let (address, local) = ([0xfd; 20], [127, 0, 0, 1]);
        // A flag of the type, longer values, unknown types, addresses of the other family.
        let list =
            [(PORT | 0x8000, &[0x15, 0xb3, 0xff, 0xff][..]), direct, (99, b"zz"), (LOCAL_V6, &address)];
        assert_eq!(request(CMD_ADD, &list), Ok(expected));
        // The last of two counts.
        let list = [(PORT, &[0, 1][..]), (PORT, &[0x15, 0xb3]), direct];
        assert_eq!(request(CMD_ADD, &list), Ok(expected));
        // The port of no peer.
        let list = [(PORT, &[0x15, 0xb3][..]), direct, (PEER_PORT, &[0, 7])];
        assert_eq!(request(CMD_ADD, &list), Ok(expected));
        let list = [
            (PORT, &[0x15, 0xb3][..]),
            (AF, &[AF_INET6 as u8]),
            direct,
            (LOCAL_V6, &address[..16]),
            (LOCAL_V4, &local),
            (IFINDEX, &[1, 0, 0, 0]),
        ];
        let socket = request(CMD_ADD, &list).unwrap().socket;
        let local = Ipv6Addr::from([0xfd; 16]);
        let addresses = Addresses::V6 { local, peer: Ipv6Addr::UNSPECIFIED };
        assert_eq!(socket, Socket { port: 5555, peer_port: 0, addresses, ifindex: 1 });
    }

    fn any_config() -> impl Strategy<Value = Config> {
        let addresses = prop_oneof![
            any::<(Ipv4Addr, Ipv4Addr)>().prop_map(|(local, peer)| Addresses::V4 { local, peer }),
            any::<(Ipv6Addr, Ipv6Addr)>().prop_map(|(local, peer)| Addresses::V6 { local, peer }),
        ];
        let numbers = any::<(u16, u16, i32, u8, bool, bool)>();
        (addresses, numbers).prop_map(|(addresses, (port, peer_port, ifindex, protocol, gue, no_partial))| {
            let (kind, protocol) = if gue { (Kind::Gue, 0) } else { (Kind::Direct, protocol) };
            let socket = Socket { port: port.max(1), peer_port, addresses, ifindex };
            Config { socket, encap: kind as u8, protocol, no_partial }
        })
    }

    proptest! {
        /// An answer is a request too, of the port that it shows.
        #[test]
        fn round_trip(config in any_config()) {
            prop_assert_eq!(read(&written(|reply| config.write(reply))), Ok(config));
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 4..96)) {
            let _ = read(&bytes);
        }
    }
}
