/* SPDX-License-Identifier: BSD-2-Clause */
/* The rows that a pair of scripts cannot express. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "env.h"

/* SIGSTOP for two seconds in the middle of things. */
struct stop {
	struct daemon *d;
	struct peer *bulk, *talk;
	int64_t stopped_at;
	bool continued;
};

static int stop_tick(void *arg)
{
	struct stop *s = arg;
	bool middle = s->bulk->rx_off > 4 << 20 && s->talk->rx_off > 50 * 64;

	if (!s->stopped_at && middle) {
		daemon_signal(s->d, SIGSTOP);
		s->stopped_at = now_ms();
	} else if (s->stopped_at && !s->continued && now_ms() - s->stopped_at > 2000) {
		daemon_signal(s->d, SIGCONT);
		s->continued = true;
	}
	return 0;
}

int case_stop(struct cases *c)
{
	static struct peer ends[4];
	struct peer *all[] = { &ends[0], &ends[1], &ends[2], &ends[3] };
	struct stop stop = { .d = c->d, .bulk = &ends[0], .talk = &ends[2] };
	int r;

	/* The second pair connects only after the first server end was accepted: no mix-up. */
	cases_pair(c, cases_listen_addr(VIA_PLAIN), VIA_PLAIN, "B128M:128M F E", "A B128M:128M F E",
		   &ends[0], &ends[1]);
	cases_pair(c, cases_listen_addr(VIA_IPV6), VIA_IPV6, "nd G20000:64:64 F E",
		   "A nd H20000:64:64 E F", &ends[2], &ends[3]);
	r = peers_run(all, 4, 20000, stop_tick, &stop, c->why, sizeof(c->why));
	daemon_signal(c->d, SIGCONT);
	/* a grafted session goes on without the daemon, so it may be over first */
	if (!r && (strcmp(c->engine, "graft") != 0 ? !stop.continued : !stop.stopped_at))
		return cases_fail(c, "over before the daemon could be stopped and continued");
	return r;
}

/* The end of a row with a daemon of its own: R is its result so far. */
static int stop_own(struct cases *c, struct daemon *d, int r)
{
	char why[1000];

	if (!r)
		r = cases_idle(c, d);
	if (r) {
		daemon_kill(d);
		return -1;
	}
	/* a client that was still queued may be accepted now, and has the grace period of 5 s */
	if (daemon_stop(d, 10000, why, sizeof(why)))
		return cases_fail(c, "SIGTERM: %s", why);
	return 0;
}

/* SIGTERM with a session in the middle of a transfer; soon after it another client comes. */
struct term {
	struct daemon *d;
	struct peer *client;
	int64_t sent_at;
	int late_fd;
};

static int term_tick(void *arg)
{
	struct term *t = arg;
	struct sockaddr_storage ss;
	socklen_t len;

	if (!t->sent_at && t->client->rx_off > 0) {
		daemon_signal(t->d, SIGTERM);
		t->sent_at = now_ms();
	} else if (t->sent_at && t->late_fd < 0 && now_ms() - t->sent_at > 200) {
		net_addr(OWN_LISTEN, &ss, &len);
		t->late_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (connect(t->late_fd, (struct sockaddr *)&ss, len) < 0)
			poll(NULL, 0, 1); /* refused or in progress: both fine */
	}
	return 0;
}

static int case_term(struct cases *c, const char *grace, const char *client_script,
		     const char *server_script)
{
	const char *options[] = { "--grace", grace, NULL };
	static struct peer client, server;
	struct peer *both[] = { &client, &server };
	struct term term = { .client = &client, .late_fd = -1 };
	char why[1000];
	int r, fd;

	if (cases_start_own(c, options, 0, PLAIN_UPSTREAM, &term.d))
		return -1;
	cases_pair(c, OWN_LISTEN, VIA_PLAIN, client_script, server_script, &client, &server);
	r = peers_run(both, 2, 5000, term_tick, &term, c->why, sizeof(c->why));
	fd = accept4(cases_listener(VIA_PLAIN), NULL, NULL, SOCK_CLOEXEC);
	if (!r && fd >= 0)
		r = cases_fail(c, "a new connection is served after SIGTERM");
	if (fd >= 0)
		close(fd);
	if (term.late_fd >= 0)
		close(term.late_fd);
	if (r) {
		daemon_kill(term.d);
		return -1;
	}
	/* No session is left: no reason to use up the rest of a long grace period. */
	if (daemon_join(term.d, 2000, why, sizeof(why)))
		return cases_fail(c, "after SIGTERM and the last session: %s", why);
	return 0;
}

int case_term_finishes(struct cases *c)
{
	return case_term(c, "5", "G10:64:64 P500 B8M:8M F R1M E", "A H10:64:64 B8M:8M E S1M F");
}

int case_term_grace_over(struct cases *c)
{
	return case_term(c, "0.5", "G10:64:64 end R1", "A H10:64:64 end R1");
}

