/* What End does: on to the next segment. */
#include "seg6.h"

SECTION("seg6") int plain(struct __sk_buff *skb)
{
	return BPF_OK;
}
