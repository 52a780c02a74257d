//! BPF programs of End.BPF: what they may do, what stops them, and that no program does harm.

use super::exercise;
use super::exercise::{MAP, Machine, exit, op};
use proptest::prelude::*;
use underpass_engine::bpf::{Program, Unsupported};

/// Why the packet was dropped that a program was run on.
fn stopped(code: &[[u8; 8]]) -> Vec<(&'static str, u64)> {
    let mut machine = Machine::new();
    machine.load(&code.concat()).unwrap();
    assert!(machine.send().is_empty());
    machine.lab.drops()
}

/// What a program returns, which goes out as the tag of the SRH.
fn result(code: &[[u8; 8]]) -> u16 {
    // r6 = r1; the program; *(u16 *)(r10 - 8) = be16 r0; store_bytes(r6, 46, r10 - 8, 2); r0 = 0; exit
    let before = [op(0xbf, 6, 1, 0, 0)];
    let after = [
        op(0xdc, 0, 0, 0, 16),
        op(0x6b, 10, 0, -8, 0),
        op(0xbf, 1, 6, 0, 0),
        op(0xb7, 2, 0, 0, 46),
        op(0xbf, 3, 10, 0, 0),
        op(0x07, 3, 0, 0, -8),
        op(0xb7, 4, 0, 0, 2),
        op(0x85, 0, 0, 0, 74),
    ];
    let mut machine = Machine::new();
    machine.load(&[&before[..], code, &after, &exit(0)].concat().concat()).unwrap();
    let sent = machine.send();
    let [(1, frame)] = &sent[..] else { panic!("{sent:?} {:?}", machine.lab.drops()) };
    u16::from_be_bytes([frame[14 + 46], frame[14 + 47]])
}

fn error(code: &[[u8; 8]]) -> Unsupported {
    Program::new(&code.concat(), Vec::new()).unwrap_err()
}

#[test]
fn return_codes_that_drop() {
    assert_eq!(stopped(&exit(2)), [("bpf-drop", 1)]);
    assert_eq!(stopped(&exit(1)), [("bpf-return-unknown", 1)]);
    // Redirected without a place to go to: through the SID again, until no segment is left.
    assert_eq!(stopped(&exit(7)), [("segments-left-zero", 1)]);
}

#[test]
fn what_stops_a_program() {
    let fault = [("bpf-fault", 1)];
    let r1 = |offset| op(0x61, 0, 1, offset, 0);
    assert_eq!(stopped(&[op(0x05, 0, 0, -1, 0)]), [("bpf-budget", 1)]);
    assert_eq!(stopped(&[op(0xb7, 0, 0, 0, 0)]), fault, "no exit");
    assert_eq!(stopped(&[r1(190), op(0x95, 0, 0, 0, 0)]), fault, "behind the context");
    assert_eq!(stopped(&[op(0x61, 0, 2, 0, 0), op(0x95, 0, 0, 0, 0)]), fault, "no pointer");
    assert_eq!(stopped(&[op(0x7a, 10, 0, 4096, 0), op(0x95, 0, 0, 0, 0)]), fault, "behind the stack");
    assert_eq!(stopped(&[op(0x62, 1, 0, 76, 0), op(0x95, 0, 0, 0, 0)]), fault, "data is not written");
    // r2 = data; *(u8 *)(r2) = 0
    let write = [op(0x61, 2, 1, 76, 0), op(0x72, 2, 0, 0, 0), op(0x95, 0, 0, 0, 0)];
    assert_eq!(stopped(&write), fault, "the packet is not written");
    // r2 = data_end; r0 = *(u8 *)(r2)
    let read = [op(0x61, 2, 1, 80, 0), op(0x71, 0, 2, 0, 0), op(0x95, 0, 0, 0, 0)];
    assert_eq!(stopped(&read), fault, "behind the packet");
    assert_eq!(stopped(&[op(0x85, 0, 1, 0, -1), op(0x95, 0, 0, 0, 0)]), fault, "calls itself for ever");
    // Nine functions deep, each calling the next: more than the kernel takes.
    let mut deep: Vec<_> = (0..8).flat_map(|_| [op(0x85, 0, 1, 0, 1), op(0x95, 0, 0, 0, 0)]).collect();
    deep.extend(exit(0));
    assert_eq!(stopped(&deep), fault);
}

