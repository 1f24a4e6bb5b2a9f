/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_NAMES_RIG_H
#define CULVERT_TEST_NAMES_RIG_H

/*
 * Upstreams that are names, a name server, and what the names' addresses do:
 *
 *   127.0.0.1:9100, 127.0.0.2:9100                             are served
 *   [::1]:9103, 127.0.0.1:9103                                 the same
 *   [::1]:9100, 127.0.0.3:9100, [::1]:9101, 127.0.0.1:9101     drop every SYN
 *   all others                                                 refuse
 */
#include "forward_rig.h"

#include "name_server.h"

/* not every program needs all of it */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

#define OTHER_UPSTREAM "127.0.0.2:9100"
#define SIX_UPSTREAM "[::1]:9103"
#define FOUR_UPSTREAM "127.0.0.1:9103"

static const char *const black_holes[] = {
	"[::1]:9100", "127.0.0.3:9100", "[::1]:9101", "127.0.0.1:9101",
};

/* How long a session may take that would otherwise wait for the connect-timeout of 60 s. */
#define SOON_MS 20000

#define MOVING "[culvert]\nprobe = no\n" \
	       "[forward moves]\nlisten = " ONE "\nupstream = moves.test:9100\n"

static int other_fd = -1, six_fd, four_fd;

/* What every row needs, within the namespaces that rig_run() has made. */
static void prepare(void)
{
	if (other_fd < 0) {
		name_server_start();
		other_fd = net_listen(OTHER_UPSTREAM, 100);
		six_fd = net_listen(SIX_UPSTREAM, 100);
		four_fd = net_listen(FOUR_UPSTREAM, 100);
		assert_true(other_fd >= 0 && six_fd >= 0 && four_fd >= 0);
		for (size_t i = 0; i < sizeof(black_holes) / sizeof(black_holes[0]); i++)
			assert_int_equal(net_black_hole(black_holes[i]), 0);
	}
	name_server_mode(NAMES_ANSWER);
	net_drain_listener(other_fd);
}

/* What culvert has connected to LISTENER next. */
static int accept_at(int listener)
{
	return rig_accept_at(listener, SOON_MS);
}

static void expect_upstream(struct daemon *d, const char *forward, const char *address)
{
	struct json_object *s;

	assert_true(rig_sessions(d, forward, &s) >= 1);
	assert_string_equal(json_text(s, "upstream"), address);
	json_object_put(s);
}

/* A session of FORWARD through LISTEN that reaches ADDRESS, and talks on the engine's carrier. */
static void is_served_by(struct daemon *d, char *engine, const char *forward, const char *listen,
			 const char *address)
{
	struct ends e = { rig_dial(NULL, listen), accept_at(upstream_fd) };

	rig_talk_until(d, forward, rig_carrier(d, engine), e.client, e.server);
	expect_upstream(d, forward, address);
	rig_hang_up(e);
}

static void is_reached(const char *listen)
{
	struct ends e = { rig_dial(NULL, listen), accept_at(upstream_fd) };

	rig_talk_on(e, 10);
	rig_hang_up(e);
}

/* --- what the daemon knows of a name --- */

static struct json_object *forward_status(struct daemon *d, struct json_object **ret, size_t i)
{
	*ret = query(d, "status");
	return json_object_array_get_idx(json_at(*ret, "forwards"), i);
}

static int64_t lookup_int(struct daemon *d, size_t i, const char *path)
{
	struct json_object *o;
	int64_t n = json_int(forward_status(d, &o, i), path);

	json_object_put(o);
	return n;
}

static void wait_at_least(struct daemon *d, size_t i, const char *path, int64_t n)
{
	RIG_WAIT(lookup_int(d, i, path) >= n, "%s is still below %lld", path, (long long)n);
}

static size_t known_addresses(struct daemon *d, size_t i)
{
	struct json_object *o, *list = json_at(forward_status(d, &o, i), "addresses");
	size_t n = json_object_array_length(list);

	json_object_put(o);
	return n;
}

/*
 * Wait until names 0 to N - 1 have an address.  That they have been looked up is not enough: on a
 * busy machine a look-up may fail, and clients are then reset for that.
 */
static void wait_known(struct daemon *d, size_t n)
{
	for (size_t i = 0; i < n; i++)
		RIG_WAIT(known_addresses(d, i), "forward %zu has no address", i);
}

static bool is_at(struct daemon *d, size_t i, const char *address)
{
	struct json_object *o, *list = json_at(forward_status(d, &o, i), "addresses");
	bool is = json_object_array_length(list) == 1 &&
		  !strcmp(json_object_get_string(json_object_array_get_idx(list, 0)), address);

	json_object_put(o);
	return is;
}

/* Wait until the first address of forward I is this one, alone. */
static void wait_address(struct daemon *d, size_t i, const char *address)
{
	RIG_WAIT(is_at(d, i, address), "forward %zu is not at %s", i, address);
}

#pragma GCC diagnostic pop

#endif
