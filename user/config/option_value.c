// SPDX-License-Identifier: BSD-2-Clause
#include "config/option_value.h"

#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "relay/proxy_use.h"

static const char *const engines[] = {
	[ENGINE_AUTO] = "auto",
	[ENGINE_SOCKMAP] = "sockmap",
	[ENGINE_SPLICE] = "splice",
	[ENGINE_COPY] = "copy",
};

static const char *const spreads[] = {
	[SPREAD_AUTO] = "auto",
	[SPREAD_ALL] = "all",
	[SPREAD_ROTATE] = "rotate",
};

static const char *const filters[] = {
	[FILTER_ERRNO] = "errno",
	[FILTER_KILL] = "kill",
	[FILTER_OFF] = "off",
};

const char *engine_name(enum engine e)
{
	return (size_t)e < sizeof(engines) / sizeof(engines[0]) ? engines[e] : "?";
}

_Static_assert(sizeof(enum engine) == sizeof(unsigned int) &&
		       sizeof(enum spread) == sizeof(unsigned int) &&
		       sizeof(enum filter_mode) == sizeof(unsigned int),
	       "name_parse() stores enums");

/* The place of TEXT among N names. */
static int name_parse(const char *text, const char *const *names, size_t n, unsigned int *ret)
{
	for (size_t i = 0; i < n; i++) {
		if (strcmp(text, names[i]) == 0) {
			*ret = (unsigned int)i;
			return 0;
		}
	}
	return -EINVAL;
}

#define N_NAMES(names) (sizeof(names) / sizeof((names)[0]))

