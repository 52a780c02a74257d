//! Links as the packet path has them.

use std::net::IpAddr;

use underpass_engine::buffer::PortId;
use underpass_engine::hmac::Require;
use underpass_engine::tables::LookupId;

use super::{Link, LinkKind, encode};
use crate::Router;
use crate::events::Cause;
use crate::live::Hooked;
use crate::sysctl::{Instance, RPL_SEG_ENABLED, SEG6_ENABLED, SEG6_REQUIRE_HMAC, Variable};
use crate::tc::parent::{Block, Point};

impl Router {
    /// How packets of a link are looked up: in the VRF that it is in, and by the rules that name it.
    pub(crate) fn lookup_of(&mut self, link: &Link) -> LookupId {
        let vrf = self.links.vrf_of(link.index).and_then(Link::vrf_table);
        self.lookup_of_link(link, vrf)
    }

    /// A port behind all that there are.
    pub(super) fn free_port(&self) -> PortId {
        let ports = self.links.iter().flat_map(|link| [link.port(), link.sink]).flatten();
        PortId(ports.map(|port| port.0 + 1).max().unwrap_or(0))
    }

    /// Gives a dummy another port.
    pub(super) fn change_sink(&mut self, dummy: Link) {
        let index = dummy.index;
        self.links.put(dummy);
        self.publish_link(index);
        self.refresh_next_hops(index);
    }

    /// Publishes a link that has changed.
    pub(crate) fn publish_link(&mut self, index: u32) {
        if let Some(link) = self.links.get(index).cloned() {
            let compiled = self.compile_link(&link);
            let coming = compiled.ingress.is_some() || compiled.ingress_qdisc.is_some();
            self.note_hooked(
                index,
                Hooked { ingress: coming, egress: compiled.egress.is_some() || compiled.root.is_some() },
            );
            self.engine.set_link(link.id, compiled);
            self.publish_tunnel(index);
        }
    }

    /// An address for a link that a request makes: one that no station was sold.
    pub(super) fn own_mac(index: u32) -> [u8; 6] {
        let [_, a, b, c] = index.to_be_bytes();
        [0x02, b'u', b'p', a, b, c]
    }

    /// Tells those who listen that a link is no more.
    pub(super) fn notify_link_gone(&mut self, cause: Cause, link: &Link) {
        self.events.notify(cause, libc::RTNLGRP_LINK, libc::RTM_DELLINK, 0, |reply| {
            encode::write_link(reply, link, u32::MAX, None, None);
        });
    }

    /// Tells those who listen of a new link, or of a change of these of its flags.
    pub(super) fn notify_link(&mut self, cause: Cause, index: u32, change: u32) {
        let Some(link) = self.links.get(index) else { return };
        let (count, vrf) = (self.count_link(link), self.vrf_table_over(link));
        self.events.notify(cause, libc::RTNLGRP_LINK, libc::RTM_NEWLINK, 0, |reply| {
            encode::write_link(reply, link, change, Some(count), vrf);
        });
    }

    /// What the packet path needs to know of a link.
    pub(super) fn compile_link(&mut self, link: &Link) -> underpass_engine::tables::Link {
        let (host, shared) = self.host_of(link.index);
        let qdiscs = self.tc.get(link.index).map(|control| control.published()).unwrap_or_default();
        let [root, ingress_qdisc] = qdiscs;
        underpass_engine::tables::Link {
            ifindex: link.index,
            port: link.port().or(link.sink),
            up: link.up() && link.carrier,
            mac: self.receiving_mac(link),
            mtu: link.mtu,
            lookup: self.lookup_of(link),
            forward4: true,
            forward6: true,
            source4: self.source4(link.index),
            vrf: link.vrf_table().is_some(),
            in_vrf: link.vrf_table().or(self.vrf_table_over(link)).is_some(),
            bare4: self.addresses.v4(link.index).is_empty(),
            source6: self.source6(link.index),
            own6: self.own6(link.index),
            host,
            shared,
            kernel: self.kernel_port(link.index),
            addresses: self.vrf_addresses(link.index),
            mpls: self.routes.labels.takes(link.index),
            // Linux: `ipv6_rpl_srh_rcv`, `ipv6_srh_rcv`.
            rpl: self.lower_of_all(&RPL_SEG_ENABLED, link) != 0,
            seg6: self.lower_of_all(&SEG6_ENABLED, link) != 0,
            require_hmac: self.require_hmac(link),
            ioam: self.ioam_link(link),
            ingress: self.filters.hook_of(Block { link: link.index, point: Point::Ingress }),
            egress: self.filters.hook_of(Block { link: link.index, point: Point::Egress }),
            root,
            ingress_qdisc,
            swallows: link.sink.is_some(),
            ifb: link.kind == LinkKind::Ifb,
        }
    }

    /// What is asked of the HMACs of what comes in by a link. Linux: `seg6_hmac_validate_skb`.
    fn require_hmac(&self, link: &Link) -> Require {
        match self.sysctls.value(&SEG6_REQUIRE_HMAC, self.receiving(link)) {
            ..=-1 => Require::Never,
            0 => Require::Present,
            1.. => Require::Always,
        }
    }

    fn lower_of_all(&self, variable: &Variable, link: &Link) -> i64 {
        let value = |instance| self.sysctls.value(variable, instance);
        value(Instance::All).min(value(self.receiving(link)))
    }

    /// Whose values hold for what comes in by a link. Linux takes what comes in by a link of a VRF for coming in by
    /// the VRF's device.
    fn receiving(&self, link: &Link) -> Instance {
        let vrf = link.master.filter(|&master| self.links.vrf_of(master).is_some());
        Instance::Link(vrf.unwrap_or(link.index))
    }

    /// Of a link in a VRF of the router's: the addresses of the VRF.
    pub(crate) fn vrf_addresses(&self, index: u32) -> Option<Box<[IpAddr]>> {
        if !self.in_own_vrf(index) {
            return None;
        }
        let vrf = self.domain_of(index);
        let inside = self.addresses.iter().filter(|own| self.domain_of(own.link) == vrf);
        Some(inside.map(|own| own.local).collect())
    }

    pub(crate) fn is_only_one(&self, address: IpAddr) -> bool {
        self.addresses.iter().filter(|other| other.local == address).count() == 1
    }

    /// The addresses of links have changed: who answers pings in VRFs may have, too.
    pub(crate) fn vrf_addresses_changed(&mut self) {
        if !self.has_own_slaves() {
            return;
        }
        let own = self.links.iter().filter(|link| self.in_own_vrf(link.index));
        let own: Vec<u32> = own.map(|link| link.index).collect();
        own.into_iter().for_each(|index| self.publish_link(index));
    }
}
