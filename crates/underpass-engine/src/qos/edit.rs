//! Headers that actions change: Linux's `net/sched/act_vlan.c` and `act_mpls.c`.

use underpass_packet::ethernet;

use super::subject::is_vlan;
use crate::buffer::{NoRoom, Packet, Tag};
use crate::tables::{MplsEdit, MplsFields, VlanEdit};

const ETHERNET: usize = ethernet::Header::LEN;
/// Where the EtherType of a frame is: behind its addresses.
const ADDRESSES: usize = 12;
/// Length of a tag.
const TAG: usize = 4;

fn ethertype(packet: &Packet, at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*packet.bytes().get(at..)?.first_chunk()?))
}

fn put<const N: usize>(packet: &mut Packet, at: usize, bytes: [u8; N]) -> Option<()> {
    *packet.bytes_mut().get_mut(at..)?.first_chunk_mut()? = bytes;
    Some(())
}

/// Puts bytes into a packet, `at` bytes behind its first.
#[inline]
pub(crate) fn insert<const N: usize>(packet: &mut Packet, at: usize, bytes: [u8; N]) -> Option<()> {
    if packet.len() < at {
        return None;
    }
    let grow = |packet: &mut Packet| packet.push(N).map(|_| ());
    if let Err(NoRoom) = grow(packet) {
        packet.move_back(N).ok()?;
        grow(packet).ok()?;
    }
    packet.bytes_mut().copy_within(N..N + at, 0);
    put(packet, at, bytes)
}

/// Length of the tag of a frame, if it has one: in Linux it stands beside the frame, and is not counted by a bridge.
pub(crate) fn tag_of(frame: &[u8]) -> usize {
    let tags = [ethernet::VLAN, ethernet::SERVICE_VLAN].map(u16::to_be_bytes);
    let kind = frame.get(ADDRESSES..ADDRESSES + 2);
    if frame.len() >= ETHERNET + TAG && tags.iter().any(|tag| kind == Some(tag)) { TAG } else { 0 }
}

fn set_headless(packet: &mut Packet, ethertype: u16) {
    packet.set_tag(Tag { headless: ethertype, ..packet.tag() });
}

/// Gives a packet without an Ethernet header one that is for this address.
pub(crate) fn give_header(packet: &mut Packet, destination: [u8; 6]) -> Option<()> {
    let ethertype = packet.tag().headless;
    let mut header = [0; ETHERNET];
    header[..6].copy_from_slice(&destination);
    header[ADDRESSES..].copy_from_slice(&ethertype.to_be_bytes());
    insert(packet, 0, header)?;
    set_headless(packet, 0);
    Some(())
}

/// Takes four bytes out of a packet.
#[inline]
pub(crate) fn remove(packet: &mut Packet, at: usize) -> Option<()> {
    if packet.len() < at + 4 {
        return None;
    }
    packet.bytes_mut().copy_within(..at, 4);
    packet.pull(4);
    Some(())
}

/// Does what a `vlan` action says. `None`: it cannot be done.
pub(crate) fn edit_vlan(packet: &mut Packet, edit: VlanEdit) -> Option<()> {
    let headless = packet.tag().headless;
    if let VlanEdit::PushEthernet { destination, source } = edit {
        if headless == 0 {
            // `skb_eth_push` gives none to what has one.
            return None;
        }
        let mut header = [0; ETHERNET];
        header[..6].copy_from_slice(&destination);
        header[6..ADDRESSES].copy_from_slice(&source);
        header[ADDRESSES..].copy_from_slice(&headless.to_be_bytes());
        insert(packet, 0, header)?;
        set_headless(packet, 0);
        return Some(());
    }
    if headless != 0 {
        // There is nothing that a tag could stand in.
        return matches!(edit, VlanEdit::Pop | VlanEdit::Modify { .. }).then_some(());
    }
    let tpid = ethertype(packet, ADDRESSES)?;
    let is_tagged = is_vlan(tpid) && packet.len() >= ETHERNET + 4;
    match edit {
        VlanEdit::Pop if is_tagged => remove(packet, ADDRESSES),
        VlanEdit::Push { protocol, id, priority } => {
            let tci = u16::from(priority) << 13 | id & 0xfff;
            let [a, b] = protocol.to_be_bytes();
            let [c, d] = tci.to_be_bytes();
            insert(packet, ADDRESSES, [a, b, c, d])
        }
        VlanEdit::Modify { protocol, id, priority } if is_tagged => {
            let tci = ethertype(packet, ETHERNET)?;
            let kept = match priority {
                None => tci & 0xf000,
                Some(priority) => u16::from(priority) << 13 | tci & 0x1000,
            };
            put(packet, ADDRESSES, protocol.to_be_bytes())?;
            put(packet, ETHERNET, (kept | id & 0xfff).to_be_bytes())
        }
        // A packet without a tag stays as it is.
        VlanEdit::Pop | VlanEdit::Modify { .. } | VlanEdit::PushEthernet { .. } => Some(()),
        VlanEdit::PopEthernet if is_vlan(tpid) || tpid == 0 => None,
        VlanEdit::PopEthernet => {
            packet.pull(ETHERNET);
            set_headless(packet, tpid);
            Some(())
        }
    }
}

