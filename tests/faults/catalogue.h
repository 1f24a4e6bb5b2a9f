/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_FAULTS_CATALOGUE_H
#define CULVERT_TEST_FAULTS_CATALOGUE_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

#include "lanes.h"
#include "page.h"

/* How each function can fail. */

#define CATALOGUE_MAX 12

struct failing {
	const char *function;
	int errors[CATALOGUE_MAX]; /* until the first 0 */
	bool can_be_short;
};

/* NULL: a function that the catalogue does not know, which is a bug of the test. */
const struct failing *catalogue_find(const char *function);

/* Instead of an error: less is done than was asked for; or it is done later. */
#define CATALOGUE_SHORT 0
#define CATALOGUE_LATE (-1)

/* "EMFILE"; "short", "late". */
const char *catalogue_error_name(int error);

/* What an arm does; see struct faults_arm. */
struct fault {
	uint32_t site;
	enum faults_action action;
	int error;
	uint32_t skip, every, limit;
};

/* One fault at one site, and what must hold after it. */

enum injection_mode {
	MODE_ONCE,   /* one call, picked at random from those of a batch */
	MODE_THIRD,  /* each third call for a while */
	MODE_ALWAYS, /* every call for a while */
};

/* A site, as it is known whatever daemon runs: indices of the page change with the daemon. */
struct known {
	uint64_t key;
	const struct failing *failing;
	char name[200];
	uint64_t calls;            /* a batch; 0: it is called at the start only */
	const struct known *after; /* reached only while that one fails; NULL: always */
	struct fault trigger;      /* with AFTER: how that one fails; its .site is not used */
};

struct injection {
	const struct known *at;
	int error; /* or CATALOGUE_SHORT, CATALOGUE_LATE */
	enum injection_mode mode;
};

/* What came of it. */
struct outcome {
	struct batch batch;
	uint32_t hits;
	int64_t errors; /* that the daemon has counted */
	bool clean;     /* all is as before; else WHY says what is not */
	char why[1200];
};

/* It fails so at each call; its .site is not set. */
struct fault injection_fault(const struct injection *in);

/* K is where the privileged process is asked, or does what it is asked for. */
bool known_is_privileged(const struct known *k);
/* K is what is tried because the first way has failed: no session need survive its failure. */
bool known_is_last_resort(const struct known *k);

/* The privileged process may end of it: then the daemon says so, and needs a new start. */
bool injection_may_end_privileged(const struct injection *in);

/* NULL if the invariant held, else what it is that did not. */
const char *injection_broken(const struct injection *in, const struct outcome *out);

const char *injection_mode_name(enum injection_mode mode);

/* A row of the results; BROKEN is what injection_broken() says. */
struct json_object *injection_row(const struct injection *in, const char *engine,
				  const struct outcome *out, const char *broken);

#endif
