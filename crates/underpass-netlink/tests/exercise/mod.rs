//! One function for each codec: it reads arbitrary bytes, and checks what must hold whatever they are. The
//! hostile-input tests and the fuzz targets share them.

// Each fuzz target uses one of them.
#![allow(dead_code)]

use underpass_netlink::{
    Attribute, Attributes, Encap, Type, Validate, fou,
    fpm::{Decoder, HEADER, write_frame},
    genetlink,
    message::{self, messages},
    policy,
    reply::{Address, write_message},
    seg6local::Counts,
    tc::{
        self, Rate, action, basic,
        cake::Cake,
        flower,
        fq::Fq,
        fq_codel::FqCodel,
        fw,
        htb::{Htb, HtbClass},
        matchall,
        queue::{Prio, parse_limit, write_limit},
        stab::SizeTable,
        tbf::Tbf,
        u32,
    },
};

/// Reads bytes, and says whether the codec took them.
pub type Exercise = fn(&[u8]) -> bool;

/// Every exercise with its name.
pub const ALL: [(&str, Exercise); 12] = [
    ("attribute", attribute),
    ("fou", fou),
    ("fpm", fpm),
    ("genetlink", genetlink),
    ("ioam6", ioam6),
    ("message", message),
    ("mpls", mpls),
    ("qdisc", qdisc),
    ("rpl", rpl),
    ("seg6", seg6),
    ("seg6local", seg6local),
    ("tc", tc),
];

const POLICY: [Type; 16] = policy(&[
    (1, Type::Any),
    (2, Type::Flag),
    (3, Type::U8),
    (4, Type::U16),
    (5, Type::U32),
    (6, Type::U64),
    (7, Type::String(15)),
    (8, Type::AtLeast(3)),
    (9, Type::AtMost(9)),
    (10, Type::Exact(16)),
    (11, Type::Nested),
    (12, Type::Rejected),
    (13, Type::Unsupported),
]);

/// The bytes as the attributes of a message, and those inside the nested ones.
pub fn attribute(bytes: &[u8]) -> bool {
    let mut taken = false;
    for validate in [Validate::Liberal, Validate::Strict] {
        let attributes = match Attributes::parse(&POLICY, bytes, message::HEADER, validate) {
            Ok(attributes) => attributes,
            Err(error) => {
                assert!(error.errno > 0);
                let end = (message::HEADER + bytes.len()) as u32;
                assert!(error.offset.is_none_or(|offset| offset < end));
                continue;
            }
        };
        taken = true;
        for attribute in attributes.iter() {
            let start = attribute.offset as usize - message::HEADER + 4;
            assert_eq!(&bytes[start..start + attribute.value.len()], attribute.value);
            let _ = (attribute.u8(), attribute.be16(), attribute.be32(), attribute.u64(), attribute.text());
            for family in [0, 2, 10] {
                let _ = attribute.address(family);
            }
            let _ = attribute.parse_nested(&POLICY, validate);
            assert!(attribute.nested().count() <= attribute.value.len() / 4);
        }
    }
    taken
}

/// The bytes as a datagram.
pub fn message(bytes: &[u8]) -> bool {
    let mut position = 0;
    for message in messages(bytes) {
        assert_eq!(&bytes[position..position + message.bytes.len()], message.bytes);
        position += message.bytes.len().next_multiple_of(4);
        assert!(message.bytes.len() >= message::HEADER);
        attribute(message.body());
    }
    position > 0
}

/// The bytes as the body of a generic netlink message.
pub fn genetlink(bytes: &[u8]) -> bool {
    bytes.get(genetlink::HEADER..).is_some_and(attribute)
}

/// The bytes as a request to `fou`: what is taken is written so that it is read as the same.
pub fn fou(bytes: &[u8]) -> bool {
    let read = |bytes: &[u8]| {
        let (command, attributes) = (*bytes.first()?, bytes.get(genetlink::HEADER..)?);
        let base = message::HEADER + genetlink::HEADER;
        let attributes = Attributes::parse(&fou::POLICY, attributes, base, Validate::Liberal).ok()?;
        fou::Config::parse(command, &attributes).ok()
    };
    let Some(mut config) = read(bytes) else { return false };
    if config.kind() != Ok(fou::Kind::Direct) {
        config.protocol = 0;
    }
    let mut written = Vec::new();
    assert!(write_message(&mut written, 22, 0, Address::default(), |reply| config.write(reply)).is_ok());
    // A port without a number can be opened but not asked for.
    let again = read(&written[message::HEADER..]);
    assert_eq!(again, Some(config).filter(|config| config.socket.port != 0));
    true
}

