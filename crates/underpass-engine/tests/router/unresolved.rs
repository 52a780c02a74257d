//! Errors about neighbours that do not answer.

use super::lab::{Lab, frame, ip6, udp, v6};
use underpass_engine::tables::{Action, Lookup};
use underpass_packet::{ethernet, protocol};

/// An address is the router's where the packet was to leave, as by Linux's `icmp6_send`. RFC 4443 section 2.2 (a).
#[test]
fn source_of_an_address_of_another_vrf() {
    let mut lab = Lab::new();
    let tenant = lab.writer.add_fib6();
    lab.writer.insert6(tenant, v6("2001:db8:0::"), 48, lab.forward[0]);
    let local = lab.writer.add_action(Action::Local);
    lab.writer.insert6(tenant, v6("fd00:1::1"), 128, local);
    let lookup = lab.writer.add_lookup(Lookup {
        fibs4: [lab.fib4].into(),
        fibs6: [tenant].into(),
        rules4: [].into(),
        rules6: [].into(),
        own: None,
    });
    let mut link = lab.link(1);
    link.lookup = lookup;
    lab.writer.set_link(lab.links[1], link);
    let on_link = lab.writer.add_action(Action::OnLink(lab.links[1]));
    lab.writer.insert6(lab.fib6, v6("fd00:1::"), 64, on_link);
    for (to, source) in [("fd00:1::1", "fd00:1::1"), ("fd00:1::77", "fd00:0::1")] {
        let packet = ip6("2001:db8:0::5", to, protocol::UDP, &udp(9));
        let sent = lab.send(&[frame(ethernet::IPV6, &packet)]);
        let [(0, error)] = &sent[..] else { panic!("{:?}", lab.drops()) };
        assert_eq!((error[54], error[55]), (1, 3), "address unreachable");
        assert_eq!(error[22..38], v6(source).octets(), "{to}");
    }
    lab.assert_accounted();
}
