//! Addresses as lines.

use libc::{IFA_F_NODAD, IFA_F_NOPREFIXROUTE, IFA_F_PERMANENT, IFA_F_SECONDARY};

use super::Address;
use crate::save::{Save, Words, quoted};

/// `IFA_F_MANAGETEMPADDR` and the like are refused; `IFA_F_STABLE_PRIVACY` says how an address was made.
const SHOWN: u32 = IFA_F_NODAD | IFA_F_NOPREFIXROUTE | IFA_F_PERMANENT | IFA_F_SECONDARY | 0x800;

/// `IFAPROT_KERNEL_LL`.
const LINK_LOCAL: u8 = 3;

/// Those of the links that come last, or of all others.
pub(crate) fn save(save: &mut Save<'_>, last: bool) {
    let links = save.router.links().filter(|link| link.is_last() == last);
    let links: Vec<u32> = links.map(|link| link.index).filter(|link| save.keeps_on(*link)).collect();
    for link in links {
        let v4 = save.router.addresses.v4(link).iter();
        // The newest stands first.
        let v6 = save.router.addresses.v6(link).iter().rev();
        for address in v4.chain(v6) {
            if address.flags & IFA_F_PERMANENT == 0 && !matches!(address.protocol, 1..=2) {
                let (address, name) = (address.local, save.name(link));
                save.left_out(format!(
                    "the address {address} of {name}, which has a lifetime: whoever gave it has to give it again"
                ));
            } else if !is_automatic(save, address) {
                save_one(save, address);
            }
        }
        save_missing(save, link);
    }
}

/// Whether a link has the address by itself once it is up.
fn is_automatic(save: &Save<'_>, address: &Address) -> bool {
    // `IFAPROT_KERNEL_LO` and `IFAPROT_KERNEL_RA`; what an `ip` of before knows of an address of a tunnel has none. A bridge keeps the
    // address that it had made of another MAC address.
    let by_itself = save.router.automatic_of(address.link);
    // Who gives an address for a time gives it again.
    address.flags & IFA_F_PERMANENT == 0
        || matches!(address.protocol, 1..=2)
        || address.protocol == LINK_LOCAL && save.router.live.is_some()
        || save.router.is_host_address(address.link, address.local)
        || by_itself.iter().any(|(own, _)| *own == address.local)
}

fn save_one(save: &mut Save<'_>, address: &Address) {
    let Address {
        link,
        local,
        peer,
        prefix_len,
        broadcast,
        label,
        scope,
        flags,
        metric,
        protocol,
        stamps: _,
    } = address;
    // Those of IPv4 stay on a device that is not the router's.
    let there = !save.keeps(*link);
    let mut line = Words::new(if there { "ip addr replace" } else { "ip addr add" });
    match peer {
        Some(peer) => line.add(local).pair("peer", format_args!("{peer}/{prefix_len}")),
        None => line.add(format_args!("{local}/{prefix_len}")),
    };
    line.pair("dev", save.name(*link));
    line.some("brd", *broadcast);
    let own = save.router.links.get(*link).map_or("", |link| link.name.as_str());
    line.some("label", (local.is_ipv4() && label != own).then(|| quoted(label)));
    let usual = if local.is_loopback() { libc::RT_SCOPE_HOST } else { libc::RT_SCOPE_UNIVERSE };
    line.some("scope", (local.is_ipv4() && *scope != usual).then_some(scope));
    line.when(flags & IFA_F_NODAD != 0, "nodad").when(flags & IFA_F_NOPREFIXROUTE != 0, "noprefixroute");
    line.some("metric", Some(metric).filter(|metric| **metric != 0));
    // Of the kernel's numbers not every `ip` knows the names.
    line.some("proto", Some(protocol).filter(|protocol| !matches!(**protocol, 0..=3)));
    if flags & !SHOWN != 0 {
        save.left_out(format!("flags {:#x} of the address {local}", flags & !SHOWN));
    }
    save.line(line);
}

/// What a link that is up would have by itself, and has not.
fn save_missing(save: &mut Save<'_>, link: u32) {
    if save.router.live.is_some() || !save.router.links.get(link).is_some_and(|link| link.up() && link.ipv6())
    {
        return;
    }
    for (address, prefix_len) in save.router.automatic_of(link) {
        let has = save.router.addresses.of(link, address.is_ipv6()).iter().any(|own| own.local == address);
        if !has {
            save.line(Words::new(&format!("ip addr del {address}/{prefix_len} dev {}", save.name(link))));
        }
    }
}
