/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who may ask.  The socket's file is opened to all here, so that it is the peer's credentials that
 * decide.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <grp.h>
#include <sys/wait.h>

#include "control_rig.h"
#include "daemon/control.h"
#include "seeded.h"

/* No accounts of this machine are needed: ids are numbers. */
#define ACCOUNT 61234
#define GROUP 61235
#define OTHER 61236
#define GROUPS_MANY 300
#define REQUEST "{\"command\":\"status\"}\n"
#define CHANGE "{\"command\":\"kill\",\"all\":true}\n"
#define REQUEST_MS 500

struct peer {
	const char *what;
	uid_t uid;
	gid_t gid;
	size_t n_groups;
	gid_t last_group; /* of N_GROUPS */
	bool may, may_change;
};

static int peer_setup(void **state)
{
	struct rig *rig;

	if (geteuid())
		return 0;
	if (dir_setup(state))
		return -1;
	rig = *state;
	if (control_open(rig->path, ACCOUNT, GROUP, &rig->control, rig->err, sizeof(rig->err)))
		return -1;
	return control_start(rig->control, answer, rig);
}

static int peer_teardown(void **state)
{
	return geteuid() ? 0 : rig_teardown(state);
}

static void need_root(void)
{
	if (geteuid()) {
		printf("skip: only root can be another user\n");
		skip();
	}
}

static void open_to_all(const struct rig *rig)
{
	assert_int_equal(chmod(rig->dir, 0755), 0);
	assert_int_equal(chmod(rig->path, 0666), 0);
}

/* In a child: nothing of cmocka. */
static void become(const struct peer *p)
{
	gid_t groups[GROUPS_MANY];

	for (size_t i = 0; i < p->n_groups; i++)
		groups[i] = OTHER + 1 + (gid_t)i;
	if (p->n_groups)
		groups[p->n_groups - 1] = p->last_group;
	if (setgroups(p->n_groups, groups) || setresgid(p->gid, p->gid, p->gid) ||
	    setresuid(p->uid, p->uid, p->uid))
		_exit(100);
}

static int dial_in_child(const char *path)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(un.sun_path, path);
	return fd >= 0 && !connect(fd, (struct sockaddr *)&un, sizeof(un)) ? fd : -1;
}

/* 1: was answered, 2: was refused with a reason. */
static int ask_as(const struct rig *rig, const struct peer *p, const char *request)
{
	char buf[512];
	size_t len = 0;
	ssize_t n;
	int fd;

	become(p);
	alarm(PATIENCE_MS / 1000);
	fd = dial_in_child(rig->path);
	if (fd < 0)
		return 101;
	say(fd, request, strlen(request));
	while (len < sizeof(buf) - 1 && (n = recv(fd, buf + len, sizeof(buf) - 1 - len, 0)) > 0)
		len += (size_t)n;
	buf[len] = '\0';
	if (strstr(buf, "two\\nlines"))
		return 1;
	return strstr(buf, "\"error\"") && strstr(buf, "permission denied") ? 2 : 102;
}

static int in_child(const struct rig *rig, const struct peer *p, const char *request)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(ask_as(rig, p, request));
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

static void test_peers(void **state)
{
	static const struct peer peers[] = {
		{ "root", 0, OTHER, 0, 0, true, true },
		{ "the account", ACCOUNT, OTHER, 0, 0, true, true },
		{ "primary group", OTHER, GROUP, 0, 0, true, false },
		{ "supplementary group", OTHER, OTHER, 1, GROUP, true, false },
		{ "the last of many groups", OTHER, OTHER, GROUPS_MANY, GROUP, true, false },
		{ "nobody special", OTHER, OTHER, 0, 0, false, false },
		{ "many other groups", OTHER, OTHER, GROUPS_MANY, OTHER, false, false },
		{ "root's group", OTHER, 0, 0, 0, false, false },
		{ "a group with the account's number", OTHER, OTHER, 1, ACCOUNT, false, false },
		{ "an account with the group's number", GROUP, OTHER, 0, 0, false, false },
	};

	need_root();
	open_to_all(*state);
	for (size_t i = 0; i < sizeof(peers) / sizeof(peers[0]); i++) {
		int got = in_child(*state, &peers[i], REQUEST);

		if (got != (peers[i].may ? 1 : 2))
			fail_msg("%s: %d", peers[i].what, got);
		got = in_child(*state, &peers[i], CHANGE);
		if (got != (peers[i].may_change ? 1 : 2))
			fail_msg("%s may change: %d", peers[i].what, got);
	}
}

/* The file alone keeps them out as well: nobody gets as far as the daemon. */
static void test_mode(void **state)
{
	static const struct peer stranger = { "", OTHER, OTHER, 0, 0, false, false };
	static const struct peer member = { "", OTHER, GROUP, 0, 0, true, false };
	struct rig *rig;
	struct stat st;

	need_root();
	rig = *state;
	assert_int_equal(chmod(rig->dir, 0755), 0);
	assert_int_equal(stat(rig->path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	assert_int_equal(st.st_uid, ACCOUNT);
	assert_int_equal(st.st_gid, GROUP);
	assert_int_equal(in_child(rig, &stranger, REQUEST), 101);
	assert_int_equal(in_child(rig, &member, REQUEST), 1);
}

#define CROWD 40

/* Strangers, silent and many, keep nobody waiting. */
static void test_crowd_of_strangers(void **state)
{
	static const struct peer stranger = { "", OTHER, OTHER, 0, 0, false, false };
	uint64_t before;
	int life[2], dialled[2];
	pid_t pid;
	char c;

	need_root();
	open_to_all(*state);
	assert_int_equal(pipe(life), 0);
	assert_int_equal(pipe(dialled), 0);
	pid = fork();
	if (pid == 0) {
		close(life[1]);
		become(&stranger);
		for (int i = 0; i < CROWD; i++)
			if (dial_in_child(((struct rig *)*state)->path) < 0)
				_exit(101);
		(void)!write(dialled[1], "x", 1);
		(void)!read(life[0], &c, 1);
		_exit(0);
	}
	assert_true(pid > 0);
	assert_int_equal(read(dialled[0], &c, 1), 1);
	before = clock_now_ms();
	expect_alive(*state);
	assert_true(clock_now_ms() - before < REQUEST_MS);
	close(life[1]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(life[0]);
	close(dialled[0]);
	close(dialled[1]);
}

#define ON_PEERS(f) cmocka_unit_test_setup_teardown(f, peer_setup, peer_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_PEERS(test_peers),
		ON_PEERS(test_mode),
		ON_PEERS(test_crowd_of_strangers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
