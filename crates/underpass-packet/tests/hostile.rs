//! No input makes a parser panic or lend what does not lie in it: arbitrary bytes, and valid headers of
//! which each byte was changed and which were cut at each byte.

use proptest::prelude::*;

mod exercise;

/// A valid input for each exercise, as scapy 2.5.0 writes it.
fn seed(name: &str) -> Vec<u8> {
    hex(match name {
        // `ARP(op='who-has',hwsrc='02:00:00:00:00:01',psrc='192.0.2.1',pdst='192.0.2.2')`
        "arp" => "0001080006040001020000000001c0000201000000000000c0000202",
        // `Dot3(dst='01:80:c2:00:00:00',src='02:00:00:00:00:01')/LLC(dsap=0x42,ssap=0x42,ctrl=3)/
        // STP(bpdutype=0,bpduflags=0x81,rootid=0x1000,rootmac='02:00:00:00:00:09',pathcost=100,
        // bridgeid=0x8000,bridgemac='02:00:00:00:00:01',portid=0x8001,age=1,maxage=20,hellotime=2,fwddelay=15)`
        "bpdu" => {
            "0180c200000002000000000100264242030000000081100002000000000900000064800002000000
             000180010100140002000f00"
        }
        // `Ether(dst='02:00:00:00:00:01',src='02:00:00:00:00:02')/Dot1AD(vlan=100,prio=5)/
        // Dot1Q(vlan=4094,id=1)/IP()`
        "checksum" | "ethernet" | "vlan" => {
            "02000000000102000000000288a8a06481001ffe0800450000140001000040007ce77f0000017f000001"
        }
        // `GRE(proto=0x800,chksum_present=1,key_present=1,seqnum_present=1,key=0x01020304,seqence_number=7)/
        // Raw(b'abcde')` with a checksum
        // `GENEVE(vni=0x123456,critical=1,options=[GeneveOptions(classid=0x102,type=0x80,data=b'0123')])/Ether()`
        "geneve" => "024065581234560001028001303132330200000000010200000000029000",
        "gre" => "b00008001a2b000001020304000000076162636465",
        // Linux 6.12 behind `ip link add t0 type ipip … encap gue encap-csum encap-remcsum`
        "gue" => "02040001800000000014001a4500001f28c140004011fc080a0101010a01010210000035000b1621616263",
        // `ICMP(type='dest-unreach',code='fragmentation-needed',nexthopmtu=1400)/b'quoted'`
        "icmpv4" => "0304b1350000057871756f746564",
        // `IPv6(src='2001:db8::1',dst='2001:db8::2')/ICMPv6ParamProblem(code=0,ptr=40)/b'quoted'`
        "icmpv6" => "040059cc0000002871756f746564",
        // Linux 6.12 behind `encap ioam6 trace prealloc type 0xc00002 ns 123 size 20`: the option's data.
        "ioam" => "0000007b1005c00002000000000000000000000000000000000000000000",
        // `IP(src='192.0.2.1',dst='198.51.100.2',ttl=17,tos=0xb8,id=0x1234,flags='MF',frag=185,
        // options=IPOption_Router_Alert())/b'payload!'`
        "ipv4" => "46b80020123420b91100f4fdc0000201c6336402940400007061796c6f616421",
        // `IPv6(src='2001:db8::1',dst='2001:db8::2')/IPv6ExtHdrHopByHop(options=RouterAlert(value=2))/
        // IPv6ExtHdrDestOpt(options=[HBHOptUnknown(otype=0xde,optdata=b'1234567')])/
        // IPv6ExtHdrRouting(addresses=['2001:db8::3'])/IPv6ExtHdrFragment(offset=0,m=1,id=0xdeadbeef)/
        // TCP(sport=1,dport=2)`
        "ipv6" => {
            "60000000004c004020010db800000000000000000000000120010db8000000000000000000000002
             3c000502000201002b01de0731323334353637010300000 02c020001000000002001
             0db800000000000000000000000306000001deadbeef00010002000000000000000050022000346a0000"
        }
        // `VXLAN(vni=0x123456,flags='Instance')/Ether(dst='02:00:00:00:00:01',src='02:00:00:00:00:02')`
        "vxlan" => "08000000123456000200000000010200000000029000",
        // `ICMPExtensionHeader()/ICMPExtensionMPLS(stack=[MPLS(label=100,cos=5,s=0,ttl=1),
        // MPLS(label=300,cos=5,s=1,ttl=40)])` with the checksum of RFC 4884
        "icmp_extension" => "2000c9b0000c010100064a010012cb28",
        // `MPLS(label=100,cos=5,s=0,ttl=40)/MPLS(label=200,s=1,ttl=9)/Raw(b'0123')`
        "mpls" => "00064a28000c810930313233",
        // `IPv6(src='fe80::1',dst='ff02::1:ff00:2')/ICMPv6ND_NS(tgt='fe80::2')/
        // ICMPv6NDOptSrcLLAddr(lladdr='02:00:00:00:00:01')`
        "ndisc" => "87007a9700000000fe8000000000000000000000000000020101020000000001",
        // Linux 6.12: `ip -6 route add fd80::/64 encap rpl segs fd80::3,fd80::2,fd80::1 dev p1`, to fd80::9.
        "rpl" => "11010303ff50000002030900000000003500350008d5b6",
        // `IPv6ExtHdrSegmentRouting(addresses=['fc00::3','fc00::2','fc00::1'],segleft=2,lastentry=2,
        // tag=0x1234,tlv_objects=[IPv6ExtHdrSegmentRoutingTLVIngressNode(ingress_node='2001:db8::9'),
        // IPv6ExtHdrSegmentRoutingTLVPadN(len=2,padding=b'\0\0')])/UDP()`
        "srh" => {
            "1109040202001234fc000000000000000000000000000003fc000000000000000000000000000002
             fc0000000000000000000000000000010112000020010db8000000000000000000000009040200000035
             00350008d5b6"
        }
        // `IP(src='192.0.2.1',dst='198.51.100.2')/TCP(sport=443,dport=50000,seq=0x01020304,
        // ack=0x05060708,flags='SAE',window=512,options=[('MSS',1460),('SAckOK',b''),
        // ('Timestamp',(1,2)),('NOP',None),('WScale',7)])/b'x'`
        "tcp" => "01bbc3500102030405060708a05202000c550000020405b40402080a00000001000000020103030778",
        // `IP(src='192.0.2.1',dst='198.51.100.2')/UDP(sport=4096,dport=53)/b'abc'`
        "udp" => "10000035000b3f09616263",
        _ => unreachable!("{name}"),
    })
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

#[test]
fn valid_inputs_are_taken() {
    for (name, run) in exercise::ALL {
        assert!(run(&seed(name)), "{name}");
    }
}

/// What the fuzz targets begin with.
#[test]
fn fuzz_seeds() {
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for target in std::fs::read_dir(seeds).unwrap().map(Result::unwrap) {
        let run = exercise::ALL.iter().find(|(name, _)| *name == target.file_name());
        let (_, run) = run.unwrap_or_else(|| panic!("{:?} is no target", target.file_name()));
        for file in std::fs::read_dir(target.path()).unwrap().map(Result::unwrap) {
            run(&std::fs::read(file.path()).unwrap());
        }
    }
}

#[test]
fn every_truncation_of_every_change() {
    for (name, run) in exercise::ALL {
        let seed = seed(name);
        for at in 0..seed.len() {
            let changes = (0..8).map(|bit| seed[at] ^ 1 << bit).chain([0, 0x7F, 0xFF]);
            for value in changes {
                let mut bytes = seed.clone();
                bytes[at] = value;
                for len in 0..=bytes.len() {
                    run(&bytes[..len]);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for (_, run) in exercise::ALL {
            run(&bytes);
        }
    }

    /// Valid inputs with some bytes overwritten, and others behind them, get further into a parser.
    #[test]
    fn overwritten_bytes(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        behind in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        for (name, run) in exercise::ALL {
            let mut bytes = seed(name);
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            bytes.extend(&behind);
            run(&bytes);
        }
    }

    /// Extension headers, options and TLVs without end: bytes of which many are types and short lengths.
    #[test]
    fn small_numbers(
        kind in prop::sample::select(vec![0_u8, 43, 44, 51, 60]),
        body in proptest::collection::vec(prop::sample::select(vec![0_u8, 1, 2, 3, 4, 5, 6, 43, 44, 51, 59, 60]), 8..600),
    ) {
        let mut packet = seed("ipv6");
        packet.truncate(40);
        packet[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
        packet[6] = kind;
        packet.extend(&body);
        prop_assert!(exercise::ipv6(&packet));
        exercise::srh(&[&[59, 73, 4, 1, 0, 0, 0, 0], &body[..]].concat());
        exercise::ndisc(&[&seed("ndisc")[..24], &body].concat());
    }
}