/* 50 clients more than --max-sessions: they wait, none is lost. */
#define MAX_SESSIONS 20
#define CROWD (MAX_SESSIONS + 50)

struct crowd {
	struct daemon *d;
	int64_t most;
	bool silent; /* the control socket did not answer */
};

static int crowd_tick(void *arg)
{
	struct crowd *crowd = arg;
	struct daemon_resources r;

	if (daemon_resources(crowd->d, 2000, &r) < 0)
		crowd->silent = true;
	else if (r.sessions > crowd->most)
		crowd->most = r.sessions;
	return crowd->silent;
}

int case_max_sessions(struct cases *c)
{
	static const char *const options[] = { "--max-sessions", "20", "--max-sessions-per-client",
					       "0", NULL };
	static struct peer ends[2 * CROWD];
	static struct peer *all[2 * CROWD];
	struct crowd crowd = { 0 };
	int r;

	if (cases_start_own(c, options, 0, PLAIN_UPSTREAM, &crowd.d))
		return -1;
	for (int i = 0; i < CROWD; i++) {
		cases_pair(c, OWN_LISTEN, VIA_PLAIN, "S64 R64 P150 F E", "A R64 S64 E F",
			   &ends[2 * i], &ends[2 * i + 1]);
		c->sessions -= i < CROWD - 1; /* any server may meet any client: same bytes */
		all[2 * i] = &ends[2 * i];
		all[2 * i + 1] = &ends[2 * i + 1];
	}
	r = peers_run(all, 2 * CROWD, 10000, crowd_tick, &crowd, c->why, sizeof(c->why));
	if (!r && crowd.silent)
		r = cases_fail(c, "the control socket did not answer");
	else if (!r && (crowd.most > MAX_SESSIONS || crowd.most < MAX_SESSIONS / 2))
		r = cases_fail(c, "at most %lld sessions at once were seen, the limit is %d",
			       (long long)crowd.most, MAX_SESSIONS);
	return stop_own(c, crowd.d, r);
}

/* More clients than descriptors: no spinning, and all is well once they are gone. */
#define NOFILE 128
#define HUNGRY 200

/*
 * A session must work again.  Not every try needs to: clients that were still queued when they
 * went are accepted only now, and the server's script may meet one of those.
 */
static int recovers(struct cases *c, struct daemon *d)
{
	int64_t deadline = now_ms() + 5000;
	int good = 0;

	while (good < 5 && now_ms() < deadline) {
		if (cases_idle(c, d))
			return -1;
		good = cases_session_own(c, "S64 F R64 E", "A R64 E S64 F", 2000) ? 0 : good + 1;
	}
	return good < 5 ? -1 : 0;
}

static int starve(struct cases *c, struct daemon *d)
{
	static int fds[HUNGRY];
	static const char bytes[64];
	struct sockaddr_storage ss;
	socklen_t len;
	int64_t cpu;
	int connected = 0;

	net_addr(OWN_LISTEN, &ss, &len);
	for (int i = 0; i < HUNGRY; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(fds[i], (struct sockaddr *)&ss, len))
			continue;
		connected++;
		send(fds[i], bytes, sizeof(bytes), MSG_NOSIGNAL); /* it may be reset by now */
	}
	poll(NULL, 0, 500); /* let it take what it can; what is measured is the time after that */
	cpu = daemon_cpu_ms(d);
	poll(NULL, 0, 1000);
	cpu = daemon_cpu_ms(d) - cpu;
	for (int i = 0; i < HUNGRY; i++)
		close(fds[i]);
	if (connected < HUNGRY)
		return cases_fail(c, "only %d of %d clients could connect", connected, HUNGRY);
	if (cpu > 200)
		return cases_fail(c, "spins without descriptors: %lld ms of CPU time in 1 s",
				  (long long)cpu);
	return 0;
}

int case_no_descriptors(struct cases *c)
{
	struct daemon *d;
	int r;

	if (cases_start_own(c, NULL, NOFILE, PLAIN_UPSTREAM, &d))
		return -1;
	r = starve(c, d);
	if (!r)
		r = daemon_check(d, c->why, sizeof(c->why));
	if (!r)
		r = recovers(c, d);
	return stop_own(c, d, r);
}

/* Hook: the filler of the backlog goes, so there is room for the next SYN. */
static int make_room(struct peer *p, void *arg)
{
	(void)arg;
	net_drain_listener(p->listen_fd);
	return 1;
}

