/* Says where a test hangs, before CTest kills it. */
#ifndef TESTS_SUPPORT_HANG_H
#define TESTS_SUPPORT_HANG_H

/* Once `seconds` are over, prints the stack of every thread to standard error and aborts. */
void abort_with_stacks_after(unsigned seconds);

#endif
