/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "pattern.h"

/*
 * A scripted TCP peer: one non-blocking socket and a list of steps.  peer_run() does what can be
 * done now; peer_events() and peer_wake() say what to wait for.  Everything received is compared
 * with the pattern at its position; an end of the stream that no step allows is a failure.
 */

enum step_op {
	/* Settings: take no time.  Leading ones of a connecting peer apply before connect(). */
	STEP_WRITE_SIZE,  /* a: most bytes of one send() */
	STEP_WRITE_PAUSE, /* a: ms to wait after each send() */
	STEP_READ_SIZE,   /* a: most bytes of one recv() */
	STEP_READ_PAUSE,  /* a: ms to wait after each recv() */
	STEP_RCVBUF,      /* a: SO_RCVBUF */
	STEP_SNDBUF,      /* a: SO_SNDBUF */
	STEP_NODELAY,
	STEP_MAY_END,    /* from here on the stream may end at any point */
	STEP_MUST_END,   /* ... must end before the script does, by EOF or reset */
	STEP_MUST_RESET, /* ... must end before the script does, by a reset */
	/* Actions */
	STEP_ACCEPT,
	STEP_SEND,  /* a bytes */
	STEP_LAST,  /* a bytes, with the FIN in the last segment */
	STEP_OOB,   /* one byte with MSG_OOB */
	STEP_RECV,  /* a bytes */
	STEP_BOTH,  /* send a bytes while receiving b */
	STEP_PING,  /* a rounds: send b, receive c */
	STEP_PONG,  /* a rounds: receive b, send c */
	STEP_FIN,   /* shutdown(SHUT_WR) */
	STEP_EOF,   /* nothing but the end of the stream must come */
	STEP_RESET, /* abortive close; ends the script */
	STEP_PAUSE, /* a ms without reading or writing */
	STEP_HOOK,  /* call the hook until it says that it is done */
};

struct step {
	enum step_op op;
	uint64_t a, b, c;
};

#define PEER_MAX_STEPS 48
#define PEER_IO_MAX (256 << 10)

enum peer_result {
	PEER_RUNNING,
	PEER_DONE,      /* the script is through, or the stream ended where it was allowed to */
	PEER_WRONG,     /* a wrong byte */
	PEER_TRUNCATED, /* EOF before the last byte */
	PEER_EXTRA,     /* bytes after the last one */
	PEER_RESET,     /* reset although no step allows it */
	PEER_STALLED,   /* the driver lost its patience */
	PEER_FAILED,    /* anything else */
	PEER_RESULTS,
};

struct peer {
	char name[32]; /* for messages */
	int fd;        /* owned; -1 before accept and after the end */
	int listen_fd; /* not owned; for STEP_ACCEPT */
	struct sockaddr_storage to;
	socklen_t to_len; /* 0: not a connecting peer */
	bool connecting, connected;

	struct step steps[PEER_MAX_STEPS];
	size_t n_steps, pos;
	bool entered, answering;
	uint64_t rounds_left;

	struct pattern tx, rx;
	uint64_t tx_off, tx_goal, rx_off, rx_goal;
	bool want_eof, eof_seen, fin_sent;
	uint64_t abort_tx, abort_rx; /* abort once that many bytes went; UINT64_MAX: never */
	bool aborted;

	size_t write_size, read_size;
	int write_pause, read_pause;
	int64_t tx_wake, rx_wake, step_wake;
	bool again;

	enum step_op end_rule; /* STEP_MAY_END, ...; STEP_EOF: no end allowed */
	bool ended_by_eof, ended_by_reset;

	int (*hook)(struct peer *p, void *arg); /* 1: done, 0: call again, < 0: failed, see why */
	void *hook_arg;

	int64_t last_progress;
	enum peer_result result;
	char why[240];
};

/* A peer that connects to SA, or (SA NULL) one for an fd given later or accepted by STEP_ACCEPT. */
int peer_init(struct peer *p, const char *name, const struct sockaddr *sa, socklen_t len);

/*
 * The two ends of a session: CLIENT connects to LISTEN, SERVER accepts at LISTEN_FD.  What they
 * say is the patterns of connection ID of SEED.  0 or -errno.
 */
int peer_pair(struct peer *client, struct peer *server, const char *listen, int listen_fd,
	      uint64_t seed, uint64_t id);

/* Close the socket.  NULL and a second call are fine. */
void peer_close(struct peer *p);

/*
 * Append the steps of TEXT, blank separated letters with arguments; too many abort the test:
 *   w64K  STEP_WRITE_SIZE   wp5 STEP_WRITE_PAUSE   d4K STEP_READ_SIZE   dp3 STEP_READ_PAUSE
 *   rb4K  STEP_RCVBUF       sb4K STEP_SNDBUF       nd  STEP_NODELAY
 *   may | end | rst         STEP_MAY_END | STEP_MUST_END | STEP_MUST_RESET
 *   A  S8M  L100  O  R8M  B8M:8M  G500:64:64 (ping)  H500:64:64 (pong)  F  E  Z (reset)  P300
 *   T (hook)
 */
void peer_script(struct peer *p, const char *text);

/* Do what can be done at NOW (now_ms()). */
enum peer_result peer_run(struct peer *p, int64_t now);

/* POLLIN | POLLOUT to wait for on *RET_FD; 0: nothing but time. */
short peer_events(const struct peer *p, int64_t now, int *ret_fd);

/* When to call peer_run() whatever the socket does; INT64_MAX: never. */
int64_t peer_wake(const struct peer *p, int64_t now);

/* Set a result other than PEER_DONE with a reason, and close. */
void peer_fail(struct peer *p, enum peer_result r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Where it stands, for messages. */
void peer_describe(const struct peer *p, char *buf, size_t len);

const char *peer_result_name(enum peer_result r);

/*
 * Let each of N peers go as far as it can now.  Then wait for an event of any peer, until UNTIL at
 * the latest.  Returns the number of peers that still run, or -1, and in WHY the fault of a peer.
 */
int peers_round(struct peer **peers, size_t n, int64_t until, char *why, size_t len);

/*
 * Drive N peers until all are done, one of them failed, or none has moved for TIMEOUT_MS (then
 * those still running are PEER_STALLED).  TICK (may be NULL) is called at least every 10 ms; it
 * ends the run by returning non-zero.  Returns 0 if all are done, else -1 and the reason in WHY.
 */
int peers_run(struct peer **peers, size_t n, int timeout_ms, int (*tick)(void *), void *arg,
	      char *why, size_t len);

/* Sockets.  Both return an fd or -errno; the listener is non-blocking. */
int net_listen(const char *addr, int backlog);
int net_addr(const char *addr, struct sockaddr_storage *ret, socklen_t *ret_len);

/*
 * Listen on ADDR with a backlog that is full, so that the kernel drops every SYN: a black hole
 * without any other host.  It stays until the program ends.  0 or -errno.
 */
int net_black_hole(const char *addr);

/* Port of an IPv4 socket's own or far end. */
int net_port(int fd, bool far);

/* Accept and close everything that waits at a listener. */
void net_drain_listener(int fd);
