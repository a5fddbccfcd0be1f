package rratelimiter.driver;

import java.time.Duration;
import org.redisson.api.RateType;

/** The words of a request behind its id: the operation and its arguments. */
final class Arguments {

    final String operation;
    private final String[] words;

    Arguments(String[] words) {
        this.words = words;
        operation = words[1];
    }

    boolean has(int i) {
        return i + 2 < words.length;
    }

    String word(int i) {
        if (!has(i)) {
            throw new IllegalArgumentException(operation + " needs more than " + i + " arguments");
        }
        return words[i + 2];
    }

    String text(int i) {
        return Driver.decode(word(i));
    }

    long number(int i) {
        return Long.parseLong(word(i));
    }

    Duration duration(int i) {
        return Duration.ofMillis(number(i));
    }

    RateType type(int i) {
        return RateType.valueOf(word(i));
    }
}
