//! Sockets that listen to what leaves by devices, such as those of tcpdump. What a program gives to the other end of a veth
//! pair at once passes them by.

use std::collections::BTreeSet;
use std::fs;
use std::io;

/// The devices of a network namespace that sockets listen to.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Taps {
    /// Whether one listens to all.
    everywhere: bool,
    devices: BTreeSet<u32>,
}

impl Taps {
    /// Those of the calling thread's namespace.
    ///
    /// # Errors
    /// There is no procfs, or the kernel has no packet sockets.
    pub fn read() -> io::Result<Self> {
        fs::read_to_string("/proc/thread-self/net/packet").map(|text| Self::of(&text))
    }

    /// As `packet_seq_show` of net/packet/af_packet.c writes them: type, protocol, interface and whether it runs are the
    /// third to sixth word of a line. Only sockets of all protocols are given what leaves.
    fn of(text: &str) -> Self {
        const ALL: &str = "0003";
        let mut taps = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace().skip(3);
            if words.next() != Some(ALL) {
                continue;
            }
            let interface = words.next().and_then(|word| word.parse().ok());
            match (interface, words.next()) {
                (Some(0), Some("1")) => taps.everywhere = true,
                (Some(index), Some("1")) => {
                    taps.devices.insert(index);
                }
                _ => {}
            }
        }
        taps
    }

    /// Whether a socket listens to what leaves by the device of this index.
    pub(crate) fn are_at(&self, ifindex: u32) -> bool {
        self.everywhere || self.devices.contains(&ifindex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux 6.18 shows of `tcpdump -i any`, of one at a device, of one that is being closed and of a socket for IPv4.
    #[test]
    fn sockets_of_all_protocols_that_run_are_taps() {
        let head = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n";
        let one = "ffff888003b5a000 3      3    0003   7     1 0      0      21041\n";
        let closed = "ffff888003b5a800 3      3    0003   8     0 0      0      21042\n";
        let four = "ffff888003b5b000 3      2    0800   9     1 0      0      21043\n";
        let any = "ffff888003b5b800 3      2    0003   0     1 0      0      21044\n";
        let taps = Taps::of(&[head, one, closed, four].concat());
        assert_eq!([7, 8, 9].map(|index| taps.are_at(index)), [true, false, false]);
        assert!(Taps::of(&[head, any].concat()).are_at(8));
        assert_eq!(Taps::of("gibberish\n\n"), Taps::default());
    }
}
