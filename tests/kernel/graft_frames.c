/* SPDX-License-Identifier: BSD-2-Clause */
#include "graft_frames.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <netinet/in.h>
#include <string.h>

#include "../unit/unit.h"

#define CB_OURS 0x67726166 /* the first word in skb->cb, and the second by kind */
#define CB_KIND 0x74656420

uint64_t chance;

uint64_t draw(void) /* splitmix64 */
{
	uint64_t z = chance += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

uint32_t below(uint32_t n)
{
	return (uint32_t)(draw() % n);
}

bool one_in(uint32_t n)
{
	return !below(n);
}

void draw_bytes(void *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		((uint8_t *)p)[i] = (uint8_t)draw();
}

void draw_address(struct graft_addr *a, bool ipv6)
{
	draw_bytes(a, sizeof(*a));
	if (!ipv6) {
		a->w[0] = a->w[1] = 0;
		a->w[2] = htonl(0xffff);
	}
}

void add_header(struct model_frame *f)
{
	static const uint8_t kinds[] = { 0, 60, 44, 43 };
	uint8_t *ip = f->bytes + MODEL_ETHERNET, *at;
	bool ipv6 = ip[0] >> 4 == 6;
	size_t len = ipv6 ? 8 * (1 + below(2)) : 4 * (1 + below(10));

	at = ip + (ipv6 ? 40 : 20);
	memmove(at + len, at, f->len - (size_t)(at - f->bytes));
	f->len += len;
	draw_bytes(at, len);
	if (!ipv6) {
		ip[0] += (uint8_t)(len / 4);
		put16(ip + 2, ((uint32_t)ip[2] << 8 | ip[3]) + (uint32_t)len);
		return;
	}
	put16(ip + 4, ((uint32_t)ip[4] << 8 | ip[5]) + (uint32_t)len);
	at[0] = ip[6];
	ip[6] = kinds[below(4)];
	at[1] = (uint8_t)(len / 8 - 1 + (one_in(8) ? below(6) : 0));
	if (one_in(2)) /* a jumbo header; or a first fragment */
		put16(at + 2, ip[6] == 44 ? below(2) : 0xc204);
}

void spoil(struct model_frame *f, uint8_t protocol)
{
	static const uint16_t types[] = { 0x8100, 0x88a8, 0x0806, 0x86dd, 0x0800 };
	uint8_t *ip = f->bytes + MODEL_ETHERNET;
	size_t l3 = ip[0] >> 4 == 6 ? 40 : 20;

	switch (below(12)) {
	case 0: /* one bit of the tuple */
		ip[l3 == 40 ? 8 + below(32) : 12 + below(8)] ^= (uint8_t)(1 << below(8));
		break;
	case 1:
		ip[l3 + below(4)] ^= (uint8_t)(1 << below(8));
		break;
	case 2: /* cut short */
		f->len = MODEL_ETHERNET + below((uint32_t)f->len - MODEL_ETHERNET);
		break;
	case 3: /* as Ethernet pads */
		f->len += 1 + below(40);
		break;
	case 4:
		put16(ip + (l3 == 40 ? 4 : 2), one_in(2) ? below(1500) : 0);
		break;
	case 5: /* a fragment */
		if (l3 == 20)
			put16(ip + 6, one_in(2) ? 0x2000 : below(0x2000));
		else
			ip[6] = 44;
		break;
	case 6: /* options, another version */
		ip[0] = (uint8_t)draw();
		break;
	case 7: /* another protocol */
		ip[l3 == 40 ? 6 : 9] = (uint8_t)below(256);
		break;
	case 8:
		put16(f->bytes + 12, types[below(5)]);
		break;
	case 9: /* for another host */
		f->bytes[below(6)] = (uint8_t)draw();
		break;
	case 10: /* a header of TCP of another length; another length of UDP, or checksum */
		ip[l3 + (protocol == IPPROTO_TCP ? 12 : 4 + below(4))] = (uint8_t)draw();
		break;
	case 11: /* of the other family */
		if (l3 == 20) {
			memmove(ip + 40, ip + 20, f->len - MODEL_ETHERNET - 20);
			memmove(ip + 36, ip + 16, 4);
			memmove(ip + 20, ip + 12, 4);
			memset(ip + 24, 0, 10);
			memset(ip + 8, 0, 10);
			memset(ip + 18, 0xff, 2);
			memset(ip + 34, 0xff, 2);
			f->len += 20;
			put16(f->bytes + 12, 0x86dd);
			put32(ip, 0x60000000);
			put16(ip + 4, (uint32_t)(f->len - MODEL_ETHERNET - 40));
			ip[6] = protocol;
			ip[7] = 64;
		}
	}
}

bool same_bytes(uint32_t slot, const void *is, const void *want, size_t len)
{
	const uint8_t *a = is, *b = want;

	for (size_t i = 0; i < len; i++)
		if (a[i] != b[i])
			print_error("slot %u, byte %zu: %#x, not %#x\n", slot, i, a[i], b[i]);
	return !memcmp(is, want, len);
}

void print_frame(const char *what, const struct model_frame *f)
{
	print_error("%s: %zu bytes, mark %#x, kind %d\n", what, f->len, f->mark, (int)f->kind);
	for (size_t i = 0; i < f->len && i < 160; i++)
		print_error("%02x%s", f->bytes[i],
			    i + 1 == f->len || i == 159 || i % 16 == 13 ? "\n" : " ");
}

int run_frame(int prog, struct model_frame *f, uint32_t gso_size)
{
	static _Thread_local uint8_t in[MODEL_BYTES];
	struct __sk_buff before = { .mark = f->mark, .gso_size = gso_size }, after = { 0 };
	struct bpf_test_run_opts o = {
		.sz = sizeof(o),
		.data_in = in,
		.data_size_in = (uint32_t)f->len,
		.data_out = f->bytes,
		.data_size_out = sizeof(f->bytes),
		.ctx_in = &before,
		.ctx_size_in = sizeof(before),
		.ctx_out = &after,
		.ctx_size_out = sizeof(after),
	};
	int r;

	before.ifindex = f->ifindex ? f->ifindex : LO;
	if (f->kind) {
		before.cb[3] = CB_OURS;
		before.cb[4] = CB_KIND + f->kind;
	}
	memcpy(in, f->bytes, f->len);
	r = bpf_prog_test_run_opts(prog, &o);
	if (r)
		return -EINVAL;
	f->len = o.data_size_out;
	f->mark = after.mark;
	f->kind = after.cb[3] == CB_OURS ? after.cb[4] - CB_KIND : MODEL_OTHER;
	return (int)o.retval;
}

static void plain_zero(uint8_t *sum, bool any)
{
	if (any || (sum[0] == 0xff && sum[1] == 0xff))
		sum[0] = sum[1] = 0;
}

bool same_frame(const struct model_frame *is, const struct model_frame *want)
{
	struct model_frame a = *is, b = *want;

	if (a.len != b.len || a.mark != b.mark || a.kind != b.kind)
		return false;
	for (int i = 0; i < 2; i++) {
		if (!b.sums[i])
			continue;
		plain_zero(a.bytes + b.sums[i], i && b.any_tcp_sum);
		plain_zero(b.bytes + b.sums[i], i && b.any_tcp_sum);
	}
	return !memcmp(a.bytes, b.bytes, a.len);
}
