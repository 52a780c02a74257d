//! The first packet by a route, before its device has all it needs. Alone, as its time is taken.

use underpass_daemon::testbed::{self, Namespace, Router};

use crate::net::{self, program};

/// The first packets of README's block are not held up until the kernel has looked for duplicates of its link-local
/// addresses.
#[test]
fn the_first_packet_does_not_wait() {
    let Some(_turn) = net::turn_alone("the_first_packet_does_not_wait") else { return };
    let [west, east] = ["west", "east"].map(net::namespace);
    testbed::join(&west, "eth1", &east, "eth1").unwrap();
    for namespace in [&west, &east] {
        // It looks for long.
        namespace
            .run("sysctl -qw net.ipv6.conf.eth1.accept_dad=1 net.ipv6.conf.eth1.dad_transmits=8")
            .unwrap();
    }
    let [to_west, to_east] = [&west, &east].map(|host| Router::start(program(), host, &[]).unwrap());
    for (router, n) in [(&to_west, 1), (&to_east, 2)] {
        router
            .run(&format!(
                "ip link set eth1 up; ip addr add 192.0.2.{n}/24 dev eth1
                 ip addr add 2001:db8::{n}/64 dev eth1 nodad"
            ))
            .unwrap();
    }
    to_east
        .run(
            "ip link set lo up; ip addr add 2001:db8:9::1/128 dev lo
             ip -6 route add fc00:e::d/128 encap seg6local action End.DT6 table local count dev eth1",
        )
        .unwrap();
    // The kernel says that it has added an IPv6 address before it takes packets for it.
    to_east
        .run("timeout 5 sh -c 'until ip -6 route get 2001:db8:9::1 | grep -q ^local; do sleep 0.01; done'")
        .unwrap();
    to_west
        .run(
            "ip -6 route add fc00:e::/32 via 2001:db8::2
             ip -6 route add 2001:db8:9::/48 encap seg6 mode encap segs fc00:e::d dev eth1",
        )
        .unwrap();
    let outcome = to_west.outcome("ping -n -c 1 -W 8 2001:db8:9::1").unwrap();
    let tentative = west.run("ip -6 addr show dev eth1 scope link").unwrap();
    assert!(tentative.contains("tentative"), "it has ceased to look: {tentative}");
    let took =
        outcome.output.split("time=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    let told = || {
        let of = |host: &Namespace, router: &Router| {
            let stats = host.outcome(&format!("{} stats", program().display())).unwrap().output;
            format!("{}\n{stats}", router.log().unwrap())
        };
        [of(&west, &to_west), of(&east, &to_east)].join("\n")
    };
    assert!(took.is_some_and(|took| took < 4000.0), "{}\n{}", outcome.output, told());
    to_west.stop().unwrap();
    to_east.stop().unwrap();
}
