//! `csum`: makes checksums right that another action has made wrong. Linux: `net/sched/act_csum.c`.
//!
//! ```text
//! TCA_CSUM_PARMS: tc_gen, update_flags (u32)
//! ```

use libc::EINVAL;

use super::{Generic, Times, options};
use crate::RequestError;
use crate::attribute::{Attribute, Type, policy};
use crate::reply::Reply;
use crate::tc::word;

const PARMS: u16 = 1;
const TM: u16 = 2;
const PAD: u16 = 3;

const POLICY: [Type; 4] = policy(&[(PARMS, Type::AtLeast(24))]);

/// Which checksums are made right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Csum {
    /// Index and control action.
    pub generic: Generic,
    /// `TCA_CSUM_UPDATE_FLAG_*`: 1 IPv4 header, 2 ICMP, 4 IGMP, 8 TCP, 16 UDP, 32 UDP-Lite, 64 SCTP.
    pub flags: u32,
}

impl Csum {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `tcf_csum_init`.
    pub fn parse(attribute: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let attributes = options(attribute, &POLICY)?;
        let parms = attributes.get(PARMS).ok_or(RequestError::errno(EINVAL))?;
        Ok(Self { generic: Generic::read(parms.value), flags: word(parms.value, Generic::LEN) })
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>, times: Times) {
        let mut parms = self.generic.bytes();
        parms.extend_from_slice(&self.flags.to_ne_bytes());
        reply.attribute(PARMS, &parms);
        times.write(reply, TM, PAD);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    /// `tc actions add action csum ip4h tcp` as iproute2 6.1 sends it, and one that is too short.
    #[test]
    fn what_is_written_is_read() {
        let generic = Generic { index: 3, action: 2, ..Generic::default() };
        let csum = Csum { generic, flags: 9 };
        let bytes = written(|reply| csum.write(reply, Times::default()));
        assert_eq!(Csum::parse(Some(&Attribute { kind: 2, offset: 0, value: &bytes })), Ok(csum));
        let short = written(|reply| reply.attribute(PARMS, &[0; 20]));
        let short = Csum::parse(Some(&Attribute { kind: 2, offset: 0, value: &short }));
        assert_eq!(short.unwrap_err().errno, libc::ERANGE);
        assert_eq!(Csum::parse(None), Err(RequestError::errno(EINVAL)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Csum::parse(Some(&Attribute { kind: 2, offset: 0, value: &bytes }));
        }
    }
}
