// SPDX-License-Identifier: BSD-2-Clause
#include "relay/client_key.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

bool client_key_make(const struct sockaddr *sa, struct client_key *ret)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;
	uint32_t v4;

	*ret = (struct client_key){ 0 };
	if (sa->sa_family == AF_INET) {
		ret->bits = in->sin_addr.s_addr;
		return true;
	}
	if (sa->sa_family != AF_INET6)
		return false;
	if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) { /* else all of IPv4 would be one client */
		memcpy(&v4, &in6->sin6_addr.s6_addr[12], sizeof(v4));
		ret->bits = v4;
		return true;
	}
	memcpy(&ret->bits, &in6->sin6_addr, sizeof(ret->bits));
	ret->v6 = true;
	return true;
}

static uint64_t random_odd(void)
{
	struct timespec ts;
	uint64_t n;

	/* early at boot there may be no randomness yet; to wait for it would be worse */
	if (getrandom(&n, sizeof(n), GRND_NONBLOCK) != sizeof(n)) {
		clock_gettime(CLOCK_REALTIME, &ts);
		n = (uint64_t)ts.tv_nsec * 0x9e3779b97f4a7c15U ^ (uint64_t)ts.tv_sec ^
		    (uintptr_t)&ts;
	}
	return n | 1;
}

uint32_t client_hash_init(struct client_hash *h, uint32_t n)
{
	uint32_t buckets = 2;

	h->shift = 63;
	while (buckets < n) {
		buckets *= 2;
		h->shift--;
	}
	h->multiplier = random_odd();
	return buckets;
}
