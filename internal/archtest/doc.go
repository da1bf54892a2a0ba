// Package archtest holds the project to its own rules, as tests: who may import
// whom, what may be called where, what must be documented, and that what the
// documents show is what the tests run. Each failure says why the rule is there.
//
// It reads the source of every module of the repository, for every operating
// system, and builds nothing.
package archtest
