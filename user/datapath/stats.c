// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/stats.h"

#include <math.h>

#define BOUND(seconds)                                                                             \
	{                                                                                          \
		(seconds), #seconds                                                                \
	}

const struct histogram_bound histogram_bounds[HISTOGRAM_BUCKETS] = {
	BOUND(0.0003),  BOUND(0.001),   BOUND(0.003),         BOUND(0.01),   BOUND(0.03),
	BOUND(0.1),     BOUND(0.3),     BOUND(1.0),           BOUND(3.0),    BOUND(10.0),
	BOUND(30.0),    BOUND(60.0),    BOUND(300.0),         BOUND(1800.0), BOUND(3600.0),
	BOUND(21600.0), BOUND(86400.0), { INFINITY, "+Inf" },
};

const char *const cause_names[CAUSES] = {
	[CAUSE_CLIENT_RESET] = "client-reset",
	[CAUSE_UPSTREAM_RESET] = "upstream-reset",
	[CAUSE_CLIENT_LOST] = "client-lost",
	[CAUSE_UPSTREAM_LOST] = "upstream-lost",
	[CAUSE_IDLE_TIMEOUT] = "idle-timeout",
	[CAUSE_FIN_TIMEOUT] = "fin-timeout",
	[CAUSE_NO_ADDRESS] = "no-address",
	[CAUSE_QUEUE_FULL] = "queue-full",
	[CAUSE_QUEUE_TIMEOUT] = "queue-timeout",
	[CAUSE_NO_SERVER] = "no-server",
	[CAUSE_CONNECT_REFUSED] = "connect-refused",
	[CAUSE_CONNECT_TIMEOUT] = "connect-timeout",
	[CAUSE_CONNECT_UNREACHABLE] = "connect-unreachable",
	[CAUSE_CONNECT_FAILED] = "connect-failed",
	[CAUSE_NO_DESCRIPTOR] = "no-descriptor",
	[CAUSE_NO_MEMORY] = "no-memory",
	[CAUSE_SESSION_LIMIT] = "session-limit",
	[CAUSE_FORWARD_LIMIT] = "forward-limit",
	[CAUSE_ACCEPT_RATE] = "accept-rate",
	[CAUSE_CLIENT_LIMIT] = "client-limit",
	[CAUSE_DENIED] = "denied",
	[CAUSE_ACCEPT_FAILED] = "accept-failed",
	[CAUSE_HELLO_BAD] = "hello-bad",
	[CAUSE_HELLO_LARGE] = "hello-large",
	[CAUSE_HELLO_LATE] = "hello-late",
	[CAUSE_SERVER_NO_TLS] = "server-no-tls",
	[CAUSE_NAME_UNKNOWN] = "name-unknown",
	[CAUSE_HEADER_BAD] = "proxy-header-bad",
	[CAUSE_HEADER_LATE] = "proxy-header-late",
	[CAUSE_HANDOVER_UNPROVED] = "handover-unproved",
	[CAUSE_KERNEL_LOST] = "kernel-lost",
	[CAUSE_KILLED] = "killed",
	[CAUSE_SERVER_DOWN] = "server-down",
	[CAUSE_GRACE_OVER] = "grace-over",
	[CAUSE_NO_SOCKET] = "no-socket",
	[CAUSE_DRAIN_OVER] = "drain-over",
	[CAUSE_NO_ROUTE] = "no-route",
	[CAUSE_UNTRANSLATABLE] = "untranslatable",
	[CAUSE_CROWDED_OUT] = "crowded-out",
	[CAUSE_NO_PORT] = "no-port",
	[CAUSE_REPLY_LIMIT] = "reply-limit",
	[CAUSE_OVER_BANDWIDTH] = "bandwidth",
	[CAUSE_SEND_BUFFER] = "send-buffer",
	[CAUSE_INTERNAL] = "internal",
};

struct log_rate cause_rates[CAUSES];
