"""The features of a random router."""

from frames import *
from world import *


def base(w):
    """Ports with addresses and neighbours, and routes to what packets go to."""
    w.vrf_of = {}
    for port in PORTS:
        w.add(f"ip link set {port} up")
    for port in PORTS:
        w.add(f"ip addr add {OWN4[port]}/24 dev {port}", f"ip addr add {OWN6[port]}/64 dev {port} nodad")
        for n, (near4, near6) in enumerate(zip(NEAR4[port], NEAR6[port])):
            lladdr = f"02:00:00:00:0{PORTS.index(port) + 1}:0{n + 2}"
            for near in (near4, near6):
                w.add(f"ip neigh add {near} lladdr {lladdr} dev {port} nud permanent")
    w.target(3, lambda: (None, 0x0800, w.packet4()))
    w.target(3, lambda: (None, 0x86DD, w.packet6()))
    # Answers go back, and tunnels have ends.
    w.add("ip route add 198.51.100.0/24 via 10.0.0.2", "ip route add 203.0.113.0/24 via 10.0.1.2")
    w.add("ip -6 route add 2001:db8:5::/48 via 2001:db8:0::2 dev p0", "ip -6 route add 2001:db8:f::/48 via 2001:db8:1::2 dev p1")


def hop(w, version, devices=PORTS):
    """`via … dev …`, or less."""
    port = w.choice(devices)
    if port not in PORTS:
        return f"dev {port}" if port not in w.taps else f"via {'10.5' + port[3:] + '.0.2' if version == 4 else '2001:db8:5' + port[3:] + '::2'} dev {port}"
    near = w.choice((NEAR4 if version == 4 else NEAR6)[port])
    if version == 4 and w.chance(0.1):
        return f"via inet6 {w.choice(NEAR6[port])} dev {port}"
    return f"via {near}" + w.maybe(0.7, f" dev {port}") if port not in w.master else f"via {near} dev {port}"


def prefix(w, version):
    return w.choice(PREFIXES4 if version == 4 else PREFIXES6) if w.chance(0.93) else "default"


def routes(w):
    for _ in range(w.randint(3, 9)):
        version = w.choice([4, 6])
        ip = "ip" if version == 4 else "ip -6"
        to, table = prefix(w, version), w.maybe(0.15, f"table {w.choice(TABLES)}")
        kind = w.choices(["via", "special", "dev", "nexthop", "metrics"], [60, 12, 8, 12, 8])[0]
        if kind == "special":
            rest = w.choice(["blackhole {}", "unreachable {}", "prohibit {}", "throw {}"]).format(to)
        elif kind == "dev":
            rest = f"{to} dev {w.choice(PORTS + list(w.vrfs) + [t for t in w.tunnels if t not in w.taps])}"
        elif kind == "nexthop" and w.nexthops:
            rest = f"{to} nhid {w.choice(w.nexthops)}"
        elif kind == "metrics":
            rest = f"{to} {hop(w, version)} {w.choice(['mtu 1400', 'mtu lock 1300', 'mtu 1280', 'advmss 1200', 'metric 50', 'hoplimit 33', 'src ' + (w.own4 if version == 4 else w.own6)['p0']])}"
        else:
            rest = f"{to} {hop(w, version, PORTS * 3 + w.tunnels)} {w.maybe(0.1, 'onlink')} {w.maybe(0.1, 'metric 77')} {w.maybe(0.05, 'proto static')}"
        verb = w.choices(["add", "replace", "append", "del"], [85, 7, 4, 4])[0]
        w.add(f"{ip} route {verb} {rest} {table}")


