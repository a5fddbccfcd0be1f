package javadriver

import "sync"

// Tail is a writer that keeps the end of what is written to it, such as a JVM's
// standard error.
type Tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 16 << 10

func (t *Tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	t.text = append(t.text[:0], t.text[max(0, len(t.text)-tailSize):]...)
	return len(text), nil
}

func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
