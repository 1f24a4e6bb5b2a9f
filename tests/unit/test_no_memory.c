/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests, changes and answers while there is no memory: each call of malloc() in turn fails,
 * alone or with all that follow.  What is asked is understood whole or refused, what is refused
 * changes nothing, and what is answered is whole or says that there was no memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json_add.h"
#include "cli/client_words.h"
#include "daemon/control_client.h"
#include "daemon/operate.h"
#include "no_memory.h"
#include "no_memory_json.h"
#include "relay/balance.h"
#include "relay/session.h"

#define CALLS_MAX 2000 /* of malloc(), more than any of it takes */

/* Call FN(ARG) as often as a further call of malloc() may fail. */
static void each_failure(void (*fn)(void *arg), void *arg, void (*check)(void *arg, bool failed))
{
	for (int all = 0; all < 2; all++) {
		bool failed = true;

		for (long n = 0; failed; n++) {
			assert_in_range(n, 0, CALLS_MAX);
			no_memory_begin(n, all);
			fn(arg);
			failed = no_memory_end();
			check(arg, failed);
		}
	}
}

/* --- requests --- */

struct parsing {
	const char *line;
	struct command_request req;
	struct json_object *why;
	bool ok, lacks;
	bool right; /* with memory */
	unsigned int given;
	size_t n_ids, n_clients;
};

static void parse(void *arg)
{
	struct parsing *p = arg;

	json_begin();
	p->ok = command_parse(p->line, strlen(p->line), &p->req, &p->why);
	p->lacks = json_lacks();
}

static void check_parsed(void *arg, bool failed)
{
	struct parsing *p = arg;

	if (p->ok && (!p->right || p->lacks))
		fail_msg("%s: taken", p->line);
	if (p->ok) {
		assert_int_equal(p->req.given, p->given);
		assert_int_equal(p->req.filter.n_ids, p->n_ids);
		assert_int_equal(p->req.filter.clients.n, p->n_clients);
		command_close(&p->req);
	} else if (p->right && !p->lacks) {
		fail_msg("%s: refused, but not for want of memory", p->line);
	}
	if (!failed)
		assert_int_equal(p->ok, p->right);
	json_object_put(p->why);
}

static void test_requests(void **state)
{
	static const char *const lines[] = {
		"status",
		("{\"command\":\"kill\",\"id\":[3,1,2],\"client\":\"10.0.0.0/8, ::1\","
		 "\"forward\":\"db\",\"carrier\":\"copy\"}"),
		"{\"command\":\"drain\",\"forward\":\"db\",\"deadline\":1.5}",
		/* and what must not be taken */
		"{\"command\":\"kill\",\"forward\":\"db\",\"client\":\"nobody\"}",
		"{\"command\":\"kill\",\"forward\":\"db\",\"clients\":\"10.0.0.7\"}",
		"{\"command\":\"kill\",\"all\":true,\"forward\":\"db\"}",
		"{\"command\":\"kill\"}", "{\"command\":\"stop\"}", "kill", "[]",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		struct parsing p = { .line = lines[i] };

		parse(&p);
		p.right = p.ok;
		assert_int_equal(p.right, i < 3);
		p.given = p.req.given;
		p.n_ids = p.req.filter.n_ids;
		p.n_clients = p.req.filter.clients.n;
		if (p.ok)
			command_close(&p.req);
		json_object_put(p.why);
		each_failure(parse, &p, check_parsed);
	}
}

/* --- the client's words --- */

struct wording {
	struct client_words words;
	int r;
};

static char *const kill_words[] = {
	(char *)"kill", (char *)"17", (char *)"--forward", (char *)"db", (char *)"--client",
	(char *)"10.0.0.0/8", (char *)"--carrier", (char *)"sockmap",
};

static void understand(void *arg)
{
	struct wording *w = arg;

	w->r = client_words_parse(command_find("kill"), 8, (char **)kill_words, &w->words);
}

/* A request that lacks a filter would kill more. */
static void check_words(void *arg, bool failed)
{
	struct wording *w = arg;

	if (w->r)
		assert_int_equal(w->r, -ENOMEM);
	else
		assert_string_equal(w->words.line,
				    "{\"command\":\"kill\",\"id\":[17],\"forward\":\"db\","
				    "\"client\":\"10.0.0.0/8\",\"carrier\":\"sockmap\"}");
	if (!failed)
		assert_int_equal(w->r, 0);
	client_words_close(&w->words);
}

