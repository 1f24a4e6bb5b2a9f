// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the main thread's event loop drives c-ares.  One mutex guards the list of
 * names and c-ares' channel.  Another thread that wants something sets a flag or changes the list,
 * and wakes the loop; only the loop's thread begins look-ups and takes answers.
 *
 *   worker ── upstream->wanted, loop_wake() ──▶ main thread ── c-ares ──▶ name server
 *     ▲                                             │
 *     └── upstream->list, name_news, loop_wake() ◀──┘
 *
 * One timer serves all names.  When it fires, and after each answer, serve() goes through the list
 * and begins what is due.  It begins few look-ups at a time, so thousands of names do not flood the
 * name server; it does not limit how many are under way, so names that hang hold up no others.
 *
 * Files: the process is confined once it serves, and can open no file any more.  c-ares reads
 * /etc/resolv.conf when its channel is made, before that; it would read /etc/hosts for each
 * look-up, so culvert keeps what that says.
 */
#include "relay/names.h"

#include <ares.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "config/config.h"
#include "base/syscalls_needed.h"

/* c-ares: the sockets to name servers, and those that tell which addresses have a route. */
SYSCALLS_NEEDED(
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, SOCK_DGRAM)),
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, SOCK_DGRAM)),
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, SOCK_STREAM)),
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, SOCK_STREAM)),
	SYSCALL_IF(PART_NAMES, fcntl, SYSCALL_ARG(1, F_GETFL)),
	SYSCALL_IF(PART_NAMES, fcntl, SYSCALL_ARG(1, F_SETFL)),
	SYSCALL_IF(PART_NAMES, fcntl, SYSCALL_ARG(1, F_SETFD)),
	SYSCALL_IF(PART_NAMES, setsockopt, SYSCALL_ARG(1, IPPROTO_TCP), SYSCALL_ARG(2, TCP_NODELAY)),
	SYSCALL(connect),
	SYSCALL(getsockname),
	SYSCALL(sendto),
	SYSCALL(recvfrom),
	SYSCALL(writev),
	SYSCALL(close));

#define HOSTS "/etc/hosts"
#define SHOWN 4      /* addresses of a list that are written out */
#define ADDRS_MAX 64 /* of a name */

/* A name server is asked again after so long, and then after twice and four times as long. */
#define ANSWER_MS 1000
#define TRIES 3
/* A name without an address is then asked for each family by itself (RFC 8305, section 3). */
#define FAMILY_MS 2500
/* After a failure a name is looked up again so soon, if its interval is not shorter. */
#define RETRY_MS 5000
/* Look-ups begun at a time, and the pause before the next ones. */
#define AT_ONCE 64
#define PAUSE_MS 10
/* How often c-ares looks for answers that are late, while there are questions. */
#define TICK_MS 100
#define SOCKETS 16

/* --- lists of addresses --- */

/* The first at or behind AT that is of FAMILY, or (SAME false) is not; N: none. */
static size_t find(const struct addr *in, size_t n, size_t at, sa_family_t family, bool same)
{
	while (at < n && (in[at].ss.ss_family == family) != same)
		at++;
	return at;
}

/*
 * RFC 8305, section 4: c-ares has sorted the addresses (RFC 6724).  Keep that order within each
 * family, and let the families take turns, beginning with that of the first address.
 */
static void sort(const struct addr *in, struct addr *out, size_t n)
{
	sa_family_t family = n ? in[0].ss.ss_family : 0;
	/* of the others; of the first family */
	size_t at[2] = { find(in, n, 0, family, false), 0 };

	for (size_t i = 0; i < n; i++) {
		bool first = !(i & 1);

		if (at[first] == n)
			first = !first;
		out[i] = in[at[first]];
		at[first] = find(in, n, at[first] + 1, family, first);
	}
}

static struct addr_list *addr_list_new(const struct addr *addrs, size_t n)
{
	struct addr_list *list = malloc(sizeof(*list) + n * sizeof(*addrs));

	if (!list)
		return NULL;
	atomic_init(&list->refs, 1);
	list->n = n;
	sort(addrs, list->addrs, n);
	return list;
}

void addr_list_put(struct addr_list *list)
{
	if (list && atomic_fetch_sub_explicit(&list->refs, 1, memory_order_acq_rel) == 1)
		free(list);
}

