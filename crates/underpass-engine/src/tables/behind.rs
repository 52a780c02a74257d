//! Behind which other end of a VXLAN or an SRv6 L2 network a station is. Linux: `drivers/net/vxlan/vxlan_core.c`.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::LookupId;
use crate::l2::fdb::Fdb;

/// The other ends of a tunnel that has several, and what is known of the stations behind them.
#[derive(Clone, Debug)]
pub struct Behind {
    /// Behind which other end a station is: the link of an entry is the number of one of `ends`.
    pub stations: Arc<Fdb>,
    /// The number of the network, of a device with several: stations are in it as those of a bridge are in VLANs.
    pub network: u16,
    /// The other ends that have been seen or named.
    pub ends: Arc<Ends>,
    /// Where frames go of whose station nothing is known: `bridge fdb append 00:00:00:00:00:00 dst …`.
    pub others: Box<[IpAddr]>,
    /// Where other ends than the tunnel's own are looked up.
    pub lookup: LookupId,
    /// Whether stations are learned from what comes in.
    pub learns: bool,
    /// After how many milliseconds a station that was learned is forgotten; 0: never.
    pub ageing: u64,
}

impl PartialEq for Behind {
    fn eq(&self, other: &Self) -> bool {
        let Self { stations, network, ends, others, lookup, learns, ageing } = self;
        Arc::ptr_eq(stations, &other.stations)
            && Arc::ptr_eq(ends, &other.ends)
            && (others, lookup) == (&other.others, &other.lookup)
            && (*network, *learns, *ageing) == (other.network, other.learns, other.ageing)
    }
}

impl Eq for Behind {}

/// How many other ends there may be: three quarters of these.
const ENDS: usize = 1 << 14;

/// How many places are looked at for an address.
const PROBES: usize = 64;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const THERE: u32 = 2;

/// A place of the table: an address, and its number.
#[derive(Default)]
struct Slot {
    state: AtomicU32,
    number: AtomicU32,
    end: End,
}

#[derive(Default)]
struct End {
    high: AtomicU64,
    low: AtomicU64,
}

/// The other ends of all of them, which workers find and add without a lock. One keeps its number for ever; they are counted from
/// 0 on.
pub struct Ends {
    slots: Box<[Slot]>,
    /// By number.
    ends: Box<[End]>,
    /// Of the hash, so that nobody outside can choose addresses that collide.
    seed: RandomState,
    taken: AtomicU32,
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ends({})", self.taken.load(Relaxed))
    }
}

impl Default for Ends {
    fn default() -> Self {
        Self {
            slots: std::iter::repeat_with(Slot::default).take(ENDS).collect(),
            ends: std::iter::repeat_with(End::default).take(ENDS).collect(),
            seed: RandomState::new(),
            taken: AtomicU32::new(0),
        }
    }
}

/// An address as a number: one of IPv4 as it is mapped, RFC 4291 section 2.5.5.2.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl End {
    fn bits(&self) -> u128 {
        u128::from(self.high.load(Relaxed)) << 64 | u128::from(self.low.load(Relaxed))
    }

    fn set(&self, bits: u128) {
        self.high.store((bits >> 64) as u64, Relaxed);
        self.low.store(bits as u64, Relaxed);
    }
}

impl Ends {
    /// The number of an address, which gets one if it has none. `None`: there is no room, or another worker is about to give it
    /// one.
    pub fn number(&self, address: IpAddr) -> Option<u32> {
        let bits = bits(address);
        let first = self.seed.hash_one(bits) as usize;
        for step in 0..PROBES {
            let place = first.wrapping_add(step) & (ENDS - 1);
            let slot = self.slots.get(place)?;
            match slot.state.load(Acquire) {
                THERE if slot.end.bits() == bits => return Some(slot.number.load(Relaxed)),
                THERE => {}
                FREE => {
                    let full = self.taken.load(Relaxed) as usize >= ENDS / 4 * 3;
                    if full || slot.state.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_err() {
                        return None;
                    }
                    // No more workers pass the check at once than there is room behind it.
                    let number = self.taken.fetch_add(1, Relaxed);
                    self.ends.get(number as usize)?.set(bits);
                    slot.end.set(bits);
                    slot.number.store(number, Relaxed);
                    slot.state.store(THERE, Release);
                    return Some(number);
                }
                _ => return None,
            }
        }
        None
    }

    /// The address of a number that [`Ends::number`] has given.
    pub fn address(&self, number: u32) -> Option<IpAddr> {
        let end = self.ends.get(number as usize).filter(|_| number < self.taken.load(Relaxed))?;
        let address = Ipv6Addr::from_bits(end.bits());
        Some(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(n: u32) -> IpAddr {
        match n % 2 {
            0 => Ipv4Addr::from_bits(0xc000_0200 + n).into(),
            _ => Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n)).into(),
        }
    }

    #[test]
    fn an_end_keeps_its_number() {
        let ends = Ends::default();
        let numbers: Vec<_> = (0..1000).map(|n| ends.number(address(n)).unwrap()).collect();
        for (n, number) in (0..).zip(&numbers) {
            assert_eq!((ends.number(address(n)), ends.address(*number)), (Some(*number), Some(address(n))));
        }
        assert_eq!(ends.address(u32::MAX), None);
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    }

    /// However many senders somebody invents.
    #[test]
    fn there_is_a_bound() {
        let ends = Ends::default();
        let known = ends.number(address(0));
        let count = (0..3 * ENDS as u32).filter(|n| ends.number(address(*n)).is_some()).count();
        assert!(count <= ENDS / 4 * 3, "{count}");
        assert!(count > ENDS / 2, "{count}");
        assert_eq!(ends.number(address(0)), known);
    }

    /// Workers that meet the same ends at once agree about their numbers.
    #[test]
    fn workers_agree() {
        let ends = Ends::default();
        let all = std::thread::scope(|scope| {
            let threads = [0, 1, 2]
                .map(|_| scope.spawn(|| (0..500).map(|n| ends.number(address(n))).collect::<Vec<_>>()));
            threads.map(|thread| thread.join().unwrap())
        });
        for n in 0..500 {
            let mut numbers = all.iter().filter_map(|numbers| numbers[n]);
            let first = numbers.next().unwrap();
            assert!(numbers.all(|number| number == first), "{n}");
            assert_eq!(ends.address(first), Some(address(n as u32)));
        }
    }
}
