// Package postgres tests package tenurepg against real servers: PostgreSQL,
// directly and behind pgbouncer.
package postgres