const char *addr_list_format(const struct addr_list *list, char *buf, size_t size)
{
	char text[ADDR_STRLEN];
	size_t at = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < list->n && i < SHOWN && at < size; i++) {
		const struct addr *a = &list->addrs[i];

		at += (size_t)snprintf(buf + at, size - at, "%s%s", i ? ", " : "",
				       addr_format((const struct sockaddr *)&a->ss, a->len, text,
						   sizeof(text)));
	}
	if (list->n > SHOWN && at < size)
		snprintf(buf + at, size - at, " and %zu more", list->n - SHOWN);
	return buf;
}

/* The index of A in ADDRS; N: it is not there. */
static size_t index_of(const struct addr *addrs, size_t n, const struct addr *a)
{
	size_t i = 0;

	while (i < n && !addr_equal(&addrs[i], a))
		i++;
	return i;
}

/* Neither list has an address twice, so one direction is enough. */
static bool same_set(const struct addr_list *a, const struct addr_list *b)
{
	for (size_t i = 0; a->n == b->n && i < a->n; i++)
		if (index_of(b->addrs, b->n, &a->addrs[i]) == b->n)
			return false;
	return a->n == b->n;
}

/* --- upstreams --- */

static void names_remove(struct upstream *u);

int upstream_open(struct upstream *u, const struct endpoint *conf, const struct endpoint *listen,
		  unsigned int interval_ms, uint64_t now_ms)
{
	memset(u, 0, sizeof(*u));
	u->list = addr_list_new(conf->addrs, conf->n_addrs);
	if (!u->list)
		return -ENOMEM;
	pthread_mutex_init(&u->lock, NULL);
	u->conf = conf;
	u->listen = listen;
	u->interval_ms = interval_ms;
	u->record.resolved_ms = now_ms;
	return 0;
}

void upstream_close(struct upstream *u)
{
	if (!u->list)
		return;
	names_remove(u);
	addr_list_put(u->list);
	u->list = NULL;
	pthread_mutex_destroy(&u->lock);
}

static struct addr_list *take_reference(struct upstream *u)
{
	atomic_fetch_add_explicit(&u->list->refs, 1, memory_order_relaxed);
	return u->list;
}

struct addr_list *upstream_get(struct upstream *u)
{
	struct addr_list *list;

	pthread_mutex_lock(&u->lock);
	list = take_reference(u);
	pthread_mutex_unlock(&u->lock);
	return list;
}

size_t upstream_first(struct upstream *u, const struct addr_list *list, uint64_t now_ms)
{
	size_t i = 0;

	if (list->n < 2)
		return 0;
	pthread_mutex_lock(&u->lock);
	if (now_ms < u->prefer_until_ms)
		i = index_of(list->addrs, list->n, &u->preferred);
	pthread_mutex_unlock(&u->lock);
	return i < list->n ? i : 0;
}

void upstream_prefer(struct upstream *u, const struct addr *a, uint64_t now_ms)
{
	pthread_mutex_lock(&u->lock);
	u->preferred = *a;
	u->prefer_until_ms = now_ms + UPSTREAM_PREFER_MS;
	pthread_mutex_unlock(&u->lock);
}

void upstream_avoid(struct upstream *u, const struct addr *a)
{
	pthread_mutex_lock(&u->lock);
	if (addr_equal(&u->preferred, a))
		u->prefer_until_ms = 0;
	pthread_mutex_unlock(&u->lock);
}

void upstream_record(struct upstream *u, struct lookup_record *ret)
{
	pthread_mutex_lock(&u->lock);
	*ret = u->record;
	pthread_mutex_unlock(&u->lock);
}

/* Only the main thread replaces the list, and only it calls this: no lock is needed to look. */
static bool is_unknown(const struct upstream *u)
{
	return !u->list->n;
}

bool upstream_not_found(struct upstream *u, const char *why)
{
	bool news;

	pthread_mutex_lock(&u->lock);
	news = strncmp(u->record.why, why, sizeof(u->record.why) - 1) != 0;
	snprintf(u->record.why, sizeof(u->record.why), "%s", why);
	u->record.lookups++;
	u->record.failures++;
	pthread_mutex_unlock(&u->lock);
	return news;
}

