/* One thing for each tag of the SRH; what a helper returned goes out as the tag, for all to see. */
#include "seg6.h"

struct list {
	u8 next, len, type, left, last, flags;
	u16 tag;
	u8 segments[32];
};

/* 2001:db8:2::3, and two segments: fc00:c::1 is the first to visit, fc00:b::1 the last. */
static const u8 neighbour[16] = { 0x20, 1, 0xd, 0xb8, 0, 2, [15] = 3 };
static const u8 nowhere[16] = { 0xfd, 0, [15] = 1 };

static NOINLINE int report(struct __sk_buff *skb, s64 value)
{
	u16 tag = __builtin_bswap16((u16)(value < 0 ? -value : value));

	return store_bytes(skb, SRH_TAG, &tag, 2) ? BPF_DROP : BPF_OK;
}

static inline void fill(struct list *list)
{
	__builtin_memset(list, 0, sizeof(*list));
	list->len = 4;
	list->type = 4;
	list->left = 1;
	list->last = 1;
	list->segments[0] = list->segments[16] = 0xfc;
	list->segments[3] = 0xb;
	list->segments[19] = 0xc;
	list->segments[15] = list->segments[31] = 1;
}

static NOINLINE u64 mix(u64 a, u64 b)
{
	u32 small = (u32)(a ^ b);

	for (int i = 0; i < 9; i++) {
		a = a * 6364136223846793005ULL + b;
		b ^= a >> (i + 3);
		b = b % (a | 1) + (s64)a / 7 * 0 + a / ((b & 0xff) + 1);
		small = (small << 5 | small >> 27) * 2654435761U - (small / 11);
		if ((int)small < (int)b)
			a -= small;
		if ((s64)a < (s64)b)
			b = -b;
		a += __builtin_bswap64(b) ^ __builtin_bswap32(small) ^ __builtin_bswap16((u16)b);
		small += (u32)((int)small >> 3) + (u32)((s64)a >> 9);
	}
	return a ^ b ^ small;
}

