package rratelimiter.driver;

/** This Redisson release has no such operation; the message names it. */
final class UnsupportedException extends Exception {

    private static final long serialVersionUID = 1;

    UnsupportedException(String operation) {
        super(operation);
    }
}