static bool is_acceptable(const struct upstream *u, const struct addr *a)
{
	if (!addr_is_inet(a) || !addr_port(a))
		return false;
	for (size_t i = 0; i < u->listen->n_addrs; i++)
		if (addr_leads_to(a, &u->listen->addrs[i]))
			return false;
	return true;
}

int upstream_found(struct upstream *u, struct addr *addrs, size_t n, uint64_t now_ms)
{
	struct addr_list *list, *old = u->list;
	size_t n_good = 0;
	bool same;

	for (size_t i = 0; i < n; i++)
		if (is_acceptable(u, &addrs[i]) && index_of(addrs, n_good, &addrs[i]) == n_good)
			addrs[n_good++] = addrs[i];
	if (!n_good) {
		upstream_not_found(u, n ? "its only address is the listener of this forward" :
					  "it has no address");
		return -EADDRNOTAVAIL;
	}
	list = addr_list_new(addrs, n_good);
	if (!list) {
		upstream_not_found(u, "out of memory");
		return -ENOMEM;
	}
	same = same_set(list, old);
	pthread_mutex_lock(&u->lock);
	u->list = list;
	u->record.lookups++;
	u->record.resolved_ms = now_ms;
	u->record.why[0] = '\0';
	pthread_mutex_unlock(&u->lock);
	addr_list_put(old);
	return !same;
}

/* --- looking names up --- */

/* A name server's socket. */
struct ares_source {
	struct source source; /* fd -1: none */
	struct names *names;
};

struct name {
	struct name *next;
	struct names *names;
	struct upstream *upstream; /* NULL: freed as soon as no question is open */
	char *host;
	uint64_t asked_ms;  /* when the last look-up began */
	uint64_t due_ms;    /* when to begin the next, or, if one is under way, to ask by family */
	unsigned int open;  /* questions that c-ares has not answered */
	bool found;         /* the look-up under way has an address */
};

struct names {
	struct loop *loop;
	struct timer timer;
	char *hosts; /* what /etc/hosts said at the start; NULL: there is none */
	names_tell_fn *tell;
	void *tell_arg;
	_Atomic bool asked;   /* there is work for serve() */

	pthread_mutex_t lock; /* of all that follows */
	pthread_cond_t ended; /* a look-up has, or `given_up` is set */
	ares_channel channel; /* NULL: names_close() has begun */
	struct ares_source sockets[SOCKETS];
	struct name *list;
	unsigned int open;    /* questions of all names */
	bool given_up;
};

bool names_needed(const struct config *c)
{
	if (c->file)
		return true; /* it may have a name when read again: too late to read resolv.conf */
	for (size_t i = 0; i < c->n_forwards; i++)
		if (c->forwards[i].upstream.named)
			return true;
	return false;
}

static void wake(struct names *n)
{
	atomic_store(&n->asked, true);
	loop_wake(n->loop);
}

/* Look M up after its interval, less up to an eighth, so that names spread out in time. */
static void look_later(struct name *m, bool failed)
{
	uint64_t wait = m->upstream->interval_ms;

	if (failed && wait > RETRY_MS)
		wait = RETRY_MS;
	wait -= (uint64_t)random() % (wait / 8 + 1);
	m->due_ms = clock_ms() + wait; /* names_add() is called by any thread */
}

static void tell(struct name *m)
{
	struct upstream *u = m->upstream;
	bool awaited;

	pthread_mutex_lock(&u->lock);
	awaited = u->awaited;
	u->awaited = false;
	pthread_mutex_unlock(&u->lock);
	if (awaited && m->names->tell)
		m->names->tell(m->names->tell_arg);
	pthread_cond_broadcast(&m->names->ended);
}

static void say_unchanged(struct upstream *u)
{
	struct lookup_record record;

	upstream_record(u, &record);
	if (is_unknown(u))
		log_limited(LOG_WARNING, "upstream %s has no address yet, so its clients are "
			    "reset: %s", u->conf->text, record.why);
	else
		log_limited(LOG_WARNING, "upstream %s keeps its last addresses: %s",
			    u->conf->text, record.why);
}

