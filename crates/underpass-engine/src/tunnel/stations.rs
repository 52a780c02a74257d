//! Behind which other end of a network a station is, and what is learned of that.

use crate::drops::DropReason;
use crate::l2::fdb::{STATIC, Station};
use crate::limiter::Nanos;
use crate::tables::{Behind, LinkId};

/// Nanoseconds of a tick of the stations' clock.
const TICK: Nanos = 1_000_000;

/// A frame from this station has come from the other end of this number, if that has one. Linux: `vxlan_snoop`.
#[inline(always)]
pub(super) fn hears(
    behind: &Behind,
    from: Option<u32>,
    source: [u8; 6],
    now: Nanos,
) -> Result<(), DropReason> {
    if source[0] & 1 != 0 || source == [0; 6] {
        return Err(DropReason::BridgeSource);
    }
    let station = Station::new(source, behind.network);
    let now = now / TICK;
    match behind.stations.find(station) {
        // What a request has said stays as it is.
        Some(entry) if entry.is(STATIC) && Some(entry.link.0) != from => Err(DropReason::BridgeSource),
        Some(entry) if entry.is(STATIC) || Some(entry.link.0) == from && entry.heard == now => Ok(()),
        _ => {
            if let Some(number) = from {
                behind.stations.hear(station, LinkId(number), now);
            }
            Ok(())
        }
    }
}

/// The number of the other end behind which the station is that a frame is for, if that is known. Linux: `vxlan_find_mac`.
#[inline(always)]
pub(super) fn end_of(behind: &Behind, frame: &[u8], now: Nanos) -> Option<u32> {
    let entry = behind.stations.find(Station::new(*frame.first_chunk()?, behind.network))?;
    let expired = behind.ageing != 0 && entry.has_expired(now / TICK, behind.ageing);
    (!expired).then_some(entry.link.0)
}
