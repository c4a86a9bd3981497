#include "core/memory.h"

#include "support/check.h"

#include <stdlib.h>
#include <string.h>

static void array_grows_up_to_its_maximum(void **state)
{
    (void)state;
    int *numbers = NULL;
    size_t room = 0;
    for (size_t i = 0; i < 100; i++) {
        check_ok(sli_array_reserve(&numbers, &room, i + 1, sizeof *numbers, 100, "numbers"));
        assert_true(room > i && room <= 100);
        numbers[i] = (int)i;
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(numbers[i], i);
    check_error(sli_array_reserve(&numbers, &room, 101, sizeof *numbers, 100, "numbers"),
                SL_ERR_UNSUPPORTED, "there can be at most 100 numbers");
    check_error(sli_array_reserve(&numbers, &room, SIZE_MAX, sizeof *numbers, SIZE_MAX, "numbers"),
                SL_ERR_MEMORY, "no memory for");
    assert_int_equal(numbers[99], 99);
    free(numbers);
}

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

int memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(array_grows_up_to_its_maximum),
        cmocka_unit_test(blocks_of_every_size_are_aligned_and_writable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
