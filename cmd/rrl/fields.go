package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

// fields are the fields of a limiter's hash, in their own units.
type fields struct {
	rate, intervalMS, rateType, keepAliveMS int64
}

// fieldNames are their names in Redis, in the order of parseFields.
var fieldNames = []string{"rate", "interval", "type", "keepAliveTime"}

// parseFields reads the fields as HMGET answers them. The last may be missing.
func parseFields(answer []any) (fields, error) {
	if len(answer) != len(fieldNames) {
		return fields{}, errors.New("no fields")
	}
	n := make([]int64, len(fieldNames))
	for i, name := range fieldNames {
		text, ok := answer[i].(string)
		if !ok {
			if name == "keepAliveTime" {
				continue
			}
			return fields{}, fmt.Errorf("field %s is missing", name)
		}
		var err error
		if n[i], err = strconv.ParseInt(text, 10, 64); err != nil || n[i] < 0 {
			return fields{}, fmt.Errorf("field %s is %q, not a whole number from 0", name, text)
		}
	}
	if n[2] > int64(rratelimiter.PerClient) {
		return fields{}, fmt.Errorf("field type is %d, neither 0 nor 1", n[2])
	}
	return fields{rate: n[0], intervalMS: n[1], rateType: n[2], keepAliveMS: n[3]}, nil
}

// typeName is Redisson's name of the type.
func (f fields) typeName() string { return rratelimiter.RateType(f.rateType).String() }

func formatKeepAlive(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return output.Millis(ms)
}

func formatTTL(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return output.Soon(*ms)
}
