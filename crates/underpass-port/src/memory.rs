//! A port of prepared packets: what it sends is made of templates, round and round, and what it is
//! handed goes back to the pool.

use underpass_engine::buffer::{HEADROOM, NoRoom, Packet, Pool, PortId};

/// Templates that become packets, each in its turn.
pub struct Generator {
    templates: Vec<Box<[u8]>>,
    next: usize,
    ingress: PortId,
}

impl Generator {
    /// A generator of these packets, which come in by `ingress`. They may be of different lengths.
    pub fn new(templates: Vec<Box<[u8]>>, ingress: PortId) -> Self {
        Self { templates, next: 0, ingress }
    }

    /// How many different packets there are.
    pub fn templates(&self) -> &[Box<[u8]>] {
        &self.templates
    }

    /// Starts again with the first template.
    pub fn rewind(&mut self) {
        self.next = 0;
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
            let Some(template) = self.templates.get(self.next) else { return Ok(received) };
            let Some(mut packet) = pool.take() else { return Ok(received) };
            if let Err(error) = packet.set(HEADROOM, template) {
                pool.give(packet);
                return Err(error);
            }
            packet.ingress = self.ingress;
            self.next = if self.next + 1 == self.templates.len() { 0 } else { self.next + 1 };
            into(packet);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_come_in_turn_and_the_pool_bounds_them() {
        let mut pool = Pool::new(3);
        let templates = vec![vec![1; 60].into_boxed_slice(), vec![2; 80].into_boxed_slice()];
        let mut generator = Generator::new(templates, PortId(7));
        let mut packets = Vec::new();
        assert_eq!(generator.receive(&mut pool, 8, |p| packets.push(p)), Ok(3));
        let seen: Vec<_> = packets.iter().map(|p| (p.bytes()[0], p.len(), p.ingress.0)).collect();
        assert_eq!(seen, [(1, 60, 7), (2, 80, 7), (1, 60, 7)]);
        assert!(packets.iter().all(|p| p.headroom() == HEADROOM));
        packets.drain(..).for_each(|p| pool.give(p));
        assert_eq!(generator.receive(&mut pool, 1, |p| packets.push(p)), Ok(1));
        assert_eq!(packets[0].bytes(), [2; 80]);
    }

    #[test]
    fn a_template_longer_than_a_slot_is_refused_and_the_slot_kept() {
        let mut pool = Pool::new(1);
        let mut generator = Generator::new(vec![vec![0; 5000].into_boxed_slice()], PortId(0));
        assert_eq!(generator.receive(&mut pool, 1, |_| ()), Err(NoRoom));
        assert_eq!(pool.available(), 1);
    }
}
