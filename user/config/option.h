/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct forward_conf;
struct config;
struct config_line;
struct config_lines;

/*
 * The settings of culvert as one table.  The command line, the configuration file, the defaults,
 * the help and the manual pages come from it.
 */

/*
 * Where an option may stand: a set.  An option of [forward NAME] is a setting of a forward, with
 * its field in struct forward_conf.  An option about servers may stand in [sni], too.
 */
enum option_scope {
	SCOPE_WORDS = 1 << 0,   /* the command line */
	SCOPE_CULVERT = 1 << 1, /* [culvert] */
	SCOPE_FORWARD = 1 << 2, /* [forward NAME]; an option of this scope alone may share its name
				 * with a global one */
	SCOPE_SNI = 1 << 3,     /* [sni FORWARD NAME...] */
	SCOPE_GLOBAL = SCOPE_WORDS | SCOPE_CULVERT,
	SCOPE_EACH = SCOPE_GLOBAL | SCOPE_FORWARD, /* [forward NAME] overrides the global value */
	SCOPE_OWN = SCOPE_FORWARD | SCOPE_SNI,     /* its field is in struct forward_conf */
};

/* Kinds of values, and the type of the field that stores the value. */
enum option_kind {
	KIND_CHOICE,   /* unsigned int, int or enum: the index in `choices`, at least `min` */
	KIND_BOOL,     /* bool */
	KIND_COUNT,    /* unsigned int, also in hexadecimal */
	KIND_SECONDS,  /* unsigned int, milliseconds */
	KIND_SIZE,     /* uint64_t, bytes */
	KIND_TEXT,     /* const char *, at most `max` bytes; NULL: "any", if that is the default */
	KIND_ALLOW,    /* struct acl, to which each value adds rules */
	KIND_DENY,     /* the same */
	KIND_SOURCE,   /* struct addr without a port; length 0: any */
	KIND_LISTEN,   /* struct endpoint */
	KIND_UPSTREAM, /* struct upstream */
};

#define OPTIONS_MAX 80

struct option_def {
	const char *name;  /* on the command line after "--" */
	const char *alias; /* an older name, which still means this option; NULL: none */
	const char *metavar;
	const char *help;
	const char *initial;        /* default, as the user would write it; NULL: computed */
	const char *computed;       /* the default as the help shows it, instead of `initial` */
	const char *expected;       /* the form of a value */
	const char *const *choices; /* KIND_CHOICE; the last one is NULL */
	enum option_kind kind;
	enum option_scope scope;
	bool list;     /* it may be given several times */
	bool reloads;  /* a reload can change this global option; false for options of forwards */
	size_t offset; /* of SCOPE_OWN: in struct forward_conf; else in config */
	uint64_t min, max; /* in the unit of the field */
};

extern const struct option_def option_table[OPTIONS_MAX + 1]; /* the last one has no name */

/* The option NAME that may stand at SCOPE, or NULL. */
const struct option_def *option_find(const char *name, enum option_scope scope);

/*
 * A hint to print after NAME, which is no option at SCOPE: " (did you mean ...?)", or ": it belongs
 * to ..."; or "".
 */
const char *option_hint(struct config *c, const char *name, enum option_scope scope);

/* The last of L that sets the option NAME, or NULL. */
const struct config_line *option_line(const struct config_lines *l, const char *name);
/* The line whose setting NAME holds for FC, or NULL. */
const struct config_line *option_line_for(const struct config *c, const struct forward_conf *fc,
					  const char *name);
/* The place of that line: "FILE:LINE: ", or "". */
const char *option_place(const struct config *c, const struct forward_conf *fc, const char *name);

/*
 * Store the setting L in FC if it is one of a forward, else in C.  Text is kept as a pointer.  0,
 * or -EINVAL after a complaint.
 */
int option_store(struct config *c, struct forward_conf *fc, const struct config_line *l);

/* Set each option to its default, in C and in the settings that its forwards inherit. */
void options_default(struct config *c);

/* True if A and B have the same settings, addresses included.  Names are not compared. */
bool options_same_own(const struct forward_conf *a, const struct forward_conf *b);
/* The first option that differs in A and B and that only a new start can change; NULL: none. */
const struct option_def *options_fixed(const struct config *a, const struct config *b);

/* Print the options of the command line, or (FORWARD) of forwards alone, as lines of the help. */
void options_help(bool forward);
