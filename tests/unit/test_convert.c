// SPDX-License-Identifier: BSD-2-Clause
/*
 * Files of HAProxy and nginx: what they become, and that culvert reads it without a complaint,
 * whatever the file is.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"
#include "config/convert.h"
#include "config_rig.h"

static const struct {
	int result; /* 1: something has no equal */
	const char *from, *to;
} files[] = {
	{ /* Patroni, as its documentation has it: HTTP checks at another port */
	  1,
	  "global\n"
	  "    maxconn 100\n"
	  "    log 127.0.0.1 local2\n"
	  "    user haproxy\n"
	  "    daemon\n"
	  "    stats socket /var/lib/haproxy/stats\n"
	  "defaults\n"
	  "    log global\n"
	  "    mode tcp\n"
	  "    retries 2\n"
	  "    timeout client 30m\n"
	  "    timeout connect 4s\n"
	  "    timeout server 30m\n"
	  "    timeout check 5s\n"
	  "\n"
	  "listen stats\n"
	  "    mode http\n"
	  "    bind *:7000\n"
	  "    stats enable\n"
	  "    stats uri /\n"
	  "\n"
	  "listen primary\n"
	  "    bind *:5000\n"
	  "    option httpchk OPTIONS /primary\n"
	  "    http-check expect status 200\n"
	  "    default-server inter 3s fall 3 rise 2 on-marked-down shutdown-sessions\n"
	  "    server pg1 10.0.0.1:5432 maxconn 100 check port 8008\n"
	  "    server pg2 10.0.0.2:5432 maxconn 100 check port 8008\n"
	  "listen replicas\n"
	  "    bind *:5001\n"
	  "    balance leastconn\n"
	  "    option httpchk\n"
	  "    http-check send meth GET uri /replica\n"
	  "    server pg1 pg1.example.org:5432 check port 8008\n"
	  "    server pg2 pg2.example.org:5432 check port 8008\n",
	  "; f, as `culvert convert` reads it: of HAProxy\n"
	  "\n"
	  "; f:3: log 127.0.0.1: culvert logs sessions as JSON: see session-log\n"
	  "; f:4: user haproxy: culvert has an account of its own: see user\n"
	  "; f:6: stats socket: culvert has a socket for commands, too: see control\n"
	  "[culvert]\n"
	  "max-sessions = 100\n"
	  "\n"
	  "; f:10: retries 2: culvert tries each server once\n"
	  "; f:16: stats: mode http, or disabled; culvert has metrics, and `culvert top`\n"
	  "[forward primary]\n"
	  "connect-timeout = 4\n"
	  "check-timeout = 5\n"
	  "listen = 0.0.0.0:5000\n"
	  "check-http = /primary\n"
	  "check-status = 200\n"
	  "check = 3\n"
	  "fall = 3\n"
	  "rise = 2\n"
	  "on-down = reset\n"
	  "upstream = 10.0.0.1:5432 max-sessions=100 check-port=8008, 10.0.0.2:5432 max-sessions=100 check-port=8008\n"
	  "queue = 1000000\n"
	  "queue-timeout = 4\n"
	  "idle-timeout = 1800\n"
	  "\n"
	  "[forward replicas]\n"
	  "connect-timeout = 4\n"
	  "check-timeout = 5\n"
	  "listen = 0.0.0.0:5001\n"
	  "balance = least-sessions\n"
	  "check-http = /replica\n"
	  "check = 2\n"
	  "upstream = pg1.example.org:5432 check-port=8008, pg2.example.org:5432 check-port=8008\n"
	  "idle-timeout = 1800\n"
	  "\n" },
	{ /* Galera: one node is used, two wait */
	  1,
	  "# Galera: one node writes\n"
	  "global\n"
	  "\tnbthread 4\n"
	  "\tmaxconn 4096\n"
	  "\thard-stop-after 30s\n"
	  "defaults\n"
	  "\tmode tcp\n"
	  "\toption tcplog\n"
	  "\ttimeout connect 3s\n"
	  "\ttimeout client 28801s\n"
	  "\ttimeout server 28801s\n"
	  "\ttimeout client-fin 30s\n"
	  "frontend mysql\n"
	  "\tbind 10.0.0.100:3306\n"
	  "\tbind unix@/run/mysql.sock\n"
	  "\tmaxconn 2000\n"
	  "\ttcp-request connection reject if { src 10.0.9.0/24 }\n"
	  "\ttcp-request connection accept if { src 10.0.0.0/16 }\n"
	  "\tdefault_backend galera\n"
	  "backend galera\n"
	  "\tbalance source\n"
	  "\toption httpchk\n"
	  "\tdefault-server check inter 2s rise 3 fall 2 port 9200 on-marked-up shutdown-backup-sessions\n"
	  "\tserver node1 10.0.0.1:3306 weight 10\n"
	  "\tserver node2 10.0.0.2:3306 backup\n"
	  "\tserver node3 10.0.0.3:3306 backup disabled\n"
	  "\tsource 0.0.0.0 usesrc clientip\n",
	  "; f, as `culvert convert` reads it: of HAProxy\n"
	  "\n"
	  "[culvert]\n"
	  "workers = 4\n"
	  "max-sessions = 4096\n"
	  "stop-timeout = 30\n"
	  "\n"
	  "; f:8: option tcplog: culvert logs sessions as JSON: see session-log\n"
	  "; f:26: server: 10.0.0.3:3306 is disabled: left out\n"
	  "[forward mysql]\n"
	  "listen = 10.0.0.100:3306\n"
	  "listen = unix:/run/mysql.sock\n"
	  "max-sessions = 2000\n"
	  "connect-timeout = 3\n"
	  "balance = source\n"
	  "check-http = /\n"
	  "check = 2\n"
	  "rise = 3\n"
	  "fall = 2\n"
	  "on-backup = reset\n"
	  "transparent = yes\n"
	  "deny = 10.0.9.0/24\n"
	  "allow = 10.0.0.0/16\n"
	  "allow = all\n"
	  "upstream = 10.0.0.1:3306 check-port=9200 weight=10, 10.0.0.2:3306 check-port=9200 backup\n"
	  "idle-timeout = 28801\n"
	  "fin-timeout = 30\n"
	  "\n" },
	{ /* names of TLS */
	  1,
	  "defaults\n"
	  "  mode tcp\n"
	  "  timeout connect 5s\n"
	  "  timeout client 1m\n"
	  "  timeout server 1m\n"
	  "frontend https\n"
	  "  bind :443,:::443 v4v6 accept-proxy\n"
	  "  tcp-request inspect-delay 5s\n"
	  "  tcp-request content accept if { req_ssl_hello_type 1 }\n"
	  "  tcp-request connection reject if !{ src 10.0.0.0/8 192.168.0.0/16 }\n"
	  "  acl is_c req.ssl_sni -i c.example.org\n"
	  "  acl is_c req.ssl_sni -m end -i .c.example.org\n"
	  "  use_backend a if { req.ssl_sni -i a.example.org www.example.org }\n"
	  "  use_backend b if is_c or { req_ssl_sni -i b.example.org }\n"
	  "  use_backend a if { req.ssl_alpn h2 }\n"
	  "  default_backend c\n"
	  "backend a\n"
	  "  balance source\n"
	  "  server a1 10.0.0.1:443 check send-proxy-v2\n"
	  "  server a2 10.0.0.2:443 check backup weight 200\n"
	  "backend b\n"
	  "  server b1 unix@/run/b.sock\n"
	  "backend c\n"
	  "  balance leastconn\n"
	  "  server c1 [2001:db8::1]:443 check inter 500 ssl verify none\n"
	  "backend d\n"
	  "  server d1 2001:db8::2:443\n"
	  "frontend web\n"
	  "  bind *:80\n"
	  "  mode http\n"
	  "  default_backend d\n",
	  "; f, as `culvert convert` reads it: of HAProxy\n"
	  "\n"
	  "; f:25: server ssl: culvert does not encrypt: clients must speak TLS\n"
	  "[forward https]\n"
	  "listen = 0.0.0.0:443\n"
	  "listen = :443\n"
	  "hello-timeout = 5\n"
	  "connect-timeout = 5\n"
	  "balance = least-sessions\n"
	  "check = 0.500\n"
	  "allow = 10.0.0.0/8 192.168.0.0/16\n"
	  "deny = all\n"
	  "upstream = [2001:db8::1]:443\n"
	  "idle-timeout = 60\n"
	  "proxy-protocol = receive\n"
	  "\n"
	  "; f:20: send-proxy: servers differ: it holds for all\n"
	  "; [sni https a.example.org www.example.org]\n"
	  "; connect-timeout = 5\n"
	  "; balance = source\n"
	  "; check = 2\n"
	  "; f:13: upstream = 10.0.0.1:443, 10.0.0.2:443 backup weight=200: upstream: \"10.0.0.1:443, 10.0.0.2:443 backup weight=200\": weight=200: expected a weight from 1 to 100\n"
	  "; proxy-protocol = send-v2\n"
	  "\n"
	  "[sni https c.example.org *.c.example.org b.example.org]\n"
	  "connect-timeout = 5\n"
	  "upstream = unix:/run/b.sock\n"
	  "balance = round-robin\n"
	  "check = 0\n"
	  "\n"
	  "; f:15: use_backend a: culvert chooses by req.ssl_sni alone: see [sni]\n"
	  "[sni https not-tls]\n"
	  "upstream = [2001:db8::1]:443\n"
	  "\n"
	  "; f:28: web: mode http, or disabled; culvert has metrics, and `culvert top`\n" },
	{ /* Redis: checks that talk */
	  1,
	  "defaults\n"
	  "    mode tcp\n"
	  "    timeout connect 2s\n"
	  "    timeout client  1h\n"
	  "    timeout server  1h\n"
	  "    timeout check   500ms\n"
	  "listen redis\n"
	  "    bind 127.0.0.1:6379,[::1]:6379\n"
	  "    option tcp-check\n"
	  "    tcp-check connect\n"
	  "    tcp-check send \"AUTH p;w\\r\\n\"\n"
	  "    tcp-check send PING\\r\\n\n"
	  "    tcp-check expect string +PONG\n"
	  "    tcp-check send info\\ replication\\r\\n\n"
	  "    tcp-check expect string role:master\n"
	  "    tcp-check expect rstring ^x\n"
	  "    server r1 redis1:6379 check inter 1s send-proxy\n"
	  "    server r2 redis2:6379 check inter 1s send-proxy\n"
	  "listen plain\n"
	  "    bind *:6380\n"
	  "    option redis-check\n"
	  "    server-template r 3 redis.internal:6379 check resolvers dns init-addr none\n"
	  "resolvers dns\n"
	  "    nameserver a 10.0.0.1:53\n",
	  "; f, as `culvert convert` reads it: of HAProxy\n"
	  "\n"
	  "; f:12: tcp-check send: culvert sends all texts at once\n"
	  "; f:14: tcp-check send: culvert sends all texts at once\n"
	  "; f:15: tcp-check expect: culvert looks for one text, the longest\n"
	  "; f:16: tcp-check expect: see check-status and check-expect\n"
	  "[forward redis]\n"
	  "connect-timeout = 2\n"
	  "check-timeout = 0.500\n"
	  "listen = 127.0.0.1:6379\n"
	  "listen = [::1]:6379\n"
	  "check-send = AUTH p\\x3bw\\r\\nPING\\r\\ninfo replication\\r\\n\n"
	  "check-expect = role:master\n"
	  "check = 1\n"
	  "upstream = redis1:6379, redis2:6379\n"
	  "idle-timeout = 3600\n"
	  "proxy-protocol = send-v1\n"
	  "\n"
	  "; f:22: server-template r: no equal in culvert\n"
	  "; f:19: [forward plain]: [forward plain]: upstream is missing\n"
	  "; connect-timeout = 2\n"
	  "; listen = 0.0.0.0:6380\n"
	  "; idle-timeout = 3600\n"
	  "\n"
	  "; f:23: resolvers dns: no forward above uses it\n" },
	{ /* TCP and UDP */
	  0,
	  "stream {\n"
	  "    upstream dns {\n"
	  "        zone dns 64k;\n"
	  "        least_conn;\n"
	  "        server 10.0.0.1:53 weight=2;\n"
	  "        server 10.0.0.2:53 max_fails=3 fail_timeout=30s;\n"
	  "    }\n"
	  "    server {\n"
	  "        listen 53;\n"
	  "        listen 53 udp reuseport;\n"
	  "        proxy_pass dns;\n"
	  "        proxy_responses 1;\n"
	  "        proxy_timeout 20s;\n"
	  "        allow 10.0.0.0/8;\n"
	  "        deny all;\n"
	  "    }\n"
	  "}\n",
	  "; f, as `culvert convert` reads it: of nginx\n"
	  "\n"
	  "; f:6: max_fails, fail_timeout: each failure sets a server aside, for 1 s to a minute\n"
	  "[forward dns]\n"
	  "listen = 0.0.0.0:53\n"
	  "idle-timeout = 20\n"
	  "allow = 10.0.0.0/8\n"
	  "deny = all\n"
	  "balance = least-sessions\n"
	  "connect-timeout = 60\n"
	  "upstream = 10.0.0.1:53 weight=2, 10.0.0.2:53\n"
	  "\n"
	  "[forward dns-udp]\n"
	  "listen = 0.0.0.0:53/udp\n"
	  "responses = 1\n"
	  "idle-timeout = 20\n"
	  "allow = 10.0.0.0/8\n"
	  "deny = all\n"
	  "balance = least-sessions\n"
	  "upstream = 10.0.0.1:53 weight=2, 10.0.0.2:53\n"
	  "\n" },
	{ /* a map of names of TLS */
	  1,
	  "user nginx;\n"
	  "worker_processes 2;\n"
	  "events { worker_connections 1024; }\n"
	  "http { server { listen 80; location / { return 200 \"a;b}\"; } } }\n"
	  "stream {\n"
	  "  log_format basic '$remote_addr [$time_local]';\n"
	  "  map $ssl_preread_server_name $be {\n"
	  "    hostnames;\n"
	  "    a.example.org a; # one\n"
	  "    .b.example.org b;\n"
	  "    www.example.org a;\n"
	  "    ~^x 192.0.2.4:5;\n"
	  "    default dflt;\n"
	  "  }\n"
	  "  upstream a { server 10.1.0.1:443; }\n"
	  "  upstream b { hash $remote_addr consistent; server 10.1.0.2:443 max_conns=7; server 10.1.0.3:443 backup; }\n"
	  "  upstream dflt { server unix:/run/x.sock; server unix:/run/y.sock down; }\n"
	  "  server { listen 443; listen [::]:443; ssl_preread on; proxy_pass $be; proxy_protocol on; }\n"
	  "  server {\n"
	  "    listen 127.0.0.1:3306 proxy_protocol so_keepalive=on;\n"
	  "    proxy_connect_timeout 1m30s; proxy_timeout 1h;\n"
	  "    proxy_pass \"db.example.org:3306\";\n"
	  "    deny 10.0.0.7;\n"
	  "    allow 10.0.0.0/8;\n"
	  "    proxy_bind $remote_addr transparent;\n"
	  "    proxy_upload_rate 1m;\n"
	  "  }\n"
	  "  server { listen 80; return 200; }\n"
	  "}\n",
	  "; f, as `culvert convert` reads it: of nginx\n"
	  "\n"
	  "; f:4: http : not converted: culvert forwards TCP and UDP\n"
	  "[culvert]\n"
	  "workers = 2\n"
	  "\n"
	  "; f:6: log_format basic: culvert logs sessions as JSON: see session-log\n"
	  "; f:17: server unix:/run/y.sock: down: left out\n"
	  "[forward be]\n"
	  "listen = 0.0.0.0:443\n"
	  "listen = [::]:443\n"
	  "idle-timeout = 600\n"
	  "connect-timeout = 60\n"
	  "upstream = unix:/run/x.sock\n"
	  "proxy-protocol = send-v1\n"
	  "\n"
	  "[sni be a.example.org www.example.org]\n"
	  "upstream = 10.1.0.1:443\n"
	  "\n"
	  "[sni be b.example.org *.b.example.org]\n"
	  "balance = source\n"
	  "upstream = 10.1.0.2:443 max-sessions=7, 10.1.0.3:443 backup\n"
	  "queue = 0\n"
	  "\n"
	  "; f:12: ~^x 192.0.2.4:5: [sni] has names, and *.names (if `hostnames`) alone\n"
	  "[sni be not-tls]\n"
	  "upstream = unix:/run/x.sock\n"
	  "\n"
	  "; f:26: proxy_upload_rate 1m: a limit of one connection has no equal: see bandwidth-per-client\n"
	  "[forward db.example.org:3306]\n"
	  "listen = 127.0.0.1:3306\n"
	  "connect-timeout = 90\n"
	  "idle-timeout = 3600\n"
	  "deny = 10.0.0.7\n"
	  "allow = 10.0.0.0/8\n"
	  "transparent = yes\n"
	  "allow = all\n"
	  "upstream = db.example.org:3306\n"
	  "proxy-protocol = receive\n"
	  "\n"
	  "; f:28: return 200: no equal in culvert\n"
	  "; f:28: [forward forward]: [forward forward]: upstream is missing\n"
	  "; listen = 0.0.0.0:80\n"
	  "; idle-timeout = 600\n"
	  "; connect-timeout = 60\n"
	  "\n" },
};

