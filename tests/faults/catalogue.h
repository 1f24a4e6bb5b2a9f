/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_FAULTS_CATALOGUE_H
#define CULVERT_TEST_FAULTS_CATALOGUE_H

#include <stdbool.h>

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

/* A failure that no session may notice: to be repeated, or less done than was asked for. */
bool catalogue_harmless(const char *function, int error);

/* "EMFILE"; "short", "late". */
const char *catalogue_error_name(int error);

#endif
