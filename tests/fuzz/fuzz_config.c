// SPDX-License-Identifier: BSD-2-Clause
/*
 * The command line of `culvert run` (user/config/config.c): words that end in NUL.
 *
 * What is accepted is within the documented bounds, and says the same when it is written out and
 * parsed again.  What is not gives one line on stderr.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "config/config.h"
#include "config/option.h"
#include "fuzz.h"

#define WORDS_MAX 64
#define TEXT_ROOM 512
#define DAY_MS (24 * 3600 * 1000)

static void must_be_within(const char *what, uint64_t n, uint64_t least, uint64_t most)
{
	must(n >= least && n <= most, "%s: %llu", what, (unsigned long long)n);
}

static void check_bounds(const struct config *c)
{
	must_be_within("workers", c->workers, 1, 1024);
	must_be_within("connect timeout", c->connect_timeout_ms, 1, DAY_MS);
	must_be_within("idle timeout", c->idle_timeout_ms, 0, 7 * DAY_MS);
	must_be_within("fin timeout", c->fin_timeout_ms, 0, 7 * DAY_MS);
	must_be_within("interval of look-ups", c->resolve_interval_ms, 100, DAY_MS);
	must_be_within("accept rate", c->accept_rate, 0, 1000000);
	must_be_within("bandwidth", c->bandwidth, 0, BANDWIDTH_MAX);
	must_be_within("bandwidth of a client", c->bandwidth_per_client, 0, BANDWIDTH_MAX);
	must_be_within("grace", c->grace_ms, 0, DAY_MS);
	must_be_within("sessions", c->max_sessions, 1, 1000000);
	must_be_within("copy buffer", c->copy_buffer, 1 << 10, 16 << 20);
	must_be_within("soft limit", c->soft_limit, 4 << 10, c->hard_limit);
	must_be_within("hard limit", c->hard_limit, 4 << 10, 1 << 30);
	must_be_within("kernel memory", c->kernel_memory, KERNEL_MEMORY_MIN, KERNEL_MEMORY_MAX);
	must_be_within("settle", c->settle_ms, 0, DAY_MS);
	must_be_within("keepalive", c->keepalive_s, 0, 32767);
	must_be_within("PROXY timeout", c->proxy_timeout_ms, 1, DAY_MS);
	must(strcmp(proxy_use_text(c->proxy_protocol), "?"), "PROXY headers %u", c->proxy_protocol);
	must_be_within("review", c->review_packets, 0, 1000000000);
	must_be_within("length of the control socket's path", strlen(c->control), 1, 107);
	must_be_within("level", (uint64_t)c->log_level, LOG_ERR, LOG_DEBUG);
	must(!c->user || c->user[0], "an account without a name");
	must(strcmp(engine_name(c->defaults.engine), "?"), "engine %d", (int)c->engine);
	must_be_within("spread", c->spread, SPREAD_AUTO, SPREAD_ALL);
	must(c->forwards && c->n_forwards >= 1 && c->n_forwards <= WORDS_MAX / 2, "%zu forwards",
	     c->n_forwards);
}

/* No two listen at the same address, unless the kernel picks the port. */
static void check_listeners(const struct config *c)
{
	for (size_t i = 0; i < c->n_forwards; i++) {
		const struct endpoint *a = &c->forwards[i].listen;

		must(a->named != (a->n_addrs > 0) && c->forwards[i].upstream.named !=
		     (c->forwards[i].upstream.n_addrs > 0), "%s: a name looked up, or no address",
		     a->text);
		for (size_t k = 0; k < i; k++) {
			const struct endpoint *b = &c->forwards[k].listen;

			must(strcmp(a->text, b->text) || strstr(a->text, ":0"), "%s twice",
			     a->text);
		}
	}
}

static const char *level_name(int level)
{
	static const char *const names[] = {
		[LOG_ERR] = "error", [LOG_WARNING] = "warning", [LOG_NOTICE] = "notice",
		[LOG_INFO] = "info", [LOG_DEBUG] = "debug",
	};

	return names[level];
}

static const char *filter_name(enum filter_mode mode)
{
	static const char *const names[] = {
		[FILTER_ERRNO] = "errno", [FILTER_KILL] = "kill", [FILTER_OFF] = "off",
	};

	return names[mode];
}

