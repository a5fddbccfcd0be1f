package rratelimiter.bench;

import java.util.StringJoiner;

/** Counts of nanoseconds; its buckets are those of internal/histogram in Go. */
final class Histogram {

    private static final int SUB_BITS = 7;
    private static final int SUB = 1 << SUB_BITS;
    private static final int BUCKETS = (36 - SUB_BITS + 1) * SUB;

    private final int[] counts = new int[BUCKETS];

    void add(long nanos) {
        int i = (int) nanos;
        if (nanos >= SUB) {
            int shift = 63 - Long.numberOfLeadingZeros(nanos) - SUB_BITS;
            i = Math.min(shift * SUB + (int) (nanos >> shift), BUCKETS - 1);
        }
        counts[i]++;
    }

    void add(Histogram other) {
        for (int i = 0; i < BUCKETS; i++) {
            counts[i] += other.counts[i];
        }
    }

    /** BUCKET:COUNT,BUCKET:COUNT,... */
    String text() {
        StringJoiner text = new StringJoiner(",");
        for (int i = 0; i < BUCKETS; i++) {
            if (counts[i] > 0) {
                text.add(i + ":" + counts[i]);
            }
        }
        return text.toString();
    }
}