static void test_words(void **state)
{
	struct wording w;

	(void)state;
	each_failure(understand, &w, check_words);
}

/* --- answers --- */

#define LONG_TEXT 3000

struct answering {
	struct control_client client;
	int fds[2];
};

static struct json_object *make_answer(void *arg, const struct command_request *req,
				       const struct control_peer *peer)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();
	char text[LONG_TEXT];

	(void)arg;
	(void)req;
	(void)peer;
	memset(text, 'x', sizeof(text));
	for (int i = 0; i < 5; i++)
		json_append(list, json_object_new_int64(i));
	json_add(o, "list", list);
	json_add(o, "text", json_object_new_string_len(text, sizeof(text)));
	json_add_null(o, "nothing");
	json_add(o, "last", json_object_new_boolean(true));
	return o;
}

static void answer(void *arg)
{
	static const char line[] = "status\n";
	const struct control_peer peer = { .may_ask = true };
	struct answering *a = arg;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, a->fds))
		abort();
	control_client_begin(&a->client, a->fds[0], NULL, &peer, 0);
	memcpy(a->client.request, line, strlen(line));
	a->client.got = strlen(line) - 1;
	a->client.state = CLIENT_ASKING;
	control_client_answer(&a->client, make_answer, NULL, 0);
}

static void check_answer(void *arg, bool failed)
{
	struct answering *a = arg;
	char text[2 * LONG_TEXT];
	ssize_t n = recv(a->fds[1], text, sizeof(text) - 1, 0);
	struct json_object *o, *error = NULL, *last = NULL;

	assert_true(n > 0 && text[n - 1] == '\n');
	text[n] = '\0';
	o = json_tokener_parse(text);
	if (json_object_object_get_ex(o, "error", &error)) {
		assert_true(failed);
		json_object_object_get_ex(error, "code", &last);
		assert_string_equal(json_object_get_string(last),
				    command_error_name(ERROR_NO_MEMORY));
	} else {
		assert_int_equal(json_object_object_length(o), 4);
		assert_int_equal(n, LONG_TEXT + strlen("{\"list\":[0,1,2,3,4],\"text\":\"\","
						       "\"nothing\":null,\"last\":true}\n"));
	}
	json_object_put(o);
	assert_int_equal(a->client.state, CLIENT_FREE);
	close(a->fds[1]);
}

static void test_answers(void **state)
{
	struct answering a;

	(void)state;
	each_failure(answer, &a, check_answer);
}

/* --- changes --- */

static const struct control_peer root = { .may_ask = true, .may_change = true };

struct daemon {
	struct config config;
	struct forward_conf conf;
	struct balance balance;
	struct shared shared;
	struct forwards forwards;
	struct forward *forward;
	struct probe_start probe;
	struct inspect inspect;
	const char *line;
	struct json_object *answer;
};

static int daemon_setup(void **state)
{
	static struct daemon d;

	d = (struct daemon){
		.config = { .workers = 1, .max_sessions = 10, .probe = true },
		.conf = { .name = "db", .engine = ENGINE_COPY },
		.probe = { .splice = { .verdict = PROBE_BROKEN, .why = "this kernel cannot" } },
	};
	balance_open(&d.balance, SPREAD_ALL, 1, NULL, NULL);
	d.shared = (struct shared){ .config = &d.config, .balance = &d.balance };
	forwards_init(&d.forwards);
	if (forward_new(&d.conf, &d.config, NULL, NULL, &d.forward))
		return -1;
	forwards_add(&d.forwards, d.forward);
	d.inspect = (struct inspect){ .shared = &d.shared, .forwards = &d.forwards,
				      .kernel_reason = "this one neither", .probe = &d.probe };
	*state = &d;
	return 0;
}

static int daemon_teardown(void **state)
{
	struct daemon *d = *state;

	forwards_close(&d->forwards);
	balance_close(&d->balance);
	return 0;
}

static struct json_object *do_operate(void *arg, const struct command_request *req,
				      const struct control_peer *peer)
{
	return operate(arg, req, peer);
}

