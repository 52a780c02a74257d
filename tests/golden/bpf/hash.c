/* A hash table, which this router refuses. */
#include "seg6.h"

struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[16];
	u32 *key;
	u32 *value;
} seen SECTION(".maps");

SECTION("seg6") int hash(struct __sk_buff *skb)
{
	u32 key = skb->len;

	return map_update(&seen, &key, &key, 0) ? BPF_DROP : BPF_OK;
}
