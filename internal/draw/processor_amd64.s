#include "textflag.h"

// func hasRDRAND() bool
TEXT ·hasRDRAND(SB), NOSPLIT, $0-1
	MOVL $1, AX
	MOVL $0, CX
	CPUID
	SHRL $30, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET

// func rdrand() (value uint64, ok bool)
TEXT ·rdrand(SB), NOSPLIT, $0-9
	RDRANDQ AX
	SETCS   ok+8(FP)
	MOVQ    AX, value+0(FP)
	RET
