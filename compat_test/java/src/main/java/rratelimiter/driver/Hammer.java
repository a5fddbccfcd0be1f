package rratelimiter.driver;

import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.redisson.api.RRateLimiter;

/**
 * Threads that ask one limiter for permits, with a pause of so many ms after each call. The answer:
 *
 * <pre>
 * GRANTED DENIED ERRORS FIRSTERROR TIME,TIME,...
 * </pre>
 *
 * TIME is when a grant came back, in nanoseconds since 1970, ascending.
 */
final class Hammer {

    private final RRateLimiter limiter;
    private final long permits;
    private final long timeout;
    private final long pause;

    private final List<Long> grants = new ArrayList<>();
    private long denied;
    private long errors;
    private String firstError = "";

    Hammer(RRateLimiter limiter, long permits, long timeout, long pause) {
        this.limiter = limiter;
        this.permits = permits;
        this.timeout = timeout;
        this.pause = pause;
    }

    String run(int threads, long duration) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(duration);
        List<Thread> started = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> ask(end));
            thread.start();
            started.add(thread);
        }
        try {
            for (Thread thread : started) {
                thread.join();
            }
        } catch (InterruptedException e) {
            started.forEach(Thread::interrupt);
            throw e;
        }
        String times = grants.stream().sorted().map(String::valueOf).collect(Collectors.joining(","));
        return grants.size() + " " + denied + " " + errors + " " + Driver.encode(firstError) + " " + times;
    }

    private void ask(long end) {
        while (System.nanoTime() < end && !Thread.currentThread().isInterrupted()) {
            try {
                count(limiter.tryAcquire(permits, timeout, TimeUnit.MILLISECONDS));
                if (pause > 0) {
                    Thread.sleep(pause);
                }
            } catch (InterruptedException e) {
                return;
            } catch (Throwable e) {
                count(e);
            }
        }
    }

    private synchronized void count(boolean granted) {
        if (!granted) {
            denied++;
            return;
        }
        Instant now = Instant.now();
        grants.add(TimeUnit.SECONDS.toNanos(now.getEpochSecond()) + now.getNano());
    }

    private synchronized void count(Throwable e) {
        errors++;
        if (errors == 1) {
            firstError = e.getClass().getSimpleName() + ": " + e.getMessage();
        }
    }
}
