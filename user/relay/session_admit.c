// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_admit.h"

#include "base/log.h"
#include "relay/admission.h"
#include "relay/client_addr.h"

bool session_admit_client(struct worker *w, struct forward *f, const struct sockaddr *client)
{
	char text[ADDR_STRLEN];
	union client_addr a;
	unsigned int most;
	bool all;

	if (admission_enter_client(w->shared->admission, f, client, &most, &all))
		return true;
	client_addr_set(&a, client);
	client_addr_text(&a, text, sizeof(text));
	if (all)
		log_limited(LOG_WARNING, "refused %s: it has %u session%s "
			    "(--max-sessions-per-client)", text, most, most == 1 ? "" : "s");
	else
		log_limited(LOG_WARNING, "refused %s: it has %u session%s of forward %s "
			    "(max-sessions-per-client)", text, most, most == 1 ? "" : "s",
			    forward_name(f->conf));
	return false;
}