SECTION("seg6") int steer(struct __sk_buff *skb)
{
	u8 *packet = (u8 *)(long)skb->data, *end = (u8 *)(long)skb->data_end;
	u8 tlv[16] = { 4, 6 }, six[16];
	struct list list;
	u32 tlvs, srh_end;
	int table, err;
	u16 half;
	u32 sums[2];
	u64 sum;

	if (packet + SRH_LIST > end)
		return BPF_DROP;
	tlvs = SRH_LIST + (packet[SRH_LAST] + 1) * 16;
	srh_end = SRH_LIST + packet[SRH_LEN] * 8;
	fill(&list);
	switch (packet[SRH_TAG] << 8 | packet[SRH_TAG + 1]) {
	case 1:
		return report(skb, 0xbeef);
	case 2:
		return store_bytes(skb, SRH_FLAGS, "\xf0\x12\x34", 3) ? BPF_DROP : BPF_OK;
	case 3:
		return report(skb, store_bytes(skb, SRH_LEFT, tlv, 1));
	case 4:
		return report(skb, store_bytes(skb, SRH_LIST, tlv, 8));
	case 5:
		return store_bytes(skb, tlvs - 8, tlv, 8) ? BPF_DROP : BPF_OK;
	case 6:
		if (adjust_srh(skb, srh_end, 8) || store_bytes(skb, srh_end, tlv, 8))
			return BPF_DROP;
		return BPF_OK;
	case 7:
		return report(skb, adjust_srh(skb, srh_end, 8));
	case 8:
		return report(skb, adjust_srh(skb, srh_end, 4));
	case 9:
		return report(skb, adjust_srh(skb, tlvs, -8));
	case 10:
		return report(skb, adjust_srh(skb, tlvs - 8, 8));
	case 11:
		return report(skb, adjust_srh(skb, tlvs, -16));
	case 12:
		tlv[1] = 14;
		if (adjust_srh(skb, tlvs, 16) || store_bytes(skb, tlvs, tlv, 16))
			return BPF_DROP;
		return report(skb, skb->len);
	case 13:
		tlv[1] = 60;
		if (adjust_srh(skb, srh_end, 8))
			return BPF_DROP;
		return report(skb, store_bytes(skb, srh_end, tlv, 8));
	case 14:
		tlv[1] = 60;
		if (adjust_srh(skb, srh_end, 8) || store_bytes(skb, srh_end, tlv, 8))
			return BPF_DROP;
		err = action(skb, END_X, (void *)neighbour, 16);
		tlv[1] = 6;
		if (store_bytes(skb, srh_end, tlv, 8))
			return BPF_DROP;
		return report(skb, err);
	case 15:
		return action(skb, END_X, (void *)neighbour, 16) ? BPF_DROP : BPF_REDIRECT;
	case 16:
		return report(skb, action(skb, END_X, (void *)neighbour, 8));
	case 17:
		table = 100;
		return action(skb, END_T, &table, 4) ? BPF_DROP : BPF_REDIRECT;
	case 18:
		table = 77;
		return report(skb, action(skb, END_T, &table, 4));
	case 19:
		table = 77;
		action(skb, END_T, &table, 4);
		return BPF_REDIRECT;
	case 20:
		table = 0;
		return action(skb, END_T, &table, 4) ? BPF_DROP : BPF_REDIRECT;
	case 21:
		table = 254;
		return action(skb, END_DT6, &table, 4) ? BPF_DROP : BPF_REDIRECT;
	case 22:
		table = 0;
		return action(skb, END_DT6, &table, 4) ? BPF_DROP : BPF_OK;
	case 23:
		table = 254;
		return report(skb, action(skb, END_DT6, &table, 4));
	case 24:
		return action(skb, END_B6, &list, sizeof(list)) ? BPF_DROP : BPF_REDIRECT;
	case 25:
		return action(skb, END_B6, &list, sizeof(list)) ? BPF_DROP : BPF_OK;
	case 26:
		return action(skb, END_B6_ENCAP, &list, sizeof(list)) ? BPF_DROP : BPF_REDIRECT;
	case 27:
		list.left = 0;
		return action(skb, END_B6_ENCAP, &list, sizeof(list)) ? BPF_DROP : BPF_OK;
	case 28:
		return report(skb, action(skb, END_B6_ENCAP, &list, sizeof(list) - 8));
	case 29:
		if (action(skb, END_B6_ENCAP, &list, sizeof(list)) || adjust_srh(skb, 80, 8) ||
		    store_bytes(skb, 80, tlv, 8))
			return BPF_DROP;
		return BPF_REDIRECT;
	case 30:
		return BPF_REDIRECT;
	case 31:
		return 1;
	case 32:
		return BPF_DROP;
	case 33:
		return BPF_LWT_REROUTE;
	case 34:
		return report(skb, action(skb, END, &list, sizeof(list)));
	case 35:
		return report(skb, load_bytes(skb, 4000, six, 16));
	case 36:
		if (load_bytes(skb, 24, six, 16))
			return BPF_DROP;
		return report(skb, six[1] << 8 | six[3]);
	case 37:
		sums[0] = 0x12345678;
		sums[1] = 0x9abcdef0;
		sum = (u32)csum_diff(&sums[0], 4, &sums[1], 4, 0x1234);
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		return report(skb, sum);
	case 38:
		return report(skb, pull_data(skb, 4000));
	case 39:
		skb->mark = 7;
		return BPF_OK;
	case 40:
		return report(skb, skb->len);
	case 41:
		return report(skb, skb->protocol);
	case 42:
		half = skb->cb[0] | skb->cb[4] | skb->mark | skb->pkt_type | skb->gso_size | skb->tc_index;
		skb->cb[2] = 0x1200;
		skb->priority = 0x34;
		return report(skb, half | skb->cb[2] | skb->priority);
	case 43:
		return report(skb, skb->ifindex && skb->ifindex == skb->ingress_ifindex);
	case 44:
		return report(skb, action(skb, END_X, (void *)nowhere, 16));
	case 45:
		table = 100;
		return report(skb, action(skb, END_T, &table, 4));
	case 46:
		table = 0;
		if (action(skb, END_DT6, &table, 4))
			return BPF_DROP;
		return action(skb, END_B6_ENCAP, &list, sizeof(list)) ? BPF_DROP : BPF_REDIRECT;
	case 47:
		sum = 0;
		if (packet + SRH_LIST + 32 > end)
			return BPF_DROP;
		for (int i = 0; i < 32; i++)
			sum = sum * 31 + packet[SRH_LIST + i];
		return report(skb, (u16)sum);
	case 48:
		return report(skb, (u16)mix(skb->len, 0x9e3779b97f4a7c15ULL));
	case 49:
		/* The pointers of before are of no use once the packet has moved. */
		if (adjust_srh(skb, srh_end, 8))
			return BPF_DROP;
		packet = (u8 *)(long)skb->data;
		end = (u8 *)(long)skb->data_end;
		if (packet + SRH_LIST + 48 > end)
			return BPF_DROP;
		return report(skb, packet[5] << 8 | packet[SRH_LIST + 40]);
	case 50:
		return report(skb, action(skb, END_B6, &list, sizeof(list)));
	case 51:
		if (adjust_srh(skb, srh_end, 2040))
			return BPF_DROP;
		return BPF_OK;
	default:
		return BPF_OK;
	}
}
