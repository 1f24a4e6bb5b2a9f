// SPDX-License-Identifier: BSD-2-Clause
/* What needs no sockets: the worker of a client, and the ports of flows. */

#include <stdlib.h>
#include <string.h>

#include "unit.h"
#include "datapath/udp.h"
#include "relay/udp/udp_upstream_socket.h"

#define START 1000000
#define PORTS 65536

/* Clients that differ in the port alone, or in the address alone, are spread evenly. */
TEST(test_worker)
{
	for (unsigned int n = 1; n <= 16; n++) {
		for (unsigned int kind = 0; kind < 4; kind++) {
			unsigned int count[16] = { 0 };

			for (unsigned int i = 0; i < 16000; i++) {
				union client_addr a = { 0 };
				uint32_t host = kind & 1 ? 0x0a000001 + i : 0x0a000001;

				a.sa.sa_family = kind & 2 ? AF_INET6 : AF_INET;
				a.in.sin_port = htons((in_port_t)(kind & 1 ? 5000 : 33000 + i));
				if (kind & 2)
					a.in6.sin6_addr.s6_addr32[3] = htonl(host);
				else
					a.in.sin_addr.s_addr = htonl(host);
				assert_true(udp_worker(&a, n) < n);
				count[udp_worker(&a, n)]++;
			}
			for (unsigned int i = 0; i < n; i++)
				assert_in_range(count[i], 16000 / n * 8 / 10, 16000 / n * 12 / 10);
		}
	}
}

static in_port_t taken[PORTS];
static bool seen[PORTS];

/* Ports that are there at NOW.  None is there twice. */
static unsigned int take_many(uint64_t now)
{
	unsigned int n = 0;

	memset(seen, 0, sizeof(seen));
	while ((taken[n] = udp_port_take(now))) {
		assert_false(seen[taken[n]]);
		seen[taken[n++]] = true;
	}
	return n;
}

/* All that are left. */
static unsigned int take_others(void)
{
	unsigned int n = 0;

	for (unsigned int port = 0; port < PORTS; port++)
		n += udp_port_take_this(htons((uint16_t)port));
	return n;
}

TEST(test_ports_rest)
{
	unsigned int n, others;

	udp_ports_open();
	n = take_many(START);
	others = take_others();
	assert_true(n > 100);
	assert_true(others <= n / 10);
	assert_int_equal(udp_port_take(START + 3600000), 0);
	for (unsigned int i = 0; i < n; i++)
		udp_port_put(taken[i], START + UDP_PORT_RESTS_MS);
	assert_int_equal(udp_port_take(START + UDP_PORT_RESTS_MS - 1), 0);
	assert_in_range(take_many(START + UDP_PORT_RESTS_MS), n * 9 / 10, n);
}

TEST(test_ports_of_flows_that_were_left)
{
	unsigned int n;

	udp_ports_open();
	n = take_many(START);
	assert_false(udp_port_take_this(taken[0]));
	assert_false(udp_port_take_this(htons(0)));
	assert_false(udp_port_take_this(htons(1)));
	udp_port_put(taken[n - 1], START + UDP_PORT_RESTS_MS);
	assert_true(udp_port_take_this(taken[n - 1]));
	assert_false(udp_port_take_this(taken[n - 1]));
	/* of a range that has changed since: it is not lent */
	take_others();
	udp_port_put(htons(1), START + UDP_PORT_RESTS_MS);
	assert_int_equal(udp_port_take(START + UDP_PORT_RESTS_MS), 0);
}

/* As many as are in use at a time: none is given to two, and none before it has rested. */
TEST(test_ports_in_use)
{
	static uint64_t put_at[PORTS];
	enum { USED = 2000 };
	in_port_t used[USED] = { 0 };
	uint64_t now = START;
	unsigned int odd = 0, takes = 0;
	in_port_t before = 0;

	udp_ports_open();
	memset(seen, 0, sizeof(seen));
	for (unsigned int i = 0; i < 200000; i++) {
		unsigned int k = (unsigned int)rand() % USED;
		in_port_t port = used[k];

		now += i % 8 == 0;
		if (port) {
			udp_port_put(port, now + UDP_PORT_RESTS_MS);
			put_at[port] = now;
			seen[port] = false;
			used[k] = 0;
			continue;
		}
		if (i % 16 == 1) {
			port = htons((uint16_t)rand());
			if (!udp_port_take_this(port))
				continue;
		} else {
			port = udp_port_take(now);
			assert_int_not_equal(port, 0);
			assert_true(!put_at[port] || now >= put_at[port] + UDP_PORT_RESTS_MS);
			odd += ntohs(port) == ntohs(before) + 1;
			takes++;
			before = port;
		}
		assert_false(seen[port]);
		seen[port] = true;
		used[k] = port;
	}
	assert_true(odd < takes / 500); /* the next one cannot be guessed */
}

UNIT_MAIN(NULL, NULL)
