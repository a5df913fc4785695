/* Private memory. Part of workload.c. */

static void malloc_small(void)
{
	static char *kept[200000];

	for (int i = 0; i < 200000; i++) {
		kept[i] = malloc(16 + i % 400);
		memset(kept[i], 1, 16);
	}
	for (int i = 0; i < 200000; i += 3)
		free(kept[i]);
}

static void malloc_large(void)
{
	char *a = malloc(40 * MIB), *b = malloc(30 * MIB), *c = malloc(3 * MIB + 5);

	check(a && b && c, "malloc");
	touch(a, 40 * MIB);
	touch(b, 30 * MIB);
	touch(c, 3 * MIB);
	free(b);
}

static void mmap_munmap(void)
{
	char *p = anon(64 * MIB);

	touch(p, 64 * MIB);
	check(!munmap(p + 16 * MIB, 7 * MIB + PAGE), "munmap");
	check(mremap(p, 16 * MIB, 48 * MIB, MREMAP_MAYMOVE) != MAP_FAILED, "mremap");
}

static void dontneed(void)
{
	char *p = anon(64 * MIB);

	touch(p, 64 * MIB);
	for (size_t i = 0; i < 64 * MIB; i += 3 * PAGE)
		check(!madvise(p + i, PAGE, MADV_DONTNEED), "madvise");
	check(!madvise(p + 8 * MIB, 8 * MIB, MADV_FREE), "free");
}

static void brk_trim(void)
{
	char *start = sbrk(48 * MIB);

	check(start != (char *)-1, "sbrk");
	touch(start, 48 * MIB);
	check(sbrk(-20 * (long)MIB) != (void *)-1, "trim");
}

static void *thread(void *arg)
{
	char stack[512 * 1024];

	touch(stack, sizeof(stack));
	touch(malloc(MIB), MIB);
	pthread_barrier_wait(arg);
	pause();
	return NULL;
}

static void threads(void)
{
	static pthread_barrier_t barrier;
	pthread_t id;

	pthread_barrier_init(&barrier, NULL, 17);
	for (int i = 0; i < 16; i++)
		check(!pthread_create(&id, NULL, thread, &barrier), "thread");
	pthread_barrier_wait(&barrier);
}

/* Forks a child that does this and then waits. */
static void with_child(void (*act)(char *p, char *s), char *p, char *s)
{
	int ready[2];
	pid_t child;
	char byte;

	check(!pipe(ready), "pipe");
	child = fork();
	check(child >= 0, "fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		act(p, s);
		check(write(ready[1], "", 1) == 1, "write");
		for (;;)
			pause();
	}
	check(read(ready[0], &byte, 1) == 1, "read");
	printf("child %d\n", child);
}

static void writes_some(char *p, char *s)
{
	touch(p, 5 * MIB);
	touch(s, 3 * MIB);
	touch(anon(3 * MIB), 3 * MIB);
}

static void fork_child(void)
{
	char *p = anon(32 * MIB), *s = map(8 * MIB, MAP_SHARED | MAP_ANONYMOUS, -1);

	touch(p, 32 * MIB);
	touch(s, 8 * MIB);
	with_child(writes_some, p, s);
	touch(p + 20 * MIB, 4 * MIB);
}

static void drops_parts(char *p, char *s)
{
	(void)s;
	for (int i = 0; i < 4; i++)
		check(!madvise(p + i * 4 * MIB, MIB / 4, MADV_DONTNEED), "dontneed");
	touch(p + 7 * MIB, MIB / 2);
}

/* The parent's huge pages, of which the child has parts. */
static void huge_shared(void)
{
	char *p = anon(24 * MIB);

	check(!madvise(p, 24 * MIB, MADV_HUGEPAGE), "hugepage");
	touch(p, 20 * MIB);
	with_child(drops_parts, p, NULL);
}

