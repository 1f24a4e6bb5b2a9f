// SPDX-License-Identifier: BSD-2-Clause
#include "relay/udp_ports.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(SYSCALL(getrandom)); /* arc4random_uniform(3) */

#define PORT_RANGE "/proc/sys/net/ipv4/ip_local_port_range" /* of IPv6, too */
#define PORTS_RESERVED "/proc/sys/net/ipv4/ip_local_reserved_ports"
#define PORTS 65536U
#define TRIES 64U

static uint16_t ours[PORTS];
static uint32_t n_ours;
static _Atomic uint64_t free_at[PORTS]; /* by port, in ms; 0: it is in use, or not ours */

/* Ports and ranges of them in the file at PATH: "1,3-5", or "1 5". */
static void read_ports(const char *path, bool are_ours)
{
	FILE *f = fopen(path, "re");
	unsigned int first, last;
	int n;

	while (f && (n = fscanf(f, "%u%*1[- \t]%u", &first, &last)) > 0) {
		for (uint32_t port = first; port <= (n > 1 ? last : first) && port < PORTS; port++)
			free_at[port] = are_ours;
		(void)fgetc(f); /* a comma, or the end */
	}
	if (f)
		fclose(f);
}

void udp_ports_open(void)
{
	memset(free_at, 0, sizeof(free_at));
	n_ours = 0;
	read_ports(PORT_RANGE, true);
	read_ports(PORTS_RESERVED, false);
	for (uint32_t port = 1; port < PORTS; port++)
		if (free_at[port])
			ours[n_ours++] = (uint16_t)port;
}

/* After the tries at random, as many in a row come to each port where there are few. */
in_port_t udp_port_take(uint64_t now_ms)
{
	uint32_t n = 0;

	for (unsigned int i = 0; n_ours && i < 2 * TRIES; i++) {
		uint64_t at;

		n = i < TRIES ? arc4random_uniform(n_ours) : (n + 1) % n_ours;
		at = atomic_load(&free_at[ours[n]]);
		if (at && at <= now_ms && atomic_compare_exchange_strong(&free_at[ours[n]], &at, 0))
			return htons(ours[n]);
	}
	return 0;
}

bool udp_port_take_this(in_port_t port)
{
	return atomic_exchange(&free_at[ntohs(port)], 0);
}

void udp_port_put(in_port_t port, uint64_t free_ms)
{
	atomic_store(&free_at[ntohs(port)], free_ms);
}