/// The bytes as a stream of FPM, in pieces whose length is the first byte.
pub fn fpm(bytes: &[u8]) -> bool {
    let Some((&piece, stream)) = bytes.split_first() else { return false };
    let (mut decoder, mut again, mut taken) = (Decoder::default(), Vec::new(), 0);
    let mut whole = Decoder::default();
    whole.push(stream);
    for piece in stream.chunks(usize::from(piece).max(1)) {
        decoder.push(piece);
        while let Ok(Some(frame)) = decoder.frame() {
            // All at once or piece by piece is the same.
            assert_eq!(whole.frame(), Ok(Some(frame)));
            taken += HEADER + frame.len();
            for message in messages(frame) {
                // No frame that was read is too long to be written.
                assert_eq!(write_frame(&mut again, message.bytes), Ok(()));
            }
        }
    }
    assert_eq!(taken + decoder.pending(), stream.len());
    let mut decoder = Decoder::default();
    decoder.push(&again);
    while !again.is_empty() && decoder.pending() > 0 {
        assert!(decoder.frame().is_ok_and(|frame| frame.is_some()));
    }
    taken > 0
}

/// The bytes as an `RTA_ENCAP`: what is taken is written so that it is read as the same.
fn encap(kind: u16, bytes: &[u8]) -> bool {
    const RTA_ENCAP_TYPE: u16 = 21;
    const RTA_ENCAP: u16 = 22;
    let mut taken = false;
    for family in [2, 10] {
        let read = Attribute { kind: RTA_ENCAP, offset: 40, value: bytes };
        let Ok(encap) = Encap::parse(kind, &read, family) else { continue };
        taken = true;
        assert_eq!(encap.kind(), kind);
        let mut written = Vec::new();
        let counts = Counts { packets: 1, bytes: 2, errors: 3 };
        let write = |reply: &mut underpass_netlink::Reply<'_>| {
            encap.write(reply, RTA_ENCAP, RTA_ENCAP_TYPE, counts);
        };
        assert!(write_message(&mut written, 24, 0, Address::default(), write).is_ok());
        let value = &written[message::HEADER..];
        let mut attributes = Attribute { kind: 0, offset: 12, value }.nested();
        let again = attributes.find(|attribute| attribute.kind == RTA_ENCAP);
        assert_eq!(again.and_then(|again| Encap::parse(kind, &again, family).ok()), Some(encap));
    }
    taken
}

/// The bytes as the encapsulation of `encap mpls`.
pub fn mpls(bytes: &[u8]) -> bool {
    encap(1, bytes)
}

/// The bytes as the encapsulation of `encap seg6`.
pub fn seg6(bytes: &[u8]) -> bool {
    encap(5, bytes)
}

/// The bytes as the encapsulation of `encap seg6local`.
pub fn seg6local(bytes: &[u8]) -> bool {
    encap(7, bytes)
}

/// The bytes as the encapsulation of `encap rpl`.
pub fn rpl(bytes: &[u8]) -> bool {
    encap(8, bytes)
}

/// The bytes as the encapsulation of `encap ioam6`.
pub fn ioam6(bytes: &[u8]) -> bool {
    encap(9, bytes)
}

/// The bytes as options of every kind of qdisc and of a class of HTB; what is written of them is read as the same.
pub fn qdisc(bytes: &[u8]) -> bool {
    fn options(value: &[u8]) -> Option<Attribute<'_>> {
        const OPTIONS: u16 = 2;
        Some(Attribute { kind: OPTIONS, offset: 36, value })
    }
    let written = |write: &dyn Fn(&mut underpass_netlink::Reply<'_>)| {
        let mut written = Vec::new();
        assert!(write_message(&mut written, 36, 0, Address::default(), |reply| write(reply)).is_ok());
        written.split_off(message::HEADER + 4)
    };
    let (mut taken, read) = (false, options(bytes));
    if let Ok(limit) = parse_limit(read) {
        let limit = limit.unwrap_or_default();
        let again = written(&|reply| write_limit(reply, limit));
        assert_eq!(parse_limit(options(&again)), Ok(Some(limit)));
    }
    if let Ok(prio) = Prio::parse(read) {
        taken = true;
        assert_eq!(Prio::parse(options(&written(&|reply| prio.write(reply)))), Ok(prio));
    }
    if let Ok(htb) = Htb::parse(read) {
        taken = true;
        assert!(htb.rate_to_quantum > 0);
        assert_eq!(written(&|reply| htb.write(reply, 7, 8)).len(), 32);
    }
    if let Ok(class) = HtbClass::parse(read) {
        taken = true;
        assert_eq!(HtbClass::parse(options(&written(&|reply| class.write(reply, 0)))), Ok(class));
    }
    let mut codel = FqCodel::new(1514);
    if codel.change(read, true).is_ok() {
        assert!(codel.flows > 0 && codel.drop_batch > 0 && (256..=1 << 20).contains(&codel.quantum));
        let mut again = FqCodel::new(1514);
        assert!(again.change(options(&written(&|reply| codel.write(reply))), true).is_ok());
        assert_eq!((again.flows, again.limit, again.ecn), (codel.flows, codel.limit, codel.ecn));
    }
    let mut fq = Fq::new(1514);
    if fq.change(read).is_ok() {
        assert!((1..=18).contains(&fq.buckets_log) && (256..=1 << 20).contains(&fq.quantum));
        let mut again = Fq::new(1514);
        assert!(again.change(options(&written(&|reply| fq.write(reply)))).is_ok());
        assert_eq!((again.limit, again.priomap, again.weights), (fq.limit, fq.priomap, fq.weights));
    }
    let mut cake = Cake::default();
    if cake.change(read).is_ok() {
        assert!(cake.interval > 0 && cake.target > 0 && cake.flow_mode < 64);
        let mut again = Cake::default();
        assert!(again.change(options(&written(&|reply| cake.write(reply)))).is_ok());
        assert_eq!(again, cake);
    }
    if let Some(Ok(table)) = read.map(|table| SizeTable::parse(&table)) {
        taken = true;
        assert!(table.cell_log <= 30 && table.size_log <= 30);
        assert_eq!(written(&|reply| table.write(reply)).len(), 28);
    }
    let time = |rate: &Rate, bytes: u32| u64::from(bytes) << (20 - rate.bytes.leading_zeros() / 4);
    let length = |rate: &Rate, nanos: u64| nanos >> (rate.bytes.leading_zeros() / 4);
    if let Ok(parsed) = Tbf::parse(read, time, length) {
        taken = true;
        assert!(parsed.max_size > 0 && parsed.peak.is_none_or(|peak| peak.bytes > parsed.rate.bytes));
        if let Ok(again) = Tbf::parse(options(&written(&|reply| parsed.write(reply))), time, length) {
            assert_eq!((again.rate, again.peak, again.limit), (parsed.rate, parsed.peak, parsed.limit));
        }
    }
    taken
}

