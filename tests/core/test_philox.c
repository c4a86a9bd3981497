#include "core/philox.h"
#include "support/check.h"

/* Known answers of Random123 (kat_vectors, philox4x32 10). */
static void philox_gives_the_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t words[4];
        for (int w = 0; w < 4; w++)
            words[w] = known[i].counter[w];
        sli_philox((sli_philox_key){{known[i].key[0], known[i].key[1]}}, words);
        assert_memory_equal(words, known[i].answer, sizeof words);
    }
}

static void uniform_numbers_are_from_zero_to_below_one(void **state)
{
    assert_true(sli_uniform_from_bits(0) == 0);
    assert_true(sli_uniform_from_bits(UINT32_MAX) == 1 - 0x1p-24f);
    assert_true(sli_uniform_from_bits(0x80000000u) == 0.5f);
}

static void keys_differ_by_seed_and_by_domain(void **state)
{
    static const enum sli_random_domain domains[] = {SLI_RANDOM_DROPOUT, SLI_RANDOM_INIT,
                                                     SLI_RANDOM_SAMPLE, SLI_RANDOM_GENERATE,
                                                     SLI_RANDOM_SHUFFLE};
    static const uint64_t seeds[] = {7, 8, 7 + (1ull << 32)};
    for (int i = 0; i < 5 * 3; i++)
        for (int j = 0; j < i; j++) {
            sli_philox_key a = sli_philox_key_make(seeds[i % 3], domains[i / 3]);
            sli_philox_key b = sli_philox_key_make(seeds[j % 3], domains[j / 3]);
            assert_memory_not_equal(&a, &b, sizeof a);
        }
}

int philox_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(uniform_numbers_are_from_zero_to_below_one),
        cmocka_unit_test(keys_differ_by_seed_and_by_domain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
