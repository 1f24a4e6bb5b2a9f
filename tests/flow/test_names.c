// SPDX-License-Identifier: BSD-2-Clause
/*
 * Upstreams that are names: which of their addresses is connected to, what
 * becomes of sessions when a name moves, and what if there is no answer, not yet or not at all.
 * There is a name server, and this is what the names' addresses do:
 *
 *   127.0.0.1:9100, 127.0.0.2:9100                             are served
 *   [::1]:9103, 127.0.0.1:9103                                 the same
 *   [::1]:9100, 127.0.0.3:9100 to 127.0.0.5:9100, [::1]:9101, 127.0.0.1:9101   drop every SYN
 *   all others                                                 refuse
 */
#include "forward_rig.h"

#include <limits.h>
#include <sys/wait.h>

#include "name_server.h"

#define TEST_SECONDS 280

#define OTHER_UPSTREAM "127.0.0.2:9100"
#define SIX_UPSTREAM "[::1]:9103"
#define FOUR_UPSTREAM "127.0.0.1:9103"

static const char *const black_holes[] = {
	"[::1]:9100",     "127.0.0.3:9100", "127.0.0.4:9100",
	"127.0.0.5:9100", "[::1]:9101",     "127.0.0.1:9101",
};

/* How long a session may take that would otherwise wait for the connect-timeout of 60 s. */
#define SOON_MS 20000

#define CULVERT "[culvert]\nprobe = no\n"
#define NAMED(name, listen, upstream)                                                              \
	"[forward " name "]\nlisten = " listen "\nupstream = " upstream "\n"
#define MOVING CULVERT NAMED("moves", ONE, "moves.test:9100")
#define OFTEN "resolve-interval = 0.1\n"

static int other_fd, six_fd, four_fd;

/* What every row needs, within the namespaces that rig_run() has made. */
static void prepare(void)
{
	name_server_start();
	other_fd = net_listen(OTHER_UPSTREAM, 100);
	six_fd = net_listen(SIX_UPSTREAM, 100);
	four_fd = net_listen(FOUR_UPSTREAM, 100);
	if (other_fd < 0 || six_fd < 0 || four_fd < 0)
		errx(1, "cannot listen");
	for (size_t i = 0; i < sizeof(black_holes) / sizeof(black_holes[0]); i++)
		if (net_black_hole(black_holes[i]))
			errx(1, "%s: no black hole", black_holes[i]);
}

static void tidy(void)
{
	name_server_mode(NAMES_ANSWER);
	net_drain_listener(other_fd);
}

/* What culvert has connected to LISTENER next. */
static int accept_at(int listener)
{
	return rig_accept_at(listener, SOON_MS);
}

/* A session of FORWARD through LISTEN reaches RIG_UPSTREAM, and talks on the engine's carrier. */
static void is_carried(struct daemon *d, char *engine, const char *forward, const char *listen)
{
	struct ends e = { rig_dial(NULL, listen), accept_at(upstream_fd) };
	struct json_object *s;

	rig_talk_until(d, forward, rig_carrier(d, engine), e.client, e.server);
	assert_true(rig_sessions(d, forward, &s) >= 1);
	assert_string_equal(json_text(s, "upstream"), RIG_UPSTREAM);
	rig_hang_up(e);
}

static void is_reached(const char *listen)
{
	struct ends e = { rig_dial(NULL, listen), accept_at(upstream_fd) };

	rig_talk_on(e, 10);
	rig_hang_up(e);
}

/* --- what the daemon knows of a name --- */

/* MEMBER of what `status` says of forward I, until the next query(). */
static struct json_object *forward_status(struct daemon *d, size_t i, const char *member)
{
	struct json_object *list = json_at(query(d, "status"), "forwards");

	return json_at(json_object_array_get_idx(list, i), member);
}

static int64_t lookup_int(struct daemon *d, size_t i, const char *path)
{
	return json_object_get_int64(forward_status(d, i, path));
}

static void wait_at_least(struct daemon *d, size_t i, const char *path, int64_t n)
{
	RIG_WAIT(lookup_int(d, i, path) >= n, "%s is still below %lld", path, (long long)n);
}

