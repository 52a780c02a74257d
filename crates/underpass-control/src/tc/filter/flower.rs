//! `flower`. Linux: `net/sched/cls_flower.c`.

pub(crate) mod change;
mod save;

use std::collections::{BTreeMap, HashMap};

use libc::EINVAL;
use underpass_engine::tables::{FlowerFilter, FlowerKey, Outcome};
use underpass_netlink::tc::TCA_OPTIONS;
use underpass_netlink::tc::flower::{self, Field, Keys, Label, Vlan};
use underpass_netlink::{Attribute, Reply, RequestError};

use super::common::Common;
use crate::link::Links;

/// What the filters of a chain may compare.
#[derive(Debug)]
pub(super) struct Template {
    keys: Keys,
    input: Option<u32>,
    mask: Mask,
}

/// Which bits count, and whether ports are in a range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Mask {
    key: FlowerKey,
    ranges: [bool; 2],
}

/// What a packet must have, where the mask has bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Masked {
    mask: Mask,
    key: FlowerKey,
    ranges: [Option<(u16, u16)>; 2],
}

/// A filter.
#[derive(Debug)]
pub(super) struct Filter {
    keys: Keys,
    input: Option<u32>,
    masked: Masked,
    pub common: Common,
}

/// The filters.
#[derive(Debug, Default)]
pub(super) struct Filters {
    by_handle: BTreeMap<u32, Filter>,
    /// Those that compare the same are one.
    by_key: HashMap<Masked, u32>,
    /// In the order in which they first occurred, with the number of filters that have them.
    masks: Vec<(Mask, usize)>,
    /// No handle below it is free.
    first_free: u32,
}

impl Filters {
    pub fn has(&self, handle: u32) -> bool {
        self.by_handle.contains_key(&handle)
    }

    pub fn get(&self, handle: u32) -> Option<&Filter> {
        self.by_handle.get(&handle)
    }

    pub fn after(&self, last: Option<u32>) -> Option<u32> {
        let from = last.map_or(Some(0), |last| last.checked_add(1))?;
        self.by_handle.range(from..).next().map(|(handle, _)| *handle)
    }

    pub fn into_common(self) -> Vec<Common> {
        self.by_handle.into_values().map(|filter| filter.common).collect()
    }

    pub fn users_of_class(&self, class: u32) -> usize {
        self.by_handle.values().filter(|filter| filter.common.class == class).count()
    }

    pub fn is_empty(&self) -> bool {
        self.by_handle.is_empty()
    }

    fn free(&self) -> Option<u32> {
        let first = self.first_free.max(1);
        let mut free = first;
        for handle in self.by_handle.range(first..).map(|(handle, _)| *handle) {
            if handle != free {
                break;
            }
            free += 1;
        }
        (free <= i32::MAX as u32).then_some(free)
    }

    /// Takes a filter out.
    pub fn take(&mut self, handle: u32) -> Option<Common> {
        let filter = self.by_handle.remove(&handle)?;
        self.first_free = self.first_free.min(handle);
        if self.by_key.get(&filter.masked) == Some(&handle) {
            self.by_key.remove(&filter.masked);
        }
        if let Some(mask) = self.masks.iter_mut().find(|(mask, _)| *mask == filter.masked.mask) {
            mask.1 -= 1;
        }
        self.masks.retain(|(_, users)| *users > 0);
        Some(filter.common)
    }

    fn put(&mut self, handle: u32, filter: Filter) {
        if self.free() == Some(handle) {
            self.first_free = handle;
        }
        self.by_key.insert(filter.masked, handle);
        match self.masks.iter_mut().find(|(mask, _)| *mask == filter.masked.mask) {
            Some((_, users)) => *users += 1,
            None => self.masks.push((filter.masked.mask, 1)),
        }
        self.by_handle.insert(handle, filter);
    }

    /// As the packet path has them.
    pub fn compile(&self, outcome: impl Fn(&Common) -> Outcome) -> Vec<FlowerFilter> {
        let mut filters: Vec<_> = self.by_handle.values().collect();
        if self.masks.len() > 1 {
            let places = self.masks.iter().enumerate().map(|(at, (mask, _))| (*mask, at));
            let places: HashMap<_, _> = places.collect();
            filters.sort_by_cached_key(|filter| places.get(&filter.masked.mask));
        }
        let compile = |filter: &&Filter| FlowerFilter {
            key: filter.masked.key,
            mask: filter.masked.mask.key,
            source_ports: filter.masked.ranges[0],
            destination_ports: filter.masked.ranges[1],
            outcome: outcome(&filter.common),
        };
        filters.iter().map(compile).collect()
    }
}

/// The bits of a label that count, and what they are.
fn label(label: &Label) -> (u32, u32) {
    let parts = [
        (label.label, 12, 0xf_ffff),
        (label.tc.map(u32::from), 9, 7),
        (label.bos.map(u32::from), 8, 1),
        (label.ttl.map(u32::from), 0, 0xff),
    ];
    let there = parts.into_iter().filter_map(|(value, shift, bits)| Some((value?, shift, bits)));
    there.fold((0, 0), |(key, mask), (value, shift, bits)| {
        (key | (value & bits) << shift, mask | bits << shift)
    })
}

