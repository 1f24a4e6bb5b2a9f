// SPDX-License-Identifier: BSD-2-Clause
#include "injection.h"

#include <errno.h>
#include <string.h>

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

/* A request that takes too long, or is cut, is the end of the privileged process. */
static bool is_harmless(const struct injection *in)
{
	return catalogue_harmless(in->at->failing->function, in->error) &&
	       (!known_is_privileged(in->at) || in->error == EINTR ||
		in->error == CATALOGUE_LATE);
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
