//go:build !race

package sim

const runsDefault = 20_000
