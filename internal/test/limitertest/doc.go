// Package limitertest holds what several folders of tests share: limiters of new
// names, what Redis holds of them, callers whose outcomes a test names by their
// moment (Scene, HeldScene), a limiter behind a proxy that meets faults (Wire),
// several limiters at once (Family), and what a Redisson would do (Java).
package limitertest