/* Is STATE that of the only server of forward I? */
static bool has_state(struct daemon *d, size_t i, const char *state)
{
	struct json_object *list = forward_status(d, i, "servers");

	return !strcmp(json_text(json_object_array_get_idx(list, 0), "state"), state);
}

/*
 * Wait until names 0 to N - 1 have an address.  That they have been looked up is not enough: on a
 * busy machine a look-up may fail, and clients are then reset for that.
 */
static void wait_known(struct daemon *d, size_t n)
{
	for (size_t i = 0; i < n; i++)
		RIG_WAIT(json_object_array_length(forward_status(d, i, "addresses")),
			 "forward %zu has no address", i);
}

static bool is_at(struct daemon *d, size_t i, const char *address)
{
	struct json_object *list = forward_status(d, i, "addresses");

	return json_object_array_length(list) == 1 &&
	       !strcmp(json_object_get_string(json_object_array_get_idx(list, 0)), address);
}

/* Wait until the first address of forward I is this one, alone. */
static void wait_address(struct daemon *d, size_t i, const char *address)
{
	RIG_WAIT(is_at(d, i, address), "forward %zu is not at %s", i, address);
}

#define ATTEMPT_DELAY_MS 250 /* RFC 8305, section 8 */

/* --- several addresses --- */

#define MANY 20

/* The only one that is served is among some that are silent, and many that refuse. */
static const char *many_addresses(void)
{
	static char text[512] = "::1 127.0.0.3";
	size_t at = strlen("::1 127.0.0.3");

	for (int i = 13; i < 10 + MANY; i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, " 127.0.0.%d", i);
	snprintf(text + at, sizeof(text) - at, " 127.0.0.1");
	return text;
}

/* RFC 8305: a dead family costs a quarter of a second, and that once. */
ROW(families)
{
	struct daemon *d;
	int64_t start, took;

	name_server_set("both.test", "::1 127.0.0.1");
	name_server_set("four.test", "127.0.0.1");
	name_server_set("many.test", many_addresses());
	d = rig_start(
		*state,
		CULVERT "connect-timeout = 60\nworkers = 1\n" NAMED(
			"both", ONE, "both.test:9100") NAMED("four", TWO, "four.test:9100")
			NAMED("silent", THREE, "both.test:9101") "connect-timeout = 0.3\n" NAMED(
				"refused", FOUR, "both.test:9102")
				NAMED("many", "127.0.0.1:9005", "many.test:9100")
					NAMED("gone", "127.0.0.1:9006", "many.test:9102"));
	wait_known(d, 6);
	start = now_ms();
	is_carried(d, *state, "both", ONE);
	took = now_ms() - start;
	assert_true(took >= ATTEMPT_DELAY_MS);
	assert_true(took < SOON_MS);
	/* from now on the address that answered comes first */
	for (int i = 0; i < 3; i++)
		is_reached(ONE);
	is_reached(TWO);
	start = now_ms();
	is_turned_away(NULL, THREE);
	assert_true(now_ms() - start >= 300);
	assert_int_equal(rig_status(d, "errors.connect-timeout"), 1);
	is_turned_away(NULL, FOUR);
	assert_int_equal(rig_status(d, "errors.connect-refused"), 1);
	is_reached("127.0.0.1:9005");
	is_turned_away(NULL, "127.0.0.1:9006");
	assert_int_equal(rig_status(d, "errors.connect-refused"), 2);
	rig_stop(d);
}

/* Clients come to LISTEN, one after the other: is one of them served soon? */
static bool is_reached_at_last(const char *listen)
{
	int64_t deadline = now_ms() + SOON_MS;
	bool served = false;

	while (!served && now_ms() < deadline) {
		int client = rig_dial(NULL, listen);
		struct pollfd p[] = { { .fd = client, .events = POLLIN },
				      { .fd = upstream_fd, .events = POLLIN } };

		assert_true(poll(p, 2, RIG_PATIENCE_MS) > 0);
		served = p[1].revents != 0;
		rig_reset(client);
	}
	return served;
}

/*
 * connect-timeout is over before all were tried: the next session goes on there, look-ups or not.
 */
