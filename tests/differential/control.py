"""Traffic control at random: hooks with filters and actions, queueing disciplines, ifbs."""

from world import *


def action(w, last=True):
    kind = w.choices(["gact", "police", "mirred", "mpls", "vlan", "skbedit"], [30, 22, 20, 8, 10, 10])[0]
    verdict = w.choice(["pass", "drop", "continue", "pipe", "reclassify", "pass"] if last else ["pipe"])
    if verdict == "reclassify":
        verdict = w.choice(["pass", "ok"])
    if kind == "gact":
        return f"action {verdict}" + w.maybe(0.08, f" random {w.choice(['determ'])} {w.choice(['drop', 'pass'])} {w.randint(2, 4)}")
    if kind == "police":
        rate = w.choice(["8kbit", "100kbit", "1mbit", "10mbit"])
        text = f"action police rate {rate} burst {w.choice(['2k', '5k', '20k'])}" if w.chance(0.85) else f"action police pkts_rate {w.choice([1, 10])} pkts_burst {w.choice([1, 3])}"
        if "pkts" not in text:
            text += w.maybe(0.15, f" mtu {w.choice([200, 1000, '2kb'])}") + w.maybe(0.1, " peakrate 2mbit mtu 1600") + w.maybe(0.1, " overhead 24")
        return text + f" conform-exceed {w.choice(['drop', 'pipe', 'ok', 'drop/pipe', 'drop/ok', 'continue'])}"
    if kind == "mirred":
        to = w.choice(w.devices + w.ifbs)
        way = w.choices(["egress redirect", "egress mirror", "ingress redirect", "ingress mirror"], [45, 35, 12, 8])[0]
        return f"action mirred {way} dev {to}" + (" pipe" if not last and "mirror" in way else "")
    if kind == "mpls":
        what = w.choice([f"push protocol mpls_uc label {w.choice([100, 200])} {w.maybe(0.5, 'tc 3')} {w.maybe(0.5, 'ttl 9')}", "pop protocol ip", "pop protocol ipv6", "dec_ttl", "modify label 77", "modify tc 2 ttl 5", "mac_push label 55"])
        return f"action mpls {what} {verdict}"
    if kind == "vlan":
        what = w.choice(["push id 5", "push id 7 protocol 802.1ad priority 3", "pop", "modify id 9", "modify id 6 priority 2"])
        return f"action vlan {what} {verdict}"
    return f"action skbedit {w.choice(['priority 1:20', 'priority 6', 'mark 1', 'mark 0x12', 'mark 0x10/0xf0', 'inheritdsfield'])} {verdict}"


def tunnel_key(w):
    if w.chance(0.12):
        return "action tunnel_key unset"
    if w.chance(0.45):
        ends = f"src_ip {w.choice(list(OWN6.values()))} dst_ip {w.choice(FAR6)}"
    else:
        ends = f"src_ip {w.choice(list(OWN4.values()))} dst_ip {w.choice(FAR4)}"
    return f"action tunnel_key set {ends} {w.maybe(0.6, f'id {w.choice([5, 77])}')} {w.maybe(0.8, f'ttl {w.choice([9, 64])}')} {w.maybe(0.3, f'tos {w.choice([1, 16, 41])}')} {w.maybe(0.3, 'dst_port 6635')} {w.maybe(0.4, 'nocsum')}"


def tunnel_keys(w):
    """Filters that say what tunnels put before packets: where packets leave by them, and where they are sent to them."""
    for name, carries in w.keyed:
        protocol = "mpls_uc" if carries else "all"
        if w.chance(0.7):
            w.tc.append(f"tc qdisc add dev {name} clsact")
            for number in range(w.randint(1, 2)):
                match = "matchall" if w.chance(0.6) or number else "flower " + w.choice(["enc_key_id 5", f"enc_dst_ip {w.choice(FAR4)}", "enc_ttl 9"])
                w.tc.append(f"tc filter add dev {name} egress protocol {w.choice([protocol, 'ip'])} pref {60 + number} {match} {tunnel_key(w)} {w.choice(['pass', 'pipe', 'continue'])}")
        if w.chance(0.7):
            port = w.choice(PORTS)
            w.tc.append(f"tc qdisc add dev {port} clsact")
            push = f"action mpls push protocol mpls_uc label {w.choice([100, 200])} ttl {w.choice([9, 64])} pipe" if carries and w.chance(0.7) else ""
            match = w.choice(["matchall", "flower ip_proto udp dst_port 2222"])
            w.tc.append(f"tc filter add dev {port} {w.choice(['ingress', 'ingress', 'egress'])} protocol {'mpls_uc' if carries and not push else w.choice(['ip', 'ipv6'])} pref 50 {match if push or not carries else 'matchall'} {push} {tunnel_key(w)} pipe action mirred egress {w.choice(['redirect', 'redirect', 'mirror'])} dev {name}")
    if w.chance(0.3):
        w.tc.append(f"tc actions add {tunnel_key(w)} index 33")
        w.tc.append(f"tc filter add dev {w.choice(w.devices)} {w.choice(['ingress', 'egress'])} protocol all pref 51 matchall action tunnel_key index 33")


