package main

import (
	"fmt"
	"reflect"
	"time"

	"github.com/alecthomas/kong"
)

var durationType = reflect.TypeFor[time.Duration]()

// durationMax is the longest duration of the command line: more than anybody
// means, and far from what the sums with it could not hold.
const durationMax = 365 * 24 * time.Hour

// decodeDuration reads a duration of the command line.
func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	t, err := ctx.Scan.PopValue("duration")
	if err != nil {
		return err
	}
	text := fmt.Sprint(t.Value)
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a duration: allowed are numbers with a unit, such as 500ms, 15s, 2m or 1h30m, up to %v", text, durationMax)
	case d < 0:
		return fmt.Errorf("%q is negative: allowed are durations from 0 to %v", text, durationMax)
	case d > durationMax:
		return fmt.Errorf("%q is too long: allowed are durations up to %v", text, durationMax)
	}
	target.SetInt(int64(d))
	return nil
}

// decodeString takes an argument byte for byte. The library's own way replaces
// what is not UTF-8, which would change a guarded command's arguments and make
// two names one.
func decodeString(ctx *kong.DecodeContext, target reflect.Value) error {
	t, err := ctx.Scan.PopValue("string")
	if err != nil {
		return err
	}
	text, ok := t.Value.(string)
	if !ok {
		text = fmt.Sprint(t.Value)
	}
	target.SetString(text)
	return nil
}
