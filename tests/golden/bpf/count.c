/* Counts in memory that outlives a packet: every third is dropped, and the tag becomes what was counted. */
#include "seg6.h"

static volatile u64 packets;
static const volatile u32 every = 3;

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[4];
	int (*map_flags)[BPF_F_MMAPABLE];
	u32 *key;
	u32 *value;
} by_left SECTION(".maps");

SECTION("seg6") int count(struct __sk_buff *skb)
{
	u8 *packet = (u8 *)(long)skb->data, *end = (u8 *)(long)skb->data_end;
	u32 key, *value;
	u16 tag;

	if (packet + SRH_LIST > end)
		return BPF_DROP;
	key = packet[SRH_LEFT];
	value = map_lookup(&by_left, &key);
	if (!value) {
		/* Beyond the array: an update fails, too. */
		tag = __builtin_bswap16((u16)-map_update(&by_left, &key, &key, 0));
		return store_bytes(skb, SRH_TAG, &tag, 2) ? BPF_DROP : BPF_OK;
	}
	*value += 1;
	if (*value == 4) {
		u32 again = 100;

		if (map_update(&by_left, &key, &again, BPF_EXIST))
			return BPF_DROP;
	}
	__sync_fetch_and_add(&packets, 1);
	if (packets % every == 0)
		return BPF_DROP;
	tag = __builtin_bswap16((u16)(packets << 8 | *value));
	return store_bytes(skb, SRH_TAG, &tag, 2) ? BPF_DROP : BPF_OK;
}