/* BEFORE: what it was; "" if it had no address. */
static void say_found(struct upstream *u, const char *before)
{
	char after[ADDR_LIST_STRLEN];

	addr_list_format(u->list, after, sizeof(after));
	if (before[0])
		log_info("upstream %s is now %s (it was %s)", u->conf->text, after, before);
	else
		log_info("upstream %s is %s", u->conf->text, after);
}

static void fail(struct name *m, const char *why)
{
	char text[LOOKUP_WHY_LEN];

	snprintf(text, sizeof(text), "host name lookup failed: %s", why);
	if (upstream_not_found(m->upstream, text) && m->names->tell)
		say_unchanged(m->upstream);
	look_later(m, true);
	tell(m);
}

static void take(struct name *m, struct addr *addrs, size_t n)
{
	struct upstream *u = m->upstream;
	char before[ADDR_LIST_STRLEN];
	int r;

	addr_list_format(u->list, before, sizeof(before));
	r = upstream_found(u, addrs, n, m->names->loop->now_ms);
	if (r > 0 && m->names->tell)
		say_found(u, before);
	else if (r < 0 && m->names->tell)
		say_unchanged(u);
	m->found = r >= 0;
	look_later(m, r < 0);
	tell(m);
}

static struct addr with_port(const struct sockaddr *sa, socklen_t len, in_port_t port)
{
	struct addr a = { .len = len };

	memcpy(&a.ss, sa, len);
	addr_set_port(&a, port);
	return addr_unmapped(&a);
}

static size_t copy_answer(const struct ares_addrinfo *answer, in_port_t port, struct addr *ret)
{
	size_t n = 0;

	for (const struct ares_addrinfo_node *i = answer->nodes; i && n < ADDRS_MAX; i = i->ai_next)
		if (i->ai_family == AF_INET || i->ai_family == AF_INET6)
			ret[n++] = with_port(i->ai_addr, i->ai_addrlen, port);
	return n;
}

/* Called by c-ares for each question once, also by ares_destroy(). */
static void on_answer(void *arg, int status, int timeouts, struct ares_addrinfo *answer)
{
	struct addr addrs[ADDRS_MAX];
	struct name *m = arg;

	(void)timeouts;
	m->open--;
	m->names->open--;
	if (m->upstream && m->names->channel) {
		if (answer)
			take(m, addrs, copy_answer(answer, m->upstream->conf->named_port, addrs));
		else if (!m->open && !m->found)
			fail(m, ares_strerror(status));
	}
	if (answer)
		ares_freeaddrinfo(answer);
}

static void ask(struct name *m, int family)
{
	const struct ares_addrinfo_hints hints = { .ai_family = family, .ai_socktype = SOCK_STREAM };

	m->open++;
	m->names->open++;
	ares_getaddrinfo(m->names->channel, m->host, NULL, &hints, on_answer, m);
}

/* A line is "127.0.0.1 localhost loopback # comment".  What is no such line is left out. */
static bool line_has(char *line, const char *name, struct addr *ret)
{
	char *rest, *word;

	line[strcspn(line, "#")] = '\0';
	word = strtok_r(line, " \t\r", &rest);
	if (!word || addr_parse_host(word, ret))
		return false;
	while ((word = strtok_r(NULL, " \t\r", &rest)))
		if (!strcasecmp(word, name))
			return true;
	return false;
}

static size_t find_in_hosts(const struct names *n, const char *name, in_port_t port,
			    struct addr *ret)
{
	size_t found = 0, len;
	struct addr a;

	for (const char *at = n->hosts; at && *at && found < ADDRS_MAX; at += len + (at[len] != 0)) {
		char line[512];

		len = strcspn(at, "\n");
		snprintf(line, sizeof(line), "%.*s", (int)len, at);
		if (line_has(line, name, &a))
			ret[found++] = with_port((const struct sockaddr *)&a.ss, a.len, port);
	}
	return found;
}

static void look_up(struct name *m)
{
	struct addr addrs[ADDRS_MAX];
	size_t n = find_in_hosts(m->names, m->host, m->upstream->conf->named_port, addrs);

	m->asked_ms = m->names->loop->now_ms;
	m->found = false;
	if (n) {
		take(m, addrs, n);
		return;
	}
	m->due_ms = is_unknown(m->upstream) ? m->asked_ms + FAMILY_MS : NEVER;
	ask(m, AF_UNSPEC); /* it may be answered at once, and then M is due later */
}

