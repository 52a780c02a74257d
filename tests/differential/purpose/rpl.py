"""What differs on purpose: "RPL source routes" in docs/differences.md."""

import ipaddress
import re

import describe

from .common import counts_others, error, pair, purpose, tried


@purpose("A header may become shorter on its way")
def shorter(case, facts, difference, here):
    # Linux writes over the IPv6 header of such a packet, and its next header, source or destination are then others: what becomes of
    # it, or is said of it, is compared with nothing.
    if not difference.kind.startswith("packet"):
        return False
    return any(shrinks(facts, packet, routing) > 0 for layers in tried(case, difference) for packet, routing in sources(layers))


@purpose("A header may become shorter on its way")
def shorter_again(case, facts, difference, here):
    # Also where addresses were left out of it before.
    a, b = pair(difference)
    if a is None:
        return False
    ours = [routing for _, routing in sources(describe.layers(b))]
    came = [routing for layers in tried(case, difference) for packet, routing in sources(layers) if packet["dst"] in facts.own and routing["left"]]
    return any(len(one["data"]) < len(other["data"]) for one in ours for other in came)


def sources(layers):
    """The IPv6 packets, inside each other, that have an RPL header, with that."""
    packet = None
    for name, values in layers:
        if name == "ip6":
            packet = values
        elif name == "routing" and packet and values["type"] == 3:
            yield packet, values
        elif name not in ("hbh", "dstopt"):
            packet = None


def shrinks(facts, packet, routing):
    """By how many bytes the RPL header of a packet for the router becomes shorter there."""
    if routing["type"] != 3 or packet["dst"] not in facts.own:
        return 0
    data = bytes.fromhex(routing["data"])
    addresses = [data[n : n + 16] for n in range(4, len(data), 16)]
    if data[0] or data[1] >> 4 or not 0 < routing["left"] <= len(addresses) or len(data) % 16 != 4:
        return 0
    at = len(addresses) - routing["left"]
    to, addresses[at] = addresses[at], ipaddress.ip_address(packet["dst"]).packed
    common = lambda address: next((n for n, (x, y) in enumerate(zip(to, address)) if x != y), 15)
    size = sum(16 - min(map(common, addresses[:-1])) for _ in addresses[:-1]) + 16 - common(addresses[-1])
    return 16 * len(addresses) - (size + -size % 8)


@purpose("A header may become shorter on its way")
def shorter_counted(case, facts, difference, here):
    # Of such a packet the router tells before it goes into a tunnel, where filters and queues count in Linux what is overwritten. One
    # that goes on has there no header of IPv6 in Linux, and is lost before.
    shorter = [layers for layers in tried(case, difference) if any(shrinks(facts, *one) > 0 for one in sources(layers))]
    if difference.more.get("key") == "stats64.tx.errors" and difference.more["link"] in facts.tunnels:
        return 0 < int(difference.ours[0]) - int(difference.linux[0]) <= len(shorter)
    at = re.search(r" dev (\w+) ", difference.what + " ")
    if not difference.kind.startswith("shows tc -s: ") or at and facts.tunnels.get(at[1]) is None:
        return False
    sizes = []
    for layers in shorter:
        packet, routing = dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")
        if packet and routing and shrinks(facts, packet, routing) > 0:
            data = bytes.fromhex(routing["data"])[4:]
            to = data[len(data) - 16 * routing["left"] :][:16]
            if facts.leads(ipaddress.ip_address(to), rf" dev {at[1] if at else 'tun.'}\b"):
                size = 40 + packet["len"] - shrinks(facts, packet, routing)
                sizes.append((-1 if packet["hops"] <= 1 else 1, {size, size + 14}))
    return counts_others(difference, sizes)


@purpose("Two addresses of the router are a loop")
def two_own(case, facts, difference, here):
    # The router says so, and Linux sends the packet on to the next address, or tells later that this one does not answer.
    sides = [difference.more.get(side) or [] for side in ("there", "here")]
    if sorted(map(len, sides)) != [0, 1] or not here["drops"].get("rpl-loop"):
        return False
    frame, loops = (sides[0] + sides[1])[0], {}
    for layers in tried(case, difference):
        packet, routing = dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")
        if packet and routing and (to := next_in_loop(facts, packet, routing)):
            loops[packet["src"], packet["dst"]] = to
    told = error(frame)
    ends = lambda layers: next(((values["src"], values["dst"]) for name, values in layers if name.endswith("ip6")), None)
    if sides[1]:
        return bool(told) and told[:3] == (6, 4, 0) and ends(told[3]) in loops
    return ends(told[3] if told else describe.layers(frame)) in {(source, to) for (source, _), to in loops.items()}


def next_in_loop(facts, packet, routing):
    """The next address of an RPL header that has two addresses of the router, with another between them, once the packet's own
    destination is in it; none of another."""
    data = bytes.fromhex(routing["data"])
    if routing["type"] != 3 or packet["dst"] not in facts.own or len(data) < 5:
        return None
    own, (inner, last, pad) = ipaddress.ip_address(packet["dst"]).packed, (data[0] >> 4, data[0] & 15, data[1] >> 4)
    number = (len(data) - 4 - pad - (16 - last)) // (16 - inner) + 1
    if not 0 < routing["left"] <= number:
        return None
    behind = 4 + (number - 1) * (16 - inner)
    addresses = [own[:inner] + data[at : at + 16 - inner] for at in range(4, behind, 16 - inner)] + [own[:last] + data[behind : behind + 16 - last]]
    at = number - routing["left"]
    to, addresses[at] = addresses[at], own
    ours = [n for n, address in enumerate(addresses) if str(ipaddress.ip_address(address)) in facts.own]
    return str(ipaddress.ip_address(to)) if len(ours) == 2 and ours[1] > ours[0] + 1 else None