ROW_ONCE(silent_addresses)
{
	struct daemon *d;

	name_server_set("silent.test", "::1 127.0.0.3 127.0.0.4 127.0.0.5 127.0.0.1");
	d = rig_start(*state, CULVERT
		      "connect-timeout = 0.4\n" OFTEN NAMED("silent", ONE, "silent.test:9100"));
	wait_known(d, 1);
	assert_true(is_reached_at_last(ONE));
	wait_at_least(d, 0, "lookup.lookups", lookup_int(d, 0, "lookup.lookups") + 2);
	net_drain_listener(upstream_fd);
	is_reached(ONE); /* what was found stays found */
	rig_stop(d);
}

/* While attempts overlap, the client goes away: nothing is left of them. */
ROW_ONCE(client_leaves)
{
	struct daemon *d;
	int clients[8];

	name_server_set("both.test", "::1 127.0.0.1");
	d = rig_start(*state,
		      CULVERT "connect-timeout = 60\n" NAMED("silent", ONE, "both.test:9101"));
	wait_known(d, 1);
	for (size_t i = 0; i < 8; i++)
		clients[i] = rig_dial(NULL, ONE);
	rig_wait_status(d, "resources.sessions", 8);
	poll(NULL, 0, ATTEMPT_DELAY_MS + 50); /* both addresses of each are being tried, or soon */
	for (size_t i = 0; i < 4; i++)
		rig_reset(clients[i]);
	rig_wait_status(d, "resources.sessions", 4);
	assert_int_equal(rig_status(d, "errors.client-reset"), 4);
	rig_stop(d); /* the others, too */
}

/* --- names that move --- */

/* Sessions stay where they are; new ones go where the name is. */
ROW(moves)
{
	struct daemon *d;
	struct ends old, new;

	name_server_set("moves.test", "127.0.0.1");
	d = rig_start(*state, MOVING OFTEN);
	old = rig_open_carried(d, *state, "moves", ONE);
	name_server_set("moves.test", "127.0.0.2");
	wait_address(d, 0, OTHER_UPSTREAM);
	new.client = rig_dial(NULL, ONE);
	new.server = accept_at(other_fd);
	rig_talk_on(new, 100);
	rig_talk_on(old, 100);
	rig_expect_sessions(d, "moves", 2);
	/* the name server fails, and then the name is gone: what is known stays */
	name_server_mode(NAMES_FAIL);
	wait_at_least(d, 0, "lookup.failures", 1);
	name_server_set("moves.test", NULL);
	name_server_mode(NAMES_ANSWER);
	wait_at_least(d, 0, "lookup.failures", lookup_int(d, 0, "lookup.failures") + 1);
	wait_address(d, 0, OTHER_UPSTREAM);
	name_server_set("moves.test", "127.0.0.1");
	wait_address(d, 0, "127.0.0.1:9100");
	rig_talk_on(new, 10);
	rig_talk_on(old, 10);
	rig_wait_log(d, "upstream moves.test:9100 is now " OTHER_UPSTREAM);
	rig_wait_log(d, "upstream moves.test:9100 keeps its last addresses: ");
	rig_stop(d);
}

/*
 * Where nothing answers, the name is looked up long before its time, and the client waits for it.
 */
ROW_ONCE(moves_after_failure)
{
	struct daemon *d;

	name_server_set("moves.test", "127.0.0.9"); /* refuses */
	d = rig_start(*state, MOVING "resolve-interval = 3600\n");
	wait_address(d, 0, "127.0.0.9:9100");
	name_server_set("moves.test", "127.0.0.1");
	/*
	 * what was found a moment ago is not looked up at once: the next client may be turned away
	 */
	RIG_WAIT(lookup_int(d, 0, "lookup.age_ms") > 1000, "the addresses do not age");
	is_reached(ONE);
	assert_int_equal(lookup_int(d, 0, "lookup.lookups"), 2);
	assert_int_equal(rig_status(d, "errors.connect-refused"), 0);
	rig_stop(d);
}

/*
 * A forward that changes keeps what is known of its name, and one that is new is kept up to date.
 */
