/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/udp/udp_session.h"

/* Datagrams that user space carries. */

/* Send M, of the client of S, to the server; an error of the path may end S. */
void udp_copy_question(struct udp_session *s, const struct udp_message *m);
/* Send answers to the client; the last one ends S (`responses`). */
void udp_copy_answers(struct udp_session *s);
/* The client has had all the answers that it is to get (`responses`). */
bool udp_copy_is_complete(const struct udp_session *s);
