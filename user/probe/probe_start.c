// SPDX-License-Identifier: BSD-2-Clause
#include "probe/probe_start.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "base/log.h"
#include "probe/probe_try.h"

/*
 * A shortage, of TCP memory or of CPU time, is given so long to pass before the second and last
 * try.
 */
#define SHORTAGE_MS 500

static unsigned int carriers_of(const struct config *c)
{
	if (config_forward_with(c, ENGINE_AUTO) || config_forward_with(c, ENGINE_SOCKMAP))
		return PROBE_SOCKMAP | PROBE_SPLICE;
	return config_forward_with(c, ENGINE_SPLICE) ? PROBE_SPLICE : 0;
}

/* Failed, and a shortage can be the cause: not a wrong or lost byte, a crash or a hang. */
static bool may_pass(const struct probe_results *results, size_t i)
{
	const struct probe_result *r = &results->of[i];

	return r->outcome == PROBE_FAILS && (results->tcp_memory_short || r->late);
}

/* Nothing was seen to be wrong with CARRIER, but not everything could be tried. */
static bool is_unknown(const struct probe_results *results, size_t bad)
{
	const char *name = probe_checks[bad].name;

	if (results->of[bad].outcome == PROBE_SKIPPED || !strcmp(name, "loopback"))
		return true;
	return results->tcp_memory_short && strcmp(name, "load") != 0; /* which needs none */
}

static void judge(const struct probe_results *results, unsigned int carrier,
		  struct probe_finding *ret)
{
	size_t bad = probe_first_bad(results, carrier);
	const struct probe_check *c = &probe_checks[bad];

	*ret = (struct probe_finding){ .verdict = PROBE_OK };
	if (bad == PROBE_CHECKS)
		return;
	ret->may_pass = results->of[bad].late;
	if (is_unknown(results, bad)) {
		ret->verdict = PROBE_UNKNOWN;
		ret->may_pass = may_pass(results, bad);
		snprintf(ret->why, sizeof(ret->why),
			 "it cannot be tried whether this kernel does what it must: \"%s\" fails: "
			 "%s%s (with --probe no culvert trusts the kernel unseen)",
			 c->name, results->of[bad].detail,
			 results->tcp_memory_short ?
				 "; the machine is short of TCP memory just now" : "");
	} else {
		ret->verdict = PROBE_BROKEN;
		snprintf(ret->why, sizeof(ret->why),
			 "\"%s\" does not hold on this kernel: %s (expected: %s; why it matters: "
			 "%s)",
			 c->name, results->of[bad].detail, c->shows, c->why);
	}
}

/* Try; and once more what may have failed by a shortage.  All other failures stand. */
static void try_twice(unsigned int carriers, struct probe_results *ret)
{
	static struct probe_results first;
	bool again = false;

	probe_try(carriers, &first);
	*ret = first;
	for (size_t i = 0; i < PROBE_CHECKS; i++)
		again = again || may_pass(&first, i);
	if (!again)
		return;
	usleep(SHORTAGE_MS * 1000);
	probe_try(carriers, ret);
	for (size_t i = 0; i < PROBE_CHECKS; i++)
		if (first.of[i].outcome == PROBE_FAILS && !may_pass(&first, i))
			ret->of[i] = first.of[i];
}

void probe_say_unused(const struct config *c, char *buf, size_t size)
{
	size_t same = 0;

	while (same < c->n_forwards && c->forwards[same].engine == c->engine)
		same++;
	if (same == c->n_forwards)
		snprintf(buf, size, "not used by --engine %s", engine_name(c->engine));
	else
		snprintf(buf, size, "no forward's engine uses it");
}

void probe_say_refused(const struct config *c, const struct forward_conf *fc, const char *why)
{
	if (fc->engine == c->engine)
		log_error("--engine %s cannot be used: %s", engine_name(fc->engine), why);
	else
		log_error("engine %s of forward %s cannot be used: %s", engine_name(fc->engine),
			  forward_name(fc), why);
}

static void unasked(struct probe_finding *f, const struct config *c)
{
	f->verdict = PROBE_UNASKED;
	if (c->probe)
		probe_say_unused(c, f->why, sizeof(f->why));
	else
		snprintf(f->why, sizeof(f->why), "not tried: --probe no");
}

static void summarise(const struct probe_results *results, struct probe_start *ret)
{
	size_t held = 0, asked = 0;

	for (size_t i = 0; i < PROBE_CHECKS; i++) {
		asked += (probe_checks[i].carriers & results->carriers) != 0;
		held += results->of[i].outcome == PROBE_HOLDS;
	}
	snprintf(ret->summary, sizeof(ret->summary), "%zu of %zu behaviours hold, tried in %u ms",
		 held, asked, results->took_ms);
}

static int refuse(const struct config *c, const struct forward_conf *fc,
		  const struct probe_finding *f)
{
	char why[PROBE_WHY_LEN + 80];

	snprintf(why, sizeof(why), "%s%s", f->why,
		 f->may_pass ? "; the machine may only be short of memory or time just now" : "");
	probe_say_refused(c, fc, why);
	return f->may_pass ? EXIT_CODE_FAILURE : EXIT_CODE_UNSUPPORTED;
}

/* What was asked for by name must work; all else has a substitute. */
static int announce(const struct config *c, const struct probe_start *found)
{
	const struct forward_conf *by_sockmap = config_forward_with(c, ENGINE_SOCKMAP);
	const struct forward_conf *by_splice = config_forward_with(c, ENGINE_SPLICE);
	const struct probe_finding *sockmap = &found->sockmap, *splice = &found->splice;

	if (by_sockmap && !probe_allows(sockmap))
		return refuse(c, by_sockmap, sockmap);
	if (by_splice && !probe_allows(splice))
		return refuse(c, by_splice, splice);
	if (!probe_allows(sockmap))
		log_warning("everything is carried in user space: %s", sockmap->why);
	if (!probe_allows(splice))
		log_warning("copy is used where splice would be better: %s", splice->why);
	return 0;
}

int probe_start(const struct config *c, struct probe_start *ret)
{
	unsigned int carriers = c->probe ? carriers_of(c) : 0;
	struct probe_results results;
	char err[256];

	*ret = (struct probe_start){ .summary = "no behaviour was tried" };
	unasked(&ret->sockmap, c);
	unasked(&ret->splice, c);
	if (!carriers)
		return 0;
	if (probe_check_variable(err, sizeof(err))) {
		log_error("%s", err);
		return EXIT_CODE_USAGE;
	}
	try_twice(carriers, &results);
	if (carriers & PROBE_SOCKMAP)
		judge(&results, PROBE_SOCKMAP, &ret->sockmap);
	if (carriers & PROBE_SPLICE)
		judge(&results, PROBE_SPLICE, &ret->splice);
	summarise(&results, ret);
	return announce(c, ret);
}
