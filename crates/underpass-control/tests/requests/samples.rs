//! Samples of packets: actions `sample`, and the family `psample` by which they are shown.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::common::Lab;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};
use underpass_control::{Client, Protocol, Replies, Router};
use underpass_engine::tables::Sample;
use underpass_engine::worker::PacketSample;
use underpass_netlink::genetlink::{self, control, psample};
use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_netlink::tc::action;

const NEWACTION: u16 = 48;
const DELACTION: u16 = 49;

fn request(
    router: &mut Router,
    client: &mut Client,
    kind: u16,
    flags: u16,
    write: impl FnOnce(&mut Reply<'_>),
) -> Vec<Vec<u8>> {
    let mut datagram = Vec::new();
    write_message(&mut datagram, kind, flags | NLM_F_REQUEST, Address::default(), write).unwrap();
    let mut replies = Replies::default();
    router.request(client, &datagram, &mut replies);
    while client.dumping() {
        router.continue_dump(client, &mut replies);
    }
    replies.iter().map(<[u8]>::to_vec).collect()
}

fn errno(answers: &[Vec<u8>]) -> i32 {
    let bytes = answers.last().and_then(|answer| answer.get(16..20)).and_then(|bytes| bytes.first_chunk());
    -i32::from_ne_bytes(*bytes.unwrap())
}

/// `tc actions add action sample rate 1 group GROUP index INDEX`, or its removal.
fn change(router: &mut Router, client: &mut Client, kind: u16, index: u32, group: Option<u32>) -> i32 {
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let answers = request(router, client, kind, flags, |message| {
        message.fixed(&[0; action::HEADER]);
        let table = message.nest_unflagged(action::TCA_ACT_TAB);
        let one = message.nest_unflagged(1);
        message.text(1, "sample");
        message.u32(3, index);
        let options = message.nest(2);
        message.attribute(2, [index, 0, 3, 0, 0].map(u32::to_ne_bytes).as_flattened());
        message.u32(3, 1);
        group.into_iter().for_each(|group| message.u32(5, group));
        message.end(options);
        message.end(one);
        message.end(table);
    });
    errno(&answers)
}

/// What a message of the family says: command and attributes.
fn told(bytes: &[u8]) -> (u8, Vec<(u16, Vec<u8>)>) {
    let message = underpass_netlink::messages(bytes).next().unwrap();
    let attributes = message.attributes(genetlink::HEADER);
    let attributes = attributes.map(|attribute| (attribute.kind, attribute.value.to_vec())).collect();
    (message.body()[0], attributes)
}

#[test]
fn listeners_get_samples_and_hear_of_groups() {
    let Lab { mut router, mut client, .. } = Lab::new();
    let mut listener = Client::new(Protocol::Generic, 5);
    let answers = request(&mut router, &mut listener, control::ID, 0, |message| {
        message.fixed(&genetlink::header(control::GETFAMILY, 1));
        message.text(control::ATTR_FAMILY_NAME, "psample");
    });
    let family = told(&answers[0]).1;
    let get = |kind| family.iter().find(|(known, _)| *known == kind).unwrap().1.clone();
    let id = u16::from_ne_bytes(get(control::ATTR_FAMILY_ID)[..2].try_into().unwrap());
    let groups = get(control::ATTR_MCAST_GROUPS);
    // Each: length, number, and in it the id and the name.
    let (config, packets) = (groups[8], groups[8 + 24]);
    assert_eq!((&groups[16..22], &groups[16 + 24..16 + 31]), (&b"config"[..], &b"packets"[..]));
    for group in [config, packets] {
        router.join(&mut listener, group.into()).unwrap();
    }
    assert_eq!(change(&mut router, &mut client, NEWACTION, 1, None), libc::EINVAL);
    assert_eq!(change(&mut router, &mut client, NEWACTION, 1, Some(4)), 0);
    assert_eq!(change(&mut router, &mut client, NEWACTION, 2, Some(4)), 0);
    let heard: Vec<_> = router.notifications().collect();
    let number = |number: u32| number.to_ne_bytes().to_vec();
    let group = |references| vec![(3, number(4)), (7, number(references)), (4, number(0))];
    assert_eq!(heard.len(), 1);
    assert_eq!(told(&heard[0].bytes), (psample::CMD_NEW_GROUP, group(0)));
    let dump = request(&mut router, &mut listener, id, NLM_F_DUMP, |message| {
        message.fixed(&genetlink::header(psample::CMD_GET_GROUP, 1));
    });
    assert_eq!(told(&dump[0]), (psample::CMD_NEW_GROUP, group(2)));

    let next = Arc::new(AtomicU32::new(0));
    let cookie = Some(Box::from([1, 2]));
    let sample = Sample { rate: 9, truncate: Some(4), group: 4, next, cookie, heard: true };
    let sample = PacketSample {
        sample: Arc::new(sample),
        number: 3,
        received_by: 2,
        leaves_by: 0,
        length: 100,
        protocol: 0x86dd,
        bytes: vec![5; 70_000],
    };
    router.show_samples(std::slice::from_ref(&sample), 12);
    router.show_samples(&[PacketSample { bytes: vec![1, 2, 3, 4], leaves_by: 3, ..sample }], 12);
    let heard: Vec<_> = router.notifications().collect();
    let (command, long) = told(&heard[0].bytes);
    assert_eq!((command, heard[0].group), (psample::CMD_SAMPLE, packets.into()));
    assert!((65_000..65_535).contains(&long.iter().find(|(kind, _)| *kind == 6).unwrap().1.len()));
    let (_, mut short) = told(&heard[1].bytes);
    short.retain(|(kind, _)| *kind != psample::ATTR_PAD);
    let wanted = vec![
        (psample::ATTR_IIFINDEX, vec![2, 0]),
        (psample::ATTR_OIFINDEX, vec![3, 0]),
        (psample::ATTR_SAMPLE_RATE, number(9)),
        (psample::ATTR_ORIGSIZE, number(100)),
        (psample::ATTR_SAMPLE_GROUP, number(4)),
        (psample::ATTR_GROUP_SEQ, number(3)),
        (psample::ATTR_TIMESTAMP, 12u64.to_ne_bytes().to_vec()),
        (psample::ATTR_PROTO, vec![0xdd, 0x86]),
        (psample::ATTR_DATA, vec![1, 2, 3, 4]),
        (psample::ATTR_USER_COOKIE, vec![1, 2]),
    ];
    assert_eq!(short, wanted);

    for index in [1, 2] {
        assert_eq!(change(&mut router, &mut client, DELACTION, index, Some(4)), 0);
    }
    let heard: Vec<_> = router.notifications().collect();
    assert_eq!((heard.len(), told(&heard[0].bytes)), (1, (psample::CMD_DEL_GROUP, group(0))));
    router.close(listener);
}