ROW_ONCE(reloads)
{
	struct daemon *d;
	int client, server;

	name_server_set("moves.test", "127.0.0.1");
	d = rig_start(*state, MOVING OFTEN);
	name_server_set("moves.test", "127.0.0.2");
	wait_address(d, 0, OTHER_UPSTREAM);
	name_server_mode(NAMES_SILENT);
	rig_reload_good(d, MOVING OFTEN "connect-timeout = 7\n");
	wait_address(d, 0, OTHER_UPSTREAM);
	client = rig_dial(NULL, ONE);
	server = accept_at(other_fd);
	rig_talk(client, server, 20);
	name_server_mode(NAMES_ANSWER);
	name_server_set("new.test", "127.0.0.1");
	rig_reload_good(d, MOVING OFTEN "connect-timeout = 7\n" NAMED("new", TWO, "new.test:9100")
				   OFTEN);
	is_reached(TWO);
	name_server_set("new.test", "127.0.0.2");
	wait_address(d, 1, OTHER_UPSTREAM);
	rig_talk(client, server, 20);
	rig_reload_good(d, MOVING OFTEN); /* rig_stop() counts descriptors */
	rig_stop(d);
}

/* --- metrics --- */

#define METRICS "127.0.0.1:9464"

/* Is LINE in what metrics say of the only server? */
static bool metrics_say(const char *line)
{
	static const char get[] = "GET /metrics HTTP/1.1\r\n\r\n";
	int fd = rig_dial(NULL, METRICS);
	static char text[65536];
	size_t len = 0;
	ssize_t n;

	assert_int_equal(write(fd, get, sizeof(get) - 1), sizeof(get) - 1);
	while ((n = read(fd, text + len, sizeof(text) - 1 - len)) > 0)
		len += (size_t)n;
	text[len] = '\0';
	rig_reset(fd);
	return strstr(text, line);
}

#define EACH MOVING "each-address = yes\n" OFTEN
#define SERVER "{forward=\"moves\",server=\"moves.test:9100\"} "
#define MEASURED "[culvert]\nmetrics = " METRICS "\n"

/*
 * The label is the configured name, whatever its addresses are; counters stay when those change,
 * and after a reload; a scrape by itself sees that addresses have changed.
 */
ROW_ONCE(in_metrics)
{
	struct daemon *d;

	name_server_set("moves.test", "127.0.0.9"); /* refuses */
	d = rig_start(*state, EACH MEASURED);
	wait_known(d, 1);
	is_turned_away(NULL, ONE);
	assert_true(metrics_say("server_up" SERVER "0\n"));
	name_server_set("moves.test", "127.0.0.1 127.0.0.2");
	RIG_WAIT(metrics_say("server_up" SERVER "1\n"), "the new addresses are not in the metrics");
	rig_reload_good(d, EACH "connect-timeout = 7\n" MEASURED);
	assert_true(metrics_say("server_chosen_total" SERVER "1\n"));
	assert_true(metrics_say("server_failures_total" SERVER "1\n"));
	rig_stop(d);
}

/* --- no answer --- */

#define LATE                                                                                       \
	CULVERT "connect-timeout = 60\n" NAMED("late", ONE, "late.test:9100")                      \
		NAMED("short", TWO, "late.test:9100") "connect-timeout = 0.1\n" FORWARD("number",  \
											THREE, "")

/*
 * A name server that does not answer holds up neither the start, nor a reload, nor a forward that
 * does not need it; sessions of the others wait for it.
 */
ROW(answers_late)
{
	struct json_object *s;
	struct daemon *d;
	int waiting, gone, server;

	name_server_set("late.test", "127.0.0.1");
	name_server_set("new.test", "127.0.0.1");
	name_server_mode(NAMES_HOLD);
	d = rig_start(*state, LATE);
	is_reached(THREE);
	waiting = rig_dial(NULL, ONE);
	gone = rig_dial(NULL, ONE);
	is_turned_away(NULL, TWO);
	rig_wait_status(d, "errors.no-address", 1);
	rig_wait_status(d, "resources.sessions", 2);
	rig_reset(gone);
	rig_wait_status(d, "errors.client-reset", 2); /* is_reached() has reset one, too */
	rig_reload_good(d, LATE NAMED("new", FOUR, "new.test:9100"));
	assert_int_equal(lookup_int(d, 0, "lookup.lookups"), 0);
	rig_not_logged(d, "are no name servers");
	s = rig_session(d, "late");
	assert_string_equal(json_text(s, "state"), "connecting");
	assert_string_equal(json_text(s, "upstream"), "late.test:9100");

	name_server_mode(NAMES_ANSWER);
	server = accept_at(upstream_fd);
	rig_talk_until(d, "late", rig_carrier(d, *state), waiting, server);
	is_reached(FOUR);
	wait_known(d, 2);
	is_reached(TWO);
	rig_reload_good(d, LATE); /* rig_stop() counts descriptors */
	rig_stop(d);
}

