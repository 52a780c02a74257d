"""The cases of the golden packets: for each its configuration, its input frames, and what it shows.

Inputs unless a case says otherwise: hop limit 40, traffic class 0xb8, flow label 0x12345, UDP with 64
bytes of payload, from a host behind p0's neighbour.
"""

from . import (  # noqa: F401
    bareudp,
    blocks,
    bpf,
    bridge,
    by_type,
    devices,
    edits,
    endpoint,
    external,
    fallback,
    fou,
    geneve,
    headend,
    hmac,
    ioam,
    ip,
    leak,
    mpls,
    own,
    own_long,
    priority,
    qdisc,
    qos,
    rewrite,
    rpl,
    segments,
    solicitation,
    source,
    suppress,
    tunnel,
    tunnel_key,
    tunnel_link,
    tunnel_out,
    tunnel_qos,
    vlan,
    vxlan,
    vxlan_group,
)
from .frames import CASES

__all__ = ["CASES"]