/* The upstream's SYN is dropped at first: data and FIN of the client are there long before. */
int case_connect_late(struct cases *c)
{
	static const char upstream[] = "127.0.0.1:9104";
	static const char *const options[] = { "--connect-timeout", "6", NULL };
	static struct peer client, server, filler;
	struct peer *both[] = { &client, &server };
	struct sockaddr_storage ss;
	struct daemon *d;
	socklen_t len;
	int fd, r;

	fd = net_listen(upstream, 0);
	if (fd < 0)
		return cases_fail(c, "listen: %s", strerror(-fd));
	net_addr(upstream, &ss, &len);
	peer_init(&filler, "filler", (struct sockaddr *)&ss, len);
	(void)connect(filler.fd, (struct sockaddr *)&ss, len); /* EINPROGRESS, perhaps for ever */
	if (cases_start_own(c, options, 0, upstream, &d)) {
		peer_close(&filler);
		close(fd);
		return -1;
	}
	cases_pair(c, OWN_LISTEN, VIA_PLAIN, "L1000 R64K E", "P300 T A R1000 E S64K F", &client,
		   &server);
	server.listen_fd = fd;
	server.hook = make_room;
	r = peers_run(both, 2, 6000, NULL, NULL, c->why, sizeof(c->why));
	peer_close(&filler);
	close(fd);
	return stop_own(c, d, r);
}

/*
 * A client that has gone with RST before it was accepted, without a byte.  The kernel tells of that
 * once, to whichever call comes first; from then on the socket looks as if it had ended with FIN.
 */
static int reset_unaccepted(struct cases *c)
{
	struct linger linger = { .l_onoff = 1 };
	struct sockaddr_storage ss;
	socklen_t len;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

	net_addr(cases_listen_addr(VIA_PLAIN), &ss, &len);
	r = connect(fd, (struct sockaddr *)&ss, len) ||
	    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	close(fd);
	return r ? cases_fail(c, "connect: %s", strerror(errno)) : 0;
}

int case_reset_unaccepted(struct cases *c)
{
	struct pollfd upstream = { .fd = cases_listener(VIA_PLAIN), .events = POLLIN };
	char byte;
	int fd, r;

	daemon_signal(c->d, SIGSTOP);
	r = reset_unaccepted(c);
	daemon_signal(c->d, SIGCONT);
	/* nobody need connect to the upstream for this one; but who does must not end with FIN */
	if (r || poll(&upstream, 1, 500) < 1)
		return r;
	fd = accept4(upstream.fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return cases_fail(c, "accept: %s", strerror(errno));
	upstream.fd = fd;
	if (poll(&upstream, 1, 5000) < 1)
		r = cases_fail(c, "the client's RST became silence");
	else if (recv(fd, &byte, 1, 0) == 0)
		r = cases_fail(c, "the client's RST became a FIN");
	close(fd);
	return r;
}

/* Hook: stop the daemon, or let it go on. */
struct halt {
	struct daemon *d;
	bool halted;
};

static int halt_or_go_on(struct peer *p, void *arg)
{
	struct halt *h = arg;

	(void)p;
	if (h->halted)
		daemon_signal(h->d, SIGCONT);
	else
		daemon_halt(h->d);
	h->halted = !h->halted;
	return 1;
}

/*
 * One end says it all while the daemon is stopped, and waits for an answer: nothing comes later
 * that would make the daemon look again.  With 1 KB a read, 60 KB are more than one turn; an urgent
 * byte ends a read before it.
 */
int case_all_at_once(struct cases *c)
{
	static const struct {
		const char *client, *server;
	} scripts[] = {
		{ "S100 R100 T S60K T R100 F E", "A R100 S100 R60K S100 E F" },
		{ "S100 R100 T L60K T R100 E", "A R100 S100 R60K E L100" },
		{ "S100 R100 T S1000 O S1000 T R100 F E", "A R100 S100 R2001 S100 E F" },
		{ "S100 R100 R60K S100 E F", "A R100 S100 T S60K T R100 F E" },
		{ "S100 R100 R60K E L100", "A R100 S100 T L60K T R100 E" },
		{ "S100 R100 R2001 S100 E F", "A R100 S100 T S1000 O S1000 T R100 F E" },
		{ "R60K S100 E F", "A T S60K T R100 F E" },
		{ "R2001 S100 E F", "A T S1000 O S1000 T R100 F E" },
	};
	static const char *const options[] = { "--copy-buffer", "1K", NULL };
	static struct peer client, server;
	struct peer *both[] = { &client, &server };
	static struct halt halt; /* the ends point to it */
	int r = 0;

	halt = (struct halt){ 0 };
	if (cases_start_own(c, options, 0, PLAIN_UPSTREAM, &halt.d))
		return -1;
	for (size_t i = 0; !r && i < sizeof(scripts) / sizeof(scripts[0]); i++) {
		cases_pair(c, OWN_LISTEN, VIA_PLAIN, scripts[i].client, scripts[i].server, &client,
			   &server);
		client.hook = server.hook = halt_or_go_on;
		client.hook_arg = server.hook_arg = &halt;
		r = peers_run(both, 2, 5000, NULL, NULL, c->why, sizeof(c->why));
	}
	daemon_signal(halt.d, SIGCONT);
	return stop_own(c, halt.d, r);
}
