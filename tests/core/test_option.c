#include "sluice/app/option.h"

#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum color { RED, GREEN, BLUE } color;

typedef struct object {
    bool flag;
    int number, optional;
    int64_t wide;
    float share, small;
    double rate;
    uint64_t seed, bytes;
    color color;
    const char *text;
    int low, high; /* OWN */
} object;

static sl_status parse_range(const char *text, void *to)
{
    object *into = to;
    int low, high;
    if (sscanf(text, "%d-%d", &low, &high) == 2) {
        into->low = low;
        into->high = high;
        return SL_OK;
    }
    return sl_error(SL_ERR_INVALID, "range must be LOW-HIGH, got \"%s\"", text);
}

static char *print_range(const void *from)
{
    const object *o = from;
    char text[32];
    snprintf(text, sizeof text, "%d-%d", o->low, o->high);
    return o->high ? strdup(text) : NULL;
}

static const char *const colors[] = {"red", "green", "blue", NULL};

#define FIELD(field) .offset = offsetof(object, field)

/* clang-format off */
static const sl_option rows[] = {
    {.name = "flag", .type = SL_OPTION_FLAG, FIELD(flag)},
    {.name = "number", .type = SL_OPTION_INT, FIELD(number), .lowest = 1, .highest = 64},
    {.name = "optional", .type = SL_OPTION_INT, FIELD(optional), .lowest = 2, .optional = true},
    {.name = "wide", .type = SL_OPTION_INT64, FIELD(wide)},
    {.name = "share", .type = SL_OPTION_FLOAT, FIELD(share), .less_than = 1},
    {.name = "small", .type = SL_OPTION_FLOAT, FIELD(small), .optional = true, .default_value = 1e-8},
    {.name = "rate", .type = SL_OPTION_DOUBLE, FIELD(rate)},
    {.name = "seed", .type = SL_OPTION_SEED, FIELD(seed)},
    {.name = "bytes", .type = SL_OPTION_BYTES, FIELD(bytes)},
    {.name = "color", .type = SL_OPTION_CHOICE, FIELD(color), .choices = colors},
    {.name = "text", .type = SL_OPTION_TEXT, FIELD(text)},
    {.name = "range", .type = SL_OPTION_CUSTOM, .parse = parse_range, .print = print_range},
    {0},
};
/* clang-format on */

/* A value as it is given, and as it is printed; NULL: it is refused, with `error`. */
static const struct {
    const char *name, *given, *printed, *error;
} cases[] = {
    {"flag", NULL, "true", NULL},
    {"flag", "false", "false", NULL},
    {"flag", "yes", NULL, "flag must be true or false, got \"yes\""},
    {"number", "64", "64", NULL},
    {"number", "0", NULL, "number must be a whole number from 1 to 64, got \"0\""},
    {"number", "65", NULL, "number must be a whole number from 1 to 64, got \"65\""},
    {"number", " 1", NULL, "got \" 1\""},
    {"number", "+1", NULL, "got \"+1\""},
    {"number", "0x1", NULL, "got \"0x1\""},
    {"number", "1.5", NULL, "got \"1.5\""},
    {"number", "", NULL, "got \"\""},
    {"optional", "1", NULL, "optional must be a whole number from 2, got \"1\""},
    {"optional", "2147483647", "2147483647", NULL},
    {"optional", "2147483648", NULL, "optional must be at most 2147483647, got \"2147483648\""},
    {"wide", "9223372036854775807", "9223372036854775807", NULL},
    {"wide", "9223372036854775808", NULL, "wide must be at most 9223372036854775807"},
    {"wide", "-1", NULL, "wide must be a whole number from 0, got \"-1\""},
    {"share", "0.1", "0.1", NULL},
    {"share", ".5", "0.5", NULL},
    {"share", "1", NULL, "share must be at least 0 and below 1, got \"1\""},
    {"share", "0.99999999999", NULL, "share must be at least 0 and below 1"}, /* 1 as a float */
    {"share", "-0.1", NULL, "share must be at least 0 and below 1"},
    {"small", "1e-8", "1e-08", NULL},
    {"small", "0", NULL, "small must be a number above 0, got \"0\""},
    {"small", "1e-60", NULL, "small must be a number above 0, got \"1e-60\""},
    {"rate", "0.1", "0.1", NULL},
    {"rate", "0.30000000000000004", "0.30000000000000004", NULL},
    {"rate", "1e999", NULL, "rate must be a number from 0, got \"1e999\""},
    {"rate", "nan", NULL, "rate must be a number from 0, got \"nan\""},
    {"rate", "inf", NULL, "got \"inf\""},
    {"rate", "0x10", NULL, "got \"0x10\""},
    {"rate", "1,5", NULL, "got \"1,5\""},
    {"seed", "18446744073709551615", "18446744073709551615", NULL},
    {"seed", "18446744073709551616", NULL, "seed must be a whole number from 0 to 2^64 - 1"},
    {"seed", "-1", NULL, "seed must be a whole number from 0 to 2^64 - 1"},
    {"bytes", "3K", "3072", NULL},
    {"bytes", "2G", "2147483648", NULL},
    {"bytes", "0", NULL, "bytes must be a number of bytes such as 500M, got \"0\""},
    {"bytes", "17179869184G", NULL, "bytes must be a number of bytes"},
    {"bytes", "3k", NULL, "bytes must be a number of bytes"},
    {"bytes", "3KB", NULL, "bytes must be a number of bytes"},
    {"color", "blue", "blue", NULL},
    {"color", "Blue", NULL, "color must be red, green or blue, got \"Blue\""},
    {"text", "a b", "a b", NULL},
    {"text", "", NULL, "text must not be empty"},
    {"range", "2-3", "2-3", NULL},
    {"range", "2", NULL, "range must be LOW-HIGH, got \"2\""},
};

