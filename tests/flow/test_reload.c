// SPDX-License-Identifier: BSD-2-Clause
/*
 * Reading the configuration file again while sessions run.  Every test runs with every engine.
 */
#include "reload_rig.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#define TEST_SECONDS 280

/* Sessions of forwards that stay, change and vanish go on; each forward is as the file says. */
static void appear_change_vanish(void **state)
{
	struct daemon *d = rig_start(*state, ONE_OF("") TWO_OF(""));
	const char *carrier = rig_carrier(d, *state);
	int one[2], two[2];

	one[0] = rig_dial(NULL, ONE);
	one[1] = rig_accept();
	two[0] = rig_dial(NULL, TWO);
	two[1] = rig_accept();
	rig_talk_until(d, "one", carrier, one[0], one[1]);
	rig_talk_until(d, "two", carrier, two[0], two[1]);

	rig_reload_good(d, ONE_OF("deny = all\n")
			"[forward three]\nlisten = " THREE "\n" TO_UPSTREAM);
	rig_talk(one[0], one[1], 100);
	rig_talk(two[0], two[1], 100);
	is_served(THREE);
	is_closed(TWO);
	assert_int_equal(rig_end(rig_dial(NULL, ONE), RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_sessions(d, "one", NULL), 1);
	assert_int_equal(rig_sessions(d, "two", NULL), 1);

	/* and back; what it was called before is another's name now */
	rig_reload_good(d, ONE_OF("") "[forward three]\nlisten = " TWO "\n" TO_UPSTREAM);
	is_served(ONE);
	is_served(TWO);
	is_closed(THREE);
	rig_talk(one[0], one[1], 100);
	rig_talk(two[0], two[1], 100);
	rig_stop(d);
}

/* New sessions go to the new upstream, those that run stay with the old one. */
static void upstream_moves(void **state)
{
	struct daemon *d = rig_start(*state, ONE_OF(""));
	int other = keep(net_listen("127.0.0.1:9101", 10));
	int old[2], new[2];

	old[0] = rig_dial(NULL, ONE);
	old[1] = rig_accept();
	rig_talk(old[0], old[1], 50);
	rig_reload_good(d, "[forward one]\nlisten = " ONE "\nupstream = 127.0.0.1:9101\n");
	new[0] = rig_dial(NULL, ONE);
	new[1] = -1;
	for (int64_t end = now_ms() + RIG_PATIENCE_MS; new[1] < 0 && now_ms() < end;) {
		struct pollfd p = { .fd = other, .events = POLLIN };

		poll(&p, 1, 100);
		new[1] = accept4(other, NULL, NULL, SOCK_CLOEXEC);
	}
	keep(new[1]);
	rig_talk(new[0], new[1], 50);
	rig_talk(old[0], old[1], 50);
	rig_stop(d);
}

#define WORKERS "[culvert]\nworkers = 2\n" /* not by the number of CPUs */

/* A bad file changes nothing, and says where it is wrong. */
static void bad_file(void **state)
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
		{ ONE_OF("") TWO_OF("") "[forward x]\nlisten = " ONE "\n" TO_UPSTREAM, "same" },
		{ WORKERS ONE_OF("") "[forward taken]\nlisten = " RIG_UPSTREAM "\nupstream = " ECHO
		  "\n", "cannot listen" },
		{ WORKERS ONE_OF("proxy-protocol = receive\n") "[forward taken]\nlisten = "
		  RIG_UPSTREAM "\nupstream = " ECHO "\n", "cannot listen" },
	};
	struct daemon *d = rig_start(*state, WORKERS ONE_OF(""));
	int one[2];
	char *log;

	one[0] = rig_dial(NULL, ONE);
	one[1] = rig_accept();
	rig_talk(one[0], one[1], 50);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *why = rig_reload(d, bad[i].text);

		if (!strstr(why, bad[i].says))
			fail_msg("file %zu: \"%s\"", i, why);
		rig_wait_log(d, why);
		rig_talk(one[0], one[1], 5);
		is_served(ONE);
		is_closed(TWO);
	}
	/* what would be said of a configuration that is in force */
	log = daemon_stderr(d);
	assert_null(strstr(log, "believes what PROXY headers say"));
	free(log);
	rig_reload_good(d, WORKERS ONE_OF("")
			TWO_OF("proxy-protocol = receive\n"));
	rig_wait_log(d, "forward two believes what PROXY headers say");
	rig_reload_good(d, WORKERS ONE_OF("") TWO_OF(""));
	is_served(TWO);
	rig_reload_good(d, WORKERS ONE_OF(""));
	rig_stop(d);
}

/* Names that the configuration had not at the start: of the upstream and of a listener. */
static void new_names(void **state)
{
	struct daemon *d = rig_start(*state, ONE_OF(""));

	rig_reload_good(d, ONE_OF("") "[forward two]\nlisten = localhost:9002\n"
			"upstream = localhost:9100\n");
	is_served(ONE);
	is_served(TWO);
	assert_non_null(strstr(rig_reload(d, ONE_OF("") "[forward two]\n" TO_UPSTREAM
				      "listen = no-such-host.invalid:9002\n"),
			       "no-such-host.invalid"));
	is_served(TWO);
	rig_reload_good(d, ONE_OF(""));
	is_closed(TWO);
	rig_stop(d);
}

