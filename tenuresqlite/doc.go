// Package tenuresqlite keeps leases in a SQLite file: the store for programs on
// one host, which need no server. It has a fence for SQLite databases too.
package tenuresqlite
