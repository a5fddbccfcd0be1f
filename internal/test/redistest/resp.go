package redistest

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// readCommand reads one request: its bytes as they came, and its arguments.
func readCommand(r *bufio.Reader) (raw []byte, args []string, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, nil, err
	}
	raw = line
	if line[0] != '*' {
		return raw, strings.Fields(string(line)), nil
	}
	n, err := length(line)
	if err != nil {
		return nil, nil, err
	}
	for range n {
		start := len(raw)
		if raw, err = readValue(r, raw); err != nil {
			return nil, nil, err
		}
		_, arg, _ := strings.Cut(string(raw[start:]), "\r\n")
		args = append(args, strings.TrimSuffix(arg, "\r\n"))
	}
	return raw, args, nil
}

// readAnswer reads one answer, with the attributes in front of it. A push
// message answers no request.
func readAnswer(r *bufio.Reader) (raw []byte, push bool, err error) {
	for {
		kind, err := r.Peek(1)
		if err != nil {
			return nil, false, err
		}
		attributes := kind[0] == '|'
		push = kind[0] == '>'
		if raw, err = readValue(r, raw); err != nil {
			return nil, false, err
		}
		if !attributes {
			return raw, push, nil
		}
	}
}

// readValue appends the next RESP2 or RESP3 value to buf.
func readValue(r *bufio.Reader, buf []byte) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	buf = append(buf, line...)
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		return buf, nil
	}
	n, err := length(line)
	if err != nil {
		return nil, err
	}
	switch line[0] {
	case '$', '=', '!':
		if n < 0 {
			return buf, nil
		}
		start := len(buf)
		buf = append(buf, make([]byte, n+len("\r\n"))...)
		_, err := io.ReadFull(r, buf[start:])
		return buf, err
	case '%', '|':
		n *= 2
	case '*', '~', '>':
	default:
		return nil, fmt.Errorf("redistest: %q starts no RESP value", line)
	}
	for range n {
		if buf, err = readValue(r, buf); err != nil {
			return nil, err
		}
	}
	return buf, nil
}

func length(line []byte) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	if err != nil {
		return 0, fmt.Errorf("redistest: %q has no length: %w", line, err)
	}
	return n, nil
}
