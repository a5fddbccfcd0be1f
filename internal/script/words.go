package script

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Number returns the digits of n as a word of a command; small numbers cost nothing.
func Number(n int64) any {
	if n >= 0 && n < int64(len(smallNumbers)) {
		return smallNumbers[n]
	}
	return strconv.FormatInt(n, 10)
}

var smallNumbers = func() (all [100]any) {
	for i := range all {
		all[i] = strconv.Itoa(i)
	}
	return all
}()

// Millis converts milliseconds from Redis, which may exceed a time.Duration.
func Millis(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}

// ShortAge is an age minus the possible difference between the clocks of client and server: a second,
// and a thousandth in their pace.
func ShortAge(age time.Duration) time.Duration { return max(0, age-age/1000-time.Second) }

// LongAge is an age in milliseconds as a word, with room for what clocks of two servers may differ by.
func LongAge(age time.Duration) string {
	return strconv.FormatInt((age + time.Second).Milliseconds(), 10)
}

// Integers checks that a script answered only integers, and enough of them.
func Integers(reply any, least int) ([]int64, error) {
	values, _ := reply.([]any)
	numbers := make([]int64, 0, len(values))
	for _, value := range values {
		if number, ok := value.(int64); ok {
			numbers = append(numbers, number)
		}
	}
	if len(numbers) < max(least, len(values)) {
		return nil, Unexpected(reply)
	}
	return numbers, nil
}

// Integer checks that a script, if it did not fail, answered an integer.
func Integer(reply any, err error) (int64, error) {
	number, ok := reply.(int64)
	if err == nil && !ok {
		err = Unexpected(reply)
	}
	return number, err
}

// Unexpected is the error for an answer that the script never gives.
func Unexpected(reply any) error { return fmt.Errorf("unexpected answer of a script: %v", reply) }