def actions(w):
    texts = [action(w, last=False) for _ in range(w.choices([0, 1, 2], [70, 22, 8])[0])]
    return " ".join([*texts, action(w)])


def flower(w, protocol):
    words = []
    version = {"ip": 4, "ipv6": 6}.get(protocol)
    if version and w.chance(0.7):
        words.append("ip_proto " + w.choice(["udp", "tcp", "icmp" if version == 4 else "icmpv6"]))
        if "udp" in words[-1] or "tcp" in words[-1]:
            words.append(w.maybe(0.5, w.choice(["dst_port 2222", "src_port 1111", "dst_port 53-3000", "src_port 80-2000"])))
        elif w.chance(0.3):
            words.append("type 8" if version == 4 else "type 128")
    if version == 4:
        words.append(w.maybe(0.3, w.choice(["dst_ip 10.10.0.0/16", "src_ip 198.51.100.7", "dst_ip 10.11.0.9"])))
    if version == 6:
        words.append(w.maybe(0.3, w.choice(["dst_ip 2001:db8:a::/48", "src_ip 2001:db8:5::5", "dst_ip fc00:e::/32"])))
    if version:
        words.append(w.maybe(0.2, w.choice(["ip_tos 0x10/0xfc", "ip_ttl 64", "ip_ttl 1", "ip_flags frag", "ip_flags nofrag", "ip_flags firstfrag", "ip_tos 0xb8"])))
    if protocol == "mpls_uc":
        words.append(w.choice(["mpls_label 100", "mpls_ttl 64", "mpls_tc 5", "mpls_bos 1"]))
    if protocol == "802.1q":
        words.append(w.choice(["vlan_id 5", "vlan_prio 1", "vlan_ethtype ip", "vlan_ethtype ipv6 dst_ip 2001:db8:a::/48"]))
    if w.chance(0.15):
        words.append(w.choice([f"dst_mac {MACS['p0']}", "src_mac 02:00:00:00:01:02", "dst_mac 02:00:00:00:00:00/ff:ff:ff:ff:ff:00"]))
    if w.chance(0.08):
        words.append(f"indev {w.choice(PORTS)}")
    return "flower " + " ".join(word for word in words if word)


def u32_matches(protocol):
    pool = ["match u32 0 0", "match u8 0x45 0xff at 0", "match u16 0x0800 0xffff at -2"]
    if protocol in ("ip", "all"):
        pool += ["match ip protocol 17 0xff", "match ip dst 10.10.0.0/16", "match ip src 198.51.100.7/32", "match ip dport 2222 0xffff", "match ip tos 0x10 0xff", "match ip ttl 1 0xff" if False else "match u8 1 0xff at 8", "match u16 2222 0xffff at nexthdr+2", "match mark 1 0xff"]
    if protocol in ("ipv6", "all"):
        pool += ["match ip6 dst 2001:db8:a::/48", "match ip6 src 2001:db8:5::5/128", "match ip6 protocol 17 0xff", "match u8 64 0xff at 7"]
    return pool


def u32(w, protocol):
    text = "u32 " + " ".join(w.some(u32_matches(protocol), 2))
    return text + w.maybe(0.4, " flowid 1:" + w.choice(["1", "20"]))


def basic(w, protocol):
    pool = ["'meta(protocol eq 0x800)'" if False else "meta(pkt_len gt 200)", "cmp(u8 at 8 layer 1 lt 3)", "cmp(u16 at 2 layer 2 eq 2222)", "u32(u8 0x11 0xff at 9)", 'nbyte("\\x0a" at 16 layer 1)' if False else "u32(u32 0x0a0a0000 0xffff0000 at 16)", "not cmp(u8 at 1 layer network mask 0xfc eq 0x10)" if False else "meta(priority eq 2)", "meta(nf_mark eq 1)" if False else "meta(fwmark eq 1)", "cmp(u8 at 0 layer link eq 2)"]
    text = w.choice(pool)
    if w.chance(0.3):
        text += f" {w.choice(['and', 'or'])} {w.maybe(0.4, 'not ')}{w.choice(pool)}"
    return f"basic match '{text}'" + w.maybe(0.3, " flowid 1:1")