fn is_mpls(ethertype: u16) -> bool {
    ethertype == ethernet::MPLS || ethertype == ethernet::MPLS_MULTICAST
}

/// Does what an `mpls` action says. `None`: it cannot be done.
pub(crate) fn edit_label(packet: &mut Packet, edit: MplsEdit) -> Option<()> {
    // Behind the outermost VLAN tag, which Linux has put aside.
    let headless = packet.tag().headless;
    let (network, found) = if headless == 0 {
        let outer = ethertype(packet, ADDRESSES)?;
        let network = if is_vlan(outer) { ETHERNET + 4 } else { ETHERNET };
        (network, ethertype(packet, network - 2)?)
    } else {
        (0, headless)
    };
    let labelled = is_mpls(found);
    let rename = |packet: &mut Packet, protocol: u16| match network {
        0 => {
            set_headless(packet, protocol);
            Some(())
        }
        network => put(packet, network - 2, protocol.to_be_bytes()),
    };
    let first = || packet.bytes().get(network..)?.first_chunk().copied().map(u32::from_be_bytes);
    match edit {
        MplsEdit::Pop { .. } if !labelled => Some(()),
        MplsEdit::Pop { protocol } => {
            first()?;
            remove(packet, network)?;
            rename(packet, protocol)
        }
        MplsEdit::MacPush { protocol, label } => {
            if !is_mpls(protocol) {
                return None;
            }
            insert(packet, 0, with(0, label, network != 0 || !labelled).to_be_bytes())?;
            set_headless(packet, protocol);
            Some(())
        }
        MplsEdit::Push { protocol, label } => {
            if !is_mpls(protocol) {
                return None;
            }
            insert(packet, network, with(0, label, !labelled).to_be_bytes())?;
            rename(packet, protocol)
        }
        MplsEdit::Modify(label) => {
            let entry = first().filter(|_| labelled)?;
            put(packet, network, with(entry, label, false).to_be_bytes())
        }
        MplsEdit::DecrementTtl => {
            let entry = first().filter(|entry| labelled && entry & 0xff > 1)?;
            put(packet, network, (entry - 1).to_be_bytes())
        }
    }
}

