/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/loop.h"
#include "datapath/stats.h"

/*
 * The state that TCP has of a socket, and the options of sockets.  Functions return 0 or -errno if
 * nothing else is said.
 */

/*
 * recv(2) that neither waits nor is interrupted.  The kernel reports an error once: the next call
 * would return EOF, and a reset would look like a FIN.
 */
ssize_t tcp_recv(int fd, void *buf, size_t len, int flags);

/* The pending error of the socket (SO_ERROR), which the call clears; 0: none. */
int tcp_take_error(int fd);

/* The cause to count for errno ERROR of a socket; SIDE 0: the client's, 1: the upstream's. */
enum cause tcp_cause(unsigned int side, int error);

/* The cause of errno ERROR if this machine is short of a resource; else OTHER. */
enum cause tcp_cause_of_shortage(int error, enum cause other);

/* Let the next close(2) of FD send RST: a FIN would pretend that the stream was complete. */
void tcp_arm_reset(int fd);

/*
 * Send FIN, or RST, now: another process may have FD open as well, and then close(2) sends neither.
 */
void tcp_end_now(int fd, bool rst);

/* Close SOURCE if it is open, with RST or as usual. */
void tcp_close(struct loop *l, struct source *source, bool rst);

/*
 * Set the options of a session's socket; accepted sockets inherit them from the listener.
 * NODELAY: a relay that waits for more bytes adds delay of its own.  KEEPALIVE_MS: a living peer is
 * heard at least so often, and a dead peer is given up after twice that time; 0: no keepalive.  TCP
 * counts whole seconds, so a dead peer is given up after six seconds at least.  Only an error of
 * keepalive is returned.
 */
int tcp_set_session_options(int fd, bool nodelay, unsigned int keepalive_ms);

/* Set KEEPALIVE_MS alone, in the middle of a connection; MORE probes may go without an answer. */
int tcp_set_keepalive(int fd, unsigned int keepalive_ms, unsigned int more);
/*
 * Let TCP probe the peer once the peer has been silent for a second.  A probe looks its way up, as
 * any packet of this socket.  Probes go on until tcp_set_keepalive().
 */
void tcp_probe_now(int fd);

/*
 * Before connect(2): hold back the ACK of the handshake, for 200 ms at most (TCP_DELACK_MAX in
 * tcp_rcv_synsent_state_process()).  The ACK travels with the first data.  If the socket is reset
 * before, RST goes out instead of the ACK.
 */
void tcp_hold_ack(int fd);

/* The result of a handshake. */
struct tcp_handshake {
	unsigned int takes;  /* the largest segment that the peer takes, options included */
	unsigned int told;   /* the largest segment that the peer was told to send */
	unsigned int window; /* that the peer offers */
	bool timestamps, ecn, scaled;
};
/* -errno. */
int tcp_handshake(int fd, struct tcp_handshake *ret);
/* UNSCALED: windows without scale, up to 65,535.  FD is not connected yet, or is a listener. */
void tcp_set_unscaled(int fd, bool unscaled);

/* Bytes in the receive queue.  -EFAULT if some were passed (SK_PASS) and not read. */
int tcp_unread(int fd, uint64_t *ret);

/* Bytes received since the connection began, without a FIN and the first HEADER bytes. */
int tcp_received(int fd, uint64_t header, uint64_t *ret);

/* The traffic with the peer, and its age. */
struct tcp_activity {
	uint32_t data_received_ago_ms; /* since the connection began, if there was none */
	uint32_t data_sent_ago_ms;     /* the same; retransmissions count */
	uint32_t ack_received_ago_ms;
	uint64_t acked; /* bytes; our SYN may be one of them */
	bool owed;      /* some sent bytes are not acknowledged */
	bool asked;     /* something that the peer has to answer was sent after its last ACK */
};
int tcp_activity(int fd, struct tcp_activity *ret);

/*
 * Bytes accepted for sending since the connection began, without the first HEADER bytes.
 * CONNECTED: the socket was made by connect(2).  The number may be too small for a moment, and is
 * never too large.
 */
int tcp_accepted(int fd, bool connected, uint64_t header, uint64_t *ret);
/* Does FD hold bytes that nobody has read, or that its peer has not acknowledged?  True, too, on an error. */
bool tcp_holds_bytes(int fd);

/*
 * Give the receive buffer SIZE bytes, unless it is larger, and keep TCP from growing it.  Returns
 * an error only if the flow would stop for ever.
 */
int tcp_fix_buffer(int fd, uint64_t size);
void tcp_unfix_buffer(int fd);

/* The low-water mark: tcp_data_ready() stays quiet until BYTES bytes wait. */
int tcp_set_lowat(int fd, int bytes);

/* --- options that choose the way of a socket's packets --- */

/* SO_MARK, for `ip rule ... fwmark` and firewalls.  CAP_NET_ADMIN. */
int socket_set_mark(int fd, unsigned int mark);

/*
 * IP_TRANSPARENT: the socket may have addresses that are not this machine's, and so may the sockets
 * that a listener accepts from now on.  CAP_NET_ADMIN.
 */
int socket_set_transparent(int fd, int family);

/* SO_BINDTODEVICE, which needs no privilege on a socket that has no interface yet (Linux 5.7). */
int socket_bind_interface(int fd, const char *name);

/*
 * A local address, whose port is ignored: the kernel picks a port at connect(2).  Only connections
 * to the same place need different ports (IP_BIND_ADDRESS_NO_PORT).
 */
int socket_bind_source(int fd, const struct sockaddr *source, socklen_t len);