def vrfs(w):
    for n in range(w.randint(1, 2)):
        name, table = f"vrf{n + 1}", TABLES[n]
        w.vrfs[name] = table
        w.add(f"ip link add {name} address 02:00:00:00:0b:0{n + 1} type vrf table {table}", f"ip link set {name} up")
        port = ["p2", "p1"][n]
        w.master[port] = name
        # Enslaving takes the IPv6 addresses and the routes away.
        w.add(f"ip link set {port} master {name}", f"ip addr add {OWN6[port]}/64 dev {port} nodad")
        i = PORTS.index(port)
        for n, near in enumerate(NEAR6[port]):
            w.add(f"ip neigh replace {near} lladdr 02:00:00:00:0{i + 1}:0{n + 2} dev {port} nud permanent")
        for n, near in enumerate(NEAR4[port]):
            w.add(f"ip neigh replace {near} lladdr 02:00:00:00:0{i + 1}:0{n + 2} dev {port} nud permanent")
        for _ in range(w.randint(1, 4)):
            version = w.choice([4, 6])
            ip = "ip" if version == 4 else "ip -6"
            outs = [port] if w.chance(0.7) else PORTS
            w.add(f"{ip} route add {prefix(w, version)} {hop(w, version, outs)} {w.choice([f'vrf {name}', f'table {table}'])}")
        if w.chance(0.3):
            w.add(f"ip route add unreachable default metric 4278198272 vrf {name}")
        if w.chance(0.2):
            w.add(f"ip addr add 10.20.{i}.1/32 dev {name}")
        if w.chance(0.5):
            w.add(f"ip route add 198.51.100.0/24 {hop(w, 4, [port])} vrf {name}")
            w.add(f"ip -6 route add 2001:db8:5::/48 {hop(w, 6, [port])} vrf {name}")
        w.target(4, lambda i=i: (i, *w.inner()))


def rules(w):
    for _ in range(w.randint(1, 4)):
        version = w.choice([4, 6])
        ip = "ip" if version == 4 else "ip -6"
        selector = []
        if w.chance(0.4):
            selector.append("from " + w.choice(["198.51.100.7", "198.51.100.0/24"] if version == 4 else ["2001:db8:5::5", "2001:db8:5::/48"]))
        if w.chance(0.3):
            selector.append("to " + prefix(w, version).replace("default", "all"))
        if w.chance(0.3):
            selector.append("iif " + w.choice(PORTS + ["lo"] + w.tunnels + list(w.vrfs)))
        if w.chance(0.2):
            selector.append("tos " + w.choice(["0x10", "0x08", "0x04", "0xb8"]))
        if w.chance(0.2):
            selector.append("ipproto " + w.choice(["udp", "tcp", "icmp", "ipv6-icmp"]))
        if w.chance(0.15):
            selector.append(w.choice(["sport 1111", "dport 2222", "dport 50-443", "sport 80-1200"]))
        if w.chance(0.1):
            selector.append("fwmark " + w.choice(["1", "0x10/0xf0"]))
        if w.chance(0.1):
            selector.insert(0, "not")
        if w.chance(0.05):
            selector.append("oif " + w.choice(PORTS))
        action = w.choices(
            [f"lookup {w.choice(TABLES + ['main'])}", "blackhole", "unreachable", "prohibit", "goto 32766", "nop"], [75, 5, 7, 7, 4, 2]
        )[0]
        if "lookup" in action and w.chance(0.1):
            action += w.choice([" suppress_prefixlength 0", " suppress_prefixlength 16"])
        pref = w.maybe(0.8, f"pref {w.choice([10, 20, 1000, 1001, 32000, 0])}")
        w.add(f"{ip} rule add {' '.join(selector)} {pref} {action}")
    for table in w.some(TABLES, 2):
        for version in (4, 6):
            if w.chance(0.7):
                w.add(f"{'ip' if version == 4 else 'ip -6'} route add {prefix(w, version)} {hop(w, version)} table {table}")


def nexthops(w):
    for n in range(1, w.randint(2, 4)):
        version = w.choice([4, 6])
        encap = w.maybe(0.25, encap_of(w, version))
        what = w.choices([f"{encap} {hop_with_dev(w, version)}", "blackhole", f"dev {w.choice(PORTS)}", f"group {'/'.join(map(str, w.some(w.nexthops or [1], 1)))}"], [80, 6, 6, 8])[0]
        family = "" if "via" in what or "group" in what else w.choice(["", "-6 "])
        w.add(f"ip {family}nexthop add id {n} {what}")
        w.nexthops.append(n)


def hop_with_dev(w, version):
    port = w.choice(PORTS)
    return f"via {w.choice((NEAR4 if version == 4 else NEAR6)[port])} dev {port}"


def segment_list(w):
    pool = HOSTS6[5:] + ["fc00:a::2", "fc00:b::3", "fc00:a::9"] + w.sids
    return ",".join(w.choice(pool) for _ in range(w.choices([1, 2, 3, 7], [40, 35, 20, 5])[0]))