static void ask(void *arg)
{
	struct daemon *d = arg;

	json_begin();
	d->answer = control_answer_line(do_operate, &d->inspect, &root, d->line, strlen(d->line));
}

/* Without memory for the reason an engine was set that the kernel does not have. */
static void check_engine(void *arg, bool failed)
{
	struct daemon *d = arg;
	struct json_object *error;

	assert_int_equal(forward_policy(d->forward)->engine, ENGINE_COPY);
	if (!failed)
		assert_true(json_object_object_get_ex(d->answer, "error", &error));
	json_object_put(d->answer);
}

static void test_engine(void **state)
{
	static const char *const lines[] = {
		"{\"command\":\"engine\",\"forward\":\"db\",\"engine\":\"sockmap\"}",
		"{\"command\":\"engine\",\"forward\":\"db\",\"engine\":\"splice\"}",
		"{\"command\":\"engine\",\"forward\":\"none\",\"engine\":\"auto\"}",
	};
	struct daemon *d = *state;

	for (size_t i = 0; i < 3; i++) {
		d->line = lines[i];
		each_failure(ask, d, check_engine);
	}
	d->line = "{\"command\":\"engine\",\"forward\":\"db\",\"engine\":\"auto\"}";
	ask(d);
	assert_int_equal(forward_policy(d->forward)->engine, ENGINE_AUTO);
	json_object_put(d->answer);
}

/* --- sessions --- */

static void stop(void *arg)
{
	((struct loop *)arg)->stop = true;
}

static void *run(void *arg)
{
	loop_run(arg);
	return NULL;
}

static void look(void *arg)
{
	struct daemon *d = arg;

	ask(d);
	if (json_lacks()) {
		json_object_put(d->answer);
		d->answer = NULL;
	}
}

static void check_sessions(void *arg, bool failed)
{
	struct daemon *d = arg;
	struct json_object *list;

	assert_true(d->answer || failed);
	if (d->answer) {
		assert_true(json_object_object_get_ex(d->answer, "sessions", &list));
		assert_int_equal(json_object_array_length(list), 1);
	}
	json_object_put(d->answer);
}

/* A list that lacks a session is no answer. */
static void test_sessions(void **state)
{
	struct daemon *d = *state;
	struct addr upstream = { .len = sizeof(struct sockaddr_in),
				 .ss = { .ss_family = AF_INET } };
	struct session s = { .forward = d->forward, .pair = NO_PAIR, .state = SESSION_OPEN };
	struct worker w = { .shared = &d->shared, .sessions = &s }, *workers[] = { &w };
	pthread_t thread;

	d->conf.upstream = (struct endpoint){ .text = "10.0.0.1:80", .addrs = &upstream,
					      .n_addrs = 1 };
	s.worker = &w;
	s.client.sa.sa_family = AF_INET;
	d->inspect.workers = workers;
	d->inspect.n_workers = 1;
	assert_int_equal(loop_open(&w.loop, NULL, NULL), 0);
	assert_int_equal(pthread_create(&thread, NULL, run, &w.loop), 0);
	d->line = "sessions";
	each_failure(look, d, check_sessions);
	assert_int_equal(loop_call(&w.loop, stop, &w.loop, 5000), 0);
	pthread_join(thread, NULL);
	loop_close(&w.loop);
}

/* A worker that hangs is counted: what it has is missing, and the answer says so. */
static void test_silent_worker(void **state)
{
	struct daemon *d = *state;
	struct worker w[2] = { { .shared = &d->shared }, { .shared = &d->shared } };
	struct worker *workers[] = { &w[0], &w[1] };
	struct json_object *n;

	d->inspect.workers = workers;
	d->inspect.n_workers = 2;
	for (int i = 0; i < 2; i++)
		assert_int_equal(loop_open(&w[i].loop, NULL, NULL), 0);
	d->line = "sessions";
	ask(d);
	assert_true(json_object_object_get_ex(d->answer, "workers_silent", &n));
	assert_int_equal(json_object_get_int(n), 2);
	json_object_put(d->answer);
	for (int i = 0; i < 2; i++)
		loop_close(&w[i].loop);
}

#define ON_DAEMON(f) cmocka_unit_test_setup_teardown(f, daemon_setup, daemon_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_answers),
		ON_DAEMON(test_engine),
		ON_DAEMON(test_sessions),
		ON_DAEMON(test_silent_worker),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