#define N_FILES (sizeof(files) / sizeof(files[0]))

/* The N bytes of TEXT become *RET, which the caller frees.  What is said of them is in rig_err. */
static int convert(const char *text, size_t n, char **ret)
{
	struct capture capture;
	char *copy = strndup(text, n);
	size_t len;
	FILE *to = open_memstream(ret, &len);
	int r;

	if (!copy || !to)
		abort();
	capture_begin(&capture, STDERR_FILENO);
	r = convert_text(to, "f", copy);
	capture_end(&capture, rig_err, sizeof(rig_err));
	fclose(to);
	free(copy);
	return r;
}

TEST(test_files)
{
	for (size_t i = 0; i < N_FILES; i++) {
		char *to;

		assert_true(convert_is(files[i].from));
		assert_int_equal(convert(files[i].from, strlen(files[i].from), &to),
				 files[i].result);
		assert_string_equal(rig_err, "");
		assert_string_equal(to, files[i].to);
		rig_good(to, NULL);
		free(to);
	}
}

/* A line, and a line of its result. */
static const struct {
	int result;
	const char *from, *to;
} lines[] = {
#define T                                                                                          \
	"backend b\n server s s:1\nlisten a\n bind 192.0.2.1:80\n server s 10.0.0.1:81\n "         \
	"use_backend b if { req.ssl_sni x.test }\n "
#define ADMITS(line) "; f:" #line ": tcp-request con"
#define R "tcp-request connection "
#define C "tcp-request content "
#define H "listen a\n bind 192.0.2.1:80\n server s 10.0.0.1:81\n "
	{ 0, H "timeout tunnel 1500", "\nidle-timeout = 1.500\n" },
	{ 0, H "timeout client 2h\n timeout tunnel 5ms", "\nidle-timeout = 0.005\n" },
	{ 0, H "timeout tunnel 1s500001us", "\nidle-timeout = 1.501\n" },
	{ 0, H "timeout queue 2s", "\nqueue-timeout = 2\n" },
	{ 0, H "server t t:81 maxconn 9 backup", ", t:81 max-sessions=9 backup\n" },
	{ 0, H "default-server maxconn 5\n server t t:81 maxconn 0", ", t:81\n" },
	{ 1, H "option httpchk\n http-check send meth POST uri /x\n server t t:81 check",
	  "f:5: http-check send: culvert sends GET" },
	{ 1, H "option httpchk\n http-check send hdr Host a.test hdr X y\n server t t:81 check",
	  "\ncheck-send = Host: a.test\\r\\nX: y\\r\\n\n" },
	{ 1, H "option httpchk\n http-check send hdr X %[date]\n server t t:81 check",
	  "f:5: http-check send: culvert sends GET" },
	{ 1, H "server t t:81 check agent-check agent-port 7", "\ncheck-agent = 7\n" },
	{ 0, H "use_backend t if !{ req_ssl_hello_type 1 }\nbackend t\n server u u:1",
	  "[sni a not-tls]\nupstream = u:1\n" },
	{ 1, H "use_backend t if { payload(0,7) -m bin 5353 }\nbackend t\n server u u:1",
	  "[sni a not-tls]\n" },
	{ 1, H "tcp-request content accept if { req_ssl_hello_type 1 }\n tcp-request content reject",
	  "f:1: tcp-request content: not converted, so culvert admits" },
	{ 0, T "tcp-request content accept if { req_ssl_hello_type 1 }\n tcp-request content reject",
	  "[sni a x.test]\nupstream = s:1\n\n" },
	{ 0, T "tcp-request content reject unless { req.ssl_hello_type 1 }",
	  "[sni a x.test]\nupstream = s:1\n\n" },
	{ 0, T "tcp-request content accept if { req_ssl_hello_type 1 }",
	  "[sni a x.test]\nupstream = s:1\n\n[sni a not-tls]\nupstream = 10.0.0.1:81\n" },
	{ 1, T C "accept if { src 10.0.0.1 }\n " C "reject if !{ req_ssl_hello_type 1 }",
	  ADMITS(8) },
	{ 1, H "server t t:81 backup\n server u u:81 backup", "; f:1: server backup: HAProxy uses" },
	{ 0, H "server t t:81 backup\n server u u:81 backup\n option allbackups",
	  " backup, u:81 b" },
	{ 0, H "bind ipv4@*:82,ipv6@:::83", "\nlisten = 0.0.0.0:82\nlisten = :83\n" },
	{ 0, H "bind :::84 v6only", "\nlisten = [::]:84\n" },
	{ 0, H "bind :85\n bind :::85", "\nlisten = 0.0.0.0:85\nlisten = :85\n" },
	{ 0, H "bind 192.0.2.1:8000-8010", "\nlisten = 192.0.2.1:8000-8010\n" },
	{ 0, "listen a\n bind :7000-7010\n server x 10.0.1.1 weight 3\n server y h: backup",
	  "\nlisten = 0.0.0.0:7000-7010\nupstream = 10.0.1.1:7000-7010 weight=3, h:7000-7010 backup\n" },
	{ 0, "listen a\n server x [2001:db8::1]\n server y ipv4@h\n bind :70,:::70",
	  "\nlisten = 0.0.0.0:70\nlisten = :70\nupstream = [2001:db8::1]:70, h:70\n" },
	{ 0, H "use_backend t if { req.ssl_sni x.test }\nbackend t\n server u u", "= u:80\n" },
	{ -EINVAL, "listen a\n bind :70\n bind :71\n server x 127.0.1.1",
	  "; f:1: upstream = 127.0.1.1:: upstream: " },
	{ -EINVAL, "listen a\n bind /run/x\n server x 127.0.1.1", "upstream = 127.0.1.1:: " },
	{ 1, H "server t t:81 weight 0",
	  "; f:4: server: t:81: weight 0: add it and drain it by culvert upstream\n" },
	{ 1, H "server t t:81 weight 0 disabled", "; f:4: server: t:81 is disabled: left out\n" },
	{ 1, H "bind :82 accept-proxy", "; f:4: accept-proxy: it holds for all addresses" },
	{ 0, H "source 10.0.0.9", "\nsource = 10.0.0.9\n" },
	{ -EINVAL, H "server t abns@x",
	  "; f:1: upstream = 10.0.0.1:81, unix:@x: upstream: " }, /* unix sockets and others */
	{ 0, H "rate-limit sessions 30", "\naccept-rate = 30\n" },
	{ 0, H "option srvtcpka\n stats enable\n http-request deny", "[forward a]\n" },
	{ 0, "listen a\r\n\tbind :80 # x\r\n\tserver s /run/a.sock\r\n", "= unix:/run/a.sock\n" },
	{ 0, "listen 'a b'\n bind :80\n server s \"h\":81", "[forward a_b]\n" },
	{ 0, H R "reject if { src 10.1.2.3/12 2001:db8:1::1/47 fe80::/10 10.0.0.1 }",
	  "\ndeny = 10.0.0.0/12 2001:db8::/47 fe80::/10 10.0.0.1\nupstream" },
	{ -EINVAL, H R "reject if { src h }", "; f:4: deny = h: " },
	{ 0, H R "reject if { src 10.1.0.0/16 }", "\ndeny = 10.1.0.0/16\nupstream" },
	{ 0,
	  H "acl x src 10.1.0.0/16 ::1\n acl x src 10.2.0.1\n acl y src 10.3.0.1\n " R
	    "reject if x || y",
	  "\ndeny = 10.1.0.0/16 ::1 10.2.0.1 10.3.0.1\nupstream" },
	{ 0, H R "reject unless { src 10.0.0.0/8 }\n " R "reject if { src 10.0.0.1 }",
	  "\ndeny = 10.0.0.1\nallow = 10.0.0.0/8\ndeny = all\nupstream" },
	{ 0, H R "accept if { src 10.0.0.1 }\n " R "reject\n " R "reject if { nothing }",
	  "\nallow = 10.0.0.1\ndeny = all\nupstream" },
	{ 0, H R "accept if ! { src 10.0.0.1 }\n " R "accept if { src 10.0.0.2 }\n " R "reject",
	  "\nallow = 10.0.0.2\ndeny = 10.0.0.1\nallow = all\nupstream" },
	{ 1, H R "accept if !{ src 10.0.0.0/8 }\n " R "reject if { src 10.0.0.2 }", ADMITS(5) },
	{ 1, H R "reject if !{ src 10.0.0.0/8 }\n " R "reject if !{ src 10.0.0.2 }", ADMITS(5) },
	{ 1, H R "reject if { sc0_conn_rate gt 10 }", ADMITS(4) },
	{ 1, H R "reject if { src 10.0.0.1 } { dst_port 80 }", ADMITS(4) },
	{ 1, H R "reject if { src -f /x }", ADMITS(4) },
	{ 1, H R "reject if unknown", ADMITS(4) },
	{ 1, H R "accept if { src -f /x }\n " R "reject", ADMITS(5) },
	{ 0, H R "accept if { src -f /x }", ":80\nupstream = 10.0.0.1:81\n\n" },
	{ 1, H R "track-sc0 src", "f:4: tcp-request connection: no equal" },
	{ 1, H "tcp-request session reject if { src 10.0.0.1 }", "admits clients that" },
	{ 0, H C "reject if { src 10.0.0.1 }", "\ndeny = 10.0.0.1\nupstream" },
	{ 0, H C "accept if { src 10.0.0.1 }\n " R "reject if { src 10.0.0.2 }\n " C "reject",
	  "\ndeny = 10.0.0.2\nallow = 10.0.0.1\ndeny = all\nupstream" },
	{ 0, H C "reject if { src 10.0.0.1 }\n " R "accept if { src 10.0.0.0/8 }\n " R "reject",
	  "\ndeny = 10.0.0.1\nallow = 10.0.0.0/8\ndeny = all\nupstream" },
	{ 1, H C "reject if !{ src 10.0.0.0/8 }\n " R "reject if !{ src 10.1.0.0/16 }",
	  ": tcp-request content: not converted, so culvert admits" },
	{ 1, H C "reject if { src 10.0.0.1 }\n bind :82 accept-proxy",
	  "\ndeny-client = 10.0.0.1\nlisten = 0.0.0.0:82\n" },
	{ 1,
	  H "\nfrontend f\n bind :81\n default_backend b\nbackend b\n server s s:1\n " C
	    "reject if { src 10.0.0.1 }",
	  ADMITS(10) },
	{ 1, H "bind :443 ssl crt /x.pem alpn h2", "f:4: bind ssl: culvert does not decrypt" },
	{ 1, H "balance uri", "f:4: balance uri: culvert has" },
	{ 1, H "frobnicate 3", "; f:4: frobnicate 3: no equal in culvert\n" },
	{ 1, H "no option httpchk", "; f:4: no option: no equal in culvert\n" },
	{ 0, H "no option httplog", "[forward a]\n" },
	{ 1, H "maxconn 0", "; f:4: max-sessions = 0: max-sessions: \"0\": expected a whole" },
	{ 1, H "option mysql-check user x", "f:4: option mysql-check: see check-send" },
	{ 1, H "server t 10.0.0.2:81 check inter 1s fall 2\n server u u:1 check fall 3",
	  "f:5: fall: servers differ" },
	{ 1, H "server t t:81 check", "f:4: check: servers differ" },
	{ 1, H "server t t:81 send-proxy", "f:4: send-proxy: servers differ" },
	{ 0,
	  "listen a\n bind :80\n default-server check send-proxy\n server s s:1\n "
	  "server t t:1 check\n server u u:1 send-proxy",
	  "\nproxy-protocol = send-v1\n" },
	{ 1, H "default-server check\n http-check expect ! string x\n server t t:25", "see check-" },
	{ 1, H "\nlisten b\n bind 192.0.2.1:80\n server s s:1", "; f:6: listen = 192.0.2.1:80: " },
	{ 1, H "\nlisten b\n mode http\n bind :81", "f:5: b: mode http, or" },
	{ 1, H "\npeers p\n peer x 1.2.3.4:5", "f:5: peers p: no forward" },
	{ 1, H "\nbackend b\n server s s:1", "f:5: backend b: no forward above uses it" },
	{ 0, H "\nfrontend f\n bind :81\n default_backend a", "[forward f]\n" },
#define N "stream { server { listen 192.0.2.1:80; proxy_pass 10.0.0.1:81; "
	{ 0, N "allow 10.1.2.3/9; deny all; }}", "\nallow = 10.0.0.0/9\n" },
	{ 1,
	  "map $ssl_preread_server_name $a { *.x.test b:1; default c:1; } "
	  "server { listen 80; proxy_pass $a; }",
	  "; f:1: *.x.test b:1: [sni] has names" },
	{ 0, N "proxy_timeout 1m30s; }}", "\nidle-timeout = 90\n" },
	{ 1, N "proxy_timeout 1d1M; }}", "; f:1: idle-timeout = 2678400: " },
	{ 0, N "proxy_timeout 20ms; }}", "\nidle-timeout = 0.020\n" },
	{ 0, N "listen [::]:82 ipv6only=off; }}", "\nlisten = :82\n" },
	{ 0, N "listen *:83; }}", "\nlisten = 0.0.0.0:83\n" },
	{ 1, N "listen 83 proxy_protocol; }}", "; f:1: proxy_protocol: it holds for all addresses" },
	{ 1, N "tcp_nodelay off; }}", "f:1: tcp_nodelay off: no equal" },
	{ 0, N "proxy_bind 10.0.0.9:7; }}", "\nsource = 10.0.0.9\n" },
	{ 0, N "} allow 10.0.0.1; deny all; }", "\nallow = 10.0.0.1\ndeny = all\n" },
	{ 0, N "deny 10.0.0.2; } deny 10.0.0.1; }", "\ndeny = 10.0.0.2\n" },
#define P "stream { set_real_ip_from 10.0.1.9/24; set_real_ip_from ::1; server { listen 80 "
	{ 0, P "proxy_protocol; proxy_pass h:1; allow 10.0.0.1; deny 10.0.0.2; }}",
	  "\nallow-client = 10.0.0.1\ndeny-client = 10.0.0.2\nallow-client = all\n"
	  "allow = 10.0.1.0/24 ::1\n" },
	{ 0, P "proxy_protocol; proxy_pass h:1; set_real_ip_from 10.0.2.1; deny 10.0.0.2; }}",
	  "\ndeny-client = 10.0.0.2\nallow-client = all\nallow = 10.0.2.1\n" },
	{ 0, P "; proxy_pass h:1; deny 10.0.0.2; }}", "\ndeny = 10.0.0.2\nallow = all\n" },
	{ 0, P "proxy_protocol; proxy_pass h:1; }}", "= 0.0.0.0:80\nidle-timeout = 600\n" },
#undef P
	{ -EINVAL, "# x\r\nstream\r\n{ server { listen 1; proxy_pass 'unix:/a b'; listen 2; } }",
	  "unix:/a_b" },
	{ 0, "upstream u { random; server s:1; } server { listen 80; proxy_pass u; }",
	  "[forward u]\n" },
	{ 0, "stream { server { listen 53 udp; proxy_pass a:53; proxy_responses 0; }}",
	  "\nreplies = no\n" },
	{ 1, N "ssl_certificate /x; }}", "f:1: ssl_certificate /x: no equal in culvert\n" },
	{ 1, N "listen 443 ssl; }}", "f:1: listen ssl: culvert does not decrypt" },
	{ 1, N "} include /x/*.conf; }", "f:1: include /x/*.conf: convert that file, too\n" },
	{ 1, N "} server { listen 82; proxy_pass $x; } }", "[forward x]: upstream is missing" },
	{ 1, N "} server { listen 82; listen 82 udp; proxy_pass h:1; proxy_protocol on; } }",
	  "; f:1: proxy-protocol = send-v1: " },
#undef H
#undef T
#undef R
#undef C
#undef N
};