def seg6(w, version):
    mode = w.choice(["encap", "encap.red", "inline", "l2encap", "l2encap.red"] if version == 6 else ["encap", "encap.red", "l2encap", "l2encap.red"])
    return f"encap seg6 mode {mode} segs {segment_list(w)}" + w.maybe(0.08 if w.hmac else 0, " hmac 1")


def encap_of(w, version):
    kinds = ["seg6", "seg6", "mpls"]
    if version == 6:
        kinds += ["ioam6"] if w.ioam else []
        kinds += ["rpl"]
    kind = w.choice(kinds)
    if kind == "seg6":
        return seg6(w, version)
    if kind == "mpls":
        return mpls_encap(w)
    if kind == "ioam6":
        return ioam_encap(w)
    return f"encap rpl segs {','.join(w.some(HOSTS6 + ['2001:db8:a:1::8', '2001:db8:a:1::9'], 3))}"


def mpls_encap(w):
    return f"encap mpls {'/'.join(str(w.choice([16, 200, 201, 1048575, 0, 2])) for _ in range(w.choices([1, 2, 3], [60, 30, 10])[0]))}" + w.maybe(0.2, " ttl 7")


def headends(w):
    if w.chance(0.3):
        w.add(f"ip sr tunsrc set {w.choice(['2001:db8::9', '2001:db8:1::1'])}")
    for _ in range(w.randint(1, 4)):
        version = w.choice([4, 6])
        ip = "ip" if version == 4 else "ip -6"
        out = hop_with_dev(w, version) if w.chance(0.6) else f"dev {w.choice(PORTS)}"
        w.add(f"{ip} route replace {prefix(w, version)} {encap_of(w, version)} {out}" + w.maybe(0.1, f" table {w.choice(TABLES)}"))
    for to in ["fc00:a::/32", "fc00:b::/32"]:
        if w.chance(0.8):
            w.add(f"ip -6 route replace {to} {hop(w, 6)}")


def own_segments(w):
    """seg6_enabled, and HMAC keys."""
    w.add("sysctl -qw net.ipv6.conf.all.seg6_enabled=1", f"sysctl -qw net.ipv6.conf.{w.choice(PORTS)}.seg6_enabled=1")
    own = lambda: w.choice([OWN6["p0"], OWN6["p1"], OWN6["p2"]])
    w.target(4, lambda: (None, 0x86DD, through(w, own())))


def rpl_transit(w):
    w.add("sysctl -qw net.ipv6.conf.all.rpl_seg_enabled=1")
    w.add(*[f"sysctl -qw net.ipv6.conf.{port}.rpl_seg_enabled=1" for port in w.some(PORTS, 3)])

    def make():
        segments = [w.choice(HOSTS6) for _ in range(w.randint(1, 4))]
        to, source = w.choice(list(OWN6.values())), w.choice(SOURCES6)
        following, data = w.transport(source, segments[-1], 6)
        left = w.choice([len(segments), len(segments), 1, 0, len(segments) + 1])
        return None, 0x86DD, ip6(source, to, 43, rpl(following, segments, left) + data, w.ttl())

    w.target(4, make)


def through(w, sid):
    """An IPv6 packet for a SID, with or without an SRH."""
    source = w.choice(SOURCES6)
    what = w.choices(["inner4", "inner6", "ethernet", "transport"], [30, 30, 10, 30])[0]
    if what == "transport":
        following, data = w.transport(source, w.choice(HOSTS6), 6)
    elif what == "ethernet":
        kind, inside = w.inner()
        following, data = 143, ether("02:00:00:00:09:01", "02:00:00:00:09:02", kind, inside)
    else:
        following, data = (4, w.packet4()) if what == "inner4" else (41, w.packet6())
    if w.chance(0.7):
        count = w.choices([1, 2, 3, 5], [35, 35, 20, 10])[0]
        segments = [w.choice(HOSTS6 + w.sids) for _ in range(count)]
        left = w.choices([w.randrange(count), 0, count, count + 1], [50, 40, 7, 3])[0]
        if left < count:
            segments[left] = sid
        tlvs = w.choices([b"", b"\4\6" + bytes(6), b"\0\1\5" + bytes(5), b"\5\6" + bytes(6)], [88, 5, 4, 3])[0]
        header = srh(following, segments, left, tlvs, flags=w.choices([0, 8], [95, 5])[0], tag=w.choice([0, 77]), last=None if w.chance(0.93) else w.choice([0, count, count - 2]))
        following, data = 43, header + data
    if w.chance(0.06):
        following, data = w.extended(following, data)
    return ip6(source, sid, following, data, w.ttl(), w.traffic_class(), w.choice([0, 0, 0x54321]))