/// The bytes as the options of a filter or of an action, which the first byte chooses: what is taken is written so that
/// it is read as the same.
pub fn tc(bytes: &[u8]) -> bool {
    let Some((&kind, value)) = bytes.split_first() else { return false };
    let offset = message::HEADER as u32;
    let options = Attribute { kind: tc::TCA_OPTIONS, offset, value };
    match kind % 12 {
        0 => u32::Request::parse(&options).is_ok_and(|request| {
            let Ok(selector) = request.selector() else { return false };
            let keys = selector.keys.len();
            let written = written(|reply| {
                let shown = u32::Shown {
                    handle: 0x8000_0800,
                    selector: &selector,
                    class: request.class.unwrap_or(0),
                    link: request.link,
                    flags: request.flags,
                    mark: request.mark.map(|(value, mask)| (value, mask, 0)),
                    indev: None,
                    hits: (0, 0, vec![0; keys]),
                };
                shown.write(reply, |_| {});
            });
            let again = u32::Request::parse(&Attribute { value: &written, ..options });
            assert!(again.is_ok_and(
                    |again| again.selector() == Ok(selector.clone()) && again.mark == request.mark
                ));
            true
        }),
        1 => basic::Request::parse(&options).is_ok_and(|request| {
            let Ok(tree) = request.tree() else { return false };
            let class = request.class.unwrap_or(0);
            let written = written(|reply| basic::write(reply, class, (0, 0), &tree, |_| {}));
            let again = basic::Request::parse(&Attribute { value: &written, ..options });
            let again = again.and_then(|again| again.tree());
            assert!(again.is_ok_and(|again| again.matches == tree.matches));
            true
        }),
        2 => flower::Request::parse(&options).is_ok_and(|request| {
            let Ok(keys) = request.keys() else { return false };
            let written = written(|reply| {
                flower::write(reply, request.class.unwrap_or(0), &keys, None, request.flags, |_| {});
            });
            let again = flower::Request::parse(&Attribute { value: &written, ..options });
            assert!(again.is_ok_and(|again| again.flags == request.flags));
            true
        }),
        3 => matchall::Request::parse(&options).is_ok(),
        4 => fw::Request::parse(&options).is_ok(),
        kind => {
            let kind = action::KINDS[usize::from(kind) - 5];
            let Ok(config) = action::Config::parse(kind, Some(&options)) else {
                let entry = action::Entry::parse(&options);
                return entry.is_ok_and(|entry| entry.name().is_ok());
            };
            let shown = action::Shown {
                config: &config,
                index: config.index(),
                refs: 1,
                binds: 0,
                cookie: Some(&[1]),
                flags: 0,
                hw_stats: 0,
                asked_hw: true,
                times: action::Times::default(),
                counts: action::Counts::default(),
            };
            let list = written(|reply| {
                let one = reply.nest_unflagged(1);
                shown.write(reply);
                reply.end(one);
            });
            let list = Attribute { kind: action::TCA_ACT_TAB, offset, value: &list };
            let entries = action::Entry::list(&list).unwrap_or_default();
            let entry = entries.first().and_then(|entry| action::Entry::parse(entry).ok());
            let again = entry.and_then(|entry| {
                assert_eq!(entry.name().as_deref(), Ok(kind));
                action::Config::parse(kind, entry.options.as_ref()).ok()
            });
            let told = |config: &action::Config| (config.index(), config.action());
            // Linux takes no times in a request for `mpls`, which its answer has.
            if kind != "mpls" {
                assert_eq!(again.as_ref().map(told), Some(told(&config)), "{config:?} is {again:?}");
            }
            true
        }
    }
}

/// What a function writes into a message, without its header.
fn written(write: impl FnOnce(&mut underpass_netlink::Reply<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(write_message(&mut bytes, 44, 0, Address::default(), write).is_ok());
    bytes.split_off(message::HEADER)
}
