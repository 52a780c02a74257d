//! How a segment leaves by a device whose kernel cuts it.

use arrayvec::ArrayVec;
use underpass_packet::ipv6_ext::Extensions;
use underpass_packet::{ethernet, ipv4, ipv6};

use super::walk::{Layer, Walk, walk_frame};
use super::{Cut, GRE_FIELD, UDP_FIELD, get, put};
use crate::buffer::{Offload, Packet, Pool};

/// Longest headers whose checksums are made those of a part.
const LONGEST: usize = 512;

/// How a segment may leave by a device whose kernel cuts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// As it is: it is no segment, or one that is in no tunnel.
    Whole,
    /// The kernel has to be told of its tunnel.
    Tunnelled(Tunnel),
    /// It has to be cut before.
    Cut,
}

/// Outer headers right before the IP header of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// Their length in bytes.
    pub len: usize,
    /// Whether they are of IPv4.
    pub outer_is_ip4: bool,
    /// Whether the segment is.
    pub inner_is_ip4: bool,
    /// What follows the outer IP header.
    pub over: Over,
    /// Whether UDP or GRE has a checksum, so that [`make_even`] comes first.
    pub summed: bool,
}

/// What is between the outer IP header and a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// Nothing but extension headers.
    Ip,
    /// UDP, and perhaps more.
    Udp,
    /// GRE without a sequence number.
    Gre,
}

/// How a frame may leave by a device whose kernel cuts segments: it knows tunnels by more than virtio tells.
#[inline]
pub fn leaves(packet: &Packet) -> Leaves {
    if packet.has_offload() { leaves_segment(packet) } else { Leaves::Whole }
}

fn leaves_segment(packet: &Packet) -> Leaves {
    let Some(Offload { start, segment: Some(_), .. }) = packet.offload() else { return Leaves::Whole };
    let bytes = packet.bytes();
    match walk_frame(bytes, Some(start)) {
        Some(walk) if walk.layers.len() == 1 && !walk.labelled => Leaves::Whole,
        Some(walk) => tunnel_of(bytes, &walk).map_or(Leaves::Cut, Leaves::Tunnelled),
        None => Leaves::Cut,
    }
}

/// The tunnel that a segment is in. `None`: in none that the kernel can cut, as it may lack the module, or cuts without
/// looking at numbers that differ from one part to the next.
fn tunnel_of(bytes: &[u8], walk: &Walk) -> Option<Tunnel> {
    let (&(outer, at), rest) = walk.layers.split_first()?;
    let (&(inner, inside), between) = rest.split_last()?;
    let known = at == ethernet::Header::LEN && !walk.labelled && matches!(inner, Layer::Ip4 | Layer::Ip6);
    let rest = bytes.get(at..)?;
    let header = match outer {
        Layer::Ip4 => usize::from(rest.first()? & 15) * 4,
        _ => Extensions::new(&ipv6::View::parse(rest).ok()?).upper().ok()?.offset,
    };
    // A fixed header, behind which the kernel looks for the next.
    let fixed = header == if outer == Layer::Ip4 { ipv4::Header::LEN } else { ipv6::Header::LEN };
    let plain = |layer| matches!(layer, Layer::Gre { sequence: None, .. });
    let over = match *between {
        [] if header == inside - at => Over::Ip,
        [(layer, gre)] if plain(layer) && fixed && gre == at + header => Over::Gre,
        [(Layer::Udp, udp)] if fixed && udp == at + header => Over::Udp,
        [(Layer::Udp, udp), (layer, _)] if plain(layer) && fixed && udp == at + header => Over::Udp,
        _ => return None,
    };
    let summed = between.iter().any(|&(layer, at)| match layer {
        Layer::Udp => get(bytes, at + usize::from(UDP_FIELD)) != 0,
        Layer::Gre { checksum, .. } => checksum,
        _ => false,
    });
    known.then_some(Tunnel {
        len: inside - at,
        outer_is_ip4: outer == Layer::Ip4,
        inner_is_ip4: inner == Layer::Ip4,
        over,
        summed,
    })
}

/// A segment that is not of two whole parts, or finds no room for what is left over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uneven;

/// Makes all parts of a segment in a tunnel equally long, and the checksums of its outer headers those of one part.
/// What was left over is the last part, which goes behind.
///
/// A kernel that is told of the tunnel alone repeats the outer checksums in each part. They are right there, as what an
/// outer checksum covers adds up to the same in each: every checksum inside, of IP, of GRE, of TCP or UDP, makes up for
/// what it covers itself, so that nothing counts but the addresses and the lengths. Who gets the segment whole asks for
/// no outer checksum, as long as the one inside is not finished.
///
/// # Errors
/// It has to be cut; nothing is changed.
pub fn make_even(packet: &mut Packet, pool: &mut Pool) -> Result<Option<Packet>, Uneven> {
    let mut cut = Cut::new(packet).ok_or(Uneven)?;
    let payload = cut.walk.end - cut.headers;
    let (parts, left) = (payload / cut.size.max(1), payload % cut.size.max(1));
    let mut headers: ArrayVec<u8, LONGEST> =
        packet.bytes().get(..cut.headers).and_then(|headers| headers.try_into().ok()).ok_or(Uneven)?;
    if parts < 2 || cut.size == 0 {
        return Err(Uneven);
    }
    let mut last = None;
    if left != 0 {
        (cut.done, cut.index) = (parts * cut.size, parts as u16);
        last = Some(cut.next(packet, pool).and_then(Result::ok).ok_or(Uneven)?);
        (cut.done, cut.index) = (0, 0);
    }
    let part = cut.headers + cut.size;
    let inside = cut.mend_upper(&mut headers, part, true);
    cut.mend_outer(&mut headers, part, inside);
    let whole = cut.headers + parts * cut.size;
    packet.truncate(whole);
    let bytes = packet.bytes_mut();
    let inside = cut.mend_upper(bytes, whole, last.is_none());
    cut.mend_outer(bytes, whole, inside);
    for &(layer, at) in &cut.walk.layers {
        let field = match layer {
            Layer::Udp => at + usize::from(UDP_FIELD),
            Layer::Gre { checksum: true, .. } => at + GRE_FIELD,
            _ => continue,
        };
        put(bytes, field, get(&headers, field));
    }
    Ok(last)
}