def sids(w):
    w.sids = w.some(SIDS, 4)
    for sid in w.sids:
        port = w.choice(PORTS)
        table = w.choice(["main", "local", *TABLES])
        action = w.choice(
            [
                "End", "End flavors psp", "End flavors next-csid", "End flavors next-csid lblen 32 nflen 16", "End",
                f"End.X nh6 {w.choice(NEAR6[port])}", f"End.X nh6 {w.choice(NEAR6[port])} flavors next-csid",
                f"End.T table {table}", f"End.DX6 nh6 {w.choice(['::', *NEAR6[port]])}", f"End.DX4 nh4 {w.choice(NEAR4[port])}",
                f"End.DX2 oif {port}", f"End.DT6 table {table}", f"End.DT4 vrftable {w.choice(TABLES)}",
                f"End.DT6 vrftable {w.choice(TABLES)}", f"End.DT46 vrftable {w.choice(TABLES)}",
                f"End.B6 srh segs {segment_list(w)}", f"End.B6.Encaps srh segs {segment_list(w)}",
            ]
        )
        if "lblen" in action and w.chance(0.2):
            action = action.replace("32", w.choice(["48", "120", "0", "33"]))
        w.add(f"ip -6 route add {sid}{w.choice(['/128', '/128', '/64' if False else '/128'])} encap seg6local action {action} {w.maybe(0.7, 'count')} dev {w.choice(PORTS)}" + w.maybe(0.05, f" table {w.choice(TABLES)}"))
        w.target(6, lambda sid=sid: (None, 0x86DD, through(w, sid)))


def mpls_routes(w):
    w.add("sysctl -qw net.mpls.platform_labels=1000")
    for port in w.some(PORTS, 3):
        w.add(f"sysctl -qw net.mpls.conf.{port}.input=1")
    if w.chance(0.2):
        w.add("sysctl -qw net.mpls.ip_ttl_propagate=0")
    for label in w.some([100, 101, 102, 103, 104, 999], 5):
        w.labels.append(label)
        port = w.choice(PORTS)
        via = w.choice([f"via inet {w.choice(NEAR4[port])} dev {port}", f"via inet6 {w.choice(NEAR6[port])} dev {port}", f"dev {w.choice(['lo', *w.vrfs] or ['lo'])}"])
        out = "" if via.startswith("dev") or w.chance(0.4) else "as " + "/".join(str(w.choice([200, 201, 16, 0, 2])) for _ in range(w.choice([1, 1, 2])))
        w.add(f"ip -f mpls route add {label} {out} {via}" + w.maybe(0.15, " ttl-propagate " + w.choice(["enabled", "disabled"])))

    def make():
        labels = [w.choice(w.labels * 4 + [0, 1, 2, 3, 7, 15, 500, 1001]) for _ in range(w.choices([1, 2, 3], [70, 22, 8])[0])]
        _, inside = w.inner() if w.chance(0.95) else (0, bytes(20))
        return None, 0x8847, mpls([(label, w.choice([0, 0, 5]), w.ttl()) for label in labels], inside)

    w.target(7, make)
    if w.chance(0.6):
        for _ in range(w.randint(1, 2)):
            version = w.choice([4, 6])
            w.add(f"{'ip' if version == 4 else 'ip -6'} route replace {prefix(w, version)} {mpls_encap(w)} {hop_with_dev(w, version)}")


def tunnels(w):
    if w.chance(0.35):
        fou_ports(w)
    for n in range(w.randint(1, 3)):
        one_tunnel(w, f"tun{n + 1}")
    for version in (4, 6):
        for name in w.tunnels:
            if w.chance(0.8) and name not in w.taps:
                w.add(f"{'ip' if version == 4 else 'ip -6'} route replace {prefix(w, version)} dev {name}")


