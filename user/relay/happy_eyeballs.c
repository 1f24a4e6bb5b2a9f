// SPDX-License-Identifier: BSD-2-Clause
#include "relay/happy_eyeballs.h"

void happy_open(struct happy *h, size_t n, size_t first)
{
	*h = (struct happy){ .n = n < UINT16_MAX ? (uint16_t)n : UINT16_MAX };
	h->first = first < h->n ? (uint16_t)first : 0;
}

/* The address of attempt number K. */
static unsigned int address_of(const struct happy *h, unsigned int k)
{
	if (k == 0)
		return h->first;
	return k <= h->first ? k - 1 : k;
}

static bool may_begin(const struct happy *h)
{
	return h->begun < h->n && h->running < HAPPY_AT_ONCE;
}

bool happy_next(const struct happy *h, uint64_t now_ms, unsigned int *ret)
{
	if (!may_begin(h) || now_ms < h->next_ms)
		return false;
	*ret = address_of(h, h->begun);
	return true;
}

void happy_begin(struct happy *h, uint64_t now_ms)
{
	h->begun++;
	h->running++;
	h->next_ms = now_ms + HAPPY_DELAY_MS;
}

void happy_put_back(struct happy *h, uint64_t again_ms)
{
	h->begun--;
	h->running--;
	h->next_ms = again_ms;
}

void happy_failed(struct happy *h)
{
	h->running--;
	h->next_ms = 0;
}

void happy_won(struct happy *h)
{
	h->running = 1;
	h->next_ms = UINT64_MAX;
}

uint64_t happy_due(const struct happy *h)
{
	return may_begin(h) ? h->next_ms : UINT64_MAX;
}

bool happy_is_over(const struct happy *h)
{
	return h->begun == h->n && !h->running;
}
