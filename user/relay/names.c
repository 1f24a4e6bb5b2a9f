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
 * One timer serves all names.  After each batch of the loop serve() goes through the list and begins
 * what is due.  It begins few look-ups at a time, so thousands of names do not flood the name
 * server; it does not limit how many are under way, so names that hang hold up no others.
 *
 * Files: the process is confined once it serves, and can open no file any more.  c-ares reads
 * /etc/resolv.conf when its channel is made, before that; it would read /etc/hosts for each
 * look-up, so culvert keeps what that says.  At a reload the privileged process opens both.  The
 * channel stays then: a new one would need files, too (/dev/urandom).
 */
#include "relay/names.h"

#include <ares.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "config/read.h"

/* c-ares: the sockets to name servers, and those that tell which addresses have a route. */
SYSCALLS_ALLOWED(
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, SOCK_DGRAM)),
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, SOCK_DGRAM)),
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, SOCK_STREAM)),
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, SOCK_STREAM)),
	SYSCALL_IF(PART_NAMES, fcntl, SYSCALL_ARG(1, F_GETFL)),
	SYSCALL_IF(PART_NAMES, fcntl, SYSCALL_ARG(1, F_SETFL)),
	SYSCALL_IF(PART_NAMES, fcntl, SYSCALL_ARG(1, F_SETFD)),
	SETSOCKOPT_IF(PART_NAMES, IPPROTO_TCP, TCP_NODELAY),
	SYSCALL(connect),
	SYSCALL(getsockname),
	SYSCALL(sendto),
	SYSCALL(recvfrom),
	SYSCALL(writev),
	SYSCALL(close));

const char *const names_files[NAMES_FILES] = { "/etc/hosts", "/etc/resolv.conf" };

#define ADDRS_MAX 64 /* of a name */

/*
 * A name server is asked again after so long, and given up after twice as long.  A server that is
 * silent about one family then costs less than the default connect-timeout.
 */
#define ANSWER_MS 700
#define TRIES 2
/* After a failure a name is looked up again so soon, if its interval is not shorter. */
#define RETRY_MS 5000
/* Look-ups begun at a time, and the pause before the next ones. */
#define AT_ONCE 64
#define PAUSE_MS 10
/* How often c-ares looks for answers that are late, while there are questions. */
#define TICK_MS 100
#define SOCKETS 16 /* taken from epoll at a time */
#define READ_PATIENCE_MS 5000

/* --- lists of addresses --- */

/*
 * RFC 8305, section 4: c-ares has sorted the addresses (RFC 6724).  Keep that order within each
 * family, and let the families take turns, beginning with that of the first address.
 */
static void sort(const struct addr *in, struct addr *out, size_t n)
{
	size_t done = 0;

	for (size_t turn = 0; done < n; turn++) {
		size_t nth = 0;

		for (size_t i = 0; i < n; i++) {
			bool other = in[i].ss.ss_family != in[0].ss.ss_family;

			if (other == turn % 2 && nth++ == turn / 2)
				out[done++] = in[i];
		}
	}
}

struct addr_list *addr_list_new(const struct addr *addrs, size_t n)
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

static bool has(const struct addr *addrs, size_t n, const struct addr *a)
{
	for (size_t i = 0; i < n; i++)
		if (addr_equal(&addrs[i], a))
			return true;
	return false;
}

/* Neither list has an address twice, so one direction is enough. */
static bool same_set(const struct addr_list *a, const struct addr_list *b)
{
	for (size_t i = 0; a->n == b->n && i < a->n; i++)
		if (!has(b->addrs, b->n, &a->addrs[i]))
			return false;
	return a->n == b->n;
}

/* --- upstreams --- */

static _Atomic uint64_t lookups_ended; /* of all names */

static void names_remove(struct lookup *u);

