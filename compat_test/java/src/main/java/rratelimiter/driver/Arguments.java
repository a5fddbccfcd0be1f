package rratelimiter.driver;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import org.redisson.api.RateType;

/** The operation that a request is for, the request's name and the arguments. */
final class Arguments {

    final String operation;
    final String name;
    private final JsonNode words;

    Arguments(JsonNode request) {
        operation = request.get("method").asText();
        words = request.get("params").get(0);
        name = words.get(0).asText();
    }

    boolean has(int i) {
        return words.has(i + 1);
    }

    String word(int i) {
        if (!has(i)) {
            throw new IllegalArgumentException(operation + " needs more than " + i + " arguments");
        }
        return words.get(i + 1).asText();
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
