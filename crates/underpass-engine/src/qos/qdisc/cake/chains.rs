//! The lists in which the flows of a tin have their turns: each flow is in one of them, or in none.

/// Queues of a tin.
pub(super) const QUEUES: usize = 1024;

/// Flows of which it is not yet known whether they send much; those that do; those that are empty, and are remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Chain {
    New,
    Old,
    Decaying,
}

/// Rings: each has an entry beyond those of flows, where it begins and ends.
#[derive(Debug)]
pub(super) struct Chains {
    next: Box<[u16]>,
    previous: Box<[u16]>,
}

fn head(chain: Chain) -> u16 {
    QUEUES as u16 + chain as u16
}

impl Default for Chains {
    fn default() -> Self {
        let alone: Box<[u16]> = (0..QUEUES as u16 + 3).collect();
        Self { next: alone.clone(), previous: alone }
    }
}

fn get(ring: &[u16], at: u16) -> u16 {
    ring.get(usize::from(at)).copied().unwrap_or_default()
}

fn set(ring: &mut [u16], at: u16, value: u16) {
    if let Some(entry) = ring.get_mut(usize::from(at)) {
        *entry = value;
    }
}

impl Chains {
    /// The flow whose turn it is.
    pub(super) fn first(&self, chain: Chain) -> Option<u16> {
        let first = get(&self.next, head(chain));
        (first != head(chain)).then_some(first)
    }

    /// Takes a flow out of the list that it is in.
    pub(super) fn remove(&mut self, flow: u16) {
        let (previous, next) = (get(&self.previous, flow), get(&self.next, flow));
        set(&mut self.next, previous, next);
        set(&mut self.previous, next, previous);
        set(&mut self.next, flow, flow);
        set(&mut self.previous, flow, flow);
    }

    /// Puts a flow behind all others of a list.
    pub(super) fn append(&mut self, flow: u16, chain: Chain) {
        self.remove(flow);
        let head = head(chain);
        let last = get(&self.previous, head);
        set(&mut self.next, last, flow);
        set(&mut self.previous, flow, last);
        set(&mut self.next, flow, head);
        set(&mut self.previous, head, flow);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn flows_are_where_they_were_put(steps in prop::collection::vec((0u16..6, 0usize..4), 0..60)) {
            let mut chains = Chains::default();
            let mut model: [Vec<u16>; 3] = Default::default();
            for (flow, to) in steps {
                model.iter_mut().for_each(|chain| chain.retain(|other| *other != flow));
                match [Chain::New, Chain::Old, Chain::Decaying].get(to) {
                    Some(chain) => {
                        chains.append(flow, *chain);
                        model[to].push(flow);
                    }
                    None => chains.remove(flow),
                }
                for (chain, model) in [Chain::New, Chain::Old, Chain::Decaying].into_iter().zip(&model) {
                    let mut found = Vec::new();
                    let mut at = get(&chains.next, head(chain));
                    while at != head(chain) {
                        found.push(at);
                        at = get(&chains.next, at);
                    }
                    prop_assert_eq!(&found, model);
                }
            }
        }
    }
}
