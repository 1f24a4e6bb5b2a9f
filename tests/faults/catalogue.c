/* SPDX-License-Identifier: BSD-2-Clause */
/* How each function can fail, and what may come of it. */
#include <errno.h>
#include <string.h>

#include "catalogue.h"

/*
 * From the manual pages and the kernel: what these calls can return on the descriptors that the
 * daemon gives them.  EBADF, EFAULT and the like would be bugs of the daemon itself, and are left
 * out; EPERM and EACCES can come from a security module, EINVAL and ENOPROTOOPT from a kernel that
 * does not know an option.
 */
static const struct failing catalogue[] = {
	{ "accept4",
	  { EAGAIN, EINTR, ECONNABORTED, EMFILE, ENFILE, ENOMEM, ENOBUFS, EPERM, EPROTO, ENETDOWN },
	  false },
	{ "socket", { EMFILE, ENFILE, ENOMEM, ENOBUFS, EACCES, EAFNOSUPPORT }, false },
	{ "connect",
	  { ECONNREFUSED, ETIMEDOUT, ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL, EAGAIN, ENOBUFS,
	    EACCES, EPERM, ECONNRESET, EINTR },
	  false },
	{ "getsockopt", { ENOBUFS, ENOMEM, EPERM, EINVAL, ENOPROTOOPT }, false },
	{ "getsockname", { ENOBUFS, EINVAL }, false },
	{ "setsockopt", { ENOMEM, ENOBUFS, EPERM, EINVAL, ENOPROTOOPT }, false },
	/*
	 * The kernel does not say that nothing is there where something is, and a read without
	 * waiting ends short of what is there at an urgent byte or FIN only: edge-triggered
	 * sessions rely on both.  So neither is injected here; "peek" is recv(MSG_PEEK).
	 */
	{ "recv", { EINTR, ECONNRESET, ETIMEDOUT, ENOMEM, EHOSTUNREACH }, false },
	{ "peek", { EINTR, ECONNRESET, ETIMEDOUT, ENOMEM, EHOSTUNREACH }, false },
	/* on a unix socket with a time limit; short: without the descriptors */
	{ "recvmsg", { EINTR, EAGAIN, ENOMEM, ECONNRESET }, true },
	{ "send", { EINTR, EAGAIN, ENOBUFS, ENOMEM, EPIPE, ECONNRESET, ETIMEDOUT, EPERM }, true },
	{ "splice", { EINTR, EAGAIN, ENOMEM, EINVAL, EPIPE, ECONNRESET }, true },
	{ "pipe2", { EMFILE, ENFILE, ENOMEM }, false },
	{ "fcntl", { EMFILE, ENOMEM, EPERM, EBUSY, EINVAL }, false },
	{ "ioctl", { EINVAL, ENOMEM, EPERM }, false },
	{ "epoll_ctl", { ENOMEM, ENOSPC, EPERM }, false },
	{ "epoll_wait", { EINTR }, true },
	{ "close", { EINTR, EIO }, false },
	{ "shutdown", { ENOTCONN, ENOBUFS }, false },
	{ "read", { EAGAIN, EINTR }, false },
	{ "pread", { EINTR, EIO, ENOMEM }, true }, /* a file of /proc */
	{ "write", { EAGAIN, EINTR, EPIPE, ENOSPC }, false },
	{ "poll", { EINTR, ENOMEM }, false },
	{ "malloc", { ENOMEM }, false },
	{ "calloc", { ENOMEM }, false },
	{ "realloc", { ENOMEM }, false },
	{ "opendir", { EMFILE, ENOMEM, EACCES }, false },
	{ "pthread_cond_timedwait", { ETIMEDOUT }, false },
	{ "bpf_map_update_elem",
	  { ENOMEM, EBUSY, E2BIG, ENOSPC, EPERM, EOPNOTSUPP, EEXIST, EAGAIN }, false },
	{ "bpf_map_delete_elem", { EBUSY, EINVAL, EPERM, ENOMEM }, false },
};

const struct failing *catalogue_find(const char *function)
{
	for (size_t i = 0; i < sizeof(catalogue) / sizeof(catalogue[0]); i++)
		if (!strcmp(catalogue[i].function, function))
			return &catalogue[i];
	return NULL;
}

