/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_round.h"

/*
 * The page for people at the metrics' address: page.html, which the program contains, and the state
 * that the page asks for.  Both only show.  On any thread that serves metrics.
 */

/* The headers of each answer there: a browser runs and loads only what belongs to the page. */
extern const char metrics_page_headers[];
/* The caller frees it.  NULL: there is no memory. */
char *metrics_page_html(struct actions *a);
/*
 * The answer of `culvert status`, and the clients with the most sessions, as JSON: at most a second
 * old.  The caller frees it.  NULL: there is no memory, or a reload holds the lock of forwards.
 */
char *metrics_page_state(struct actions *a);
