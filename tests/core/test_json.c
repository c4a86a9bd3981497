/* Texts that are walked through are valid JSON where jansson says so. */
#include "core/json.h"
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct text {
    char bytes[1 << 16];
    size_t length;
    unsigned seed;
    bool may_be_wrong;
} text;

static void add(text *out, const char *more)
{
    size_t length = strlen(more);
    assert_true(out->length + length < sizeof out->bytes);
    memcpy(out->bytes + out->length, more, length);
    out->length += length;
}

static void add_scalar(text *out)
{
    static const char *const right[] = {"0",
                                        "7",
                                        "-0",
                                        "12",
                                        "-3.5",
                                        "1e5",
                                        "true",
                                        "null",
                                        "\"\"",
                                        "\"a\"",
                                        "\"\\u00e9\\n\"",
                                        "\"\xc3\xa9\"",
                                        "999999999999999999",
                                        "9223372036854775807"};
    static const char *const wrong[] = {"01",
                                        "nul",
                                        "\"\xff\"",
                                        "\"\t\"",
                                        "\"\\x\"",
                                        "+1",
                                        "1.",
                                        "9223372036854775808",
                                        "\"\xed\xa0\x80\"",
                                        ""};
    enum { RIGHT = sizeof right / sizeof *right, WRONG = sizeof wrong / sizeof *wrong };
    bool is_wrong = out->may_be_wrong && test_draw(&out->seed, 0, 99) == 0;
    add(out, is_wrong ? wrong[test_draw(&out->seed, 0, WRONG - 1)]
                      : right[test_draw(&out->seed, 0, RIGHT - 1)]);
}

static void add_value(text *out, int depth)
{
    int kind = depth == 0 ? 0 : test_draw(&out->seed, 0, 2), most = depth > 2 ? 300 : 6;
    int count = test_draw(&out->seed, 0, most);
    if (kind == 0) {
        add_scalar(out);
        return;
    }
    add(out, kind == 1 ? "[" : "{ ");
    for (int i = 0; i < count && out->length < sizeof out->bytes / 2; i++) {
        char key[32];
        snprintf(key, sizeof key, "\"%s%d\": ", i % 3 ? "key" : "k\\u0065y-", i);
        add(out, i > 0 ? " ," : "");
        add(out, kind == 1 ? "" : key);
        add_value(out, depth - 1);
    }
    add(out, kind == 1 ? "]" : " }");
}

static bool is_valid(const text *drawn)
{
    const sli_json json = {"the text", drawn->bytes, drawn->length};
    sli_json_value root;
    return sli_json_root(&json, &root) == SL_OK && sli_json_check(&json, root) == SL_OK;
}

static void drawn_texts_are_as_valid_as_jansson_says(void **state)
{
    static text drawn;
    int right = 0, wrong = 0;
    drawn.seed = test_seed(8259);
    for (int round = 0; round < 3000; round++) {
        drawn.length = 0;
        drawn.may_be_wrong = round % 2;
        add_value(&drawn, test_draw(&drawn.seed, 0, 4));
        json_t *tree =
            json_loadb(drawn.bytes, drawn.length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
        if (is_valid(&drawn) != (tree != NULL))
            fail_msg("round %d: \"%.*s\" is %s", round, (int)drawn.length, drawn.bytes,
                     tree ? "valid" : "not valid");
        right += tree != NULL;
        wrong += tree == NULL;
        json_decref(tree);
    }
    assert_true(right > 100 && wrong > 100);
}

int json_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_texts_are_as_valid_as_jansson_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