/* From all addresses to one of them, and back: the old socket is in the way of the new one. */
static void address_narrows(void **state)
{
	struct daemon *d = rig_start(*state, "[forward one]\nlisten = " ANY_ONE "\n" TO_UPSTREAM);

	for (int i = 0; i < 3; i++) {
		is_served(ONE);
		is_served("127.0.0.2:9001");
		rig_reload_good(d, ONE_OF(""));
		is_served(ONE);
		is_closed("127.0.0.2:9001");
		rig_reload_good(d, "[forward one]\nlisten = " ANY_ONE "\n" TO_UPSTREAM);
	}
	/* those of ONE have stayed: not now */
	rig_reload_good(d, TWO_OF(""));
	is_closed(ONE);
	rig_reload_good(d, "[forward one]\nlisten = " ANY_ONE "\n" TO_UPSTREAM);
	rig_stop(d);
}

/* --- handshakes --- */

/*
 * The listener at TO has heard of the client, which takes the connection for open and has not said
 * so: its ACK goes with the first bytes, or 200 ms later.
 */
static int begin_handshake(const char *to)
{
	int fd = keep(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), one = 1;
	struct sockaddr_storage a;
	socklen_t len;

	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &one, sizeof(one)), 0);
	assert_int_equal(net_addr(to, &a, &len), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, len), 0);
	return fd;
}

/* It is served. */
static void end_handshake(int fd)
{
	char in[MESSAGE], out[MESSAGE] = "the first bytes";
	int server;

	rig_send(fd, out, sizeof(out));
	server = rig_accept();
	rig_receive(server, in, sizeof(in));
	assert_memory_equal(in, out, sizeof(out));
	rig_talk(fd, server, 10);
	rig_reset(fd);
	rig_reset(server);
}

/* What has begun at sockets of one address ends there, whoever has it meanwhile. */
static void handshakes(void **state)
{
	struct daemon *d = rig_start(*state, ONE_OF(""));
	int fd;

	for (int i = 0; i < 5; i++) {
		fd = begin_handshake(ONE);
		rig_reload_good(d, "[forward one]\nlisten = " ANY_ONE "\n" TO_UPSTREAM);
		end_handshake(fd);
		fd = begin_handshake(ONE);
		rig_reload_good(d, ONE_OF(""));
		end_handshake(fd);
	}
	is_closed("127.0.0.2:9001");
	rig_stop(d);
}

/* --- under load --- */

#define STARTING 3 /* threads that open one session after another */
#define RUNNING 2  /* threads that keep theirs */
#define RELOADS 100
#define WIDENINGS 30

static _Atomic bool stop_load, stop_echo; /* the echo last: sessions end in peace */
static _Atomic unsigned long sessions_done, messages_done;

static void *echo_one(void *arg)
{
	int fd = *(int *)arg;
	char buf[MESSAGE];
	ssize_t n;

	free(arg);

	while ((n = recv(fd, buf, sizeof(buf), 0)) > 0)
		if (send(fd, buf, (size_t)n, MSG_NOSIGNAL) != n)
			break;
	close(fd);
	return NULL;
}

static void start_echo(int fd)
{
	int *arg = malloc(sizeof(*arg));
	pthread_attr_t attr;
	pthread_t id;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (arg)
		*arg = fd;
	if (!arg || pthread_create(&id, &attr, echo_one, arg)) {
		free(arg);
		close(fd);
	}
	pthread_attr_destroy(&attr);
}

static void *echo_all(void *arg)
{
	const int *listener = arg;
	struct pollfd p = { .fd = *listener, .events = POLLIN };

	while (!atomic_load(&stop_echo)) {
		int fd;

		if (poll(&p, 1, 50) != 1)
			continue;
		fd = accept4(*listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
		start_echo(fd);
	}
	return NULL;
}

struct load {
	bool keeps;
	pthread_t id;
	char why[128]; /* "": all is well */
};

struct looks {
	struct daemon *daemon;
	pthread_t id;
	unsigned int n;
	int error;
};

/* One message, and its echo. */
static bool message(struct load *l, int fd, unsigned int number)
{
	char out[MESSAGE], in[MESSAGE];

	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (char)(number * 31 + i);
	if (send(fd, out, sizeof(out), MSG_NOSIGNAL) != sizeof(out)) {
		snprintf(l->why, sizeof(l->why), "send: %s", strerror(errno));
		return false;
	}
	if (recv(fd, in, sizeof(in), MSG_WAITALL) != sizeof(in)) {
		snprintf(l->why, sizeof(l->why), "receive: %s", strerror(errno));
		return false;
	}
	if (memcmp(in, out, sizeof(in)) != 0) {
		snprintf(l->why, sizeof(l->why), "wrong bytes");
		return false;
	}
	atomic_fetch_add(&messages_done, 1);
	return true;
}

static void session(struct load *l)
{
	struct timeval patience = { .tv_sec = RIG_PATIENCE_MS / 1000 };
	struct sockaddr_storage a;
	socklen_t len;
	int fd;
	char c;

	net_addr(ONE, &a, &len);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *)&a, len))
		snprintf(l->why, sizeof(l->why), "connect: %s", strerror(errno));
	for (unsigned int i = 0; !l->why[0] && (i < 3 || l->keeps); i++) {
		if (atomic_load(&stop_load))
			break;
		message(l, fd, i);
	}
	if (!l->why[0]) {
		shutdown(fd, SHUT_WR);
		if (recv(fd, &c, 1, 0) != 0)
			snprintf(l->why, sizeof(l->why), "end: %s", strerror(errno));
		atomic_fetch_add(&sessions_done, 1);
	}
	close(fd);
}

