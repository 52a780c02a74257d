/* Raises the tag of the SRH by one. */
#include "seg6.h"

SECTION("seg6") int tag(struct __sk_buff *skb)
{
	u8 *packet = (u8 *)(long)skb->data, *end = (u8 *)(long)skb->data_end;
	u16 tag;

	if (packet + SRH_LIST > end)
		return BPF_DROP;
	tag = packet[SRH_TAG] << 8 | packet[SRH_TAG + 1];
	tag = __builtin_bswap16(tag + 1);
	return store_bytes(skb, SRH_TAG, &tag, 2) ? BPF_DROP : BPF_OK;
}
