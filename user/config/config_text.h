/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_TEXT_H
#define CULVERT_CONFIG_TEXT_H

#include <stddef.h>

#include "config/config.h"
#include "config/option_value.h"

/*
 * A configuration as it was written, before names are looked up and before what a forward does
 * not say is taken from elsewhere.  Every kind of file, and the command line, becomes this.
 */

/* What was said, in the order in which it was.  Without OPTION: a note for whoever reads it. */
struct config_line {
	const struct option_def *option;
	const char *value;
	unsigned int line;
};

struct config_lines {
	struct config_line *lines; /* owned, but not their texts */
	size_t n;
};

/* A forward. */
struct forward_text {
	const char *name, *listen, *upstream;
	const char *file; /* NULL: on the command line */
	unsigned int line, listen_line, upstream_line;
	struct forward_conf own;         /* what it says of options */
	unsigned int lines[OPTIONS_MAX]; /* of them, by option_number(); 0: it does not say */
	struct config_lines said;        /* the same */
};

/* All of them, in the order in which they were written, and which options are from the file. */
struct config_text {
	struct forward_text *forwards; /* owned */
	size_t n;
	unsigned int lines[OPTIONS_MAX]; /* by option_number(); 0: not given there, or not in
					  * force */
	struct config_lines said;        /* what the file says of options */
	struct config_lines notes;
	bool is_rinetd;                  /* the file has that form */
	bool may_be_empty;               /* no forward is no mistake */
};

/* Room for one more, zeroed; NULL: no memory. */
struct forward_text *config_text_add(struct config_text *t);
void config_text_close(struct config_text *t);

/*
 * The file says that O is VALUE: for all (T is NULL), or for T of TEXT, into whose `own` it goes.
 * -EINVAL: it is wrong, or the second time; BUF, of OPTION_WRONG_LEN bytes, says so.  -ENOMEM.
 */
int config_text_take(struct config *c, struct config_text *text, struct forward_text *t,
		     const struct option_def *o, const char *value, unsigned int line, char *buf);

/*
 * config_parse_from(), which leaves in TEXT what was written; that must be closed, and before RET.
 * At first TEXT is zeroed.  Notes are not said.
 */
int config_parse_text(int argc, char **argv, const struct config_source *from, struct config *ret,
		      struct config_text *text);

/* The same of FILE alone, as `culvert run --config FILE` reads it. */
int config_parse_file(char *file, struct config *ret, struct config_text *text);

/*
 * config_check_listeners(), once names have addresses; says what is wrong, and where that is in
 * TEXT.
 */
int config_check_found(const struct config *c, const struct config_text *text);

/* A note on LINE; the text is kept.  -ENOMEM. */
int config_text_note(struct config *c, struct config_text *text, unsigned int line,
		     const char *note);

/* Say the notes on stderr, a line each. */
void config_text_say_notes(const struct config_text *text, const char *file);

/* Say on stderr that FILE has no forward, which may be meant. */
void config_text_say_empty(const char *file);

/*
 * Where a mistake is: "FILE:LINE: ", or "" for LINE 0.  Of a long FILE the end is kept.  BUF has
 * CONFIG_PLACE_LEN bytes; returns BUF.
 */
#define CONFIG_PLACE_LEN 300
const char *config_place(const char *file, unsigned int line, char *buf);

/* The line of the file that says the option NAME, for all (C) or in forward T; 0: none does. */
unsigned int config_option_line(const struct config *c, const char *name);
unsigned int forward_says(const struct forward_text *t, const char *name);

/* config_place() of that line of C; "FILE: " if there is none, "" without a file. */
const char *config_option_place(const struct config *c, const char *name, char *buf);

#endif
