// SPDX-License-Identifier: BSD-2-Clause
/*
 * A reload makes a forward transparent, and takes that back, on each engine: sessions live on, and
 * no connection attempt is lost, be it made before, meanwhile or after.
 */
#include "source_rig.h"

#include "load.h"

#define TEST_SECONDS 120
#define AT_GATE GATE4 ":9001"
#define CULVERT "[culvert]\nworkers = 3\n"
#define FILE_OF(all, four) \
	CULVERT all \
	"[forward four]\nlisten = " AT_GATE "\nupstream = " SERVER4 "\n" four \
	"[forward any]\nlisten = 0.0.0.0:9100\nupstream = " SERVER4 "\n"
#define LIMITED FILE_OF("", "max-sessions = 1\n")
#define OPAQUE FILE_OF("", "")
#define TRANSPARENT FILE_OF("transparent = yes\n", "")
#define OTHER CULVERT "[forward other]\nlisten = " GATE4 ":9009\nupstream = " SERVER4 "\n"
#define QUEUED 12
#define CHANGES 10

/* A conversation, as the server sees it from FROM. */
static struct ends open_session(const char *from)
{
	struct ends e = open_at(AT_GATE, server4);

	assert_string_equal(host_of(e.server, true), from);
	rig_talk_on(e, 10);
	return e;
}

/* Clients that connect to the server itself are intercepted, or get no answer. */
static void is_intercepted(bool yes)
{
	struct sockaddr_storage a;
	struct pollfd p = { .events = POLLOUT };
	socklen_t len;

	assert_int_equal(net_addr(SERVER4, &a, &len), 0);
	netlab_enter(CLIENT_MACHINE);
	p.fd = keep(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	netlab_enter(GATEWAY);
	assert_int_equal(connect(p.fd, (struct sockaddr *)&a, len), -1);
	assert_int_equal(errno, EINPROGRESS);
	if (yes) {
		assert_int_equal(poll(&p, 1, RIG_PATIENCE_MS), 1);
		assert_string_equal(host_of(p.fd, true), "10.77.2.1");
		forget(accept_on(server4));
	} else {
		assert_int_equal(poll(&p, 1, 100), 0);
	}
	forget(p.fd);
}

/* --- clients that come all the time --- */

static void be_client(void)
{
	netlab_enter(CLIENT_MACHINE);
}

/* None of them notices. */
static void change_under_load(struct daemon *d)
{
	load_begin(AT_GATE, server4, 2, 0, be_client);
	for (int i = 0; i < CHANGES; i++)
		rig_reload_good(d, i % 2 ? OPAQUE : TRANSPARENT);
	printf("%d changes, %lu connections\n", CHANGES, load_end());
}

/* --- the test --- */

/* They have connected, and wait in the backlog: the forward has a session, and may have one. */
static void queue_up(int clients[QUEUED])
{
	for (int i = 0; i < QUEUED; i++) {
		unsigned char number = (unsigned char)i;

		clients[i] = dial(AT_GATE);
		rig_send(clients[i], &number, 1);
	}
	rig_accept_none();
}

/* Each has its session, as of the forward that there is now. */
static void queue_is_served(int clients[QUEUED])
{
	bool seen[QUEUED] = { false };

	for (int i = 0; i < QUEUED; i++) {
		int server = accept_on(server4);
		unsigned char number = QUEUED;

		assert_string_equal(host_of(server, true), "10.77.1.1");
		rig_receive(server, &number, 1);
		assert_true(number < QUEUED && !seen[number]);
		seen[number] = true;
		rig_talk(clients[number], server, 5);
		rig_reset(clients[number]);
		assert_int_equal(rig_end(server, RIG_PATIENCE_MS), ECONNRESET);
		forget(server);
	}
}

static void hang_up(struct daemon *d, struct ends e)
{
	rig_hang_up(e);
	rig_wait_status(d, "resources.sessions", 0);
}

static void changes(void **state)
{
	struct daemon *d = rig_start(*state, LIMITED);
	struct ends before = open_session("10.77.2.2"), meanwhile, after;
	int queued[QUEUED];

	rig_talk_until(d, "four", rig_carrier(d, *state), before.client, before.server);
	queue_up(queued);
	is_intercepted(false);
	rig_reload_good(d, TRANSPARENT);
	queue_is_served(queued);
	rig_talk_on(before, 50);
	is_intercepted(true);
	hang_up(d, before);

	meanwhile = open_session("10.77.1.1");
	rig_talk_until(d, "four", rig_carrier(d, *state), meanwhile.client, meanwhile.server);
	rig_reload_good(d, OPAQUE);
	is_intercepted(false);
	rig_talk_on(meanwhile, 50);
	after = open_session("10.77.2.2");

	change_under_load(d);
	rig_talk_on(meanwhile, 50);
	rig_talk_on(after, 50);
	rig_hang_up(after);
	hang_up(d, meanwhile);
	/* what has been replaced goes with the address, so nothing is left over */
	rig_reload_good(d, OTHER);
	rig_reload_good(d, LIMITED);
	rig_stop(d);
}

static const struct rig_row rows[] = {
	{ "changes", changes },
};

int main(void)
{
	return source_run("test_transparent", TEST_SECONDS, rows, sizeof(rows) / sizeof(rows[0]));
}