def filter_line(w, device, parent, number):
    protocol = w.choices(["all", "ip", "ipv6", "mpls_uc", "802.1q", "arp"], [35, 28, 22, 7, 5, 3])[0]
    kind = w.choices(["matchall", "flower", "u32", "basic", "fw"], [25, 35, 25, 12, 3])[0]
    match = {"matchall": lambda: "matchall", "flower": lambda: flower(w, protocol), "u32": lambda: u32(w, protocol), "basic": lambda: basic(w, protocol), "fw": lambda: "fw"}[kind]()
    chain = w.maybe(0.06, "chain 1")
    handle = f"handle {w.choice([1, 2, 0x12])}" if kind == "fw" else w.maybe(0.15, f"handle {w.choice([1, 5, '0x7'])}") if kind != "u32" else ""
    do = actions(w) if w.chance(0.93) else w.choice(["action goto chain 1", "classid 1:20", ""])
    return f"tc filter add dev {device} {parent} protocol {protocol} pref {number} {handle} {chain} {match} {do}"


def hash_tables(w):
    """Hash tables of u32: a root that leads into one by a hash key, filters in its buckets, a table behind a table."""
    for device in w.some(w.devices, 2):
        parent = w.choice(["ingress", "ingress", "egress"])
        protocol = w.choice(["ip", "ip", "ipv6"])
        head = f"tc filter add dev {device} {parent} protocol {protocol} pref {70 + w.randrange(2)}"
        size, other = w.choice([1, 2, 4, 16, 256]), w.choice([1, 8])
        w.tc.append(f"tc qdisc add dev {device} clsact")
        w.tc.append(f"{head} handle 2: u32 divisor {size}")
        if w.chance(0.3):
            w.tc.append(f"{head} handle 3: u32 divisor {w.choice([other, 3])}")
        for number in range(w.randint(2, 6)):
            bucket = f"ht {w.choice([2, 2, 2, 3, 9])}:{w.choice([w.randrange(size), w.randrange(size), 256]):x}:{w.maybe(0.2, f'{number + 1:x}')}"
            if w.chance(0.2):
                bucket += w.choice([" sample ip protocol 17 0xff", " sample u8 0x11 0xff at 9", " sample u32 0x00000007 0x000000ff at 16"])
            match = " ".join(w.some(U32_INSIDE if w.chance(0.4) else u32_matches(protocol), 2))
            w.tc.append(f"{head} u32 {bucket} {match} {actions(w)}")
        for _ in range(w.randint(1, 2)):
            key, match = w.choice(
                [
                    ("hashkey mask 0x000000ff at 16", "match ip dst 10.0.0.0/8"),
                    ("hashkey mask 0x00ff0000 at 8", "match u32 0 0"),
                    ("hashkey mask 0x0000ff00 at 16 offset at 0 mask 0x0f00 shift 6", "match u8 0x45 0xff at 0"),
                    ("offset at 0 mask 0x0f00 shift 6 plus 0 eat", "match ip protocol 17 0xff"),
                    ("offset plus 40 eat", "match u8 0x60 0xf0 at 0"),
                    # Not the source port, which for what a tunnel puts into UDP is random.
                    ("hashkey mask 0x0000ffff at 20 offset plus 20", "match u32 0 0"),
                ]
            )
            match = match if protocol == "ip" else match.replace("ip dst 10.0.0.0/8", "ip6 dst 2001:db8::/32").replace("u8 0x45 0xff at 0", "u32 0 0").replace("ip protocol", "ip6 protocol")
            from_root = w.choice(["", "", "ht 800: ", "ht 3: "])
            w.tc.append(f"{head} u32 {from_root}{match} link {w.choice([2, 2, 3, 9])}: {key}" + w.maybe(0.15, " action pipe"))
        if w.chance(0.3):
            w.tc.append(w.choice([f"{head.replace(' add ', ' del ')} handle 2: u32", f"{head.replace(' add ', ' del ')} handle 800::800 u32", head.replace(" add ", " del ")]))


