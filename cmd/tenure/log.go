package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
)

// plainHandler writes log records for people, a line each:
//
//	tenure: leading election=invoices token=8
//	tenure: warning: renewal failed; trying again …
type plainHandler struct {
	mu    *sync.Mutex
	w     io.Writer
	level slog.Level
	attrs []slog.Attr
}

func (h *plainHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

func (h *plainHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString("tenure: ")
	switch {
	case r.Level >= slog.LevelError:
		b.WriteString("error: ")
	case r.Level >= slog.LevelWarn:
		b.WriteString("warning: ")
	}
	b.WriteString(r.Message)
	for _, at := range h.attrs {
		writeAttr(&b, at)
	}
	r.Attrs(func(at slog.Attr) bool {
		writeAttr(&b, at)
		return true
	})
	b.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.w, b.String())
	return err
}

func writeAttr(b *strings.Builder, at slog.Attr) {
	text := at.Value.Resolve().String()
	if at.Value.Kind() == slog.KindDuration {
		text = at.Value.Duration().Round(time.Millisecond).String()
	}
	text = tidy(text)
	if text == "" || strconv.Quote(text) != `"`+text+`"` || strings.ContainsAny(text, " =") {
		text = strconv.Quote(text)
	}
	fmt.Fprintf(b, " %s=%s", at.Key, text)
}

func (h *plainHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *h
	more.attrs = append(append([]slog.Attr(nil), h.attrs...), attrs...)
	return &more
}

// WithGroup ignores the group: tenure uses none.
func (h *plainHandler) WithGroup(string) slog.Handler { return h }
