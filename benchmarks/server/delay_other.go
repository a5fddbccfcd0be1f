//go:build !linux

package server

import "time"

const delays = false

func runDelay(string, string, time.Duration) error { return ErrNoDelay }
