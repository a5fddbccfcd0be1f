package main

import "github.com/rratelimiter/rratelimiter/internal/words"

func formatKeepAlive(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return words.Millis(ms)
}

func formatTTL(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return words.Soon(*ms)
}
