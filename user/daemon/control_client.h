/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONTROL_CLIENT_H
#define CULVERT_CONTROL_CLIENT_H

#include <stddef.h>
#include <sys/types.h>

#include "daemon/control.h"
#include "daemon/control_spare.h"

#define CONTROL_REQUEST_MS 500 /* a client's time for its request */
#define CONTROL_ANSWER_MS 2000 /* and for taking the answer */
#define CONTROL_TURN_MS 500 /* the same while somebody waits until it has */
#define CONTROL_REQUEST_MAX 4096

/*
 * One client of the control socket.  Nothing here blocks.
 *
 *   FREE     no client
 *   READING  the request is not complete                  -> ASKING, FREE
 *   ASKING   it is; waits for its turn to be answered     -> WRITING, FREE
 *   WRITING  the answer is not written completely         -> FREE
 */
enum control_client_state { CLIENT_FREE, CLIENT_READING, CLIENT_ASKING, CLIENT_WRITING };

struct control_client {
	enum control_client_state state;
	int fd;
	struct control_spare *spare; /* NULL: none */
	struct control_peer peer; /* one who may not ask will be told so */
	uint64_t until_ms;  /* READING, WRITING: late then */
	size_t got;         /* bytes of the request, without the newline once it is complete */
	const char *text;   /* the answer */
	char *made;         /* the same if it is elsewhere, and made for this client; owned */
	size_t len, sent;
	char request[CONTROL_REQUEST_MAX]; /* and then the answer, where there is room for it */
};

/*
 * Who is at the other end of FD, and what may it do?  Root, UID, and members of GID may ask, be it
 * their primary or a supplementary group at the time of their connect(2); root and UID may change.
 */
struct control_peer control_peer_of(int fd, uid_t uid, gid_t gid);

/* No place for whoever is at the other end of FD: say so, and close it. */
void control_client_refuse(int fd, struct control_spare *spare);
/* Take over the connected, non-blocking FD.  SPARE: NULL, or what outlives C. */
void control_client_begin(struct control_client *c, int fd, struct control_spare *spare,
			  const struct control_peer *peer, uint64_t now_ms);
void control_client_drop(struct control_client *c);
/*
 * Its time is up.  It may be this thread that is late: a request that is complete by now counts.
 * Else the client is told and dropped; one that takes its answer too slowly is dropped.
 */
void control_client_late(struct control_client *c);

/* What to poll(2) for. */
short control_client_events(const struct control_client *c);
/* Readable or writable: go on as far as that goes. */
void control_client_step(struct control_client *c);
/* ASKING: make the answer and begin to write it. */
void control_client_answer(struct control_client *c, control_answer_fn *fn, void *arg,
			   uint64_t now_ms);

#endif