def fou_ports(w):
    for port, kind in w.sample([("5555", "ipproto 4"), ("5556", "gue"), ("5557", "ipproto 41"), ("5558", "ipproto 47"), ("5559", "gue")], w.randint(1, 3)):
        family = w.choice(["", "", "-6"])
        w.add(f"ip fou add port {port} {kind} {family}")

        def make(port=int(port), kind=kind, family=family):
            protocol = w.choice([4, 41, 47])
            if kind != "gue" and w.chance(0.9):
                protocol = int(kind.split()[1])
            inside = {4: lambda: w.packet4(), 41: lambda: w.packet6(), 47: lambda: gre_packet(w)}[protocol]()
            if kind == "gue":
                inside = gue(protocol, inside, w.choices([0, 1], [95, 5])[0]) if w.chance(0.85) else inside
            if family:
                source, to = w.choice(FAR6), w.choice(list(OWN6.values()))
                return None, 0x86DD, ip6(source, to, 17, udp(source, to, (7777, port), inside), w.ttl(), w.traffic_class())
            source, to = w.choice(FAR4), w.choice(list(OWN4.values()))
            return None, 0x0800, ip4(source, to, 17, udp(source, to, (7777, port), inside, w.chance(0.5)), w.ttl(), w.traffic_class())

        w.target(3, make)


def gre_packet(w, keys=(None,), taps=False):
    kind, inside = w.inner()
    if taps or w.chance(0.1):
        kind, inside = 0x6558, ether(w.choice(["02:00:00:00:09:01", "ff:ff:ff:ff:ff:ff", "02:00:00:00:0a:01"]), "02:00:00:00:09:02", kind, inside)
    return gre(kind, inside, w.choice(keys) if w.chance(0.95) else 99, w.choice([None, None, w.randrange(10)]), w.chance(0.3), w.choices([0, 0x4000, 0x0001, 0x0800], [96, 1, 2, 1])[0])


