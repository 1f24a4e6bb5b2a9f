/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "base/bundle.h"

/*
 * The records (base/bundle.h) by which a daemon, OLD, hands itself over to the next one, NEW:
 *
 *   OLD  GRAFTS, if it does; SOCKET for each socket that it listens at; ORDER for each server that an
 *        operator has added or removed
 *   NEW  FORWARD for each forward that it has: it has come up
 *   OLD  SESSION for each session of TCP that is silent, while OLD's workers go on; then nothing
 *   NEW  nothing: it has made these sessions.  OLD's workers wait from now on
 *   OLD  a record for each of them that is not the same any more: `of` is its number
 *   OLD  SERVER for each server; SESSION for each session that NEW has not by now; UDP_SESSION; for
 *        each grafted session of TCP FROZEN if NEW has the same pinned maps, else GRAFT
 *   NEW  nothing: it has taken all
 *   OLD  nothing: it has closed its descriptors
 *   NEW  closes the connection: its packet programs carry the grafted sessions
 *
 * Until NEW has taken all, OLD goes on as if nothing had been if anything fails.  OLD then sends
 * REFUSED instead of its next bundle, before another daemon may ask: an end of the connection without
 * it means that OLD's process has died.  OLD hands itself over to one daemon at a time.  By systemd's
 * descriptor store OLD's first and last bundle travel alone.
 *
 * `of` of a record is the graft_tag() of its forward; of GRAFT and FROZEN, the number of OLD's folder
 * of pins.
 */
enum handed {
	HANDED_GRAFTS,
	HANDED_SOCKET,
	HANDED_FORWARD, /* the struct is the number of NEW's folder of pins; ~0: none; 0: no grafts */
	HANDED_SERVER,
	HANDED_SESSION,
	HANDED_UDP_SESSION,
	HANDED_FROZEN, /* sockets of a grafted session, of the same maps; the struct is its slot */
	HANDED_GRAFT,  /* a record of datapath/graft/standby_record.h */
	HANDED_ORDER, /* the struct is 1: a server is added; its forward, itself, its words follow */
	HANDED_REFUSED, /* alone in its bundle; the struct is why, a text */
};