static void *load_main(void *arg)
{
	struct load *l = arg;

	while (!atomic_load(&stop_load) && !l->why[0])
		session(l);
	return NULL;
}

/* Who looks takes the locks that a reload takes, in the same order, or both wait for ever. */
static void *look_often(void *arg)
{
	struct looks *l = arg;

	while (!atomic_load(&stop_load) && !l->error) {
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
	char text[600];

	for (int i = 0; i < RELOADS; i++) {
		/* the second appears and vanishes */
		snprintf(text, sizeof(text),
			 "[forward %s]\nlisten = " ONE "\n" TO_ECHO "connect-timeout = %d\n"
			 "[forward two]\nlisten = 127.0.0.1:%d\n" TO_UPSTREAM,
			 i % 10 == 9 ? "renamed" : "one", 5 + i % 3, 9010 + i % 2);
		rig_reload_good(d, text);
	}
}

/* Sessions start and run all the time, and none of them notices; nor does who looks at them. */
static void run_under_load(const char *engine, void (*reload)(struct daemon *d))
{
	struct daemon *d = rig_start(engine, "[forward one]\nlisten = " ONE "\n" TO_ECHO);
	struct load loads[STARTING + RUNNING] = { 0 };
	struct looks looks = { .daemon = d };
	int listener = net_listen(ECHO, 1000);
	pthread_t echo;

	assert_true(listener >= 0);
	atomic_store(&stop_load, false);
	atomic_store(&stop_echo, false);
	atomic_store(&sessions_done, 0);
	atomic_store(&messages_done, 0);
	assert_int_equal(pthread_create(&echo, NULL, echo_all, &listener), 0);
	for (size_t i = 0; i < STARTING + RUNNING; i++) {
		loads[i].keeps = i >= STARTING;
		assert_int_equal(pthread_create(&loads[i].id, NULL, load_main, &loads[i]), 0);
	}
	assert_int_equal(pthread_create(&looks.id, NULL, look_often, &looks), 0);
	reload(d);
	atomic_store(&stop_load, true);
	pthread_join(looks.id, NULL);
	for (size_t i = 0; i < STARTING + RUNNING; i++)
		pthread_join(loads[i].id, NULL);
	atomic_store(&stop_echo, true);
	pthread_join(echo, NULL);
	close(listener);
	for (size_t i = 0; i < STARTING + RUNNING; i++)
		if (loads[i].why[0])
			fail_msg("%s session: %s",
				 loads[i].keeps ? "a running" : "a starting", loads[i].why);
	assert_int_equal(looks.error, 0);
	assert_true(atomic_load(&sessions_done) > RUNNING);
	printf("%d reloads, %lu sessions, %lu messages, %u looks\n", RELOADS,
	       atomic_load(&sessions_done), atomic_load(&messages_done), looks.n);
	rig_reload_good(d, "[forward one]\nlisten = " ONE "\n" TO_ECHO);
	rig_stop(d);
}

static void under_load(void **state)
{
	run_under_load(*state, reload_often);
}

/* All addresses, and back to the one that the sessions come to. */
static void widen_often(struct daemon *d)
{
	for (int i = 0; i < WIDENINGS; i++) {
		rig_reload_good(d, "[forward one]\nlisten = " ANY_ONE "\n" TO_ECHO);
		rig_reload_good(d, "[forward one]\nlisten = " ONE "\n" TO_ECHO);
	}
}

static void widens_under_load(void **state)
{
	run_under_load(*state, widen_often);
}

static const struct rig_row rows[] = {
	{ "appear-change-vanish", appear_change_vanish },
	{ "upstream-moves", upstream_moves },
	{ "bad-file", bad_file },
	{ "address-narrows", address_narrows },
	{ "handshakes", handshakes },
	{ "new-names", new_names },
	{ "under-load", under_load },
	{ "widens-under-load", widens_under_load },
};

int main(void)
{
	return rig_run("test_reload", TEST_SECONDS, rows, sizeof(rows) / sizeof(rows[0]));
}
