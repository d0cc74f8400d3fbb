/* Makes the library publish its modules several times: what it keeps for ever is no leak. */
#include <backtrail.h>
#include <stdlib.h>

static char code[64];

int main(void)
{
	void *frames[64];

	if (backtrail_init(NULL) || backtrail_register_code(code, sizeof code) || backtrail_withdraw_code(code))
		return 2;
	/* The last addresses may be in registers and on the stack. */
	for (int i = 0; i < 3; i++)
		if (backtrail_init(NULL) || backtrail_backtrace(frames, 64) < 2)
			return 3;
	return 0;
}