int lookup_open(struct lookup *u, const struct endpoint *conf, const struct endpoint *listen,
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

void lookup_close(struct lookup *u)
{
	names_remove(u); /* from here on the main thread does not change it any more */
	if (!u->list)
		return;
	addr_list_put(u->list);
	u->list = NULL;
	pthread_mutex_destroy(&u->lock);
}

struct addr_list *lookup_get(struct lookup *u)
{
	struct addr_list *list;

	pthread_mutex_lock(&u->lock);
	list = u->list;
	atomic_fetch_add_explicit(&list->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&u->lock);
	return list;
}

void lookup_record(struct lookup *u, struct lookup_record *ret)
{
	pthread_mutex_lock(&u->lock);
	*ret = u->record;
	pthread_mutex_unlock(&u->lock);
}

static bool is_acceptable(const struct lookup *u, const struct addr *a)
{
	if (!addr_is_inet(a) || !addr_port(a))
		return false;
	for (size_t i = 0; i < u->listen->n_addrs; i++)
		if (addr_leads_to(a, &u->listen->addrs[i]))
			return false;
	return true;
}

void lookup_know(struct lookup *u, struct lookup *before)
{
	struct addr_list *list = lookup_get(before), *other = u->list;
	bool good = true;

	for (size_t i = 0; u->conf->named && i < list->n; i++)
		good = good && is_acceptable(u, &list->addrs[i]);
	if (good) {
		u->list = list;
		lookup_record(before, &u->record);
	}
	addr_list_put(good ? other : list);
}

bool lookup_update(struct lookup *u, struct addr *addrs, size_t n, const char *why,
		     uint64_t now_ms)
{
	struct addr_list *list = NULL, *old = NULL;
	size_t n_good = 0;
	bool news;

	for (size_t i = 0; i < n; i++)
		if (is_acceptable(u, &addrs[i]) && !has(addrs, n_good, &addrs[i]))
			addrs[n_good++] = addrs[i];
	if (n_good)
		list = addr_list_new(addrs, n_good);
	if (n)
		why = n_good ? "out of memory" : "its only address is the listener of this forward";
	pthread_mutex_lock(&u->lock);
	u->record.lookups++;
	u->record.ended = atomic_fetch_add(&lookups_ended, 1) + 1;
	if (list) {
		old = u->list;
		news = !same_set(list, old);
		u->list = list;
		u->record.resolved_ms = now_ms;
		u->record.why[0] = '\0';
	} else {
		news = strncmp(u->record.why, why, sizeof(u->record.why) - 1) != 0;
		u->record.failures++;
		snprintf(u->record.why, sizeof(u->record.why), "%s", why);
	}
	pthread_mutex_unlock(&u->lock);
	addr_list_put(old);
	return news;
}

/* --- looking names up --- */

struct name {
	struct name *next;
	struct names *names;
	struct lookup *upstream; /* NULL: freed as soon as no look-up is under way */
	uint64_t asked_ms; /* when the last look-up began */
	uint64_t due_ms;   /* when to begin the next */
	bool open;         /* one is under way */
	char host[];
};

/* A line of /etc/hosts has one for each of its names. */
struct host {
	char *name;
	struct addr addr;
};

struct names {
	struct loop *loop;
	struct timer timer;
	uint64_t begin_ms;     /* no look-up begins before; see AT_ONCE */
	struct source sockets; /* an epoll of c-ares' sockets */
	struct host *hosts;    /* what /etc/hosts said when it was read */
	size_t n_hosts;
	char servers[512]; /* what resolv.conf says, as ares_set_servers_csv() wants it */
	const int *again;          /* NAMES_FILES that are to be read again */
	names_tell_fn *tell;
	void *tell_arg;

	pthread_mutex_t lock;  /* of all that follows */
	ares_channel channel;  /* NULL: names_close() has begun */
	struct name *list;
};

bool names_needed(const struct config *c)
{
	for (size_t i = 0; i < c->n_forwards; i++)
		for (size_t j = 0; j < c->forwards[i].upstream.n; j++)
			if (c->forwards[i].upstream.servers[j].at.named)
				return true;
	return false;
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

static void say(const struct lookup *u)
{
	const struct addr *first = &u->list->addrs[0];
	char text[ADDR_STRLEN], more[32] = "";

	if (u->record.why[0]) {
		log_limited(LOG_WARNING, u->list->n ? "upstream %s keeps its last addresses: %s" :
			    "upstream %s has no address yet, so its clients are reset: %s",
			    u->conf->text, u->record.why);
		return;
	}
	if (u->list->n > 1)
		snprintf(more, sizeof(more), " and %zu more", u->list->n - 1);
	log_info("upstream %s is now %s%s", u->conf->text,
		 addr_format((const struct sockaddr *)&first->ss, first->len, text, sizeof(text)),
		 more);
}

/* Only this thread changes the upstream's list and record: no lock is needed to look at them. */
static void finish(struct name *m, struct addr *addrs, size_t n, const char *why)
{
	struct lookup *u = m->upstream;
	/* who has asked meanwhile has an answer */
	bool awaited = atomic_exchange(&u->wanted, false) || !u->list->n, news;

	news = lookup_update(u, addrs, n, why, m->names->loop->now_ms);
	look_later(m, u->record.why[0]);
	if (m->names->tell && news)
		say(u);
	if (m->names->tell && awaited)
		m->names->tell(m->names->tell_arg);
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

/* Called by c-ares for each look-up once, also by ares_cancel() and ares_destroy(). */
static void on_answer(void *arg, int status, int timeouts, struct ares_addrinfo *answer)
{
	struct addr addrs[ADDRS_MAX];
	char why[LOOKUP_WHY_LEN];
	struct name *m = arg;
	size_t n = 0;

	(void)timeouts;
	m->open = false;
	if (m->upstream && m->names->channel && status != ARES_ECANCELLED) {
		if (answer)
			n = copy_answer(answer, m->upstream->conf->named_port, addrs);
		snprintf(why, sizeof(why), "host name lookup failed: %s", ares_strerror(status));
		finish(m, addrs, n, why);
	}
	if (answer)
		ares_freeaddrinfo(answer);
}

static void look_up(struct name *m)
{
	const struct ares_addrinfo_hints hints = { .ai_family = AF_UNSPEC,
						   .ai_socktype = SOCK_STREAM };
	struct names *n = m->names;
	struct addr addrs[ADDRS_MAX];
	size_t found = 0;

	m->asked_ms = n->loop->now_ms;
	for (size_t i = 0; i < n->n_hosts && found < ADDRS_MAX; i++) {
		struct addr *a = &n->hosts[i].addr;

		if (!strcasecmp(n->hosts[i].name, m->host))
			addrs[found++] = with_port((struct sockaddr *)&a->ss, a->len,
						   m->upstream->conf->named_port);
	}
	if (found) {
		finish(m, addrs, found, NULL);
		return;
	}
	m->open = true;
	ares_getaddrinfo(n->channel, m->host, NULL, &hints, on_answer, m);
}

/* Begin what is due, free what is no longer used, and set the timer.  The lock is held. */
static void serve(struct names *n)
{
	uint64_t now = n->loop->now_ms, next = NEVER, due;
	struct name **p = &n->list;
	unsigned int begun = 0;

	while (*p) {
		struct name *m = *p;

		if (!m->upstream && !m->open) {
			*p = m->next;
			free(m);
			continue;
		}
		p = &m->next;
		if (!m->open && atomic_load(&m->upstream->wanted) &&
		    m->due_ms > m->asked_ms + UPSTREAM_ASK_MS)
			m->due_ms = m->asked_ms + UPSTREAM_ASK_MS;
		if (!m->open && m->due_ms <= now && now >= n->begin_ms) {
			look_up(m);
			if (++begun == AT_ONCE)
				n->begin_ms = now + PAUSE_MS;
		}
		due = m->open ? now + TICK_MS : m->due_ms;
		if (due < next)
			next = due;
	}
	if (next < now + PAUSE_MS)
		next = now + PAUSE_MS;
	/* batches may come so often that the timer would never fire if each put it off */
	if (next != NEVER && (!n->timer.at || next < n->timer.due_ms))
		timer_set(n->loop, &n->timer, next);
}

static void on_timer(struct timer *t)
{
	struct names *n = container_of(t, struct names, timer);

	pthread_mutex_lock(&n->lock);
	ares_process_fd(n->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
	pthread_mutex_unlock(&n->lock);
}

static void on_sockets(struct source *source, uint32_t events)
{
	struct names *n = container_of(source, struct names, sockets);
	struct epoll_event ready[SOCKETS];
	int n_ready = epoll_wait(source->fd, ready, SOCKETS, 0);

	(void)events;
	pthread_mutex_lock(&n->lock);
	for (int i = 0; i < n_ready; i++)
		ares_process_fd(n->channel,
				ready[i].events & ~(uint32_t)EPOLLOUT ? ready[i].data.fd :
									ARES_SOCKET_BAD,
				ready[i].events & EPOLLOUT ? ready[i].data.fd : ARES_SOCKET_BAD);
	pthread_mutex_unlock(&n->lock);
}

/* c-ares wants to know when FD is readable or writable; neither: it is about to close FD. */
static void on_interest(void *arg, ares_socket_t fd, int readable, int writable)
{
	struct names *n = arg;
	struct epoll_event want = { .events = (readable ? EPOLLIN : 0) | (writable ? EPOLLOUT : 0),
				    .data.fd = fd };

	if (!want.events)
		epoll_ctl(n->sockets.fd, EPOLL_CTL_DEL, fd, NULL);
	else if (epoll_ctl(n->sockets.fd, EPOLL_CTL_MOD, fd, &want))
		epoll_ctl(n->sockets.fd, EPOLL_CTL_ADD, fd, &want);
}

void names_after_batch(struct names *n)
{
	pthread_mutex_lock(&n->lock);
	serve(n);
	pthread_mutex_unlock(&n->lock);
}

/* --- what other threads want --- */

int names_add(struct names *n, struct lookup *u)
{
	size_t len = strcspn(u->conf->text, ":");
	struct name *m;

	if (!n || !u->conf->named)
		return 0;
	m = calloc(1, sizeof(*m) + len + 1);
	if (!m)
		return -ENOMEM;
	memcpy(m->host, u->conf->text, len);
	m->names = n;
	m->upstream = u;
	u->names = n;
	pthread_mutex_lock(&n->lock);
	if (u->list->n)
		look_later(m, u->record.why[0]);
	m->next = n->list;
	n->list = m;
	pthread_mutex_unlock(&n->lock);
	loop_wake(n->loop);
	return 0;
}

static void names_remove(struct lookup *u)
{
	struct names *n = u->names;

	if (!n)
		return;
	pthread_mutex_lock(&n->lock);
	for (struct name *m = n->list; m; m = m->next)
		if (m->upstream == u)
			m->upstream = NULL;
	pthread_mutex_unlock(&n->lock);
	loop_wake(n->loop);
}

bool lookup_failed(struct lookup *u, uint64_t *seen, uint64_t now_ms)
{
	struct lookup_record record;

	if (!u->names)
		return false;
	if (!*seen)
		*seen = atomic_load(&lookups_ended) + 1;
	/* one that ends from here on wakes the workers afterwards */
	lookup_record(u, &record);
	if (!atomic_exchange(&u->wanted, true))
		loop_wake(u->names->loop);
	return record.ended < *seen && now_ms >= record.resolved_ms + UPSTREAM_ASK_MS;
}

int lookup_await(struct lookup *u, uint64_t *seen, struct addr_list **ret)
{
	struct addr_list *list = lookup_get(u);

	if (list->n) {
		*ret = list;
		return 1;
	}
	addr_list_put(list);
	return lookup_failed(u, seen, NEVER) ? 0 : -ENOENT;
}

/* --- beginning and end --- */

static void forget_hosts(struct names *n)
{
	while (n->n_hosts)
		free(n->hosts[--n->n_hosts].name);
	free(n->hosts);
	n->hosts = NULL;
}

/*
 * Either file, and FD is closed.  A line is "127.0.0.1 localhost loopback # comment", or "nameserver
 * 127.0.0.1".  What is no such line is left out.
 */
static void read_file(struct names *n, int fd)
{
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	char *line = NULL, *rest, *word;
	size_t size = 0, len = 0;
	struct addr a;

	while (f && getline(&line, &size, f) > 0) {
		line[strcspn(line, "#\n")] = '\0';
		word = strtok_r(line, " \t\r", &rest);
		if (word && !strcmp(word, "nameserver") && len < sizeof(n->servers))
			len += (size_t)snprintf(n->servers + len, sizeof(n->servers) - len, "%s%s",
						len ? "," : "", strtok_r(NULL, " \t\r", &rest) ?: "");
		if (!word || addr_parse_host(word, &a))
			continue;
		while ((word = strtok_r(NULL, " \t\r", &rest))) {
			n->hosts = array_grow(n->hosts, n->n_hosts, sizeof(*n->hosts));
			n->hosts[n->n_hosts++] = (struct host){ allocated(strdup(word)), a };
		}
	}
	free(line);
	if (f)
		fclose(f);
}

/* What is asked of name servers is asked again, perhaps of others. */
static void read_again(void *arg)
{
	struct names *n = arg;

	pthread_mutex_lock(&n->lock);
	forget_hosts(n);
	n->servers[0] = '\0';
	for (int i = 0; i < NAMES_FILES; i++)
		read_file(n, n->again[i]);
	ares_cancel(n->channel);
	if (n->servers[0] && ares_set_servers_csv(n->channel, n->servers))
		log_warning("%s: \"%s\" are no name servers, and others stay in use", names_files[1],
			    n->servers);
	for (struct name *m = n->list; m; m = m->next)
		m->due_ms = 0;
	pthread_mutex_unlock(&n->lock);
}

void names_read_again(struct names *n, const int fds[NAMES_FILES])
{
	n->again = fds;
	if (!loop_call(n->loop, read_again, n, READ_PATIENCE_MS))
		return;
	log_warning("%s and %s are not read again", names_files[0], names_files[1]);
	for (int i = 0; i < NAMES_FILES; i++)
		close(fds[i]);
}

static int open_channel(struct names *n)
{
	char lookups[] = "b"; /* DNS alone: see struct host */
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
	struct names *n = allocated(calloc(1, sizeof(*n)));
	int status;

	n->loop = loop;
	n->tell = tell_fn;
	n->tell_arg = arg;
	n->timer.fire = on_timer;
	n->sockets = (struct source){ .handle = on_sockets, .fd = epoll_create1(EPOLL_CLOEXEC) };
	pthread_mutex_init(&n->lock, NULL);
	status = open_channel(n);
	if (status || n->sockets.fd < 0 || loop_watch(loop, &n->sockets, EPOLLIN, true)) {
		snprintf(err, errlen, "cannot look up host names: %s",
			 status ? ares_strerror(status) : strerror(errno));
		names_close(n);
		return -EIO;
	}
	read_file(n, open(names_files[0], O_RDONLY | O_CLOEXEC));
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
	if (n->sockets.fd >= 0)
		close(n->sockets.fd);
	while (n->list) {
		struct name *m = n->list;

		n->list = m->next;
		if (m->upstream)
			m->upstream->names = NULL;
		free(m);
	}
	forget_hosts(n);
	pthread_mutex_destroy(&n->lock);
	free(n);
}

/* --- names to listen at --- */

static int look_up_listener(struct forward_conf *fc, bool confined)
{
	char why[LOOKUP_WHY_LEN] = "a name to listen at is looked up at the start only: restart "
				   "culvert, or write the address";
	struct endpoint found;
	int r = confined ? -EINVAL : endpoint_parse(fc->listen.text, true, &found, why, sizeof(why));

	if (r) {
		config_complain_address(fc, true, "", why);
		return r;
	}
	fc->listen.addrs = found.addrs;
	fc->listen.n_addrs = found.n_addrs;
	return 0;
}

int names_find_listeners(struct config *c, bool confined)
{
	int r = 0;

	for (size_t i = 0; !r && i < c->n_forwards; i++)
		if (!c->forwards[i].listen.n_addrs)
			r = look_up_listener(&c->forwards[i], confined);
	return r ?: config_check_addresses(c);
}
