//! What makes a tunnel, in words.

use underpass_netlink::tunnel::bareudp;
use underpass_netlink::tunnel::{
    self, ENCAP_CSUM, ENCAP_CSUM6, ENCAP_REMCSUM, Encap, GRE_CSUM, GRE_KEY, GRE_SEQ, IP6_ALLOW_LOCAL_REMOTE,
    IP6_CAP_PER_PACKET, IP6_CAP_RCV, IP6_CAP_XMIT, IP6_COPY_DSCP, IP6_IGNORE_ENCAP_LIMIT,
    IP6_INHERIT_FLOWLABEL, IP6_INHERIT_TCLASS, Kind, SixRd,
};

use super::{Tunnel, first_flags};
use crate::Router;
use crate::link::Link;
use crate::save::{Save, Words, protocol};

/// The bits of `flow_info` that are the traffic class, and the flow label.
const TCLASS: u32 = 0x0ff0_0000;
const FLOW_LABEL: u32 = 0xf_ffff;

/// A tunnel as a request makes it, or as it comes with its kind.
pub(crate) fn first(router: &Router, link: &Link, tunnel: &Tunnel) -> Link {
    let parameters = &tunnel.parameters;
    let first = Link::new(link.index, link.name.clone(), link.kind, link.mac);
    let made = super::measure::measured(router, first, tunnel);
    let flags = if tunnel.fallback { first_flags(parameters) as u32 } else { made.flags };
    Link { flags, ..made }
}

