// Package httpjson reads the JSON that HTTP requests bring, and writes what they are
// answered: JSON, and errors as RFC 9457 has them.
package httpjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
)

// Error is an error that says how it is answered. It leaves nothing for the log.
type Error struct {
	Status int
	Detail string
}

func (e *Error) Error() string { return e.Detail }

// Refuse returns what ends a request by that status.
func Refuse(status int, format string, args ...any) error {
	return &Error{status, fmt.Sprintf(format, args...)}
}

// BadRequest returns what ends a request that is wrong in itself.
func BadRequest(format string, args ...any) error {
	return Refuse(http.StatusBadRequest, format, args...)
}

// Write answers with the error.
func (e *Error) Write(w http.ResponseWriter) {
	write(w, "application/problem+json", e.Status, struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail,omitempty"`
	}{http.StatusText(e.Status), e.Status, e.Detail})
}

// OK answers with body as JSON.
func OK(w http.ResponseWriter, body any) {
	write(w, "application/json", http.StatusOK, body)
}

func write(w http.ResponseWriter, contentType string, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		status, text = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // a client that has gone gets nothing
}

// Body returns a request's body, of at most this many bytes, which must be JSON by its
// Content-Type. The error is an *Error.
func Body(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	if !isJSON(r.Header) {
		return nil, Refuse(http.StatusUnsupportedMediaType, "the Content-Type must be application/json")
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, Refuse(http.StatusRequestEntityTooLarge, "a body has at most %d bytes", most)
	}
	if err != nil {
		return nil, BadRequest("the body can't be read")
	}
	return text, nil
}

// isJSON refuses a header that is there twice: which one counts is anybody's guess.
func isJSON(h http.Header) bool {
	values := h.Values("Content-Type")
	if len(values) != 1 {
		return false
	}
	media, _, err := mime.ParseMediaType(values[0])
	return err == nil && media == "application/json"
}