/* A failure that no session may notice: to be repeated, or less done than was asked for. */
static bool is_for_nothing(const char *function, int error)
{
	static const char *const repeated[] = { "recv", "peek",  "send", "splice", "epoll_wait",
						"read", "write", "poll", "accept4" };

	/* pread: how idle the CPUs are, which no session depends on */
	if (error == CATALOGUE_LATE || !strcmp(function, "pread"))
		return true;
	if (error && error != EINTR && error != EAGAIN)
		return false;
	for (size_t i = 0; i < sizeof(repeated) / sizeof(repeated[0]); i++)
		if (!strcmp(repeated[i], function))
			return true;
	return false;
}

const char *catalogue_error_name(int error)
{
	if (error == CATALOGUE_LATE)
		return "late";
	return error == CATALOGUE_SHORT ? "short" : strerrorname_np(error) ?: "?";
}

static enum faults_action action_of(const struct injection *in)
{
	if (in->error == CATALOGUE_LATE)
		return FAULTS_LATE;
	return in->error == CATALOGUE_SHORT ? FAULTS_SHORT : FAULTS_ERROR;
}

struct fault injection_fault(const struct injection *in)
{
	return (struct fault){ .action = action_of(in), .error = in->error, .every = 1 };
}

/* What fails there may be the end of it: the daemon goes on without until it is started again. */
bool known_is_privileged(const struct known *k)
{
	return strstr(k->name, " privileged") || strstr(k->name, "(socket_set_mark)");
}

/*
 * If SO_LINGER and disconnecting are both refused, nothing is left that would reset a connection; a
 * map that refuses to delete an entry, and again when its slot has a new owner, keeps it until the
 * next.  A test has nothing to ask for.
 */
bool known_is_last_resort(const struct known *k)
{
	return k->after && (strstr(k->name, "(session_arm_reset)") ||
			    strstr(k->name, "(forget_cookie)"));
}

bool injection_may_end_privileged(const struct injection *in)
{
	const struct known *after = in->at->after;

	return in->error != CATALOGUE_LATE &&
	       (known_is_privileged(in->at) || (after && known_is_privileged(after)));
}

/*
 * A request that fails, takes too long or is cut is the end of the privileged process; and neither
 * side of it handles a signal, so that no call of theirs is interrupted.
 */
static bool is_harmless(const struct injection *in)
{
	if (known_is_privileged(in->at))
		return in->error == CATALOGUE_LATE;
	return is_for_nothing(in->at->failing->function, in->error);
}

const char *injection_broken(const struct injection *in, const struct outcome *out)
{
	const struct batch *b = &out->batch;

	if (b->wrong || b->extra)
		return "wrong bytes";
	if (b->truncated)
		return "a stream cut off";
	if (b->stuck)
		return "a session is stuck";
	if (b->failed)
		return "a session failed";
	if (!out->clean)
		return "not as before";
	if (in->at->after)
		return NULL; /* two faults at once may cost more than one session */
	if (b->resets && is_harmless(in))
		return "a reset for nothing";
	if (known_is_privileged(in->at) ? b->resets > b->resets_marked :
					  b->resets > 1 && in->mode == MODE_ONCE)
		return "other sessions were touched";
	if (b->resets > out->errors)
		return "a reset that no counter shows";
	return NULL;
}

const char *injection_mode_name(enum injection_mode mode)
{
	static const char *const names[] = { "once", "every third", "every" };

	return names[mode];
}

struct json_object *injection_row(const struct injection *in, const char *engine,
				  const struct outcome *out, const char *broken)
{
	const struct known *k = in->at;
	const struct batch *b = &out->batch;
	struct json_object *o = json_object_new_object();
	const struct {
		const char *key, *value;
	} texts[] = {
		{ "engine", engine }, { "function", k->failing->function },
		{ "place", k->name }, { "error", catalogue_error_name(in->error) },
		{ "mode", injection_mode_name(in->mode) }, { "broken", broken ?: "" },
		{ "why", broken ? out->why : "" },
		{ "after", k->after ? k->after->name : "" },
	};
	const struct {
		const char *key;
		int64_t value;
	} numbers[] = {
		{ "hits", out->hits }, { "sessions", b->sessions }, { "resets", b->resets },
		{ "wrong", b->wrong + b->extra }, { "truncated", b->truncated },
		{ "stuck", b->stuck + b->failed }, { "leaks", !out->clean },
		{ "errors", out->errors },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		json_object_object_add(o, texts[i].key, json_object_new_string(texts[i].value));
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		json_object_object_add(o, numbers[i].key, json_object_new_int64(numbers[i].value));
	return o;
}