# What a filter behind an offset may look at: ports.
U32_INSIDE = ["match tcp dst 2222 0xffff", "match udp src 1111 0xffff", "match u16 2222 0xffff at nexthdr+2", "match u16 443 0xffff at 2", "match u32 0x00000000 0x80000000 at 0"]


def tc_hooks(w):
    if w.chance(0.25):
        w.ifbs.append("ifb5")
        w.add("ip link add ifb5 address 02:00:00:00:0c:05 type ifb", "ip link set ifb5 up")
    for device in w.some(w.devices + w.ifbs, 3):
        both = w.chance(0.75)
        w.tc.append(f"tc qdisc add dev {device} {'clsact' if both else 'ingress'}")
        if not both:
            w.ingress_only = device
        for number in range(w.randint(1, 4)):
            parent = w.choice(["ingress", "egress"]) if both else "ingress"
            w.tc.append(filter_line(w, device, parent, w.choice([number + 1, 10 * number + 10, 49152])))
    # Not a number that an action gets by itself: which one depends in Linux on when those of refused filters are free again.
    if w.chance(0.15):
        w.tc.append(f"tc actions add {action(w)} index {w.choice([99, 100])}")
        w.tc.append(f"tc filter add dev {w.choice(w.devices)} ingress protocol all pref 7 matchall action gact index {w.choice([99, 100])}")


def qdiscs(w):
    for device in w.some(w.devices + w.ifbs, 2):
        kind = w.choices(["htb", "tbf", "prio", "pfifo", "bfifo", "pfifo_fast", "fq_codel"], [35, 20, 15, 6, 6, 5, 10])[0]
        add = f"tc qdisc add dev {device} root handle 1:"
        if kind == "htb":
            w.tc.append(f"{add} htb {w.choice(['default 10', 'default 20', '', 'default 20 r2q 5'])}")
            w.tc.append(f"tc class add dev {device} parent 1: classid 1:1 htb rate {w.choice(['1mbit', '10mbit'])} ceil 10mbit burst 5k cburst 5k")
            for minor in (10, 20):
                w.tc.append(f"tc class add dev {device} parent 1:1 classid 1:{minor} htb rate {w.choice(['16kbit', '500kbit', '2mbit'])} {w.maybe(0.5, 'ceil 5mbit')} burst {w.choice(['2k', '3k'])} cburst 2k {w.maybe(0.4, f'prio {w.randrange(3)}')} quantum 1600")
            if w.chance(0.4):
                w.tc.append(f"tc qdisc add dev {device} parent 1:{w.choice([10, 20])} handle 30: {w.choice(['pfifo limit 2', 'prio', 'bfifo limit 3000', 'tbf rate 100kbit burst 2k limit 3000'])}")
        elif kind == "tbf":
            w.tc.append(f"{add} tbf rate {w.choice(['8kbit', '100kbit', '1mbit'])} burst {w.choice([1600, 3000, 10000])} {w.choice(['limit 3000', 'latency 1s', 'limit 20000'])}" + w.maybe(0.15, " peakrate 2mbit mtu 1600"))
        elif kind == "prio":
            w.tc.append(f"{add} prio {w.choice(['', 'bands 3', 'bands 4', 'bands 3 priomap 0 0 0 0 1 1 1 1 2 2 2 2 0 0 0 0'])}")
            w.tc.append(f"tc qdisc add dev {device} parent 1:{w.choice([1, 2, 3])} handle 40: {w.choice(['pfifo limit 3', 'tbf rate 100kbit burst 2k limit 3000', 'bfifo'])}")
        elif kind == "fq_codel":
            w.tc.append(f"{add} fq_codel {w.choice(['', 'limit 100', 'flows 16', 'quantum 300', 'noecn target 1ms'])}")
        else:
            w.tc.append(f"{add} {kind} {w.choice(['', 'limit 5']) if kind != 'bfifo' else w.choice(['', 'limit 4000'])}".replace("pfifo_fast limit 5", "pfifo_fast"))
        if kind in ("htb", "prio"):
            for number in range(w.randint(0, 3)):
                text = filter_line(w, device, "parent 1:", number + 1)
                if w.chance(0.8):
                    text = text.split(" action ")[0]
                    if "flowid" not in text:
                        text += f" classid 1:{w.choice([10, 20] if kind == 'htb' else [1, 2, 3])}"
                w.tc.append(text)
        w.qdiscs = True
