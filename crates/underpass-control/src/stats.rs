//! `RTM_GETSTATS`: counters of a link, or of all. Linux: `rtnl_stats_get`, `rtnl_stats_dump`.

use libc::{EINVAL, ENODEV, RTM_NEWSTATS};
use underpass_netlink::{Replies, Reply, RequestError};

use crate::dump::{Chunk, Dump, More, Outcome};
use crate::link::Link;
use crate::link::encode::count_link;
use crate::request::word;
use crate::{Request, Router};

/// `IFLA_STATS_LINK_64`: a `struct rtnl_link_stats64`.
const LINK_64: u16 = 1;
/// `IFLA_STATS_UNSPEC`, which pads.
const PAD: u16 = 0;
/// `IFLA_STATS_AF_SPEC`: what address families have counted, in an attribute of the number of each.
const AF_SPEC: u16 = 5;
/// `MPLS_STATS_LINK`: a `struct mpls_link_stats`.
const MPLS_LINK: u16 = 1;
/// Bits of the filter mask that Linux knows: `IFLA_STATS_LINK_64` to `IFLA_STATS_AF_SPEC`.
const KNOWN: u32 = 0x1f;
const MASK_AF_SPEC: u32 = 1 << (AF_SPEC - 1);

/// `struct if_stats_msg`: the link (0 for none), and which statistics are wanted.
fn parse(request: &Request<'_>, dump: bool) -> Result<(u32, u32), RequestError> {
    let invalid = |text| RequestError::new(EINVAL, text);
    let header = request.fixed::<12>().map_err(|_| invalid("Invalid header for stats dump"))?;
    let word = |at: usize| u32::from_ne_bytes(word(&header, at));
    let (link, mask) = (word(4), word(8));
    if request.strict {
        if header[1..4] != [0; 3] || dump && link != 0 {
            return Err(invalid("Invalid values in header for stats dump request"));
        }
        if mask & !KNOWN != 0 {
            return Err(invalid("Invalid stats requested through filter mask"));
        }
    }
    Ok((link, mask))
}

fn write(reply: &mut Reply<'_>, router: &Router, link: &Link, mask: u32) {
    let mut header = [0; 12];
    header[4..8].copy_from_slice(&link.index.to_ne_bytes());
    header[8..].copy_from_slice(&mask.to_ne_bytes());
    reply.fixed(&header);
    if mask & 1 << (LINK_64 - 1) != 0 {
        let stats: Vec<u8> =
            count_link(router, link).stats64().iter().flat_map(|n| n.to_ne_bytes()).collect();
        reply.align_64(PAD);
        reply.attribute(LINK_64, &stats);
    }
    if mask & MASK_AF_SPEC != 0 {
        let families = reply.nest_unflagged(AF_SPEC);
        let mpls = reply.nest_unflagged(libc::AF_MPLS as u16);
        let count = router.engine.mpls_count(link.id);
        // Nothing that is to be sent with labels is dropped there.
        let tx_dropped = 0;
        let stats = [
            count.rx_packets,
            count.tx_packets,
            count.rx_bytes,
            count.tx_bytes,
            count.rx_errors,
            count.tx_errors,
            count.rx_dropped,
            tx_dropped,
            count.rx_noroute,
        ];
        reply.align_64(PAD);
        reply.attribute(MPLS_LINK, &stats.map(u64::to_ne_bytes).concat());
        reply.end(mpls);
        reply.end(families);
    }
}

/// Whether a request is about what address families have counted, and nothing else: that the router knows.
pub(crate) fn is_own(request: &Request<'_>) -> bool {
    request.fixed::<12>().is_ok_and(|header| header[8..] == MASK_AF_SPEC.to_ne_bytes())
}

/// Answers a question about one link.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let (link, mask) = parse(request, false)?;
    if link == 0 {
        return Err(RequestError::errno(EINVAL));
    }
    let link = router.links.get(link).ok_or(RequestError::errno(ENODEV))?;
    if mask == 0 {
        return Err(RequestError::new(EINVAL, "Filter mask must be set for stats get"));
    }
    replies.message(RTM_NEWSTATS, 0, request.reply_to(), |reply| write(reply, router, link, mask))?;
    Ok(Outcome::Done)
}

struct StatsDump {
    last: u32,
    mask: u32,
}

/// Starts a dump of the statistics of all links.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (_, mask) = parse(request, true)?;
    if mask == 0 {
        return Err(RequestError::new(EINVAL, "Filter mask must be set for stats dump"));
    }
    Ok(Outcome::Dump(Box::new(StatsDump { last: 0, mask })))
}

impl Dump for StatsDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some(link) = router.links.after(self.last) else { return Ok(More::No) };
        self.last = link.index;
        out.message(RTM_NEWSTATS, |reply| write(reply, router, link, self.mask))?;
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.links.generation
    }
}
