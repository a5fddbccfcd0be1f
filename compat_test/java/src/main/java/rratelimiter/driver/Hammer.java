package rratelimiter.driver;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RRateLimiter;

/**
 * Threads that ask one limiter for permits, with a pause of so many ms after each call. The answer: how many calls
 * were Granted and Denied, how many Errors there were, and the FirstError.
 */
final class Hammer {

    private final RRateLimiter limiter;
    private final long permits;
    private final long timeout;
    private final long pause;

    private long granted;
    private long denied;
    private long errors;
    private String firstError = "";

    Hammer(RRateLimiter limiter, long permits, long timeout, long pause) {
        this.limiter = limiter;
        this.permits = permits;
        this.timeout = timeout;
        this.pause = pause;
    }

    Map<String, Object> run(int threads, long duration) throws InterruptedException {
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
        return Map.of("Granted", granted, "Denied", denied, "Errors", errors, "FirstError", firstError);
    }

    private void ask(long end) {
        do {
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
        } while (System.nanoTime() < end && !Thread.currentThread().isInterrupted());
    }

    private synchronized void count(boolean was) {
        if (was) {
            granted++;
        } else {
            denied++;
        }
    }

    private synchronized void count(Throwable e) {
        errors++;
        if (errors == 1) {
            firstError = e.getClass().getSimpleName() + ": " + e.getMessage();
        }
    }
}
