/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_RINETD_SAMPLE_H
#define CULVERT_TESTS_RINETD_SAMPLE_H

/* Debian's file with its examples in force, and more of each kind. */
static const char rinetd_sample[] =
	"#\n"
	"# this is the configuration file for rinetd, the internet redirection server\n"
	"allow 192.168.2.*\n"
	"deny 192.168.2.1?\n"
	"allow fe80:*\n"
	"deny 2001:618:*:e43f\n"
	"  # bindadress  bindport  connectaddress  connectport  options...\n"
	"0.0.0.0     8080      192.168.1.2     80 # behind a blank\n"
	"\t::1 \t8080        192.168.1.2     http/tcp   \r\n"
	"deny fe80:1:*\n"
	"0           81/TCP    fe80::1         80[keepalive=on]# behind options\n"
	"allow 192.168.2.20\n"
	"deny *.21\n"
	"::          82        127.0.0.1       83 [ keepalive = off , connect-timeout=3 ]\n"
	"allow ::ffff:192.168.2.*\n"
	"[::1]       84        [::1]           85\n"
	"unix:@in    127.0.0.1 86\n"
	"127.0.0.1   87        unix:/run/up\n"
	"buffersize 32768\n"
	"127.0.0.1   88        127.0.0.1       89"; /* and no newline */

#endif
