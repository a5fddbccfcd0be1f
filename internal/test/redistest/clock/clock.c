// Preloaded into a server: its clocks stand at the microsecond that the first 8
// bytes of the file $REDISTEST_CLOCK hold. The monotonic one is among them, as
// Valkey reckons the time by it between two looks at the wall clock; as it
// stands still, Valkey finds that it can't count the processor's ticks instead.
// With $REDISTEST_CLOCK_AHEAD set they run, and only the wall clock is another: so
// many microseconds ahead of the machine's.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *now;
static int ahead;

__attribute__((constructor)) static void map_clock(void) {
	const char *path = getenv("REDISTEST_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *now, PROT_READ, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		abort();
	close(fd);
	ahead = getenv("REDISTEST_CLOCK_AHEAD") != NULL;
	now = page;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
	if (now == NULL || id == CLOCK_PROCESS_CPUTIME_ID || id == CLOCK_THREAD_CPUTIME_ID)
		return syscall(SYS_clock_gettime, id, ts);
	int64_t micros = *now;
	if (ahead) {
		int failed = syscall(SYS_clock_gettime, id, ts);
		if (failed || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
			return failed;
		micros += ts->tv_sec * 1000000 + ts->tv_nsec / 1000;
	}
	ts->tv_sec = micros / 1000000;
	ts->tv_nsec = micros % 1000000 * 1000;
	return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
	struct timespec ts;
	(void)tz;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (t != NULL)
		*t = ts.tv_sec;
	return ts.tv_sec;
}
