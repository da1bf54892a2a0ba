package store

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tenure-go/tenure/fence"
)

// Bounds, in bytes.
const (
	NameMax   = 200
	HolderMax = 200
	MetaMax   = 2000
	ReasonMax = 500
)

// Format is the version of the records this package describes. A store refuses
// a record of a newer format with [ErrFormat].
const Format = 1

// CheckName is the rule for election names: 1 to [NameMax] bytes of UTF-8
// without control characters. Names are compared byte for byte: every store
// keeps distinct names distinct. The error is an [ErrInvalid].
func CheckName(name string) error {
	if err := fence.CheckText("name", name, NameMax); err != nil {
		return Invalid(err.Error())
	}
	return nil
}

// Validate returns an [ErrInvalid] that joins every fault of the claim with
// what is allowed, or nil. caps is the store's.
func (c Claim) Validate(caps Caps) error {
	var faults []error
	check := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	check(CheckName(c.Name))
	if caps.NameMax > 0 && len(c.Name) > caps.NameMax {
		check(Invalid(fmt.Sprintf("name has %d bytes: the %s store allows at most %d", len(c.Name), caps.Store, caps.NameMax)))
	}
	check(checkText("holder", c.Holder, HolderMax))
	if len(c.Meta) > MetaMax {
		check(Invalid(fmt.Sprintf("meta has %d bytes: allowed are at most %d", len(c.Meta), MetaMax)))
	}
	if !utf8.ValidString(c.Meta) || strings.ContainsRune(c.Meta, 0) {
		check(Invalid(fmt.Sprintf("meta %q: allowed is UTF-8 without zero bytes", c.Meta)))
	}
	check(CheckAttempt(c.Attempt))
	check(CheckTTL(c.TTL, caps))
	if c.Floor < 0 || c.Floor >= fence.MaxToken {
		check(Invalid(fmt.Sprintf("floor is %d: allowed are 0 to %d", c.Floor, fence.MaxToken-1)))
	}
	switch c.Takeover {
	case AtExpiry:
	case OnDisconnect:
		if !caps.Takeover {
			check(fmt.Errorf("%w: the %s store cannot take over on disconnect", ErrUnsupported, caps.Store))
		}
		if !c.FencedOnly {
			check(Invalid("takeover on disconnect needs FencedOnly: without a fence on every write two leaders could act at once"))
		}
	default:
		check(Invalid(fmt.Sprintf("takeover is %d: allowed are AtExpiry and OnDisconnect", c.Takeover)))
	}
	return errors.Join(faults...)
}

// CheckTTL returns an [ErrInvalid] that names the store's bounds if ttl is out
// of them.
func CheckTTL(ttl time.Duration, caps Caps) error {
	if ttl < caps.TTLMin || ttl > caps.TTLMax {
		return Invalid(fmt.Sprintf("ttl is %v: the %s store allows %v to %v", ttl, caps.Store, caps.TTLMin, caps.TTLMax))
	}
	return nil
}

// CheckAttempt is the rule for attempt ids.
func CheckAttempt(a Attempt) error {
	if a == "" || len(a) > AttemptMax {
		return Invalid(fmt.Sprintf("attempt has %d bytes: allowed are 1 to %d", len(a), AttemptMax))
	}
	for i := range len(a) {
		if a[i] <= ' ' || a[i] > '~' {
			return Invalid(fmt.Sprintf("attempt %q: allowed is printable ASCII without spaces", a))
		}
	}
	return nil
}

// Validate returns an [ErrInvalid] with every fault of the eviction, or nil.
func (e Eviction) Validate() error {
	return errors.Join(CheckName(e.Name), checkText("reason", e.Reason, ReasonMax))
}

func checkText(what, text string, max int) error {
	if err := fence.CheckText(what, text, max); err != nil {
		return Invalid(err.Error())
	}
	return nil
}
