//! The kernel's links, and the ports that are attached to them.

use libc::{IFF_LOOPBACK, IFF_LOWER_UP, IFF_UP};
use underpass_engine::buffer::PortId;
use underpass_engine::tables::LinkId;
use underpass_netlink::{Attribute, Attributes, RequestError, Type, Validate, policy};
use underpass_packet::ethernet;

use super::encode::IFLA_VRF_TABLE;
use super::{Link, LinkKind};
use crate::events::Cause;
use crate::live::VlanDevice;
use crate::request::word;
use crate::{Device, Request, Router};

const ALL: [Type; 66] = policy(&[]);
const INFO: [Type; 6] = policy(&[]);
const VRF: [Type; 2] = policy(&[]);
const VLAN: [Type; 6] = policy(&[]);
/// include/uapi/linux/if_link.h
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;

/// `IFLA_INFO_KIND`, as it is.
fn info_kind(attributes: &Attributes<'_, 66>) -> Result<Option<String>, RequestError> {
    let Some(info) = attributes.get(libc::IFLA_LINKINFO) else { return Ok(None) };
    let info = info.parse_nested(&INFO, Validate::Liberal)?;
    Ok(info.get(libc::IFLA_INFO_KIND).map(|kind| kind.text()))
}

/// `IFLA_INFO_KIND`, and the table if it is a VRF.
fn kind_of(attributes: &Attributes<'_, 66>, flags: u32) -> Result<LinkKind, RequestError> {
    if flags & IFF_LOOPBACK as u32 != 0 {
        return Ok(LinkKind::Loopback);
    }
    let kind = info_kind(attributes)?;
    if kind.as_deref() == Some("ifb") {
        return Ok(LinkKind::Ifb);
    }
    let Some(info) = attributes.get(libc::IFLA_LINKINFO) else { return Ok(LinkKind::Kernel) };
    let info = info.parse_nested(&INFO, Validate::Liberal)?;
    let is_vrf = kind.as_deref() == Some("vrf");
    let Some(data) = info.get(libc::IFLA_INFO_DATA).filter(|_| is_vrf) else { return Ok(LinkKind::Kernel) };
    let table = data.parse_nested(&VRF, Validate::Liberal)?.get(IFLA_VRF_TABLE);
    Ok(table.map_or(LinkKind::Kernel, |table| LinkKind::Vrf { table: table.u32() }))
}

/// The VLAN of a VLAN device of the kernel's whose lower link is in this namespace.
fn vlan_of(attributes: &Attributes<'_, 66>) -> Result<Option<VlanDevice>, RequestError> {
    let (Some(info), Some(lower)) = (attributes.get(libc::IFLA_LINKINFO), attributes.get(libc::IFLA_LINK))
    else {
        return Ok(None);
    };
    let info = info.parse_nested(&INFO, Validate::Liberal)?;
    let is_vlan = info.get(libc::IFLA_INFO_KIND).is_some_and(|kind| kind.text() == "vlan");
    let elsewhere = attributes.get(libc::IFLA_LINK_NETNSID).is_some();
    let Some(data) = info.get(libc::IFLA_INFO_DATA).filter(|_| is_vlan && !elsewhere) else {
        return Ok(None);
    };
    let data = data.parse_nested(&VLAN, Validate::Liberal)?;
    let protocol = data.get(IFLA_VLAN_PROTOCOL).map_or(ethernet::VLAN, |protocol| protocol.be16());
    let id = data.get(IFLA_VLAN_ID).map(|id| id.u16());
    Ok(id.map(|id| VlanDevice { lower: lower.u32(), protocol, id }))
}

