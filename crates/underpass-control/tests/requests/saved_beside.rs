//! What the kernel alone knows of a device of the router's is saved as well.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use underpass_netlink::messages;
use underpass_netlink::reply::{Address, write_message};

use crate::common::beside::{Lab, MAC, MADE, UP, header, info};

/// include/uapi/linux/if_link.h
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;

#[test]
fn what_the_kernel_alone_knows_of_a_device() {
    let mut lab = Lab::new(false);
    let added = lab.ask(NLM_F_CREATE | NLM_F_EXCL, |message| {
        message.fixed(&header(0, 0, 0));
        message.text(libc::IFLA_IFNAME, "d0");
        info(message, "dummy", |_| {});
    });
    assert_eq!(added, 0);
    let tell = |lab: &mut Lab, flags: u32, alias: &str, other: Option<&str>| {
        let mut bytes = Vec::new();
        write_message(&mut bytes, libc::RTM_NEWLINK, 0, Address { port: 0, sequence: 1 }, |message| {
            message.fixed(&header(MADE, flags, 0));
            message.text(libc::IFLA_IFNAME, "d0");
            message.attribute(libc::IFLA_ADDRESS, &MAC);
            message.attribute(libc::IFLA_BROADCAST, &[0xff; 6]);
            message.u32(libc::IFLA_MTU, 1500);
            if !alias.is_empty() {
                message.text(libc::IFLA_IFALIAS, alias);
            }
            if let Some(other) = other {
                let names = message.nest(IFLA_PROP_LIST);
                message.text(IFLA_ALT_IFNAME, other);
                message.end(names);
            }
        })
        .unwrap();
        messages(&bytes).for_each(|message| lab.router.mirror(&message));
        let saved = lab.router.save(&());
        let about = ["promisc", "allmulticast", "alias", "altname"];
        let lines = saved.lines().filter(|line| about.iter().any(|word| line.contains(word)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(tell(&mut lab, UP, "", None), [""; 0]);
    let flags = UP | (libc::IFF_PROMISC | libc::IFF_ALLMULTI) as u32;
    let lines = tell(&mut lab, flags, "two words", Some("another name"));
    assert_eq!(
        lines,
        [
            "ip link property add dev d0 altname 'another name'",
            "ip link set dev d0 promisc on allmulticast on alias 'two words'",
        ]
    );
    // Such an alias is no line.
    tell(&mut lab, UP, "two\nlines", None);
    assert!(lab.router.save(&()).left_out.iter().any(|what| what.contains("the alias of the link d0")));
}
