/* SPDX-License-Identifier: BSD-2-Clause */
/* The rows that a pair of scripts cannot express. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"

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
	if (daemon_stop(d, 10000, why, sizeof(why)))
		return cases_fail(c, "SIGTERM: %s", why);
	return 0;
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
	if (cases_start_own(c, options, upstream, &d)) {
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
	if (cases_start_own(c, options, PLAIN_UPSTREAM, &halt.d))
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
