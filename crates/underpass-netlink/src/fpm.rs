//! Frames of the Forwarding Plane Manager interface: how FRR's zebra hands its routes over TCP.
//! FRR: `fpm/fpm.h`.
//!
//! ```text
//! |   version: 1  |    type: 1    |   length (with this header)   |
//! |  one or more netlink messages                                 |
//! ```
//!
//! The length is in network byte order. Type 1 is netlink; type 2, protobuf, is not spoken here.

use crate::message::{HEADER as NETLINK_HEADER, Message, messages};

/// The port that zebra connects to if no other is configured.
pub const PORT: u16 = 2620;
/// Length of the frame header, in bytes.
pub const HEADER: usize = 4;
/// Length of the longest frame, in bytes.
pub const LONGEST: usize = u16::MAX as usize;

const VERSION: u8 = 1;
const NETLINK: u8 = 1;

/// Why bytes are no frame. The stream cannot be read on after it: where the next frame begins is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The version is not 1.
    #[error("version {0} of FPM, not 1")]
    Version(u8),
    /// The type is not netlink.
    #[error("an FPM message of type {0}, not netlink")]
    Type(u8),
    /// The length is shorter than the header.
    #[error("an FPM message of {0} bytes")]
    Length(u16),
    /// What is in the frame is not a row of netlink messages that fills it.
    #[error("an FPM message that netlink messages do not fill")]
    Content,
}

/// Cuts a stream into frames, whatever the pieces in which it comes.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// What lies before has been taken.
    taken: usize,
}

impl Decoder {
    /// Appends what was received.
    pub fn push(&mut self, received: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(received);
    }

    /// How many bytes wait for the rest of their frame; more than [`LONGEST`] while whole frames wait.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Takes the next frame: its netlink messages, for [`messages`]. `None` if it is not there as a whole.
    ///
    /// # Errors
    /// [`Malformed`]; the same again at each further call.
    pub fn frame(&mut self) -> Result<Option<&[u8]>, Malformed> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let Some(&[version, kind, high, low]) = rest.first_chunk::<HEADER>() else { return Ok(None) };
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if kind != NETLINK {
            return Err(Malformed::Type(kind));
        }
        let length = u16::from_be_bytes([high, low]);
        if usize::from(length) < HEADER {
            return Err(Malformed::Length(length));
        }
        let Some(content) = rest.get(HEADER..usize::from(length)) else { return Ok(None) };
        if !is_filled(content) {
            return Err(Malformed::Content);
        }
        self.taken += usize::from(length);
        Ok(Some(content))
    }
}

/// Whether netlink messages fill the bytes; the last one's padding may be missing.
fn is_filled(content: &[u8]) -> bool {
    let length = |message: Message<'_>| message.bytes.len().next_multiple_of(4);
    let filled: usize = messages(content).map(length).sum();
    filled >= content.len() && content.len() >= NETLINK_HEADER
}

/// Appends a frame with one netlink message.
///
/// # Errors
/// Gives the length back of a message that is too long for a frame; nothing is then appended.
pub fn write_frame(stream: &mut Vec<u8>, message: &[u8]) -> Result<(), usize> {
    let length = HEADER + message.len().next_multiple_of(4);
    let Ok(on_wire) = u16::try_from(length) else { return Err(message.len()) };
    let end = stream.len() + length;
    stream.extend_from_slice(&[VERSION, NETLINK]);
    stream.extend_from_slice(&on_wire.to_be_bytes());
    stream.extend_from_slice(message);
    stream.resize(end, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A netlink message of so many bytes behind its header.
    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((NETLINK_HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&[0; 10]);
        bytes.extend_from_slice(body);
        bytes
    }

    fn frames(decoder: &mut Decoder) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| decoder.frame().unwrap().map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn refuses_what_is_no_frame() {
        let refused = |bytes: &[u8]| {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            let first = decoder.frame().unwrap_err();
            assert_eq!(decoder.frame().unwrap_err(), first);
            first
        };
        assert_eq!(refused(b"GET / HTTP/1.1"), Malformed::Version(b'G'));
        assert_eq!(refused(&[1, 2, 0, 9]), Malformed::Type(2));
        assert_eq!(refused(&[1, 1, 0, 3]), Malformed::Length(3));
        assert_eq!(refused(&[1, 1, 0, 4]), Malformed::Content);
        let mut short = vec![1, 1, 0, 24];
        short.extend_from_slice(&message(24, &[1, 2, 3, 4]));
        assert_eq!(short.len(), 24);
        short[4] = 24; // longer than the frame
        assert_eq!(refused(&short), Malformed::Content);
        short[4] = 15; // shorter than a header
        assert_eq!(refused(&short), Malformed::Content);
    }

    #[test]
    fn too_long_a_message() {
        let mut stream = vec![7];
        assert_eq!(write_frame(&mut stream, &vec![0; LONGEST - HEADER + 1]), Err(65_532));
        assert_eq!(stream, [7]);
        // The longest that is whole words.
        let body = vec![0; 65_532 - HEADER - NETLINK_HEADER];
        write_frame(&mut stream, &message(24, &body)).unwrap();
        assert_eq!(stream[1..5], [1, 1, 0xff, 0xfc]);
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..8),
            chunk in 1usize..70,
        ) {
            let sent: Vec<_> = bodies.iter().map(|body| message(24, body)).collect();
            let mut stream = Vec::new();
            sent.iter().for_each(|message| write_frame(&mut stream, message).unwrap());
            let (mut decoder, mut received) = (Decoder::default(), Vec::new());
            for chunk in stream.chunks(chunk) {
                decoder.push(chunk);
                received.extend(frames(&mut decoder));
            }
            prop_assert_eq!(decoder.pending(), 0);
            let received: Vec<_> = received
                .iter()
                .map(|frame| messages(frame).map(|message| message.bytes.to_vec()).collect::<Vec<_>>())
                .collect();
            prop_assert_eq!(received, sent.into_iter().map(|message| vec![message]).collect::<Vec<_>>());
        }

        #[test]
        fn never_panics_and_ends(
            header in prop_oneof![Just(vec![]), Just(vec![1, 1, 0]), any::<u8>().prop_map(|n| vec![1, 1, 0, n])],
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            chunk in 1usize..100,
        ) {
            let mut decoder = Decoder::default();
            let stream = [header, bytes].concat();
            let mut taken = 0;
            for chunk in stream.chunks(chunk) {
                decoder.push(chunk);
                while let Ok(Some(frame)) = decoder.frame() {
                    prop_assert!(messages(frame).count() > 0);
                    taken += HEADER + frame.len();
                }
            }
            prop_assert_eq!(taken + decoder.pending(), stream.len());
        }
    }
}