static const char *spread_name(enum spread how)
{
	static const char *const names[] = {
		[SPREAD_AUTO] = "auto", [SPREAD_ALL] = "all",
	};

	return names[how];
}

static char *text_of(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *text_of(const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		abort();
	va_end(ap);
	return text;
}

static char *seconds_of(const char *option, unsigned int ms)
{
	return text_of("%s=%u.%03u", option, ms / 1000, ms % 1000);
}

/* Valid until the next call. */
static const char *host_of(const struct addr *a)
{
	static char text[ADDR_STRLEN];

	addr_format((const struct sockaddr *)&a->ss, a->len, text, sizeof(text));
	*strrchr(text, ':') = '\0';
	return text;
}

/* The whole of C as a command line.  See words_free(). */
static char **write_out(const struct config *c, int *ret_argc)
{
	char **argv = calloc(2 * c->n_forwards + 48, sizeof(*argv));
	int n = 0;

	if (!argv)
		abort();
	argv[n++] = text_of("run");
	argv[n++] = text_of("--engine=%s", engine_name(c->defaults.engine));
	argv[n++] = text_of("--workers=%u", c->workers);
	argv[n++] = text_of("--spread=%s", spread_name(c->spread));
	argv[n++] = text_of("--control=%s", c->control);
	argv[n++] = seconds_of("--connect-timeout", c->connect_timeout_ms);
	argv[n++] = seconds_of("--idle-timeout", c->idle_timeout_ms);
	argv[n++] = seconds_of("--fin-timeout", c->fin_timeout_ms);
	argv[n++] = seconds_of("--resolve-interval", c->resolve_interval_ms);
	argv[n++] = text_of("--accept-rate=%u", c->accept_rate);
	argv[n++] = text_of("--bandwidth=%llu", (unsigned long long)c->bandwidth);
	argv[n++] = text_of("--bandwidth-per-client=%llu",
			    (unsigned long long)c->bandwidth_per_client);
	argv[n++] = seconds_of("--grace", c->grace_ms);
	argv[n++] = text_of("--max-sessions=%u", c->max_sessions);
	argv[n++] = text_of("--max-sessions-per-client=%u", c->max_sessions_per_client);
	argv[n++] = text_of("--seccomp=%s", filter_name(c->seccomp));
	argv[n++] = text_of("--copy-buffer=%zu", c->copy_buffer);
	argv[n++] = text_of("--soft-limit=%lluB", (unsigned long long)c->soft_limit);
	argv[n++] = text_of("--hard-limit=%llu", (unsigned long long)c->hard_limit);
	argv[n++] = text_of("--kernel-memory=%llu", (unsigned long long)c->kernel_memory);
	argv[n++] = text_of("--nodelay=%s", c->nodelay ? "yes" : "no");
	argv[n++] = text_of("--keepalive=%u", c->keepalive_s);
	argv[n++] = text_of("--proxy-protocol=%s", proxy_use_text(c->proxy_protocol));
	argv[n++] = seconds_of("--proxy-timeout", c->proxy_timeout_ms);
	argv[n++] = text_of("--source=%s", c->source.len ? host_of(&c->source) : "any");
	argv[n++] = text_of("--interface=%s", c->interface ? c->interface : "any");
	argv[n++] = text_of("--mark=%#x", c->mark);
	argv[n++] = text_of("--transparent=%s", c->transparent ? "yes" : "no");
	argv[n++] = seconds_of("--settle", c->settle_ms);
	argv[n++] = text_of("--review=%u", c->review_packets);
	argv[n++] = text_of("--probe=%s", c->probe ? "yes" : "no");
	argv[n++] = text_of("--privileged-process=%s", c->privileged_process ? "yes" : "no");
	if (c->user)
		argv[n++] = text_of("--user=%s", c->user);
	argv[n++] = text_of("--log-level=%s", level_name(c->log_level));
	if (c->session_log)
		argv[n++] = text_of("--session-log=%s", c->session_log);
	argv[n++] = text_of("--");
	for (size_t i = 0; i < c->n_forwards; i++) {
		argv[n++] = text_of("%s", c->forwards[i].listen.text);
		argv[n++] = text_of("%s", c->forwards[i].upstream.text);
	}
	*ret_argc = n;
	return argv;
}

static bool same_endpoint(const struct endpoint *a, const struct endpoint *b)
{
	if (strcmp(a->text, b->text) || a->n_addrs != b->n_addrs)
		return false;
	for (size_t i = 0; i < a->n_addrs; i++)
		if (!addr_equal(&a->addrs[i], &b->addrs[i]))
			return false;
	return true;
}

static void must_be_same(const struct config *a, const struct config *b)
{
	must(a->engine == b->engine && a->workers == b->workers && a->spread == b->spread &&
	     !strcmp(a->control, b->control) && a->max_sessions == b->max_sessions &&
	     a->connect_timeout_ms == b->connect_timeout_ms && a->grace_ms == b->grace_ms &&
	     a->accept_rate == b->accept_rate && a->bandwidth == b->bandwidth &&
	     a->bandwidth_per_client == b->bandwidth_per_client &&
	     a->idle_timeout_ms == b->idle_timeout_ms && a->fin_timeout_ms == b->fin_timeout_ms &&
	     a->resolve_interval_ms == b->resolve_interval_ms &&
	     a->copy_buffer == b->copy_buffer && a->soft_limit == b->soft_limit &&
	     a->hard_limit == b->hard_limit && a->kernel_memory == b->kernel_memory && a->settle_ms == b->settle_ms &&
	     a->review_packets == b->review_packets && a->seccomp == b->seccomp &&
	     a->max_sessions_per_client == b->max_sessions_per_client &&
	     a->nodelay == b->nodelay && a->keepalive_s == b->keepalive_s &&
	     a->privileged_process == b->privileged_process &&
	     a->proxy_protocol == b->proxy_protocol &&
	     a->proxy_timeout_ms == b->proxy_timeout_ms &&
	     a->mark == b->mark && a->transparent == b->transparent &&
	     addr_equal(&a->source, &b->source) &&
	     a->probe == b->probe && a->log_level == b->log_level, "not the same options");
	must(!a->interface == !b->interface &&
	     (!a->interface || !strcmp(a->interface, b->interface)), "not the same interface");
	must(!a->user == !b->user && (!a->user || !strcmp(a->user, b->user)),
	     "not the same account");
	must(!a->session_log == !b->session_log &&
	     (!a->session_log || !strcmp(a->session_log, b->session_log)),
	     "not the same session log");
	must(a->n_forwards == b->n_forwards, "not as many forwards");
	for (size_t i = 0; i < a->n_forwards; i++)
		must(same_endpoint(&a->forwards[i].listen, &b->forwards[i].listen) &&
		     same_endpoint(&a->forwards[i].upstream, &b->forwards[i].upstream),
		     "forward %zu is another", i);
}

static void check_again(const struct config *c)
{
	struct config again;
	char **argv;
	int argc;

	argv = write_out(c, &argc);
	must(config_parse(argc, argv, &again) == 0, "%s", said());
	must_be_same(c, &again);
	config_close(&again);
	words_free(argv);
}

static void check_message(void)
{
	const char *text = said(), *end = strchr(text, '\n');

	must(!strncmp(text, "culvert: ", 9) && end && !end[1], "\"%s\"", text);
	must(strlen(text) > 12 && is_printable(text, true), "\"%s\"", text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	const char *help;
	struct config c;
	int argc, r;
	char **argv = input_words(&in, "run", WORDS_MAX, &argc);

	said_clear();
	stdout_begin();
	r = config_parse(argc, argv, &c);
	help = stdout_end(NULL);
	must(!help[0] == (r != 1), "returned %d and printed \"%s\"", r, help);
	if (r < 0) {
		/* a file that is named may be anything */
		must(c.file || r == -EINVAL || r == -ENOENT || r == -EAGAIN || r == -ENOMEM,
		     "returned %d", r);
		check_message();
	} else {
		must(!said()[0], "%s", said());
	}
	if (r == 0) {
		check_bounds(&c);
		check_listeners(&c);
		check_again(&c);
	}
	must(r <= 1, "returned %d", r);
	config_close(&c);
	config_close(&c);
	words_free(argv);
	return 0;
}