def one_tunnel(w, name):
    kind = w.choice(["ipip", "sit", "gre", "gretap", "ip6tnl", "ip6gre", "ip6gretap"])
    over6 = kind.startswith("ip6")
    own, far = (w.choice(list(OWN6.values())), w.choice(FAR6)) if over6 else (w.choice(list(OWN4.values())), w.choice(FAR4))
    words, keys, external = [f"ip link add {name}"], [None], w.chance(0.12)
    if kind.endswith("tap"):
        words.append("address 02:00:00:00:0a:01")
    words.append(f"type {kind}")
    if external:
        words.append("external")
        keys = [None, 5, 77]
    else:
        local, remote = w.chance(0.9), w.chance(0.9)
        words.append((f"local {own} " if local else "") + (f"remote {far}" if remote else ""))
        if "gre" in kind:
            if w.chance(0.4):
                key = w.choice([5, 77])
                words.append(w.choice([f"key {key}", f"ikey {key} okey {key + 1}"]))
                keys = [key]
            # What Linux says of its groups in a tunnel of Ethernet has numbers, too.
            words.append(w.maybe(0.25, "iseq" if kind.endswith("tap") else w.choice(["seq", "iseq", "oseq"])))
            words.append(w.maybe(0.25, w.choice(["csum", "icsum", "ocsum"])))
        if w.chance(0.3):
            words.append(w.choice(["ttl 5", "ttl 64", "ttl inherit"] if not over6 else ["hoplimit 5", "ttl 64"]))
        if w.chance(0.25):
            words.append(w.choice(["tos 0x10", "tos inherit"] if not over6 else ["tclass 0x10", "tclass inherit", "flowlabel 0x12345", "flowlabel inherit", "encaplimit none", "encaplimit 2"]))
        if kind == "ip6tnl":
            words.append(f"mode {w.choice(['any', 'any', 'ipip6', 'ip6ip6'])}")
        if kind in ("sit", "ipip"):
            words.append(w.maybe(0.4, "mode any"))
        if not over6:
            words.append(w.maybe(0.2, "nopmtudisc"))
            words.append(w.maybe(0.06, "ignore-df"))
        words.append(w.maybe(0.15, f"dev {w.choice(PORTS)}"))
        if w.chance(0.2):
            words.append(f"encap {w.choice(['fou', 'gue'])} encap-sport {w.choice(['auto', '7777'])} encap-dport {w.choice([5555, 5556])} {w.maybe(0.3, 'encap-csum')} {w.maybe(0.1, 'encap-remcsum')}")
    w.add(" ".join(words))
    w.tunnels.append(name)
    w.devices.append(name)
    if external:
        w.encap_devices.append((name, kind))
        for _ in range(w.randint(1, 2)):
            version = w.choice([4, 6])
            ip = "ip" if version == 4 else "ip -6"
            encap = f"encap ip6 id {w.choice([5, 77])} dst {w.choice(FAR6)} src {w.choice(list(OWN6.values()))} {w.maybe(0.5, 'hoplimit 9')} {w.maybe(0.2, 'key')}" if over6 else f"encap ip id {w.choice([5, 77])} dst {w.choice(FAR4)} {w.maybe(0.6, 'src ' + w.choice(list(OWN4.values())))} {w.maybe(0.5, 'ttl 9')} {w.maybe(0.2, 'tos 16')} {w.maybe(0.2, 'key')} {w.maybe(0.1, 'csum')}"
            near = f"via inet{'6' if over6 else ''} {'2001:db8:77::9' if over6 else '10.77.0.9'}" if False else ""
            w.add(f"{ip} route replace {prefix(w, version)} {encap} {near} dev {name}")
    if w.vrfs and w.chance(0.3):
        w.add(f"ip link set {name} master {w.choice(list(w.vrfs))}")
    elif kind.endswith("tap") and False:
        pass
    if w.chance(0.2):
        w.add(f"ip link set {name} mtu {w.choice([1280, 1400, 1500, 1300])}")
    # A link-local address of Linux's is made from what it chooses at random.
    w.add(f"ip link set {name} addrgenmode none", f"ip link set {name} up")
    number = name[3:]
    if w.chance(0.8):
        w.add(f"ip addr add 10.5{number}.0.1/24 dev {name}")
        w.own4[name] = f"10.5{number}.0.1"
    if w.chance(0.6):
        w.add(f"ip addr add 2001:db8:5{number}::1/64 dev {name} nodad")
        w.own6[name] = f"2001:db8:5{number}::1"
    if kind.endswith("tap"):
        w.taps.append(name)
        w.add(f"ip neigh add 10.5{number}.0.2 lladdr 02:00:00:00:09:01 dev {name} nud permanent")
        w.add(f"ip neigh add 2001:db8:5{number}::2 lladdr 02:00:00:00:09:01 dev {name} nud permanent")
        w.add(f"ip route replace {prefix(w, 4)} via 10.5{number}.0.2 dev {name}")
        w.add(f"ip -6 route replace {prefix(w, 6)} via 2001:db8:5{number}::2 dev {name}")

    def make():
        source, to = (far, own) if w.chance(0.9) else (w.choice(FAR6 if over6 else FAR4), w.choice(list((OWN6 if over6 else OWN4).values())))
        if "gre" in kind:
            protocol, inside = 47, gre_packet(w, keys, kind.endswith("tap") and w.chance(0.95))
        elif w.chance(0.5) if kind == "ip6tnl" else kind == "ipip" and w.chance(0.9):
            protocol, inside = 4, w.packet4()
        else:
            protocol, inside = 41, w.packet6()
        if w.chance(0.04):
            protocol = w.choice([4, 41, 47, 137])
        if over6:
            if w.chance(0.2):
                protocol, inside = 60, options(protocol, b"\4\1\4") + inside
            return None, 0x86DD, ip6(source, to, protocol, inside, w.ttl(), w.traffic_class(), w.choice([0, 0, 0x777]))
        return None, 0x0800, ip4(source, to, protocol, inside, w.ttl(), w.traffic_class(), w.randrange(65536), w.choice([0, 2]))

    w.target(6, make)
    w.target(3, lambda: told_of(w, kind, own, far, over6, keys))


# Cases of lower numbers are as they were before there was any of it.
METADATA_FROM = 1_000_000
PROGRAMS_FROM = 2_000_000


