// SPDX-License-Identifier: BSD-2-Clause
/* Reading the configuration file again while sessions run. */
#include "forward_rig.h"

#include "load.h"

#define TEST_SECONDS 280
#define OTHER_UPSTREAM "127.0.0.1:9101"
#define ONE_OF(more) FORWARD("one", ONE, more)
#define TWO_OF(more) FORWARD("two", TWO, more)
#define WIDE_ONE FORWARD("one", "0.0.0.0:9001", "")

/* Sessions of forwards that stay, change and vanish go on; each forward is as the file says. */
ROW(appear_change_vanish)
{
	struct daemon *d = rig_start(*state, ONE_OF("") TWO_OF(""));
	struct ends one = rig_open_carried(d, *state, "one", ONE);
	struct ends two = rig_open_carried(d, *state, "two", TWO);

	rig_reload_good(d, ONE_OF("deny = all\n") FORWARD("three", THREE, ""));
	rig_talk_on(one, 100);
	rig_talk_on(two, 100);
	is_served(THREE);
	is_closed(TWO);
	is_turned_away(NULL, ONE);
	rig_expect_sessions(d, "one", 1);
	rig_expect_sessions(d, "two", 1);

	/* and back; what it was called before is another's name now */
	rig_reload_good(d, ONE_OF("") FORWARD("three", TWO, ""));
	is_served(ONE);
	is_served(TWO);
	is_closed(THREE);
	rig_talk_on(one, 100);
	rig_talk_on(two, 100);
	rig_stop(d);
}

/* New sessions go to the new upstream, those that run stay with the old one. */
ROW_ONCE(upstream_moves)
{
	struct daemon *d = rig_start(*state, ONE_OF(""));
	int other = keep(net_listen(OTHER_UPSTREAM, 10));
	struct ends old = rig_open(ONE), new;

	rig_reload_good(d, "[forward one]\nlisten = " ONE "\nupstream = " OTHER_UPSTREAM "\n");
	new = (struct ends){ rig_dial(NULL, ONE), rig_accept_at(other, RIG_PATIENCE_MS) };
	rig_talk_on(new, 50);
	rig_talk_on(old, 50);
	rig_stop(d);
}

#define WORKERS "[culvert]\nworkers = 2\n" /* not by the number of CPUs */
#define TAKEN "[forward taken]\nlisten = " RIG_UPSTREAM "\nupstream = " OTHER_UPSTREAM "\n"

/* A bad file changes nothing, and says where it is wrong. */
ROW_ONCE(bad_file)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{ ONE_OF("engine = fast\n"), "forwards.conf:4" },
		{ ONE_OF("no-such-key = 1\n"), "forwards.conf:4" },
		{ "[forward one]\nlisten = " ONE "\n", "forwards.conf:1" },
		{ "", "nothing to forward" },
		{ WORKERS "max-sessions = 17\n" ONE_OF(""), "max-sessions" },
		{ "[culvert]\nworkers = 3\n" ONE_OF(""), "forwards.conf:2: workers: cannot" },
		{ ONE_OF("") TWO_OF("") FORWARD("x", ONE, ""), "same" },
		{ WORKERS ONE_OF("") TAKEN, "cannot listen" },
		{ WORKERS ONE_OF("proxy-protocol = receive\n") TAKEN, "cannot listen" },
	};
	struct daemon *d = rig_start(*state, WORKERS ONE_OF(""));
	struct ends one = rig_open(ONE);

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *why = rig_reload(d, bad[i].text);

		if (!strstr(why, bad[i].says))
			fail_msg("file %zu: \"%s\"", i, why);
		rig_wait_log(d, why);
		rig_talk_on(one, 5);
		is_served(ONE);
		is_closed(TWO);
	}
	/* what would be said of a configuration that is in force */
	rig_not_logged(d, "believes what PROXY headers say");
	rig_reload_good(d, WORKERS ONE_OF("") TWO_OF("proxy-protocol = receive\n"));
	rig_wait_log(d, "forward two believes what PROXY headers say");
	rig_reload_good(d, WORKERS ONE_OF("")); /* rig_stop() counts descriptors */
	rig_stop(d);
}