/* Some name servers are silent about one family: use what there is of the other. */
static void ask_by_family(struct name *m)
{
	m->due_ms = NEVER;
	ask(m, AF_INET6);
	ask(m, AF_INET);
}

/* A worker wants a look-up of M.  One that wants it often gets one each UPSTREAM_ASK_MS. */
static void hurry(struct name *m)
{
	uint64_t due = m->asked_ms + UPSTREAM_ASK_MS;

	if (!m->open && due < m->due_ms)
		m->due_ms = due;
}

/* Begin what is due, free what is no longer used, and set the timer.  The lock is held. */
static void serve(struct names *n)
{
	uint64_t now = n->loop->now_ms, next = NEVER;
	unsigned int left = AT_ONCE;
	struct name **p = &n->list;

	while (*p) {
		struct name *m = *p;

		if (!m->upstream && !m->open) {
			*p = m->next;
			free(m->host);
			free(m);
			continue;
		}
		p = &m->next;
		if (!m->upstream)
			continue;
		if (atomic_exchange(&m->upstream->wanted, false))
			hurry(m);
		if (m->due_ms <= now && left) {
			left--;
			m->open ? ask_by_family(m) : look_up(m);
		}
		if (m->due_ms < next)
			next = m->due_ms;
	}
	if (n->open && now + TICK_MS < next)
		next = now + TICK_MS;
	if (next < now + PAUSE_MS)
		next = now + PAUSE_MS;
	if (next == NEVER)
		timer_cancel(n->loop, &n->timer);
	else
		timer_set(n->loop, &n->timer, next);
}

/* READABLE, WRITABLE: a socket, or ARES_SOCKET_BAD. */
static void process(struct names *n, ares_socket_t readable, ares_socket_t writable)
{
	pthread_mutex_lock(&n->lock);
	ares_process_fd(n->channel, readable, writable);
	serve(n);
	pthread_mutex_unlock(&n->lock);
}

static void on_timer(struct timer *t)
{
	process((struct names *)((char *)t - offsetof(struct names, timer)), ARES_SOCKET_BAD,
		ARES_SOCKET_BAD);
}

static void on_socket(struct source *source, uint32_t events)
{
	struct ares_source *s = (struct ares_source *)source;

	process(s->names, events & (EPOLLIN | EPOLLERR | EPOLLHUP) ? source->fd : ARES_SOCKET_BAD,
		events & EPOLLOUT ? source->fd : ARES_SOCKET_BAD);
}

/* The entry of socket FD; -1: one that is free.  NULL: there is none. */
static struct ares_source *find_socket(struct names *n, int fd)
{
	for (size_t i = 0; i < SOCKETS; i++)
		if (n->sockets[i].source.fd == fd)
			return &n->sockets[i];
	return NULL;
}

/* c-ares wants to know when FD is readable or writable; neither: it is about to close FD. */
static void on_interest(void *arg, ares_socket_t fd, int readable, int writable)
{
	struct names *n = arg;
	struct ares_source *s = find_socket(n, fd) ?: find_socket(n, -1);

	if (!s)
		return; /* more name servers than anybody has: questions to this one time out */
	s->source.fd = fd;
	loop_watch(n->loop, &s->source, (readable ? EPOLLIN : 0) | (writable ? EPOLLOUT : 0),
		   readable || writable);
	if (!readable && !writable)
		s->source.fd = -1;
}

void names_after_batch(struct names *n)
{
	if (!atomic_exchange(&n->asked, false))
		return;
	pthread_mutex_lock(&n->lock);
	serve(n);
	pthread_mutex_unlock(&n->lock);
}

/* --- what other threads want --- */

int names_add(struct names *n, struct upstream *u)
{
	struct name *m;

	if (!n || !u->conf->named)
		return 0;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->host = strndup(u->conf->text, strcspn(u->conf->text, ":"));
	if (!m->host) {
		free(m);
		return -ENOMEM;
	}
	m->names = n;
	m->upstream = u;
	u->names = n;
	pthread_mutex_lock(&n->lock);
	if (!is_unknown(u))
		look_later(m, false);
	m->next = n->list;
	n->list = m;
	pthread_mutex_unlock(&n->lock);
	wake(n);
	return 0;
}

