#include "core/huge_pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void blocks_of_every_size_are_aligned_and_writable(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 64, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 7 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *block = sli_huge_pages_alloc(sizes[i]);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % (sizes[i] >= 2 << 20 ? 2 << 20 : 64), 0);
        memset(block, 1, sizes[i]);
        free(block);
    }
}

int huge_pages_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_every_size_are_aligned_and_writable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
