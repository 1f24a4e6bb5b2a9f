/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation: preloaded into the daemon, this library stands between it and libc (and
 * libbpf's map calls).  A call that comes from the program itself, and not from another library, is
 * counted at its site; if the driver has armed that site, the call fails or is cut short.  Without
 * a page (FAULTS_ENV) every call goes straight through.
 *
 * The functions below are the whole list of what can be injected.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/bpf.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "page.h"

#define LATE_NS 2000000
#define CALLER __builtin_return_address(0)

/* Also the names in the page.  clang-format wants it otherwise each time that it runs. */
/* clang-format off */
#define FUNCTIONS(X)                                                                              \
	X(accept4) X(socket) X(connect) X(getsockopt) X(getsockname) X(setsockopt) X(recv) X(peek)\
	X(send) X(splice) X(pipe2) X(fcntl) X(ioctl) X(epoll_ctl) X(epoll_wait) X(close)          \
	X(shutdown) X(read) X(write) X(poll) X(malloc) X(calloc) X(realloc) X(opendir)            \
	X(pthread_cond_clockwait) X(bpf_map_update_elem) X(bpf_map_delete_elem) X(recvmsg)
/* clang-format on */

#define AS_ENUM(name) FN_##name,
#define AS_NAME(name) #name,
enum function { FUNCTIONS(AS_ENUM) N_FUNCTIONS };
static const char *const names[] = { FUNCTIONS(AS_NAME) };

static struct faults_page *page;
static uint32_t ring_size; /* of the daemon's ring buffers, instead of its own choice; 0: that */
static uintptr_t base, text_start, text_end;

struct verdict {
	bool fail, cut;
	int error;
};

/* --- where a call comes from --- */

static int note_program(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	base = info->dlpi_addr;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && p->p_flags & PF_X) {
			text_start = base + p->p_vaddr;
			text_end = text_start + p->p_memsz;
		}
	}
	return 1; /* the first one is the program */
}

static struct faults_page *map_page(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *p = fd < 0 ? MAP_FAILED :
			   mmap(NULL, sizeof(struct faults_page), PROT_READ | PROT_WRITE,
				MAP_SHARED, fd, 0);

	if (fd >= 0)
		close(fd);
	if (p == MAP_FAILED) {
		fprintf(stderr, "libculvert_faults: %s: %s\n", path, strerror(errno));
		_exit(125);
	}
	return p;
}

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv(FAULTS_ENV);
	const char *ring = getenv(FAULTS_RING_ENV);
	struct faults_page *p;

	if (ring)
		ring_size = (uint32_t)strtoul(ring, NULL, 10);
	if (!path)
		return;
	dl_iterate_phdr(note_program, NULL);
	p = map_page(path);
	for (unsigned int i = 0; i < N_FUNCTIONS; i++)
		snprintf(p->functions[i], FAULTS_NAME_LEN, "%s", names[i]);
	atomic_store(&p->magic, FAULTS_MAGIC);
	page = p;
}

/* --- what shall happen --- */

/* True if this call is one that ARM means. */
static bool strikes(struct faults_arm *arm)
{
	uint32_t n = atomic_fetch_add(&arm->seen, 1);
	const struct fault *f = &arm->fault;

	if (n < f->skip || (n - f->skip) % f->every)
		return false;
	n = atomic_fetch_add(&arm->hits, 1);
	if (!f->limit || n < f->limit)
		return true;
	atomic_fetch_sub(&arm->hits, 1);
	return false;
}

/* Not asleep: that would be a system call which the daemon's filter does not know. */
static void wait_here(void)
{
	struct timespec now, end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_nsec += LATE_NS;
	if (end.tv_nsec >= 1000000000) {
		end.tv_sec++;
		end.tv_nsec -= 1000000000;
	}
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
}

static struct verdict consult(enum function fn, const void *caller)
{
	struct verdict v = { .fail = false };
	uint32_t at;

	if (!page || (uintptr_t)caller < text_start || (uintptr_t)caller >= text_end)
		return v;
	at = faults_find(page, (uint64_t)fn << 48 | ((uintptr_t)caller - base));
	if (at == FAULTS_SITES)
		return v;
	atomic_fetch_add_explicit(&page->sites[at].calls, 1, memory_order_relaxed);
	for (int i = 0; i < FAULTS_ARMS; i++) {
		struct faults_arm *arm = &page->arms[i];

		if (!atomic_load_explicit(&arm->on, memory_order_acquire) ||
		    arm->fault.site != at || !strikes(arm))
			continue;
		if (arm->fault.action == FAULTS_LATE)
			wait_here();
		v.fail = arm->fault.action == FAULTS_ERROR;
		v.cut = arm->fault.action == FAULTS_SHORT;
		v.error = arm->fault.error;
		return v;
	}
	return v;
}

