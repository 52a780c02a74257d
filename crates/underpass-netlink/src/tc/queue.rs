//! Plain queues: `pfifo`, `bfifo`, `pfifo_fast` and `prio`. Linux: `net/sched/sch_fifo.c`, `sch_prio.c`,
//! `sch_generic.c`.

use libc::EINVAL;

use super::{TCA_OPTIONS, word};
use crate::attribute::Attribute;
use crate::{Reply, RequestError};

/// Reads the limit of a `pfifo` (packets) or `bfifo` (bytes); `None` if the request has none.
///
/// # Errors
/// `EINVAL` if it is too short.
pub fn parse_limit(options: Option<Attribute<'_>>) -> Result<Option<u32>, RequestError> {
    match options {
        Some(options) if options.value.len() < 4 => Err(RequestError::errno(EINVAL)),
        options => Ok(options.map(|options| options.u32())),
    }
}

/// Writes the limit of a `pfifo` or `bfifo`.
pub fn write_limit(reply: &mut Reply<'_>, limit: u32) {
    reply.u32(TCA_OPTIONS, limit);
}

/// `TC_PRIO_MAX` + 1: so many priorities a packet can have.
pub const PRIORITIES: usize = 16;
/// `TCQ_PRIO_BANDS`: most bands of a `prio`.
const MAX_BANDS: u32 = 16;

/// `prio`: bands, those of lower numbers served before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prio {
    /// 2 to 16.
    pub bands: u32,
    /// The band, from 0, for each priority of a packet.
    pub map: [u8; PRIORITIES],
}

impl Prio {
    /// What `pfifo_fast` always is.
    pub const FAST: Self = Self { bands: 3, map: [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1] };

    /// Reads `TCA_OPTIONS` of a `prio`.
    ///
    /// # Errors
    /// `EINVAL` without them, for too few or too many bands, and for a band that there is not.
    pub fn parse(options: Option<Attribute<'_>>) -> Result<Self, RequestError> {
        let invalid = RequestError::errno(EINVAL);
        let options = options.ok_or(invalid.clone())?.value;
        let map = options.get(4..).and_then(|map| map.first_chunk()).ok_or(invalid.clone())?;
        let prio = Self { bands: word(options, 0), map: *map };
        let sound =
            (2..=MAX_BANDS).contains(&prio.bands) && map.iter().all(|&band| u32::from(band) < prio.bands);
        if sound { Ok(prio) } else { Err(invalid) }
    }

    /// Writes `TCA_OPTIONS`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        reply.attribute(TCA_OPTIONS, &[&self.bands.to_ne_bytes()[..], &self.map].concat());
    }
}
