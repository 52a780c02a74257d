//! VXLANs and Geneve devices, compiled for the packet path.

use underpass_engine::tables::{self, SourcePort, TunnelUdp};
use underpass_netlink::tunnel::geneve::DontFragment;
use underpass_netlink::tunnel::{self, Geneve, Kind, Vxlan};

/// What makes outer packets UDP datagrams. Linux: `udp_flow_src_port`.
pub(super) fn vxlan_udp(vxlan: &Vxlan, six: bool) -> TunnelUdp {
    let (first, last) = vxlan.source_ports;
    TunnelUdp {
        gue: false,
        source_port: if first < last { SourcePort::Flow { first, last } } else { SourcePort::LOCAL },
        destination_port: vxlan.port,
        checksum: if six { !vxlan.unsummed6 } else { vxlan.checksum },
        remote_checksum: false,
    }
}

/// What makes a tunnel a VXLAN, if it is one.
pub(super) fn vxlan(parameters: &tunnel::Tunnel) -> Option<tables::Vxlan> {
    let vxlan = parameters.vxlan?;
    // Linux: `vxlan_xmit_one`.
    let ttl_to_groups = (parameters.ttl == 0 && !vxlan.ttl_inherit).then_some(1);
    Some(tables::Vxlan { vni: vxlan.vni, takes_unsummed: vxlan.takes_unsummed6, ttl_to_groups })
}

/// What makes outer packets UDP datagrams. Linux: `geneve_xmit_skb`, which has flows distinguished by all source ports.
pub(super) const fn geneve_udp(geneve: &Geneve) -> TunnelUdp {
    TunnelUdp {
        gue: false,
        source_port: SourcePort::Flow { first: 1, last: u16::MAX },
        destination_port: geneve.port,
        checksum: geneve.checksum,
        remote_checksum: false,
    }
}

/// Whether Don't Fragment of what is inside counts for nothing. Without a frame Linux looks for an EtherType where there
/// is none.
pub(super) fn ignores_df(parameters: &tunnel::Tunnel, geneve: &Geneve) -> bool {
    geneve.dont_fragment != DontFragment::Inherit || parameters.kind == Kind::GeneveIp
}

/// What the packet path has of a device.
pub(super) fn geneve(parameters: &tunnel::Tunnel) -> Option<tables::Geneve> {
    let Geneve { vni, takes_unsummed6, .. } = parameters.geneve?;
    Some(tables::Geneve { vni, takes_unsummed: takes_unsummed6 })
}