def programs(w):
    """End.BPF with the programs of tests/golden/bpf, below which the lines run."""
    for sid in w.some(["fc00:e::b", "fc00:e::c"], 2):
        name = w.choice(["plain", "tag", "count", "steer", "steer"])
        section = "seg6" if w.chance(0.95) else "missing"
        w.add(f"ip -6 route add {sid}/128 encap seg6local action End.BPF endpoint obj bpf/{name}.o section {section} {w.maybe(0.5, 'count')} dev {w.choice(PORTS)}")
        w.sids.append(sid)

        def make(sid=sid, name=name):
            kind, data = 0x86DD, bytearray(through(w, sid))
            if data[6] == 43 and len(data) > 48:
                # steer does what the tag of the SRH says.
                data[46:48] = (w.randrange(56) if name == "steer" else w.choice([0, 1, 0xFFFF])).to_bytes(2, "big")
            return None, kind, bytes(data)

        w.target(8, make)


def metadata(w):
    """`bareudp`, beside tunnels that are `external`: routes and actions say where their packets go."""
    for n in range(w.randint(1, 2)):
        name, port = f"tun{n + 4}", 6635 + n
        ethertype = w.choice(["ipv4", "ipv4 multiproto", "ipv6", "mpls_uc"])
        w.add(f"ip link add {name} type bareudp dstport {port} ethertype {ethertype} {w.maybe(0.3, 'srcportmin 60000')}")
        if w.vrfs and w.chance(0.15):
            w.add(f"ip link set {name} master {w.choice(list(w.vrfs))}")
        w.add(f"ip link set {name} mtu {w.choice([1280, 1400, 1472])}" if w.chance(0.3) else f"ip link set {name} mtu 1500")
        w.add(f"ip link set {name} addrgenmode none", f"ip link set {name} up")
        w.devices.append(name)
        w.tunnels.append(name)
        w.keyed.append((name, 0x8847 if ethertype == "mpls_uc" else None))
        for version in (4, 6):
            if w.chance(0.6):
                w.add(f"{'ip' if version == 4 else 'ip -6'} route replace {prefix(w, version)} {w.maybe(0.5, route_key(w))} dev {name}")

        def make(port=port, ethertype=ethertype):
            kind, inside = w.inner((6,) if ethertype == "ipv6" else (4, 4, 6) if "multi" in ethertype else (4,))
            if ethertype == "mpls_uc":
                inside = mpls([(w.choice([100, 200, 300]), 0, w.ttl())], inside)
            if w.chance(0.5):
                source, to = w.choice(FAR6), w.choice(list(OWN6.values()))
                return None, 0x86DD, ip6(source, to, 17, udp(source, to, (7777, port), inside), w.ttl(), w.traffic_class())
            source, to = w.choice(FAR4), w.choice(list(OWN4.values()))
            return None, 0x0800, ip4(source, to, 17, udp(source, to, (7777, port), inside, w.chance(0.5)), w.ttl(), w.traffic_class())

        w.target(4, make)
    w.keyed += [(name, None) for name, _ in w.encap_devices]


def route_key(w):
    if w.chance(0.5):
        return f"encap ip6 id 5 dst {w.choice(FAR6)} src {w.choice(list(OWN6.values()))} hoplimit {w.choice([9, 64])} {w.maybe(0.5, 'csum')}"
    return f"encap ip id 5 dst {w.choice(FAR4)} {w.maybe(0.5, 'src ' + w.choice(list(OWN4.values())))} ttl {w.choice([9, 64])} {w.maybe(0.3, 'tos 16')} {w.maybe(0.5, 'csum')}"


def told_of(w, kind, own, far, over6, keys):
    """What a router on the way says of a packet that went into the tunnel."""
    inside = w.packet6(ttl := None) if kind == "sit" else w.packet4()
    protocol = {"ipip": 4, "sit": 41, "ip6tnl": 4}.get(kind, 47)
    if protocol == 47:
        inside = gre(0x0800, inside, keys[0])
    if over6:
        quoted = ip6(own, far, protocol, inside, 60)[:1200]
        kind, code, rest = w.choice([(2, 0, w.choice([1300, 1280, 1400, 1000])), (1, 0, 0), (1, 3, 0), (3, 0, 0), (4, 0, 40)])
        near = "2001:db8:1::2"
        return 1, 0x86DD, ip6(near, own, 58, icmp6(near, own, kind, code, rest, quoted))
    quoted = ip4(own, far, protocol, inside, 60, flags=2)[: w.choice([28, 548])]
    kind, code, rest = w.choice([(3, 4, w.choice([1300, 1400, 576, 68, 500])), (3, 1, 0), (3, 0, 0), (11, 0, 0), (3, 2, 0), (12, 0, 0)])
    return 1, 0x0800, ip4("10.0.1.2", own, 1, icmp4(kind, code, rest, quoted))