TEST(test_lines)
{
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		char *to;
		int r = convert(lines[i].from, strlen(lines[i].from), &to);

		if (r != lines[i].result || !strstr(to, lines[i].to))
			fail_msg("%s\n%d: %s%s\ninstead of %s", lines[i].from, r, rig_err, to,
				 lines[i].to);
		if (r >= 0)
			rig_good(to, NULL);
		free(to);
	}
}

TEST(test_mistakes)
{
	static const char *const rows[][2] = {
		{ "global\n maxconn 3\n", "f: nothing to convert" },
		{ "listen a\n mode http\n bind :80\n", "f: nothing to convert" },
		{ "listen a\n bind \":80\n", "f: line 2: a quote has no end" },
		{ "stream { server {\n listen 80; }", "f: line 2: a \"}\" is missing" },
		{ "stream { }\n }", "f: line 2: unexpected \"}\"" },
		{ "stream { listen }", "f: line 1: unexpected \"}\"" },
		{ "stream { } \n\nlisten", "f: line 3: a \";\" is missing" },
		{ "http { server { listen 80; } }", "f: nothing to convert" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *to;

		assert_true(convert(rows[i][0], strlen(rows[i][0]), &to) < 0);
		if (!strstr(rig_err, rows[i][1]))
			fail_msg("%s\n%s\ninstead of %s", rows[i][0], rig_err, rows[i][1]);
		free(to);
	}
}

/* A file that ends anywhere, or has a byte of another meaning anywhere. */
TEST(test_damaged)
{
	static const char bytes[] = "\"'\\{};#!$\n\1\xff";

	for (size_t i = 0; i < N_FILES; i++) {
		size_t n = strlen(files[i].from);
		char *text = strdup(files[i].from), *to;

		for (size_t at = 1; at < n; at++) {
			char was = text[at];
			bool whole = at % 2;

			text[at] = bytes[at % (sizeof(bytes) - 1)];
			if (convert(text, whole ? n : at, &to) >= 0)
				rig_good(to, NULL);
			free(to);
			text[at] = was;
		}
		free(text);
	}
}

TEST(test_long_words)
{
	static const char *const rows[] = {
		"listen %s\n bind :80\n server s s:1\n",
		"listen a\n bind %s:80\n server s s:1\n",
		"listen a\n bind :80\n server s %s check\n %s\n",
		"stream { server { listen %s; proxy_pass %s; %s; }}",
		"stream { map $ssl_preread_server_name $a { %s b; } server { proxy_pass $a; %s; }}",
	};
	char *word = malloc(100001), *text = malloc(400000), *to;

	if (!word || !text)
		abort();
	memset(word, 'x', 100000);
	word[100000] = '\0';
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *at = text;

		for (const char *c = rows[i]; *c; c++)
			if (*c == '%')
				at = stpcpy(at, word), c++;
			else
				*at++ = *c;
		*at = '\0';
		if (convert(text, strlen(text), &to) >= 0)
			rig_good(to, NULL);
		free(to);
	}
	free(word);
	free(text);
}

TEST(test_others)
{
	static const char *const others[] = {
		"",
		"# comment\n",
		"[forward a]\nlisten = :80\n",
		"; nginx;\n[culvert]\n",
		"0.0.0.0 80 10.0.0.1 80\n",
		"allow 10.*\n0.0.0.0 80 10.0.0.1 80 [timeout=3]\n",
		"logfile /var/log/x\n",
		"engine = auto\n",
		"globally 1\n",
	};

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (convert_is(others[i]))
			fail_msg("%s", others[i]);
	assert_true(convert_is("\n# x\n  global # y\n"));
	assert_true(convert_is("\xef\xbb\xbfuser nginx; # x\n"));
}

UNIT_MAIN(rig_open, rig_close)