static void value_is_read_and_printed_or_refused_and_left_alone(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sl_option *row = sl_option_find(rows, cases[i].name);
        object to = {.number = 7, .color = GREEN}, before = to;
        FREED char *text = NULL;
        assert_non_null(row);
        sl_status status = sl_option_set(row, &to, cases[i].given);
        if (cases[i].error) {
            check_error(status, SL_ERR_INVALID, cases[i].error);
            assert_memory_equal(&to, &before, sizeof to);
            continue;
        }
        check_ok(status);
        check_ok(sl_option_check(row, &to));
        check_ok(sl_option_text(row, &to, &text));
        assert_string_equal(text, cases[i].printed);
    }
}

static void printed_values_read_back_to_the_same_bits(void **state)
{
    srand(1);
    for (int i = 0; i < 10000; i++) {
        object one = {.share = (float)rand() / (float)RAND_MAX * 0.999F,
                      .rate = (double)rand() / 3e7,
                      .seed = (uint64_t)rand() << 33 | (uint64_t)rand()},
               other = {0};
        static const char *const names[] = {"share", "rate", "seed"};
        for (int k = 0; k < 3; k++) {
            const sl_option *row = sl_option_find(rows, names[k]);
            FREED char *text = NULL;
            check_ok(sl_option_text(row, &one, &text));
            check_ok(sl_option_set(row, &other, text));
        }
        assert_true(one.share == other.share && one.rate == other.rate && one.seed == other.seed);
    }
}

static void value_that_is_not_set_has_no_text(void **state)
{
    static const char *const unset[] = {"optional", "rate", "bytes", "text", "range"};
    const object nothing = {.rate = -1};
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++) {
        char *text = (char *)&nothing;
        check_ok(sl_option_text(sl_option_find(rows, unset[i]), &nothing, &text));
        assert_null(text);
    }
    char *text;
    check_ok(sl_option_text(sl_option_find(rows, "small"), &nothing, &text));
    assert_string_equal(text, "1e-08"); /* what 0 stands for */
    free(text);
    assert_null(sl_option_find(rows, "num"));
}

static void value_that_a_program_set_is_checked(void **state)
{
    object of = {.number = 0, .optional = 1, .wide = -1, .share = 1, .rate = NAN};
    check_error(sl_option_check(&rows[1], &of), SL_ERR_INVALID, "number must be at least 1, got 0");
    of.number = 65;
    check_error(sl_option_check(&rows[1], &of), SL_ERR_INVALID,
                "number must be at most 64, got 65");
    check_error(sl_option_check(&rows[2], &of), SL_ERR_INVALID,
                "optional must be at least 2, got 1");
    of.optional = 0;
    check_ok(sl_option_check(&rows[2], &of));
    check_error(sl_option_check(&rows[3], &of), SL_ERR_INVALID, "wide must be at least 0, got -1");
    check_error(sl_option_check(&rows[4], &of), SL_ERR_INVALID,
                "share must be at least 0 and below 1, got 1");
    check_error(sl_option_check(&rows[6], &of), SL_ERR_INVALID,
                "rate must be a number from 0, got nan");
    of.color = (color)3;
    check_error(sl_option_check(&rows[9], &of), SL_ERR_INVALID,
                "color must be one of its 3 choices, got number 3");
}

int option_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(value_is_read_and_printed_or_refused_and_left_alone),
        cmocka_unit_test(printed_values_read_back_to_the_same_bits),
        cmocka_unit_test(value_that_is_not_set_has_no_text),
        cmocka_unit_test(value_that_a_program_set_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
