//! Actions as the packet path has them.

use std::sync::Arc;

use underpass_engine::qos::{LinkLayer, RateConfig};
use underpass_engine::tables::{
    Chance, ChanceKind, Checksums, Control, Mirred, MplsEdit, MplsFields, PeditHeader, PeditKey, Police,
    PolicePackets, PoliceRate, Sample, Skbedit, TcAction, TcActionKind, VlanEdit,
};
use underpass_netlink::tc::action::pedit::{self, HeaderType};
use underpass_netlink::tc::action::{Config, mpls, police, vlan};
use underpass_netlink::tc::rate::ATM;
use underpass_netlink::tc::{action, ticks_to_ns};

use super::{Action, Name, tunnel_key};
use crate::Router;

/// `TC_ACT_*` as the packet path knows it.
const fn control(action: i32) -> Control {
    match action {
        action::UNSPEC => Control::Continue,
        action::OK => Control::Ok,
        action::RECLASSIFY => Control::Reclassify,
        action::SHOT => Control::Drop,
        action::PIPE => Control::Pipe,
        action::TRAP => Control::Trap,
        _ => {
            let value = action as u32 & action::VALUE;
            match action as u32 & !action::VALUE {
                opcode if opcode == action::JUMP as u32 => Control::Jump(value),
                opcode if opcode == action::GOTO_CHAIN as u32 => Control::Goto(value),
                // Queued, repeat, redirect: nobody has the packet any more.
                _ => Control::Stolen,
            }
        }
    }
}

fn rate(rate: &police::Rate) -> RateConfig {
    RateConfig {
        bytes_per_second: rate.bytes,
        overhead: rate.spec.overhead,
        mpu: rate.spec.mpu,
        link_layer: if rate.spec.linklayer & 0xf == ATM { LinkLayer::Atm } else { LinkLayer::Ethernet },
    }
}

/// `now`: what time it is for packets.
fn compile_police(police: &action::Police, now: u64) -> Police {
    Police {
        rate: police.rate.map(|limit| PoliceRate {
            rate: rate(&limit),
            burst: ticks_to_ns(police.burst.into()),
            peak: police.peak.as_ref().map(rate),
        }),
        packets: police.packets().map(|(rate, burst)| PolicePackets {
            rate,
            burst: burst.saturating_mul(ticks_to_ns(1)),
            since: now,
        }),
        mtu: police.mtu,
        average: Some(police.average).filter(|average| *average != 0),
        conform: control(police.result),
    }
}

fn compile_mpls(mpls: &action::Mpls) -> MplsEdit {
    let fields =
        MplsFields { label: mpls.label, class: mpls.tc, ttl: mpls.ttl, bottom: mpls.bos.map(|bos| bos != 0) };
    let protocol = mpls.protocol.unwrap_or(0x8847);
    match mpls.check(0).map(|(_, verb)| verb) {
        Ok(mpls::Verb::Pop) => MplsEdit::Pop { protocol },
        Ok(mpls::Verb::Push) => MplsEdit::Push { protocol, label: fields },
        Ok(mpls::Verb::MacPush) => MplsEdit::MacPush { protocol, label: fields },
        Ok(mpls::Verb::DecTtl) => MplsEdit::DecrementTtl,
        _ if mpls.m_action == mpls::Verb::DecTtl as i32 => MplsEdit::DecrementTtl,
        Ok(mpls::Verb::Modify) | Err(_) => MplsEdit::Modify(fields),
    }
}

fn compile_vlan(vlan: &action::Vlan) -> VlanEdit {
    match vlan.check() {
        Ok(vlan::Verb::Push(tag)) => {
            VlanEdit::Push { protocol: tag.protocol, id: tag.id, priority: tag.priority.unwrap_or(0) }
        }
        Ok(vlan::Verb::Modify(tag)) => {
            VlanEdit::Modify { protocol: tag.protocol, id: tag.id, priority: tag.priority }
        }
        Ok(vlan::Verb::PopEthernet) => VlanEdit::PopEthernet,
        Ok(vlan::Verb::PushEthernet { destination, source }) => {
            VlanEdit::PushEthernet { destination, source }
        }
        Ok(vlan::Verb::Pop) | Err(_) => VlanEdit::Pop,
    }
}

fn compile_key(key: &pedit::Key) -> PeditKey {
    let header = key.extended.map_or(HeaderType::Network, |extended| extended.header);
    PeditKey {
        mask: key.mask,
        value: key.value,
        offset: key.offset,
        at: (key.offset_mask != 0).then_some((key.at, key.offset_mask, key.shift)),
        header: match header {
            HeaderType::Network | HeaderType::Ip4 | HeaderType::Ip6 => PeditHeader::Network,
            HeaderType::Ethernet => PeditHeader::Ethernet,
            HeaderType::Tcp => PeditHeader::Tcp,
            HeaderType::Udp => PeditHeader::Udp,
        },
        add: key.extended.is_some_and(|extended| extended.add),
    }
}

/// An action as the packet path has it.
pub(super) fn compile_action(router: &Router, action: &Action) -> TcAction {
    let kind = match &action.config {
        Config::Police(police) => TcActionKind::Police(compile_police(police, router.packet_time())),
        Config::Gact(gact) => TcActionKind::Gact(gact.probability.and_then(|chance| {
            let kind = match chance.kind {
                1 => ChanceKind::Random,
                2 => ChanceKind::Regular,
                _ => return None,
            };
            Some(Chance { kind, one_of: chance.value, control: control(chance.action) })
        })),
        Config::Mirred(mirred) => {
            let way = mirred.way().unwrap_or(action::mirred::MirredAction::EgressRedirect) as u8;
            TcActionKind::Mirred(Mirred {
                link: router.links.get(mirred.link).map(|link| link.id),
                ingress: way >= action::mirred::MirredAction::IngressRedirect as u8,
                redirect: way % 2 == 1,
            })
        }
        Config::Mpls(mpls) => TcActionKind::Mpls(compile_mpls(mpls)),
        Config::Vlan(vlan) => TcActionKind::Vlan(compile_vlan(vlan)),
        Config::Skbedit(edit) => TcActionKind::Skbedit(Skbedit {
            priority: edit.priority,
            inherit_dsfield: edit.inherit_ds,
            queue: None,
            mark: edit.mark.map(|mark| (mark, edit.mask.unwrap_or(u32::MAX))),
            packet_type: None,
        }),
        Config::TunnelKey(key) => {
            let key = key.check().ok().flatten();
            TcActionKind::TunnelKey(key.map(|key| tunnel_key::compile(key, &action.ways)))
        }
        Config::Sample(sample) => {
            let group = sample.group.unwrap_or_default();
            TcActionKind::Sample(Arc::new(Sample {
                rate: sample.rate.unwrap_or(1),
                truncate: sample.truncate,
                group,
                next: router.psample.next_of(group),
                cookie: action.cookie.clone(),
                heard: router.psample.heard(),
            }))
        }
        Config::Csum(csum) => TcActionKind::Csum(Checksums(csum.flags)),
        Config::Pedit(pedit) => TcActionKind::Pedit(pedit.keys.iter().map(compile_key).collect()),
    };
    TcAction {
        kind,
        control: control(action.config.action()),
        counter: action.counter,
        estimator: action.estimator,
    }
}

pub(super) fn publish_action(router: &mut Router, name: Name) {
    if let Some(action) = router.actions.by_name.get(&name) {
        let compiled = compile_action(router, action);
        router.engine.set_tc_action(action.id, compiled);
    }
}