/* From all addresses to one of them, and back: the old socket is in the way of the new one. */
ROW_ONCE(address_narrows)
{
	struct daemon *d = rig_start(*state, WIDE_ONE);

	for (int i = 0; i < 3; i++) {
		is_served(ONE);
		is_served("127.0.0.2:9001");
		rig_reload_good(d, ONE_OF(""));
		is_served(ONE);
		is_closed("127.0.0.2:9001");
		rig_reload_good(d, WIDE_ONE);
	}
	rig_reload_good(d, TWO_OF(""));
	is_closed(ONE);
	rig_reload_good(d, WIDE_ONE);
	rig_stop(d);
}

/* --- under load --- */

#define STARTING 3
#define STAYING 2
#define RELOADS 100

struct looks {
	struct daemon *daemon;
	pthread_t id;
	unsigned int n;
	int error;
};

/* Who looks takes the locks that a reload takes, in the same order, or both wait for ever. */
static void *look_often(void *arg)
{
	struct looks *l = arg;

	while (!load.stop && !l->error) {
		struct json_object *o = NULL;

		l->error = daemon_query(l->daemon, l->n % 2 ? "status" : "sessions",
					RIG_PATIENCE_MS, &o);
		json_object_put(o);
		l->n++;
	}
	return NULL;
}

/* 100 reloads; each changes something else. */
static void reload_often(struct daemon *d)
{
	for (int i = 0; i < RELOADS; i++)
		/* the second appears and vanishes */
		rig_reload_good(d, textf(FORWARD("%s", ONE, "connect-timeout = %d\n")
						 FORWARD("two", "127.0.0.1:%d", ""),
					 i % 10 == 9 ? "renamed" : "one", 5 + i % 3, 9010 + i % 2));
}

/* Sessions start and run all the time, and none of them notices; nor does who looks at them. */
ROW_ONCE(under_load)
{
	struct daemon *d = rig_start(*state, ONE_OF(""));
	struct looks looks = { .daemon = d };
	unsigned long sessions;

	load_begin(ONE, upstream_fd, STARTING, STAYING);
	assert_int_equal(pthread_create(&looks.id, NULL, look_often, &looks), 0);
	reload_often(d);
	load.stop = true;
	pthread_join(looks.id, NULL);
	sessions = load_end();
	assert_int_equal(looks.error, 0);
	printf("%lu sessions, %u looks\n", sessions, looks.n);
	rig_reload_good(d, ONE_OF(""));
	rig_stop(d);
}

#define MANY 6000
#define MANY_TEXT (MANY * 80 + 200)

/* MANY forwards that listen at HOST. */
static const char *many_at(const char *host)
{
	static char text[MANY_TEXT];
	int at = snprintf(text, MANY_TEXT, "[culvert]\nprobe = no\nworkers = 1\n");

	for (int i = 0; i < MANY; i++)
		at += snprintf(text + at, MANY_TEXT - (size_t)at, FORWARD("f%d", "%s:%d", ""), i,
			       host, 10000 + i);
	return text;
}

/* What a reload of thousands of forwards costs grows as their number, whatever it changes. */
ROW_ONCE(thousands)
{
	struct daemon *d = rig_start(*state, many_at("127.0.0.1"));
	int64_t same, moved, begin = daemon_cpu_ms(d);

	daemon_signal(d, SIGHUP);
	rig_wait_log(d, "0 removed, 6000 as before");
	same = daemon_cpu_ms(d) - begin;
	rig_write(many_at("127.0.0.2"));
	daemon_signal(d, SIGHUP);
	rig_wait_log(d, "6000 changed, 0 removed");
	moved = daemon_cpu_ms(d) - begin - same;
	printf("%d forwards: a reload takes %lld ms, and %lld ms if all move\n", MANY,
	       (long long)same, (long long)moved);
	/* a comparison of each with each took 3000 and 10000 ms */
	assert_true(same < 1800 * env_slow());
	assert_true(moved < 6000 * env_slow());
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_reload", TEST_SECONDS);
}
