// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the ports that no flow has are in a ring, in the order in which they have
 * come to rest.  Those that have rested are a part at its head, whose older half is drawn from.  A
 * port that is taken changes places with the one at the head: that mixes those that have rested,
 * and no other.
 */
#include "relay/udp_ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(SYSCALL(getrandom));

#define PORT_RANGE "/proc/sys/net/ipv4/ip_local_port_range" /* of IPv6, too */
#define PORTS_RESERVED "/proc/sys/net/ipv4/ip_local_reserved_ports"
#define PORTS 65536U

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static uint64_t ring[PORTS];   /* until when a port rests, and in the lowest 16 bits the port */
static uint32_t place[PORTS];  /* by port: 1 + where it is in the ring; 0: nowhere */
static uint32_t head, resting; /* the ring's first, which counts on and on, and how many it has */
static uint32_t rested;        /* so many of the first ones have, when it was last looked at */

static uint64_t *at(uint32_t n)
{
	return &ring[(head + n) % PORTS];
}

static void set(uint32_t n, uint64_t entry)
{
	*at(n) = entry;
	place[(uint16_t)entry] = (head + n) % PORTS + 1;
}

static void swap(uint32_t n, uint32_t m)
{
	uint64_t entry = *at(n);

	set(n, *at(m));
	set(m, entry);
}

/* Take the Nth from the head.  Returns its port. */
static uint16_t take(uint32_t n)
{
	uint16_t port = (uint16_t)*at(n);

	if (n >= rested) { /* what has rested stays together */
		swap(n, rested);
		n = rested;
	} else {
		rested--;
	}
	swap(n, 0);
	place[port] = 0;
	head++;
	resting--;
	return port;
}

/* 0 .. N - 1, which nobody can guess.  The kernel has always some, once it has booted. */
static uint32_t random_below(uint32_t n)
{
	uint32_t word = 0;

	(void)!getrandom(&word, sizeof(word), 0);
	return (uint32_t)((uint64_t)word * n >> 32);
}

/* Ports and ranges of them in the file at PATH: "1,3-5", or "1 5". */
static int read_ports(const char *path, bool ours)
{
	FILE *f = fopen(path, "re");
	unsigned int first, last;
	int n;

	if (!f)
		return -errno;
	while ((n = fscanf(f, "%u%*1[- \t]%u", &first, &last)) > 0) {
		for (uint32_t port = first; port <= (n > 1 ? last : first) && port < PORTS; port++)
			place[port] = ours;
		(void)fgetc(f); /* a comma, or the end */
	}
	fclose(f);
	return 0;
}

int udp_ports_open(void)
{
	int r = read_ports(PORT_RANGE, true);

	r = r ?: read_ports(PORTS_RESERVED, false);
	for (uint32_t port = 1; !r && port < PORTS; port++)
		if (place[port])
			set(resting++, port);
	return r;
}

void udp_ports_close(void)
{
	memset(place, 0, sizeof(place));
	head = resting = rested = 0;
}

in_port_t udp_port_take(uint64_t now_ms)
{
	uint16_t port = 0;

	pthread_mutex_lock(&lock);
	while (rested < resting && *at(rested) >> 16 <= now_ms)
		rested++;
	if (rested)
		port = take(random_below((rested + 1) / 2));
	pthread_mutex_unlock(&lock);
	return htons(port);
}

bool udp_port_take_this(in_port_t port)
{
	uint32_t where;

	pthread_mutex_lock(&lock);
	where = place[ntohs(port)];
	if (where)
		take((where - 1 - head) % PORTS);
	pthread_mutex_unlock(&lock);
	return where;
}

void udp_port_put(in_port_t port, uint64_t now_ms, bool busy)
{
	uint64_t until_ms = now_ms + (busy ? 0 : UDP_PORT_RESTS_MS);

	pthread_mutex_lock(&lock);
	set(resting++, until_ms << 16 | ntohs(port));
	pthread_mutex_unlock(&lock);
}
