/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RINETD_READER_H
#define CULVERT_RINETD_READER_H

/* What the parts of the reader of a rinetd.conf share (config_rinetd.c, rinetd_forward.c). */

#include <stdbool.h>

#include "config/config_reader.h"
#include "config/rinetd_rules.h"

struct rinetd_reader {
	struct config_reader in;
	unsigned int first; /* line that has something */
	struct rinetd_rules global, own; /* OWN: of the last forward */
	unsigned int clients;            /* of the last forward: CLIENTS_... */
	bool has_rules;                  /* an earlier forward has */
	bool is_oi;                      /* a line is of oi alone, and that was noted */
};

/* A word of the file that means an option. */
struct rinetd_word {
	const char *name;
	const char *key;     /* of option.c; NULL: refused */
	const char *why_not;
};

#define RINETD_BLANKS " \t"

void rinetd_note(struct rinetd_reader *p, unsigned int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The one of WORDS, the last of which has no name, that is NAME; or NULL. */
const struct rinetd_word *rinetd_find_word(const struct rinetd_word *words, const char *name);
/* W is VALUE, of forward T or (NULL) of all. */
void rinetd_take_word(struct rinetd_reader *p, const struct rinetd_word *w, struct forward_text *t,
		      const char *value);

/* TEXT without blanks at its ends, of which it loses the second. */
char *rinetd_trim(char *text);

/* A forwarding rule; then those of access behind it are complete. */
void rinetd_take_rule(struct rinetd_reader *p, char *line);
void rinetd_end_forward(struct rinetd_reader *p);

#endif