static void names_remove(struct upstream *u)
{
	struct names *n = u->names;

	if (!n)
		return;
	pthread_mutex_lock(&n->lock);
	for (struct name *m = n->list; m; m = m->next)
		if (m->upstream == u)
			m->upstream = NULL;
	pthread_mutex_unlock(&n->lock);
	wake(n);
}

static void want(struct upstream *u)
{
	if (!atomic_exchange(&u->wanted, true))
		wake(u->names);
}

void upstream_failed(struct upstream *u, uint64_t now_ms)
{
	uint64_t last = atomic_load_explicit(&u->wanted_ms, memory_order_relaxed);

	if (!u->names || (last && now_ms < last + UPSTREAM_ASK_MS))
		return;
	/* another worker may have asked just now */
	if (atomic_compare_exchange_strong(&u->wanted_ms, &last, now_ms))
		want(u);
}

/*
 * SEEN is the number of look-ups that had ended when the session came, plus one: so the session is
 * told of any that ends later, also of the one that was under way.
 */
int upstream_await(struct upstream *u, uint64_t *seen, struct addr_list **ret)
{
	int r = 0;

	pthread_mutex_lock(&u->lock);
	if (u->list->n) {
		*ret = take_reference(u);
		r = 1;
	} else if ((*seen && *seen != u->record.lookups + 1) || !u->names) {
		r = -ENOENT;
	} else {
		*seen = u->record.lookups + 1;
		u->awaited = true;
	}
	pthread_mutex_unlock(&u->lock);
	if (!r)
		want(u);
	return r;
}

int names_wait(struct names *n, struct upstream *u, unsigned int ms)
{
	const struct timespec until = clock_timespec(clock_ms() + ms);
	struct lookup_record record = { 0 };
	int r = 0;

	pthread_mutex_lock(&n->lock);
	while (!r && !record.lookups) {
		upstream_record(u, &record);
		if (n->given_up)
			r = -ECANCELED;
		else if (!record.lookups)
			r = -pthread_cond_timedwait(&n->ended, &n->lock, &until);
	}
	pthread_mutex_unlock(&n->lock);
	return r;
}

void names_give_up(struct names *n)
{
	pthread_mutex_lock(&n->lock);
	n->given_up = true;
	pthread_cond_broadcast(&n->ended);
	pthread_mutex_unlock(&n->lock);
}

/* --- beginning and end --- */

static void read_hosts(struct names *n)
{
	FILE *f = fopen(HOSTS, "re");
	size_t size = 0;

	if (!f)
		return;
	if (getdelim(&n->hosts, &size, '\0', f) < 0) {
		free(n->hosts);
		n->hosts = NULL;
	}
	fclose(f);
}

static int open_channel(struct names *n)
{
	char lookups[] = "b"; /* DNS alone: see find_in_hosts() */
	struct ares_options o = { .lookups = lookups, .timeout = ANSWER_MS, .tries = TRIES,
				  .sock_state_cb = on_interest, .sock_state_cb_data = n };
	int status = ares_library_init(ARES_LIB_INIT_ALL);

	if (!status)
		status = ares_init_options(&n->channel, &o,
					   ARES_OPT_LOOKUPS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES |
						   ARES_OPT_SOCK_STATE_CB);
	return status;
}

int names_open(struct loop *loop, names_tell_fn *tell_fn, void *arg, struct names **ret, char *err,
	       size_t errlen)
{
	struct names *n = calloc(1, sizeof(*n));
	int status;

	if (!n) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	n->loop = loop;
	n->tell = tell_fn;
	n->tell_arg = arg;
	n->timer.fire = on_timer;
	pthread_mutex_init(&n->lock, NULL);
	clock_cond_init(&n->ended);
	for (size_t i = 0; i < SOCKETS; i++)
		n->sockets[i] = (struct ares_source){ { .handle = on_socket, .fd = -1 }, n };
	srandom((unsigned int)clock_ns() ^ (unsigned int)getpid());
	status = open_channel(n);
	if (status) {
		snprintf(err, errlen, "cannot look up host names: %s", ares_strerror(status));
		names_close(n);
		return -EIO;
	}
	read_hosts(n);
	*ret = n;
	return 0;
}