/* It does not exist at first; then it has one family, and then the other. */
ROW_ONCE(exists_later)
{
	int listeners[2] = { six_fd, four_fd };
	static const char *const addresses[2][2] = { { "::1", SIX_UPSTREAM },
						     { "127.0.0.1", FOUR_UPSTREAM } };
	struct daemon *d;

	name_server_set("later.test", NULL);
	d = rig_start(*state, CULVERT OFTEN NAMED("later", ONE, "later.test:9103"));
	is_turned_away(NULL, ONE);
	rig_wait_status(d, "errors.no-address", 1);
	for (size_t i = 0; i < 2; i++) {
		int client;

		name_server_set("later.test", addresses[i][0]);
		wait_address(d, 0, addresses[i][1]);
		client = rig_dial(NULL, ONE);
		rig_talk(client, accept_at(listeners[i]), 50);
		rig_reset(client);
		rig_wait_status(d, "resources.sessions", 0);
	}
	rig_wait_log(d, "upstream later.test:9103 has no address yet, so its clients are reset: "
			"host name lookup failed: ");
	rig_wait_log(d, "upstream later.test:9103 has no address: host name lookup failed: ");
	rig_wait_log(d, "upstream later.test:9103 is now " SIX_UPSTREAM "\n");
	rig_stop(d);
}

/* --- names to listen at --- */

#define HERE CULVERT FORWARD("here", "here.test:9001", "")

/* One to listen at is needed at the start, and looked up then alone. */
ROW_ONCE(listens)
{
	struct daemon *d;

	name_server_set("here.test", NULL);
	rig_refuses(*state, HERE,
		    "listen: \"here.test:9001\": host name lookup "
		    "failed: ");
	name_server_set("here.test", "127.0.0.1");
	d = rig_start(*state, HERE);
	is_reached(ONE);
	name_server_mode(NAMES_SILENT);
	rig_reload_good(d, HERE "connect-timeout = 7\n");
	is_reached(ONE);
	assert_non_null(strstr(rig_reload(d, HERE FORWARD("new", "new.test:9002", "")),
			       "a name to listen at is looked up at the start only"));
	rig_stop(d);
}