/* dlsym() does not allocate when it succeeds, so malloc() may come through here, too. */
#define REAL(name)                                                                                 \
	static _Atomic(__typeof__(&(name))) real_pointer;                                          \
	__typeof__(&(name)) real = atomic_load_explicit(&real_pointer, memory_order_relaxed);      \
	if (!real) {                                                                               \
		real = (__typeof__(&(name)))dlsym(RTLD_NEXT, #name);                               \
		atomic_store_explicit(&real_pointer, real, memory_order_relaxed);                  \
	}

#define CONSULT(name)                                                                              \
	REAL(name)                                                                                 \
	struct verdict v = consult(FN_##name, CALLER);

#define FAIL_WITH(result)                                                                          \
	do {                                                                                       \
		if (v.fail) {                                                                      \
			errno = v.error;                                                           \
			return (result);                                                           \
		}                                                                                  \
	} while (0)

/* A function that fails with FAILURE or does what it does: its parameters, then as arguments. */
#define INJECT(type, name, failure, params, ...)                                                   \
	type name params                                                                           \
	{                                                                                          \
		CONSULT(name)                                                                      \
                                                                                                   \
		FAIL_WITH(failure);                                                                \
		return real(__VA_ARGS__);                                                          \
	}

/* The same for one with an argument of any type behind its others. */
#define INJECT_VARIADIC(name, type)                                                                \
	int name(int fd, type request, ...)                                                        \
	{                                                                                          \
		va_list ap;                                                                        \
		void *arg;                                                                         \
                                                                                                   \
		va_start(ap, request);                                                             \
		arg = va_arg(ap, void *);                                                          \
		va_end(ap);                                                                        \
		CONSULT(name)                                                                      \
                                                                                                   \
		FAIL_WITH(-1);                                                                     \
		return real(fd, request, arg);                                                     \
	}

/* --- sockets --- */

INJECT(int, accept4, -1, (int fd, __SOCKADDR_ARG addr, socklen_t *restrict len, int flags), fd,
       addr, len, flags)
INJECT(int, socket, -1, (int domain, int type, int protocol), domain, type, protocol)
INJECT(int, connect, -1, (int fd, __CONST_SOCKADDR_ARG addr, socklen_t len), fd, addr, len)
INJECT(int, getsockopt, -1,
       (int fd, int level, int name, void *restrict value, socklen_t *restrict len), fd, level,
       name, value, len)
INJECT(int, getsockname, -1, (int fd, __SOCKADDR_ARG addr, socklen_t *restrict len), fd, addr, len)
INJECT(int, setsockopt, -1, (int fd, int level, int name, const void *value, socklen_t len), fd,
       level, name, value, len)
INJECT(int, shutdown, -1, (int fd, int how), fd, how)

/* A look at the queue (MSG_PEEK) can fail in fewer ways: it is a call of its own. */
ssize_t recv(int fd, void *buf, size_t len, int flags)
{
	REAL(recv)
	struct verdict v = consult(flags & MSG_PEEK ? FN_peek : FN_recv, CALLER);

	FAIL_WITH(-1);
	return real(fd, buf, len, flags);
}

/* Cut: as if there were no room for the descriptors that come with it, which the kernel closes. */
ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	CONSULT(recvmsg)

	FAIL_WITH(-1);
	if (v.cut)
		m->msg_controllen = 0;
	return real(fd, m, flags);
}

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
	CONSULT(send)

	FAIL_WITH(-1);
	return real(fd, buf, v.cut && len ? 1 : len, flags);
}

/* --- files and pipes --- */

INJECT(int, pipe2, -1, (int fds[2], int flags), fds, flags)
INJECT(ssize_t, read, -1, (int fd, void *buf, size_t len), fd, buf, len)
INJECT(ssize_t, write, -1, (int fd, const void *buf, size_t len), fd, buf, len)
INJECT(DIR *, opendir, NULL, (const char *name), name)

ssize_t splice(int in, off64_t *off_in, int out, off64_t *off_out, size_t len, unsigned int flags)
{
	CONSULT(splice)

	FAIL_WITH(-1);
	return real(in, off_in, out, off_out, v.cut && len ? 1 : len, flags);
}

INJECT_VARIADIC(fcntl, int)
INJECT_VARIADIC(ioctl, unsigned long)

/* Linux frees the descriptor in any case, whatever close(2) returns. */
int close(int fd)
{
	CONSULT(close)
	int r = real(fd);

	FAIL_WITH(-1);
	return r;
}

/* --- waiting --- */

INJECT(int, epoll_ctl, -1, (int epoll, int op, int fd, struct epoll_event *event), epoll, op, fd,
       event)
INJECT(int, poll, -1, (struct pollfd * fds, nfds_t n, int timeout), fds, n, timeout)

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
	CONSULT(epoll_wait)

	FAIL_WITH(-1);
	return real(epoll, events, v.cut ? 1 : most, timeout);
}

/* The error is what is returned; errno is not used. */
int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
			   clockid_t clock, const struct timespec *restrict until)
{
	CONSULT(pthread_cond_clockwait)

	return v.fail ? v.error : real(cond, mutex, clock, until);
}

/* --- memory --- */

INJECT(void *, malloc, NULL, (size_t size), size)
INJECT(void *, calloc, NULL, (size_t n, size_t size), n, size)
INJECT(void *, realloc, NULL, (void *old, size_t size), old, size)

/* --- libbpf, whose errors come both ways --- */

/* A ring that is soon full. */
int bpf_map_create(int type, const char *name, uint32_t key_size, uint32_t value_size,
		   uint32_t max_entries, const void *opts);
int bpf_map_create(int type, const char *name, uint32_t key_size, uint32_t value_size,
		   uint32_t max_entries, const void *opts)
{
	REAL(bpf_map_create)

	if (ring_size && type == BPF_MAP_TYPE_RINGBUF)
		max_entries = ring_size;
	return real(type, name, key_size, value_size, max_entries, opts);
}

int bpf_map_update_elem(int map, const void *key, const void *value, uint64_t flags);
INJECT(int, bpf_map_update_elem, -v.error,
       (int map, const void *key, const void *value, uint64_t flags), map, key, value, flags)
int bpf_map_delete_elem(int map, const void *key);
INJECT(int, bpf_map_delete_elem, -v.error, (int map, const void *key), map, key)