impl Router {
    /// `RTM_NEWLINK` and `RTM_DELLINK` of the kernel.
    pub(crate) fn mirror_link(&mut self, request: &Request<'_>) -> Result<(), RequestError> {
        if request.family() != 0 {
            return Ok(()); // of a bridge about its port, or of IPv6 about its settings
        }
        let (header, attributes) = request.parse::<16, 66>(&ALL, Validate::Liberal)?;
        let word = |at: usize| u32::from_ne_bytes(word(&header, at));
        let (index, flags) = (word(4), word(8));
        if request.message.kind == libc::RTM_DELLINK {
            self.unmirror_link(index);
            return Ok(());
        }
        if let Some(unseen) = self.unseen() {
            unseen.links.remove(&index);
        }
        if let Some(live) = &mut self.live {
            live.devices.tell(index, request.message.body());
            live.devices.notify_kind(index, info_kind(&attributes)?.as_deref());
        }
        let vlan = vlan_of(&attributes)?;
        self.note_vlan(index, vlan);
        let mac = |kind: u16| {
            let bytes =
                attributes.get(kind).and_then(|mac: Attribute<'_>| mac.value.first_chunk::<6>().copied());
            bytes.unwrap_or_default()
        };
        let devices = self.live.as_ref().map(|live| &live.devices);
        let kind = match devices.and_then(|devices| devices.get(index)) {
            Some(Device::Vrf { table }) => LinkKind::Vrf { table },
            Some(Device::Dummy) => LinkKind::Dummy,
            Some(Device::Tunnel(kind)) => LinkKind::Tunnel(kind),
            None => kind_of(&attributes, flags)?,
        };
        let vrf = devices.and_then(|devices| devices.master(index));
        let tunnel = devices.and_then(|devices| devices.tunnel(index));
        let flags = tunnel.map_or(flags, |made| made.flags(flags));
        let tunnel = tunnel.map(|made| Box::new(made.tunnel.clone()));
        let name = attributes.get(libc::IFLA_IFNAME).map(|name| name.text()).unwrap_or_default();
        let old = self.links.get(index).cloned();
        let base = old.clone().unwrap_or_else(|| Link::new(index, name.clone(), kind, [0; 6]));
        let number = |kind: u16| attributes.get(kind).map(|number| number.u32());
        let link = Link {
            name,
            kind,
            flags: flags & !(libc::IFF_RUNNING | IFF_LOWER_UP) as u32,
            carrier: flags & IFF_LOWER_UP as u32 != 0 || flags & IFF_UP as u32 == 0,
            mac: mac(libc::IFLA_ADDRESS),
            broadcast: mac(libc::IFLA_BROADCAST),
            mtu: number(libc::IFLA_MTU).unwrap_or(base.mtu),
            tx_queue_len: number(libc::IFLA_TXQLEN).unwrap_or(base.tx_queue_len),
            master: vrf.or(number(libc::IFLA_MASTER).filter(|&master| master != 0)),
            group: number(libc::IFLA_GROUP).unwrap_or(0),
            tunnel,
            // Its queue is the router's.
            activated: base.activated
                || flags & IFF_UP as u32 != 0 && devices.is_some_and(|devices| devices.get(index).is_some()),
            ..base
        };
        match old {
            None => {
                // A name that moved from a link that is gone, whose end was not told yet.
                let holder = self.links.named(&link.name).map(|holder| holder.index);
                holder.into_iter().for_each(|holder| self.unmirror_link(holder));
                self.add_link(Cause::default(), link);
                self.names_changed();
            }
            Some(old) if old != link => self.change_mirrored_link(&old, link),
            Some(_) => {}
        }
        Ok(())
    }

    pub(super) fn change_mirrored_link(&mut self, old: &Link, new: Link) {
        let (index, up) = (new.index, new.up());
        let renamed = old.name != new.name;
        let forwards = |link: &Link| {
            (
                link.up(),
                link.carrier,
                link.mtu,
                link.mac,
                link.master,
                link.kind,
                (link.attached, link.sink),
                link.tunnel.clone(),
            )
        };
        let role = |link: &Link| (link.master, link.kind, link.attached, link.sink, link.tunnel.clone());
        let other_role = role(old) != role(&new) || new.vrf_table().is_some();
        let changed = forwards(old) != forwards(&new);
        let moved = (old.master, old.kind) != (new.master, new.kind);
        self.links.put(new);
        if changed || renamed {
            self.addresses.locals += 1;
        }
        if moved {
            self.link_moved(old.index);
        }
        if changed || renamed {
            self.publish_link(index);
        }
        if changed && self.in_own_vrf(index) {
            self.refresh_routes(Cause::default(), index);
        }
        if old.up() && !up {
            // IPv4 routes and next-hop objects go without a word.
            self.link_gone_down(Cause::default(), index);
        }
        if changed {
            self.link_changed(index, other_role);
        }
        if renamed {
            self.names_changed();
        }
    }

    /// A link has another master, or has become or ceased to be a VRF.
    fn link_moved(&mut self, index: u32) {
        if self.links.get(index).is_some_and(|link| link.vrf_table().is_some()) {
            self.add_vrf_tables();
        }
        if self.in_own_vrf(index) {
            self.unmirror_connected(index);
        }
        self.refresh_routes(Cause::default(), index);
    }

    /// The kernel has this link no more.
    pub(crate) fn unmirror_link(&mut self, index: u32) {
        let Some(link) = self.links.get(index).cloned() else { return };
        let slaves: Vec<Link> = self.links.slaves(index).cloned().collect();
        for slave in slaves {
            self.change_mirrored_link(&slave.clone(), Link { master: None, ..slave });
        }
        let neighbours: Vec<_> = [false, true]
            .into_iter()
            .flat_map(|v6| self.neighbours.on(index, v6))
            .map(|(address, _)| address)
            .collect();
        neighbours.into_iter().for_each(|address| self.unmirror_neighbour(index, address));
        self.forget_addresses(Cause::default(), index);
        self.link_gone_down(Cause::default(), index);
        self.forget_routes_of(Cause::default(), index);
        self.last_ipv4_gone(index);
        if let Some(live) = &mut self.live {
            live.devices.forget(index);
            live.advertised.forget(index);
        }
        self.unpublish_tunnel(index);
        self.forget_link_of_host(index);
        self.links.remove(index);
        self.engine.remove_link(link.id);
        self.sysctls.forget(index);
        self.forget_labels_of(index);
        self.forget_traffic_control(index);
        self.names_changed();
    }

    /// What leaves by a dummy leaves by this port from now on, where nobody takes it.
    ///
    /// # Errors
    /// `ENODEV` if there is no such link.
    pub fn swallow(&mut self, index: u32, port: PortId) -> Result<(), RequestError> {
        let old = self.links.get(index).cloned().ok_or(RequestError::errno(libc::ENODEV))?;
        if old.sink != Some(port) {
            self.change_mirrored_link(&old, Link { sink: Some(port), ..old.clone() });
        }
        Ok(())
    }

    /// Packets of a link come and go by this port from now on; `None`: by none.
    ///
    /// # Errors
    /// `ENODEV` if there is no such link.
    pub fn attach(&mut self, index: u32, port: Option<PortId>) -> Result<(), RequestError> {
        let old = self.links.get(index).cloned().ok_or(RequestError::errno(libc::ENODEV))?;
        if old.attached != port {
            self.change_mirrored_link(&old, Link { attached: port, ..old.clone() });
            self.engine.reclaim();
        }
        Ok(())
    }

    /// The interface index of a link that the packet path names.
    pub fn index_of(&self, id: LinkId) -> Option<u32> {
        self.links.iter().find(|link| link.id == id).map(|link| link.index)
    }

    /// The link with an interface index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(index)
    }
}