#[test]
fn functions_keep_registers_and_stacks() {
    // r7 = 5; *(u64 *)(r10 - 16) = 3; call f; r0 += r7; r0 += *(u64 *)(r10 - 16); goto out
    // f: r7 = 100; *(u64 *)(r10 - 16) = 200; r0 = 1; exit
    let code = [
        op(0xb7, 7, 0, 0, 5),
        op(0x7a, 10, 0, -16, 3),
        op(0x85, 0, 1, 0, 4),
        op(0x0f, 0, 7, 0, 0),
        op(0x79, 1, 10, -16, 0),
        op(0x0f, 0, 1, 0, 0),
        op(0x05, 0, 0, 4, 0),
        op(0xb7, 7, 0, 0, 100),
        op(0x7a, 10, 0, -16, 200),
        op(0xb7, 0, 0, 0, 1),
        op(0x95, 0, 0, 0, 0),
    ];
    assert_eq!(result(&code), 9);
}

/// RFC 9669 section 4.1.
#[test]
fn arithmetic_at_its_edges() {
    let with = |immediate, ops: &[[u8; 8]]| result(&[&[op(0xb7, 0, 0, 0, immediate)], ops].concat());
    let r2 = |value| op(0xb7, 2, 0, 0, value);
    assert_eq!(with(7, &[r2(0), op(0x3f, 0, 2, 0, 0)]), 0, "divided by zero");
    assert_eq!(with(7, &[r2(0), op(0x9f, 0, 2, 0, 0)]), 7, "the remainder of that");
    assert_eq!(with(7, &[r2(0), op(0x3c, 0, 2, 1, 0)]), 0);
    assert_eq!(with(i32::MIN, &[r2(-1), op(0x3c, 0, 2, 1, 0), op(0x74, 0, 0, 0, 16)]), 0x8000);
    assert_eq!(with(-7, &[op(0x37, 0, 0, 1, 2)]), -3i16 as u16, "towards zero");
    assert_eq!(with(-7, &[op(0x97, 0, 0, 1, 4)]), -3i16 as u16);
    assert_eq!(with(1, &[r2(65), op(0x6f, 0, 2, 0, 0)]), 2, "by the lower bits");
    assert_eq!(with(0x1280, &[op(0xbf, 2, 0, 8, 0), op(0xbf, 0, 2, 0, 0)]), 0xff80, "sign of 8 bits");
    assert_eq!(with(-1, &[op(0x04, 0, 0, 0, 1), op(0x77, 0, 0, 0, 32)]), 0, "32 bits clear the upper");
    assert_eq!(with(0x1234, &[op(0xd7, 0, 0, 0, 16)]), 0x3412);
}

#[test]
fn words_of_the_stack_and_of_maps_are_changed_at_once() {
    let places: [&[[u8; 8]]; 2] = [
        &[op(0xbf, 3, 10, 0, 0), op(0x07, 3, 0, 0, -16)],
        &[op(0x18, 3, 2, 0, MAP as i32), op(0, 0, 0, 0, 16)],
    ];
    for place in places {
        let ops = [
            op(0x7a, 3, 0, 0, 40),
            op(0xb7, 4, 0, 0, 2),
            op(0xdb, 3, 4, 0, 0x00), // += 2
            op(0xdb, 3, 4, 0, 0x01), // r4 = 42, += 2
            op(0xb7, 0, 0, 0, 44),
            op(0xb7, 5, 0, 0, 99),
            op(0xdb, 3, 5, 0, 0xf1), // 44 becomes 99
            op(0xb7, 0, 0, 0, 0),
            op(0xdb, 3, 5, 0, 0xf1), // r0 = 99
            op(0x0f, 0, 4, 0, 0),
            op(0xc3, 3, 4, 0, 0xe1), // r4 = 99
            op(0x0f, 0, 4, 0, 0),
        ];
        assert_eq!(result(&[place, &ops].concat()), 99 + 42 + 99);
    }
}

#[test]
fn helpers_of_array_maps() {
    let map = [op(0x18, 1, 1, 0, MAP as i32), op(0, 0, 0, 0, 0)];
    let key = |index| [op(0x62, 10, 0, -4, index), op(0xbf, 2, 10, 0, 0), op(0x07, 2, 0, 0, -4)];
    let call = |helper| op(0x85, 0, 0, 0, helper);
    let lookup = |index| [&map[..], &key(index), &[call(1)]].concat();
    // The value of the last, of which the upper half has been written to.
    let store = [op(0x15, 0, 0, 2, 0), op(0x62, 0, 0, 8, 77), op(0x61, 0, 0, 8, 0)];
    assert_eq!(result(&[lookup(2), store.to_vec()].concat()), 77);
    assert_eq!(result(&lookup(3)), 0, "there are three");
    let update = |index, flags| {
        let value = [op(0xbf, 3, 10, 0, 0), op(0x07, 3, 0, 0, -32), op(0xb7, 4, 0, 0, flags), call(2)];
        [&map[..], &key(index), &value].concat()
    };
    let written =
        [&[op(0x7a, 10, 0, -32, 5)], &update(1, 0)[..], &lookup(1), &[op(0x79, 0, 0, 0, 0)]].concat();
    assert_eq!(result(&written), 5);
    for (code, errno) in [(update(3, 0), 7i16), (update(0, 1), 17), (update(0, 3), 22)] {
        assert_eq!(result(&code), -errno as u16);
    }
    assert_eq!(
        result(&[&map[..], &key(0), &[call(3)]].concat()),
        -22i16 as u16,
        "an array's are not deleted"
    );
}