/// `type` and the parameters of a kind.
pub(crate) fn kind_words(save: &mut Save<'_>, name: &str, tunnel: &Tunnel) -> Words {
    let Tunnel { parameters, encap, six_rd, max_mtu: _, fallback: _, link_layer: _ } = tunnel;
    let kind = parameters.kind;
    let mut words = Words::new("type");
    words.add(kind.name());
    if let Some(bare) = parameters.bare {
        let bareudp::BareUdp { port, ethertype, source_port_min, multiproto } = bare;
        words
            .pair("dstport", port)
            .pair("ethertype", protocol(ethertype))
            .pair("srcportmin", source_port_min);
        words.when(multiproto, "multiproto");
        return words;
    }
    if let Some(device) = &parameters.vxlan {
        super::vxlan::words(save, &mut words, parameters, device);
        return words;
    }
    if kind == Kind::Srv6L2 {
        return words;
    }
    if let Some(device) = &parameters.geneve {
        super::geneve::words(&mut words, parameters, device);
        return words;
    }
    let tunnel::Tunnel {
        kind: _,
        link,
        local,
        remote,
        ttl,
        tos,
        pmtudisc,
        ignore_df,
        protocol,
        input_flags,
        output_flags,
        input_key,
        output_key,
        external,
        mark,
        encap_limit,
        flow_info,
        flags,
        bare: _,
        vxlan: _,
        geneve: _,
    } = *parameters;
    if external {
        words.add("external");
    }
    words.some("local", (!local.is_unspecified()).then_some(local));
    words.some("remote", (!remote.is_unspecified()).then_some(remote));
    words.some("dev", (link != 0).then(|| save.name(link)));
    if kind.ipv6() {
        words.pair("hoplimit", ttl);
        match flags & IP6_IGNORE_ENCAP_LIMIT {
            0 => words.pair("encaplimit", encap_limit),
            _ => words.pair("encaplimit", "none"),
        };
        match flags & IP6_INHERIT_TCLASS {
            0 => words.pair("tclass", format_args!("{:#x}", (flow_info & TCLASS) >> 20)),
            _ => words.pair("tclass", "inherit"),
        };
        match flags & IP6_INHERIT_FLOWLABEL {
            0 => words.pair("flowlabel", format_args!("{:#x}", flow_info & FLOW_LABEL)),
            _ => words.pair("flowlabel", "inherit"),
        };
        words.when(flags & IP6_COPY_DSCP != 0, "dscp inherit");
        words.when(flags & IP6_ALLOW_LOCAL_REMOTE != 0, "allow-localremote");
        let known = IP6_IGNORE_ENCAP_LIMIT
            | IP6_INHERIT_TCLASS
            | IP6_INHERIT_FLOWLABEL
            | IP6_COPY_DSCP
            | IP6_ALLOW_LOCAL_REMOTE
            | IP6_CAP_XMIT
            | IP6_CAP_RCV
            | IP6_CAP_PER_PACKET;
        if flags & !known != 0 {
            save.left_out(format!("flags {:#x} of the tunnel {name}", flags & !known));
        }
    } else {
        match ttl {
            0 => words.pair("ttl", "inherit"),
            ttl => words.pair("ttl", ttl),
        };
        super::words::tos(&mut words, tos);
        words.add(if pmtudisc { "pmtudisc" } else { "nopmtudisc" });
        words.when(ignore_df, "ignore-df");
    }
    if kind.gre() {
        gre(&mut words, "i", input_flags, input_key);
        gre(&mut words, "o", output_flags, output_key);
    }
    match (kind, protocol) {
        (Kind::Ipip | Kind::Sit | Kind::Ip6Tnl, 0) => words.pair("mode", "any"),
        (Kind::Sit, 41) => words.pair("mode", "ip6ip"),
        (Kind::Ipip | Kind::Sit, 4) => words.pair("mode", "ipip"),
        (Kind::Ipip | Kind::Sit, 137) => words.pair("mode", "mplsip"),
        (Kind::Ip6Tnl, 4) => words.pair("mode", "ipip6"),
        (Kind::Ip6Tnl, 41) => words.pair("mode", "ip6ip6"),
        (Kind::Gre | Kind::GreTap | Kind::Ip6Gre | Kind::Ip6GreTap, _)
        | (Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp | Kind::Srv6L2, _) => &mut words,
        (Kind::Ipip | Kind::Sit | Kind::Ip6Tnl, other) => {
            save.left_out(format!("the protocol {other} of the tunnel {name}"));
            &mut words
        }
    };
    words.some("fwmark", (mark != 0).then_some(mark));
    if kind == Kind::Sit && *six_rd != SixRd::default() {
        let SixRd { prefix, prefix_len, relay_prefix, relay_prefix_len } = six_rd;
        words.pair("6rd-prefix", format_args!("{prefix}/{prefix_len}"));
        words.pair("6rd-relay_prefix", format_args!("{relay_prefix}/{relay_prefix_len}"));
    }
    encap_words(save, &mut words, name, encap);
    words
}

/// One direction of a GRE tunnel: `i` or `o`.
fn gre(words: &mut Words, way: &str, flags: u16, key: u32) {
    words.when(flags & GRE_SEQ != 0, &format!("{way}seq"));
    if flags & GRE_KEY != 0 {
        words.pair(&format!("{way}key"), key);
    }
    words.when(flags & GRE_CSUM != 0, &format!("{way}csum"));
}

fn encap_words(save: &mut Save<'_>, words: &mut Words, name: &str, encap: &Encap) {
    let Encap { kind, flags, source_port, destination_port } = *encap;
    match kind {
        0 => return,
        1 => words.pair("encap", "fou"),
        2 => words.pair("encap", "gue"),
        other => {
            save.left_out(format!("the encapsulation {other} of the tunnel {name}"));
            return;
        }
    };
    match source_port {
        0 => words.pair("encap-sport", "auto"),
        port => words.pair("encap-sport", port),
    };
    words.pair("encap-dport", destination_port);
    words.add(if flags & ENCAP_CSUM != 0 { "encap-csum" } else { "noencap-csum" });
    words.add(if flags & ENCAP_CSUM6 != 0 { "encap-udp6-csum" } else { "noencap-udp6-csum" });
    words.when(flags & ENCAP_REMCSUM != 0, "encap-remcsum");
}
