/* What every test program includes: cmocka with what it needs, checks of statuses, and the stacks
 * of a test that hangs. */
#ifndef TESTS_SUPPORT_CHECK_H
#define TESTS_SUPPORT_CHECK_H

#include "sluice/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

/* Declares a variable that is destroyed where its scope ends, in the reverse order of declarations:
 * SCOPED(sl_tensor) *rows = NULL; calls sl_tensor_destroy(&rows). A failed assertion leaves it. */
#define SCOPED(type) __attribute__((cleanup(type##_destroy))) type

/* The same of memory from malloc: FREED float *values = malloc(bytes); */
#define FREED __attribute__((cleanup(free_at_end)))
void free_at_end(void *pointer_of);

/* Of all tensors that the device has. */
uint64_t device_bytes(const sl_device *device);

/* Fails the test, with the error's text, unless `status` is SL_OK. */
void check_ok_at(sl_status status, const char *file, int line);

/* Fails the test unless `status` is `code` and the error's text contains `text`. */
void check_error_at(sl_status status, sl_status code, const char *text, const char *file, int line);

/* The library's schedules with one stage a rank. */
enum { TEST_SCHEDULES = 3 };
extern const char *const test_schedules[TEST_SCHEDULES];

/* Tables that PyTorch writes (torch/distributed/pipelining, BSD licence): DualPipeV for 4 ranks and
 * 10 micro-batches; ZB1P for 2 ranks and 8, in the older dialect. */
extern const char pytorch_dual_pipe_v[], pytorch_zb1p[];

/* The seed of a random test: SLUICE_TEST_SEED, else `own`. Prints it. */
unsigned test_seed(unsigned own);

/* How many of `count` draws a test runs: with a sanitizer, which looks for faults of the code, not
 * of numbers, a quarter. */
int test_rounds(int count);

/* Skips a test of numbers with a sanitizer: other tests run the same code there. */
void skip_if_sanitized(void);

/* A number from low to high. */
int test_draw(unsigned *state, int low, int high);

#define check_ok(status)                check_ok_at(status, __FILE__, __LINE__)
#define check_error(status, code, text) check_error_at(status, code, text, __FILE__, __LINE__)

/* The number of the core that is `index` among those that the test may use; skips the test where
 * there is none. */
int allowed_core(int index);

/* Whether /proc/cpuinfo lists an instruction set that multiplies bf16 matrices. */
bool processor_has_bf16(void);

/* Limits the process to as much address space as it has, and so much more. */
void limit_address_space(size_t more);

/* A zombie waits for its parent to reap it, and runs no more. */
bool process_runs(int process);

/* Once `seconds` are over, prints the stack of every thread to standard error and aborts. */
void abort_with_stacks_after(unsigned seconds);

#endif
