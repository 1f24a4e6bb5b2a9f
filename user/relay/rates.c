// SPDX-License-Identifier: BSD-2-Clause
#include "relay/rates.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"

/* As many clients as come within a tenth of a second need not wait, but at least one. */
#define ACCEPT_BURSTS_PER_SECOND 10

static uint64_t accept_burst(const struct forward_conf *fc)
{
	unsigned int burst = fc->accept_rate / ACCEPT_BURSTS_PER_SECOND;

	return (uint64_t)(burst ?: 1) * RATES_ACCEPT;
}

int rates_open(const struct forward_conf *fc, unsigned int sessions, struct rates **ret)
{
	struct rates *r = calloc(1, sizeof(*r));
	uint64_t now = clock_ms();

	*ret = NULL;
	if (!r)
		return -ENOMEM;
	r->refs = 1;
	r->accept_rate = fc->accept_rate;
	r->sessions = sessions;
	r->of_all = fc->bandwidth;
	r->of_client = fc->bandwidth_per_client;
	bucket_init(&r->accepts, (uint64_t)fc->accept_rate * RATES_ACCEPT, accept_burst(fc), now);
	bandwidth_init(&r->bandwidth, fc->bandwidth, now);
	if (client_rates_open(fc->bandwidth_per_client, sessions, &r->clients)) {
		free(r);
		return -ENOMEM;
	}
	*ret = r;
	return 0;
}

struct rates *rates_share(struct rates *r)
{
	r->refs++;
	return r;
}

void rates_close(struct rates *r)
{
	if (!r || --r->refs)
		return;
	client_rates_close(r->clients);
	free(r);
}

bool rates_are(const struct rates *r, const struct forward_conf *fc, unsigned int sessions)
{
	return r->accept_rate == fc->accept_rate && r->of_all == fc->bandwidth &&
	       r->of_client == fc->bandwidth_per_client && r->sessions == sessions;
}
