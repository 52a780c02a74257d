"""What differs on purpose at VLAN devices, bridges, VXLAN and Geneve devices."""

import compare

from .common import purpose


@purpose("`promiscuity` and `allmulti` of a link count its bridge alone")
def listening(case, facts, difference, here):
    return difference.more.get("key") in compare.LISTENING


@purpose("Copies of a frame leave in another order")
def order_of_copies(case, facts, difference, here):
    bridged = any(" type bridge " in line or "fdb append" in line for line in facts.lines)
    return bridged and difference.kind.startswith("packets in another order") and difference.more["same"]
