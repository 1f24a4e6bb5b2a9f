/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_OPTION_VALUE_H
#define CULVERT_OPTION_VALUE_H

#include "config/config.h"
#include "config/option.h"

/* The values of options (option.h): from text into a configuration, and compared. */

/*
 * Store VALUE in C as O says.  Text is kept as a pointer: VALUE must live as long as C.  Nothing is
 * printed.  0, -EINVAL or -ERANGE; of rules also what acl_add() returns.
 */
int option_store(struct config *c, const struct option_def *o, const char *value);
/* The same for a forward. */
int option_store_own(struct forward_conf *fc, const struct option_def *o, const char *value);

/*
 * Give FC the values of C, but for those that it has its own of: OWN[option_number()] is not 0.
 * Lists are not values.
 */
void options_inherit(struct forward_conf *fc, const struct config *c, const unsigned int *own);

/* True if A and B have the same values of all options that a forward may have. */
bool options_same_own(const struct forward_conf *a, const struct forward_conf *b);
/*
 * The first option whose values differ in A and B though only a new start could change it; NULL:
 * none.
 */
const struct option_def *options_fixed(const struct config *a, const struct config *b);

/* What is wrong with VALUE, for which storing returned ERROR.  Returns BUF. */
#define OPTION_WRONG_LEN 600
const char *option_wrong(const struct option_def *o, int error, const char *value, char *buf);

/* What a value of O should look like, for messages.  BUF may be used for it. */
const char *option_expectation(const struct option_def *o, char *buf, size_t size);

/* The defaults of the table, and the computed ones that no other option decides. */
void options_default(struct config *c);

#endif
