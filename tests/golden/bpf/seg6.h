/* What the programs of these cases share: helpers by their numbers in include/uapi/linux/bpf.h. */
#include <linux/bpf.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;

#define SECTION(name) __attribute__((section(name), used))
#define NOINLINE __attribute__((noinline))

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*load_bytes)(const void *skb, u32 offset, void *to, u32 len) = (void *)26;
static s64 (*csum_diff)(const void *from, u32 from_len, const void *to, u32 to_len, u32 seed) = (void *)28;
static long (*pull_data)(struct __sk_buff *skb, u32 len) = (void *)39;
static long (*store_bytes)(struct __sk_buff *skb, u32 offset, const void *from, u32 len) = (void *)74;
static long (*adjust_srh)(struct __sk_buff *skb, u32 offset, int delta) = (void *)75;
static long (*action)(struct __sk_buff *skb, u32 action, void *param, u32 len) = (void *)76;

/* Offsets in a packet whose SRH stands right behind its IPv6 header. */
enum { SRH = 40, SRH_LEN = 41, SRH_LEFT = 43, SRH_LAST = 44, SRH_FLAGS = 45, SRH_TAG = 46, SRH_LIST = 48 };
/* SEG6_LOCAL_ACTION_* */
enum { END = 1, END_X = 2, END_T = 3, END_DT6 = 7, END_B6 = 9, END_B6_ENCAP = 10 };

char _license[] SECTION("license") = "GPL";
