/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_OPTION_H
#define CULVERT_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What culvert can be told, as one table: the command line, the configuration file, the defaults
 * (option_value.h) and the help (option_help.h) all come from it.  Where a forward listens and
 * leads to is not in it: config.c knows how that is written.
 */

/* Where an option may stand. */
enum option_scope {
	SCOPE_GLOBAL,  /* on the command line and in [culvert] */
	SCOPE_WORDS,   /* on the command line only */
	SCOPE_EACH,    /* as SCOPE_GLOBAL, for each forward that does not say its own */
	SCOPE_FORWARD, /* in [forward NAME] only; the name may also be that of another option */
};

/* When a changed value counts, of an option that is not a forward's. */
enum option_change {
	CHANGE_BY_START,  /* never while the daemon runs */
	CHANGE_BY_RELOAD, /* at once */
};

enum option_kind {
	KIND_HELP,
	KIND_ENGINE,  /* enum engine */
	KIND_SPREAD,  /* enum spread */
	KIND_FILTER,  /* enum filter_mode */
	KIND_BOOL,    /* bool */
	KIND_LEVEL,   /* int */
	KIND_COUNT,   /* unsigned int */
	KIND_SECONDS, /* unsigned int, milliseconds */
	KIND_SIZE,    /* size_t, bytes */
	KIND_SIZE64,  /* uint64_t, bytes */
	KIND_PATH,    /* const char *, fits into sun_path */
	KIND_FILE,    /* const char *, the path of a file */
	KIND_NAME,    /* const char * */
	KIND_PROXY,   /* unsigned int, enum proxy_use */
	KIND_ALLOW,   /* struct acl, to which each value adds rules */
	KIND_DENY,    /* the same */
	KIND_SOURCE,  /* struct addr without a port; length 0: any */
	KIND_INTERFACE, /* const char *; NULL: any */
	KIND_MARK,    /* unsigned int, also in hexadecimal */
};

/* What the enums are called, in the help and in messages. */
#define ENGINE_NAMES "auto, sockmap, splice or copy"
#define SPREAD_NAMES "auto, all or rotate"
#define FILTER_NAMES "errno, kill or off"
#define LEVEL_NAMES "error, warning, notice, info or debug"

#define WORKERS_MAX 1024
#define KERNEL_MEMORY_MIN (UINT64_C(1) << 20)
#define KERNEL_MEMORY_MAX (UINT64_C(1) << 50)

struct option_def {
	const char *name; /* on the command line behind "--" */
	const char *metavar;
	const char *help;
	const char *initial;  /* default, as the user would write it; NULL: computed */
	const char *computed; /* what the help says about a computed default */
	enum option_kind kind;
	enum option_scope scope;
	enum option_change change;
	size_t offset;     /* in struct config; not with SCOPE_FORWARD */
	size_t own;        /* SCOPE_EACH, SCOPE_FORWARD: in struct forward_conf */
	uint64_t min, max; /* in the unit of the field */
};

/* The option of the command line whose name is the first LEN bytes of NAME, or NULL. */
const struct option_def *option_find(const char *name, size_t len);
/* The one that may stand in [culvert], or (FORWARD) in [forward NAME]. */
const struct option_def *option_find_key(const char *name, bool forward);

/* The place of O in the table, below OPTIONS_MAX (config.h). */
size_t option_number(const struct option_def *o);
/* And the other way round; NULL: behind the last. */
const struct option_def *option_at(size_t number);

/* True if O may be given several times. */
static inline bool option_is_list(const struct option_def *o)
{
	return o->kind == KIND_ALLOW || o->kind == KIND_DENY;
}

#endif
