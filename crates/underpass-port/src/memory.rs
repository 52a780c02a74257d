//! A port of prepared packets: what it receives is made of templates, round and round.

use underpass_engine::buffer::{HEADROOM, NoRoom, Packet, Pool};

/// Templates that become packets, each in its turn.
pub struct Generator {
    /// The templates, one behind the other.
    bytes: Vec<u8>,
    /// Where each begins and ends.
    spans: Vec<(u32, u32)>,
    next: usize,
    patches: Option<Patches>,
    headroom: usize,
}

/// Bytes that are written over the templates, in their own turn: so a few templates make packets with
/// many more addresses than would fit into a cache.
pub struct Patches {
    offset: usize,
    length: usize,
    values: Vec<[u8; 16]>,
    next: usize,
}

impl Patches {
    /// The first `length` bytes of each value, 16 at most, in place of what is at `offset` of a frame.
    pub fn new(offset: usize, length: usize, values: Vec<[u8; 16]>) -> Self {
        Self { offset, length: length.min(16), values, next: 0 }
    }
}

impl Generator {
    /// A generator of these packets. They may be of different lengths.
    pub fn new<T: AsRef<[u8]>>(templates: impl IntoIterator<Item = T>, patches: Option<Patches>) -> Self {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        for template in templates {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(template.as_ref());
            spans.push((start, bytes.len() as u32));
        }
        Self { bytes, spans, next: 0, patches, headroom: HEADROOM }
    }

    /// The same with so many bytes in front of each packet instead of [`HEADROOM`].
    #[must_use]
    pub fn with_headroom(self, headroom: usize) -> Self {
        Self { headroom, ..self }
    }

    /// Starts again with the first template and the first patch.
    pub fn rewind(&mut self) {
        self.next = 0;
        if let Some(patches) = &mut self.patches {
            patches.next = 0;
        }
    }

    /// Hands up to `count` packets to `into`: the next templates, each copied into a slot of the pool.
    /// Fewer if the pool runs dry. Returns how many there were.
    ///
    /// # Errors
    /// [`NoRoom`] if a template is longer than the slots' room behind the headroom.
    #[inline]
    pub fn receive(
        &mut self,
        pool: &mut Pool,
        count: usize,
        mut into: impl FnMut(Packet),
    ) -> Result<usize, NoRoom> {
        for received in 0..count {
            let Some(&(start, end)) = self.spans.get(self.next) else { return Ok(received) };
            let Some(mut packet) = pool.take() else { return Ok(received) };
            if let Err(error) = packet.set(self.headroom, &self.bytes[start as usize..end as usize]) {
                pool.give(packet);
                return Err(error);
            }
            self.next = if self.next + 1 == self.spans.len() { 0 } else { self.next + 1 };
            if let Some(patches) = &mut self.patches {
                patches.apply(packet.bytes_mut());
            }
            into(packet);
        }
        Ok(count)
    }
}

impl Patches {
    /// Writes the next value into a frame that is long enough for it.
    #[inline]
    fn apply(&mut self, frame: &mut [u8]) {
        let Some(value) = self.values.get(self.next) else { return };
        if let Some(place) = frame.get_mut(self.offset..self.offset + self.length) {
            place.copy_from_slice(&value[..self.length]);
        }
        self.next = if self.next + 1 == self.values.len() { 0 } else { self.next + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_come_in_turn_and_the_pool_bounds_them() {
        let mut pool = Pool::new(3);
        let mut generator = Generator::new([vec![1; 60], vec![2; 80]], None);
        let mut packets = Vec::new();
        assert_eq!(generator.receive(&mut pool, 8, |p| packets.push(p)), Ok(3));
        let seen: Vec<_> = packets.iter().map(|p| (p.bytes()[0], p.len())).collect();
        assert_eq!(seen, [(1, 60), (2, 80), (1, 60)]);
        assert!(packets.iter().all(|p| p.headroom() == HEADROOM));
        packets.drain(..).for_each(|p| pool.give(p));
        assert_eq!(generator.receive(&mut pool, 1, |p| packets.push(p)), Ok(1));
        assert_eq!(packets[0].bytes(), [2; 80]);
    }

    #[test]
    fn patches_come_in_their_own_turn() {
        let mut pool = Pool::new(4);
        let patches = Patches::new(1, 2, vec![[7; 16], [8; 16], [9; 16]]);
        let mut generator = Generator::new([[1; 4], [2; 4]], Some(patches));
        let mut seen = Vec::new();
        assert_eq!(generator.receive(&mut pool, 4, |p| seen.push(p.bytes().to_vec())), Ok(4));
        assert_eq!(seen, [[1, 7, 7, 1], [2, 8, 8, 2], [1, 9, 9, 1], [2, 7, 7, 2]]);
    }

    #[test]
    fn a_template_longer_than_a_slot_is_refused_and_the_slot_kept() {
        let mut pool = Pool::new(1);
        let mut generator = Generator::new([vec![0; 5000]], None);
        assert_eq!(generator.receive(&mut pool, 1, |_| ()), Err(NoRoom));
        assert_eq!(pool.available(), 1);
    }
}
