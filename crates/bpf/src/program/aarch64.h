/* `struct user_pt_regs`, in words. */
#define REGISTERS 34
enum { FP = 29, LINK = 30, SP = 31, PC = 32, STATE = 33 };

/* What the kernel saves of code that a signal interrupts: from this byte above the stack pointer of
 * its return, in words. */
#define SAVED_AT 312
enum { SAVED_FP = 29, SAVED_LINK = 30, SAVED_SP = 31, SAVED_PC = 32, SAVED };

/* Only programs of 64 bits: PSR_MODE32_BIT. */
#define IS_OURS(registers) (!((registers)[STATE] & 0x10))
