package rratelimiter.bench;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** Callers that ask for one permit after another. */
final class Load {

    private static final OperatingSystemMXBean SYSTEM =
            ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);

    private enum Phase { WARM, MEASURE, OVER }

    private static final class Caller {
        final Histogram latencies = new Histogram();
        long granted;
        long refused;
        long errors;
        long all;
        long seed;
        String firstError = "";
    }

    private final Limiters limiters;
    private final int count;
    private final double[] shares; // of all draws, up to and with each limiter; null where all are alike
    private final List<Caller> callers = new ArrayList<>();
    private volatile Phase phase = Phase.WARM;

    /** The exponent is that of Zipf's law, by which callers draw limiters; 0 for all alike. */
    Load(Limiters limiters, int callers, int count, double exponent) {
        this.limiters = limiters;
        this.count = count;
        this.shares = exponent == 0 ? null : zipf(count, exponent);
        for (int i = 0; i < callers; i++) {
            Caller caller = new Caller();
            caller.seed = 0x9E3779B97F4A7C15L * (i + 1);
            this.callers.add(caller);
        }
    }

    private static double[] zipf(int count, double exponent) {
        double[] shares = new double[count];
        double sum = 0;
        for (int i = 0; i < count; i++) {
            sum += Math.pow(i + 1, -exponent);
            shares[i] = sum;
        }
        for (int i = 0; i < count; i++) {
            shares[i] /= sum;
        }
        return shares;
    }

    /**
     * What came of it; All counts what was not measured, too, and CPU are the nanoseconds of this process.
     */
    Map<String, Object> run(boolean async, long warmMillis, long millis) throws Exception {
        CountDownLatch done = new CountDownLatch(async ? callers.size() : 0);
        List<Future<?>> threads = List.of();
        if (async) {
            callers.forEach(caller -> ask(caller, done));
        } else {
            threads = Pool.start(callers.size(), i -> ask(callers.get(i)));
        }
        Thread.sleep(warmMillis);
        phase = Phase.MEASURE;
        long start = System.nanoTime();
        long cpuBefore = SYSTEM.getProcessCpuTime();
        Thread.sleep(millis);
        phase = Phase.OVER;
        long nanos = System.nanoTime() - start;
        long cpu = SYSTEM.getProcessCpuTime() - cpuBefore;
        Pool.join(threads);
        if (!done.await(1, TimeUnit.MINUTES)) {
            throw new IllegalStateException("no answer for a minute");
        }

        Caller sum = new Caller();
        for (Caller caller : callers) {
            sum.latencies.add(caller.latencies);
            sum.granted += caller.granted;
            sum.refused += caller.refused;
            sum.errors += caller.errors;
            sum.all += caller.all;
            if (sum.firstError.isEmpty()) {
                sum.firstError = caller.firstError;
            }
        }
        return Map.of(
                "Granted", sum.granted, "Refused", sum.refused, "Errors", sum.errors, "Failed", sum.errors, "All", sum.all,
                "Elapsed", nanos, "CPU", cpu, "FirstError", sum.firstError, "Latencies", sum.latencies.text());
    }

    private int draw(Caller caller) {
        if (count == 1) {
            return 0;
        }
        long x = caller.seed;
        x ^= x << 13;
        x ^= x >>> 7;
        x ^= x << 17;
        caller.seed = x;
        if (shares != null) {
            int i = Arrays.binarySearch(shares, (x >>> 11) * 0x1p-53);
            return Math.min(i < 0 ? -i - 1 : i, count - 1);
        }
        return (int) ((x >>> 33) % count);
    }

    private void ask(Caller caller) {
        long start = System.nanoTime();
        do {
            Boolean granted = null;
            Throwable error = null;
            try {
                granted = limiters.take(draw(caller));
            } catch (Exception e) {
                error = e;
            }
            long end = System.nanoTime();
            count(caller, end - start, granted, error);
            start = end;
        } while (phase != Phase.OVER);
    }

    private void ask(Caller caller, CountDownLatch done) {
        if (phase == Phase.OVER) {
            done.countDown();
            return;
        }
        long start = System.nanoTime();
        limiters.takeAsync(draw(caller)).whenComplete((granted, error) -> {
            count(caller, System.nanoTime() - start, granted, error);
            ask(caller, done);
        });
    }

    private void count(Caller caller, long nanos, Boolean granted, Throwable error) {
        if (error == null) {
            caller.all++;
        }
        if (phase != Phase.MEASURE) {
            return;
        }
        if (error != null) {
            caller.errors++;
            caller.firstError = String.valueOf(error);
            return;
        }
        caller.latencies.add(nanos);
        if (granted) {
            caller.granted++;
        } else {
            caller.refused++;
        }
    }
}
