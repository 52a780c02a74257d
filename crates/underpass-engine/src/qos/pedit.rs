//! Bytes that an action changes: Linux's `net/sched/act_pedit.c`.

use underpass_packet::{ethernet, protocol};

use super::subject::is_vlan;
use crate::buffer::Packet;
use crate::tables::{PeditHeader, PeditKey};

const ETHERNET: i64 = ethernet::Header::LEN as i64;
/// Length of a VLAN tag, which Linux keeps beside a frame.
const TAG: i64 = 4;
/// The last bytes of an Ethernet header, which a tag stands before.
const ETHERTYPE: i64 = 2;
/// How far before a frame a key may reach: what Linux's packets have there at least. Nobody sees what it writes.
const BEFORE: i64 = 64;
/// Length of an IPv6 header.
const IPV6: usize = 40;

/// Where the headers of a frame are.
struct Layout {
    /// Where the network header is.
    network: i64,
    /// Length of the tag that is passed over on the way to the Ethernet header.
    tag: i64,
    /// The EtherType of what lies at the network header.
    protocol: u16,
}

impl Layout {
    fn of(packet: &Packet) -> Option<Self> {
        let headless = packet.tag().headless;
        if headless != 0 {
            return Some(Self { network: 0, tag: 0, protocol: headless });
        }
        let frame = packet.bytes();
        let kind = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let outer = kind((ETHERNET - ETHERTYPE) as usize)?;
        match kind((ETHERNET - ETHERTYPE + TAG) as usize).filter(|_| is_vlan(outer)) {
            Some(protocol) => Some(Self { network: ETHERNET + TAG, tag: TAG, protocol }),
            None => Some(Self { network: ETHERNET, tag: 0, protocol: outer }),
        }
    }

    /// Where in the frame a byte is, from the network header on. `None`: before the frame.
    fn place(&self, offset: i64) -> Option<usize> {
        let skipped = if offset < -ETHERTYPE { self.tag } else { 0 };
        usize::try_from(self.network + offset - skipped).ok()
    }

    /// Whether all of so many bytes can be reached.
    fn reaches(&self, packet: &Packet, offset: i64, len: i64) -> bool {
        let first = -self.network + self.tag - BEFORE;
        offset >= first && self.network + offset + len <= packet.len() as i64
    }

    /// Where a header begins, from the network header on.
    fn header(&self, packet: &Packet, header: PeditHeader) -> Option<i64> {
        let network = || packet.bytes().get(self.network as usize..);
        match (header, self.protocol) {
            (PeditHeader::Ethernet, _) => Some(if self.network == 0 { 0 } else { -ETHERNET }),
            (PeditHeader::Network, _) => Some(0),
            // Whatever its protocol is.
            (PeditHeader::Tcp | PeditHeader::Udp, ethernet::IPV4) => {
                let first = network()?.first_chunk::<20>()?[0];
                Some(i64::from(first & 0xf) * 4)
            }
            (PeditHeader::Tcp, ethernet::IPV6) => upper(network()?, protocol::TCP),
            (PeditHeader::Udp, ethernet::IPV6) => upper(network()?, protocol::UDP),
            _ => None,
        }
    }
}

/// Where the header of this protocol is behind an IPv6 header: `ipv6_find_hdr`.
fn upper(packet: &[u8], wanted: u8) -> Option<i64> {
    let (mut next, mut at) = (*packet.get(6)?, IPV6);
    loop {
        if next == wanted {
            return Some(at as i64);
        }
        let [kind, len, high, low] = *packet.get(at..)?.first_chunk::<4>()?;
        let len = match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                8 * (usize::from(len) + 1)
            }
            // Behind the first fragment's header alone.
            protocol::FRAGMENT if u16::from_be_bytes([high, low]) & !7 == 0 => 8,
            protocol::AUTHENTICATION => 4 * (usize::from(len) + 2),
            _ => return None,
        };
        (next, at) = (kind, at + len);
    }
}

/// Changes a packet as the keys say, in their order. `false`: it has not what one of them is about, and those behind it
/// were not looked at.
pub(crate) fn edit_bytes(packet: &mut Packet, keys: &[PeditKey]) -> bool {
    keys.iter().all(|key| edit(packet, key).is_some())
}

