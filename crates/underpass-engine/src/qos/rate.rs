//! How long a packet takes at a rate: Linux's `psched_ratecfg_precompute` and `psched_l2t_ns`.

const SECOND: u64 = 1_000_000_000;

/// How many bytes of the wire a packet takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LinkLayer {
    /// As many as it has.
    #[default]
    Ethernet,
    /// Cells of 53 bytes, each for 48.
    Atm,
}

/// A rate: `struct tc_ratespec` with its 64-bit extension.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateConfig {
    /// Bytes a second.
    pub bytes_per_second: u64,
    /// Bytes that each packet counts more; a 16-bit two's complement is not taken as negative, as in Linux.
    pub overhead: u16,
    /// Bytes that each packet counts at least.
    pub mpu: u16,
    /// How bytes are counted.
    pub link_layer: LinkLayer,
}

/// A rate, ready to multiply by: `struct psched_ratecfg`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rate {
    mult: u32,
    shift: u8,
    overhead: u32,
    mpu: u32,
    atm: bool,
}

impl RateConfig {
    /// The length of the packet that takes so many nanoseconds, rounded down: `psched_ns_t2l`.
    pub fn bytes(&self, nanos: u64) -> u64 {
        let mut bytes = nanos.wrapping_mul(self.bytes_per_second) / SECOND;
        if self.link_layer == LinkLayer::Atm {
            bytes = bytes / 53 * 48;
        }
        bytes.saturating_sub(self.overhead.into())
    }
}

impl Rate {
    /// The rate of bytes.
    pub fn new(config: RateConfig) -> Self {
        let (mult, shift) = reciprocal(config.bytes_per_second);
        let atm = config.link_layer == LinkLayer::Atm;
        Self { mult, shift, overhead: config.overhead.into(), mpu: config.mpu.into(), atm }
    }

    /// The rate of so many packets a second: the time of a packet is [`Self::nanos`] of 1.
    pub fn of_packets(per_second: u64) -> Self {
        let (mult, shift) = reciprocal(per_second);
        Self { mult, shift, ..Self::default() }
    }

    /// Multiplier, shift, overhead and the least length, as programs in the kernel compute with them. `None`: they do not
    /// count cells.
    pub(crate) fn in_kernel(&self) -> Option<[u32; 4]> {
        (!self.atm).then_some([self.mult, self.shift.into(), self.overhead, self.mpu])
    }

    /// Whether bytes are counted in cells.
    #[inline(always)]
    pub(crate) fn is_atm(&self) -> bool {
        self.atm
    }

    /// Nanoseconds that `bytes` take, rounded down.
    #[inline(always)]
    pub fn nanos(&self, bytes: u32) -> u64 {
        if self.atm {
            return self.time(self.counted(bytes).div_ceil(48).wrapping_mul(53));
        }
        self.nanos_by_bytes(bytes)
    }

    /// The same where bytes are not counted in cells.
    #[inline(always)]
    pub(crate) fn nanos_by_bytes(&self, bytes: u32) -> u64 {
        self.time(self.counted(bytes))
    }

    #[inline(always)]
    fn counted(&self, bytes: u32) -> u32 {
        bytes.wrapping_add(self.overhead).max(self.mpu)
    }

    #[inline(always)]
    fn time(&self, counted: u32) -> u64 {
        (u64::from(counted) * u64::from(self.mult)) >> self.shift
    }
}

/// The nanoseconds of one, as a multiplier of 32 bits and a shift: `psched_ratecfg_precompute__`.
fn reciprocal(per_second: u64) -> (u32, u8) {
    if per_second == 0 {
        return (1, 0);
    }
    let (mut factor, mut shift) = (SECOND, 0);
    loop {
        let mult = (factor / per_second) as u32;
        if mult & 1 << 31 != 0 || factor & 1 << 63 != 0 {
            return (mult, shift);
        }
        factor <<= 1;
        shift += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bytes_per_second: u64) -> Rate {
        Rate::new(RateConfig { bytes_per_second, ..RateConfig::default() })
    }

    /// The time of a packet is exact to a nanosecond at every rate that has at least one nanosecond a packet.
    #[test]
    fn times_of_packets() {
        for (rate, bytes, nanos) in [
            (125_000, 1500, 12_000_000),
            (125_000_000, 64, 512),
            (1_250_000_000, 64, 51),
            (1_250_000_000, 1514, 1211),
            (12_500_000_000, 1500, 120),
            (1, 100, 100 * SECOND),
            (100_000_000_000, 9000, 90),
        ] {
            let found = at(rate).nanos(bytes);
            assert!(found == nanos || found + 1 == nanos, "{rate} {bytes}: {found}");
        }
        assert_eq!(Rate::of_packets(1000).nanos(1), 1_000_000);
        assert_eq!(at(0).nanos(100), 100);
    }

    #[test]
    fn what_a_packet_counts() {
        let config = RateConfig { bytes_per_second: 1_000_000, ..RateConfig::default() };
        let with = |overhead, mpu, link_layer| Rate::new(RateConfig { overhead, mpu, link_layer, ..config });
        assert_eq!(with(8, 0, LinkLayer::Ethernet).nanos(100), 108_000);
        assert_eq!(with(8, 200, LinkLayer::Ethernet).nanos(100), 200_000);
        assert_eq!(with(8, 200, LinkLayer::Ethernet).nanos(300), 308_000);
        assert_eq!(with(0, 0, LinkLayer::Atm).nanos(48), 53_000);
        assert_eq!(with(0, 0, LinkLayer::Atm).nanos(49), 106_000);
        assert_eq!(with(8, 96, LinkLayer::Atm).nanos(1), 106_000);
        assert_eq!(RateConfig { overhead: 8, ..config }.bytes(108_000), 100);
        assert_eq!(RateConfig { link_layer: LinkLayer::Atm, ..config }.bytes(106_500), 96);
    }
}