fn vlan(vlan: &Vlan) -> [(u16, u16); 2] {
    let id = vlan.id.map_or((0, 0), |id| (id & 0xfff, 0xfff));
    let priority = vlan.priority.map_or((0, 0), |priority| (u16::from(priority & 7) << 13, 0xe000));
    [vlan.tpid.map_or((0, 0), |tpid| (tpid, 0xffff)), (id.0 | priority.0, id.1 | priority.1)]
}

/// What is compared, as the packet path has it: what it must be where bits count, and which.
fn compile(keys: &Keys, input: Option<u32>) -> Masked {
    let (mut key, mut mask) = (FlowerKey::default(), FlowerKey::default());
    for value in &keys.values {
        for (to, bytes) in [(&mut key, &value.value), (&mut mask, &value.mask)] {
            let number = u128::from_be_bytes(*bytes) >> (8 * (16 - value.len.min(16)));
            let mac = || bytes.first_chunk::<6>().copied().unwrap_or_default();
            match value.field {
                Field::MacDestination => to.mac_destination = mac(),
                Field::MacSource => to.mac_source = mac(),
                Field::Protocol => to.protocol = number as u8,
                Field::Tos => to.tos = number as u8,
                Field::Ttl => to.ttl = number as u8,
                Field::Source4 | Field::Source6 => to.source = number,
                Field::Destination4 | Field::Destination6 => to.destination = number,
                Field::SourcePort => to.source_port = number as u16,
                Field::DestinationPort => to.destination_port = number as u16,
                Field::TcpFlags => to.tcp_flags = number as u16,
                Field::IcmpType => to.icmp_type = number as u8,
                Field::IcmpCode => to.icmp_code = number as u8,
                Field::ArpSource => to.arp_source = number as u32,
                Field::ArpTarget => to.arp_target = number as u32,
                Field::ArpOperation => to.arp_operation = number as u8,
                Field::ArpSourceMac => to.arp_source_mac = mac(),
                Field::ArpTargetMac => to.arp_target_mac = mac(),
                Field::TunnelSource4 | Field::TunnelSource6 => to.tunnel_source = number,
                Field::TunnelDestination4 | Field::TunnelDestination6 => to.tunnel_destination = number,
                Field::TunnelKey => to.tunnel_key = number as u32,
                Field::TunnelSourcePort => to.tunnel_source_port = number as u16,
                Field::TunnelDestinationPort => to.tunnel_destination_port = number as u16,
                Field::TunnelTos => to.tunnel_tos = number as u8,
                Field::TunnelTtl => to.tunnel_ttl = number as u8,
            }
        }
        let family = match value.field {
            Field::Source4 | Field::Destination4 => Some((4, false)),
            Field::Source6 | Field::Destination6 => Some((6, false)),
            Field::TunnelSource4 | Field::TunnelDestination4 => Some((4, true)),
            Field::TunnelSource6 | Field::TunnelDestination6 => Some((6, true)),
            _ => None,
        };
        match family {
            Some((family, false)) => (key.family, mask.family) = (family, 0xff),
            Some((family, true)) => (key.tunnel_family, mask.tunnel_family) = (family, 0xff),
            None => {}
        }
    }
    if let Some(ethertype) = keys.ethertype {
        (key.ethertype, mask.ethertype) = (ethertype, 0xffff);
    }
    if let Some(count) = keys.vlans {
        (key.vlans, mask.vlans) = (count, 0xff);
    }
    if let Some((flags, which)) = keys.fragment {
        (key.fragment, mask.fragment) = (flags, which);
    }
    if let Some(link) = input {
        (key.ingress, mask.ingress) = (link, u32::MAX);
    }
    for (tag, inner) in [(&keys.vlan, false), (&keys.inner_vlan, true)] {
        let [tpid, tci] = vlan(tag);
        let (of_key, of_mask) = match inner {
            false => (&mut key.vlan, &mut mask.vlan),
            true => (&mut key.inner_vlan, &mut mask.inner_vlan),
        };
        (of_key.tpid, of_key.tci) = (tpid.0, tci.0);
        (of_mask.tpid, of_mask.tci) = (tpid.1, tci.1);
    }
    for ((one, key), mask) in keys.labels.iter().zip(&mut key.labels).zip(&mut mask.labels) {
        (*key, *mask) = one.as_ref().map_or((0, 0), label);
    }
    let key = key.masked(&mask);
    let ranges = [keys.source_ports, keys.destination_ports];
    Masked { mask: Mask { key: mask, ranges: ranges.map(|range| range.is_some()) }, key, ranges }
}

impl Mask {
    /// Whether it has no bit that a template has not.
    fn fits(&self, template: &Self) -> bool {
        self.key.masked(&template.key) == self.key
            && self.ranges.iter().zip(template.ranges).all(|(own, allowed)| !own || allowed)
    }
}

impl Template {
    /// Reads the options of a chain.
    ///
    /// # Errors
    /// As Linux's `fl_tmplt_create`.
    pub fn parse(links: &Links, options: Option<Attribute<'_>>) -> Result<Self, RequestError> {
        let request = flower::Request::parse(&options.ok_or(RequestError::errno(EINVAL))?)?;
        let keys = request.keys()?;
        let input = links.input_link(request.indev.as_deref())?;
        let mask = compile(&keys, input).mask;
        Ok(Self { keys, input, mask })
    }

    /// Writes `TCA_OPTIONS`.
    pub fn write(&self, links: &Links, reply: &mut Reply<'_>) {
        let nest = reply.nest_unflagged(TCA_OPTIONS);
        self.keys.write(reply, links.input_name(self.input));
        reply.end(nest);
    }
}