/* Whoever wants culvert to end does not wait for the name server. */
ROW_ONCE(start_hangs)
{
	static const int signals[] = { SIGTERM, SIGINT };
	char program[PATH_MAX];

	beside_test(BUILT_CULVERT, program, sizeof(program));
	for (size_t i = 0; i < 2; i++) {
		unsigned int asked = name_server_asked();
		int status = -1;
		pid_t pid;

		name_server_mode(NAMES_SILENT);
		pid = fork();
		if (!pid) {
			execl(program, "culvert", "run", "--engine", (const char *)*state,
			      "--probe", "no", "hangs.test:9002", RIG_UPSTREAM, NULL);
			_exit(127);
		}
		while (name_server_asked() < asked + 2) /* A and AAAA: none may come later */
			poll(NULL, 0, 5);
		kill(pid, signals[i]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
		assert_int_equal(WTERMSIG(status), signals[i]);
	}
}

/* --- name servers that are silent --- */

#define HANGING 150
#define ANSWERED                                                                                   \
	CULVERT "connect-timeout = 60\n" NAMED("good", ONE, "good.test:9100")                      \
		FORWARD("number", TWO, "")

/* Many names hang; those that are answered are found at once all the same. */
ROW_ONCE(others_hang)
{
	static char text[HANGING * 100 + 1000];
	int at = snprintf(text, sizeof(text), ANSWERED);
	struct daemon *d;

	for (int i = 0; i < HANGING; i++)
		at += snprintf(text + at, sizeof(text) - (size_t)at,
			       NAMED("f%d", "127.0.0.2:%d", "f%d" NAMES_HANGS ":80"), i, 10000 + i,
			       i);
	name_server_set("good.test", "127.0.0.1");
	d = rig_start(*state, text);
	is_reached(ONE);
	assert_int_equal(lookup_int(d, 0, "lookup.failures"), 0);
	/* a name that a reload brings, and one of a service, which is no name */
	name_server_set("new.test", "127.0.0.1");
	snprintf(text + at, sizeof(text) - (size_t)at,
		 NAMED("new", THREE, "new.test:9100") NAMED("service", FOUR, "127.0.0.1:http"));
	rig_reload_good(d, text);
	is_reached(THREE);
	is_turned_away(NULL, FOUR);
	is_reached(TWO);
	rig_reload_good(d, ANSWERED); /* rig_stop() counts descriptors */
	rig_stop(d);
}

/* A server whose name has a silent address, too, passes its checks by the other one. */
ROW_ONCE(checked)
{
	struct daemon *d;

	name_server_set("both.test", "::1 127.0.0.1");
	d = rig_start(*state,
		      CULVERT NAMED("both", ONE, "both.test:9100") "check = 0.2s\nfall = 1\n" NAMED(
			      "refused", TWO, "both.test:9102") "check = 0.2s\n");
	wait_known(d, 2);
	RIG_WAIT(has_state(d, 1, "failed"), "a server that refuses passes its checks");
	is_turned_away(NULL, TWO);
	assert_int_equal(rig_status(d, "errors.no-server"), 1);
	/* not accepted there: what comes first are the checks */
	rig_dial(NULL, ONE);
	RIG_WAIT(has_state(d, 0, "up") && lookup_int(d, 0, "live") == 1,
		 "the server fails its checks, or gets no session");
	rig_stop(d);
}

/* A reload reads what other programs read anew by themselves.  /etc/hosts needs no name server. */
ROW_ONCE(files_change)
{
	const char *file = MOVING NAMED("added", TWO, "Added.test:9100");
	struct daemon *d;

	name_server_set("moves.test", "127.0.0.1");
	rig_put("/etc/resolv.conf", "nameserver 127.0.0.9\n"); /* nobody answers there */
	d = rig_start(*state, MOVING);
	wait_at_least(d, 0, "lookup.failures", 1);
	rig_put("/etc/resolv.conf", "# as it was\nnameserver 127.0.0.1\noptions timeout:30\n");
	rig_put("/etc/hosts", "127.0.0.1 localhost\n127.0.0.1 other added.test # one more\n");
	rig_reload_good(d, file);
	is_reached(ONE);
	is_reached(TWO);
	rig_put("/etc/hosts", "127.0.0.1 localhost\n127.0.0.2 added.test\n");
	rig_reload_good(d, file);
	wait_address(d, 1, OTHER_UPSTREAM);
	rig_reload_good(d, MOVING); /* rig_stop() counts descriptors */
	rig_stop(d);
	rig_put("/etc/hosts", "127.0.0.1 localhost\n");
}

/* It is asked again long before resolv.conf says so; what one family has is used, if it must be. */
ROW_ONCE(not_all_answered)
{
	for (int never = 0; never < 2; never++) {
		struct daemon *d;
		int client;

		name_server_set("lossy.test", "::1 127.0.0.1");
		name_server_mute("lossy.test", !never, never ? UINT32_MAX : 1);
		d = rig_start(*state, CULVERT
			      "connect-timeout = 60\n" NAMED("lossy", ONE, "lossy.test:9103"));
		client = rig_dial(NULL, ONE);
		rig_talk(client, accept_at(never ? four_fd : six_fd), 20);
		if (never)
			wait_address(d, 0, FOUR_UPSTREAM);
		assert_int_equal(lookup_int(d, 0, "lookup.lookups"), 1);
		assert_int_equal(lookup_int(d, 0, "lookup.failures"), 0);
		rig_stop(d);
	}
}

int main(void)
{
	env_need_ipv6("test_names");
	rig_prepare = prepare;
	rig_tidy = tidy;
	return rig_run("test_names", TEST_SECONDS);
}