const char *option_expectation(const struct option_def *o, char *buf, size_t size)
{
	char min[SIZE_STRLEN], max[SIZE_STRLEN];

	switch (o->kind) {
	case KIND_ENGINE:
		return ENGINE_NAMES;
	case KIND_SPREAD:
		return SPREAD_NAMES;
	case KIND_FILTER:
		return FILTER_NAMES;
	case KIND_BOOL:
		return "yes or no";
	case KIND_LEVEL:
		return LEVEL_NAMES;
	case KIND_COUNT:
		snprintf(buf, size, "a whole number from %llu to %llu", (unsigned long long)o->min,
			 (unsigned long long)o->max);
		return buf;
	case KIND_SECONDS:
		snprintf(buf, size, "seconds from %g to %g, such as 5 or 0.5",
			 (double)o->min / 1000, (double)o->max / 1000);
		return buf;
	case KIND_SIZE:
	case KIND_SIZE64:
		snprintf(buf, size, "a size from %s to %s, such as 64K or 1M",
			 size_format(o->min, min, sizeof(min)),
			 size_format(o->max, max, sizeof(max)));
		return buf;
	case KIND_PATH:
		snprintf(buf, size, "a path of 1 to %zu bytes",
			 sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
		return buf;
	case KIND_FILE:
		return "the name of a file";
	case KIND_NAME:
		return "the name of an account";
	case KIND_PROXY:
		return PROXY_USE_NAMES;
	case KIND_ALLOW:
	case KIND_DENY:
		return "addresses, prefixes without host bits, unix: or all, such as 10.0.0.0/8, "
		       "2001:db8::1";
	case KIND_SOURCE:
		return "an IPv4 or IPv6 address without a port, or any";
	case KIND_INTERFACE:
		return "the name of a network interface, or any";
	case KIND_MARK:
		return "a number below 2^32, such as 7 or 0x1f, or 0 for none";
	case KIND_HELP:
		break;
	}
	return "no value";
}

const char *option_wrong(const struct option_def *o, int error, const char *value, char *buf)
{
	char expected[128];

	if (error == -EEXIST)
		snprintf(buf, OPTION_WRONG_LEN, "\"%.256s\": an earlier rule says the opposite of "
			 "all that this one is for: the first that matches a client decides",
			 value);
	else if (error == -E2BIG)
		snprintf(buf, OPTION_WRONG_LEN, "more than %d rules", ACL_RULES_MAX);
	else
		snprintf(buf, OPTION_WRONG_LEN, "\"%.256s\" is not valid, expected %s", value,
			 option_expectation(o, expected, sizeof(expected)));
	return buf;
}

static int number_parse(const struct option_def *o, const char *text, uint64_t *ret)
{
	int r;

	if (o->kind == KIND_COUNT)
		r = count_parse(text, ret);
	else if (o->kind == KIND_SECONDS)
		r = seconds_parse(text, ret);
	else
		r = size_parse(text, ret);
	if (r == 0 && (*ret < o->min || *ret > o->max))
		r = -ERANGE;
	return r;
}

static int mark_parse(const char *text, unsigned int *ret)
{
	bool hex = !strncmp(text, "0x", 2);
	const char *digits = hex ? text + 2 : text;
	unsigned long n;

	if (!*digits || strlen(digits) > 10 ||
	    digits[strspn(digits, hex ? "0123456789abcdefABCDEF" : "0123456789")])
		return -EINVAL;
	n = strtoul(digits, NULL, hex ? 16 : 10);
	if (n > UINT32_MAX)
		return -ERANGE;
	*ret = (unsigned int)n;
	return 0;
}

/* As dev_valid_name() of the kernel has it. */
static int interface_parse(const char *text, const char **ret)
{
	if (!*text || strlen(text) >= IFNAMSIZ || !strcmp(text, ".") || !strcmp(text, "..") ||
	    strpbrk(text, "/: \t"))
		return -EINVAL;
	*ret = strcmp(text, "any") != 0 ? text : NULL;
	return 0;
}

static int source_parse(const char *text, struct addr *ret)
{
	int r;

	*ret = (struct addr){ 0 };
	r = strcmp(text, "any") != 0 ? addr_parse_host(text, ret) : 0;
	*ret = addr_unmapped(ret); /* as endpoints are: both must be of one family */
	return r;
}

/* FIELD is where O is kept. */
static int store(void *field, const struct option_def *o, const char *value)
{
	uint64_t number;
	int r;

	switch (o->kind) {
	case KIND_ENGINE:
		return name_parse(value, engines, N_NAMES(engines), field);
	case KIND_SPREAD:
		return name_parse(value, spreads, N_NAMES(spreads), field);
	case KIND_FILTER:
		return name_parse(value, filters, N_NAMES(filters), field);
	case KIND_BOOL:
		*(bool *)field = !strcmp(value, "yes");
		return *(bool *)field || !strcmp(value, "no") ? 0 : -EINVAL;
	case KIND_LEVEL:
		r = log_level_parse(value);
		if (r >= 0)
			*(int *)field = r;
		return r < 0 ? r : 0;
	case KIND_PATH:
		if (strlen(value) >= sizeof(((struct sockaddr_un *)0)->sun_path))
			return -EINVAL;
		/* fall through */
	case KIND_FILE:
	case KIND_NAME:
		if (!value[0])
			return -EINVAL;
		*(const char **)field = value;
		return 0;
	case KIND_COUNT:
	case KIND_SECONDS:
	case KIND_SIZE:
	case KIND_SIZE64:
		r = number_parse(o, value, &number);
		if (r < 0)
			return r;
		if (o->kind == KIND_SIZE64)
			*(uint64_t *)field = number;
		else if (o->kind == KIND_SIZE)
			*(size_t *)field = (size_t)number;
		else
			*(unsigned int *)field = (unsigned int)number;
		return 0;
	case KIND_PROXY:
		return proxy_use_parse(value, field);
	case KIND_ALLOW:
	case KIND_DENY:
		return acl_add(field, o->kind == KIND_ALLOW, value);
	case KIND_SOURCE:
		return source_parse(value, field);
	case KIND_INTERFACE:
		return interface_parse(value, field);
	case KIND_MARK:
		return mark_parse(value, field);
	case KIND_HELP:
		break;
	}
	return -EINVAL;
}

int option_store(struct config *c, const struct option_def *o, const char *value)
{
	return store((char *)c + o->offset, o, value);
}

int option_store_own(struct forward_conf *fc, const struct option_def *o, const char *value)
{
	return store((char *)fc + o->own, o, value);
}

/* Of what store() writes. */
static size_t field_size(enum option_kind kind)
{
	switch (kind) {
	case KIND_BOOL:
		return sizeof(bool);
	case KIND_SIZE:
		return sizeof(size_t);
	case KIND_SIZE64:
		return sizeof(uint64_t);
	case KIND_PATH:
	case KIND_FILE:
	case KIND_NAME:
	case KIND_INTERFACE:
		return sizeof(const char *);
	case KIND_SOURCE:
		return sizeof(struct addr);
	case KIND_ENGINE: /* see name_parse() */
	case KIND_SPREAD:
	case KIND_FILTER:
	case KIND_LEVEL:
	case KIND_COUNT:
	case KIND_SECONDS:
	case KIND_PROXY:
	case KIND_MARK:
		return sizeof(unsigned int);
	case KIND_ALLOW: /* acl_copy() and acl_same() are for these */
	case KIND_DENY:
	case KIND_HELP:
		break;
	}
	return 0;
}

void options_inherit(struct forward_conf *fc, const struct config *c, const unsigned int *own)
{
	const struct option_def *o;

	for (size_t i = 0; (o = option_at(i)); i++)
		if (o->scope == SCOPE_EACH && !own[i] && !option_is_list(o))
			memcpy((char *)fc + o->own, (const char *)c + o->offset,
			       field_size(o->kind));
}

static bool same_value(const struct option_def *o, const void *a, const void *b)
{
	const char *x, *y;

	switch (o->kind) {
	case KIND_ALLOW:
	case KIND_DENY:
		return acl_same(a, b);
	case KIND_PATH:
	case KIND_FILE:
	case KIND_NAME:
	case KIND_INTERFACE:
		x = *(const char *const *)a;
		y = *(const char *const *)b;
		return x == y || (x && y && !strcmp(x, y));
	case KIND_ENGINE:
	case KIND_SPREAD:
	case KIND_FILTER:
	case KIND_BOOL:
	case KIND_LEVEL:
	case KIND_COUNT:
	case KIND_SECONDS:
	case KIND_SIZE:
	case KIND_SIZE64:
	case KIND_PROXY:
	case KIND_MARK:
		return !memcmp(a, b, field_size(o->kind));
	case KIND_SOURCE:
		return addr_equal(a, b);
	case KIND_HELP:
		break;
	}
	return true;
}

bool options_same_own(const struct forward_conf *a, const struct forward_conf *b)
{
	const struct option_def *o;

	for (size_t i = 0; (o = option_at(i)); i++)
		if ((o->scope == SCOPE_EACH || o->scope == SCOPE_FORWARD) &&
		    !same_value(o, (const char *)a + o->own, (const char *)b + o->own))
			return false;
	return true;
}

const struct option_def *options_fixed(const struct config *a, const struct config *b)
{
	const struct option_def *o;

	for (size_t i = 0; (o = option_at(i)); i++)
		if (o->scope == SCOPE_GLOBAL && o->change == CHANGE_BY_START &&
		    !same_value(o, (const char *)a + o->offset, (const char *)b + o->offset))
			return o;
	return NULL;
}

/* CPUs that this process may use: in a container fewer than the machine has. */
static unsigned int usable_cpus(void)
{
	cpu_set_t set;
	long n;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		n = CPU_COUNT(&set);
	else
		n = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than cpu_set_t has room for */
	if (n < 1)
		return 1;
	return n > WORKERS_MAX ? WORKERS_MAX : (unsigned int)n;
}

/* A 16th of what the machine has. */
static uint64_t share_of_memory(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	uint64_t share = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 16 : 0;

	return share < KERNEL_MEMORY_MIN ? KERNEL_MEMORY_MIN : share;
}

void options_default(struct config *c)
{
	/*
	 * of the start, so that a reload finds the same file unchanged when CPUs or memory have
	 * come or gone
	 */
	static unsigned int cpus;
	static uint64_t memory;
	const struct option_def *o;

	if (!cpus) {
		cpus = usable_cpus();
		memory = share_of_memory();
	}
	c->workers = cpus;
	c->kernel_memory = memory;
	for (size_t i = 0; (o = option_at(i)); i++)
		if (o->initial)
			option_store(c, o, o->initial);
}