/// A label stack entry with these fields: RFC 3032 section 2.1. `bottom`: whether it is the last, if the fields do not
/// say.
fn with(entry: u32, fields: MplsFields, bottom: bool) -> u32 {
    let mut entry = entry;
    let mut set = |value: Option<u32>, mask: u32, shift: u32| {
        if let Some(value) = value {
            entry = entry & !mask | value << shift & mask;
        }
    };
    set(fields.label, 0xffff_f000, 12);
    set(fields.class.map(u32::from), 0xe00, 9);
    set(fields.bottom.or(bottom.then_some(true)).map(u32::from), 0x100, 8);
    set(fields.ttl.map(u32::from), 0xff, 0);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{HEADROOM, Pool};

    const MACS: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

    fn edited(frame: &[u8], edit: impl FnOnce(&mut Packet) -> Option<()>) -> Option<Vec<u8>> {
        let mut pool = Pool::new(1);
        let mut packet = pool.take().unwrap();
        packet.set(HEADROOM, &[&MACS, frame].concat()).unwrap();
        let done = edit(&mut packet);
        done.map(|()| {
            assert_eq!(packet.bytes()[..12], MACS);
            packet.bytes()[12..].to_vec()
        })
    }

    #[test]
    fn tags() {
        let vlan = |frame: &[u8], edit| edited(frame, |packet| edit_vlan(packet, edit));
        let plain = [8, 0, 0x45, 1, 2, 3, 4, 5];
        let tagged = [0x81, 0, 0x30, 7, 8, 0, 0x45, 1, 2, 3, 4, 5];
        let push = VlanEdit::Push { protocol: 0x8100, id: 7, priority: 5 };
        assert_eq!(vlan(&plain, push).unwrap(), [&[0x81, 0, 0xa0, 7][..], &plain].concat());
        assert_eq!(vlan(&tagged, VlanEdit::Pop).unwrap(), plain);
        assert_eq!(vlan(&plain, VlanEdit::Pop).unwrap(), plain);
        let modify = |priority| VlanEdit::Modify { protocol: 0x88a8, id: 9, priority };
        assert_eq!(vlan(&tagged, modify(None)).unwrap()[..4], [0x88, 0xa8, 0x30, 9]);
        assert_eq!(vlan(&tagged, modify(Some(6))).unwrap()[..4], [0x88, 0xa8, 0xd0, 9]);
        assert_eq!(vlan(&plain, modify(None)).unwrap(), plain);
        assert_eq!(vlan(&[0x81], VlanEdit::Pop), None);
    }

    #[test]
    fn labels() {
        let mpls = |frame: &[u8], edit| edited(frame, |packet| edit_label(packet, edit));
        let plain = [8, 0, 0x45, 1, 2, 3, 4, 5];
        let one = [0x88, 0x47, 0, 1, 0x01, 64, 0x45, 1, 2, 3, 4, 5];
        let fields = MplsFields { label: Some(16), ttl: Some(64), ..MplsFields::default() };
        let push = MplsEdit::Push { protocol: 0x8847, label: fields };
        assert_eq!(mpls(&plain, push).unwrap(), one);
        assert_eq!(mpls(&one, push).unwrap()[..10], [0x88, 0x47, 0, 1, 0, 64, 0, 1, 0x01, 64]);
        assert_eq!(mpls(&one, MplsEdit::Pop { protocol: 0x0800 }).unwrap(), plain);
        assert_eq!(mpls(&plain, MplsEdit::Pop { protocol: 0x0800 }).unwrap(), plain);
        let change = MplsFields { class: Some(5), bottom: Some(false), ..MplsFields::default() };
        assert_eq!(mpls(&one, MplsEdit::Modify(change)).unwrap()[..6], [0x88, 0x47, 0, 1, 0x0a, 64]);
        assert_eq!(mpls(&one, MplsEdit::DecrementTtl).unwrap()[..6], [0x88, 0x47, 0, 1, 1, 63]);
        let mut last = one;
        last[5] = 1;
        assert_eq!(mpls(&last, MplsEdit::DecrementTtl), None);
        assert_eq!(mpls(&plain, MplsEdit::Modify(change)), None);
        // Behind a tag.
        let tagged = [&[0x81, 0, 0, 7][..], &plain].concat();
        assert_eq!(mpls(&tagged, push).unwrap(), [&[0x81, 0, 0, 7][..], &one].concat());
    }

    /// Ethernet over MPLS: `mpls mac_push … action vlan push_eth …`, and the header taken off.
    #[test]
    fn packets_without_a_header() {
        let frame = [&MACS[..], &[8, 0, 0x45, 1, 2, 3]].concat();
        let mut pool = Pool::new(1);
        let mut packet = pool.take().unwrap();
        packet.set(HEADROOM, &frame).unwrap();
        let fields = MplsFields { label: Some(16), ttl: Some(64), ..MplsFields::default() };
        let label = MplsEdit::MacPush { protocol: 0x8847, label: fields };
        edit_label(&mut packet, label).unwrap();
        assert_eq!((packet.tag().headless, &packet.bytes()[4..]), (0x8847, &frame[..]));
        assert_eq!(packet.bytes()[..4], [0, 1, 1, 64]);
        edit_label(&mut packet, MplsEdit::DecrementTtl).unwrap();
        edit_label(&mut packet, label).unwrap();
        edit_label(&mut packet, MplsEdit::Pop { protocol: 0x8847 }).unwrap();
        let header = VlanEdit::PushEthernet { destination: [3; 6], source: [4; 6] };
        edit_vlan(&mut packet, header).unwrap();
        let outer = [3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 0x88, 0x47, 0, 1, 1, 63];
        assert_eq!((packet.tag().headless, packet.bytes()), (0, &[&outer, &frame[..]].concat()[..]));
        packet.set(HEADROOM, &frame).unwrap();
        edit_vlan(&mut packet, VlanEdit::PopEthernet).unwrap();
        assert_eq!((packet.tag().headless, packet.bytes()), (0x0800, &[0x45, 1, 2, 3][..]));
        assert_eq!(edit_vlan(&mut packet, VlanEdit::PopEthernet), None);
        assert_eq!(edit_vlan(&mut packet, VlanEdit::Pop), Some(()));
        give_header(&mut packet, [9; 6]).unwrap();
        assert_eq!(packet.bytes(), [&[9; 6][..], &[0; 6], &[8, 0, 0x45, 1, 2, 3]].concat());
    }

    #[test]
    fn room_in_front_is_made() {
        let mut pool = Pool::with_slot_size(1, 64);
        let mut packet = pool.take().unwrap();
        let frame = [&MACS[..], &[8, 0, 1, 2]].concat();
        packet.set(0, &frame).unwrap();
        let push = VlanEdit::Push { protocol: 0x8100, id: 7, priority: 0 };
        (0..12).for_each(|_| assert_eq!(edit_vlan(&mut packet, push), Some(())));
        assert_eq!(edit_vlan(&mut packet, push), None);
        assert_eq!((packet.len(), &packet.bytes()[60..]), (64, &[8, 0, 1, 2][..]));
    }
}