void names_close(struct names *n)
{
	ares_channel channel = n ? n->channel : NULL;

	if (!n)
		return;
	n->channel = NULL;
	if (channel)
		ares_destroy(channel);
	ares_library_cleanup();
	timer_cancel(n->loop, &n->timer);
	while (n->list) {
		struct name *m = n->list;

		n->list = m->next;
		if (m->upstream)
			m->upstream->names = NULL;
		free(m->host);
		free(m);
	}
	free(n->hosts);
	pthread_cond_destroy(&n->ended);
	pthread_mutex_destroy(&n->lock);
	free(n);
}

/* --- names to listen at --- */

/* Look E up by c-ares, as if it were the upstream of a forward that listens nowhere. */
static int look_up_once(struct names *n, struct endpoint *e, uint64_t until_ms, char *err,
			size_t errlen)
{
	const struct endpoint nowhere = { .n_addrs = 0 };
	struct lookup_record record = { .why = "out of memory" };
	struct addr_list *list;
	uint64_t now = clock_ms();
	struct upstream u;
	int r = upstream_open(&u, e, &nowhere, RETRY_MS, now);

	if (!r)
		r = names_add(n, &u);
	if (!r) {
		r = names_wait(n, &u, now < until_ms ? (unsigned int)(until_ms - now) : 0);
		upstream_record(&u, &record);
		list = upstream_get(&u);
		r = r ?: record.why[0] ? -ENOENT : endpoint_copy_addrs(e, list->addrs, list->n);
		addr_list_put(list);
	}
	upstream_close(&u);
	if (r)
		snprintf(err, errlen, "%s", r == -ECANCELED ? "culvert is stopping" :
					    r == -ETIMEDOUT ? "no name server has answered in time" :
					    record.why);
	return r;
}

/* By getaddrinfo(3), which also asks what nsswitch.conf names beside files and DNS. */
static int look_up_by_libc(struct endpoint *e, char *err, size_t errlen)
{
	struct endpoint found;
	int r = endpoint_parse(e->text, true, &found, err, errlen);

	if (r)
		return r;
	e->addrs = found.addrs;
	e->n_addrs = found.n_addrs;
	return 0;
}

static int look_up_listener(struct names *n, struct forward_conf *fc, uint64_t until_ms, char *err,
			    size_t errlen)
{
	char why[LOOKUP_WHY_LEN];
	int r = n ? look_up_once(n, &fc->listen, until_ms, why, sizeof(why)) :
		    look_up_by_libc(&fc->listen, why, sizeof(why));

	if (r)
		snprintf(err, errlen, "forward %s: listen \"%s\": %s", forward_name(fc),
			 fc->listen.text, why);
	return r;
}

/* ":80", or a name, means whatever there is; "[::]:80" means IPv6. */
static void leave_out_ipv6(struct forward_conf *fc)
{
	struct endpoint *e = &fc->listen;
	size_t n = 0;

	for (size_t i = 0; i < e->n_addrs; i++)
		n += e->addrs[i].ss.ss_family == AF_INET;
	if (!n || n == e->n_addrs)
		return;
	n = 0;
	for (size_t i = 0; i < e->n_addrs; i++)
		if (e->addrs[i].ss.ss_family == AF_INET)
			e->addrs[n++] = e->addrs[i];
	e->n_addrs = n;
	log_write(LOG_NOTICE, "forward %s: listens on IPv4 only: this kernel has no IPv6",
		  forward_name(fc));
}

int names_find_listeners(struct names *n, struct config *c, char *err, size_t errlen)
{
	uint64_t until_ms = clock_ms() + NAMES_PATIENCE_S * 1000;
	bool looked_up = false;
	int r = 0;

	for (size_t i = 0; !r && i < c->n_forwards; i++) {
		if (c->forwards[i].listen.n_addrs)
			continue;
		looked_up = true;
		r = look_up_listener(n, &c->forwards[i], until_ms, err, errlen);
	}
	if (!r && looked_up)
		r = config_check_addresses(c, err, errlen);
	if (r || addr_has_ipv6())
		return r;
	for (size_t i = 0; i < c->n_forwards; i++)
		leave_out_ipv6(&c->forwards[i]);
	return 0;
}