#[test]
fn prints() {
    // bpf_trace_printk("%d %x\n", 7, -42, 255)
    let text = i64::from_le_bytes(*b"%d %04x\0");
    let code = [
        op(0x18, 2, 0, 0, text as i32),
        op(0, 0, 0, 0, (text >> 32) as i32),
        op(0x7b, 10, 2, -8, 0),
        op(0xbf, 1, 10, 0, 0),
        op(0x07, 1, 0, 0, -8),
        op(0xb7, 2, 0, 0, 8),
        op(0xb7, 3, 0, 0, -42),
        op(0xb7, 4, 0, 0, 255),
        op(0x85, 0, 0, 0, 6),
    ];
    let mut machine = Machine::new();
    machine.load(&[&code[..], &exit(0)].concat().concat()).unwrap();
    for _ in 0..2 {
        machine.send();
    }
    let read = |text: &str, lost| (text.to_owned(), lost);
    assert_eq!(machine.lab.worker.printed(read), Some(("-42 00ff\n-42 00ff\n".to_owned(), 0)));
    assert_eq!(machine.lab.worker.printed(read), None);
    // What nobody takes is cut off.
    for _ in 0..2000 {
        machine.send();
    }
    assert_eq!(machine.lab.worker.printed(|text, lost| (text.len() <= 16 << 10, lost)), Some((true, 180)));
}

#[test]
fn what_is_not_supported() {
    let exit = exit(0).to_vec();
    let with = |op: [u8; 8]| [vec![op], exit.clone()].concat();
    assert_eq!(Program::new(&[], Vec::new()).unwrap_err(), Unsupported::Length(0));
    assert_eq!(Program::new(&[0; 12], Vec::new()).unwrap_err(), Unsupported::Length(12));
    assert_eq!(error(&with(op(0x85, 0, 0, 0, 12))), Unsupported::TailCall);
    assert_eq!(error(&with(op(0x85, 0, 0, 0, 25))), Unsupported::Helper(25));
    assert_eq!(error(&with(op(0x85, 0, 2, 0, 25))), Unsupported::Instruction { at: 0, opcode: 0x85 });
    assert_eq!(error(&with(op(0x05, 0, 0, 2, 0))), Unsupported::Jump(0));
    assert_eq!(error(&with(op(0x05, 0, 0, -2, 0))), Unsupported::Jump(0));
    assert_eq!(error(&with(op(0xb7, 10, 0, 0, 0))), Unsupported::Instruction { at: 0, opcode: 0xb7 });
    assert_eq!(error(&with(op(0x20, 0, 0, 0, 0))), Unsupported::Instruction { at: 0, opcode: 0x20 });
    let map = [op(0x18, 1, 1, 0, 3), op(0, 0, 0, 0, 0)];
    assert_eq!(error(&[&map[..], &exit].concat()), Unsupported::Map(3));
    // Into the second half of an instruction.
    let half = [op(0x05, 0, 0, 1, 0), op(0x18, 1, 0, 0, 3), op(0, 0, 0, 0, 0)];
    assert_eq!(error(&[&half[..], &exit].concat()), Unsupported::Jump(0));
    assert_eq!(error(&[op(0x18, 1, 0, 0, 3)]), Unsupported::Instruction { at: 0, opcode: 0x18 });
    assert_eq!(
        error(&with(op(0x85, 0, 0, 0, 12))).to_string(),
        "bpf_tail_call is not supported",
        "what `ip` prints"
    );
}

/// What is likely to be a program mostly is one.
#[test]
fn likely_programs_are_programs() {
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let programs = (0..300).filter(|n| exercise::likely(&(0..n % 64).map(|_| byte()).collect::<Vec<_>>()));
    assert!(programs.count() > 100);
}

/// What the fuzz target begins with.
#[test]
fn fuzz_seeds() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/program");
    let seeds = std::fs::read_dir(seeds).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    assert!(seeds.filter(|seed| exercise::any(seed)).count() > 50);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
        exercise::raw(&bytes);
    }

    #[test]
    fn likely_programs_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..240)) {
        exercise::likely(&bytes);
    }
}
