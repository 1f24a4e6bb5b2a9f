/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * A name server on a thread of its own, which says what the test wants, and files below /etc that
 * make everybody in this process's mount namespace ask it alone.
 */

enum name_server_mode {
	NAMES_ANSWER,
	NAMES_SILENT, /* takes questions, and says nothing */
	NAMES_HOLD,   /* takes questions, and answers them when the mode is another */
	NAMES_FAIL,   /* SERVFAIL */
};

/*
 * Own /etc/resolv.conf, hosts and nsswitch.conf, in a mount namespace of our own; then the thread,
 * on 127.0.0.1:53.  After env_enter().  Exits with a message on failure.
 */
void name_server_start(void);

void name_server_mode(enum name_server_mode mode);

/*
 * From now on NAME has these addresses: "2001:db8::1 192.0.2.1"; "": none, NULL: it does not exist.
 * A name that was never set does not exist.
 */
void name_server_set(const char *name, const char *addresses);

/*
 * The next A questions for NAME, which was set, and the next AAAA questions are not answered; until
 * it is set again.
 */
void name_server_mute(const char *name, unsigned int a, unsigned int aaaa);

/* A name that ends so is not answered. */
#define NAMES_HANGS ".hangs.test"

/* Questions so far. */
unsigned int name_server_asked(void);
