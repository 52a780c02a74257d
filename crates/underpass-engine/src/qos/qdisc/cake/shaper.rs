//! The shaper: what packets are charged, and when the next one may leave.

use std::sync::Arc;

use super::tin::{Tin, average};
use crate::limiter::Nanos;
use crate::qos::WireLength;
use crate::qos::qdisc::clocks::Clocks;
use crate::tables::{Cake, CakeCells, CakeTin};

/// The lengths of packets, as they came and as they are charged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Where network headers are on average, of 2¹⁶.
    offset: u32,
    pub(super) longest: u16,
    pub(super) shortest: u16,
    pub(super) longest_charged: u16,
    pub(super) shortest_charged: u16,
}

impl Default for Seen {
    fn default() -> Self {
        let shortest = u16::MAX;
        Self { offset: 0, longest: 0, shortest, longest_charged: 0, shortest_charged: shortest }
    }
}

impl Seen {
    /// Where network headers are on average.
    pub(super) fn offset(&self) -> u32 {
        self.offset.wrapping_add(0x8000) >> 16
    }

    /// The lengths begin anew.
    pub(super) fn restart(&mut self) {
        *self = Self { offset: self.offset, ..Self::default() };
    }

    /// Takes note of a packet: `cake_overhead`. `len`: what it is charged without all that.
    pub(super) fn note(&mut self, config: &Cake, wire: &WireLength, len: u32, offset: u32) {
        self.offset = average(self.offset.into(), u64::from(offset << 16), 8) as u32;
        parts(wire, len, |len, _| {
            let (len, charged) = (network_len(config, len, offset), adjusted(config, len, offset));
            let longest = |longest: &mut u16, len: u32| {
                if u32::from(*longest) < len {
                    *longest = len as u16;
                }
            };
            let shortest = |shortest: &mut u16, len: u32| {
                if u32::from(*shortest) > len {
                    *shortest = len as u16;
                }
            };
            longest(&mut self.longest, len);
            shortest(&mut self.shortest, len);
            longest(&mut self.longest_charged, charged);
            shortest(&mut self.shortest_charged, charged);
        });
    }
}

/// The lengths of the packets that one stands for, and how many have each.
fn parts(wire: &WireLength, len: u32, mut each: impl FnMut(u32, u32)) {
    if wire.packets() == 1 {
        return each(len, 1);
    }
    each(wire.longest(), wire.packets() - 1);
    each(wire.last(), 1);
}

fn network_len(config: &Cake, len: u32, offset: u32) -> u32 {
    if config.from_network { len.wrapping_sub(offset) } else { len }
}

/// What a single packet is charged: `cake_calc_overhead`.
fn adjusted(config: &Cake, len: u32, offset: u32) -> u32 {
    let len = network_len(config, len, offset).cast_signed();
    let len = len.wrapping_add(config.overhead.into()).max(config.mpu.into()).cast_unsigned();
    match config.cells {
        CakeCells::None => len,
        CakeCells::Atm => (len.wrapping_add(47) / 48).wrapping_mul(53),
        CakeCells::Ptm => len.wrapping_add(len.wrapping_add(63) / 64),
    }
}

/// What a packet is charged.
pub(super) fn charge(config: &Cake, wire: &WireLength, len: u32, offset: u32) -> u32 {
    let mut charged = 0u32;
    parts(wire, len, |len, times| {
        charged = charged.wrapping_add(adjusted(config, len, offset).wrapping_mul(times));
    });
    charged
}

/// When the next packet may leave. Workers share the time of the rate, and that at which one leaves in any case, though more
/// was dropped than sent.
#[derive(Debug)]
pub(super) struct Shaper {
    pub(super) rate: CakeTin,
    clocks: Arc<Clocks>,
}

impl Shaper {
    pub(super) fn new(rate: CakeTin, clocks: Option<Arc<Clocks>>) -> Self {
        Self { rate, clocks: clocks.unwrap_or_default() }
    }

    /// When a packet may leave, if that is not now.
    pub(super) fn due(&self, now: Nanos) -> Option<Nanos> {
        let due = self.clocks.rate.get().min(self.clocks.ceil.get());
        (due > now).then_some(due)
    }

    /// Nobody waited: what was not used until now is lost.
    pub(super) fn restart(&self, now: Nanos) {
        if self.clocks.rate.not_before(now) {
            self.clocks.ceil.set(now);
        }
    }

    /// A packet of so many bytes has left a tin, or was `dropped`: `cake_advance_shaper`.
    pub(super) fn advance(&self, tin: &mut Tin, len: u32, now: Nanos, dropped: bool) {
        if self.rate.rate == 0 {
            return;
        }
        let own = tin.params.time(len);
        if tin.time_next < now {
            tin.time_next = tin.time_next.wrapping_add(own);
        } else {
            tin.time_next = tin.time_next.max(now.wrapping_add(own));
        }
        let time = self.rate.time(len);
        self.clocks.rate.add(time);
        if !dropped {
            self.clocks.ceil.add(time + (time >> 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::cake_params;

    /// Linux 6.12: what `tc -s qdisc show` says of a UDP packet of 100 bytes behind an Ethernet header.
    #[test]
    fn what_packets_are_charged() {
        let charged = |change: fn(&mut Cake)| {
            let mut config = cake_params();
            change(&mut config);
            charge(&config, &WireLength::of(114), 114, 14)
        };
        assert_eq!(charged(|_| {}), 114);
        assert_eq!(charged(|config| config.from_network = true), 100);
        assert_eq!(charged(|config| (config.from_network, config.overhead) = (true, 38)), 138);
        assert_eq!(charged(|config| (config.overhead, config.mpu) = (-64, 84)), 84);
        // Three cells of 48 bytes; two parts of 64.
        assert_eq!(charged(|config| config.cells = CakeCells::Atm), 159);
        assert_eq!(charged(|config| config.cells = CakeCells::Ptm), 116);
    }

    /// What two of them send together is what one could.
    #[test]
    fn workers_share_the_rate() {
        let config = Cake { rate: 100_000, ..cake_params() };
        let clocks = Arc::new(Clocks::default());
        let workers = [(); 2].map(|()| Shaper::new(config.tin(0), Some(Arc::clone(&clocks))));
        let mut tins = [(); 2].map(|()| Tin::new(config.tin(0)));
        let mut sent = [0; 2];
        for step in 0..1000 {
            let now = 5_000_000_000 + step * 1_000_000;
            if step == 0 {
                workers.iter().for_each(|worker| worker.restart(now));
            }
            for (at, (worker, tin)) in workers.iter().zip(&mut tins).enumerate() {
                if worker.due(now).is_none() && !(step + at as u64).is_multiple_of(3) {
                    worker.advance(tin, 1000, now, false);
                    sent[at] += 1;
                }
            }
        }
        assert!((99..=102).contains(&(sent[0] + sent[1])) && sent[0] > 20 && sent[1] > 20, "{sent:?}");
    }

    #[test]
    fn lengths_are_those_of_packets() {
        let (mut seen, config) = (Seen::default(), cake_params());
        for len in [100, 60, 1514] {
            seen.note(&config, &WireLength::of(len), len, 14);
        }
        assert_eq!((seen.longest, seen.shortest, seen.longest_charged, seen.offset()), (1514, 60, 1514, 0));
        (0..2000).for_each(|_| seen.note(&config, &WireLength::of(60), 60, 14));
        assert_eq!(seen.offset(), 14);
        seen.restart();
        assert_eq!((seen.longest, seen.shortest, seen.offset()), (0, u16::MAX, 14));
    }
}
