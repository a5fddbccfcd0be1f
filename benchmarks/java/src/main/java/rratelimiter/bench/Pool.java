package rratelimiter.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;

/** Threads that are kept from one measurement to the next. */
final class Pool {

    interface Task {
        void run(int i) throws Exception;
    }

    private static final ExecutorService THREADS = Executors.newCachedThreadPool(r -> {
        Thread thread = new Thread(r);
        thread.setDaemon(true);
        return thread;
    });

    private Pool() {}

    /** Starts the task once in each of n threads. */
    static List<Future<?>> start(int n, Task task) {
        List<Future<?>> started = new ArrayList<>(n);
        for (int i = 0; i < n; i++) {
            int number = i;
            started.add(THREADS.submit(() -> {
                task.run(number);
                return null;
            }));
        }
        return started;
    }

    static void join(List<Future<?>> started) throws Exception {
        for (Future<?> f : started) {
            try {
                f.get();
            } catch (ExecutionException e) {
                throw e.getCause() instanceof Exception cause ? cause : e;
            }
        }
    }

    /** Runs the task for each number below n, by a few threads. */
    static void each(int n, Task task) throws Exception {
        AtomicInteger next = new AtomicInteger();
        join(start(Math.min(n, 64), t -> {
            for (int i = next.getAndIncrement(); i < n; i = next.getAndIncrement()) {
                task.run(i);
            }
        }));
    }
}