def ioam_encap(w):
    kind = w.choice([0x800000, 0xC00000, 0xF00000, 0x842000, 0xFFF002, 0x300000])
    words = bin(kind & 0xFF1FFC).count("1") + 2 * bin(kind & 0xE000).count("1")
    size = 4 * words * w.randint(1, 3) + w.choice([0, 0, 4])
    mode = w.choice(["", "", "mode inline", f"mode encap tundst {w.choice(HOSTS6)}", f"mode auto tundst {w.choice(HOSTS6)}"])
    freq = w.maybe(0.15, f"freq {w.choice(['1/2', '1/3', '2/3'])} ")
    return f"encap ioam6 {freq}{mode} trace prealloc type {kind:#x} ns {w.choice([123, 123, 7, 5])} size {min(size, 244)}"


def ioam(w):
    w.ioam = True
    w.add("sysctl -qw net.ipv6.ioam6_id=11259375", "sysctl -qw net.ipv6.ioam6_id_wide=4822678189205111")
    for i, port in enumerate(PORTS):
        if w.chance(0.7):
            w.add(f"sysctl -qw net.ipv6.conf.{port}.ioam6_enabled=1")
        if w.chance(0.6):
            w.add(f"sysctl -qw net.ipv6.conf.{port}.ioam6_id={258 + i}", f"sysctl -qw net.ipv6.conf.{port}.ioam6_id_wide={168496141 + i}")
    w.add("ip ioam namespace add 123 data 0xdeadbee0 wide 0xcafec0caf00dc0de")
    if w.chance(0.4):
        w.add("ip ioam namespace add 7")
    if w.chance(0.4):
        w.add("ip ioam schema add 777 something", "ip ioam namespace set 123 schema 777")
    for _ in range(w.randint(0, 2)):
        w.add(f"ip -6 route replace {prefix(w, 6)} {ioam_encap(w)} {hop_with_dev(w, 6)}")

    def make():
        kind = w.choice([0x800000, 0xC00000, 0xF00000, 0x842000, 0xFFF002, 1 << w.randrange(24), 0x30E000])
        option = ioam_trace(kind, w.choice([1, 2, 4, 12, 20]), bytes(4 * w.choice([0, 0, 2])), w.choice([123, 123, 7, 9]), None if w.chance(0.9) else w.randrange(32), w.choices([0, 1], [95, 5])[0])
        if w.chance(0.1):
            option += b"\5\2\0\0"
        source, to = w.choice(SOURCES6), w.choice(HOSTS6 + [OWN6["p0"]])
        following, data = w.transport(source, to, 6)
        return None, 0x86DD, ip6(source, to, 0, options(following, b"\1\0" + option) + data[:800], w.ttl())

    w.target(6, make)


ALL = [
    (vrfs, 0.35), (tunnels, 0.45), (ioam, 0.12), (nexthops, 0.25), (routes, 0.9), (rules, 0.3), (sids, 0.4), (headends, 0.35), (mpls_routes, 0.25), (own_segments, 0.12), (rpl_transit, 0.1),
]


def changes(w):
    """Lines that change, take away, or are wrong."""
    devices = w.tunnels + list(w.vrfs) + PORTS
    for _ in range(w.randint(1, 4)):
        old = w.choice(w.lines)
        what = w.choice(["again", "del", "word", "down", "mtu", "word"])
        if what == "again":
            w.add(old)
        elif what == "del" and " add " in old and not old.startswith("ip link"):
            w.add(old.replace(" add ", " del ", 1))
        elif what == "down":
            name = w.choice(devices)
            w.add(f"ip link set {name} down", f"ip link set {name} up")
        elif what == "mtu":
            w.least = 1280
            w.add(f"ip link set {w.choice(devices)} mtu {w.choice([1280, 1400, 1500])}")
        else:
            words = old.split()
            at = w.randrange(len(words))
            if at > 1:
                # A link that gets no master, as what is named is none, has lost the one that it had in Linux.
                loses = words[at - 1] == "master"
                words[at] = w.choice(["0", "default", "1", "::", "p0", "10.0.0.1", "65536", "main"])
                if not loses:
                    w.add(" ".join(words))
