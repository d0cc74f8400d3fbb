/* `struct pt_regs`, in words. */
#define REGISTERS 21
enum { FP = 4, PC = 16, CS = 17, SP = 19 };

/* What the kernel saves of code that a signal interrupts: from this byte above the stack pointer of
 * its return, in words. */
#define SAVED_AT 40
enum { SAVED_FP = 10, SAVED_SP = 15, SAVED_PC = 16, SAVED };

/* Functions may use this many bytes below the stack pointer. */
#define RED_ZONE 128

/* Only programs of 64 bits: __USER_CS. */
#define IS_OURS(registers) ((registers)[CS] == 0x33)