static void mapped_twice(void)
{
	int fd = memfd_create("twice", 0);
	char *p, *q;

	check(fd >= 0 && !ftruncate(fd, 8 * MIB), "memfd");
	p = map(8 * MIB, MAP_SHARED, fd);
	q = map(8 * MIB, MAP_SHARED, fd);
	touch(p, 6 * MIB);
	look(q, 4 * MIB);
}

static void zero_read(void)
{
	char *p = anon(64 * MIB);

	look(p, 64 * MIB);
	for (size_t i = 0; i < 16 * MIB; i += 2 * PAGE)
		p[i] = 1;
	p = map(8 * MIB, MAP_PRIVATE, open("/dev/zero", O_RDWR));
	look(p, 8 * MIB);
	touch(p, 3 * MIB);
	p = map(8 * MIB, MAP_SHARED, open("/dev/zero", O_RDWR));
	touch(p, 2 * MIB);
}

static void thp(void)
{
	char *p = aligned(64 * MIB), *q;

	check(!madvise(p, 64 * MIB, MADV_HUGEPAGE), "hugepage");
	touch(p, 48 * MIB);
	q = aligned(16 * MIB);
	check(!madvise(q, 16 * MIB, MADV_HUGEPAGE), "hugepage");
	touch(q, 16 * MIB);
	/* Parts of huge pages go: the rest of each stays resident, mapped by small entries. */
	check(!munmap(q + MIB, 2 * MIB), "munmap");
	check(!madvise(q + 6 * MIB + 64 * PAGE, 100 * PAGE, MADV_DONTNEED), "dontneed");
	check(!mprotect(q + 9 * MIB, PAGE, PROT_READ), "mprotect");
}

static void huge_zero(void)
{
	char *p = aligned(32 * MIB);

	check(!madvise(p, 32 * MIB, MADV_HUGEPAGE), "hugepage");
	look(p, 32 * MIB);
	touch(p, 6 * MIB);
	check(!mprotect(p + 9 * MIB, PAGE, PROT_READ), "mprotect");
}

static void mlocked(void)
{
	char *p = anon(16 * MIB);

	check(!mlock(p, 12 * MIB), "mlock");
	map(8 * MIB, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1);
	check(!mlockall(MCL_FUTURE | MCL_ONFAULT), "mlockall");
	touch(anon(8 * MIB), 3 * MIB);
}

static void ksm(void)
{
	char *p = anon(16 * MIB);

	memset(p, 5, 12 * MIB);
	memset(p + 12 * MIB, 0, 4 * MIB);
	check(!madvise(p, 16 * MIB, MADV_MERGEABLE), "mergeable");
}

static void many_vmas(void)
{
	char *p = anon(10000 * 3 * PAGE);

	for (int i = 0; i < 10000; i++)
		check(!mprotect(p + i * 3 * PAGE, PAGE, PROT_READ), "mprotect");
	for (int i = 0; i < 10000; i++)
		p[i * 3 * PAGE + (i % 2 + 1) * PAGE] = 1;
}

static void alternating(void)
{
	char *p = anon(300 * MIB), *s = map(32 * MIB, MAP_SHARED | MAP_ANONYMOUS, -1);

	for (size_t i = 0; i < 300 * MIB; i += 2 * PAGE)
		p[i] = 1;
	look(p, 100 * MIB);
	for (size_t i = 0; i < 32 * MIB; i += 3 * PAGE)
		s[i] = 1;
}

static void sparse(void)
{
	char *p = mmap(NULL, 1024 * GIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	check(p != MAP_FAILED, "reserve");
	p = anon(16 * GIB);
	touch(p + 9 * GIB + 5 * PAGE, 400 * MIB);
	p[16 * GIB - PAGE] = 1;
	p = anon(5 * GIB);
	for (size_t i = 0; i < 5 * GIB; i += 300 * MIB)
		p[i] = 1;
}

static void reserve(void)
{
	char *p = anon(1024 * GIB);

	for (size_t i = 0; i < 1024 * GIB; i += 100 * GIB)
		p[i] = 1;
}

static void touched(void)
{
	touch(anon(GIB), GIB);
}
