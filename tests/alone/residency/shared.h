/* Shared memory, files, and what needs a setting of the machine. Part of workload.c. */

static void shared_anon(void)
{
	char *p = map(48 * MIB, MAP_SHARED | MAP_ANONYMOUS, -1);

	touch(p, 40 * MIB);
	check(!madvise(p, 5 * MIB, MADV_REMOVE), "remove");
	check(!madvise(p + 8 * MIB, 5 * MIB, MADV_DONTNEED), "dontneed");
}

static void memfd(void)
{
	int fd = memfd_create("scenario x\n(deleted)", 0);
	char *p;

	check(fd >= 0 && !ftruncate(fd, 64 * MIB), "memfd");
	p = map(64 * MIB, MAP_SHARED, fd);
	touch(p, 32 * MIB);
	look(p + 40 * MIB, 4 * MIB);
	p = map(64 * MIB, MAP_PRIVATE, fd);
	touch(p, 3 * MIB);
	look(p + 8 * MIB, 9 * MIB);
}

/* Writes 6 MiB and reads 10 MiB of a new file by a mapping. Returns the file. */
static int mapped_file(const char *path, int flags)
{
	int fd = file(path, 24 * MIB);
	char *p = map(24 * MIB, flags, fd);

	touch(p, 6 * MIB);
	look(p + 8 * MIB, 10 * MIB);
	return fd;
}

static void tmpfs(const char *dir, int flags)
{
	char path[4200];

	snprintf(path, sizeof(path), "%s/tmpfs file%s", dir, flags == MAP_SHARED ? " (shared)" : "");
	mapped_file(path, flags);
}

static void sysv(void)
{
	int id = shmget(IPC_PRIVATE, 24 * MIB, IPC_CREAT | 0600);
	char *p;

	check(id >= 0, "shmget");
	p = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL);
	check(p != (char *)-1, "shmat");
	touch(p, 20 * MIB);
}

static void file_cow(const char *dir)
{
	char path[4200];
	char *p;
	int fd;

	snprintf(path, sizeof(path), "%s/a file\nof\\two lines (deleted)", dir);
	fd = mapped_file(path, MAP_PRIVATE);
	p = map(24 * MIB, MAP_SHARED, fd);
	touch(p, 2 * MIB);
	look(p + 8 * MIB, 4 * MIB);
	check(!unlink(path), "unlink");
}

static void hugetlb(void)
{
	char *p = map(8 * MIB, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
	int fd = memfd_create("huge", MFD_HUGETLB);

	touch(p, 6 * MIB);
	check(fd >= 0 && !ftruncate(fd, 8 * MIB), "memfd");
	p = map(8 * MIB, MAP_SHARED, fd);
	touch(p, 4 * MIB);
	p = map(8 * MIB, MAP_PRIVATE, fd);
	look(p, 4 * MIB);
	touch(p, 2 * MIB);
}

static void guard(void)
{
	char *p = anon(16 * MIB), *q = map(8 * MIB, MAP_SHARED | MAP_ANONYMOUS, -1);

	touch(p, 16 * MIB);
	check(!madvise(p + MIB, 2 * MIB, MADV_GUARD_INSTALL), "guard");
	touch(q, 8 * MIB);
	check(!madvise(q + MIB, 2 * MIB, MADV_GUARD_INSTALL), "guard");
	check(!mprotect(p + 8 * MIB, 2 * MIB, PROT_NONE), "none");
}

static void swapped(void)
{
	char *p = anon(32 * MIB), *s = map(16 * MIB, MAP_SHARED | MAP_ANONYMOUS, -1);

	touch(p, 32 * MIB);
	touch(s, 16 * MIB);
	madvise(p, 24 * MIB, MADV_PAGEOUT);
	madvise(s, 8 * MIB, MADV_PAGEOUT);
	look(p, 8 * MIB);
}

/* Files of an overlay whose upper layer is a tmpfs, in a mount namespace of its own. */
static void overlay(const char *dir)
{
	char path[4200], options[12800];

	check(!unshare(CLONE_NEWNS), "unshare");
	check(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private");
	check(!mount("none", dir, "tmpfs", 0, NULL), "tmpfs");
	for (const char *const *d = (const char *const[]){ "l", "u", "w", "m", NULL }; *d; d++) {
		snprintf(path, sizeof(path), "%s/%s", dir, *d);
		check(!mkdir(path, 0700), "mkdir");
	}
	snprintf(options, sizeof(options), "lowerdir=%s/l,upperdir=%s/u,workdir=%s/w", dir, dir, dir);
	snprintf(path, sizeof(path), "%s/m", dir);
	check(!mount("none", path, "overlay", 0, options), "overlay");
	tmpfs(path, MAP_SHARED);
	tmpfs(path, MAP_PRIVATE);
}