fn edit(packet: &mut Packet, key: &PeditKey) -> Option<()> {
    let layout = Layout::of(packet)?;
    let header = layout.header(packet, key.header)?;
    let mut offset = header + i64::from(key.offset);
    if let Some((at, mask, shift)) = key.at {
        let at = header + i64::from(at);
        if !layout.reaches(packet, at, 1) {
            return None;
        }
        let byte = layout.place(at).and_then(|at| packet.bytes().get(at)).copied().unwrap_or(0);
        offset += i64::from((u32::from(byte) & mask) >> shift);
        if (offset - header) % 4 != 0 {
            return None;
        }
    }
    if !layout.reaches(packet, offset, 4) {
        return None;
    }
    let mut bytes = [0; 4];
    for (byte, n) in bytes.iter_mut().zip(0..) {
        *byte = layout.place(offset + n).and_then(|at| packet.bytes().get(at)).copied().unwrap_or(0);
    }
    let old = u32::from_ne_bytes(bytes);
    let value = if key.add { old.wrapping_add(key.value) & !key.mask } else { key.value };
    let new = (old & key.mask) ^ value;
    for (byte, n) in new.to_ne_bytes().into_iter().zip(0..) {
        if let Some(place) = layout.place(offset + n).and_then(|at| packet.bytes_mut().get_mut(at)) {
            *place = byte;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{HEADROOM, Pool};

    fn key(header: PeditHeader, offset: i32, mask: u32, value: u32) -> PeditKey {
        let [mask, value] = [mask, value].map(u32::to_be);
        PeditKey { mask, value, offset, at: None, header, add: false }
    }

    fn edited(frame: &[u8], keys: &[PeditKey]) -> (bool, Vec<u8>) {
        let mut pool = Pool::new(1);
        let mut packet = pool.take().unwrap();
        packet.set(HEADROOM, frame).unwrap();
        let done = edit_bytes(&mut packet, keys);
        (done, packet.bytes().to_vec())
    }

    fn frame(tag: &[u8], ethertype: u16, network: &[u8]) -> Vec<u8> {
        let macs = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        [&macs[..], tag, &ethertype.to_be_bytes(), network].concat()
    }

    #[test]
    fn offsets_count_from_headers() {
        let network: Vec<u8> = [0x46].into_iter().chain(1..40).collect();
        for tag in [&[][..], &[0x81, 0, 0, 5]] {
            let whole = frame(tag, 0x0800, &network);
            let at = whole.len() - network.len();
            for (changed, place) in [
                (key(PeditHeader::Network, 4, 0, 0xaabb_ccdd), at + 4),
                (key(PeditHeader::Tcp, 4, 0, 0xaabb_ccdd), at + 28),
                (key(PeditHeader::Ethernet, 4, 0, 0xaabb_ccdd), 4),
                (key(PeditHeader::Network, 36, 0, 0xaabb_ccdd), at + 36),
            ] {
                let mut wanted = whole.clone();
                wanted[place..place + 4].copy_from_slice(&[0xaa, 0xbb, 0xcc, 0xdd]);
                assert_eq!(edited(&whole, &[changed]), (true, wanted), "{changed:?}");
            }
            // The EtherType and the first bytes behind it, with a tag between the addresses and them.
            let mut wanted = whole.clone();
            wanted[at - 4 - tag.len()..at - 2 - tag.len()].copy_from_slice(&[1, 2]);
            wanted[at - 2..at].copy_from_slice(&[3, 4]);
            assert_eq!(edited(&whole, &[key(PeditHeader::Network, -4, 0, 0x0102_0304)]), (true, wanted));
            for beyond in [40, 37, -200] {
                let keys = [key(PeditHeader::Network, beyond, 0, 0)];
                assert_eq!(edited(&whole, &keys), (false, whole.clone()));
            }
        }
    }

    #[test]
    fn values_are_set_added_and_inverted() {
        let whole = frame(&[], 0x0800, &[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let ttl =
            |value: u32, add| PeditKey { add, ..key(PeditHeader::Network, 8, 0x00ff_ffff, value << 24) };
        assert_eq!(edited(&whole, &[ttl(9, false)]).1[22..24], [9, 17]);
        assert_eq!(edited(&whole, &[ttl(0xff, true)]).1[22..24], [63, 17]);
        let invert = key(PeditHeader::Network, 12, u32::MAX, u32::MAX);
        assert_eq!(edited(&whole, &[invert]).1[26..30], [!1, !2, !3, !4]);
        // The length of the header, in words, leads behind it.
        let at = Some((0, 0x0f, 0));
        let whole = [&whole[..], &[0; 8]].concat();
        let key = PeditKey { at, ..key(PeditHeader::Network, 15, 0, 0x0102_0304) };
        assert_eq!(edited(&whole, &[key]).1[34..38], [1, 2, 3, 4]);
        assert!(!edited(&whole, &[PeditKey { offset: 16, ..key }]).0);
    }

    #[test]
    fn upper_headers_of_ipv6() {
        let mut network = vec![0x60, 0, 0, 0, 0, 24, 60, 64];
        network.resize(40, 0);
        network.extend([17, 0, 0, 0, 0, 0, 0, 0]);
        network.extend([0; 16]);
        let whole = frame(&[], 0x86dd, &network);
        let port = |header| edited(&whole, &[key(header, 0, 0xffff_0000, 80)]);
        let (done, bytes) = port(PeditHeader::Udp);
        assert_eq!((done, &bytes[62..66]), (true, &[0, 0, 0, 80][..]));
        assert!(!port(PeditHeader::Tcp).0);
        assert!(!edited(&frame(&[], 0x0806, &network), &[key(PeditHeader::Udp, 0, 0, 0)]).0);
    }
}
