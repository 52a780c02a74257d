//! Bridge protocol data units of a spanning tree, in a frame of IEEE 802.3: IEEE 802.1D-1998, clause 9.3.
//!
//! ```text
//! | destination (6) | source (6) | length (2) | DSAP 0x42 | SSAP 0x42 | control 0x03 |
//! | protocol (2), 0 | version, 0 | type |
//!                     type 0:    | flags | root (8) | cost (4) | bridge (8) | port (2) |
//!                                | message age (2) | highest age (2) | hello time (2) | forward delay (2) |
//!                     type 0x80: nothing more
//! ```

/// Length of the addresses and the length of a frame, in bytes.
const FRONT: usize = 14;
/// Where the sublayer of the logical link begins and what it has: the protocol of spanning trees, unnumbered information.
const LINK: [u8; 3] = [0x42, 0x42, 0x03];
/// Length of what there is in every unit.
const LEAST: usize = 4;
/// Length of a configuration.
const CONFIGURATION: usize = 35;

const OF_CONFIGURATION: u8 = 0;
const OF_TOPOLOGY_CHANGE: u8 = 0x80;

const TOPOLOGY_CHANGE: u8 = 0x01;
const ACKNOWLEDGES: u8 = 0x80;

/// So many units of the times in a configuration make a second.
pub const TICKS_PER_SECOND: u64 = 256;

/// The identifier of a bridge: its priority and its address, big-endian. The lower one is better.
pub type BridgeId = [u8; 8];

/// Why the bytes are not taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than it says, or than what there is in every unit.
    Truncated,
    /// No unit of a spanning tree, or one of another version.
    Protocol,
    /// Neither a configuration nor a notification.
    Kind,
    /// A configuration that is cut short.
    Configuration,
}

/// What a bridge tells others on a network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Bpdu {
    /// Where it is in the tree.
    Configuration(Configuration),
    /// A station may be elsewhere now.
    TopologyChange,
}

/// Where a bridge is in the tree. Times are in units of a 256th of a second.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Configuration {
    /// Whether stations may be elsewhere now.
    pub topology_change: bool,
    /// Whether the bridge has heard that they may.
    pub acknowledges: bool,
    /// The root of the tree.
    pub root: BridgeId,
    /// What the way to it costs.
    pub root_path_cost: u32,
    /// The bridge.
    pub bridge: BridgeId,
    /// Its port.
    pub port: u16,
    /// How old it is since the root said so.
    pub message_age: u16,
    /// How old it may be.
    pub max_age: u16,
    /// How often the root says hello.
    pub hello_time: u16,
    /// How long a port listens, and how long it learns.
    pub forward_delay: u16,
}

impl Bpdu {
    /// Reads a frame, which may be longer than what is in it.
    ///
    /// # Errors
    /// [`Malformed`] says why it is none.
    pub fn parse(frame: &[u8]) -> Result<Self, Malformed> {
        let (front, rest) = frame.split_first_chunk::<FRONT>().ok_or(Malformed::Truncated)?;
        let [.., high, low] = *front;
        let rest = rest.get(..u16::from_be_bytes([high, low]).into()).ok_or(Malformed::Truncated)?;
        let (link, unit) = rest.split_first_chunk().ok_or(Malformed::Truncated)?;
        let [protocol @ .., kind] = unit.first_chunk::<LEAST>().ok_or(Malformed::Truncated)?;
        if *link != LINK || *protocol != [0; 3] {
            return Err(Malformed::Protocol);
        }
        match *kind {
            OF_CONFIGURATION => {
                let unit = unit.first_chunk::<CONFIGURATION>().ok_or(Malformed::Configuration)?;
                Ok(Self::Configuration(Configuration::read(unit)))
            }
            OF_TOPOLOGY_CHANGE => Ok(Self::TopologyChange),
            _ => Err(Malformed::Kind),
        }
    }

    /// The frame in which it goes from an address to a group.
    pub fn frame(&self, source: [u8; 6], group: [u8; 6]) -> Vec<u8> {
        let mut unit = vec![0; LEAST];
        match self {
            Self::Configuration(configuration) => configuration.write(&mut unit),
            Self::TopologyChange => unit[LEAST - 1] = OF_TOPOLOGY_CHANGE,
        }
        let length = (LINK.len() + unit.len()) as u16;
        [&group[..], &source, &length.to_be_bytes(), &LINK, &unit].concat()
    }
}

impl Configuration {
    fn read(unit: &[u8; CONFIGURATION]) -> Self {
        let two = |at: usize| u16::from_be_bytes([unit[at], unit[at + 1]]);
        let id = |at: usize| std::array::from_fn(|byte| unit[at + byte]);
        Self {
            topology_change: unit[4] & TOPOLOGY_CHANGE != 0,
            acknowledges: unit[4] & ACKNOWLEDGES != 0,
            root: id(5),
            root_path_cost: u32::from(two(13)) << 16 | u32::from(two(15)),
            bridge: id(17),
            port: two(25),
            message_age: two(27),
            max_age: two(29),
            hello_time: two(31),
            forward_delay: two(33),
        }
    }

    fn write(&self, unit: &mut Vec<u8>) {
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        unit.push(flag(self.topology_change, TOPOLOGY_CHANGE) | flag(self.acknowledges, ACKNOWLEDGES));
        unit.extend(self.root);
        unit.extend(self.root_path_cost.to_be_bytes());
        unit.extend(self.bridge);
        for two in [self.port, self.message_age, self.max_age, self.hello_time, self.forward_delay] {
            unit.extend(two.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn configurations()(
            [topology_change, acknowledges] in any::<[bool; 2]>(),
            [root, bridge] in any::<[BridgeId; 2]>(),
            (root_path_cost, port) in any::<(u32, u16)>(),
            [message_age, max_age, hello_time, forward_delay] in any::<[u16; 4]>(),
        ) -> Configuration {
            Configuration {
                topology_change,
                acknowledges,
                root,
                root_path_cost,
                bridge,
                port,
                message_age,
                max_age,
                hello_time,
                forward_delay,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(configuration in configurations(), from: [u8; 6], padding in 0..22_usize) {
            for unit in [Bpdu::Configuration(configuration), Bpdu::TopologyChange] {
                let mut frame = unit.frame(from, [1, 0x80, 0xc2, 0, 0, 0]);
                frame.resize(frame.len() + padding, 0xa5);
                prop_assert_eq!(Bpdu::parse(&frame), Ok(unit));
            }
        }
    }
}
