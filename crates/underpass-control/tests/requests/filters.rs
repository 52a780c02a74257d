//! Requests for filters, chains and actions in any order, with options that are nearly right: the router answers each,
//! and keeps no action of a filter that is gone.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::common::Lab;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST};
use proptest::prelude::*;
use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_netlink::tc::{Header, TCA_CHAIN, TCA_KIND, TCA_OPTIONS, action};

const NEWQDISC: u16 = 36;
const DELQDISC: u16 = 37;
const NEWTFILTER: u16 = 44;
const NEWACTION: u16 = 48;
const DELTFILTER: u16 = 45;
const GETACTION: u16 = 50;
const CLASSIFIERS: [&str; 5] = ["u32", "basic", "flower", "matchall", "fw"];

/// Options of filters and actions as `tc` sent them, the first byte telling of which kind.
fn options() -> Vec<Vec<u8>> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../underpass-netlink/fuzz/seeds/tc");
    let mut paths: Vec<_> = fs::read_dir(seeds).unwrap().map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Sends a message; the errno of its acknowledgement, positive, or what a dump holds.
fn send(lab: &mut Lab, kind: u16, flags: u16, write: impl FnOnce(&mut Reply<'_>)) -> (i32, Vec<Vec<u8>>) {
    let mut datagram = Vec::new();
    write_message(&mut datagram, kind, flags | NLM_F_REQUEST, Address::default(), write).unwrap();
    let answers = lab.raw(&datagram);
    let last = answers.last().and_then(|answer| answer.get(16..20)).and_then(|bytes| bytes.first_chunk());
    (last.map_or(0, |errno| -i32::from_ne_bytes(*errno)), answers)
}

fn clsact(lab: &mut Lab, kind: u16, link: u32) -> i32 {
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let (errno, _) = send(lab, kind, flags, |message| {
        Header { link, handle: 0xffff_0000, parent: 0xffff_fff1, ..Header::default() }.write(message);
        message.text(TCA_KIND, "clsact");
    });
    errno
}

/// How many actions of a kind there are.
fn count_actions(lab: &mut Lab, kind: &str) -> usize {
    let (_, answers) = send(lab, GETACTION, NLM_F_DUMP, |message| {
        message.fixed(&[0; action::HEADER]);
        let table = message.nest_unflagged(action::TCA_ACT_TAB);
        let one = message.nest_unflagged(1);
        message.text(1, kind);
        message.end(one);
        message.end(table);
    });
    let messages = answers.iter().flat_map(|datagram| underpass_netlink::messages(datagram));
    let tables =
        messages.filter(|message| message.kind == GETACTION).flat_map(|message| message.attributes(4));
    tables.filter(|table| table.kind == action::TCA_ACT_TAB).map(|table| table.nested().count()).sum()
}

/// `tc actions add action gact pass index INDEX`, and what `tc actions ls action gact` lists then.
#[test]
fn a_dump_ends_with_the_last_number() {
    let mut lab = Lab::new();
    for (index, count) in [(7_u32, 1), (u32::MAX, 2), (u32::MAX - 1, 3)] {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let (errno, _) = send(&mut lab, NEWACTION, flags, |message| {
            message.fixed(&[0; action::HEADER]);
            let table = message.nest_unflagged(action::TCA_ACT_TAB);
            let one = message.nest_unflagged(1);
            message.text(1, "gact");
            let options = message.nest(2);
            let parameters = [index, 0, 0, 0, 0].map(u32::to_ne_bytes);
            message.attribute(2, parameters.as_flattened());
            message.end(options);
            message.end(one);
            message.end(table);
        });
        assert_eq!((errno, count_actions(&mut lab, "gact")), (0, count), "{index}");
    }
}

/// A request: new, delete or get (0 to 2) of a filter, a chain or an action.
#[derive(Clone, Debug)]
struct Step {
    verb: u16,
    what: u16,
    egress: bool,
    flags: u16,
    handle: u32,
    info: u32,
    chain: Option<u32>,
    options: Vec<u8>,
}

fn step() -> impl Strategy<Value = Step> {
    let handle = prop_oneof![
        Just(0),
        1_u32..9,
        Just(0x8000_0800),
        Just(0x8000_0801),
        Just(0x0010_0000),
        Just(0x8000_0000),
        any::<u32>()
    ];
    let info = (0_u32..5, prop_oneof![Just(0x0008_u32), Just(0x0300), Just(0)]);
    let change = proptest::option::weighted(0.3, (any::<proptest::sample::Index>(), any::<u8>()));
    let options = (proptest::sample::select(options()), change).prop_map(|(mut bytes, change)| {
        if let Some((place, value)) = change {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        bytes
    });
    (
        prop_oneof![5 => Just(0_u16), 2 => Just(1), 1 => Just(2)],
        prop_oneof![6 => Just(0_u16), 1 => Just(1), 2 => Just(2)],
        any::<bool>(),
        prop_oneof![
            Just(NLM_F_CREATE | NLM_F_EXCL),
            Just(NLM_F_CREATE),
            Just(NLM_F_CREATE | NLM_F_REPLACE),
            Just(0)
        ],
        handle,
        info,
        proptest::option::of(0_u32..3),
        options,
    )
        .prop_map(|(verb, what, egress, flags, handle, (prio, protocol), chain, options)| Step {
            verb,
            what,
            egress,
            flags,
            handle,
            info: prio << 16 | protocol,
            chain,
            options,
        })
}

fn run(lab: &mut Lab, link: u32, step: &Step) {
    let Step { verb, what, egress, flags, handle, info, chain, ref options } = *step;
    let parent = if egress { 0xffff_fff3 } else { 0xffff_fff2 };
    let (kind, options) = options.split_first().unwrap();
    let kind = usize::from(kind % 11);
    if what == 2 {
        let name = action::KINDS[kind.saturating_sub(5)];
        send(lab, NEWACTION + verb, flags | NLM_F_ACK, |message| {
            message.fixed(&[0; action::HEADER]);
            let table = message.nest_unflagged(action::TCA_ACT_TAB);
            let one = message.nest_unflagged(1);
            message.text(1, name);
            message.attribute(2, options);
            message.u32(3, handle);
            message.end(one);
            message.end(table);
        });
        return;
    }
    let base = if what == 0 { NEWTFILTER } else { 100 };
    send(lab, base + verb, flags | NLM_F_ACK, |message| {
        let info = if what == 0 { info } else { 0 };
        Header { family: 0, link, handle, parent, info }.write(message);
        if let Some(chain) = chain {
            message.u32(TCA_CHAIN, chain);
        }
        match CLASSIFIERS.get(kind) {
            // An action: in a filter that takes any packet.
            None => {
                message.text(TCA_KIND, "matchall");
                let own = message.nest_unflagged(TCA_OPTIONS);
                let table = message.nest_unflagged(2);
                let one = message.nest_unflagged(1);
                message.text(1, action::KINDS[kind - 5]);
                message.attribute(2, options);
                message.end(one);
                message.end(table);
                message.end(own);
            }
            Some(name) if verb == 0 || handle & 1 == 0 => {
                message.text(TCA_KIND, name);
                message.attribute(TCA_OPTIONS, options);
            }
            Some(_) => {}
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_order(steps in proptest::collection::vec(step(), 1..40)) {
        let mut lab = Lab::new();
        let link = 2;
        prop_assert_eq!(clsact(&mut lab, NEWQDISC, link), 0);
        for step in &steps {
            run(&mut lab, link, step);
            for parent in [0xffff_fff2, 0xffff_fff3] {
                for kind in [NEWTFILTER + 2, 102] {
                    let (errno, _) = send(&mut lab, kind, NLM_F_DUMP, |message| {
                        Header { link, parent, ..Header::default() }.write(message);
                    });
                    prop_assert_eq!(errno, 0);
                }
            }
        }
        // Those made without a filter stay, and can be deleted once no filter has them.
        prop_assert_eq!(clsact(&mut lab, DELQDISC, link), 0);
        for kind in action::KINDS {
            let (errno, _) = send(&mut lab, NEWACTION + 1, NLM_F_ACK | 0x100, |message| {
                message.fixed(&[0; action::HEADER]);
                let table = message.nest_unflagged(action::TCA_ACT_TAB);
                let one = message.nest_unflagged(1);
                message.text(1, kind);
                message.end(one);
                message.end(table);
            });
            prop_assert_eq!(errno, 0);
            prop_assert_eq!(count_actions(&mut lab, kind), 0, "{}", kind);
        }
    }
}

/// Only what is added to many waits for others; what is deleted or changed is in force at once, and what waits with it.
#[test]
fn added_filters_are_gathered() {
    /// `tc filter add|del dev … ingress prio 1 protocol all handle N fw classid 1:1`
    fn fw(lab: &mut Lab, kind: u16, handle: u32) {
        let flags = if kind == NEWTFILTER { NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL } else { NLM_F_ACK };
        let (errno, _) = send(lab, kind, flags, |message| {
            let info = 1 << 16 | 0x0300;
            Header { link: 2, handle, parent: 0xffff_fff2, info, ..Header::default() }.write(message);
            message.text(TCA_KIND, "fw");
            let options = message.nest_unflagged(TCA_OPTIONS);
            message.u32(1, 0x1_0001);
            message.end(options);
        });
        assert_eq!(errno, 0, "{handle}");
    }
    let mut lab = Lab::new();
    assert_eq!(clsact(&mut lab, NEWQDISC, 2), 0);
    lab.router.gather_filters(true);
    (1..=64).for_each(|handle| fw(&mut lab, NEWTFILTER, handle));
    assert_eq!(lab.router.gathered(), None);
    fw(&mut lab, NEWTFILTER, 65);
    assert!(lab.router.gathered().unwrap() <= Duration::from_millis(1));
    fw(&mut lab, NEWTFILTER, 66);
    // They wait for others, but not for ever.
    std::thread::sleep(Duration::from_millis(11));
    assert_eq!(lab.router.gathered(), Some(Duration::ZERO));
    lab.router.publish_gathered();
    assert_eq!(lab.router.gathered(), None);
    fw(&mut lab, NEWTFILTER, 67);
    assert!(lab.router.gathered().is_some());
    fw(&mut lab, DELTFILTER, 1);
    assert_eq!(lab.router.gathered(), None);
    // One at a time again.
    lab.router.gather_filters(false);
    fw(&mut lab, NEWTFILTER, 68);
    assert_eq!(lab.router.gathered(), None);
}
